# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What stands on the process group in PyTorch, and what surrounds it: one rank. Loss and gradients are
compared with those of the same model on one process; what a release has not is left out."""
import copy
import datetime
import glob
import json
import os
import resource
import subprocess
import sys
import tempfile
import threading

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as Parallel

import rocecomm.torch
from ranks import check, main, raises

RANK = int(os.environ["RANK"])
SIZE = int(os.environ["WORLD_SIZE"])
RELEASE = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])


def model():
    torch.manual_seed(5)
    return torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.Tanh(), torch.nn.Linear(64, 16), torch.nn.Linear(16, 4))


def batch(rank, step):
    generator = torch.Generator().manual_seed(100 * step + rank)
    return torch.randn(8, 32, generator=generator)


def train(parallel, reference, steps=4, tolerance=1e-5, optimizer=None):
    """Both must take the same steps."""
    optimizer = optimizer or torch.optim.SGD(parallel.parameters(), 0.05)
    other = torch.optim.SGD(reference.parameters(), 0.05)
    for step in range(steps):
        optimizer.zero_grad()
        other.zero_grad()
        parallel(batch(RANK, step)).square().mean().backward()
        for rank in range(SIZE):
            (reference(batch(rank, step)).square().mean() / SIZE).backward()
        optimizer.step()
        other.step()
    for mine, want in zip(parallel.parameters(), reference.parameters()):
        mine = mine.full_tensor() if hasattr(mine, "full_tensor") else mine
        check(torch.allclose(mine, want, rtol=tolerance, atol=tolerance), f"parameters differ: {mine - want}")


def test_data_parallel_modes():
    for options in (
        {},
        {"gradient_as_bucket_view": True},
        {"static_graph": True},
        {"find_unused_parameters": True},
        {"bucket_cap_mb": 0.001},
    ):
        train(Parallel(model(), **options), model())


def staged():
    """Bytes that this process's client has copied, by the daemon's count."""
    rocectl = os.path.join(os.environ["ROCECOMM_LIBRARY"], "tools", "rocectl", "rocectl")
    path = os.path.join(os.environ["XDG_RUNTIME_DIR"], "rocecomm", "rocecomm.sock")
    said = subprocess.run([rocectl, "--socket", path, "status", "--json"], capture_output=True, check=True).stdout
    return sum(c["bytes_staged"] for c in json.loads(said)["clients"] if c["pid"] == os.getpid())


def test_buckets_are_not_copied():
    """From their third pass on, buckets lie where the daemon reads them."""
    for view in (False, True):
        wide = torch.nn.Sequential(torch.nn.Linear(32, 3000), torch.nn.Linear(3000, 40))
        reference = copy.deepcopy(wide)
        for parameter in reference.parameters():
            dist.broadcast(parameter.data, 0)
        parallel = Parallel(wide, gradient_as_bucket_view=view, bucket_cap_mb=0.2)
        train(parallel, reference, steps=3)
        before = staged()
        train(parallel, reference, steps=4)
        check(staged() == before, f"{staged() - before} bytes were copied, bucket view {view}")
        check(rocecomm.torch.status()["shared_storages"] > 0, f"{rocecomm.torch.status()}")
    plain = torch.zeros(100000)
    dist.all_reduce(plain)
    check(staged() - before == 2 * 400000, f"{staged() - before} bytes were counted for a plain tensor")


def test_plain_tensors_are_lent():
    """From its third use on a tensor's whole pages are the daemon's, too; its address stays."""
    count = 1 << 20
    tensor = torch.zeros(count)
    array, address = tensor.numpy(), tensor.data_ptr()
    expected = sum(range(1, SIZE + 1))
    for use in range(6):
        before = staged()
        dist.all_reduce(tensor.fill_(RANK + 1))
        copied = staged() - before
        check(copied == 8 * count if use < 2 else copied <= 2 * 8192, f"use {use}: {copied} bytes were copied")
        check(tensor.data_ptr() == address and array[0] == array[-1] == expected, f"use {use}: {array}")
        check(bool((tensor == expected).all()), f"use {use}: {tensor}")
    check(rocecomm.torch.status()["lent_tensors"] >= 4 * count, f"{rocecomm.torch.status()}")
    pid = os.fork()
    if pid == 0:
        tensor.fill_(-1)
        os._exit(0)
    os.waitpid(pid, 0)
    check(array[count // 2] == expected, "a child's write is seen")
    part = tensor[7:200000]
    before = staged()
    dist.broadcast(part.fill_(RANK), 0)
    check(staged() - before <= 8192 and array[8] == array[150000] == 0, "a part of it")
    check(array[6] == array[200000] == expected, "beside a part of it")
    lent = rocecomm.torch.status()["lent_tensors"]
    del array, part, tensor
    check(rocecomm.torch.status()["lent_tensors"] == lent - 4 * count, f"{rocecomm.torch.status()}")


def test_lent_tensors_in_threads_and_resized():
    tensor = torch.ones(1 << 18)
    for _ in range(4):
        dist.all_reduce(tensor.fill_(1))
    tensor.resize_(1 << 20)  # other memory; what was lent is freed
    check(rocecomm.torch.status()["lent_tensors"] == 0, f"{rocecomm.torch.status()}")
    check(bool((tensor[: 1 << 18] == SIZE).all()), "content after resize_")
    slices = tensor.fill_(1).split(1 << 18)
    for _ in range(4):
        works = [dist.all_reduce(part.fill_(1), async_op=True) for part in slices]
        for work in works:
            work.wait()
    check(bool((tensor == SIZE).all()), "slices")
    check(rocecomm.torch.status()["lent_tensors"] == 4 << 20, f"{rocecomm.torch.status()}")
    twice = [dist.all_reduce(slices[0].fill_(1), async_op=True), dist.all_reduce(slices[0], async_op=True)]
    for work in twice:
        work.wait()
    check(bool((slices[0] == SIZE * SIZE).all()), "twice without waiting")
    held = [tensor, slices]
    del tensor, slices, work, works, twice
    thread = threading.Thread(target=held.clear)
    thread.start()
    thread.join()
    check(rocecomm.torch.status()["lent_tensors"] == 0, f"{rocecomm.torch.status()}")


def test_many_tensors_leave_descriptors():
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, limits[1]))
    tensors = [torch.ones(1 << 15) for _ in range(100)]
    for _ in range(4):
        for tensor in tensors:
            dist.all_reduce(tensor.fill_(1))
    check(all(bool((tensor == SIZE).all()) for tensor in tensors), "values")
    lent = rocecomm.torch.status()["lent_tensors"]
    check(0 < lent <= 64 << 17, f"{lent >> 17} of 100 tensors are lent, each with a descriptor of 256")
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    del tensor, tensors
    check(rocecomm.torch.status()["lent_tensors"] == 0, f"{rocecomm.torch.status()}")


def test_waiting_starts_no_thread():
    value = torch.ones(2)
    before = set(threading.enumerate())
    for use_async in (False, True):
        for _ in range(20):
            work = dist.all_reduce(value.fill_(1), async_op=use_async)
            if use_async:
                work.wait()
    check(set(threading.enumerate()) == before, f"{threading.enumerate()}")


def test_hooks():
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    parallel = Parallel(model())
    parallel.register_comm_hook(None, default_hooks.allreduce_hook)
    train(parallel, model())
    parallel = Parallel(model(), bucket_cap_mb=0.001)
    parallel.register_comm_hook(None, default_hooks.fp16_compress_hook)
    train(parallel, model(), tolerance=1e-2)
    parallel = Parallel(model(), bucket_cap_mb=0.001)
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=2, start_powerSGD_iter=2)
    parallel.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    train(parallel, model(), steps=12, tolerance=0.5)
    flat = torch.cat([p.detach().reshape(-1) for p in parallel.parameters()])
    every = [torch.zeros_like(flat) for _ in range(SIZE)]
    dist.all_gather(every, flat)
    check(all(torch.equal(every[0], other) for other in every), "ranks differ after PowerSGD")


def test_join():
    parallel = Parallel(model())
    with parallel.join():
        for step in range(2 + RANK):
            parallel(batch(RANK, step)).square().mean().backward()


def test_zero_redundancy():
    from torch.distributed.optim import ZeroRedundancyOptimizer

    parallel = Parallel(model())
    optimizer = ZeroRedundancyOptimizer(parallel.parameters(), torch.optim.SGD, lr=0.05)
    train(parallel, model(), optimizer=optimizer)


def test_sharded():
    if RELEASE < (2, 7):
        return
    from torch.distributed.checkpoint.state_dict import get_model_state_dict
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (SIZE,))
    sharded = model()
    for layer in sharded:
        if isinstance(layer, torch.nn.Linear):
            fully_shard(layer, mesh=mesh)
    fully_shard(sharded, mesh=mesh)
    reference = model()
    train(sharded, reference)
    import torch.distributed.checkpoint as checkpoint

    place = [tempfile.mkdtemp() if RANK == 0 else None]
    dist.broadcast_object_list(place, 0)
    state = get_model_state_dict(sharded)
    checkpoint.save(state, checkpoint_id=place[0])
    before = copy.deepcopy(state)
    with torch.no_grad():
        for parameter in sharded.parameters():
            parameter.zero_()
    state = get_model_state_dict(sharded)
    checkpoint.load(state, checkpoint_id=place[0])
    for name, value in before.items():
        check(torch.equal(value.full_tensor(), state[name].full_tensor()), f"checkpoint: {name}")


def test_tensors_over_a_mesh():
    if RELEASE < (2, 5):
        return
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (SIZE,))
    whole = torch.arange(float(4 * SIZE * 6)).view(4 * SIZE, 6)
    sharded = distribute_tensor(whole, mesh, [Shard(0)])
    check(torch.equal(sharded.redistribute(mesh, [Shard(1)]).full_tensor(), whole), "redistribute")
    check(torch.equal((sharded @ sharded.t()).redistribute(mesh, [Replicate()]).to_local(), whole @ whole.t()), "product")
    check(torch.equal(sharded.sum().full_tensor(), whole.sum()), "partial sum")


def test_device_maps():
    if RELEASE < (2, 1):
        return
    for words, other in (("cpu:gloo,cuda:roce", True), ("cpu:roce,cuda:nccl", False)):
        group = dist.new_group(backend=words)
        value = torch.full((3,), 1.0)
        dist.all_reduce(value, group=group)
        check(value[0] == SIZE, words)
        got = torch.zeros(2)
        if RANK == 0:
            dist.send(torch.ones(2), 1, group=group)
        elif RANK == 1:
            dist.recv(got, 0, group=group)
        check(("Gloo" in type(group.site(value).other).__name__) == other, f"{words}: {group.site(value).other}")


def test_monitored_barrier():
    group = dist.distributed_c10d._get_default_group()
    dist.monitored_barrier()
    if RANK == 0:
        raises(RuntimeError, lambda: dist.monitored_barrier(group, datetime.timedelta(seconds=0.3)), "Rank 1 failed to pass")
    else:
        group._barriers += 1
    dist.barrier()


def test_profiler():
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.zeros(1000))
        dist.barrier()
    names = [event.name for event in profile.events()]
    check(any(n.startswith("roce:all_reduce seq=") and n.endswith("bytes=4000") for n in names), f"{names}")
    check(any(n.startswith("roce:wait all_reduce") for n in names), f"{names}")


class Numbers(torch.utils.data.Dataset):
    """As many as there are."""

    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.full((3,), float(index))


def test_loaders_that_fork():
    loader = torch.utils.data.DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context="fork")
    for _ in range(2):
        for values in loader:
            dist.all_reduce(values)
    dist.barrier()


def _spawned(rank, size, path):
    rocecomm.torch.register()  # a spawned process has imported it with this file

    dist.init_process_group("roce", init_method="file://" + path, rank=rank, world_size=size)
    value = torch.ones(3)
    dist.all_reduce(value)
    assert value[0] == size
    dist.destroy_process_group()


def test_spawn():
    with tempfile.TemporaryDirectory() as place:
        torch.multiprocessing.spawn(_spawned, (2, os.path.join(place, "store")), nprocs=2)


def test_groups_again():
    """After destroying the group, the same processes meet again through the same store."""
    for turn in range(2):
        dist.destroy_process_group()
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + 1 + turn)
        dist.init_process_group("roce")
        value = torch.ones(3)
        dist.all_reduce(value)
        check(value[0] == SIZE, "after meeting again")


ELASTIC = """
import os, sys, torch, torch.distributed as dist
import rocecomm.torch
dist.init_process_group("roce")
value = torch.ones(3); dist.all_reduce(value)
turn = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
if turn == 0:
    if dist.get_rank() == 1:
        os._exit(9)
    try:
        dist.all_reduce(value)
    except Exception as error:
        print("ERROR", error, flush=True)
        sys.exit(1)
print("GOOD", turn, int(value[0]), flush=True)
dist.destroy_process_group()
"""


def test_elastic_restart():
    """torchrun begins a new round after a rank has died."""
    if RANK == 0 and "dist-packages" not in torch.__file__:  # Debian's torchrun runs no backend
        env = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_PORT")}
        with tempfile.TemporaryDirectory() as place:
            script = os.path.join(place, "elastic.py")
            with open(script, "w", encoding="utf-8") as out:
                out.write(ELASTIC)
            done = subprocess.run(
                [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
                + ["--max-restarts=1", "-r", "3", "--log-dir", place, script],
                env=env, capture_output=True, text=True, timeout=200, check=False,
            )  # fmt: skip
            said = "".join(open(path, encoding="utf-8").read() for path in glob.glob(place + "/*/*/*/std*.log")
                           + glob.glob(place + "/*/*/*/*/std*.log"))
        check(done.returncode == 0 and said.count("GOOD 1 2") == 2, f"{done.returncode} {said} {done.stderr[-2000:]}")
    dist.barrier()


def test_status():
    check(json.dumps(rocecomm.torch.status()), "status() is not plain data")


if __name__ == "__main__":
    sys.exit(main(globals(), lambda: dist.init_process_group("roce"), dist.destroy_process_group))
