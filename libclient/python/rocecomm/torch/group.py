# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The process group: torch.distributed's operations on a communicator.

C++ and Python call the same methods. A tensor that is dense goes to the library as it is; any other
is copied through memory that the daemon shares (pool.py), or refused before anything is posted.
Lists of tensors are one operation on one such block, or on the tensors themselves where they lie
side by side. Where the memory is decides what posts: site.py.
"""
import ctypes
import struct
from functools import partial
from typing import Any, Dict, Sequence, Tuple

import torch
import torch.distributed as dist

from .._lib import ROCE_IN_PROGRESS, AllreduceArgs, lib
from ..comm import counts, displacements
from ..request import TURN_MS
from . import session
from .base import GroupBase
from .share import MIN_BYTES
from .tensors import by_place, flat_block, ready_input, ready_output, row_split
from .types import PLAIN, PLAIN_OPS, TYPES, reduction, type_of
from .work import Done, Work, _callbacks, _profiling, in_callback

_STRIDED = torch.strided
_allreduce_call: Any = getattr(lib, "roce_allreduce_call", None)
_HAS_ASYNC = hasattr(dist.AllreduceOptions(), "asyncOp")
_ALLREDUCE_OPTIONS = dist.AllreduceOptions
# Types whose numbers need no preparation: the library's name of each, and how many elements are not small.
_SMALL: Dict[Any, Tuple[int, int]] = {
    t: (e.dtype, MIN_BYTES // e.itemsize) for t, e in TYPES.items() if e.kind == PLAIN
}
_NO_TYPE = (0, 0)
_PLAIN_OPS = len(PLAIN_OPS)
_WITH_MEMORY = frozenset((torch.Tensor, torch.nn.Parameter))  # other classes may stand for tensors elsewhere
_fill = struct.Struct("PPNPii").pack_into  # the fields of AllreduceArgs from `send` on
_wait = lib.roce_wait
_DONE = Done()


class RoceProcessGroup(GroupBase):
    """A group of ranks over rocecomm. Made by init_process_group() and new_group()."""

    can_wait = _HAS_ASYNC and _allreduce_call is not None

    # ---- one tensor, in place

    def allreduce(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """The reduction of all ranks' tensors, to all, in place.

        A small tensor whose caller waits goes the shortest way: one call of the library, no Work, no
        bookkeeping. It is written out here since each instruction costs several times as much where ranks
        share a CPU that has learned the others' branches (README.md of this package).
        """
        del timeout
        if (
            self._at_once
            and type(opts) is _ALLREDUCE_OPTIONS
            and type(tensors) is list
            and len(tensors) == 1
            and not opts.asyncOp
        ):
            tensor = tensors[0]
            dtype, most = _SMALL.get(tensor.dtype, _NO_TYPE)
            count = tensor.numel()
            if (
                count < most
                and type(tensor) in _WITH_MEMORY
                and tensor.is_cpu
                and tensor.layout is _STRIDED
                and tensor.is_contiguous()
                and not tensor.is_neg()
                and not _profiling()
                and not (_callbacks and in_callback())
            ):
                op = hash(opts.reduceOp)
                if op < _PLAIN_OPS:
                    return self._now(tensor, tensor.data_ptr(), count, dtype, PLAIN_OPS[op])
        return self._allreduce(tensors, opts)

    def _now(self, tensor: Any, ptr: int, count: int, dtype: int, op: int) -> Any:
        """One call of the library, which waits."""
        seq = self.seq
        self.seq = seq + 1
        try:
            call = self._calls.pop()
        except IndexError:  # the first, or another thread has it
            call = self._call()
        args, address, comm = call
        _fill(args, 8, ptr, ptr, count, comm, dtype, op)
        try:
            status = _allreduce_call(address)
            if status:
                self._wait_on(status, args, seq)
        except BaseException:
            if args.request:
                # Ctrl-C: it goes on, and the tensor must live until it has ended.
                work = Work(self, "all_reduce", [tensor], tensor)
                work._handle, work._seq = ctypes.c_void_p(args.request), seq
                self.keep(work)
            raise
        self._calls.append(call)
        return _DONE

    def _call(self) -> Tuple[Any, int, int]:
        """The arguments of a call, to be used again and again: the struct, its address, the communicator."""
        args = AllreduceArgs(ctypes.sizeof(AllreduceArgs), timeout_ms=TURN_MS)
        return args, ctypes.addressof(args), self.comm.handle.value or 0

    def _allreduce(self, tensors: Any, opts: Any) -> Any:
        """Any other."""
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        if type(opts) is not _ALLREDUCE_OPTIONS and not hasattr(opts, "reduceOp"):
            opts = _options(_ALLREDUCE_OPTIONS, opts)
        tensor = self._one(tensors, "allreduce")
        site = self.site(tensor)
        if site.other is not None:
            return site.other.allreduce(tensors, opts)
        if tensor.layout is not torch.strided:
            return session.sparse_allreduce(self, tensor, opts)
        entry = type_of(tensor, "all_reduce")
        op = reduction(entry, opts.reduceOp, "all_reduce", self.channel())
        ptr, hold, finish = ready_output(site.pool, tensor, "all_reduce", True)
        count = tensor.numel() * entry.per
        nbytes = tensor.numel() * entry.itemsize
        if finish is None and site is self.host:
            if nbytes >= MIN_BYTES:
                ptr = self._shared.place(tensor, ptr, nbytes, 2)
            if self._at_once and not opts.asyncOp and not _profiling() and not in_callback():
                return self._now(tensor, ptr, count, entry.dtype, op)
        work = site.work("all_reduce", tensors, hold, finish)
        return site.post(work, nbytes, site.allreduce, ptr, ptr, count, entry.dtype, op)

    def _wait_on(self, status: int, args: Any, seq: int) -> None:
        """After the first turn of a call: the others, or its error."""
        handle = ctypes.c_void_p.from_buffer(args, AllreduceArgs.request.offset)
        while status == ROCE_IN_PROGRESS:
            status = _wait(ctypes.byref(handle), TURN_MS)
        if status:
            raise self.failure(status, "all_reduce", seq)

    def allreduce_coalesced(self, tensors: Any, opts: Any = None) -> Any:
        """all_reduce of each, as one batch."""
        if opts is None:
            opts = dist.AllreduceCoalescedOptions()
        if _HAS_ASYNC:
            opts.asyncOp = True  # the batch is what is waited for
        return self._batched("all_reduce_coalesced", [partial(self.allreduce, [t], opts) for t in tensors], tensors)

    def broadcast(self, tensors: Any, opts: Any = None, timeout: Any = None) -> Any:
        """root's tensor, to all, in place."""
        del timeout
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        root = opts if isinstance(opts, int) else opts.rootRank if opts is not None else 0
        tensor = self._one(tensors, "broadcast")
        site = self.site(tensor)
        if site.other is not None:
            return site.other.broadcast(tensors, opts)
        entry = type_of(tensor, "broadcast")
        if root == self._rank:
            ptr, hold = ready_input(site.pool, tensor, "broadcast")
            finish = None
        else:
            ptr, hold, finish = ready_output(site.pool, tensor, "broadcast", False)
        work = site.work("broadcast", tensors, hold, finish)
        count = tensor.numel() * entry.per
        return site.post(work, count // entry.per * entry.itemsize, site.broadcast, ptr, count, entry.dtype, root)

    def reduce(self, tensors: Any, opts: Any = None, *more: Any) -> Any:
        """The reduction of all ranks' tensors, to root, in place there."""
        if isinstance(tensors, torch.Tensor):
            tensors, root = [tensors], opts
            opts = dist.ReduceOptions()
            opts.rootRank = root
            if more:
                opts.reduceOp = more[0]
        tensor = self._one(tensors, "reduce")
        site = self.site(tensor)
        if site.other is not None:
            return site.other.reduce(tensors, opts)
        entry = type_of(tensor, "reduce")
        op = reduction(entry, opts.reduceOp, "reduce", self.channel())
        root = opts.rootRank
        finish = None
        if root == self._rank:
            ptr, hold, finish = ready_output(site.pool, tensor, "reduce", True)
        else:
            ptr, hold = ready_input(site.pool, tensor, "reduce")
        work = site.work("reduce", tensors, hold, finish)
        count = tensor.numel() * entry.per
        nbytes = count // entry.per * entry.itemsize
        return site.post(work, nbytes, site.reduce, ptr, ptr, count, entry.dtype, op, root)

    def barrier(self, opts: Any = None) -> Any:
        """Ends when all ranks have called it."""
        del opts
        return self.post(Work(self, "barrier", []), 0, self.host.barrier)

    # ---- blocks

    def _allgather_base(self, output: Any, input: Any, opts: Any = None) -> Any:  # pylint: disable=redefined-builtin
        """All ranks' tensors one after the other, to all."""
        site = self.site(output)
        if site.other is not None:
            return site.other._allgather_base(output, input, opts)
        entry = _same_type(output, input, "all_gather_into_tensor")
        if output.numel() != input.numel() * self._size:
            raise ValueError(
                f"roce: all_gather_into_tensor: the output has {output.numel()} elements; the input's "
                f"{input.numel()} times {self._size} ranks are due"
            )
        out, hold_out, finish = ready_output(site.pool, output, "all_gather_into_tensor", False)
        inp, hold_in = ready_input(site.pool, input, "all_gather_into_tensor")
        work = site.work("all_gather_into_tensor", [output], (hold_in, hold_out), finish)
        count = input.numel() * entry.per
        nbytes = input.numel() * entry.itemsize
        return site.post(work, nbytes, site.allgather, inp, out, count, entry.dtype)

    all_gather_single = _allgather_base

    def allgather(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """All ranks' tensors, to all, into a list; they may differ in length."""
        if isinstance(input_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        tensor = self._one(input_tensors, "all_gather")
        outputs = list(self._one(output_tensors, "all_gather"))
        site = self.site(tensor)
        if site.other is not None:
            return site.other.allgather(output_tensors, input_tensors, opts)
        entry = self._check_list(outputs, tensor, "all_gather")
        lengths = [o.numel() * entry.per for o in outputs]
        if lengths[self._rank] != tensor.numel() * entry.per:
            raise ValueError(
                f"roce: all_gather: this rank's place in the list has {outputs[self._rank].numel()} elements, its "
                f"tensor {tensor.numel()}"
            )
        inp, hold = ready_input(site.pool, tensor, "all_gather")
        out, block, finish = by_place(site.pool, outputs, entry, "all_gather")
        work = site.work("all_gather", outputs, (hold, block), finish)
        nbytes = tensor.numel() * entry.itemsize
        if len(set(lengths)) == 1:
            return site.post(work, nbytes, site.allgather, inp, out, lengths[0], entry.dtype)
        ns, at = counts(lengths), counts(displacements(lengths))
        return site.post(work, nbytes, site.allgatherv, inp, lengths[self._rank], out, ns, at, entry.dtype)

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """all_gather_into_tensor of each, as one batch."""
        calls = [partial(self._allgather_base, o, i, opts) for o, i in zip(outputs, inputs)]
        return self._batched("all_gather_into_tensor_coalesced", calls, outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather_coalesced(self, output_lists: Any, input_list: Any, opts: Any = None) -> Any:
        """all_gather of each input; output_lists[rank][n] gets rank's n-th."""
        calls = [
            partial(self.allgather, [[row[n] for row in output_lists]], [i], opts)
            for n, i in enumerate(input_list)
        ]
        return self._batched("all_gather_coalesced", calls, [t for row in output_lists for t in row])

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = None) -> Any:  # pylint: disable=redefined-builtin
        """The reduction of all ranks' tensors; each rank gets its block of it."""
        opts = opts if opts is not None else dist.ReduceScatterOptions()
        site = self.site(output)
        if site.other is not None:
            return site.other._reduce_scatter_base(output, input, opts)
        entry = _same_type(output, input, "reduce_scatter_tensor")
        if input.numel() != output.numel() * self._size:
            raise ValueError(
                f"roce: reduce_scatter_tensor: the input has {input.numel()} elements; the output's "
                f"{output.numel()} times {self._size} ranks are due"
            )
        op = reduction(entry, opts.reduceOp, "reduce_scatter_tensor", self.channel())
        inp, hold_in = ready_input(site.pool, input, "reduce_scatter_tensor")
        out, hold_out, finish = ready_output(site.pool, output, "reduce_scatter_tensor", False)
        work = site.work("reduce_scatter_tensor", [output], (hold_in, hold_out), finish)
        count = output.numel() * entry.per
        nbytes = input.numel() * entry.itemsize
        return site.post(work, nbytes, site.reduce_scatter, inp, out, count, entry.dtype, op)

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any) -> Any:
        """The same with the blocks in a list; they may differ in length."""
        if isinstance(output_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        if opts is None or not hasattr(opts, "reduceOp"):
            opts = _options(dist.ReduceScatterOptions, opts)
        output = self._one(output_tensors, "reduce_scatter")
        inputs = list(self._one(input_tensors, "reduce_scatter"))
        site = self.site(output)
        if site.other is not None:
            return site.other.reduce_scatter(output_tensors, input_tensors, opts, *more)
        entry = self._check_list(inputs, output, "reduce_scatter")
        lengths = [i.numel() * entry.per for i in inputs]
        if lengths[self._rank] != output.numel() * entry.per:
            raise ValueError(
                f"roce: reduce_scatter: this rank's block has {inputs[self._rank].numel()} elements, its output "
                f"{output.numel()}"
            )
        op = reduction(entry, opts.reduceOp, "reduce_scatter", self.channel())
        inp, block = flat_block(site.pool, inputs, entry)
        out, hold, finish = ready_output(site.pool, output, "reduce_scatter", False)
        work = site.work("reduce_scatter", [output], (hold, block), finish)
        nbytes = sum(lengths) // entry.per * entry.itemsize
        if len(set(lengths)) == 1:
            return site.post(work, nbytes, site.reduce_scatter, inp, out, lengths[0], entry.dtype, op)
        return site.post(work, nbytes, site.reduce_scatterv, inp, out, counts(lengths), entry.dtype, op)

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """reduce_scatter_tensor of each, as one batch."""
        calls = [partial(self._reduce_scatter_base, o, i, opts) for o, i in zip(outputs, inputs)]
        return self._batched("reduce_scatter_tensor_coalesced", calls, outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def gather(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any) -> Any:
        """All ranks' tensors, into a list on root; they may differ in length."""
        if isinstance(input_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors] if output_tensors else [], [input_tensors]
            opts = _rooted(dist.GatherOptions, opts)
        tensor = self._one(input_tensors, "gather")
        site = self.site(tensor)
        if site.other is not None:
            return site.other.gather(output_tensors, input_tensors, opts, *more)
        entry = type_of(tensor, "gather")
        root, count = opts.rootRank, tensor.numel() * entry.per
        nbytes = tensor.numel() * entry.itemsize
        if root != self._rank:
            inp, hold = ready_input(site.pool, tensor, "gather")
            work = site.work("gather", [], hold)
            return site.post(work, nbytes, site.gatherv, inp, count, None, None, None, entry.dtype, root)
        outputs = list(self._one(output_tensors, "gather"))
        self._check_list(outputs, tensor, "gather")
        lengths = [o.numel() * entry.per for o in outputs]
        inp, hold = ready_input(site.pool, tensor, "gather")
        out, block, finish = by_place(site.pool, outputs, entry, "gather")
        work = site.work("gather", outputs, (hold, block), finish)
        ns, at = counts(lengths), counts(displacements(lengths))
        return site.post(work, nbytes, site.gatherv, inp, count, out, ns, at, entry.dtype, root)

    def scatter(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: Any) -> Any:
        """Tensor r of root's list, to rank r; they may differ in length."""
        if isinstance(output_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors] if input_tensors else []
            opts = _rooted(dist.ScatterOptions, opts)
        output = self._one(output_tensors, "scatter")
        site = self.site(output)
        if site.other is not None:
            return site.other.scatter(output_tensors, input_tensors, opts, *more)
        entry = type_of(output, "scatter")
        root, count = opts.rootRank, output.numel() * entry.per
        nbytes = output.numel() * entry.itemsize
        if root != self._rank:
            out, hold, finish = ready_output(site.pool, output, "scatter", False)
            work = site.work("scatter", [output], hold, finish)
            return site.post(work, nbytes, site.scatterv, None, None, None, out, count, entry.dtype, root)
        inputs = list(self._one(input_tensors, "scatter"))
        self._check_list(inputs, output, "scatter")
        lengths = [i.numel() * entry.per for i in inputs]
        inp, block = flat_block(site.pool, inputs, entry)
        out, hold, finish = ready_output(site.pool, output, "scatter", False)
        work = site.work("scatter", [output], (hold, block), finish)
        ns, at = counts(lengths), counts(displacements(lengths))
        return site.post(work, nbytes, site.scatterv, inp, ns, at, out, count, entry.dtype, root)

    # ---- all to all

    def alltoall_base(
        self, output: Any, input: Any, output_splits: Any = None, input_splits: Any = None, opts: Any = None
    ) -> Any:  # pylint: disable=redefined-builtin
        """Rows of each rank's tensor, to the others; the splits may differ."""
        site = self.site(output)
        if site.other is not None:
            return site.other.alltoall_base(output, input, output_splits, input_splits, opts)
        entry = _same_type(output, input, "all_to_all_single")
        sent = row_split(input, input_splits, self._size, entry, "all_to_all_single: input")
        received = row_split(output, output_splits, self._size, entry, "all_to_all_single: output")
        inp, hold_in = ready_input(site.pool, input, "all_to_all_single")
        out, hold_out, finish = ready_output(site.pool, output, "all_to_all_single", False)
        work = site.work("all_to_all_single", [output], (hold_in, hold_out), finish)
        return self._alltoallv(site, work, input.numel() * entry.itemsize, inp, sent, out, received, entry)

    all_to_all_single = alltoall_base

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None) -> Any:
        """Tensor r of each rank's list, to rank r."""
        outputs, inputs = list(output_tensors), list(input_tensors)
        if not outputs or not inputs:
            raise ValueError(f"roce: all_to_all: a list is empty; one tensor for each of {self._size} ranks is due")
        site = self.site(outputs[0])
        if site.other is not None:
            return site.other.alltoall(outputs, inputs, opts)
        entry = self._check_list(outputs, inputs[0], "all_to_all")
        self._check_list(inputs, outputs[0], "all_to_all")
        sent = [i.numel() * entry.per for i in inputs]
        received = [o.numel() * entry.per for o in outputs]
        inp, block_in = flat_block(site.pool, inputs, entry)
        out, block_out, finish = by_place(site.pool, outputs, entry, "all_to_all")
        work = site.work("all_to_all", outputs, (block_in, block_out), finish)
        return self._alltoallv(site, work, sum(sent) // entry.per * entry.itemsize, inp, sent, out, received, entry)

    def _alltoallv(
        self, site: Any, work: Work, nbytes: int, inp: int, sent: Any, out: int, received: Any, entry: Any
    ) -> Any:
        args: Tuple[Any, ...] = (
            inp, counts(sent), counts(displacements(sent)), out, counts(received), counts(displacements(received)),
        )  # fmt: skip
        return site.post(work, nbytes, site.alltoallv, *args, entry.dtype)

    # ---- point to point

    def send(self, tensors: Any, dst: int, tag: int = 0) -> Any:
        """To one rank; see p2p.py for how it is met."""
        tensor = self._one(tensors, "send")
        site = self.site(tensor)
        if site.other is not None:
            return site.other.send(tensors, dst, tag)
        if site is not self.host:
            return site.send(tensor, dst)
        return self._p2p.send(tensor, dst, tag)

    def recv(self, tensors: Any, src: int, tag: int = 0) -> Any:
        """From one rank."""
        tensor = self._one(tensors, "recv")
        site = self.site(tensor)
        if site.other is not None:
            return site.other.recv(tensors, src, tag)
        if site is not self.host:
            return site.recv(tensor, src)
        return self._p2p.recv(tensor, src, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Any:
        """From whichever rank sends first."""
        tensor = self._one(tensors, "recv")
        site = self.site(tensor)
        if site.other is not None:
            return site.other.recv_anysource([tensor], tag)
        if site is not self.host:
            raise TypeError(f"roce: recv: from any source to {tensor.device}: receive into host memory, or name the rank")
        return self._p2p.recv(tensor, None, tag)

    recvAnysource = recv_anysource

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
