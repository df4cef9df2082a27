# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Runs of rocebench, one process a rank, and what they cost by counters and by strace.

The cost of one operation is a difference: a run and one with N operations more have the same start
and the same end, but for the times that the ranks exchange afterwards, 8 bytes an operation.
"""
import json
import os
import re
import signal
import subprocess
import time
from collections import Counter

from harness.lab import LabError, wait_for

WARM_UP = 5
FEW = 3


class Work:
    """One row of rocebench."""

    def __init__(self, options):
        self.coll = options.coll
        self.ranks = options.ranks
        self.size = options.size
        self.more = []
        if options.inplace:
            self.more.append("--inplace")
        if options.memory == "plain":
            self.more.append("--memory=plain")
        self.inflight = options.inflight

    def command(self, lab, daemon, reps):
        return [lab.program("tools/rocebench/rocebench"), f"--socket={daemon.socket}", "--json",
                f"--sizes={self.size}", f"--warmup={WARM_UP}", f"--reps={reps}", "--no-verify",
                f"--inflight={self.inflight}", *self.more, self.coll]


class Run:
    """The ranks of one run; wrap: prefix of rank 0's command."""

    count = 0

    def __init__(self, daemons, work, reps, wrap=()):
        Run.count += 1
        self.lab = daemons[0].lab
        self.operations = (WARM_UP + reps) * work.inflight
        self.ranks = []
        self.paths = []
        size = work.ranks * len(daemons)
        for rank in range(size):
            daemon = daemons[rank // work.ranks]
            path = os.path.join(self.lab.dir, f"run{Run.count}.{rank}")
            env = {"RANK": str(rank), "WORLD_SIZE": str(size),
                   "LOCAL_RANK": str(rank % work.ranks), "LOCAL_WORLD_SIZE": str(work.ranks),
                   "MASTER_ADDR": daemons[0].host.address, "MASTER_PORT": str(20000 + Run.count)}
            command = daemon.host.prefix() + (list(wrap) if rank == 0 else []) + \
                work.command(self.lab, daemon, reps)
            self.paths.append(path)
            self.ranks.append(self.lab.spawn(command, log=path + ".out", err=path + ".err",
                                             env=env))

    def finish(self, seconds=300):
        """Waits for all ranks; returns rocebench's line."""
        end = time.monotonic() + seconds
        for rank, path in zip(self.ranks, self.paths):
            try:
                code = rank.wait(max(0.1, end - time.monotonic()))
            except subprocess.TimeoutExpired as e:
                raise LabError(f"rocebench has not ended in {seconds} s") from e
            if code != 0:
                with open(path + ".err", encoding="utf-8", errors="replace") as f:
                    raise LabError(f"rocebench ended with {code}: {f.read().strip()[-500:]}")
        with open(self.paths[0] + ".out", encoding="utf-8") as f:
            lines = [json.loads(line) for line in f if line.startswith("{")]
        if len(lines) != 1:
            raise LabError(f"rocebench printed {len(lines)} rows")
        return lines[0]


def settled(daemons):
    """The thread's counters of all daemons when nothing moves them any more."""
    def read():
        return [d.status()["thread"] for d in daemons]
    last = [read()]

    def quiet():
        now = read()
        same = [t["loops"] for t in now] == [t["loops"] for t in last[0]]
        last[0] = now
        return same
    # Under valgrind, or with heartbeats of many, it is never quite still: what is left is small.
    try:
        wait_for("quiet", quiet, 2, pause=0.1)
    except LabError:
        pass
    return last[0]


def counted(daemons, work, reps):
    """[Counter of a daemon]."""
    before = settled(daemons)
    Run(daemons, work, reps).finish()
    after = settled(daemons)
    return [Counter({k: b[k] - a[k] for k in b}) for a, b in zip(before, after)]


def difference(few, many, operations):
    """Cost of one operation; noise must not show as a saving."""
    return {k: max(0, many[k] - few.get(k, 0)) / operations for k in many}


def counters_an_operation(daemons, work, n):
    """[{counter: an operation}] of all daemons, from n repetitions."""
    few = counted(daemons, work, FEW)
    many = counted(daemons, work, FEW + n)
    return [difference(a, b, n * work.inflight) for a, b in zip(few, many)]


# ---- strace ------------------------------------------------------------------------------------


def strace_calls(path):
    """{system call: count} of a file that strace -c wrote."""
    found = Counter()
    with open(path, encoding="ascii", errors="replace") as f:
        for line in f:
            row = line.split()
            if len(row) >= 5 and re.fullmatch(r"[0-9.]+", row[0]) and row[3].isdigit() \
                    and row[-1] != "total":
                found[row[-1]] = int(row[3])
    return found


def progress_thread(pid):
    for tid in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{tid}/comm", encoding="ascii") as f:
            if f.read().startswith("progress"):
                return int(tid)
    raise LabError("the daemon has no progress thread")


def traced(daemons, work, reps):
    """(calls of the first daemon's progress thread, calls of rank 0)."""
    lab = daemons[0].lab
    paths = [os.path.join(lab.dir, f"strace{Run.count}.{who}") for who in ("daemon", "rank")]
    tid = progress_thread(daemons[0].pid)
    tracer = lab.spawn(["strace", "-c", "-p", str(tid), "-o", paths[0]])

    def attached():
        with open(f"/proc/{tid}/status", encoding="ascii") as f:
            return re.search(r"^TracerPid:\s*[1-9]", f.read(), re.M)
    wait_for("strace has the progress thread", attached, 10)
    Run(daemons, work, reps, ["strace", "-f", "-c", "-o", paths[1]]).finish()
    os.kill(tracer.pid, signal.SIGINT)
    tracer.wait(10)
    return [strace_calls(path) for path in paths]


def calls_an_operation(daemons, work, n):
    """[{system call: an operation}] of the first daemon's progress thread and of rank 0."""
    few = traced(daemons, work, FEW)
    many = traced(daemons, work, FEW + n)
    return [difference(a, b, n * work.inflight) for a, b in zip(few, many)]
