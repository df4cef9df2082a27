# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Work: an operation in flight as torch.distributed knows it, and the thread behind its future.

Who waits for a Work completes it, on the waiting thread: no other thread is woken for a plain call.
Only a future needs a thread. There is one a process, first in, first out: callbacks run in the same
order on all ranks. A callback may wait for a collective. What it posts goes to a communicator of its
own (see base.py), whichever thread it runs on, since ranks differ in that; a future that it asks for is
completed before it gets it; and while it waits for an earlier one, another thread goes on.

Errors never go in by set_exception(), which crashes the DDP Reducer: the public future is made by
then(), and raises inside.
"""
import atexit
import os
import queue
import threading
import time
from ctypes import byref, c_void_p
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Set

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d

from .._lib import ROCE_IN_PROGRESS, lib, roce_test
from ..request import TURN_MS, wait_handle

if TYPE_CHECKING:
    from .group import RoceProcessGroup

BackendError = getattr(dist, "DistBackendError", RuntimeError)  # absent in 1.13
_profiling: Callable[[], bool] = torch.autograd._profiler_enabled
_roce_wait = lib.roce_wait
_INIT = c10d.Work.__init__


class Work(c10d.Work):  # type: ignore[misc,unused-ignore]
    """One operation. The tensors are held until it has ended."""

    parts: List["Work"] = []  # of a batch: what it waits for instead of a handle
    grouped = False  # in a batch that is not posted yet
    _ended = False
    _error: Optional[BaseException] = None
    _promise: Any = None
    _future: Any = None
    _source = -1

    def __init__(
        self,
        group: "RoceProcessGroup",
        name: str,
        result: List[Any],
        keep: Any = None,
        finish: Optional[Callable[[], None]] = None,
    ) -> None:
        _INIT(self)
        self._group = group
        self._name = name
        self._seq = group.seq
        self._handle = c_void_p()
        self._result = result
        self._keep = keep
        self._finish = finish
        self._lock = threading.Lock()

    # ---- completion

    def _status(self, timeout: Optional[float]) -> int:
        """Waits; ROCE_IN_PROGRESS after `timeout` seconds. Sets the error."""
        if not self.parts:
            status = wait_handle(self._handle, timeout) if self._handle else 0
            if status and status != ROCE_IN_PROGRESS:
                self._error = self._group.failure(status, self._name, self._seq)
            return status
        end = None if timeout is None else time.monotonic() + timeout
        for part in self.parts:
            if not part._complete(None if end is None else max(0.0, end - time.monotonic())):
                return ROCE_IN_PROGRESS
            self._error = self._error or part._error
        return 0

    def _close(self) -> None:
        finish, self._finish = self._finish, None
        if finish is not None:
            try:
                if self._error is None:
                    finish()
            except Exception as error:  # pylint: disable=broad-except
                self._error = error
        self._keep = None
        self._ended = True
        self._group.live.pop(self, None)

    def _complete(self, timeout: Optional[float] = None) -> bool:
        """Returns whether it has ended."""
        if not self._lock.acquire(timeout=-1 if timeout is None else max(0.0, timeout)):
            return False
        try:
            if not self._ended:
                if self._status(timeout) == ROCE_IN_PROGRESS:
                    return False
                self._close()
            return True
        finally:
            self._lock.release()

    def wait(self, timeout: Any = None) -> bool:
        """Waits; raises the operation's error, or one that says that `timeout` has passed.

        In an open batch it does nothing: the batch's own work is what is to be waited for.
        """
        if self.grouped:
            return True
        if not self._ended:
            if timeout or _profiling():
                self._wait_long(timeout)
            elif self._handle and self._lock.acquire(False):
                # The plain call: nobody else looks at this work.
                try:
                    status = _roce_wait(byref(self._handle), TURN_MS)
                    if status != ROCE_IN_PROGRESS and not self._ended:
                        if status:
                            self._error = self._group.failure(status, self._name, self._seq)
                        self._close()
                finally:
                    self._lock.release()
                if not self._ended:
                    self._complete()
            else:
                self._complete()
        if self._error is not None:
            raise self._error
        return True

    def _wait_long(self, timeout: Any) -> None:
        seconds = timeout.total_seconds() if timeout else None
        if seconds is not None and seconds < 0:
            seconds = None
        if _profiling():
            with torch.autograd.profiler.record_function(f"roce:wait {self._name} seq={self._seq}"):
                ended = self._complete(seconds)
        else:
            ended = self._complete(seconds)
        if not ended:
            raise BackendError(
                f"roce: {self._name} (operation {self._seq} of group {self._group.label}): Timed out waiting "
                f"{seconds:g} s; it goes on"
            )

    def posted(self) -> None:
        """The batch that it was in is posted."""

    def reap(self) -> bool:
        """Completes it if it has ended; does not wait. Returns whether it has."""
        if self._ended:
            return True
        if self.grouped or not self._lock.acquire(False):
            return False
        try:
            if self._ended:
                return True
            if self._look() == ROCE_IN_PROGRESS:
                return False
            self._close()
            return True
        finally:
            self._lock.release()

    def _look(self) -> int:
        """As _status(0), without the waiting."""
        for part in self.parts:
            if not part.reap():
                return ROCE_IN_PROGRESS
            self._error = self._error or part._error
        status = roce_test(byref(self._handle)) if self._handle else 0
        if status and status != ROCE_IN_PROGRESS:
            self._error = self._group.failure(status, self._name, self._seq)
        return status

    # ---- the rest of c10d.Work

    def is_completed(self) -> bool:
        """Has it ended, well or not?"""
        return self.reap()

    def is_success(self) -> bool:
        """Has it ended well?"""
        return self.reap() and self._error is None

    def exception(self) -> Optional[BaseException]:
        """Its error, if it has ended badly."""
        return self._error if self.reap() else None

    def result(self) -> List[Any]:
        """The tensors that it wrote."""
        return self._result

    def source_rank(self) -> int:
        """Who sent what a receive got."""
        return self._source

    _source_rank = source_rank

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def block_current_stream(self) -> None:
        """As wait(): host memory has no streams."""
        self.wait()

    def get_future(self) -> Any:
        """A future of result(); it is completed by the process's completer."""
        future = self._future
        if future is None:
            with _future_lock:
                if self._future is None:
                    self._promise = torch.futures.Future()
                    self._future = self._promise.then(self._outcome)
                    completer.add(self)
                future = self._future
        return future

    def _outcome(self, _: Any) -> List[Any]:
        if self._error is not None:
            raise self._error
        return self._result

    def fulfil(self) -> None:
        """Completes work and future; callbacks run here."""
        self._complete()
        self.tell()

    def tell(self) -> None:
        """Completes the future of a work that has ended; callbacks run here."""
        promise, self._promise = self._promise, None
        promise.set_result(None)


class Done(c10d.Work):  # type: ignore[misc,unused-ignore]
    """What a call yields that has waited itself, because its caller said that it would."""

    def wait(self, timeout: Any = None) -> bool:
        """It has ended well."""
        del timeout
        return True

    synchronize = block_current_stream = wait

    def is_completed(self) -> bool:
        """See wait()."""
        return True

    is_success = is_completed

    def exception(self) -> Optional[BaseException]:
        """None."""
        return None

    def result(self) -> List[Any]:
        """The caller has the tensors."""
        return []

    def get_future(self) -> Any:
        """A future of result()."""
        future: Any = torch.futures.Future()
        future.set_result([])
        return future


_future_lock = threading.Lock()
_callbacks: Dict[int, int] = {}  # threads that run a callback, and how deep


def in_callback() -> bool:
    """Does this thread run a callback of a future?"""
    return bool(_callbacks) and threading.get_ident() in _callbacks


def mark_callbacks() -> None:
    """Has every Python callback of a future mark its thread while it runs, and tell when it waits. Once a process."""
    original = torch._C.Future.then
    if getattr(original, "rocecomm", False):
        return

    def then(self: Any, callback: Callable[[Any], Any]) -> Any:
        def run(future: Any) -> Any:
            ident = threading.get_ident()
            _callbacks[ident] = _callbacks.get(ident, 0) + 1
            try:
                return callback(future)
            finally:
                if _callbacks[ident] == 1:
                    del _callbacks[ident]
                else:
                    _callbacks[ident] -= 1

        return original(self, run)

    def wait(self: Any) -> Any:
        if in_callback() and not self.done():
            completer.stand_in()
        return waiting(self)

    waiting = torch._C.Future.wait
    then.rocecomm = True  # type: ignore[attr-defined]
    torch._C.Future.then = then
    torch._C.Future.wait = wait


_GRACE_S = 2.0  # at exit, for works that have not ended
_CALLBACK_S = 60.0  # and for callbacks that run


class Completer:
    """The thread that completes futures, in the order in which they were asked for."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """In a forked child the parent's threads and their queue do not exist."""
        self._queue: "queue.SimpleQueue[Optional[Work]]" = queue.SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._lock = threading.Lock()  # guards the three below
        self._threads: Set[threading.Thread] = set()  # that run: _thread, and those that it stands in for
        self._telling: Set[threading.Thread] = set()  # that complete a future just now
        self._leaving = False
        _callbacks.clear()

    def add(self, work: Work) -> None:
        """Takes a work that has a promise."""
        if in_callback():
            # Who runs the callback would have to complete this future too.
            work.fulfil()
            return
        if self._thread is None:
            self._start()
        self._queue.put(work)

    def _start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="rocecomm-futures", daemon=True)
        with self._lock:
            self._threads.add(self._thread)
        self._thread.start()

    def stand_in(self) -> None:
        """A callback waits for a future: if this is the thread that would complete it, another goes on."""
        if self._thread is threading.current_thread():
            self._start()

    def _run(self) -> None:
        me = threading.current_thread()
        try:
            while self._next(me) and self._thread is me:
                pass  # else another stands in since a callback began to wait
        finally:
            with self._lock:
                self._threads.discard(me)

    def _next(self, me: threading.Thread) -> bool:
        """Completes the next work and its future. Return: False when the process exits."""
        work = self._queue.get()
        if work is None:
            return False
        work._complete()
        with self._lock:
            if self._leaving:
                return False
            self._telling.add(me)
        try:
            work.tell()
        finally:
            with self._lock:
                self._telling.discard(me)
        return True

    def stop(self) -> None:
        """At exit: no thread may complete a future while the interpreter goes.

        It would come back from PyTorch's C++, which ends the process by SIGABRT when the interpreter stops
        the thread there. Works that do not end are left after a while: who waits for them is in C.
        """
        with self._lock:
            threads = list(self._threads)
        for _ in threads:
            self._queue.put(None)
        end = time.monotonic() + _GRACE_S
        for thread in threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._lock:
            self._leaving = True
            telling = list(self._telling)
        end = time.monotonic() + _CALLBACK_S
        for thread in telling:
            while thread in self._telling and time.monotonic() < end:
                thread.join(0.01)


completer = Completer()
atexit.register(lambda: completer.stop())
os.register_at_fork(after_in_child=completer.reset)
