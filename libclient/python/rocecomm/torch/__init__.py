# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The backend "roce" of torch.distributed.

    torch.distributed.init_process_group("roce")

From PyTorch 2.5 on, the package's entry point registers the backend by itself; before, write
`import rocecomm.torch` first. Everything else in the program stays as it is.
"""
import importlib
import os
from typing import Any, Sequence

import torch
import torch.distributed as dist

from .barrier import offer

__all__ = ["empty", "memory_path", "register", "share_", "status"]

_DEVICES = ["cpu", "cuda"]


def register() -> None:
    """Makes the name "roce" known to torch.distributed. Importing this module has done it."""
    if not dist.is_available() or hasattr(dist.Backend, "ROCE"):
        return
    if "devices" in (dist.Backend.register_backend.__doc__ or "") or hasattr(dist.Backend, "backend_capability"):
        dist.Backend.register_backend("roce", _create, extended_api=True, devices=_DEVICES)
    else:
        dist.Backend.register_backend("roce", _create, extended_api=True)
    offer()
    importlib.import_module(".group", __name__)  # now: init_process_group() would wait for it


def _create(options: Any, _pg_options: Any) -> Any:
    from .group import RoceProcessGroup

    return RoceProcessGroup(
        options.store, options.group_rank, options.group_size, options.timeout, getattr(options, "group_id", "")
    )


def _autoload() -> None:
    """The torch.backends entry point."""
    register()


def empty(*shape: Any, dtype: Any = None) -> torch.Tensor:
    """A tensor, zeroed, in memory that the daemon shares: operations on it copy nothing on this host."""
    from . import session

    dims: Sequence[int] = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
    kind = dtype if dtype is not None else torch.get_default_dtype()
    count = 1
    for size in dims:
        count *= size
    itemsize = torch.empty((), dtype=kind).element_size()
    memory = session.client().alloc(max(1, count * itemsize))
    return torch.frombuffer(memory, dtype=torch.uint8)[: count * itemsize].view(kind).view(tuple(dims))


def share_(tensor: torch.Tensor) -> bool:
    """Moves the storage of `tensor`, which must be all of it, to memory that the daemon shares.

    All tensors that view the storage move with it. DDP's buckets are moved without being asked for; a
    communication hook may move `bucket.buffer()`. Arrays from Tensor.numpy() do not move: do not use
    them any more. Returns whether it could; if not, operations on it are copied, as ever.
    """
    from . import session

    return session.shared().move(tensor)


def memory_path(tensor: torch.Tensor) -> str:
    """How the memory of a GPU's tensor reaches the daemon, and why that way."""
    from . import session

    return session.client().memory_path(tensor.data_ptr())


def status(group: Any = None) -> Any:
    """A dict: hosts, path and the reason for it, operations posted and in flight, the error if any."""
    from . import session

    return session.status(group)


if os.environ.get("ROCECOMM_TORCH_REGISTER", "1") != "0":
    register()
