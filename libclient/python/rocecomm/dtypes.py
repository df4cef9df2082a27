# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Numbers of types and reductions, and the way from names and DLPack codes to them."""
from enum import IntEnum
from typing import Dict, Tuple


class DType(IntEnum):
    """enum roce_dtype"""

    I8 = 0
    U8 = 1
    I16 = 2
    U16 = 3
    I32 = 4
    U32 = 5
    I64 = 6
    U64 = 7
    F16 = 8
    BF16 = 9
    F32 = 10
    F64 = 11
    F8E4M3 = 12
    F8E5M2 = 13


class Op(IntEnum):
    """enum roce_op"""

    SUM = 0
    PROD = 1
    MIN = 2
    MAX = 3
    AVG = 4
    BAND = 6
    BOR = 7
    BXOR = 8
    LAND = 9
    LOR = 10
    LXOR = 11


SIZES: Tuple[int, ...] = (1, 1, 2, 2, 4, 4, 8, 8, 2, 2, 4, 8, 1, 1)

# NumPy's names. A complex number is two of its parts; booleans are bytes that hold 0 or 1.
NUMPY: Dict[str, Tuple[int, int]] = {
    "int8": (0, 1),
    "uint8": (1, 1),
    "int16": (2, 1),
    "uint16": (3, 1),
    "int32": (4, 1),
    "uint32": (5, 1),
    "int64": (6, 1),
    "uint64": (7, 1),
    "float16": (8, 1),
    "bfloat16": (9, 1),
    "float32": (10, 1),
    "float64": (11, 1),
    "float8_e4m3fn": (12, 1),
    "float8_e5m2": (13, 1),
    "bool": (1, 1),
    "complex64": (10, 2),
    "complex128": (11, 2),
}

# (DLPack type code, bits) -> (dtype, elements a number). Codes: 0 int, 1 uint, 2 float, 4 bfloat,
# 5 complex, 6 bool, 10 float8_e4m3fn, 12 float8_e5m2.
DLPACK: Dict[Tuple[int, int], Tuple[int, int]] = {
    (0, 8): (0, 1),
    (1, 8): (1, 1),
    (0, 16): (2, 1),
    (1, 16): (3, 1),
    (0, 32): (4, 1),
    (1, 32): (5, 1),
    (0, 64): (6, 1),
    (1, 64): (7, 1),
    (2, 16): (8, 1),
    (4, 16): (9, 1),
    (2, 32): (10, 1),
    (2, 64): (11, 1),
    (5, 64): (10, 2),
    (5, 128): (11, 2),
    (6, 8): (1, 1),
    (10, 8): (12, 1),
    (12, 8): (13, 1),
}

# What a reduction of booleans is on bytes that hold 0 or 1.
BOOL_OPS: Dict[int, int] = {
    Op.SUM: Op.MAX,
    Op.PROD: Op.MIN,
    Op.MIN: Op.MIN,
    Op.MAX: Op.MAX,
    Op.BAND: Op.BAND,
    Op.BOR: Op.BOR,
    Op.BXOR: Op.BXOR,
    Op.LAND: Op.LAND,
    Op.LOR: Op.LOR,
    Op.LXOR: Op.LXOR,
}

# Reductions of complex numbers that are reductions of their parts.
COMPLEX_OPS = frozenset((Op.SUM, Op.AVG))
