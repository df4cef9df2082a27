# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Values of every operation of the backend "roce", one rank of them. RANK, WORLD_SIZE and so on are set.

PyTorch's own tests pass in part when an allreduce does nothing, so results are compared here with what
each rank computes for itself from the inputs of all, which it knows.
"""
import datetime
import os
import sys
import threading
import time

import torch
import torch.distributed as dist

import rocecomm.torch
from ranks import check, main, raises

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
RELEASE = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
INTEGERS = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]
FLOATS = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
COMPLEX = [torch.complex64, torch.complex128]
ReduceOp = dist.ReduceOp


def of_rank(rank, shape, dtype, seed=0):
    """The input of one rank: small whole numbers, so that every sum is exact."""
    generator = torch.Generator().manual_seed(1000 * seed + rank)
    whole = torch.randint(0, 4, tuple(shape), generator=generator)
    if dtype.is_complex:
        return torch.complex(whole.double(), whole.flip(0).double()).to(dtype)
    if dtype is torch.bool:
        return whole > 1
    return whole.to(dtype)


def inputs(shape, dtype, seed=0):
    return [of_rank(rank, shape, dtype, seed) for rank in range(SIZE)]


def equal(got, want, what):
    check(got.dtype == want.dtype and got.shape == want.shape and torch.equal(got, want), f"{what}: {got} is not {want}")


def reduced(tensors, op):
    """The reference; bool by its meaning."""
    stack = torch.stack(tensors)
    if stack.dtype is torch.bool:
        ones = stack.sum(0)
        if op in (ReduceOp.SUM, ReduceOp.MAX, ReduceOp.BOR):
            return ones > 0
        if op in (ReduceOp.PRODUCT, ReduceOp.MIN, ReduceOp.BAND):
            return ones == SIZE
        return ones % 2 == 1
    total = stack[0].clone()
    for other in stack[1:]:
        if op in (ReduceOp.SUM, ReduceOp.AVG):
            total = total + other
        elif op == ReduceOp.PRODUCT:
            total = total * other
        elif op == ReduceOp.MIN:
            total = torch.minimum(total, other)
        elif op == ReduceOp.MAX:
            total = torch.maximum(total, other)
        elif op == ReduceOp.BAND:
            total = total & other
        elif op == ReduceOp.BOR:
            total = total | other
        else:
            total = total ^ other
    if op == ReduceOp.AVG:
        total = total / SIZE if total.is_floating_point() or total.is_complex() else total // SIZE
    return total


def pairs():
    """Every dtype with every reduction that exists for it."""
    for dtype in INTEGERS + FLOATS + COMPLEX + [torch.bool]:
        names = ["SUM", "AVG"]
        if not dtype.is_complex:
            names += ["PRODUCT", "MIN", "MAX"]
        if dtype in INTEGERS or dtype is torch.bool:
            names += ["BAND", "BOR", "BXOR"]
        if dtype is torch.bool:
            names.remove("AVG")
        for name in names:
            yield dtype, name, getattr(ReduceOp, name)


def close(got, want, what):
    """As equal(), but for quotients of half precision."""
    if got.dtype in (torch.float16, torch.bfloat16):
        check(torch.allclose(got.float(), want.float(), rtol=1e-2), f"{what}: {got} is not {want}")
    elif got.is_floating_point() or got.is_complex():
        check(torch.allclose(got, want), f"{what}: {got} is not {want}")
    else:
        equal(got, want, what)


def test_all_reduce_types():
    for dtype, name, op in pairs():
        for count in (1, 7, 1000):
            every = inputs([count], dtype)
            mine = every[RANK].clone()
            dist.all_reduce(mine, op)
            close(mine, reduced(every, op), f"all_reduce {dtype} {name} {count}")


def test_refused_reductions():
    for dtype, op in ((torch.float32, ReduceOp.BAND), (torch.bool, ReduceOp.AVG), (torch.complex64, ReduceOp.MAX)):
        raises(Exception, lambda d=dtype, o=op: dist.all_reduce(of_rank(RANK, [4], d), o))
    if hasattr(torch, "float8_e5m2"):
        raises(TypeError, lambda: dist.all_reduce(torch.zeros(4).to(torch.float8_e5m2)), "moved, not reduced")
    test_all_reduce_layouts()


def test_premul_sum():
    make = getattr(dist, "_make_nccl_premul_sum", None)
    if make is None or RELEASE < (2, 0):
        return
    for dtype in (torch.float32, torch.float64, torch.int32, torch.complex64):
        factor = 3.0 if dtype is torch.int32 else 0.5
        for given in (factor, torch.tensor(factor)):
            if dtype is torch.int32 and isinstance(given, torch.Tensor):
                continue
            every = inputs([9], dtype)
            mine = every[RANK].clone()
            dist.all_reduce(mine, make(given))
            close(mine, reduced([(t * factor).to(dtype) for t in every], ReduceOp.SUM), f"premul {dtype}")


def layouts(tensor):
    """The same values in other places: transposed, strided, with an offset, negated and conjugated lazily."""
    yield "transposed", tensor.t().contiguous().t()
    wide = torch.zeros(tensor.shape[0], 2 * tensor.shape[1], dtype=tensor.dtype)
    wide[:, ::2] = tensor
    yield "every second", wide[:, ::2]
    long = torch.zeros(tensor.numel() + 5, dtype=tensor.dtype)
    long[3:-2] = tensor.reshape(-1)
    yield "offset", long[3:-2].view(tensor.shape)
    if tensor.is_complex():
        yield "conjugated", tensor.conj().resolve_conj().conj()


def test_all_reduce_layouts():
    for dtype in (torch.float32, torch.complex64, torch.bool):
        every = inputs([6, 4], dtype)
        for name, mine in layouts(every[RANK].clone()):
            # The group itself: torch's own function refuses conjugated tensors.
            dist.distributed_c10d._get_default_group().allreduce([mine]).wait()
            equal(mine.resolve_conj(), reduced(every, ReduceOp.SUM), f"all_reduce {name}")


def test_neighbours_untouched():
    store = torch.full((40,), 7.0)
    dist.all_reduce(store[10:20])
    check(torch.all(store[:10] == 7) and torch.all(store[20:] == 7), "bytes beside the slice were written")
    equal(store[10:20], torch.full((10,), 7.0 * SIZE), "slice")


def test_expanded_refused():
    wide = torch.full((1, 3), float(RANK)).expand(4, 3)
    raises(ValueError, lambda: dist.all_reduce(wide), "several elements in one place")
    raises(ValueError, lambda: dist.all_gather_into_tensor(torch.zeros(1).expand(3 * SIZE), torch.zeros(3)))
    raises(ValueError, lambda: dist.recv(torch.zeros(1).expand(3), (RANK + 1) % SIZE), "several elements")
    gathered = torch.zeros(SIZE * 12)
    dist.all_gather_into_tensor(gathered, wide.reshape(-1) if RELEASE < (2, 0) else wide)
    equal(gathered, torch.arange(float(SIZE)).repeat_interleave(12), "an expanded input")


def test_empty_tensors():
    none = torch.zeros(0, 3)
    dist.all_reduce(none)
    dist.broadcast(none, 0)
    dist.reduce(none, 0)
    dist.all_gather([torch.zeros(0, 3) for _ in range(SIZE)], none)
    dist.all_gather_into_tensor(torch.zeros(0, 3), none)
    dist.reduce_scatter(torch.zeros(0), [torch.zeros(0) for _ in range(SIZE)])
    dist.all_to_all_single(torch.zeros(0, 3), none)
    dist.gather(none, [torch.zeros(0, 3) for _ in range(SIZE)] if RANK == 0 else None)
    if RANK == 0:
        dist.send(none, 1)
    elif RANK == 1:
        dist.recv(none, 0)


def test_broadcast_and_reduce():
    for root in range(SIZE):
        for dtype in INTEGERS + FLOATS + COMPLEX + [torch.bool]:
            every = inputs([3, 5], dtype, root)
            mine = every[RANK].clone()
            dist.broadcast(mine, root)
            equal(mine, every[root], f"broadcast {dtype}")
        mine = every[RANK].t().contiguous().t()
        dist.broadcast(mine, root)
        equal(mine, every[root], "broadcast, transposed")
        every = inputs([11], torch.float32, root)
        mine = every[RANK].clone()
        dist.reduce(mine, root)
        if RANK == root:
            equal(mine, reduced(every, ReduceOp.SUM), "reduce")
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "uint16", "uint32", "uint64"):
        if hasattr(torch, name):
            mine = torch.full((5,), RANK).to(getattr(torch, name))
            dist.broadcast(mine, SIZE - 1)
            check(torch.equal(mine.view(torch.uint8), torch.full((5,), SIZE - 1).to(mine.dtype).view(torch.uint8)), name)


def test_all_gather():
    for dtype in (torch.float32, torch.bool, torch.complex64, torch.int16, torch.bfloat16):
        every = inputs([2, 3], dtype)
        got = [torch.zeros(2, 3, dtype=dtype) for _ in range(SIZE)]
        dist.all_gather(got, every[RANK])
        for rank in range(SIZE):
            equal(got[rank], every[rank], f"all_gather {dtype}")
        side_by_side = list(torch.zeros(2 * SIZE, 3, dtype=dtype).chunk(SIZE))
        dist.all_gather(side_by_side, every[RANK].t().contiguous().t())
        for rank in range(SIZE):
            equal(side_by_side[rank], every[rank], "all_gather into chunks")
        whole = torch.zeros(2 * SIZE, 3, dtype=dtype)
        dist.all_gather_into_tensor(whole, every[RANK])
        equal(whole, torch.cat(every), "all_gather_into_tensor")
    uneven = [torch.zeros(rank + 1) for rank in range(SIZE)]
    dist.all_gather(uneven, torch.full((RANK + 1,), float(RANK)))
    for rank in range(SIZE):
        equal(uneven[rank], torch.full((rank + 1,), float(rank)), "uneven all_gather")


def test_gather_and_scatter():
    for root in range(SIZE):
        every = inputs([4], torch.int32, root)
        got = [torch.zeros(4, dtype=torch.int32) for _ in range(SIZE)] if RANK == root else None
        dist.gather(every[RANK], got, root)
        if RANK == root:
            for rank in range(SIZE):
                equal(got[rank], every[rank], "gather")
        mine = torch.zeros(2, 4, dtype=torch.int32).t()[:, 0]
        dist.scatter(mine, every if RANK == root else None, root)
        equal(mine, every[RANK], "scatter")


def test_reduce_scatter():
    for dtype in (torch.float32, torch.complex64, torch.bool, torch.int64):
        every = [inputs([3], dtype, 10 + block) for block in range(SIZE)]
        mine = torch.zeros(3, dtype=dtype)
        dist.reduce_scatter(mine, [every[block][RANK] for block in range(SIZE)])
        equal(mine, reduced(every[RANK], ReduceOp.SUM), f"reduce_scatter {dtype}")
        mine.zero_()
        dist.reduce_scatter_tensor(mine, torch.cat([every[block][RANK] for block in range(SIZE)]))
        equal(mine, reduced(every[RANK], ReduceOp.SUM), f"reduce_scatter_tensor {dtype}")
    every = [inputs([block + 1], torch.float32, 20 + block) for block in range(SIZE)]
    mine = torch.zeros(RANK + 1)
    dist.reduce_scatter(mine, [every[block][RANK] for block in range(SIZE)])
    equal(mine, reduced(every[RANK], ReduceOp.SUM), "uneven reduce_scatter")


def test_all_to_all():
    block = lambda source, target, n: torch.full((n,), 10.0 * source + target)  # noqa: E731
    got = [torch.zeros(2) for _ in range(SIZE)]
    dist.all_to_all(got, [block(RANK, target, 2) for target in range(SIZE)])
    for source in range(SIZE):
        equal(got[source], block(source, RANK, 2), "all_to_all")
    got = [torch.zeros(source + RANK) for source in range(SIZE)]
    dist.all_to_all(got, [block(RANK, target, target + RANK) for target in range(SIZE)])
    for source in range(SIZE):
        equal(got[source], block(source, RANK, source + RANK), "uneven all_to_all")
    whole = torch.zeros(2 * SIZE)
    dist.all_to_all_single(whole, torch.cat([block(RANK, target, 2) for target in range(SIZE)]))
    equal(whole, torch.cat([block(source, RANK, 2) for source in range(SIZE)]), "all_to_all_single")
    splits = [source + RANK for source in range(SIZE)]
    whole = torch.zeros(sum(splits), 2, dtype=torch.complex64)
    given = torch.cat([block(RANK, target, target + RANK) for target in range(SIZE)]).to(torch.complex64)
    dist.all_to_all_single(whole, torch.stack([given, given], 1), splits, splits)
    want = torch.cat([block(source, RANK, source + RANK) for source in range(SIZE)]).to(torch.complex64)
    equal(whole, torch.stack([want, want], 1), "uneven all_to_all_single")
    raises(Exception, lambda: dist.all_to_all_single(torch.zeros(SIZE + 1), torch.zeros(SIZE + 1)), "divide")


def test_coalesced():
    every = [inputs([n + 1], torch.float32, n) for n in range(5)]
    mine = [e[RANK].clone() for e in every]
    work = dist.all_reduce_coalesced(mine, async_op=True)
    work.wait()
    for n in range(5):
        equal(mine[n], reduced(every[n], ReduceOp.SUM), "all_reduce_coalesced")
    lists = [[torch.zeros(n + 1) for n in range(3)] for _ in range(SIZE)]
    dist.all_gather_coalesced(lists, [every[n][RANK] for n in range(3)])
    for rank in range(SIZE):
        for n in range(3):
            equal(lists[rank][n], every[n][rank], "all_gather_coalesced")
    many = [torch.full((3,), float(RANK + n)) for n in range(600)]
    dist.all_reduce_coalesced(many)
    for n in range(600):
        equal(many[n], torch.full((3,), float(sum(range(SIZE)) + SIZE * n)), "600 coalesced")
    manager = getattr(dist.distributed_c10d, "_coalescing_manager", None)
    if manager is not None and RELEASE >= (2, 1):
        mine = [e[RANK].clone() for e in every]
        with manager():
            for tensor in mine:
                dist.all_reduce(tensor)
        for n in range(5):
            equal(mine[n], reduced(every[n], ReduceOp.SUM), "coalescing manager")
        mine = [e[RANK].clone() for e in every]
        with manager(device=torch.device("cpu"), async_ops=True) as batch:
            dist.broadcast(mine[0], 1)
            dist.broadcast(mine[1], 0)
        batch.wait()
        equal(mine[0], every[0][1], "batch of broadcasts")
        equal(mine[1], every[1][0], "batch of broadcasts")
        halves = [torch.zeros(SIZE * (n + 1)) for n in range(3)]
        sums = [torch.zeros(n + 1) for n in range(3)]
        with manager():
            for n in range(3):
                dist.all_gather_into_tensor(halves[n], every[n][RANK])
        with manager(device=torch.device("cpu"), async_ops=True) as batch:
            for n in range(3):
                dist.reduce_scatter_tensor(sums[n], halves[n])
        batch.wait()
        for n in range(3):
            equal(halves[n], torch.cat(list(every[n])), "batch of all_gather_into_tensor")
            equal(sums[n], SIZE * every[n][RANK], "batch of reduce_scatter_tensor")


def test_point_to_point():
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    for count in (0, 1, 56, 57, 5000, 300000):
        for dtype in (torch.float32, torch.bool, torch.complex64):
            got = torch.zeros(count, dtype=dtype)
            pending = dist.irecv(got, before)
            dist.isend(of_rank(RANK, [count], dtype), after).wait()
            pending.wait()
            equal(got, of_rank(before, [count], dtype), f"ring {count}")
    got = [torch.zeros(100 + n) for n in range(8)]
    ops = [dist.P2POp(dist.irecv, t, before) for t in got]
    ops += [dist.P2POp(dist.isend, torch.full((100 + n,), float(RANK + n)), after) for n in range(8)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    for n in range(8):
        equal(got[n], torch.full((100 + n,), float(before + n)), "batch_isend_irecv")
    got = torch.zeros(3, 4).t()
    pending = dist.irecv(got, before)
    dist.isend(torch.arange(12.0).view(3, 4).t(), after).wait()
    pending.wait()
    equal(got, torch.arange(12.0).view(3, 4).t(), "strided on both sides")


def test_tags():
    group = dist.new_group()
    after, before = (RANK + 1) % SIZE, (RANK - 1) % SIZE
    sizes = [10, 1000, 20, 2000]
    sends = [dist.isend(torch.full((n,), float(n)), after, group=group, tag=n) for n in sizes]
    for n in reversed(sizes):
        got = torch.zeros(n)
        dist.recv(got, before, group=group, tag=n)
        equal(got, torch.full((n,), float(n)), "out of order")
    for work in sends:
        work.wait()


def test_any_source():
    group = dist.new_group()
    for count in (5, 5000):
        if RANK == 0:
            seen = set()
            for _ in range(SIZE - 1):
                got = torch.zeros(count)
                source = dist.recv(got, group=group)
                equal(got, torch.full((count,), float(source)), "from any")
                seen.add(source)
            check(seen == set(range(1, SIZE)), f"sources {seen}")
        else:
            dist.send(torch.full((count,), float(RANK)), 0, group=group)
        dist.barrier(group)  # a rank that is ahead would be met twice
    if RANK == 0:
        for source in range(1, SIZE):
            got = torch.zeros(source)
            dist.recv(got, source, group=group)
            equal(got, torch.full((source,), float(source)), "from a known one, after")
    else:
        dist.send(torch.full((RANK,), float(RANK)), 0, group=group)


def test_wrong_length():
    group = dist.new_group()
    if RANK == 0:
        dist.isend(torch.zeros(3), 1, group=group).wait()
    elif RANK == 1:
        raises(Exception, lambda: dist.recv(torch.zeros(4), 0, group=group), "rank 0 sent 12 bytes")


def test_futures():
    mine = torch.full((5,), 1.0)
    work = dist.all_reduce(mine, async_op=True)
    chained = work.get_future().then(lambda f: f.value()[0] * 2).then(lambda f: f.value() + 1)
    equal(chained.wait(), torch.full((5,), 2.0 * SIZE + 1), "a chain")
    order = []
    pending = []
    for n in range(20):
        future = dist.all_reduce(torch.full((100,), float(n)), async_op=True).get_future()
        pending.append(future.then(lambda f, n=n: order.append(n)))
    for future in pending:
        future.wait()
    check(order == list(range(20)), f"callbacks ran in the order {order}")


def test_callbacks_that_wait():
    """For a future that is completed after theirs, by the same thread."""
    futures = [dist.all_reduce(torch.full((10,), float(n)), async_op=True).get_future() for n in range(6)]
    chained = [
        futures[n].then(lambda f, n=n: futures[n + 1].wait()[0] + f.value()[0]) for n in range(5)
    ]  # fmt: skip
    for n in range(5):
        equal(chained[n].wait(), torch.full((10,), float(SIZE * (2 * n + 1))), "a callback that waits")


def test_collectives_in_callbacks():
    def inside(future):
        value = future.value()[0]
        got = dist.all_reduce(value.clone(), async_op=True).get_future().wait()[0]
        return dist.all_reduce(got.clone(), async_op=True).get_future().wait()[0]

    pending = []
    for n in range(10):
        time.sleep(0.003 * ((RANK + n) % 2))
        future = dist.all_reduce(torch.full((50,), float(n)), async_op=True).get_future()
        time.sleep(0.003 * ((RANK + n) % 3 == 0))
        pending.append(future.then(inside).then(lambda f: f.value() + 1))
        dist.all_reduce(torch.zeros(10))
    for n, future in enumerate(pending):
        equal(future.wait(), torch.full((50,), float(n * SIZE**3 + 1)), "a collective in a callback")


def test_wait_with_timeout():
    group = dist.new_group()
    if RANK == 0:
        work = dist.all_reduce(torch.zeros(3), group=group, async_op=True)
        begin = time.monotonic()
        raises(Exception, lambda: work.wait(datetime.timedelta(seconds=0.3)), "Timed out")
        check(0.2 < time.monotonic() - begin < 2, "the time-out came at the wrong time")
        check(not work.is_completed(), "a work that waits for others has ended")
        dist.barrier()
        work.wait()
        check(work.is_completed() and work.is_success(), "a work that was waited for has not ended")
    else:
        dist.barrier()
        dist.all_reduce(torch.zeros(3), group=group)


def test_many_unwaited():
    tensors = [torch.full((10,), float(n)) for n in range(1500)]
    for tensor in tensors:
        last = dist.all_reduce(tensor, async_op=True)
    last.wait()
    dist.barrier()
    for work in list(dist.distributed_c10d._get_default_group().live):
        work.wait()
    for n, tensor in enumerate(tensors):
        equal(tensor, torch.full((10,), float(n * SIZE)), "not waited for")


def test_objects():
    got = [None] * SIZE
    dist.all_gather_object(got, {"rank": RANK, "text": "x" * (1000 * RANK)})
    check([g["rank"] for g in got] == list(range(SIZE)), "all_gather_object")
    objects = [RANK, "text", None] if RANK == 1 else [None] * 3
    dist.broadcast_object_list(objects, 1)
    check(objects == [1, "text", None], "broadcast_object_list")
    mine = [None]
    dist.scatter_object_list(mine, [f"to {r}" for r in range(SIZE)] if RANK == 0 else [None] * SIZE, 0)
    check(mine == [f"to {RANK}"], "scatter_object_list")
    got = [None] * SIZE if RANK == 0 else None
    dist.gather_object(RANK, got, 0)
    check(RANK != 0 or got == list(range(SIZE)), "gather_object")
    if hasattr(dist, "send_object_list"):
        if RANK == 0:
            dist.send_object_list([{"for": 1}, "both"], 1)
        elif RANK == 1:
            objects = [None, None]
            check(dist.recv_object_list(objects, 0) == 0, "the source of recv_object_list")
            check(objects == [{"for": 1}, "both"], "recv_object_list")


def test_groups():
    check(dist.get_backend() == "roce", "the backend's name")
    members = list(range(0, SIZE, 2))
    even = dist.new_group(members)
    mine = torch.full((3,), float(RANK))
    dist.all_reduce(mine, group=even)
    if RANK in members:
        equal(mine, torch.full((3,), float(sum(members))), "a group of even ranks")
        check(dist.get_rank(even) == members.index(RANK), "rank in the group")
    if RELEASE < (2, 0):  # which has subgroups with CUDA only
        return
    alone, _ = dist.new_subgroups(1)
    mine = torch.full((3,), float(RANK))
    dist.all_reduce(mine, group=alone)
    equal(mine, torch.full((3,), float(RANK)), "a group of one")
    halves = [list(range(0, SIZE, 2)), list(range(1, SIZE, 2))]
    own, _ = dist.new_subgroups_by_enumeration(halves)
    mine = torch.full((3,), float(RANK))
    dist.all_reduce(mine, group=own)
    equal(mine, torch.full((3,), float(sum(halves[RANK % 2]))), "groups by enumeration")


def test_threads():
    groups = [dist.new_group() for _ in range(3)]
    failures = []

    def work(group, seed):
        try:
            for n in range(50):
                mine = torch.full((20,), float(seed + n))
                dist.all_reduce(mine, group=group)
                equal(mine, torch.full((20,), float(SIZE * (seed + n))), "in threads")
        except Exception as error:  # pylint: disable=broad-except
            failures.append(error)

    threads = [threading.Thread(target=work, args=(g, 100 * n)) for n, g in enumerate(groups)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check(not failures, f"{failures}")


def test_sparse():
    indices = torch.tensor([[RANK, RANK + 1]])
    mine = torch.sparse_coo_tensor(indices, torch.ones(2, 3), (SIZE + 1, 3))
    want = sum(
        torch.sparse_coo_tensor(torch.tensor([[r, r + 1]]), torch.ones(2, 3), (SIZE + 1, 3)).to_dense()
        for r in range(SIZE)
    )
    dist.all_reduce(mine)
    equal(mine.to_dense(), want, "sparse all_reduce")


def test_functional():
    if RELEASE < (2, 1):
        return
    import torch.distributed._functional_collectives as functional

    world = dist.group.WORLD
    equal(functional.all_reduce(torch.full((3,), 1.0), "sum", world) + 0, torch.full((3,), float(SIZE)), "all_reduce")
    got = functional.all_gather_tensor(torch.full((2,), float(RANK)), 0, world) + 0
    equal(got, torch.arange(float(SIZE)).repeat_interleave(2), "all_gather_tensor")
    got = functional.reduce_scatter_tensor(torch.ones(2 * SIZE), "sum", 0, world) + 0
    equal(got, torch.full((2,), float(SIZE)), "reduce_scatter_tensor")
    got = functional.all_to_all_single(torch.full((SIZE,), float(RANK)), None, None, world) + 0
    equal(got, torch.arange(float(SIZE)), "all_to_all_single")
    got = functional.all_reduce_coalesced([torch.ones(2), torch.ones(3)], "sum", world)
    equal(got[1] + 0, torch.full((3,), float(SIZE)), "all_reduce_coalesced")
    got = functional.all_gather_into_tensor_coalesced([torch.full((n,), float(RANK)) for n in (1, 2)], world)
    equal(got[1] + 0, torch.arange(float(SIZE)).repeat_interleave(2), "all_gather_into_tensor_coalesced")
    got = functional.reduce_scatter_tensor_coalesced([torch.ones(n * SIZE) for n in (1, 2)], "sum", [0, 0], world)
    equal(got[1] + 0, torch.full((2,), float(SIZE)), "reduce_scatter_tensor_coalesced")
    got = functional.permute_tensor(torch.full((2,), float(RANK)), [(r + 1) % SIZE for r in range(SIZE)], world) + 0
    equal(got, torch.full((2,), float((RANK - 1) % SIZE)), "permute_tensor")
    got = functional.broadcast(torch.full((3,), float(RANK)), 1, world) + 0
    equal(got, torch.ones(3), "broadcast")


def test_tensors_that_stand_for_others():
    """What functional collectives yield can be passed on as it is; what has no memory is refused in words."""
    if RELEASE < (2, 4):
        return
    import torch.distributed._functional_collectives as functional

    def pending(*shape):
        return functional.all_reduce(torch.full(shape, 1.0), "sum", dist.group.WORLD)

    size = float(SIZE)
    for count in (3, 20000):
        mine = pending(count)
        dist.all_reduce(mine)
        equal(mine + 0, torch.full((count,), size * size), "all_reduce")
        mine = pending(count)
        dist.broadcast(mine, 0)
        equal(mine + 0, torch.full((count,), size), "broadcast")
    for count in (3, 300):
        mine = pending(count)
        check(type(mine) is not torch.Tensor, "nothing stands for another tensor")
        if RANK == 0:
            dist.send(mine, 1)
        elif RANK == 1:
            dist.recv(mine, 0)
        equal(mine + 0, torch.full((count,), size), "send and recv")
    transposed = pending(6, 4).t()
    dist.all_reduce(transposed)
    equal(transposed + 0, torch.full((4, 6), size * size), "transposed")
    flat = torch.zeros(3 * SIZE)
    dist.all_gather_into_tensor(flat, pending(3))
    equal(flat, torch.full((3 * SIZE,), size), "all_gather_into_tensor")
    rows = [pending(3) for _ in range(SIZE)]
    dist.all_gather(rows, torch.full((3,), float(RANK)))
    equal(rows[1] + 0, torch.full((3,), 1.0), "all_gather")
    mine = torch.zeros(3)
    dist.reduce_scatter(mine, [pending(3) for _ in range(SIZE)])
    equal(mine, torch.full((3,), size * size), "reduce_scatter")
    part = pending(6)[2:5]
    check(type(part) is not torch.Tensor, "a view does not stand for another")
    dist.all_reduce(part)
    equal(part + 0, torch.full((3,), size * size), "a view")
    whole = torch.ones(8)
    tail = whole[4:]
    whole.untyped_storage().resize_(0)
    for freed in (whole, tail):
        words = f"send: a Tensor of shape ({freed.numel()},) has no memory of its own"
        raises(TypeError, lambda t=freed: dist.send(t, (RANK + 1) % SIZE), words)


def test_shared_memory():
    mine = rocecomm.torch.empty(1000, 10)
    mine += RANK
    dist.all_reduce(mine)
    equal(mine, torch.full((1000, 10), float(sum(range(SIZE)))), "shared memory")
    array = rocecomm.empty(1000, "float32")  # of the same client
    check(rocecomm.process_client().is_shared(torch.from_numpy(array).data_ptr(), 4000), "not shared with the backend")
    state = rocecomm.torch.status()
    check(state["size"] == SIZE and state["path"] and state["error"] is None, f"{state}")


def test_data_parallel():
    torch.manual_seed(3)
    model = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    reference = torch.nn.Sequential(torch.nn.Linear(20, 300), torch.nn.ReLU(), torch.nn.Linear(300, 3))
    reference.load_state_dict(model.state_dict())
    for view in (False, True):
        parallel = torch.nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
        for step in range(3):
            every = inputs([8, 20], torch.float32, step)
            parallel(every[RANK]).sum().backward()
            for other in every:
                (reference(other).sum() / SIZE).backward()
            for mine, want in zip(model.parameters(), reference.parameters()):
                check(torch.allclose(mine.grad, want.grad, rtol=1e-4, atol=1e-3), f"gradients, step {step}")
                mine.grad, want.grad = None, None


if __name__ == "__main__":
    sys.exit(main(globals(), lambda: dist.init_process_group("roce"), dist.destroy_process_group))
