# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""faults.py SCENARIO: a rank of a job in which something goes wrong; says "error TEXT" and how long
that took ("after SECONDS"). "ready" comes before the operation that fails."""
import datetime
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

LATE = 2  # seconds until a rank is late
LAST = int(os.environ["WORLD_SIZE"]) - 1


def train_for_ever():
    """Backward passes until one fails."""
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    dist.barrier()
    print("ready", flush=True)
    while True:
        model(torch.ones(4, 64)).sum().backward()


def reduce_for_ever():
    dist.barrier()
    print("ready", flush=True)
    while True:
        dist.all_reduce(torch.ones(1 << 18))


def late():
    """The last rank does not come."""
    group = dist.new_group(timeout=datetime.timedelta(seconds=LATE))
    dist.barrier()
    print("ready", flush=True)
    if dist.get_rank() != LAST:
        dist.all_reduce(torch.ones(8), group=group)
    time.sleep(3 * LATE)
    raise RuntimeError("came too late")


def disagree():
    """The last rank has another length."""
    dist.barrier()
    print("ready", flush=True)
    dist.all_reduce(torch.ones(8 if dist.get_rank() != LAST else 9))


def wait():
    """All but the last wait for it; Ctrl-C ends that."""
    dist.barrier()
    print("ready", flush=True)
    if dist.get_rank() == LAST:
        time.sleep(600)
    dist.all_reduce(torch.ones(8))


def leave():
    """The program ends while a callback of a future runs, longer than is waited for works that do not end."""
    def callback(_):
        time.sleep(2.0 + 0.05 * dist.get_rank())
        print("called", flush=True)

    dist.all_reduce(torch.ones(8), async_op=True).get_future().then(callback)


def start():
    """A host has no daemon."""
    dist.init_process_group("roce", timeout=datetime.timedelta(seconds=120))


def main():
    scenario = {"start": start, "train": train_for_ever, "reduce": reduce_for_ever, "late": late,
                "disagree": disagree, "wait": wait, "leave": leave}[sys.argv[1]]
    if scenario is not start:
        dist.init_process_group("roce")
    begin = time.monotonic()
    try:
        scenario()
    except BaseException as e:  # pylint: disable=broad-except
        text = str(e).replace("\n", " ")
        print(f"kind {type(e).__name__}\nerror {text}\nafter {time.monotonic() - begin:.2f}",
              flush=True)
        os._exit(3)


main()
