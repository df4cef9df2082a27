# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""A barrier over the group's store, which rank 0 watches: it names the ranks that do not come.

It does not touch the communicator, so that it can tell who is late while an operation hangs.
"""
import datetime
import functools
import time
from typing import TYPE_CHECKING, Any, List

import torch.distributed as dist

if TYPE_CHECKING:
    from .base import GroupBase

_LATE = datetime.timedelta(seconds=10)


def offer() -> None:
    """Has dist.monitored_barrier(), which takes Gloo's groups by name, take ours as well."""
    from torch.distributed import distributed_c10d as c10d

    original = c10d.monitored_barrier
    if getattr(original, "rocecomm", False):
        return

    @functools.wraps(original)
    def either(group: Any = None, timeout: Any = None, wait_all_ranks: bool = False) -> Any:
        from .base import GroupBase

        found = group if group is not None else c10d._get_default_group()
        if isinstance(found, GroupBase):
            return found.monitored_barrier(timeout, wait_all_ranks)
        return original(group, timeout, wait_all_ranks)

    either.rocecomm = True  # type: ignore[attr-defined]
    c10d.monitored_barrier = either
    dist.monitored_barrier = either


def monitored_barrier(group: "GroupBase", turn: int, timeout: Any, all_ranks: bool) -> None:
    """`all_ranks`: rank 0 names all that are missing, rather than the first."""
    limit = timeout if timeout is not None else datetime.timedelta(seconds=group.timeout)
    if not isinstance(limit, datetime.timedelta):
        limit = datetime.timedelta(seconds=limit)
    store, prefix = group.get_group_store(), f"roce/barrier/{turn}"
    if group.rank() == 0:
        if limit.total_seconds() <= 0:
            store.set(prefix, "rank 0 had no time")
            raise RuntimeError("roce: Rank 0 timed out in monitoredBarrier after 0 ms: it had no time to wait")
        missing = _missing(group, store, prefix, limit, all_ranks)
        words = ""
        if missing:
            named = f"Rank {missing[0]}" if len(missing) == 1 else f"Ranks {', '.join(map(str, missing))}"
            words = f"{named} failed to pass monitoredBarrier in {limit.total_seconds() * 1000:.0f} ms"
        store.set(prefix, words or "passed")
        if words:
            raise RuntimeError(f"roce: [Rank 0]: {words}")
        return
    rank = group.rank()
    store.set(f"{prefix}/{rank}", "here")
    try:
        store.wait([prefix], limit + _LATE)
        said = store.get(prefix).decode()
    except RuntimeError as error:
        said = str(error)
    if said != "passed":
        raise RuntimeError(
            f"roce: Rank {rank} successfully reached monitoredBarrier, but received errors while waiting for send/recv "
            f"from rank 0. Please check rank 0 logs for faulty rank. ({said})"
        )


def _missing(group: "GroupBase", store: Any, prefix: str, limit: Any, all_ranks: bool) -> List[int]:
    end = time.monotonic() + limit.total_seconds()
    missing = []
    for rank in range(1, group.size()):
        left = max(0.01, end - time.monotonic())
        try:
            store.wait([f"{prefix}/{rank}"], datetime.timedelta(seconds=left))
        except RuntimeError:
            missing.append(rank)
            if not all_ranks:
                break
    return missing
