# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""A barrier over the group's store, which rank 0 watches: it names the ranks that do not come.

It does not touch the communicator, so that it can tell who is late while an operation hangs.
"""
import datetime
import time
from typing import TYPE_CHECKING, Any, List

if TYPE_CHECKING:
    from .base import GroupBase

_LATE = datetime.timedelta(seconds=10)


def monitored_barrier(group: "GroupBase", turn: int, timeout: Any, all_ranks: bool) -> None:
    """`all_ranks`: rank 0 names all that are missing, rather than the first."""
    limit = timeout if timeout is not None else datetime.timedelta(seconds=group.timeout)
    store, prefix = group.get_group_store(), f"roce/barrier/{turn}"
    if group.rank() == 0:
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
