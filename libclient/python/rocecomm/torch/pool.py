# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Temporary memory for lists and for tensors that are not dense: shared with the daemon, reused.

What has to be gathered from, or spread to, several tensors is copied once between them and a block
from here, and by nobody else on this host.
"""
import ctypes
import threading
from typing import Any, Dict, List

import torch

from ..client import Client

_IDLE_MAX = 256 << 20


class Block:
    """One piece; `bytes` is a tensor of uint8 over all of it."""

    __slots__ = ("bytes", "ptr", "size")

    def __init__(self, memory: Any, size: int) -> None:
        self.bytes = torch.frombuffer(memory, dtype=torch.uint8)
        self.ptr: int = self.bytes.data_ptr()
        self.size = size

    def flat(self, count: int, dtype: torch.dtype, itemsize: int) -> torch.Tensor:
        """`count` elements from the start."""
        return self.bytes[: count * itemsize].view(dtype)


def rounded(nbytes: int) -> int:
    """Quarter powers of two, from 4 KiB up."""
    if nbytes <= 4096:
        return 4096
    step = 1 << ((nbytes - 1).bit_length() - 3)
    return (nbytes + step - 1) // step * step


class Back:
    """Gives a block back when what held it lets go."""

    __slots__ = ("_pool", "_block")

    def __init__(self, pool: "Pool", block: Block) -> None:
        self._pool, self._block = pool, block

    def __del__(self) -> None:
        self._pool.put(self._block)


class Pool:
    """Blocks by size. Threads: any."""

    device: Any = None  # of its memory; None: the host
    offer: Any = None  # told of dense tensors that are large (lend.py)

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._free: Dict[int, List[Block]] = {}
        self._idle = 0

    def get(self, nbytes: int) -> Block:
        """A block of at least `nbytes`; its content is arbitrary."""
        size = rounded(nbytes)
        with self._lock:
            blocks = self._free.get(size)
            if blocks:
                self._idle -= size
                return blocks.pop()
        return Block(self._client.alloc(size), size)

    def tensor(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        """A tensor whose block comes back when it is freed; its content is arbitrary."""
        nbytes = count * torch.empty((), dtype=dtype).element_size()
        block = self.get(max(1, nbytes))
        memory = (ctypes.c_uint8 * block.size).from_address(block.ptr)
        memory.back = Back(self, block)  # type: ignore[attr-defined]
        return torch.frombuffer(memory, dtype=torch.uint8)[:nbytes].view(dtype)

    def put(self, block: Block) -> None:
        """Gives a block back. What is too much to keep is freed with its last view."""
        with self._lock:
            if self._idle + block.size <= _IDLE_MAX:
                self._idle += block.size
                self._free.setdefault(block.size, []).append(block)
