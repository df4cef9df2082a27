# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Communicators: the collectives, sends and receives of a set of ranks.

Each operation comes twice, as in C: allreduce() waits, iallreduce() yields a Request. Block
operations take the length of one rank's block from the arrays themselves. All ranks post the same
collectives in the same order.
"""
import weakref
from ctypes import byref, c_int, c_size_t, c_void_p, create_string_buffer, sizeof
from typing import TYPE_CHECKING, Any, Dict, List, Optional, Sequence, Set, Tuple

from . import _lib
from ._lib import lib
from .arrays import BOOL, COMPLEX, View, view
from .dtypes import BOOL_OPS, COMPLEX_OPS, Op
from .errors import RoceError, check, last_error
from .request import Request

if TYPE_CHECKING:
    from .client import Client

_TEXT = 1024
_USER_OP = 0x10000


_POSTS = {
    name: getattr(lib, "roce_i" + name)
    for name in (
        "allreduce", "reduce", "broadcast", "allgather", "allgatherv", "reduce_scatter", "reduce_scatterv", "gather",
        "gatherv", "scatter", "scatterv", "alltoall", "alltoallv", "barrier", "send", "recv",
    )
}  # fmt: skip


def comm_options(
    name: Optional[str], join: Optional[float], arrival: Optional[float], transfer: Optional[float]
) -> _lib.CommOptions:
    """struct roce_comm_options; None: the daemon's default, float("inf"): never (arrival only)."""

    def ms(seconds: Optional[float]) -> int:
        if seconds is None:
            return 0
        return -1 if seconds == float("inf") else min(max(1, int(seconds * 1000)), 2**31 - 1)

    return _lib.CommOptions(
        sizeof(_lib.CommOptions), name.encode()[:63] if name else None, ms(join), ms(arrival), ms(transfer)
    )


def counts(values: Sequence[int]) -> Any:
    """size_t[]"""
    return (c_size_t * len(values))(*values)


def displacements(values: Sequence[int]) -> List[int]:
    """Where each block begins when they follow each other."""
    at, out = 0, []
    for value in values:
        out.append(at)
        at += value
    return out


def reduction(v: View, op: int, what: str) -> int:
    """The library's number for `op` on these elements."""
    if v.kind == BOOL:
        mapped = BOOL_OPS.get(op)
        if mapped is None:
            raise ValueError(f"{what}: booleans have no {Op(op).name if op < _USER_OP else 'scaled sum'}")
        return mapped
    if v.kind == COMPLEX and op not in COMPLEX_OPS and op < _USER_OP:
        raise ValueError(f"{what}: complex numbers have no {Op(op).name}, only SUM and AVG")
    return op


def _destroy(handle: int, client: "Client") -> None:
    if client.handle:
        lib.roce_comm_destroy(handle)


class Communicator:
    """Ranks that work together. Made by Client; threads: any, one poster at a time."""

    def __init__(self, client: "Client", handle: c_void_p) -> None:
        self.client = client
        self.handle = handle
        self.rank: int = lib.roce_comm_rank(handle)
        self.size: int = lib.roce_comm_size(handle)
        self._open: Set[Request] = set()
        self._premul: Dict[float, int] = {}
        self._finalizer = weakref.finalize(self, _destroy, handle.value or 0, client)
        self._finalizer.atexit = False

    # ---- about it

    @property
    def hosts(self) -> int:
        """Number of hosts."""
        return int(lib.roce_comm_hosts(self.handle))

    def host_of(self, rank: int) -> int:
        """Number of the host that `rank` is on."""
        return int(lib.roce_comm_host_of(self.handle, rank))

    def host_name(self, host: int) -> str:
        """Name of host number `host`."""
        return (lib.roce_comm_host_name(self.handle, host) or b"").decode()

    @property
    def path(self) -> str:
        """The transport in use, and why, as observed when it was set up."""
        return (lib.roce_comm_path(self.handle) or b"").decode()

    def error(self) -> Optional[RoceError]:
        """What ended the communicator; None while it works."""
        text = create_string_buffer(_TEXT)
        status = lib.roce_comm_error(self.handle, text, _TEXT)
        if status == 0:
            return None
        error = last_error(status)
        return type(error)(status, text.value.decode(errors="replace"))

    def split(self, color: int, key: int = 0, name: Optional[str] = None) -> Optional["Communicator"]:
        """Ranks of one colour form a new communicator, by key, then by rank. Negative: none."""
        handle = c_void_p()
        options = comm_options(name, None, None, None)
        check(lib.roce_comm_split(self.handle, color, key, byref(options), byref(handle)))
        return Communicator(self.client, handle) if handle else None

    def dup(self) -> "Communicator":
        """A second communicator of the same ranks."""
        handle = c_void_p()
        check(lib.roce_comm_dup(self.handle, byref(handle)))
        return Communicator(self.client, handle)

    def abort(self) -> None:
        """Ends all operations of the communicator on all ranks, at once."""
        check(lib.roce_comm_abort(self.handle))

    def destroy(self) -> None:
        """Frees it; what is in flight ends with AbortedError."""
        if self._finalizer.detach() is not None:
            handle, self.handle = self.handle, c_void_p()
            check(lib.roce_comm_destroy(handle))

    def premul(self, scalar: float) -> int:
        """A reduction that multiplies this rank's input by `scalar` before the sum."""
        op = self._premul.get(scalar)
        if op is None:
            if len(self._premul) >= 64:
                oldest = next(iter(self._premul))
                check(lib.roce_op_free(self.handle, self._premul.pop(oldest)))
            number = c_int()
            check(lib.roce_op_create_premul(self.handle, scalar, byref(number)))
            op = self._premul[scalar] = number.value
        return op

    def status(self) -> Dict[str, Any]:
        """Hosts, path and the reason for it, operations in flight, the error if any."""
        error = self.error()
        return {
            "rank": self.rank,
            "size": self.size,
            "hosts": [self.host_name(n) for n in range(self.hosts)],
            "path": self.path,
            "in_flight": len(self._open),
            "error": None if error is None else str(error),
        }

    # ---- posting

    def post(self, what: str, keep: Any, *args: Any) -> Request:
        """Calls roce_i<what>(args..., comm, &request)."""
        request = Request(what, keep, self._open)
        status = _POSTS[what](*args, self.handle, byref(request._handle))
        if status:
            raise last_error(status)
        self._open.add(request)
        return request

    def _pair(self, what: str, send: Any, recv: Any, send_blocks: int, recv_blocks: int) -> Tuple[View, View, int]:
        """Both sides and the length of a block."""
        s = view(send, "send", send is recv)
        if send is recv and send_blocks == recv_blocks == 1:
            return s, s, s.elements
        r = view(recv, "recv", True)
        if s.dtype != r.dtype or s.kind != r.kind:
            raise TypeError(f"{what}: send and recv have different types of elements")
        block, rest = divmod(s.elements, send_blocks)
        if rest or block * recv_blocks != r.elements:
            raise ValueError(
                f"{what}: send has {s.elements} elements and recv {r.elements}; {send_blocks} and {recv_blocks} "
                "blocks of one length are due"
            )
        return s, r, block

    def iallreduce(self, send: Any, recv: Any = None, op: int = Op.SUM) -> Request:
        """The reduction of all ranks' arrays, to all; in place without `recv`."""
        recv = send if recv is None else recv
        s, r, n = self._pair("allreduce", send, recv, 1, 1)
        return self.post("allreduce", (send, recv), s.ptr, r.ptr, n, s.dtype, reduction(s, op, "allreduce"))

    def ireduce(self, send: Any, recv: Any = None, op: int = Op.SUM, root: int = 0) -> Request:
        """The same to `root` only, elsewhere `recv` is not looked at."""
        recv = send if recv is None or self.rank != root else recv
        s, r, n = self._pair("reduce", send, recv, 1, 1)
        return self.post("reduce", (send, recv), s.ptr, r.ptr, n, s.dtype, reduction(s, op, "reduce"), root)

    def ibroadcast(self, buf: Any, root: int = 0) -> Request:
        """root's array, to all."""
        v = view(buf, "broadcast: buf", self.rank != root)
        return self.post("broadcast", buf, v.ptr, v.elements, v.dtype, root)

    def iallgather(self, send: Any, recv: Any) -> Request:
        """All ranks' arrays one after the other, to all."""
        s, r, n = self._pair("allgather", send, recv, 1, self.size)
        return self.post("allgather", (send, recv), s.ptr, r.ptr, n, s.dtype)

    def iallgatherv(self, send: Any, recv: Any, lengths: Sequence[int]) -> Request:
        """The same with arrays of different lengths: one a rank, in numbers."""
        s, r, ns, at = self._lengths("allgatherv", send, recv, lengths)
        return self.post("allgatherv", (send, recv), s.ptr, s.elements, r.ptr, ns, at, s.dtype)

    def ireduce_scatter(self, send: Any, recv: Any, op: int = Op.SUM) -> Request:
        """The reduction of all ranks' arrays; each rank gets its block of it."""
        s, r, n = self._pair("reduce_scatter", send, recv, self.size, 1)
        op = reduction(s, op, "reduce_scatter")
        return self.post("reduce_scatter", (send, recv), s.ptr, r.ptr, n, s.dtype, op)

    def ireduce_scatterv(self, send: Any, recv: Any, lengths: Sequence[int], op: int = Op.SUM) -> Request:
        """The same with blocks of different lengths."""
        r, s, ns, _ = self._lengths("reduce_scatterv", recv, send, lengths)
        op = reduction(s, op, "reduce_scatterv")
        return self.post("reduce_scatterv", (send, recv), s.ptr, r.ptr, ns, s.dtype, op)

    def igather(self, send: Any, recv: Any = None, root: int = 0) -> Request:
        """All ranks' arrays one after the other, to `root`; `recv` counts there only."""
        if self.rank != root:
            s = view(send, "gather: send", False)
            return self.post("gather", send, s.ptr, None, s.elements, s.dtype, root)
        s, r, n = self._pair("gather", send, recv, 1, self.size)
        return self.post("gather", (send, recv), s.ptr, r.ptr, n, s.dtype, root)

    def igatherv(
        self, send: Any, recv: Any = None, lengths: Optional[Sequence[int]] = None, root: int = 0
    ) -> Request:
        """The same with arrays of different lengths, which only `root` knows."""
        if self.rank != root or lengths is None:
            s = view(send, "gatherv: send", False)
            return self.post("gatherv", send, s.ptr, s.elements, None, None, None, s.dtype, root)
        s, r, ns, at = self._lengths("gatherv", send, recv, lengths)
        return self.post("gatherv", (send, recv), s.ptr, s.elements, r.ptr, ns, at, s.dtype, root)

    def iscatter(self, send: Any, recv: Any, root: int = 0) -> Request:
        """Block r of root's array, to rank r; `send` counts on root only."""
        if self.rank != root:
            r = view(recv, "scatter: recv", True)
            return self.post("scatter", recv, None, r.ptr, r.elements, r.dtype, root)
        s, r, n = self._pair("scatter", send, recv, self.size, 1)
        return self.post("scatter", (send, recv), s.ptr, r.ptr, n, s.dtype, root)

    def iscatterv(self, send: Any, recv: Any, lengths: Optional[Sequence[int]] = None, root: int = 0) -> Request:
        """The same with blocks of different lengths, which only `root` knows."""
        if self.rank != root or lengths is None:
            r = view(recv, "scatterv: recv", True)
            return self.post("scatterv", recv, None, None, None, r.ptr, r.elements, r.dtype, root)
        r, s, ns, at = self._lengths("scatterv", recv, send, lengths)
        return self.post("scatterv", (send, recv), s.ptr, ns, at, r.ptr, r.elements, r.dtype, root)

    def ialltoall(self, send: Any, recv: Any) -> Request:
        """Block r of each rank, to rank r."""
        s, r, n = self._pair("alltoall", send, recv, self.size, self.size)
        return self.post("alltoall", (send, recv), s.ptr, r.ptr, n, s.dtype)

    def ialltoallv(self, send: Any, send_lengths: Sequence[int], recv: Any, recv_lengths: Sequence[int]) -> Request:
        """The same with blocks of different lengths."""
        s, r = view(send, "alltoallv: send", False), view(recv, "alltoallv: recv", True)
        if s.dtype != r.dtype or s.kind != r.kind:
            raise TypeError("alltoallv: send and recv have different types of elements")
        args: List[Any] = []
        for v, lengths, side in ((s, send_lengths, "send"), (r, recv_lengths, "recv")):
            ns = self._check_lengths(f"alltoallv: {side}", v, lengths)
            args += [v.ptr, counts(ns), counts(displacements(ns))]
        return self.post("alltoallv", (send, recv), *args, s.dtype)

    def ibarrier(self) -> Request:
        """Ends when all ranks have called it."""
        return self.post("barrier", None)

    def isend(self, buf: Any, dest: int) -> Request:
        """The n-th send to a rank meets the n-th receive there from this one."""
        v = view(buf, "send: buf", False)
        return self.post("send", buf, v.ptr, v.elements, v.dtype, dest)

    def irecv(self, buf: Any, source: int) -> Request:
        """See isend(); lengths and types must be equal."""
        v = view(buf, "recv: buf", True)
        return self.post("recv", buf, v.ptr, v.elements, v.dtype, source)

    def _check_lengths(self, what: str, v: View, lengths: Sequence[int]) -> List[int]:
        ns = [n * v.per for n in lengths]
        if len(ns) != self.size or any(n < 0 for n in ns) or sum(ns) != v.elements:
            raise ValueError(
                f"{what} has {v.elements // v.per} elements; one length a rank ({self.size}) is due, that add up to it"
            )
        return ns

    def _lengths(self, what: str, own: Any, whole: Any, lengths: Sequence[int]) -> Tuple[View, View, Any, Any]:
        """Own block, array of all blocks, counts, displacements."""
        o, w = view(own, f"{what}: the own block", False), view(whole, f"{what}: the array of all blocks", False)
        if o.dtype != w.dtype or o.kind != w.kind:
            raise TypeError(f"{what}: send and recv have different types of elements")
        ns = self._check_lengths(f"{what}: the array of all blocks", w, lengths)
        if ns[self.rank] != o.elements:
            raise ValueError(f"{what}: the own block has {o.elements // o.per} elements, not {lengths[self.rank]}")
        return o, w, counts(ns), counts(displacements(ns))

    def __repr__(self) -> str:
        return f"<rocecomm.Communicator rank {self.rank} of {self.size}>"

    # ---- the same, waiting

    def allreduce(self, send: Any, recv: Any = None, op: int = Op.SUM) -> None:
        """iallreduce(), waiting."""
        self.iallreduce(send, recv, op).wait()

    def reduce(self, send: Any, recv: Any = None, op: int = Op.SUM, root: int = 0) -> None:
        """ireduce(), waiting."""
        self.ireduce(send, recv, op, root).wait()

    def broadcast(self, buf: Any, root: int = 0) -> None:
        """ibroadcast(), waiting."""
        self.ibroadcast(buf, root).wait()

    def allgather(self, send: Any, recv: Any) -> None:
        """iallgather(), waiting."""
        self.iallgather(send, recv).wait()

    def allgatherv(self, send: Any, recv: Any, lengths: Sequence[int]) -> None:
        """iallgatherv(), waiting."""
        self.iallgatherv(send, recv, lengths).wait()

    def reduce_scatter(self, send: Any, recv: Any, op: int = Op.SUM) -> None:
        """ireduce_scatter(), waiting."""
        self.ireduce_scatter(send, recv, op).wait()

    def reduce_scatterv(self, send: Any, recv: Any, lengths: Sequence[int], op: int = Op.SUM) -> None:
        """ireduce_scatterv(), waiting."""
        self.ireduce_scatterv(send, recv, lengths, op).wait()

    def gather(self, send: Any, recv: Any = None, root: int = 0) -> None:
        """igather(), waiting."""
        self.igather(send, recv, root).wait()

    def gatherv(self, send: Any, recv: Any = None, lengths: Optional[Sequence[int]] = None, root: int = 0) -> None:
        """igatherv(), waiting."""
        self.igatherv(send, recv, lengths, root).wait()

    def scatter(self, send: Any, recv: Any, root: int = 0) -> None:
        """iscatter(), waiting."""
        self.iscatter(send, recv, root).wait()

    def scatterv(self, send: Any, recv: Any, lengths: Optional[Sequence[int]] = None, root: int = 0) -> None:
        """iscatterv(), waiting."""
        self.iscatterv(send, recv, lengths, root).wait()

    def alltoall(self, send: Any, recv: Any) -> None:
        """ialltoall(), waiting."""
        self.ialltoall(send, recv).wait()

    def alltoallv(self, send: Any, send_lengths: Sequence[int], recv: Any, recv_lengths: Sequence[int]) -> None:
        """ialltoallv(), waiting."""
        self.ialltoallv(send, send_lengths, recv, recv_lengths).wait()

    def barrier(self) -> None:
        """ibarrier(), waiting."""
        self.ibarrier().wait()

    def send(self, buf: Any, dest: int) -> None:
        """isend(), waiting."""
        self.isend(buf, dest).wait()

    def recv(self, buf: Any, source: int) -> None:
        """irecv(), waiting."""
        self.irecv(buf, source).wait()

    def sendrecv(self, send: Any, dest: int, recv: Any, source: int) -> None:
        """Both at the same time."""
        pending = self.irecv(recv, source)
        self.isend(send, dest).wait()
        pending.wait()
