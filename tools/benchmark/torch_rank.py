#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""torch_rank: one rank of what tools/bench --torch measures; rank 0 prints an object of JSON a row.

One process a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT. A repetition's time is that
of its slowest rank. What is timed is checked, outside of the time.
"""
import argparse
import gc
import json
import os
import statistics
import sys
import time
import warnings
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

STAGES = ((64, 1), (128, 2), (256, 2), (512, 2))  # channels and stride of ResNet-18's four


class Block(nn.Module):
    """Two 3 x 3 convolutions, and what goes round them."""

    def __init__(self, before, after, stride):
        super().__init__()
        self.path = nn.Sequential(
            nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU(),
            nn.Conv2d(after, after, 3, 1, 1, bias=False), nn.BatchNorm2d(after))
        self.round = nn.Identity() if stride == 1 and before == after else nn.Sequential(
            nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x):
        return torch.relu(self.path(x) + self.round(x))


def resnet18():
    """11.7 million parameters."""
    layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
              nn.MaxPool2d(3, 2, 1)]
    before = 64
    for channels, stride in STAGES:
        layers += [Block(before, channels, stride), Block(channels, channels, 1)]
        before = channels
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(before, 1000))


def slowest(times):
    """Of each repetition the time of its slowest rank."""
    all_of_them = torch.tensor(times, dtype=torch.float64)
    dist.all_reduce(all_of_them, dist.ReduceOp.MAX)
    return all_of_them.tolist()


def timed(function, reps, warmup):
    """Microseconds of each repetition on the slowest rank."""
    for _ in range(warmup):
        function()
    times = []
    gc.disable()
    dist.barrier()
    for _ in range(reps):
        begin = time.perf_counter_ns()
        function()
        times.append((time.perf_counter_ns() - begin) / 1000)
    gc.enable()
    return slowest(times)


def row(name, times, **more):
    if dist.get_rank() == 0:
        print(json.dumps({"row": name, "median_us": statistics.median(times), "min_us": min(times),
                          "max_us": max(times), "reps": len(times), **more}), flush=True)


def start(options):
    """Makes the group, once all processes are up; how long that took on the slowest rank."""
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    port = int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(os.environ["MASTER_ADDR"], port, size, rank == 0,
                          timeout=timedelta(seconds=300))
    if options.backend == "roce":
        import rocecomm.torch  # noqa: F401 pylint: disable=import-outside-toplevel,unused-import
    store.add("up", 1)
    while store.add("up", 0) < size:
        time.sleep(0.005)
    time.sleep(0.1)
    begin = time.perf_counter_ns()
    dist.init_process_group(options.backend, store=dist.PrefixStore("group", store), rank=rank,
                            world_size=size)
    took = (time.perf_counter_ns() - begin) / 1000
    begin = time.perf_counter_ns()
    dist.all_reduce(torch.ones(1))
    first = (time.perf_counter_ns() - begin) / 1000
    row("init", slowest([took]))
    row("init-and-first", slowest([took + first]))


def reductions(options):
    for name, elements, reps in (("all_reduce-8B", 2, 40 * options.reps),
                                 ("all_reduce-25MiB", 25 << 18, options.reps)):
        data = torch.ones(elements)
        dist.all_reduce(data)
        verified = bool((data == dist.get_world_size()).all())
        data.zero_()
        times = timed(lambda d=data: dist.all_reduce(d), reps, max(3, reps // 10))
        row(name, times, bytes=4 * elements, verified=verified)


def step(options):
    """Forward and backward alone, and with DistributedDataParallel, in turn."""
    torch.manual_seed(7)
    alone = resnet18()
    model = DistributedDataParallel(resnet18(), gradient_as_bucket_view=True,
                                    broadcast_buffers=False)
    data = torch.randn(options.batch, 3, 64, 64)

    def run(net):
        net(data).square().mean().backward()

    for _ in range(4):
        run(alone)
        run(model)
    local, whole = [], []
    gc.disable()
    for _ in range(options.steps):
        for net, times in ((alone, local), (model, whole)):
            net.zero_grad(set_to_none=False)
            dist.barrier()
            begin = time.perf_counter_ns()
            run(net)
            times.append((time.perf_counter_ns() - begin) / 1000)
    gc.enable()
    sums = torch.stack([p.grad.double().sum() for p in model.parameters()])
    theirs = sums.clone()
    dist.broadcast(theirs, 0)
    local, whole = slowest(local), slowest(whole)
    row("step-alone", local)
    row("step-not-hidden", [b - a for a, b in zip(local, whole)])
    row("step-ddp", whole, verified=bool(torch.equal(sums, theirs)),
        parameters=sum(p.numel() for p in model.parameters()))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend", choices=("roce", "gloo"), required=True)
    parser.add_argument("--reps", type=int, default=20)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--batch", type=int, default=2)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    start(options)
    reductions(options)
    if options.steps:
        step(options)
    dist.barrier()
    # What is left of torch at the interpreter's end may wait for threads that are gone.
    sys.stdout.flush()
    os._exit(0)


main()
