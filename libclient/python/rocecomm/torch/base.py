# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The process group without its operations: what it is called, how it posts, batches and errors.

Operations that a future's callback posts go to a second communicator ("lane"): callbacks run in
the same order on all ranks, but not in the same order beside what the main thread posts.
"""
from ctypes import byref
from typing import Any, Callable, Dict, List, Optional, Sequence

import torch
import torch.distributed as dist

from .. import errors
from .._lib import lib
from ..comm import Communicator
from . import session
from .barrier import monitored_barrier
from .p2p import PointToPoint
from .site import HostSite, OtherSite
from .work import BackendError, Work, _profiling, in_callback

_LIVE_MAX = 512
_COALESCED_MAX = 128


class GroupBase(dist.ProcessGroup):  # type: ignore[misc,unused-ignore]
    """A group of ranks over rocecomm."""

    def __init__(self, store: Any, rank: int, size: int, timeout: Any, name: str = "") -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._store = store
        self._name = str(name)
        self._desc = ""
        self.seq = 0
        self.timeout: float = timeout.total_seconds()
        # What has not ended: its tensors must live, and up to 2.6 C++ drops a Work that it waits for.
        self.live: Dict[Work, None] = {}
        self._batch: Optional[List[Work]] = None
        self._lane: Optional[Communicator] = None
        self._sites: Dict[Any, Any] = {}
        self._cpu: Any = None  # the site of host memory, once the device map is known
        self.comm: Communicator = session.join(store, rank, size, self.label, self.timeout)
        self.client = session.client()
        self._pool = session.pool()
        self._shared = session.shared()
        self.host = HostSite(self, self._pool)
        self._p2p = PointToPoint(self)
        self._barriers = 0
        # Of an all_reduce at once (group.py): what was used before, and whether it may be: see _may_wait().
        self._calls: List[Any] = []
        self._at_once = False

    # ---- about it

    @property
    def label(self) -> str:
        """Its name in errors and for rocectl."""
        return self._name or "0"

    def getBackendName(self) -> str:  # pylint: disable=invalid-name
        """What C++ calls it."""
        return "roce"

    def name(self) -> str:
        """What Python calls it."""
        return "roce"

    _get_backend_name = name

    def rank(self) -> int:
        """This process's rank in the group."""
        return self._rank

    def size(self) -> int:
        """Number of ranks."""
        return self._size

    def getGroupName(self) -> str:  # pylint: disable=invalid-name
        """The name by which functional collectives find the group."""
        return self._name

    def setGroupName(self, name: str) -> None:  # pylint: disable=invalid-name
        """See getGroupName()."""
        self._name = str(name)

    def getGroupDesc(self) -> str:  # pylint: disable=invalid-name
        """The description that new_group() was given."""
        return self._desc

    def setGroupDesc(self, desc: str) -> None:  # pylint: disable=invalid-name
        """See getGroupDesc()."""
        self._desc = str(desc)

    _set_group_name = setGroupName
    _set_group_desc = setGroupDesc

    @property
    def group_name(self) -> str:
        """As getGroupName()."""
        return self._name

    @property
    def group_desc(self) -> str:
        """As getGroupDesc()."""
        return self._desc

    def get_group_store(self) -> Any:
        """The store that the group met through."""
        return self._store

    @property
    def _device_types(self) -> List[torch.device]:
        kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
        return [torch.device(kind) for kind in kinds]

    def _get_backend(self, device: Any) -> Any:
        device = torch.device(device)
        if device.type == "cpu":
            return self
        try:
            site = self._site_of(device)
        except TypeError as error:
            raise RuntimeError(str(error)) from error  # what callers look for
        return self if site.other is None else site.other

    supports_splitting = False
    supports_coalescing = True
    supports_time_estimate = False
    supports_shrinking = False
    supports_tensor_alloc = True

    def allocate_tensor(self, size: int, *, dtype: Any = None, device: Any = None) -> torch.Tensor:
        """A flat tensor in memory that the daemon shares, taken from the pool (FSDP asks for it)."""
        if device is not None and torch.device(device).type != "cpu":
            return torch.empty(size, dtype=dtype, device=device)
        return self._pool.tensor(size, dtype or torch.get_default_dtype())

    def _get_sequence_number_for_group(self) -> int:
        return self.seq

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _has_hooks(self) -> bool:
        return False

    def _wait_for_pending_works(self) -> None:
        for work in list(self.live):
            work.wait()

    def set_timeout(self, timeout: Any) -> None:
        """The time after which a late rank is an error is set when the group is made."""
        raise NotImplementedError(
            f"roce: group {self.label}: its timeout of {self.timeout:g} s is fixed; pass it to "
            "init_process_group() or new_group()"
        )

    setTimeout = set_timeout

    def abort(self) -> None:
        """Ends all operations of the group on all ranks with an error."""
        self.comm.abort()
        if self._lane is not None:
            self._lane.abort()

    def shutdown(self) -> None:
        """Leaves the group. What is in flight ends with an error."""
        self._at_once, self._calls = False, []
        self._p2p.stop()
        for site in self._sites.values():
            site.close()
        if self._lane is not None:
            self._lane.destroy()
        self.comm.destroy()

    def failure(self, status: int, name: str, seq: int) -> BaseException:
        """The exception for a failed operation, with the library's sentence of this thread."""
        return self.failed(errors.last_error(status), name, seq)

    def failed(self, error: errors.RoceError, name: str, seq: int) -> BaseException:
        """The exception for an operation that failed by `error`."""
        text = f"roce: {name} (operation {seq} of group {self.label}, rank {self._rank} of {self._size}): {error}"
        if isinstance(error, errors.WaitTimeout):
            text += f"; the group's timeout is {self.timeout:g} s"
        failure = BackendError(text)
        failure.__cause__ = error
        return failure

    # ---- posting

    def channel(self) -> Communicator:
        """The communicator for what this thread posts now."""
        if not in_callback():
            return self.comm
        if self._lane is None:
            self._lane = self.comm.dup()
        return self._lane

    def post(self, work: Work, nbytes: int, function: Callable[..., int], *args: Any) -> Work:
        """Calls function(args..., comm, &request) for a new work."""
        self.seq += 1
        handle = self.channel().handle
        if _profiling():
            with torch.autograd.profiler.record_function(f"roce:{work._name} seq={work._seq} bytes={nbytes}"):
                status = function(*args, handle, byref(work._handle))
        else:
            status = function(*args, handle, byref(work._handle))
        if status:
            raise self.failure(status, work._name, work._seq)
        self.keep(work)
        return work

    def keep(self, work: Work) -> None:
        """Holds a posted work until it has ended."""
        live = self.live
        live[work] = None
        if len(live) > _LIVE_MAX:
            for old in list(live)[:16]:
                old.reap()
        if self._batch is not None:
            work.grouped = True
            self._batch.append(work)

    def _one(self, tensors: Sequence[Any], name: str) -> Any:
        if len(tensors) != 1:
            raise ValueError(f"roce: {name}: one tensor a rank is taken, not {len(tensors)}")
        return tensors[0]

    def site(self, tensor: Any) -> Any:
        """What posts operations on memory of the tensor's device."""
        if tensor.is_cpu:
            return self._cpu or self._site_of(tensor.device)
        return self._sites.get(tensor.device) or self._site_of(tensor.device)

    def _site_of(self, device: Any) -> Any:
        """Makes the site of another device, by the group's device map."""
        site = self._sites.get(device)
        if site is None:
            named = session.named_backend(self, device.type)
            if device.type == "cpu":
                self._cpu = site = self.host if named == "roce" else OtherSite(session.other_backend(self, named, "cpu"))
                if site is self.host:
                    self._at_once = self._may_wait()
                    return site
            elif named != "roce":
                site = OtherSite(session.other_backend(self, named, device.type))
            elif device.type == "cuda":
                site = session.stream_site(self, device)
            else:
                raise TypeError(
                    f"roce: tensors on {device.type} are not taken: move them to the host, or name a backend for "
                    f"them: init_process_group('cpu:roce,{device.type}:NAME')"
                )
            self._sites[device] = site
        return site

    can_wait = False  # do PyTorch and the library have what it takes?

    def _may_wait(self) -> bool:
        """May an operation on host memory be posted and waited for in one call?"""
        return self.can_wait and self._cpu is self.host and self._batch is None

    def monitored_barrier(self, timeout: Any = None, wait_all_ranks: bool = False) -> None:
        """A barrier that names the ranks that do not come. dist.monitored_barrier() is Gloo's by name."""
        self._barriers += 1
        monitored_barrier(self, self._barriers, timeout, wait_all_ranks)

    # ---- batches

    def _start_coalescing(self, device: Any = None) -> None:
        """What this thread posts until _end_coalescing() is one batch."""
        del device
        errors.check(lib.roce_group_start(self.client.handle))
        self._batch, self._at_once = [], False

    def _end_coalescing(self, device: Any = None) -> Any:
        """Posts the batch."""
        del device
        batch, self._batch = self._batch or [], None
        self._at_once = self._may_wait()
        status = lib.roce_group_end(self.client.handle)
        for work in batch:
            work.grouped = False
        if status:
            raise self.failure(status, "coalesced operations", self.seq)
        for work in batch:
            work.posted()
        return self._join("coalesced", batch, [t for w in batch for t in w._result])

    startCoalescing, endCoalescing = _start_coalescing, _end_coalescing

    def _join(self, name: str, works: List[Work], result: List[Any]) -> Any:
        """One work for several."""
        joined = Work(self, name, result)
        joined.parts = works
        self.keep(joined)
        return joined

    def _batched(self, name: str, calls: Sequence[Callable[[], Any]], tensors: Sequence[Any]) -> Any:
        """Makes calls, in batches that the library takes, as one work."""
        works: List[Any] = []
        grouped = self._batch is None and len(calls) > 1 and all(t.is_cpu and t.layout is torch.strided for t in tensors)
        for first in range(0, len(calls), _COALESCED_MAX):
            if grouped:
                errors.check(lib.roce_group_start(self.client.handle))
            try:
                works += [call() for call in calls[first : first + _COALESCED_MAX]]
            finally:
                status = lib.roce_group_end(self.client.handle) if grouped else 0
            if status:
                raise self.failure(status, name, self.seq)
        return self._join(name, works, list(tensors))
