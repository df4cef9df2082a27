# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Requests: operations in flight.

A wait sleeps in the library in short turns, between which Python runs its signal handlers: Ctrl-C
leaves a wait within one of them. The arrays of an operation are held until it has ended, whether or
not anybody keeps the request.
"""
import time
from ctypes import byref, c_void_p
from typing import Any, Callable, Iterable, Optional, Sequence

from ._lib import ROCE_IN_PROGRESS, lib, roce_test
from .errors import RoceError, WaitTimeout, last_error

TURN_MS = 50
_wait: Callable[[Any, int], int] = lib.roce_wait


def wait_handle(handle: c_void_p, timeout: Optional[float]) -> int:
    """Waits for a bare request; ROCE_IN_PROGRESS after `timeout` seconds. Else the final status."""
    if timeout is None:
        while True:
            status = _wait(byref(handle), TURN_MS)
            if status != ROCE_IN_PROGRESS:
                return status
    end = time.monotonic() + timeout
    while True:
        left = (end - time.monotonic()) * 1000
        status = _wait(byref(handle), max(0, min(TURN_MS, int(left + 0.999))))
        if status != ROCE_IN_PROGRESS or left <= 0:
            return status


class Request:
    """An operation that was posted. Threads: wait in one at a time."""

    __slots__ = ("_handle", "_keep", "_error", "_what", "_open")

    def __init__(self, what: str, keep: Any, open_requests: Any) -> None:
        self._handle = c_void_p()
        self._keep = keep
        self._error: Optional[RoceError] = None
        self._what = what
        self._open = open_requests

    def _end(self, status: int) -> None:
        if status:
            self._error = last_error(status)
        self._keep = None
        self._open.discard(self)

    def wait(self, timeout: Optional[float] = None) -> None:
        """Waits until the operation has ended; raises its error.

        After `timeout` seconds it raises WaitTimeout and the operation goes on.
        """
        if self._handle:
            status = wait_handle(self._handle, timeout)
            if status == ROCE_IN_PROGRESS:
                raise WaitTimeout(7, f"{self._what} has not ended after {timeout} s; it goes on")
            self._end(status)
        if self._error is not None:
            raise self._error

    def test(self) -> bool:
        """Has the operation ended? Raises its error if it ended badly."""
        if self._handle:
            status = roce_test(byref(self._handle))
            if status == ROCE_IN_PROGRESS:
                return False
            self._end(status)
        if self._error is not None:
            raise self._error
        return True

    def __repr__(self) -> str:
        state = "in flight" if self._handle else "failed" if self._error else "ended"
        return f"<rocecomm.Request {self._what}: {state}>"


def wait_all(requests: Iterable[Request], timeout: Optional[float] = None) -> None:
    """Waits for all; raises the first error by place, after all have ended."""
    end = None if timeout is None else time.monotonic() + timeout
    first: Optional[BaseException] = None
    for request in requests:
        try:
            request.wait(None if end is None else max(0.0, end - time.monotonic()))
        except RoceError as error:
            first = first or error
    if first is not None:
        raise first


def wait_any(requests: Sequence[Request], timeout: Optional[float] = None) -> int:
    """Waits for one; its index. Requests that had ended before count at once. Raises its error."""
    end = None if timeout is None else time.monotonic() + timeout
    while True:
        for index, request in enumerate(requests):
            if request.test():
                return index
        if end is not None and time.monotonic() >= end:
            raise WaitTimeout(7, f"none of {len(requests)} operations has ended after {timeout} s; they go on")
        if not _sleep_any(requests):
            raise ValueError("wait_any: there is no request to wait for")


def _sleep_any(requests: Sequence[Request]) -> bool:
    """Sleeps a turn, or until one has ended; test() of it then says so."""
    for request in requests:
        if request._handle:
            # All are of one client as a rule, and any completion of it ends this sleep's turns.
            status = _wait(byref(request._handle), 1)
            if status != ROCE_IN_PROGRESS:
                request._end(status)
            return True
    return False
