# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Moves storages that exist already into memory that the daemon shares.

DDP's buckets are made in C++ by PyTorch's allocator, which cannot be replaced from Python. But PyTorch
can move a storage, with all tensors that view it, to a mapping of its own (what Tensor.share_memory_()
does), and behind such a mapping other pages can be put: those of an allocation that the daemon maps
(mremap() with an old size of 0 maps them a second time). From then on a gradient that backward() writes
is where the daemon reads it; the operation is posted with the allocation's own address.

The storage is held here until nobody else holds it, so that its address cannot become that of other
memory meanwhile.
"""
import ctypes
import mmap
import os
import sys
from typing import Any, Dict, Optional

import torch

from .. import errors
from ..client import Client
from .lend import storage_of

MIN_BYTES = 16 << 10
_FIXED = 1 | 2  # MREMAP_MAYMOVE, MREMAP_FIXED
_PUNCH = 1 | 2  # FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE
_FAILED = 2**64 - 1
_BACKWARD = ("_engine_run_backward", "backward")

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


class _Moved:
    """A storage and the allocation behind it."""

    __slots__ = ("storage", "memory", "base", "nbytes")

    def __init__(self, storage: Any, memory: Any, base: int, nbytes: int) -> None:
        self.storage, self.memory, self.base, self.nbytes = storage, memory, base, nbytes


class Shared:
    """The storages that were moved. Threads: the caller's lock is the GIL; moves are few."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._moved: Dict[int, _Moved] = {}
        self._seen: Dict[int, int] = {}
        self._enabled = os.environ.get("ROCECOMM_TORCH_SHARE_BUCKETS", "1") != "0"
        self.refused: Optional[str] = None

    @property
    def nbytes(self) -> int:
        """Bytes moved so far that are still in use."""
        return sum(moved.nbytes for moved in self._moved.values())

    def place(self, tensor: torch.Tensor, ptr: int, nbytes: int, frames: int) -> int:
        """The address to post for a dense tensor. A bucket that comes a second time is moved."""
        moved = self._moved.get(ptr)
        if moved is not None and moved.storage.data_ptr() == ptr:
            return moved.base if nbytes <= moved.nbytes else ptr
        if not self._enabled or not _from_reducer(frames + 1):
            return ptr
        if self._seen.get(ptr) != nbytes:
            if len(self._seen) > 4096:
                self._seen.clear()
            self._seen[ptr] = nbytes
            return ptr
        del self._seen[ptr]
        return self._moved[tensor.data_ptr()].base if self.move(tensor) else ptr

    def move(self, tensor: torch.Tensor) -> bool:
        """Moves the storage of a tensor that is all of it. Returns whether it could."""
        storage = storage_of(tensor)
        nbytes = tensor.numel() * tensor.element_size()
        if tensor.storage_offset() != 0 or storage.nbytes() != nbytes or storage.is_shared():
            return False
        if not hasattr(storage, "_share_fd_cpu_"):
            return False
        try:
            # PyTorch's own step takes room there, for as long as this call lasts.
            room = os.statvfs("/dev/shm")
            if room.f_bavail * room.f_frsize < 2 * nbytes:
                raise OSError(f"/dev/shm has no room for {nbytes} bytes")
            self._sweep()
            return self._move(storage, nbytes)
        except (OSError, RuntimeError, errors.RoceError) as error:
            # Without it the client copies, as it does for any tensor.
            self._enabled = False
            self.refused = str(error)
            return False

    def _move(self, storage: Any, nbytes: int) -> bool:
        size = (nbytes + mmap.PAGESIZE - 1) // mmap.PAGESIZE * mmap.PAGESIZE
        memory = self._client.alloc(size)
        base = self._client.address(memory)
        fd = storage._share_fd_cpu_()[0]
        ptr = storage.data_ptr()
        if ptr % mmap.PAGESIZE:
            raise OSError("PyTorch's mapping does not begin with a page")
        ctypes.memmove(base, ptr, nbytes)
        if _libc.mremap(base, 0, size, _FIXED, ptr) in (None, _FAILED):
            raise OSError(ctypes.get_errno(), f"mremap: {os.strerror(ctypes.get_errno())}")
        # The pages that were there are nobody's any more.
        _libc.fallocate(fd, _PUNCH, 0, size)
        self._moved[ptr] = _Moved(storage, memory, base, nbytes)
        return True

    def _sweep(self) -> None:
        """Lets go what nobody else holds."""
        count = getattr(torch._C, "_storage_Use_Count", None)
        if count is None:
            return
        for ptr, moved in list(self._moved.items()):
            if count(moved.storage._cdata) <= 1:
                del self._moved[ptr]


def _from_reducer(frames: int) -> bool:
    """Was the group's method called by C++ during backward(), as DDP's Reducer does it?"""
    caller = sys._getframe(frames + 1)
    return caller.f_code.co_name in _BACKWARD and "autograd" in caller.f_code.co_filename
