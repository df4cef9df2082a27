# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""calls.py N: all_reduce of 8 bytes, N times, for strace to count. Nothing at the interpreter's end."""
import os
import sys

import torch
import torch.distributed as dist

import rocecomm.torch  # noqa: F401

dist.init_process_group("roce")
value = torch.zeros(2)
for _ in range(int(sys.argv[1])):
    dist.all_reduce(value)
dist.barrier()
os._exit(0)
