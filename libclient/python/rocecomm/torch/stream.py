# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Memory of a GPU: operations in the order of its streams, as NCCL's group has them.

Operations run on a stream of the group's own, behind the work that the current stream has at the
call; wait() has the then current stream wait for the result, and not the CPU. Sends and receives
have streams of their own, one a peer and direction: in one stream two ranks that both send first
would wait for each other for ever.

A stream is let go when its communicator fails, with undefined data: wait(), the next operation and
is_success() tell.
"""
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable, Dict, List, Optional, Tuple

import torch

from .._lib import ROCE_IN_PROGRESS, lib
from .site import NAMES
from .tensors import ready_input, ready_output
from .types import type_of
from .work import Work, _profiling

if TYPE_CHECKING:
    from .base import GroupBase

_POLL_S = 0.0005


class _DeviceBlock:
    """As pool.Block, of the caching allocator."""

    __slots__ = ("bytes", "ptr", "size")

    def __init__(self, memory: torch.Tensor) -> None:
        self.bytes = memory
        self.ptr = memory.data_ptr()
        self.size = memory.numel()

    def flat(self, count: int, dtype: torch.dtype, itemsize: int) -> torch.Tensor:
        """`count` elements from the start."""
        return self.bytes[: count * itemsize].view(dtype)


class _DevicePool:
    """Temporary memory of a device; the caching allocator is the pool."""

    offer: Any = None

    def __init__(self, device: Any, stream: Any) -> None:
        self.device = device
        self._stream = stream

    def get(self, nbytes: int) -> _DeviceBlock:
        """A block that is not used again before the group's stream has passed."""
        memory = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        memory.record_stream(self._stream)
        return _DeviceBlock(memory)

    def put(self, block: _DeviceBlock) -> None:
        """Freed with its last view."""


class StreamWork(Work):
    """An operation on a stream. It has ended when its event has come."""

    def __init__(self, site: "StreamSite", stream: Any, name: str, result: Any, keep: Any = None, finish: Any = None):
        super().__init__(site.group, name, result, keep, finish)
        self._site, self._stream = site, stream
        self._event: Any = None

    def posted(self) -> None:
        """It is on its stream: what follows it goes there too."""
        finish, self._finish = self._finish, None
        with torch.cuda.stream(self._stream):
            if finish is not None:
                finish()
            self._event = torch.cuda.Event()
            self._event.record(self._stream)
        _record(self._result, self._stream)
        _record(self._keep, self._stream)
        self._keep = None

    def _status(self, timeout: Optional[float]) -> int:
        end = None if timeout is None else time.monotonic() + timeout
        while self._look() == ROCE_IN_PROGRESS:
            if end is not None and time.monotonic() >= end:
                return ROCE_IN_PROGRESS
            time.sleep(_POLL_S)
        return 0

    def _look(self) -> int:
        if self._event is None or not self._event.query():
            return ROCE_IN_PROGRESS
        self._fault()
        return 0

    def _fault(self) -> None:
        """Finds out whether the communicator has failed."""
        if self._error is None:
            error = self._group.comm.error()
            if error is not None:
                self._error = self._group.failed(error, self._name, self._seq)

    def wait(self, timeout: Any = None) -> bool:
        """Has the current stream wait; with a time-out the CPU waits."""
        if self.grouped:
            return True
        if timeout and timeout.total_seconds() > 0:
            self._wait_long(timeout)
        self._fault()
        if self._error is not None:
            raise self._error
        torch.cuda.current_stream(self._site.device).wait_event(self._event)
        return True

    def synchronize(self) -> None:
        """As wait()."""
        self.wait()

    def block_current_stream(self) -> None:
        """As wait()."""
        self.wait()

    def get_future(self) -> Any:
        """A future that is complete for whoever uses its value in the order of a stream."""
        if self._future is None:
            future: Any = torch.futures.Future(devices=[self._site.device])
            with torch.cuda.stream(self._stream):
                future.set_result(self._result)
            self._future = future
        return self._future


def _record(held: Any, stream: Any) -> None:
    """Keeps memory from being used again before the stream has passed."""
    if isinstance(held, torch.Tensor):
        if held.is_cuda and held.numel():
            held.record_stream(stream)
    elif isinstance(held, (list, tuple)):
        for one in held:
            _record(one, stream)


class StreamSite:
    """One device of a group."""

    other: Any = None

    def __init__(self, group: "GroupBase", device: Any) -> None:
        if not hasattr(lib, "roce_allreduce_stream"):
            raise TypeError(f"roce: tensors on {device} are not taken by this libroceclient; newer ones take them")
        self.group, self.device = group, device
        self.stream = torch.cuda.Stream(device)
        self.pool: Any = _DevicePool(device, self.stream)
        self.post = partial(self._post, self.stream)
        self._peers: Dict[Tuple[str, int], Any] = {}
        for name in NAMES:
            setattr(self, name if name not in ("send", "recv") else "_" + name, getattr(lib, f"roce_{name}_stream"))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # the functions above are made by name

    def work(
        self, name: str, result: List[Any], keep: Any = None, finish: Optional[Callable[[], None]] = None
    ) -> StreamWork:
        """A work that is not posted yet."""
        return StreamWork(self, self.stream, name, result, keep, finish)

    def _post(self, stream: Any, work: StreamWork, nbytes: int, function: Callable[..., int], *args: Any) -> StreamWork:
        group = self.group
        group.seq += 1
        stream.wait_stream(torch.cuda.current_stream(self.device))
        handle = group.channel().handle
        with torch.cuda.device(self.device):
            if _profiling():
                with torch.autograd.profiler.record_function(f"roce:{work._name} seq={work._seq} bytes={nbytes}"):
                    status = function(*args, handle, stream.cuda_stream, None)
            else:
                status = function(*args, handle, stream.cuda_stream, None)
        if status:
            raise group.failure(status, work._name, work._seq)
        for old in list(group.live)[:4]:
            old.reap()
        group.keep(work)
        if not work.grouped:
            work.posted()
        return work

    def _peer(self, direction: str, rank: int) -> Any:
        stream = self._peers.get((direction, rank))
        if stream is None:
            stream = self._peers[direction, rank] = torch.cuda.Stream(self.device)
        return stream

    def send(self, tensor: Any, dst: int) -> StreamWork:
        """Without tags: the n-th send meets the n-th receive."""
        entry, stream = type_of(tensor, "send"), self._peer("send", dst)
        ptr, hold = ready_input(self.pool, tensor, "send")
        work = StreamWork(self, stream, "send", [tensor], hold)
        count = tensor.numel() * entry.per
        return self._post(stream, work, tensor.numel() * entry.itemsize, self._send, ptr, count, entry.dtype, dst)

    def recv(self, tensor: Any, src: int) -> StreamWork:
        """See send()."""
        entry, stream = type_of(tensor, "recv"), self._peer("recv", src)
        ptr, hold, finish = ready_output(self.pool, tensor, "recv", False)
        work = StreamWork(self, stream, "recv", [tensor], hold, finish)
        work._source = src
        count = tensor.numel() * entry.per
        return self._post(stream, work, tensor.numel() * entry.itemsize, self._recv, ptr, count, entry.dtype, src)

    def close(self) -> None:
        """What is on the streams must have passed before the communicator goes."""
        for stream in (self.stream, *self._peers.values()):
            stream.synchronize()
