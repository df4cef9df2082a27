# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The backend "roce" on memory of a GPU, which all ranks may share: one rank. Started by `cuda`."""
import os
import sys
import time

import torch
import torch.distributed as dist

import rocecomm.torch
from check_group import COMPLEX, FLOATS, INTEGERS, close, equal, inputs, layouts, pairs, reduced
from ranks import check, main, raises

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
DEVICE = torch.device("cuda", RANK % max(1, torch.cuda.device_count()))
ReduceOp = dist.ReduceOp


def on(tensor):
    return tensor.to(DEVICE)


def delay():
    """Keeps the current stream busy, so that whoever does not wait for it sees old values."""
    torch.cuda._sleep(20_000_000)


def test_all_reduce_types():
    for dtype, name, op in pairs():
        every = inputs([1000], dtype)
        mine = on(every[RANK])
        delay() if name == "SUM" else None
        dist.all_reduce(mine, op)
        close(mine.cpu(), reduced(every, op), f"all_reduce {dtype} {name}")


def test_layouts():
    for dtype in (torch.float32, torch.complex64, torch.bool):
        every = inputs([6, 4], dtype)
        for name, mine in layouts(on(every[RANK])):
            if name == "conjugated":
                continue
            delay()
            dist.all_reduce(mine)
            equal(mine.cpu(), reduced(every, ReduceOp.SUM), f"all_reduce {name}")
    raises(ValueError, lambda: dist.all_reduce(on(torch.zeros(1)).expand(3)), "several elements in one place")


def test_order_of_streams():
    """The operation waits for what fills its input, and what uses its result waits for it."""
    side = torch.cuda.Stream(DEVICE)
    for turn in range(10):
        value = torch.zeros(1 << 20, device=DEVICE)
        delay()
        value += RANK + turn
        work = dist.all_reduce(value, async_op=True)
        with torch.cuda.stream(side):
            work.wait()
            copy = value * 2
        side.synchronize()
        check(bool((copy == 2 * (sum(range(SIZE)) + SIZE * turn)).all()), f"turn {turn}")


def test_cpu_does_not_wait():
    value = torch.ones(1 << 20, device=DEVICE)
    dist.all_reduce(value)
    torch.cuda.synchronize()
    torch.cuda._sleep(500_000_000)
    begun = time.monotonic()
    dist.all_reduce(value)
    took = time.monotonic() - begun
    torch.cuda.synchronize()
    check(took < 0.1 and time.monotonic() - begun > 0.1, f"the call took {took:.3f} s")


def test_all_operations():
    for dtype in INTEGERS + FLOATS + COMPLEX + [torch.bool]:
        every = inputs([2, 3], dtype)
        mine = on(every[RANK])
        for root in range(SIZE):
            value = mine.clone()
            dist.broadcast(value, root)
            equal(value.cpu(), every[root], f"broadcast {dtype}")
        got = [torch.zeros_like(mine) for _ in range(SIZE)]
        dist.all_gather(got, mine)
        for rank in range(SIZE):
            equal(got[rank].cpu(), every[rank], f"all_gather {dtype}")
        whole = torch.zeros(2 * SIZE, 3, dtype=dtype, device=DEVICE)
        dist.all_gather_into_tensor(whole, mine)
        equal(whole.cpu(), torch.cat(every), f"all_gather_into_tensor {dtype}")
        got = [torch.zeros_like(mine) for _ in range(SIZE)] if RANK == 0 else None
        dist.gather(mine, got, 0)
        if RANK == 0:
            equal(got[SIZE - 1].cpu(), every[SIZE - 1], f"gather {dtype}")
        value = torch.zeros_like(mine)
        dist.scatter(value, [on(e) for e in every] if RANK == 0 else None, 0)
        equal(value.cpu(), every[RANK], f"scatter {dtype}")
        value = torch.zeros_like(mine)
        dist.reduce_scatter(value, [mine.clone() for _ in range(SIZE)])
        equal(value.cpu(), reduced(every, ReduceOp.SUM), f"reduce_scatter {dtype}")
        value = mine.clone()
        dist.reduce(value, SIZE - 1)
        if RANK == SIZE - 1:
            equal(value.cpu(), reduced(every, ReduceOp.SUM), f"reduce {dtype}")
    splits = [source + RANK for source in range(SIZE)]
    got = torch.zeros(sum(splits), device=DEVICE)
    given = torch.cat([torch.full((target + RANK,), 10.0 * RANK + target) for target in range(SIZE)])
    dist.all_to_all_single(got, on(given), splits, splits)
    want = torch.cat([torch.full((source + RANK,), 10.0 * source + RANK) for source in range(SIZE)])
    equal(got.cpu(), want, "all_to_all_single")
    many = [torch.full((100,), float(n + RANK), device=DEVICE) for n in range(50)]
    dist.all_reduce_coalesced(many)
    for n in range(50):
        check(bool((many[n] == SIZE * n + sum(range(SIZE))).all()), "all_reduce_coalesced")
    dist.barrier()


def test_point_to_point():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (1, 1000, 3_000_000):
        got = torch.zeros(count, device=DEVICE)
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, torch.full((count,), float(RANK), device=DEVICE), after),
                dist.P2POp(dist.irecv, got, before),
            ]
        )
        for work in works:
            work.wait()
        check(bool((got == before).all()), f"ring {count}")


def test_futures():
    value = torch.ones(1000, device=DEVICE)
    delay()
    future = dist.all_reduce(value, async_op=True).get_future().then(lambda f: f.value()[0] * 2)
    check(bool((future.wait() == 2 * SIZE).all()), "then")


def test_objects():
    got = [None] * SIZE
    dist.all_gather_object(got, {"rank": RANK})
    check([g["rank"] for g in got] == list(range(SIZE)), "objects")


def test_data_parallel():
    torch.manual_seed(3)
    make = lambda: torch.nn.Sequential(torch.nn.Linear(64, 2000), torch.nn.ReLU(), torch.nn.Linear(2000, 8))  # noqa: E731
    plain = make()
    reference = make()
    reference.load_state_dict(plain.state_dict())
    for view in (False, True):
        parallel = torch.nn.parallel.DistributedDataParallel(on(plain), gradient_as_bucket_view=view)
        for step in range(4):
            every = inputs([8, 64], torch.float32, step)
            parallel(on(every[RANK])).sum().backward()
            for other in every:
                (reference(other).sum() / SIZE).backward()
            for mine, want in zip(plain.parameters(), reference.parameters()):
                check(torch.allclose(mine.grad.cpu(), want.grad, rtol=1e-3, atol=1e-2), f"gradients, step {step}")
                mine.grad, want.grad = None, None


def test_sharded():
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(4)
    sharded = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64)).to(DEVICE)
    reference = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Tanh(), torch.nn.Linear(128, 64))
    reference.load_state_dict({k: v.cpu() for k, v in sharded.state_dict().items()})
    mesh = init_device_mesh("cuda", (SIZE,))
    fully_shard(sharded, mesh=mesh)
    first = torch.optim.SGD(sharded.parameters(), 0.05)
    second = torch.optim.SGD(reference.parameters(), 0.05)
    for step in range(3):
        every = inputs([8, 64], torch.float32, step)
        sharded(on(every[RANK])).square().mean().backward()
        for other in every:
            (reference(other).square().mean() / SIZE).backward()
        first.step()
        second.step()
        first.zero_grad()
        second.zero_grad()
    for mine, want in zip(sharded.parameters(), reference.parameters()):
        check(torch.allclose(mine.full_tensor().cpu(), want, rtol=1e-3, atol=1e-4), "parameters differ")


def test_path():
    value = torch.zeros(1000, device=DEVICE)
    print(f"    {rocecomm.torch.memory_path(value)}")


def test_an_error():
    group = dist.new_group()
    value = torch.zeros(3 + RANK, device=DEVICE)
    work = None
    try:
        work = dist.all_reduce(value, group=group, async_op=True)
        torch.cuda.synchronize()
        work.wait()
    except RuntimeError as error:
        check("disagree" in str(error), f"{error}")
    else:
        raise AssertionError("nothing was raised")
    raises(RuntimeError, lambda: dist.all_reduce(value, group=group), "disagree")


def begin():
    torch.cuda.set_device(DEVICE)
    dist.init_process_group("roce")


if __name__ == "__main__":
    sys.exit(main(globals(), begin, dist.destroy_process_group))
