# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Sites: what posts the operations of a group on memory of one kind.

A site has a pool, makes works, and names the library's function for each operation. The host's is
here, that of GPUs in stream.py. An OtherSite stands for the backend that a device map names.
"""
from typing import TYPE_CHECKING, Any, Callable, List, Optional

from .._lib import lib
from .pool import Pool
from .work import Work

if TYPE_CHECKING:
    from .base import GroupBase

NAMES = (
    "allreduce", "reduce", "broadcast", "allgather", "allgatherv", "reduce_scatter", "reduce_scatterv", "gatherv",
    "scatterv", "alltoallv", "barrier", "send", "recv",
)  # fmt: skip


class HostSite:
    """Host memory: posted at once, completed by who waits."""

    other: Any = None

    def __init__(self, group: "GroupBase", pool: Pool) -> None:
        self._group = group
        self.pool = pool
        self.post = group.post
        for name in NAMES:
            setattr(self, name, getattr(lib, "roce_i" + name))

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)  # the functions above are made by name

    def work(self, name: str, result: List[Any], keep: Any = None, finish: Optional[Callable[[], None]] = None) -> Work:
        """A work that is not posted yet."""
        return Work(self._group, name, result, keep, finish)

    def close(self) -> None:
        """Nothing is held."""


class OtherSite:
    """Another backend's."""

    def __init__(self, backend: Any) -> None:
        self.other = backend

    def close(self) -> None:
        """The group is left."""
        getattr(self.other, "shutdown", lambda: None)()
