# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""PyTorch's types and reductions in the library's numbers."""
from typing import Any, Dict, NamedTuple, Tuple

import torch

from ..dtypes import BOOL_OPS, Op

PLAIN, BOOL, COMPLEX, MOVED = range(4)


class Type(NamedTuple):
    """How elements of a dtype are posted."""

    dtype: int  # enum roce_dtype
    per: int  # elements posted for one of the tensor
    itemsize: int  # bytes of one of the tensor
    kind: int


def _table() -> Dict[Any, Type]:
    names = {
        "int8": Type(0, 1, 1, PLAIN),
        "uint8": Type(1, 1, 1, PLAIN),
        "int16": Type(2, 1, 2, PLAIN),
        "uint16": Type(3, 1, 2, PLAIN),
        "int32": Type(4, 1, 4, PLAIN),
        "uint32": Type(5, 1, 4, PLAIN),
        "int64": Type(6, 1, 8, PLAIN),
        "uint64": Type(7, 1, 8, PLAIN),
        "float16": Type(8, 1, 2, PLAIN),
        "bfloat16": Type(9, 1, 2, PLAIN),
        "float32": Type(10, 1, 4, PLAIN),
        "float64": Type(11, 1, 8, PLAIN),
        "float8_e4m3fn": Type(12, 1, 1, MOVED),
        "float8_e5m2": Type(13, 1, 1, MOVED),
        "bool": Type(1, 1, 1, BOOL),
        "complex32": Type(8, 2, 4, COMPLEX),
        "complex64": Type(10, 2, 8, COMPLEX),
        "complex128": Type(11, 2, 16, COMPLEX),
        # Bytes to us: moved, never reduced.
        "float8_e4m3fnuz": Type(1, 1, 1, MOVED),
        "float8_e5m2fnuz": Type(1, 1, 1, MOVED),
        "float8_e8m0fnu": Type(1, 1, 1, MOVED),
        "float4_e2m1fn_x2": Type(1, 1, 1, MOVED),
        "quint8": Type(1, 1, 1, MOVED),
        "qint8": Type(1, 1, 1, MOVED),
        "qint32": Type(1, 4, 4, MOVED),
    }
    return {getattr(torch, name): entry for name, entry in names.items() if hasattr(torch, name)}


TYPES: Dict[Any, Type] = _table()

# enum ReduceOp::RedOpType, in all releases since 1.11
_PREMUL_SUM = 8
_OPS: Tuple[int, ...] = (Op.SUM, Op.AVG, Op.PROD, Op.MIN, Op.MAX, Op.BAND, Op.BOR, Op.BXOR)
_NAMES = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR", "PREMUL_SUM")
PLAIN_OPS = _OPS
_COMPLEX = frozenset((Op.SUM, Op.AVG))


def type_of(tensor: torch.Tensor, what: str) -> Type:
    """The entry of a tensor's dtype."""
    entry = TYPES.get(tensor.dtype)
    if entry is None:
        raise TypeError(f"roce: {what}: {tensor.dtype} is no type that rocecomm moves")
    return entry


def premul_scalar(op: Any) -> float:
    """The factor of a PREMUL_SUM."""
    state = op.__getstate__()
    if state is None:
        raise TypeError(f"roce: PyTorch {torch.__version__} does not tell the factor of PREMUL_SUM; 2.0 and later do")
    factor = state[1]
    if isinstance(factor, torch.Tensor):
        if factor.numel() != 1:
            raise ValueError(f"roce: PREMUL_SUM with a factor of {factor.numel()} elements; one is due")
        factor = factor.item()
    return float(factor)


def reduction(entry: Type, op: Any, what: str, comm: Any) -> int:
    """The library's number for a ReduceOp on elements of a type; refused in words, or made."""
    number = hash(op)
    if entry.kind == PLAIN and number < _PREMUL_SUM:
        return _OPS[number]
    name = _NAMES[number] if 0 <= number < len(_NAMES) else f"number {number}"
    if entry.kind == MOVED:
        raise TypeError(f"roce: {what}: elements of this type can be moved, not reduced by {name}")
    if number == _PREMUL_SUM and entry.kind != BOOL:
        return int(comm.premul(premul_scalar(op)))
    if entry.kind == BOOL and number < _PREMUL_SUM and _OPS[number] in BOOL_OPS:
        return BOOL_OPS[_OPS[number]]
    if entry.kind == COMPLEX and number < _PREMUL_SUM and _OPS[number] in _COMPLEX:
        return _OPS[number]
    words = "booleans" if entry.kind == BOOL else "complex numbers" if entry.kind == COMPLEX else "numbers"
    raise TypeError(f"roce: {what}: there is no {name} of {words}")
