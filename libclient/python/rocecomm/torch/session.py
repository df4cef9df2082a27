# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What all process groups of a process share: the connection, the pool, and how a group meets."""
import os
import socket
import sys
import threading
import time
from typing import Any, Dict, Optional

import torch
import torch.distributed as dist

from .. import errors
from ..client import Client, process_client
from ..comm import Communicator
from .lend import Lender
from .pool import Pool
from .share import Shared
from .work import BackendError, Work, mark_callbacks

_LINGER_S = 3.0
_lock = threading.Lock()
_state: Dict[str, Any] = {}


def _in_child() -> None:
    """Another thread may have held the lock when the parent forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def client() -> Client:
    """The process's connection; made by the first call, anew in a forked child."""
    with _lock:
        if _state.get("pid") != os.getpid():
            mark_callbacks()
            _state.clear()
            try:
                _state["client"] = process_client(_name())
            except errors.RoceError as error:
                raise BackendError(f"roce: {error}") from error
            _state["pool"] = Pool(_state["client"])
            _state["lender"] = Lender(_state["client"])
            _state["pool"].offer = _state["lender"].offer
            _state["shared"] = Shared(_state["client"])
            _state["pid"] = os.getpid()
        found: Client = _state["client"]
        return found


def pool() -> Pool:
    """Temporary memory of the process."""
    client()
    found: Pool = _state["pool"]
    return found


def shared() -> Shared:
    """The storages of the process that were moved."""
    client()
    found: Shared = _state["shared"]
    return found


def lender() -> Lender:
    """The tensors of the process whose memory is lent."""
    client()
    found: Lender = _state["lender"]
    return found


def _name() -> str:
    """What rocectl shows: the program."""
    script = os.path.basename(sys.argv[0]) if sys.argv and sys.argv[0] not in ("", "-c", "-m") else "python"
    return f"torch:{script}"


def _job(label: str) -> str:
    """What rocectl shows for a group."""
    run = os.environ.get("TORCHELASTIC_RUN_ID")
    return f"{_name()} group {label}" + (f" run {run}" if run and run != "none" else "")


def join(store: Any, rank: int, size: int, label: str, timeout: float) -> Communicator:
    """Meets the other ranks of a group through its store."""
    # A store may be used again by the same processes: each time is told apart by its number.
    turn = store.add(f"roce/turn/{rank}", 1)
    key, failed = f"roce/id/{turn}", f"roce/failed/{turn}"
    try:
        return _meet(store, key, failed, rank, size, label, timeout)
    except BackendError:
        _linger(store, failed, rank, size)
        raise


def _meet(
    store: Any, key: str, failed: str, rank: int, size: int, label: str, timeout: float
) -> Communicator:  # fmt: skip
    try:
        mine = client()  # all ranks at the same time, before they wait for rank 0
        if rank == 0:
            store.set(key, f"{socket.gethostname()} {mine.unique_id().hex()}")
        host, _, text = store.get(key).decode().partition(" ")
        if text == "":
            raise BackendError(f"roce: rank 0 on {host} has no daemon; see its own error")
        return mine.communicator(
            bytes.fromhex(text), rank, size, name=_job(label)[:63], join_timeout=timeout, arrival_timeout=timeout,
            watch=lambda: _look(store, failed, rank, size, label),
        )  # fmt: skip
    except errors.RoceError as error:
        failure = _no_meeting(error, rank, size, label, timeout)
        _tell(store, failed, failure)
        raise failure from error
    except BackendError as failure:
        if rank == 0:
            store.set(key, f"{socket.gethostname()} ")
        if not getattr(failure, "told", False):
            _tell(store, failed, BackendError(f"rank {rank} of {size} on {socket.gethostname()}: {failure}"))
        raise


def _look(store: Any, key: str, rank: int, size: int, label: str) -> None:
    """While this rank waits for the others: has one of them failed?"""
    try:
        if store.add(key, 0) == 0:  # 1.13 has no check()
            return
        said = store.get(key + "/said").decode()
    except RuntimeError:
        return  # the store went with its rank: the daemon knows what became of that
    failure = BackendError(f"roce: rank {rank} of {size} cannot join group {label}, since another rank cannot: {said}")
    failure.told = True
    raise failure


def _linger(store: Any, key: str, rank: int, size: int) -> None:
    """The store is in rank 0's process as a rule: that stays until the others have read why they fail."""
    try:
        heard = store.add(key + "/heard", 1)
        end = time.monotonic() + _LINGER_S
        while rank == 0 and heard < size and time.monotonic() < end:
            time.sleep(0.02)
            heard = store.add(key + "/heard", 0)
    except RuntimeError:
        pass  # the store went with its rank


def _tell(store: Any, key: str, failure: BaseException) -> None:
    """Adds what another rank said first to this one's words, or leaves this one's for the others."""
    try:
        if store.add(key, 1) == 1:
            store.set(key + "/said", str(failure))
        else:
            failure.args = (f"{failure}. Before that: {store.get(key + '/said').decode()}",)
    except RuntimeError:
        pass  # the store went with its rank


def _no_meeting(error: errors.RoceError, rank: int, size: int, label: str, timeout: float) -> BaseException:
    text = f"roce: rank {rank} of {size} cannot join group {label}: {error}"
    if isinstance(error, errors.WaitTimeout):
        text += f"; the group's timeout is {timeout:g} s"
    if error.status in (10, 16, 11) or "loopback" in str(error):
        text += (
            ". Ranks on several hosts need a rocecommd on each, with one cluster key: make it once "
            "(rocectl key new FILE), name it as peer.key_file in /etc/rocecomm/rocecommd.conf of all hosts, and "
            "start them (systemctl start rocecommd); see rocecommd(8)"
        )
    return BackendError(text)


def named_backend(group: Any, kind: str) -> str:
    """The backend that the group's device map, such as "cpu:roce,cuda:nccl", names for a device."""
    world = getattr(dist.distributed_c10d, "_world", None)  # before 2.0 there were no maps
    config = getattr(world, "pg_backend_config", {}).get(group, "")
    return dict(part.split(":", 1) for part in str(config).split(",") if ":" in part).get(kind, "roce")


def other_backend(group: Any, named: str, kind: str) -> Any:
    """Makes that backend: a Python group stands for the whole map, so PyTorch has not."""
    store = dist.PrefixStore(f"{kind}/", group.get_group_store())
    rank, size = group.rank(), group.size()
    if named == "gloo":
        return dist.ProcessGroupGloo(store, rank, size, _timedelta(group.timeout))
    if named == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = _timedelta(group.timeout)
        return dist.ProcessGroupNCCL(store, rank, size, options)
    raise TypeError(f"roce: tensors on {kind}: backend {named} cannot be used beside roce; gloo and nccl can")


def stream_site(group: Any, device: torch.device) -> Any:
    """What posts in the order of a GPU's streams."""
    from .stream import StreamSite

    return StreamSite(group, device)


def _timedelta(seconds: float) -> Any:
    import datetime

    return datetime.timedelta(seconds=seconds)


def sparse_allreduce(group: Any, tensor: torch.Tensor, opts: Any) -> Any:
    """The sum of sparse tensors: indices and values of all ranks, added up by each."""
    if tensor.layout is not torch.sparse_coo or hash(opts.reduceOp) != 0:
        raise TypeError("roce: all_reduce of sparse tensors is the SUM of COO tensors only")
    mine = tensor.coalesce()
    indices, values = mine.indices(), mine.values()
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(group.size())]
    group.allgather([sizes], [torch.tensor([indices.shape[1]])]).wait()
    shape = tuple(values.shape[1:])
    all_indices = [torch.empty((indices.shape[0], int(n)), dtype=torch.int64) for n in sizes]
    all_values = [torch.empty((int(n), *shape), dtype=values.dtype) for n in sizes]
    first = group.allgather([all_indices], [indices.contiguous()])
    second = group.allgather([all_values], [values.contiguous()])

    def finish() -> None:
        total = torch.sparse_coo_tensor(torch.cat(all_indices, 1), torch.cat(all_values), mine.shape)
        with torch.no_grad():
            tensor.copy_(total.coalesce())

    work = Work(group, "all_reduce (sparse)", [tensor], tensor, finish)
    work.parts = [first, second]
    group.keep(work)
    return work


def status(group: Optional[Any] = None) -> Dict[str, Any]:
    """How a group's bytes travel, and why."""
    from .group import RoceProcessGroup

    found = group if group is not None else dist.distributed_c10d._get_default_group()
    if not isinstance(found, RoceProcessGroup):
        raise TypeError(f"rocecomm.torch.status: the group's backend is {dist.get_backend(group)}, not roce")
    return {
        **found.comm.status(),
        "group": found.label,
        "operations": found.seq,
        "shared_storages": found._shared.nbytes,
        "not_shared_because": found._shared.refused,
        "lent_tensors": lender().nbytes,
        "not_lent_because": lender().refused,
        "in_flight": sum(not work.reap() for work in list(found.live)),
    }
