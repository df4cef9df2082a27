# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Lends the memory of plain tensors to the daemon, where it lies.

roce_mem_share() puts pages that the daemon maps under a tensor that comes again and again; its address
and content stay, and so does every pointer to it: NumPy arrays, views, what C++ holds.

What it needs is to hear when the memory is freed, by whatever thread, resize_() or the last view's end.
A storage has a pointer, a deleter and what is handed to the deleter; the latter two become
roce_mem_unshare() and the buffer, which in the end calls PyTorch's own deleter. They are found by
looking at a storage of known content. Where they do not look as expected, and for memory that is not of
PyTorch's allocator for the host, nothing is lent: the client copies, as it does for any memory.
"""
import ctypes
import os
import resource
from typing import Any, Dict, Optional, Tuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .. import errors
from .._lib import ROCE_ERR_EXISTS, ROCE_ERR_UNSUPPORTED, lib
from ..client import Client

MIN_BYTES = 128 << 10
_USES = 3  # lending costs some copies
_KNOWN_MAX = 1024
_LENT, _REFUSED = -1, -2


def storage_of(tensor: torch.Tensor) -> Any:
    """The untyped storage, in every release."""
    if hasattr(tensor, "untyped_storage"):
        return tensor.untyped_storage()
    storage: Any = tensor.storage()
    return storage._storage if hasattr(storage, "_storage") else storage


class _Known:
    """A storage that operations were seen on. Its number is not given to another while this lives."""

    __slots__ = ("weak", "number", "nbytes", "uses", "tries")

    def __init__(self, storage: Any, nbytes: int) -> None:
        self.weak = StorageWeakRef(storage)
        self.number: int = storage._cdata
        self.nbytes = nbytes
        self.uses = 1
        self.tries = 0


def _deleter_offset(storage: Any) -> int:
    """Where a storage of PyTorch's allocator has pointer, deleter and context; 0: nowhere known."""
    words = (ctypes.c_uint64 * 8).from_address(storage._cdata)
    ptr = storage.data_ptr()
    found = [n for n in range(1, 5) if words[n] == ptr and words[n + 2] == ptr and words[n + 1] not in (0, ptr)]
    return 8 * found[0] if len(found) == 1 else 0


class Lender:
    """The storages of the process. Threads: the caller's lock is the GIL."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: Dict[Tuple[int, int], _Known] = {}  # by address and bytes
        self.refused: Optional[str] = None
        self._at = self._deleter = self._unshare = 0
        if os.environ.get("ROCECOMM_TORCH_SHARE_TENSORS", "1") == "0":
            self.refused = "ROCECOMM_TORCH_SHARE_TENSORS is 0"
        elif not hasattr(lib, "roce_mem_share"):
            self.refused = "libroceclient has no roce_mem_share()"

    def _look_at_pytorch(self) -> None:
        samples = [storage_of(torch.empty(size, dtype=torch.uint8)) for size in (1000, 3000)]
        places = {_deleter_offset(sample) for sample in samples}
        self._at = places.pop()
        if places or not self._at:
            self.refused = f"the storages of PyTorch {torch.__version__} do not look as expected"
            return
        deleters = {self._words(sample)[1] for sample in samples}
        self._deleter = deleters.pop()
        self._unshare = ctypes.cast(lib.roce_mem_unshare, ctypes.c_void_p).value or 0
        if deleters or not self._unshare:
            self.refused = f"the deleters of PyTorch {torch.__version__} do not look as expected"

    def _words(self, storage: Any) -> Any:
        """Pointer, deleter, context."""
        return (ctypes.c_uint64 * 3).from_address(storage._cdata + self._at)

    def _is_lent(self, number: int) -> bool:
        """Of a storage that is known, and so not another's place yet, even if it has no memory any more."""
        words = (ctypes.c_uint64 * 3).from_address(number + self._at)
        return bool(words[1] == self._unshare and words[2])

    @property
    def nbytes(self) -> int:
        """Bytes lent."""
        lent = [place for place, known in self._known.items() if known.uses == _LENT]
        return sum(nbytes for ptr, nbytes in lent if self._client.is_shared(ptr, nbytes))

    def offer(self, tensor: torch.Tensor, ptr: int, nbytes: int) -> None:
        """A dense tensor goes to an operation. When it comes again, its memory is lent."""
        if self.refused is not None:
            return
        storage = storage_of(tensor)
        known = self._known.get((ptr, nbytes))
        if known is None or known.number != storage._cdata:
            self._meet(storage, ptr, nbytes)
        elif known.uses == _LENT:
            if not self._is_lent(known.number):
                known.uses = 1  # resized, with other memory at the old place
        elif known.uses != _REFUSED:
            known.uses += 1
            if known.uses >= _USES:
                known.uses = self._lend(known, tensor, storage, ptr)

    def _meet(self, storage: Any, ptr: int, nbytes: int) -> None:
        if len(self._known) >= _KNOWN_MAX:
            self._known = {p: k for p, k in self._known.items() if not k.weak.expired()}
            if len(self._known) >= _KNOWN_MAX:
                self._known = {p: k for p, k in self._known.items() if k.uses == _LENT}
        self._known[ptr, nbytes] = _Known(storage, nbytes)

    def _count(self) -> int:
        """How many are lent."""
        for place in [p for p, k in self._known.items() if k.uses == _LENT and not self._is_lent(k.number)]:
            del self._known[place]
        return sum(known.uses == _LENT for known in self._known.values())

    def _lend(self, known: _Known, tensor: torch.Tensor, storage: Any, ptr: int) -> int:
        """Returns what becomes of `known.uses`."""
        if not self._at:
            self._look_at_pytorch()
            if self.refused is not None:
                return _REFUSED
        words = self._words(storage)
        first = storage.data_ptr()
        last = first + storage.nbytes()
        plain = words[0] == first and (words[1] == self._unshare or (words[1] == self._deleter and words[2] == first))
        if self._count() >= _lent_max():
            return _REFUSED
        if not plain or not first <= ptr <= last - known.nbytes or _pinned(tensor):
            return _REFUSED
        buffer = ctypes.c_void_p()
        status = lib.roce_mem_share(
            self._client.handle, ptr, known.nbytes, words[1], words[2], ctypes.byref(buffer)
        )  # fmt: skip
        if status == 0:
            words[1], words[2] = self._unshare, buffer.value
            return _LENT
        if status == ROCE_ERR_EXISTS and known.tries < 8:
            known.tries += 1
            return _USES - 1  # an operation is in flight there
        if status not in (ROCE_ERR_EXISTS, ROCE_ERR_UNSUPPORTED):
            # No room: copies need less of it.
            self.refused = str(errors.last_error(status))
        return _REFUSED


def _lent_max() -> int:
    """Each takes a file descriptor."""
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return 512 if limit == resource.RLIM_INFINITY else min(512, limit // 4)


def _pinned(tensor: torch.Tensor) -> bool:
    """Has a GPU's driver these very pages?"""
    return torch.cuda.is_available() and torch.cuda.is_initialized() and bool(tensor.is_pinned())
