# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Temporary memory for lists and for tensors that are not dense: shared with the daemon, reused.

What has to be gathered from, or spread to, several tensors is copied once between them and a block
from here, and by nobody else on this host.
"""
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


class Pool:
    """Blocks by size. Threads: any."""

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

    def put(self, block: Block) -> None:
        """Gives a block back. What is too much to keep is freed with its last view."""
        with self._lock:
            if self._idle + block.size <= _IDLE_MAX:
                self._idle += block.size
                self._free.setdefault(block.size, []).append(block)
