# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The process group: torch.distributed's operations on a communicator.

C++ and Python call the same methods. A tensor that is dense goes to the library as it is; any other
is copied through memory that the daemon shares (pool.py), or refused before anything is posted.
Lists of tensors are one operation on one such block, or on the tensors themselves where they lie
side by side.

Operations that a future's callback posts go to a second communicator ("lane"): callbacks run in
the same order on all ranks, but not in the same order beside what the main thread posts.
"""
from ctypes import byref
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import torch
import torch.distributed as dist

from .. import errors
from .._lib import lib
from ..comm import Communicator, counts, displacements
from . import session
from .p2p import PointToPoint
from .share import MIN_BYTES
from .tensors import by_place, flat_block, ready_input, ready_output, row_split
from .types import reduction, type_of
from .work import BackendError, Work, _profiling, in_callback

_LIVE_MAX = 512
_COALESCED_MAX = 128


class RoceProcessGroup(dist.ProcessGroup):
    """A group of ranks over rocecomm. Made by init_process_group() and new_group()."""

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
        self._other: Dict[str, Any] = {}
        self.client = session.client()
        self._pool = session.pool()
        self._shared = session.shared()
        self.comm: Communicator = session.join(store, rank, size, self.label, self.timeout)
        self._p2p = PointToPoint(self)

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
        return [torch.device("cpu")]

    def _get_backend(self, device: Any) -> Any:
        kind = torch.device(device).type
        if kind == "cpu":
            return self
        try:
            return self._delegate(kind)
        except TypeError as error:
            raise RuntimeError(str(error)) from error  # what callers look for

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
        self._p2p.stop()
        for other in self._other.values():
            getattr(other, "shutdown", lambda: None)()
        if self._lane is not None:
            self._lane.destroy()
        self.comm.destroy()

    def failure(self, status: int, name: str, seq: int) -> BaseException:
        """The exception for a failed operation, with the library's sentence of this thread."""
        error = errors.last_error(status)
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

    def _delegate(self, kind: str) -> Any:
        """The backend that a device map names for another device than this one's."""
        other = self._other.get(kind)
        if other is None:
            other = self._other[kind] = session.other_backend(self, kind)
        return other

    # ---- one tensor, in place

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """The reduction of all ranks' tensors, to all, in place."""
        del timeout
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if opts is None or not hasattr(opts, "reduceOp"):
            opts = _options(dist.AllreduceOptions, opts)
        tensor = self._one(tensors, "allreduce")
        if not tensor.is_cpu:
            return self._delegate(tensor.device.type).allreduce(tensors, opts)
        if tensor.layout is not torch.strided:
            return session.sparse_allreduce(self, tensor, opts)
        entry = type_of(tensor, "all_reduce")
        op = reduction(entry, opts.reduceOp, "all_reduce", self.channel())
        ptr, hold, finish = ready_output(self._pool, tensor, "all_reduce", True)
        work = Work(self, "all_reduce", tensors, hold, finish)
        count = tensor.numel() * entry.per
        nbytes = tensor.numel() * entry.itemsize
        if nbytes >= MIN_BYTES and finish is None:
            ptr = self._shared.place(tensor, ptr, nbytes, 1)
        return self.post(work, nbytes, lib.roce_iallreduce, ptr, ptr, count, entry.dtype, op)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """all_reduce of each, as one batch."""
        if opts is None:
            opts = dist.AllreduceCoalescedOptions()
        return self._batched("all_reduce_coalesced", [lambda t=t: self.allreduce([t], opts) for t in tensors], tensors)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """root's tensor, to all, in place."""
        del timeout
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else 0
        tensor = self._one(tensors, "broadcast")
        if not tensor.is_cpu:
            return self._delegate(tensor.device.type).broadcast(tensors, opts)
        entry = type_of(tensor, "broadcast")
        if root == self._rank:
            ptr, hold = ready_input(self._pool, tensor, "broadcast")
            finish = None
        else:
            ptr, hold, finish = ready_output(self._pool, tensor, "broadcast", False)
        work = Work(self, "broadcast", tensors, hold, finish)
        count = tensor.numel() * entry.per
        return self.post(work, count // entry.per * entry.itemsize, lib.roce_ibroadcast, ptr, count, entry.dtype, root)

    def reduce(self, tensors: Any, opts: Any = None, *more: Any) -> Any:
        """The reduction of all ranks' tensors, to root, in place there."""
        if isinstance(tensors, torch.Tensor):
            tensors, root = [tensors], opts
            opts = dist.ReduceOptions()
            opts.rootRank = root
            if more:
                opts.reduceOp = more[0]
        tensor = self._one(tensors, "reduce")
        if not tensor.is_cpu:
            return self._delegate(tensor.device.type).reduce(tensors, opts)
        entry = type_of(tensor, "reduce")
        op = reduction(entry, opts.reduceOp, "reduce", self.channel())
        root = opts.rootRank
        finish = None
        if root == self._rank:
            ptr, hold, finish = ready_output(self._pool, tensor, "reduce", True)
        else:
            ptr, hold = ready_input(self._pool, tensor, "reduce")
        work = Work(self, "reduce", tensors, hold, finish)
        count = tensor.numel() * entry.per
        nbytes = count // entry.per * entry.itemsize
        return self.post(work, nbytes, lib.roce_ireduce, ptr, ptr, count, entry.dtype, op, root)

    def barrier(self, opts: Any = None) -> Any:
        """Ends when all ranks have called it."""
        del opts
        return self.post(Work(self, "barrier", []), 0, lib.roce_ibarrier)

    # ---- blocks

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:  # pylint: disable=redefined-builtin
        """All ranks' tensors one after the other, to all."""
        if not output.is_cpu:
            return self._delegate(output.device.type)._allgather_base(output, input, opts)
        entry = _same_type(output, input, "all_gather_into_tensor")
        if output.numel() != input.numel() * self._size:
            raise ValueError(
                f"roce: all_gather_into_tensor: the output has {output.numel()} elements; the input's "
                f"{input.numel()} times {self._size} ranks are due"
            )
        out, hold_out, finish = ready_output(self._pool, output, "all_gather_into_tensor", False)
        inp, hold_in = ready_input(self._pool, input, "all_gather_into_tensor")
        work = Work(self, "all_gather_into_tensor", [output], (hold_in, hold_out), finish)
        count = input.numel() * entry.per
        nbytes = input.numel() * entry.itemsize
        return self.post(work, nbytes, lib.roce_iallgather, inp, out, count, entry.dtype)

    all_gather_single = _allgather_base

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """All ranks' tensors, to all, into a list; they may differ in length."""
        if isinstance(input_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        tensor = self._one(input_tensors, "all_gather")
        outputs = list(self._one(output_tensors, "all_gather"))
        if not tensor.is_cpu:
            return self._delegate(tensor.device.type).allgather(output_tensors, input_tensors, opts)
        entry = self._check_list(outputs, tensor, "all_gather")
        lengths = [o.numel() * entry.per for o in outputs]
        if lengths[self._rank] != tensor.numel() * entry.per:
            raise ValueError(
                f"roce: all_gather: this rank's place in the list has {outputs[self._rank].numel()} elements, its "
                f"tensor {tensor.numel()}"
            )
        inp, hold = ready_input(self._pool, tensor, "all_gather")
        out, block, finish = by_place(self._pool, outputs, entry, "all_gather")
        work = Work(self, "all_gather", outputs, (hold, block), finish)
        nbytes = tensor.numel() * entry.itemsize
        if len(set(lengths)) == 1:
            return self.post(work, nbytes, lib.roce_iallgather, inp, out, lengths[0], entry.dtype)
        ns, at = counts(lengths), counts(displacements(lengths))
        return self.post(work, nbytes, lib.roce_iallgatherv, inp, lengths[self._rank], out, ns, at, entry.dtype)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """all_gather_into_tensor of each, as one batch."""
        calls = [lambda o=o, i=i: self._allgather_base(o, i, opts) for o, i in zip(outputs, inputs)]
        return self._batched("all_gather_into_tensor_coalesced", calls, outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """all_gather of each input; output_lists[rank][n] gets rank's n-th."""
        calls = [
            lambda n=n, i=i: self.allgather([[row[n] for row in output_lists]], [i], opts)
            for n, i in enumerate(input_list)
        ]
        return self._batched("all_gather_coalesced", calls, [t for row in output_lists for t in row])

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:  # pylint: disable=redefined-builtin
        """The reduction of all ranks' tensors; each rank gets its block of it."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        if not output.is_cpu:
            return self._delegate(output.device.type)._reduce_scatter_base(output, input, opts)
        entry = _same_type(output, input, "reduce_scatter_tensor")
        if input.numel() != output.numel() * self._size:
            raise ValueError(
                f"roce: reduce_scatter_tensor: the input has {input.numel()} elements; the output's "
                f"{output.numel()} times {self._size} ranks are due"
            )
        op = reduction(entry, opts.reduceOp, "reduce_scatter_tensor", self.channel())
        inp, hold_in = ready_input(self._pool, input, "reduce_scatter_tensor")
        out, hold_out, finish = ready_output(self._pool, output, "reduce_scatter_tensor", False)
        work = Work(self, "reduce_scatter_tensor", [output], (hold_in, hold_out), finish)
        count = output.numel() * entry.per
        nbytes = input.numel() * entry.itemsize
        return self.post(work, nbytes, lib.roce_ireduce_scatter, inp, out, count, entry.dtype, op)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any) -> Any:
        """The same with the blocks in a list; they may differ in length."""
        if isinstance(output_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        if opts is None or not hasattr(opts, "reduceOp"):
            opts = _options(dist.ReduceScatterOptions, opts)
        output = self._one(output_tensors, "reduce_scatter")
        inputs = list(self._one(input_tensors, "reduce_scatter"))
        if not output.is_cpu:
            return self._delegate(output.device.type).reduce_scatter(output_tensors, input_tensors, opts, *more)
        entry = self._check_list(inputs, output, "reduce_scatter")
        lengths = [i.numel() * entry.per for i in inputs]
        if lengths[self._rank] != output.numel() * entry.per:
            raise ValueError(
                f"roce: reduce_scatter: this rank's block has {inputs[self._rank].numel()} elements, its output "
                f"{output.numel()}"
            )
        op = reduction(entry, opts.reduceOp, "reduce_scatter", self.channel())
        inp, block = flat_block(self._pool, inputs, entry)
        out, hold, finish = ready_output(self._pool, output, "reduce_scatter", False)
        work = Work(self, "reduce_scatter", [output], (hold, block), finish)
        nbytes = sum(lengths) // entry.per * entry.itemsize
        if len(set(lengths)) == 1:
            return self.post(work, nbytes, lib.roce_ireduce_scatter, inp, out, lengths[0], entry.dtype, op)
        return self.post(work, nbytes, lib.roce_ireduce_scatterv, inp, out, counts(lengths), entry.dtype, op)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """reduce_scatter_tensor of each, as one batch."""
        calls = [lambda o=o, i=i: self._reduce_scatter_base(o, i, opts) for o, i in zip(outputs, inputs)]
        return self._batched("reduce_scatter_tensor_coalesced", calls, outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any) -> Any:
        """All ranks' tensors, into a list on root; they may differ in length."""
        if isinstance(input_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors] if output_tensors else [], [input_tensors]
            opts = _rooted(dist.GatherOptions, opts)
        tensor = self._one(input_tensors, "gather")
        if not tensor.is_cpu:
            return self._delegate(tensor.device.type).gather(output_tensors, input_tensors, opts, *more)
        entry = type_of(tensor, "gather")
        root, count = opts.rootRank, tensor.numel() * entry.per
        nbytes = tensor.numel() * entry.itemsize
        if root != self._rank:
            inp, hold = ready_input(self._pool, tensor, "gather")
            work = Work(self, "gather", [], hold)
            return self.post(work, nbytes, lib.roce_igatherv, inp, count, None, None, None, entry.dtype, root)
        outputs = list(self._one(output_tensors, "gather"))
        self._check_list(outputs, tensor, "gather")
        lengths = [o.numel() * entry.per for o in outputs]
        inp, hold = ready_input(self._pool, tensor, "gather")
        out, block, finish = by_place(self._pool, outputs, entry, "gather")
        work = Work(self, "gather", outputs, (hold, block), finish)
        ns, at = counts(lengths), counts(displacements(lengths))
        return self.post(work, nbytes, lib.roce_igatherv, inp, count, out, ns, at, entry.dtype, root)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any) -> Any:
        """Tensor r of root's list, to rank r; they may differ in length."""
        if isinstance(output_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors] if input_tensors else []
            opts = _rooted(dist.ScatterOptions, opts)
        output = self._one(output_tensors, "scatter")
        if not output.is_cpu:
            return self._delegate(output.device.type).scatter(output_tensors, input_tensors, opts, *more)
        entry = type_of(output, "scatter")
        root, count = opts.rootRank, output.numel() * entry.per
        nbytes = output.numel() * entry.itemsize
        if root != self._rank:
            out, hold, finish = ready_output(self._pool, output, "scatter", False)
            work = Work(self, "scatter", [output], hold, finish)
            return self.post(work, nbytes, lib.roce_iscatterv, None, None, None, out, count, entry.dtype, root)
        inputs = list(self._one(input_tensors, "scatter"))
        self._check_list(inputs, output, "scatter")
        lengths = [i.numel() * entry.per for i in inputs]
        inp, block = flat_block(self._pool, inputs, entry)
        out, hold, finish = ready_output(self._pool, output, "scatter", False)
        work = Work(self, "scatter", [output], (hold, block), finish)
        ns, at = counts(lengths), counts(displacements(lengths))
        return self.post(work, nbytes, lib.roce_iscatterv, inp, ns, at, out, count, entry.dtype, root)

    # ---- all to all

    def alltoall_base(
        self, output: Any, input: Any, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> Any:  # pylint: disable=redefined-builtin
        """Rows of each rank's tensor, to the others; the splits may differ."""
        if not output.is_cpu:
            other = self._delegate(output.device.type)
            return other.alltoall_base(output, input, output_splits, input_splits, opts)
        entry = _same_type(output, input, "all_to_all_single")
        sent = row_split(input, input_splits, self._size, entry, "all_to_all_single: input")
        received = row_split(output, output_splits, self._size, entry, "all_to_all_single: output")
        inp, hold_in = ready_input(self._pool, input, "all_to_all_single")
        out, hold_out, finish = ready_output(self._pool, output, "all_to_all_single", False)
        work = Work(self, "all_to_all_single", [output], (hold_in, hold_out), finish)
        return self._alltoallv(work, input.numel() * entry.itemsize, inp, sent, out, received, entry)

    all_to_all_single = alltoall_base

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Tensor r of each rank's list, to rank r."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        if outputs and not outputs[0].is_cpu:
            return self._delegate(outputs[0].device.type).alltoall(outputs, inputs, opts)
        entry = self._check_list(outputs, inputs[0], "all_to_all")
        self._check_list(inputs, outputs[0], "all_to_all")
        sent = [i.numel() * entry.per for i in inputs]
        received = [o.numel() * entry.per for o in outputs]
        inp, block_in = flat_block(self._pool, inputs, entry)
        out, block_out, finish = by_place(self._pool, outputs, entry, "all_to_all")
        work = Work(self, "all_to_all", outputs, (block_in, block_out), finish)
        return self._alltoallv(work, sum(sent) // entry.per * entry.itemsize, inp, sent, out, received, entry)

    def _alltoallv(self, work: Work, nbytes: int, inp: int, sent: Any, out: int, received: Any, entry: Any) -> Work:
        args: Tuple[Any, ...] = (
            inp, counts(sent), counts(displacements(sent)), out, counts(received), counts(displacements(received)),
        )  # fmt: skip
        return self.post(work, nbytes, lib.roce_ialltoallv, *args, entry.dtype)

    # ---- point to point

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """To one rank; see p2p.py for how it is met."""
        tensor = self._one(tensors, "send")
        if not tensor.is_cpu:
            return self._delegate(tensor.device.type).send(tensors, dst, tag)
        return self._p2p.send(tensor, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """From one rank."""
        tensor = self._one(tensors, "recv")
        if not tensor.is_cpu:
            return self._delegate(tensor.device.type).recv(tensors, src, tag)
        return self._p2p.recv(tensor, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """From whichever rank sends first."""
        return self._p2p.recv(self._one(tensors, "recv"), None, tag)

    recvAnysource = recv_anysource

    # ---- batches

    def _start_coalescing(self, device: Any = None) -> None:
        """What this thread posts until _end_coalescing() is one batch."""
        del device
        errors.check(lib.roce_group_start(self.client.handle))
        self._batch = []

    def _end_coalescing(self, device: Any = None) -> Any:
        """Posts the batch."""
        del device
        batch, self._batch = self._batch or [], None
        status = lib.roce_group_end(self.client.handle)
        for work in batch:
            work.grouped = False
        if status:
            raise self.failure(status, "coalesced operations", self.seq)
        return self._join("coalesced", batch, [t for w in batch for t in w._result])

    startCoalescing, endCoalescing = _start_coalescing, _end_coalescing

    def _join(self, name: str, works: List[Work], result: List[Any]) -> Any:
        """One work for several."""
        joined = Work(self, name, result)
        joined.parts = works
        self.keep(joined)
        return joined

    def _batched(self, name: str, calls: List[Callable[[], Any]], tensors: Sequence[Any]) -> Any:
        """Makes calls, in batches that the library takes, as one work."""
        works: List[Any] = []
        grouped = self._batch is None and len(calls) > 1 and all(t.layout is torch.strided for t in tensors)
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

    def _check_list(self, tensors: Sequence[Any], like: Any, name: str) -> Any:
        """One tensor a rank, all of one type."""
        entry = type_of(like, name)
        if len(tensors) != self._size:
            raise ValueError(f"roce: {name}: the list has {len(tensors)} tensors; one for each of {self._size} is due")
        for tensor in tensors:
            if tensor.dtype is not like.dtype:
                raise TypeError(f"roce: {name}: the list has {tensor.dtype} and {like.dtype}; one type is due")
        return entry


def _same_type(output: Any, input: Any, name: str) -> Any:  # pylint: disable=redefined-builtin
    if output.dtype is not input.dtype:
        raise TypeError(f"roce: {name}: the output is {output.dtype}, the input {input.dtype}")
    return type_of(input, name)


def _options(kind: Any, op: Any) -> Any:
    """The options of a call that was given a bare reduction, or nothing."""
    opts = kind()
    if op is not None:
        opts.reduceOp = op
    return opts


def _rooted(kind: Any, root: Any) -> Any:
    opts = kind()
    opts.rootRank = root
    return opts
