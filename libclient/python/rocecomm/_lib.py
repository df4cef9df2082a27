# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""libroceclient through ctypes: where it is, and the types of its functions.

Every call but the two that only look releases the GIL. Prototypes are set once here, so that a call
converts plain integers and nothing else.
"""
import ctypes
import glob
import os
from ctypes import POINTER, Structure, byref, c_char, c_char_p, c_double, c_int, c_size_t, c_uint, c_void_p
from typing import Any, Iterator, List

SONAME = "libroceclient.so.0"


def _candidates() -> Iterator[str]:
    named = os.environ.get("ROCECOMM_LIBRARY")
    if named:
        if os.path.isdir(named):
            for sub in ("", "libclient", "lib"):
                yield os.path.join(named, sub, SONAME)
        else:
            yield named
        return
    for path in sorted(glob.glob(os.path.join(os.path.dirname(__file__), SONAME + "*"))):
        yield path
    yield SONAME


def _load() -> ctypes.CDLL:
    tried: List[str] = []
    for path in _candidates():
        if os.sep in path and not os.path.exists(path):
            tried.append(f"{path}: no such file")
            continue
        try:
            return ctypes.CDLL(path)
        except OSError as error:
            tried.append(f"{path}: {error}")
    raise ImportError(
        "rocecomm: libroceclient was not found (" + "; ".join(tried) + "): install it, or name the "
        "file or its build directory in ROCECOMM_LIBRARY"
    )


lib = _load()
library_path: str = lib._name

ROCE_OK = 0
ROCE_IN_PROGRESS = 1
ROCE_ERR_UNSUPPORTED = 3
ROCE_ERR_EXISTS = 19
UNIQUE_ID_BYTES = 256


class ClientOptions(Structure):
    """struct roce_client_options"""

    _fields_ = [("size", c_size_t), ("name", c_char_p), ("autostart", c_int), ("timeout_ms", c_int)]


class CommOptions(Structure):
    """struct roce_comm_options"""

    _fields_ = [
        ("size", c_size_t),
        ("name", c_char_p),
        ("join_timeout_ms", c_int),
        ("arrival_timeout_ms", c_int),
        ("transfer_timeout_ms", c_int),
    ]


class AllreduceArgs(Structure):
    """struct roce_allreduce_args"""

    _fields_ = [
        ("size", c_size_t),
        ("send", c_void_p),
        ("recv", c_void_p),
        ("count", c_size_t),
        ("comm", c_void_p),
        ("dtype", c_int),
        ("op", c_int),
        ("timeout_ms", c_int),
        ("request", c_void_p),
    ]


class UniqueId(Structure):
    """struct roce_unique_id"""

    _fields_ = [("bytes", c_char * UNIQUE_ID_BYTES)]


def _declare(name: str, result: Any, *args: Any) -> None:
    function = getattr(lib, name)
    function.restype = result
    function.argtypes = args


_P = c_void_p
_PP = POINTER(c_void_p)
_N = c_size_t
_COUNTS = POINTER(c_size_t)

for _name in ("roce_status_name", "roce_strerror"):
    _declare(_name, c_char_p, c_int)
for _name in ("roce_last_error", "roce_version"):
    _declare(_name, c_char_p)
_declare("roce_connect", c_int, c_char_p, POINTER(ClientOptions), _PP)
_declare("roce_disconnect", None, _P)
_declare("roce_event_fd", c_int, _P, POINTER(c_int))
_declare("roce_event_clear", c_int, _P)
_declare("roce_get_unique_id", c_int, _P, POINTER(UniqueId))
_declare("roce_comm_init", c_int, _P, POINTER(UniqueId), c_int, c_int, POINTER(CommOptions), _PP)
_declare("roce_comm_init_env", c_int, _P, POINTER(CommOptions), _PP)
_declare("roce_comm_split", c_int, _P, c_int, c_int, POINTER(CommOptions), _PP)
for _name in ("roce_comm_destroy", "roce_comm_abort", "roce_comm_rank", "roce_comm_size", "roce_comm_hosts"):
    _declare(_name, c_int, _P)
_declare("roce_comm_dup", c_int, _P, _PP)
_declare("roce_comm_host_of", c_int, _P, c_int)
_declare("roce_comm_host_name", c_char_p, _P, c_int)
_declare("roce_comm_path", c_char_p, _P)
_declare("roce_comm_error", c_int, _P, c_char_p, c_size_t)
_declare("roce_op_create_premul", c_int, _P, c_double, POINTER(c_int))
_declare("roce_op_free", c_int, _P, c_int)
_declare("roce_mem_alloc", c_int, _P, c_size_t, c_uint, _PP)
_declare("roce_mem_free", c_int, _P, _P)
_declare("roce_mem_register", c_int, _P, _P, c_size_t, _PP)
_declare("roce_mem_deregister", c_int, _P)
if hasattr(lib, "roce_allreduce_call"):
    _declare("roce_allreduce_call", c_int, _N)  # an address: the argument that costs least
if hasattr(lib, "roce_mem_share"):
    _declare("roce_mem_share", c_int, _P, _P, _N, _P, _P, _PP)
    _declare("roce_mem_unshare", None, _P)
_declare("roce_mem_lookup", c_int, _P, _P, c_size_t, _PP)
_declare("roce_buffer_ptr", c_void_p, _P)
_declare("roce_buffer_size", c_size_t, _P)
_declare("roce_buffer_is_shared", c_int, _P)
_declare("roce_iallreduce", c_int, _P, _P, _N, c_int, c_int, _P, _PP)
_declare("roce_ireduce", c_int, _P, _P, _N, c_int, c_int, c_int, _P, _PP)
_declare("roce_ibroadcast", c_int, _P, _N, c_int, c_int, _P, _PP)
_declare("roce_iallgather", c_int, _P, _P, _N, c_int, _P, _PP)
_declare("roce_ireduce_scatter", c_int, _P, _P, _N, c_int, c_int, _P, _PP)
_declare("roce_igather", c_int, _P, _P, _N, c_int, c_int, _P, _PP)
_declare("roce_iscatter", c_int, _P, _P, _N, c_int, c_int, _P, _PP)
_declare("roce_ialltoall", c_int, _P, _P, _N, c_int, _P, _PP)
_declare("roce_iallgatherv", c_int, _P, _N, _P, _COUNTS, _COUNTS, c_int, _P, _PP)
_declare("roce_ireduce_scatterv", c_int, _P, _P, _COUNTS, c_int, c_int, _P, _PP)
_declare("roce_igatherv", c_int, _P, _N, _P, _COUNTS, _COUNTS, c_int, c_int, _P, _PP)
_declare("roce_iscatterv", c_int, _P, _COUNTS, _COUNTS, _P, _N, c_int, c_int, _P, _PP)
_declare("roce_ialltoallv", c_int, _P, _COUNTS, _COUNTS, _P, _COUNTS, _COUNTS, c_int, _P, _PP)
_declare("roce_ibarrier", c_int, _P, _PP)
_declare("roce_isend", c_int, _P, _N, c_int, c_int, _P, _PP)
_declare("roce_irecv", c_int, _P, _N, c_int, c_int, _P, _PP)
for _name in ("allreduce", "reduce", "broadcast", "allgather", "allgatherv", "reduce_scatter", "reduce_scatterv", "gather",
              "gatherv", "scatter", "scatterv", "alltoall", "alltoallv", "barrier", "send", "recv"):  # fmt: skip
    if hasattr(lib, f"roce_{_name}_stream"):
        _types = getattr(lib, f"roce_i{_name}").argtypes
        _declare(f"roce_{_name}_stream", c_int, *_types[:-1], _P, _types[-1])
if hasattr(lib, "roce_mem_path"):
    _declare("roce_mem_path", c_int, _P, _P, c_char_p, c_size_t)
_declare("roce_wait", c_int, _PP, c_int)
_declare("roce_test", c_int, _PP)
_declare("roce_wait_any", c_int, _PP, c_size_t, c_int, POINTER(c_size_t))
_declare("roce_group_start", c_int, _P)
_declare("roce_group_end", c_int, _P)

# The daemon-less look at a request is too short to hand the GIL over for.
_quick = ctypes.PyDLL(lib._name, handle=lib._handle)
roce_test = _quick.roce_test
roce_test.restype = c_int
roce_test.argtypes = (_PP,)

__all__ = ["lib", "byref", "roce_test", "ClientOptions", "CommOptions", "UniqueId", "library_path"]
