# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Errors: one class, with subclasses for those that a program may want to handle.

The text is the library's or the daemon's own sentence: what was refused, the cause and the mend.
"""
from typing import Dict, NoReturn, Type

from ._lib import lib


class RoceError(RuntimeError):
    """A failed call. `status` is the number, `name` its short name, such as "peer died"."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.name = lib.roce_status_name(status).decode()


class InvalidError(RoceError, ValueError):
    """An argument is wrong, or a combination of type and reduction does not exist."""


class MismatchError(RoceError):
    """Ranks disagree; the sentence names both sides."""


class PeerDiedError(RoceError):
    """Another rank or its daemon died; the sentence names it, its host and the cause."""


class AbortedError(RoceError):
    """Somebody aborted or destroyed the communicator."""


class WaitTimeout(RoceError, TimeoutError):
    """A rank never arrived, bytes stopped, or a wait took longer than it was allowed to."""


class QuotaError(RoceError):
    """A limit of the tenant, or the system's memory."""


class NoDaemonError(RoceError, ConnectionError):
    """No daemon runs, or it went away; the sentence says how to start one."""


_CLASSES: Dict[int, Type[RoceError]] = {
    2: InvalidError,
    3: InvalidError,
    4: MismatchError,
    5: PeerDiedError,
    6: AbortedError,
    7: WaitTimeout,
    8: QuotaError,
    9: QuotaError,
    10: NoDaemonError,
    18: NoDaemonError,
}


def last_error(status: int) -> RoceError:
    """The exception of this thread's last failed call, which returned `status`."""
    sentence = lib.roce_last_error().decode(errors="replace")
    return _CLASSES.get(status, RoceError)(status, sentence or lib.roce_strerror(status).decode())


def fail(status: int) -> NoReturn:
    """Raises last_error(status)."""
    raise last_error(status)


def check(status: int) -> None:
    """Raises unless `status` is 0."""
    if status:
        raise last_error(status)
