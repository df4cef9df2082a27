# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Sends and receives, with tags and with any source, over a transport that has neither.

The library's n-th send to a rank meets the n-th receive from it. Every message begins with a cell of
256 bytes: its tag, size and type, and its bytes too if they fit; others follow as a second message.
A receive of tag 0 from a known rank posts both at once and finds the cell as expected.

The first receive that names another tag, or no source, starts the matcher: a thread that takes all
receives of the group from then on. It reads cells as they arrive, and keeps what nobody waits for
yet. Senders know nothing of it.
"""
import atexit
import struct
import threading
import weakref
from collections import deque
from ctypes import byref, c_size_t, c_uint8, c_void_p, memmove
from typing import TYPE_CHECKING, Any, Deque, Dict, List, Optional, Tuple

from .._lib import ROCE_IN_PROGRESS, lib
from .tensors import ready_input, ready_output
from .types import type_of
from .work import BackendError, Work

if TYPE_CHECKING:
    from .group import RoceProcessGroup

_CELL = 256
_HEAD = struct.Struct("<IiqqI4x")  # magic, dtype, tag, bytes, sequence number
_INLINE = _CELL - _HEAD.size
_MAGIC = 0x45434F52
_SLAB = 64
_U8 = 1
_TURN_MS = 2


class _Cells:
    """Cells in memory that the daemon shares."""

    def __init__(self, group: "RoceProcessGroup") -> None:
        self._client = group.client
        self._free: List[Tuple[int, Any]] = []

    def get(self) -> Tuple[int, Any]:
        """Address, and the memory that holds it."""
        try:
            return self._free.pop()
        except IndexError:
            slab = self._client.alloc(_CELL * _SLAB)
            base = self._client.address(slab)
            self._free += [(base + _CELL * n, slab) for n in range(1, _SLAB)]
            return base, slab

    def put(self, cell: Tuple[int, Any]) -> None:
        """Gives one back."""
        self._free.append(cell)


class _Receive(Work):
    """A receive that the matcher completes."""

    def __init__(self, group: "RoceProcessGroup", tensor: Any, source: Optional[int], tag: int) -> None:
        entry = type_of(tensor, "recv")
        ptr, hold, finish = ready_output(group._pool, tensor, "recv", False)
        super().__init__(group, "recv", [tensor], hold, finish)
        self.ptr, self.wanted, self.tag = ptr, source, tag
        self.dtype, self.nbytes = entry.dtype, tensor.numel() * entry.itemsize
        self.count = tensor.numel() * entry.per
        self.arrived = threading.Event()

    def _status(self, timeout: Optional[float]) -> int:
        return 0 if self.arrived.wait(timeout) else ROCE_IN_PROGRESS

    def _look(self) -> int:
        return 0 if self.arrived.is_set() else ROCE_IN_PROGRESS

    def arrive(self, source: int, error: Optional[BaseException] = None) -> None:
        """The bytes are there, or will not come."""
        self._source = source
        self._error = self._error or error
        self.arrived.set()


class _Message:
    """One that nobody waited for when its cell came."""

    __slots__ = ("source", "tag", "nbytes", "dtype", "ptr", "hold", "taker", "here", "handle")

    def __init__(self, source: int, tag: int, nbytes: int, dtype: int) -> None:
        self.source, self.tag, self.nbytes, self.dtype = source, tag, nbytes, dtype
        self.ptr = 0
        self.hold: Any = None
        self.taker: Optional[_Receive] = None
        self.here = False
        self.handle = c_void_p()


def _disagree(group: "RoceProcessGroup", source: int, nbytes: int, dtype: int, work: Any) -> BaseException:
    return BackendError(
        f"roce: recv (operation {work._seq} of group {group.label}): rank {source} sent {nbytes} bytes of type "
        f"number {dtype}, this rank waits for {work.nbytes} bytes of type number {work.dtype}"
    )


class PointToPoint:
    """The sends and receives of one group."""

    def __init__(self, group: "RoceProcessGroup") -> None:
        self._group = group
        self._cells = _Cells(group)
        self._matcher: Optional[Matcher] = None

    def send(self, tensor: Any, dst: int, tag: int) -> Work:
        """Posts a message."""
        group = self._group
        entry = type_of(tensor, "send")
        nbytes = tensor.numel() * entry.itemsize
        ptr, hold = ready_input(group._pool, tensor, "send")
        cell = self._cells.get()
        memmove(cell[0], _HEAD.pack(_MAGIC, entry.dtype, tag, nbytes, group.seq & 0xFFFFFFFF), _HEAD.size)
        work = Work(group, "send", [tensor], hold, lambda: self._cells.put(cell))
        if nbytes <= _INLINE:
            memmove(cell[0] + _HEAD.size, ptr, nbytes)
            return group.post(work, nbytes, lib.roce_isend, cell[0], _CELL, _U8, dst)
        first = Work(group, "send", [tensor])
        group.post(first, _CELL, lib.roce_isend, cell[0], _CELL, _U8, dst)
        count = tensor.numel() * entry.per
        second = group.post(Work(group, "send", [tensor], hold), nbytes, lib.roce_isend, ptr, count, entry.dtype, dst)
        return self._both(work, first, second)

    def _both(self, work: Work, first: Work, second: Work) -> Work:
        group = self._group
        work.parts = [first, second]
        group.keep(work)
        return work

    def recv(self, tensor: Any, src: Optional[int], tag: int) -> Work:
        """Posts a receive; `src` None: from any other rank."""
        if self._matcher is None and (src is None or tag != 0):
            self._matcher = Matcher(self._group, self._cells)
        if self._matcher is not None:
            self._group.seq += 1
            work = _Receive(self._group, tensor, src, tag)
            self._group.keep(work)
            self._matcher.add(work)
            return work
        assert src is not None
        return self._recv_known(tensor, src)

    def _recv_known(self, tensor: Any, src: int) -> Work:
        group = self._group
        entry = type_of(tensor, "recv")
        nbytes = tensor.numel() * entry.itemsize
        ptr, hold, finish = ready_output(group._pool, tensor, "recv", False)
        cell = self._cells.get()
        work = _Known(group, "recv", [tensor], hold)
        work.nbytes, work.dtype, work._source = nbytes, entry.dtype, src

        def end() -> None:
            _, dtype, got_tag, got, _ = _HEAD.unpack(bytes((c_uint8 * _HEAD.size).from_address(cell[0])))
            if (got, dtype) != (nbytes, entry.dtype):
                raise _disagree(group, src, got, dtype, work)
            if got_tag != 0:
                raise BackendError(
                    f"roce: recv (operation {work._seq} of group {group.label}): rank {src} sent tag {got_tag} where "
                    "this rank waits for tag 0, and messages had been taken in order so far: use one tag, or begin "
                    "with a receive that names another"
                )
            if nbytes <= _INLINE:
                memmove(ptr, cell[0] + _HEAD.size, nbytes)
            if finish is not None:
                finish()
            self._cells.put(cell)

        work._finish = end
        if nbytes <= _INLINE:
            return group.post(work, nbytes, lib.roce_irecv, cell[0], _CELL, _U8, src)
        first = Work(group, "recv", [tensor])
        group.post(first, _CELL, lib.roce_irecv, cell[0], _CELL, _U8, src)
        count = tensor.numel() * entry.per
        second = group.post(Work(group, "recv", [tensor], hold), nbytes, lib.roce_irecv, ptr, count, entry.dtype, src)
        return self._both(work, first, second)

    def stop(self) -> None:
        """The group is left."""
        if self._matcher is not None:
            self._matcher.stop()


class _Known(Work):
    """A receive from a known rank, with what it expects."""

    nbytes = 0
    dtype = 0


_running: "weakref.WeakSet[Matcher]" = weakref.WeakSet()


def _stop_all() -> None:
    """At exit: no thread may return from the library into an interpreter that is gone."""
    for matcher in list(_running):
        matcher.stop()


atexit.register(_stop_all)


class Matcher:
    """See the title. One thread; `_lock` guards all but what the thread alone uses."""

    def __init__(self, group: "RoceProcessGroup", cells: _Cells) -> None:
        self._group, self._cells = group, cells
        self._changed = threading.Condition()
        self._waiting: List[_Receive] = []
        self._unclaimed: List[_Message] = []
        self._heads: Dict[int, Tuple[Tuple[int, Any], c_void_p]] = {}  # posted cells, by source
        self._bodies: Deque[_Message] = deque()  # posted second messages
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="rocecomm-matcher", daemon=True)
        self._thread.start()
        _running.add(self)

    def add(self, work: _Receive) -> None:
        """Takes a receive."""
        with self._changed:
            for message in self._unclaimed:
                if work.tag == message.tag and work.wanted in (None, message.source):
                    self._unclaimed.remove(message)
                    self._claim(message, work)
                    return
            self._waiting.append(work)
            self._changed.notify()

    def stop(self) -> None:
        """Ends the thread."""
        with self._changed:
            self._stopped = True
            self._changed.notify()
        if threading.current_thread() is not self._thread:
            self._thread.join(1.0)

    # ---- all below with the lock held

    def _claim(self, message: _Message, work: _Receive) -> None:
        if (message.nbytes, message.dtype) != (work.nbytes, work.dtype):
            work.arrive(message.source, _disagree(self._group, message.source, message.nbytes, message.dtype, work))
        elif message.here:
            memmove(work.ptr, message.ptr, message.nbytes)
            work.arrive(message.source)
        else:
            message.taker = work

    def _post(self, ptr: int, count: int, dtype: int, source: int, handle: c_void_p) -> Optional[BaseException]:
        status = lib.roce_irecv(ptr, count, dtype, source, self._group.comm.handle, byref(handle))
        return self._group.failure(status, "recv", self._group.seq) if status else None

    def _sources(self) -> List[int]:
        wanted = {work.wanted for work in self._waiting}
        if None in wanted:
            return [r for r in range(self._group._size) if r != self._group._rank]
        return sorted(r for r in wanted if r is not None)

    def _post_heads(self) -> None:
        for source in self._sources():
            if source not in self._heads:
                cell, handle = self._cells.get(), c_void_p()
                error = self._post(cell[0], _CELL, _U8, source, handle)
                if error is not None:
                    self._fail(source, error)
                    return
                self._heads[source] = (cell, handle)

    def _fail(self, source: int, error: BaseException) -> None:
        """Ends every receive that `source` might have met."""
        for work in [w for w in self._waiting if w.wanted in (None, source)]:
            self._waiting.remove(work)
            work.arrive(source, error)

    def _head(self, source: int, cell: Tuple[int, Any]) -> None:
        """A cell has come."""
        raw = bytes((c_uint8 * _CELL).from_address(cell[0]))
        self._cells.put(cell)
        _, dtype, tag, nbytes, _ = _HEAD.unpack(raw[: _HEAD.size])
        message = _Message(source, tag, nbytes, dtype)
        taker = next((w for w in self._waiting if w.tag == tag and w.wanted in (None, source)), None)
        fits = taker is not None and (taker.nbytes, taker.dtype) == (nbytes, dtype)
        if nbytes <= _INLINE:
            message.hold = (c_uint8 * max(1, nbytes)).from_buffer_copy(raw[_HEAD.size :])
            message.ptr = self._group.client.address(message.hold)
            message.here = True
        else:
            if fits:
                assert taker is not None
                message.ptr, message.taker = taker.ptr, taker
            else:
                message.hold = self._group._pool.get(nbytes)
                message.ptr = message.hold.ptr
            # Elements of the sender's type: the two sides must be equal.
            size = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1)[dtype]
            error = self._post(message.ptr, nbytes // size, dtype, source, message.handle)
            if error is not None:
                self._fail(source, error)
                return
            self._bodies.append(message)
        if taker is None:
            self._unclaimed.append(message)
            return
        self._waiting.remove(taker)
        if message.taker is None:
            self._claim(message, taker)

    def _body(self, message: _Message, error: Optional[BaseException]) -> None:
        """A second message has come."""
        message.here = True
        work = message.taker
        if work is not None:
            if error is None and message.ptr != work.ptr:
                memmove(work.ptr, message.ptr, message.nbytes)
            work.arrive(message.source, error)
        elif error is not None and message in self._unclaimed:
            self._unclaimed.remove(message)

    # ---- the thread

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopped and not self._waiting and not self._bodies:
                    self._changed.wait()
                if self._stopped:
                    self._abandon()
                    return
                self._post_heads()
                bodies = list(self._bodies)
                heads = list(self._heads.items())
            handles = [m.handle for m in bodies] + [h for _, (_, h) in heads]
            if not handles:
                continue
            array = (c_void_p * len(handles))(*[h.value for h in handles])
            index = c_size_t()
            status = lib.roce_wait_any(array, len(handles), _TURN_MS, byref(index))
            if status == ROCE_IN_PROGRESS:
                continue
            with self._changed:
                error = self._group.failure(status, "recv", self._group.seq) if status else None
                if index.value < len(bodies):
                    self._bodies.remove(bodies[index.value])
                    self._body(bodies[index.value], error)
                else:
                    source, (cell, _) = heads[index.value - len(bodies)]
                    del self._heads[source]
                    if error is not None:
                        self._fail(source, error)
                    else:
                        self._head(source, cell)

    def _abandon(self) -> None:
        error = BackendError(f"roce: recv: group {self._group.label} was left")
        for work in self._waiting:
            work.arrive(-1, error)
        self._waiting.clear()
