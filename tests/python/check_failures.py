# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What a program is told when something goes wrong: one rank of three or more. The last rank dies."""
import datetime
import os
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist

import rocecomm.torch
from ranks import check, main, raises

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
Failed = getattr(dist, "DistBackendError", RuntimeError)


def test_ranks_that_disagree():
    group = dist.new_group()
    error = raises(Failed, lambda: dist.all_reduce(torch.zeros(3 if RANK == 0 else 4), group=group), "allreduce")
    check("3" in str(error) and "4" in str(error), f"both lengths are due: {error}")
    raises(Failed, lambda: dist.all_reduce(torch.zeros(3), group=group))
    print(f"    disagree: {error}")
    value = torch.ones(2)
    dist.all_reduce(value)
    check(value[0] == SIZE, "another group is harmed")


def test_different_operations():
    group = dist.new_group()
    call = (lambda: dist.broadcast(torch.zeros(3), 0, group=group)) if RANK else (lambda: dist.barrier(group))
    error = raises(Failed, call)
    check("broadcast" in str(error) and "barrier" in str(error), f"both operations are due: {error}")


def test_a_late_rank():
    group = dist.new_group(timeout=datetime.timedelta(seconds=2))
    if RANK:
        begun = time.monotonic()
        error = raises(Failed, lambda: dist.all_reduce(torch.zeros(3), group=group), "rank 0")
        check(" timeout " in str(error) and time.monotonic() - begun < 8, f"{error}")
        print(f"    late: {error}")
    dist.barrier()


def test_a_missing_rank():
    """Not all come to make the group."""
    if RANK:
        error = raises(
            Exception,
            lambda: rocecomm.torch.session.join(
                dist.PrefixStore("missing", dist.distributed_c10d._get_default_store()), RANK - 1, SIZE, "missing", 2.0
            ),
            "rank",
        )
        print(f"    missing: {error}")
    dist.barrier()


def test_a_future_that_fails():
    group = dist.new_group()
    work = dist.all_reduce(torch.zeros(3 + RANK), group=group, async_op=True)
    future = work.get_future()
    raises(RuntimeError, future.wait)
    check(not work.is_success() and isinstance(work.exception(), Failed), "the work tells of no error")


def test_data_parallel_fails():
    """An error in a bucket comes out of backward(), as an exception."""
    group = dist.new_group()
    parallel = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4), process_group=group)
    for _ in range(3):
        parallel(torch.ones(1, 4)).sum().backward()
    if RANK == 0:
        raises(Failed, lambda: dist.all_reduce(torch.zeros(77), group=group))
    else:
        error = raises(RuntimeError, lambda: parallel(torch.ones(1, 4)).sum().backward())
        print(f"    backward: {error}")
    dist.barrier()


def test_interrupt():
    if RANK == 0:
        work = dist.all_reduce(torch.zeros(3), async_op=True)
        threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        begun = time.monotonic()
        raises(KeyboardInterrupt, work.wait)
        check(time.monotonic() - begun < 1, f"the wait was left after {time.monotonic() - begun:.2f} s")
        dist.send(torch.zeros(1), 1)
        work.wait()
    else:
        if RANK == 1:
            dist.recv(torch.zeros(1), 0)
        dist.all_reduce(torch.zeros(3))


def test_a_rank_dies():
    dist.barrier()
    if RANK == SIZE - 1:
        time.sleep(1)
        os.kill(os.getpid(), signal.SIGKILL)
    begun = time.monotonic()
    error = raises(Failed, lambda: dist.all_reduce(torch.zeros(3)), f"rank {SIZE - 1}")
    check(time.monotonic() - begun < 6, f"told after {time.monotonic() - begun:.1f} s")
    check("host" in str(error), f"the host is due: {error}")
    print(f"    died: {error}")
    check(rocecomm.torch.status()["error"], "status() tells of no error")


if __name__ == "__main__":
    sys.exit(main(globals(), lambda: dist.init_process_group("roce"), lambda: None))
