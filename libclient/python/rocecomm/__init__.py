# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Collectives for distributed training, carried by the host's daemon.

    import numpy, rocecomm
    client = rocecomm.connect()
    comm = client.communicator_from_env()        # under torchrun, mpirun, srun
    x = client.empty(1024, "float32")            # shared with the daemon: never copied on this host
    x[:] = comm.rank
    comm.allreduce(x)

Arrays are NumPy arrays, PyTorch tensors, or whatever speaks DLPack, in host memory. For PyTorch's
own interface there is the backend "roce" of torch.distributed: see rocecomm.torch.
"""
from ._lib import library_path, lib as _library
from .client import Client, connect, empty, process_client
from .comm import Communicator
from .dtypes import DType, Op
from .errors import (
    AbortedError,
    InvalidError,
    MismatchError,
    NoDaemonError,
    PeerDiedError,
    QuotaError,
    RoceError,
    WaitTimeout,
)
from .request import Request, wait_all, wait_any

__version__ = "0.1.0"
library_version: str = _library.roce_version().decode()

__all__ = [
    "AbortedError",
    "Client",
    "Communicator",
    "DType",
    "InvalidError",
    "MismatchError",
    "NoDaemonError",
    "Op",
    "PeerDiedError",
    "QuotaError",
    "Request",
    "RoceError",
    "WaitTimeout",
    "connect",
    "empty",
    "library_path",
    "library_version",
    "process_client",
    "wait_all",
    "wait_any",
]
