# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""restart.py MARKER: dies once on one rank in the middle; torchrun starts all again; they finish."""
import os
import signal
import sys

import torch
import torch.distributed as dist

STEPS = 20


def main():
    marker = sys.argv[1]  # an agent counts the rounds of its own ranks only
    dist.init_process_group("roce")
    rank, size = dist.get_rank(), dist.get_world_size()
    for step in range(STEPS):
        if rank == size - 1 and step == STEPS // 2 and not os.path.exists(marker):
            with open(marker, "w", encoding="ascii"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        value = torch.full((1000,), float(rank + step))
        dist.all_reduce(value)
        assert value[0] == sum(r + step for r in range(size)), value[0]
    # One write, since the ranks share a pipe.
    os.write(1, f"finished rank {rank}\n".encode())
    dist.barrier()
    dist.destroy_process_group()


main()
