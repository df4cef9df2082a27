# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Tensors as the library takes them: an address, and what is to be done when the operation ended.

A dense tensor is its own address. Any other goes through a block of the pool: filled before the
post, or copied out after. A tensor that has one element in several places cannot be written, and is
refused.
"""
from typing import Any, Callable, List, Optional, Sequence, Tuple

import torch

from .lend import MIN_BYTES
from .pool import Back, Block, Pool
from .types import MOVED, Type, type_of

Finish = Optional[Callable[[], None]]


def dense(tensor: torch.Tensor) -> bool:
    """Are its bytes its elements in order?"""
    return tensor.is_contiguous() and not tensor.is_neg() and not tensor.is_conj()


def _overlaps(tensor: torch.Tensor) -> bool:
    """May two elements of it be in one place?"""
    reach = 0
    for stride, size in sorted((t, s) for s, t in zip(tensor.shape, tensor.stride()) if s > 1):
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


def check_writable(tensor: torch.Tensor, name: str) -> None:
    """Refuses a tensor that has one element in several places."""
    if _overlaps(tensor):
        raise ValueError(
            f"roce: {name}: the tensor of shape {tuple(tensor.shape)} with strides {tensor.stride()} has several "
            "elements in one place, where different results would meet: pass a copy (tensor.clone())"
        )


def _check_place(pool: Pool, tensor: torch.Tensor, name: str) -> None:
    if tensor.layout is not torch.strided:
        raise TypeError(f"roce: {name}: a tensor of layout {tensor.layout} is not taken; all_reduce takes sparse ones")
    if not (tensor.is_cpu if pool.device is None else tensor.device == pool.device):
        raise TypeError(f"roce: {name}: tensors of {tensor.device} and of {pool.device or 'the host'} are mixed")


def _copied(pool: Pool, tensor: torch.Tensor, entry: Type, name: str) -> Tuple[Block, torch.Tensor]:
    if entry.kind == MOVED and tensor.is_quantized:
        raise TypeError(f"roce: {name}: a quantized tensor must be contiguous here")
    block = pool.get(max(1, tensor.numel() * entry.itemsize))
    return block, block.flat(tensor.numel(), tensor.dtype, entry.itemsize).view(tensor.shape)


def _settled(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor itself, of what a functional collective yields to stand for it until it is used."""
    if type(tensor) is not torch.Tensor:
        wait = getattr(tensor, "trigger_wait", None)
        if wait is not None:
            wait()
            return tensor.elem  # type: ignore[attr-defined,no-any-return]
    return tensor


def _address(pool: Pool, tensor: torch.Tensor, name: str) -> int:
    ptr: int = tensor.data_ptr()
    itemsize = tensor.element_size()
    nbytes = tensor.numel() * itemsize
    if nbytes and ptr == tensor.storage_offset() * itemsize:
        raise TypeError(
            f"roce: {name}: a {type(tensor).__name__} of shape {tuple(tensor.shape)} has no memory of its own: pass "
            "the tensor that has it, such as DTensor.to_local()"
        )
    if nbytes >= MIN_BYTES and pool.offer is not None:
        pool.offer(tensor, ptr, nbytes)
    return ptr


def ready_input(pool: Pool, tensor: torch.Tensor, name: str) -> Tuple[int, Any]:
    """Address of what is sent, and what has to live until then."""
    tensor = _settled(tensor)
    _check_place(pool, tensor, name)
    if dense(tensor):
        return _address(pool, tensor, name), tensor
    block, flat = _copied(pool, tensor, type_of(tensor, name), name)
    flat.copy_(tensor.detach())
    return block.ptr, Back(pool, block)


def ready_output(pool: Pool, tensor: torch.Tensor, name: str, filled: bool) -> Tuple[int, Any, Finish]:
    """Address of what is received, what has to live, what is to be done then.

    `filled`: it is input, too.
    """
    tensor = _settled(tensor)
    _check_place(pool, tensor, name)
    if dense(tensor):
        return _address(pool, tensor, name), tensor, None
    check_writable(tensor, name)
    block, flat = _copied(pool, tensor, type_of(tensor, name), name)
    target = tensor.detach()
    if filled:
        flat.copy_(target)
    return block.ptr, Back(pool, block), lambda: _copy(target, flat)


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    target.copy_(source)


def _in_a_row(tensors: Sequence[torch.Tensor], entry: Type) -> bool:
    """Do they lie one after the other?"""
    at = tensors[0].data_ptr()
    for tensor in tensors:
        if tensor.data_ptr() != at or not dense(tensor):
            return False
        at += tensor.numel() * entry.itemsize
    return True


def flat_block(pool: Pool, tensors: Sequence[torch.Tensor], entry: Type) -> Tuple[int, Any]:
    """Address of all of them, one after the other, to be sent."""
    tensors = [_settled(t) for t in tensors]
    for tensor in tensors:
        _check_place(pool, tensor, "list")
    if _in_a_row(tensors, entry):
        return tensors[0].data_ptr(), tensors
    block = pool.get(max(1, sum(t.numel() for t in tensors) * entry.itemsize))
    for tensor, piece in zip(tensors, _pieces(block, tensors, entry)):
        piece.copy_(tensor.detach())
    return block.ptr, Back(pool, block)


def _pieces(block: Block, tensors: Sequence[torch.Tensor], entry: Type) -> List[torch.Tensor]:
    if any(t.is_quantized for t in tensors):
        raise TypeError("roce: quantized tensors are not taken in lists")
    flat = block.flat(sum(t.numel() for t in tensors), tensors[0].dtype, entry.itemsize)
    return [piece.view(t.shape) for piece, t in zip(flat.split([t.numel() for t in tensors]), tensors)]


def by_place(pool: Pool, tensors: Sequence[torch.Tensor], entry: Type, name: str) -> Tuple[int, Any, Finish]:
    """Address where all of them are received, one after the other, and what spreads them."""
    tensors = [_settled(t) for t in tensors]
    for tensor in tensors:
        _check_place(pool, tensor, name)
        if not dense(tensor):
            check_writable(tensor, name)
    if _in_a_row(tensors, entry):
        return tensors[0].data_ptr(), tensors, None
    block = pool.get(max(1, sum(t.numel() for t in tensors) * entry.itemsize))
    pieces = _pieces(block, tensors, entry)
    targets = [t.detach() for t in tensors]

    def finish() -> None:
        for target, piece in zip(targets, pieces):
            target.copy_(piece)

    return block.ptr, Back(pool, block), finish


def row_split(tensor: torch.Tensor, splits: Any, size: int, entry: Type, name: str) -> List[int]:
    """How many elements go to each rank."""
    rows = tensor.shape[0] if tensor.dim() else 0
    row = tensor.numel() // rows * entry.per if rows else 0
    if not splits:
        if rows % size:
            raise ValueError(
                f"roce: {name}: {rows} rows do not divide by {size} ranks (Tensor's dim 0 does not divide equally "
                "across group size): pass the splits"
            )
        return [rows // size * row] * size
    if len(splits) != size or sum(splits) != rows or min(splits) < 0:
        raise ValueError(
            f"roce: {name}: splits {list(splits)} do not fit: {size} are due, that add up to the {rows} rows "
            "(Split sizes doesn't match total dim 0 size)"
        )
    return [n * row for n in splits]
