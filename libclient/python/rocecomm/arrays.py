# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What a call may be given: where its bytes lie, how many elements of which type.

NumPy arrays are read through their array interface, PyTorch's tensors by their own methods, all
others through DLPack. Whatever is not dense and in C order is refused before anything is posted:
a copy behind the caller's back would not receive the result.
"""
import ctypes
from ctypes import POINTER, Structure, c_int32, c_int64, c_uint8, c_uint16, c_uint64, c_void_p
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from .dtypes import DLPACK, NUMPY, SIZES

PLAIN, BOOL, COMPLEX = 0, 1, 2


class View(NamedTuple):
    """Memory as the library takes it."""

    ptr: int
    elements: int  # of dtype
    dtype: int
    kind: int  # PLAIN, BOOL, COMPLEX
    per: int  # elements a number: 2 for complex ones

    @property
    def nbytes(self) -> int:
        """Bytes in all."""
        return self.elements * SIZES[self.dtype]


class _Device(Structure):
    _fields_ = [("type", c_int32), ("id", c_int32)]


class _DataType(Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("ndim", c_int32),
        ("dtype", _DataType),
        ("shape", POINTER(c_int64)),
        ("strides", POINTER(c_int64)),
        ("byte_offset", c_uint64),
    ]


class _Versioned(Structure):
    """struct DLManagedTensorVersioned"""

    _fields_ = [
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", c_void_p),
        ("deleter", c_void_p),
        ("flags", c_uint64),
        ("tensor", _Tensor),
    ]


_CPU_DEVICES = (1, 3, 11)  # host, pinned by CUDA, pinned by ROCm
_READ_ONLY = 1

_capsule_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_capsule_pointer.restype = c_void_p
_capsule_pointer.argtypes = (ctypes.py_object, ctypes.c_char_p)
_capsule_name = ctypes.pythonapi.PyCapsule_GetName
_capsule_name.restype = ctypes.c_char_p
_capsule_name.argtypes = (ctypes.py_object,)


def _dense(shape: List[int], strides: Optional[List[int]]) -> bool:
    expect = 1
    if strides is None:
        return True
    for size, stride in zip(reversed(shape), reversed(strides)):
        if size == 0:
            return True
        if size != 1 and stride != expect:
            return False
        expect *= size
    return True


def _not_dense(what: str, hint: str) -> ValueError:
    return ValueError(
        f"{what} is not contiguous, and a copy would not receive the result: pass {hint}"
    )


def _from_dlpack(obj: Any, what: str, write: bool) -> View:
    try:
        capsule = obj.__dlpack__(max_version=(1, 0))
    except TypeError:
        capsule = obj.__dlpack__()
    name = _capsule_name(capsule)
    address = _capsule_pointer(capsule, name)
    if name == b"dltensor_versioned":
        versioned = _Versioned.from_address(address)
        if write and versioned.flags & _READ_ONLY:
            raise ValueError(f"{what} is read-only, and the result would go there")
        tensor = versioned.tensor
    else:
        tensor = _Tensor.from_address(address)
    if tensor.device.type not in _CPU_DEVICES:
        raise ValueError(
            f"{what} lies on a device (DLPack type {tensor.device.type}); this call takes host memory: "
            "copy it to the host first"
        )
    shape = tensor.shape[: tensor.ndim]
    if not _dense(shape, tensor.strides[: tensor.ndim] if tensor.strides else None):
        raise _not_dense(what, "a contiguous one")
    entry = DLPACK.get((tensor.dtype.code, tensor.dtype.bits))
    if entry is None or tensor.dtype.lanes != 1:
        raise TypeError(
            f"{what} has elements of DLPack type code {tensor.dtype.code}, {tensor.dtype.bits} bits, "
            f"{tensor.dtype.lanes} lanes, which is no type of rocecomm"
        )
    count = entry[1]
    for size in shape:
        count *= size
    kind = BOOL if tensor.dtype.code == 6 else COMPLEX if entry[1] == 2 else PLAIN
    # The caller's object holds the memory; the capsule's own reference ends with this call.
    return View((tensor.data or 0) + tensor.byte_offset, count, entry[0], kind, entry[1])


_NUMPY: Dict[Any, Tuple[int, int, int]] = {}
_from_buffer = ctypes.c_char.from_buffer


def _numpy_entry(dtype: Any, what: str) -> Tuple[int, int, int]:
    """Looked up once for a dtype: its name is made anew at each look."""
    entry = NUMPY.get(dtype.name)
    if entry is None or not dtype.isnative:
        raise TypeError(f"{what} has elements of type {dtype!r}, which is no type of rocecomm")
    kind = BOOL if dtype.name == "bool" else COMPLEX if entry[1] == 2 else PLAIN
    _NUMPY[dtype] = found = (entry[0], kind, entry[1])
    return found


def _from_numpy(obj: Any, what: str, write: bool) -> View:
    flags = obj.flags
    if not flags.c_contiguous:
        raise _not_dense(what, "numpy.ascontiguousarray() of it")
    if write and not flags.writeable:
        raise ValueError(f"{what} is read-only, and the result would go there")
    dtype = obj.dtype
    number, kind, per = _NUMPY.get(dtype) or _numpy_entry(dtype, what)
    try:
        ptr = ctypes.addressof(_from_buffer(obj))  # the fastest way to the address, for most arrays
    except (TypeError, ValueError):
        ptr = obj.__array_interface__["data"][0]
    return View(ptr, obj.size * per, number, kind, per)


_TORCH: Dict[Any, Tuple[int, int, int]] = {}


def _from_torch(obj: Any, what: str) -> View:
    if not _TORCH:
        import torch

        for name, (number, per) in NUMPY.items():
            dtype = getattr(torch, name, None)
            if dtype is not None:
                _TORCH[dtype] = (number, BOOL if name == "bool" else COMPLEX if per == 2 else PLAIN, per)
    if obj.device.type != "cpu":
        raise ValueError(f"{what} lies on {obj.device}; this call takes host memory: copy it to the host first")
    if not obj.is_contiguous():
        raise _not_dense(what, "tensor.contiguous()")
    entry = _TORCH.get(obj.dtype)
    if entry is None:
        raise TypeError(f"{what} has elements of {obj.dtype}, which is no type of rocecomm")
    return View(obj.data_ptr(), obj.numel() * entry[2], *entry)


def view(obj: Any, what: str, write: bool) -> View:
    """The memory of an array or tensor. `what` names the argument in errors."""
    if type(obj).__module__ == "numpy" and hasattr(obj, "__array_interface__"):
        return _from_numpy(obj, what, write)
    if hasattr(obj, "data_ptr") and hasattr(obj, "is_contiguous"):
        return _from_torch(obj, what)
    if hasattr(obj, "__dlpack__"):
        return _from_dlpack(obj, what, write)
    raise TypeError(f"{what} is a {type(obj).__name__}: NumPy arrays and DLPack tensors are taken")
