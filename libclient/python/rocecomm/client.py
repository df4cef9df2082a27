# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Client: a connection to the daemon of this host, and memory that is shared with it."""
import contextlib
import ctypes
import os
import threading
import weakref
from ctypes import byref, c_int, c_void_p, sizeof
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Union

from . import _lib
from ._lib import lib
from .comm import Communicator, comm_options
from .errors import check, last_error

_HUGE = 1
_TEXT = 1024


def _bundled_daemon() -> None:
    """A wheel may bring the daemon; the library starts it when no other runs."""
    if "ROCECOMMD" not in os.environ:
        path = os.path.join(os.path.dirname(__file__), "rocecommd")
        if os.access(path, os.X_OK):
            os.environ["ROCECOMMD"] = path


class _Block:
    """One allocation: freed when the last array that views it has gone."""

    def __init__(self, client: "Client", ptr: int, size: int) -> None:
        self.ptr, self.size = ptr, size
        self._finalizer = weakref.finalize(self, _free_block, client._state, ptr)
        # Keep arrays usable until the interpreter ends, whatever is collected first.
        self._finalizer.atexit = False


class _State:
    """What outlives the Client object as long as blocks of it exist."""

    __slots__ = ("handle", "pid")

    def __init__(self, handle: c_void_p) -> None:
        self.handle = handle
        self.pid = os.getpid()


def _free_block(state: _State, ptr: int) -> None:
    if state.handle and state.pid == os.getpid():
        lib.roce_mem_free(state.handle, ptr)


_WATCH_S = 0.5


def _interruptible(call: Callable[[], int], watch: Optional[Callable[[], None]] = None) -> None:
    """Makes a call that waits for other ranks on a thread, so that Ctrl-C leaves it at once.

    So does an exception from `watch`, which is called now and then.
    """
    outcome: List[Optional[BaseException]] = []

    def run() -> None:
        status = call()
        outcome.append(last_error(status) if status else None)

    thread = threading.Thread(target=run, name="rocecomm-join", daemon=True)
    thread.start()
    while watch is not None and thread.is_alive():
        thread.join(_WATCH_S)
        if thread.is_alive():
            watch()
    thread.join()
    if outcome[0] is not None:
        raise outcome[0]


class Client:
    """A connection to the daemon. Threads: any. In a forked child every call is refused."""

    def __init__(
        self,
        path: Optional[str] = None,
        name: Optional[str] = None,
        autostart: bool = True,
        timeout: float = 10.0,
    ) -> None:
        _bundled_daemon()
        handle = c_void_p()
        options = _lib.ClientOptions(
            sizeof(_lib.ClientOptions),
            name.encode()[:63] if name else None,
            int(autostart),
            max(1, int(timeout * 1000)),
        )
        check(lib.roce_connect(path.encode() if path else None, byref(options), byref(handle)))
        self._state = _State(handle)

    @property
    def handle(self) -> c_void_p:
        """struct roce_client *"""
        return self._state.handle

    def close(self) -> None:
        """Disconnects; communicators, requests and shared memory of this client end with it."""
        handle, self._state.handle = self._state.handle, c_void_p()
        if handle:
            lib.roce_disconnect(handle)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def unique_id(self) -> bytes:
        """The id of a new communicator, whose root is this host's daemon. Hand it to all ranks."""
        ident = _lib.UniqueId()
        check(lib.roce_get_unique_id(self.handle, byref(ident)))
        return bytes(ident)

    def communicator(
        self,
        unique_id: bytes,
        rank: int,
        size: int,
        name: Optional[str] = None,
        join_timeout: Optional[float] = None,
        arrival_timeout: Optional[float] = None,
        transfer_timeout: Optional[float] = None,
        watch: Optional[Callable[[], None]] = None,
    ) -> Communicator:
        """Joins as `rank` of `size`; returns when all have joined. Time-outs are in seconds.

        `watch` is called now and then meanwhile; an exception from it leaves the wait.
        """
        if len(unique_id) != _lib.UNIQUE_ID_BYTES:
            raise ValueError(f"a unique id has {_lib.UNIQUE_ID_BYTES} bytes, this one {len(unique_id)}")
        ident = _lib.UniqueId.from_buffer_copy(unique_id)
        options = comm_options(name, join_timeout, arrival_timeout, transfer_timeout)
        handle = c_void_p()
        client = self.handle
        _interruptible(
            lambda: int(lib.roce_comm_init(client, byref(ident), rank, size, byref(options), byref(handle))), watch
        )
        return Communicator(self, handle)

    def communicator_from_env(
        self,
        name: Optional[str] = None,
        join_timeout: Optional[float] = None,
        arrival_timeout: Optional[float] = None,
        transfer_timeout: Optional[float] = None,
    ) -> Communicator:
        """Joins with rank, size and meeting place from torchrun, Open MPI, PMIx or Slurm."""
        options = comm_options(name, join_timeout, arrival_timeout, transfer_timeout)
        handle = c_void_p()
        client = self.handle
        _interruptible(lambda: int(lib.roce_comm_init_env(client, byref(options), byref(handle))))
        return Communicator(self, handle)

    def alloc(self, nbytes: int, huge: bool = False) -> Any:
        """`nbytes` of zeroed memory that the daemon maps too, as a ctypes array."""
        ptr = c_void_p()
        check(lib.roce_mem_alloc(self.handle, nbytes, _HUGE if huge else 0, byref(ptr)))
        assert ptr.value is not None
        memory: Any = (ctypes.c_uint8 * nbytes).from_address(ptr.value)
        memory._rocecomm_block = _Block(self, ptr.value, nbytes)
        return memory

    def empty(self, shape: Union[int, Sequence[int]], dtype: Any = "float32", huge: bool = False) -> Any:
        """A NumPy array in memory that the daemon maps too: operations on it copy nothing here."""
        import numpy

        kind = numpy.dtype(dtype)
        dims = (shape,) if isinstance(shape, int) else tuple(shape)
        count = 1
        for size in dims:
            count *= size
        memory = self.alloc(max(1, count * kind.itemsize), huge)
        return numpy.frombuffer(memory, dtype=kind, count=count).reshape(dims)

    @staticmethod
    def address(memory: Any) -> int:
        """Where memory from alloc() lies."""
        return ctypes.addressof(memory)

    def is_shared(self, ptr: int, nbytes: int) -> bool:
        """Does [ptr, ptr + nbytes) lie in memory that the daemon maps?"""
        buffer = c_void_p()
        status = lib.roce_mem_lookup(self.handle, ptr, nbytes, byref(buffer))
        return status == 0 and bool(lib.roce_buffer_is_shared(buffer))

    def memory_path(self, ptr: int) -> str:
        """How a GPU's memory at `ptr` reaches the daemon, and why that way."""
        text = ctypes.create_string_buffer(_TEXT)
        check(lib.roce_mem_path(self.handle, ptr, text, _TEXT))
        return text.value.decode(errors="replace")

    def event_fd(self) -> int:
        """A descriptor for poll(): readable when an operation may have ended. Not to be closed."""
        fd = c_int()
        check(lib.roce_event_fd(self.handle, byref(fd)))
        return fd.value

    def event_clear(self) -> None:
        """Resets the descriptor; test requests after it, not before."""
        check(lib.roce_event_clear(self.handle))

    @contextlib.contextmanager
    def group(self) -> Iterator[None]:
        """Operations that this thread posts inside are posted as one batch at the end."""
        check(lib.roce_group_start(self.handle))
        try:
            yield
        except BaseException:
            lib.roce_group_end(self.handle)
            raise
        check(lib.roce_group_end(self.handle))


_lock = threading.Lock()
_process: Dict[int, Client] = {}  # by process: a forked child makes its own


def process_client(name: Optional[str] = None) -> Client:
    """The process's own connection, made by the first call. The backend "roce" uses it, too."""
    with _lock:
        found = _process.get(os.getpid())
        if found is None or not found.handle:
            found = _process[os.getpid()] = Client(name=name)
        return found


def empty(shape: Union[int, Sequence[int]], dtype: Any = "float32", huge: bool = False) -> Any:
    """Client.empty() of process_client()."""
    return process_client().empty(shape, dtype, huge)


def _in_child() -> None:
    """Another thread may have held the lock when the parent forked."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_in_child)


def connect(
    path: Optional[str] = None,
    name: Optional[str] = None,
    autostart: bool = True,
    timeout: float = 10.0,
) -> Client:
    """Connects to the daemon of this host; without one a private daemon is started on demand.

    `path`: the socket; None: $ROCECOMM_SOCKET, the system's, the user's. `name`: shown by rocectl.
    """
    return Client(path, name, autostart, timeout)
