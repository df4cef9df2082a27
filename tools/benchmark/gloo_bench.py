#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""gloo_bench: Gloo (torch.distributed on CPU tensors) as tools/bench times it.

One process a rank, with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT; arguments, timing, checks
and output are those of peer.c. Gloo's reductions work in place: the data are put back before a
check, not before each repetition, so nothing but the operation is timed.
"""
import ctypes
import gc
import json
import os
import statistics
import sys
import time
import warnings

import torch
import torch.distributed as dist

VALUES = 31
RANK_STEP = 13
BLOCKS = ("allgather", "reduce_scatter", "gather", "scatter", "alltoall")


def pattern(rank, element, count, turn):
    return torch.arange(count, dtype=torch.int64).add_(
        element + rank * RANK_STEP + turn * 7).remainder_(VALUES).to(torch.float32)


def quantile(times, per_mille):
    """By nearest rank, as rocebench has it."""
    return times[-(-len(times) * per_mille // 1000) - 1]


class Work:
    """The same matrix products as beside the other systems; ctypes lets go of the interpreter."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.work_new.restype = ctypes.c_void_p
        self.library.work_run.restype = ctypes.c_float
        self.library.work_run.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        self.state = self.library.work_new()

    def run(self, products):
        self.library.work_run(self.state, products)


class Case:
    """One line of output."""

    def __init__(self, text, work, products):
        self.coll, *numbers = text.split(":")
        self.bytes, self.inflight, self.reps, self.warmup = map(int, numbers)
        self.work, self.products = work, products
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        elements = self.bytes // 4
        self.count = elements // self.size if self.coll in BLOCKS else elements
        send = self.count if self.coll in ("allgather", "gather") else elements
        recv = self.count if self.coll in ("reduce_scatter", "scatter") else elements
        self.send = [torch.zeros(send) for _ in range(self.inflight)]
        self.recv = [torch.zeros(recv) for _ in range(self.inflight)]
        self.lists = [list(r.chunk(self.size)) if self.coll == "gather" and not self.rank else None
                      for r in self.recv]
        self.parts = [list(s.chunk(self.size)) if self.coll == "scatter" and not self.rank else None
                      for s in self.send]

    def post(self, slot):
        send, recv, coll = self.send[slot], self.recv[slot], self.coll
        if coll in ("allreduce", "beside"):
            return dist.all_reduce(send, async_op=True)
        if coll == "allgather":
            return dist.all_gather_into_tensor(recv, send, async_op=True)
        if coll == "reduce_scatter":
            return dist.reduce_scatter_tensor(recv, send, async_op=True)
        if coll == "broadcast":
            return dist.broadcast(send, 0, async_op=True)
        if coll == "reduce":
            return dist.reduce(send, 0, async_op=True)
        if coll == "gather":
            return dist.gather(send, self.lists[slot], 0, async_op=True)
        if coll == "scatter":
            return dist.scatter(recv, self.parts[slot], 0, async_op=True)
        if coll == "alltoall":
            return dist.all_to_all_single(recv, send, async_op=True)
        if coll == "barrier":
            return dist.barrier(async_op=True)
        raise SystemExit(f"gloo_bench: no such operation: {coll}")

    def once(self):
        if self.coll == "comm":
            dist.destroy_process_group(dist.new_group(list(range(self.size))))
            return
        works = []
        for slot in range(self.inflight):
            if self.coll == "beside":
                self.work.run(self.products)
            works.append(self.post(slot))
        for work in works:
            work.wait()

    def fill(self, turn):
        for slot, send in enumerate(self.send):
            if self.coll == "broadcast" and self.rank:
                send.fill_(-1)
            else:
                send.copy_(pattern(self.rank, slot, len(send), turn))
            self.recv[slot].fill_(-1)

    def expected(self, slot, turn):
        """What the result buffer must hold, None where there is none on this rank."""
        ranks, mine, count = range(self.size), self.rank * self.count, self.count
        if self.coll in ("allreduce", "beside", "reduce", "reduce_scatter"):
            if self.coll == "reduce" and self.rank:
                return None
            first = slot + (mine if self.coll == "reduce_scatter" else 0)
            total = torch.zeros(count)
            for r in ranks:
                total += pattern(r, first, count, turn)
            return total
        if self.coll == "broadcast":
            return pattern(0, slot, count, turn)
        if self.coll == "scatter":
            return pattern(0, slot + mine, count, turn)
        if self.coll == "gather" and self.rank:
            return None
        first = slot + (mine if self.coll == "alltoall" else 0)
        return torch.cat([pattern(r, first, count, turn) for r in ranks])

    def verify(self, turn):
        """Runs once with known values; whether all ranks have the right ones."""
        self.fill(turn)
        self.once()
        good = True
        if self.coll not in ("barrier", "comm"):
            in_place = self.coll in ("allreduce", "beside", "reduce", "broadcast")
            for slot in range(self.inflight):
                want = self.expected(slot, turn)
                have = self.send[slot] if in_place else self.recv[slot]
                good = good and (want is None or torch.equal(want, have))
        bad = torch.tensor([0 if good else 1])
        dist.all_reduce(bad)
        return not bad.item()

    def timed(self):
        """Microseconds of each repetition on the slowest rank."""
        for buffer in self.send:
            buffer.zero_()
        for _ in range(self.warmup):
            self.once()
        times = []
        gc.disable()
        dist.barrier()
        for _ in range(self.reps):
            begin = time.perf_counter_ns()
            self.once()
            times.append((time.perf_counter_ns() - begin) / 1000)
        gc.enable()
        slowest = torch.tensor(times, dtype=torch.float64)
        dist.all_reduce(slowest, dist.ReduceOp.MAX)
        return sorted(slowest.tolist())

    def bus_factor(self):
        if self.coll in ("allreduce", "beside"):
            return 2 * (self.size - 1) / self.size
        return (self.size - 1) / self.size if self.coll in BLOCKS else 1.0

    def run(self, hosts, variant):
        verified = self.verify(1)
        times = self.timed()
        verified = self.verify(2) and verified
        median = statistics.median(times)
        bandwidth = self.bytes * self.inflight / median * 1e-3
        if self.rank == 0:
            print(json.dumps({
                "system": "gloo", "variant": variant, "coll": self.coll, "bytes": self.bytes,
                "dtype": "f32", "op": "sum", "hosts": hosts, "ranks": self.size,
                "inflight": self.inflight, "memory": "plain", "inplace": self.coll == "allreduce",
                "reps": self.reps, "min_us": times[0], "median_us": median,
                "p99_us": quantile(times, 990), "p999_us": quantile(times, 999),
                "algbw_GBps": bandwidth, "busbw_GBps": bandwidth * self.bus_factor(),
                "verified": verified}, separators=(",", ":")), flush=True)
        return verified


def main():
    options = {"hosts": "1", "variant": "", "work": "0", "library": ""}
    cases = []
    for word in sys.argv[1:]:
        name, equals, text = word[2:].partition("=")
        if not word.startswith("--"):
            cases.append(word)
        elif equals and name in options:
            options[name] = text
        else:
            sys.exit(f"gloo_bench: unknown option {word}")
    warnings.simplefilter("ignore", FutureWarning)  # newer names for the same operations
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    work = Work(options["library"]) if options["library"] else None
    good = True
    with torch.inference_mode():
        for text in cases:
            case = Case(text, work, int(options["work"]))
            good = case.run(int(options["hosts"]), options["variant"]) and good
    dist.barrier()
    dist.destroy_process_group()
    # What is left of torch at the interpreter's end may wait for threads that are gone.
    sys.stdout.flush()
    os._exit(0 if good else 1)


main()
