# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What an allreduce costs, to the byte and to the system call, by the daemons' own counters."""
import os
import re
import signal
import time

from harness.lab import Job, LabError, expect, wait_for
from harness.runner import test
from test_costs import calls, need_strace

KIB, MIB = 1 << 10, 1 << 20
HEADER = 64


class Run:
    """Operations between two readings of all counters, of every daemon."""

    def __init__(self, daemons, per_host, size, operations, variant="shared", around=None):
        self.operations = operations
        job = Job(daemons[0].lab, daemons, per_host, "count", f"--count={size // 4}",
                  f"--iterations={operations}", f"--variant={variant}", name="counted")
        job.wait_ready()
        before = self._settled(daemons)
        context = around(daemons) if around else None
        for rank in job.ranks:
            os.kill(rank.pid, signal.SIGUSR1)
        wait_for(lambda: "all ranks are done\n" + job.report(),
                 lambda: all(r.lines("done") or r.process.poll() is not None for r in job.ranks),
                 60 * daemons[0].lab.slow)
        after = self._settled(daemons)
        if context:
            context()
        for rank in job.ranks:
            if rank.process.poll() is None:
                os.kill(rank.pid, signal.SIGUSR1)
        job.finish()
        pairs = list(zip(before, after))
        self.job = [self._difference(a[0], b[0]) for a, b in pairs]
        self.thread = [self._difference(a[1], b[1]) for a, b in pairs]
        self.staged = [b - a for x, y in pairs for a, b in zip(x[2], y[2])]

    @staticmethod
    def _difference(a, b):
        return {k: b[k] - a[k] for k in b}

    @staticmethod
    def _read(daemon):
        status = daemon.status()
        jobs = [j for j in status["jobs"] if j["name"] == "counted"]
        expect(len(jobs) == 1 and len(jobs[0]["communicators"]) == 1, f"jobs: {jobs}")
        counters = jobs[0]["counters"]
        for name, value in counters.items():
            expect(jobs[0]["communicators"][0][name] == value, f"{name} of the job: {value}")
        return counters, status["thread"], [c["bytes_staged"] for c in status["clients"]]

    def _settled(self, daemons):
        """Both threads asleep: nothing counts any more."""
        def asleep():
            first = [d.status()["thread"]["loops"] for d in daemons]
            time.sleep(0.05)
            return first == [d.status()["thread"]["loops"] for d in daemons]
        wait_for("the progress threads sleep", asleep, 5)
        return [self._read(d) for d in daemons]


# So that what follows from them can be computed, whatever the defaults become.
CHUNK = 256 * KIB
SETTINGS = {"daemon": {"reduce_threads": 0},
            "peer": {"chunk_kib": CHUNK // KIB, "eager_kib": 64, "streams": 1,
                     "algorithms": "allreduce:doubling<=128K, allreduce:ring"}}
SIZES = ((8, 200), (64 * KIB, 200), (4 * MIB, 20), (25 * MIB, 8))


class Expected:
    """Of one allreduce of f32 on one of two hosts with `ranks` ranks each."""

    def __init__(self, size, ranks):
        self.sent = size  # 2 (n - 1) / n of it, n = 2 hosts
        if size <= 128 * KIB:
            # One exchange of all: the ranks' vectors are combined, then both hosts'.
            self.reduced = size if ranks == 1 else 2 * size
            self.messages = 1
            self.grants = 1
        else:
            # Swap halves, add, swap sums, a chunk at a time.
            segments = -(-size // (2 * CHUNK))
            self.reduced = size // 2 if ranks == 1 else size
            self.messages = 2 * segments
            self.grants = segments
        self.local = (ranks - 1) * size
        # A message is a chunk at most, and so one fragment: a call to send it, one to receive it,
        # and more where the socket takes or gives it in parts, on average of 64 KiB or more. The
        # same for a grant. Then one wake-up a rank.
        self.syscalls = 2 * (self.messages + self.grants + size // (64 * KIB)) + ranks


def check(run, host, size, ranks, want):
    """Raises what is not as expected; returns the figures of one operation."""
    job, thread, n = run.job[host], run.thread[host], run.operations
    what = f"{size} bytes, 2x{ranks}, host {host}, {n} operations: {job}, thread {thread}"
    expect(job["ops"] == n, what)
    expect(job["bytes_sent"] == job["bytes_received"] == want.sent * n, f"payload: {what}")
    expect(job["bytes_reduced"] == want.reduced * n, f"reduced, not {want.reduced * n}: {what}")
    expect(job["bytes_local"] == want.local * n, f"local, not {want.local * n}: {what}")
    for direction in ("sent", "received"):
        headers, rest = divmod(job[f"bytes_wire_{direction}"] - want.sent * n, HEADER)
        expect(rest == 0, f"headers: {what}")
        expect(want.messages * n <= headers <= (want.messages + want.grants) * n,
               f"{headers} headers {direction}: {what}")
        # Credits are the only messages that are nobody's.
        credits, rest = divmod(thread[f"bytes_wire_{direction}"] - job[f"bytes_wire_{direction}"],
                               HEADER)
        expect(rest == 0 and 0 <= credits <= n, f"{credits} credit messages: {what}")
    for key in ("bytes_copied", "bytes_local", "bytes_reduced", "syscalls"):
        expect(job[key] <= thread[key], f"{key}: {what}")
    expect(job["wakeups"] <= thread["client_wakeups"] <= n * ranks + ranks, what)
    expect(job["syscalls"] <= want.syscalls * n, f"more than {want.syscalls} calls: {what}")
    # A turn of the loop ends with a read that finds nothing and, when the wire is full, a write
    # that does; to sleep takes a wait, a look at the mailbox, and the streams' registration twice.
    expect(thread["syscalls"] - job["syscalls"] <= 2 * thread["loops"] + 4 * thread["wakeups"] + n,
           what)
    if size >= 64 * KIB:
        # Straight to where it belongs, but for what a read has cut off an element: under 64 bytes.
        expect(job["bytes_copied"] <= 64 * job["syscalls"], f"copied: {what}")
    return {k: round(job[k] / n, 1) for k in ("syscalls", "bytes_copied", "wakeups")}


class Tracer:
    """strace -c on the progress threads, from now until called; then {call: count} a daemon."""

    def __init__(self, daemons):
        self.found = []
        self.tracers = []
        for daemon in daemons:
            tid = progress_thread(daemon)
            path = os.path.join(daemon.lab.dir, daemon.name + ".strace")
            tracer = daemon.lab.spawn(["strace", "-c", "-p", str(tid), "-o", path])
            self.tracers.append((tracer, path))
            wait_for("strace has the thread", lambda t=tid: traced(t), 5)

    def __call__(self):
        for tracer, path in self.tracers:
            os.kill(tracer.pid, signal.SIGINT)
            wait_for("strace ends", lambda t=tracer: t.poll() is not None, 5)
            self.found.append(calls(path))


def traced(tid):
    with open(f"/proc/{tid}/status", encoding="ascii") as f:
        return re.search(r"^TracerPid:\s*[1-9]", f.read(), re.M)


def progress_thread(daemon):
    for tid in os.listdir(f"/proc/{daemon.pid}/task"):
        with open(f"/proc/{daemon.pid}/task/{tid}/comm", encoding="ascii") as f:
            if f.read().startswith("progress"):
                return int(tid)
    raise LabError("no progress thread")


def agree(daemons, size, n):
    """Raises when a daemon counts other system calls of its progress thread than the tracer."""
    tracer = []
    run = Run(daemons, [1, 1], size, n, around=lambda d: tracer.append(Tracer(d)) or tracer[0])
    for thread, found in zip(run.thread, tracer[0].found):
        yields = found.pop("sched_yield", 0)
        total = sum(found.values())
        # The tracer interrupts a sleep when it comes and when it goes.
        expect(abs(total - thread["syscalls"]) <= 6,
               f"{size} bytes: strace {found}, daemon {thread}")
        expect(abs(yields - thread["yields"]) <= 6,
               f"{size} bytes: strace {yields} yields, daemon {thread}")
    return (f"{size} bytes, {n} times: strace {total} and {yields} yields, "
            f"daemon {thread['syscalls']} and {thread['yields']}")


@test
def system_calls_agree_with_strace(ctx):
    """The daemons' own count of their system calls, against the tracer's."""
    need_strace(ctx)
    with ctx.lab(2, mtu=9000) as lab:
        daemons = lab.daemons(SETTINGS)
        lines = [agree(daemons, *case) for case in ((8, 200), (64 * KIB, 100), (4 * MIB, 10))]
    return "\n" + "\n".join(lines)


@test
def wake_ups_of_reduction_threads_agree_with_strace(ctx):
    """What wakes a thread is a call like any other."""
    need_strace(ctx)
    with ctx.lab(2, mtu=9000) as lab:
        daemons = lab.daemons({**SETTINGS, "daemon": {"reduce_threads": 1}})
        return agree(daemons, 4 * MIB, 10)


@test
def staging_is_counted_by_the_library(ctx):
    """Plain memory is copied once each way, shared memory never; in place costs no more."""
    size, n = 64 * KIB, 10
    with ctx.lab(2) as lab:
        daemons = lab.daemons(SETTINGS)
        run = Run(daemons, [2, 2], size, n, "plain")
        expect(run.staged == [2 * size * n] * 4, f"staged: {run.staged}")
        run = Run(daemons, [2, 2], size, n, "in-place")
        expect(run.staged == [0] * 4, f"staged: {run.staged}")
        expect(run.job[0]["bytes_sent"] == size * n, f"sent: {run.job[0]}")


@test
def counters_are_exact(ctx):
    """Payload, headers, sums and copies of an allreduce, 8 bytes to 25 MiB, 2x1 and 2x4."""
    lines = []
    with ctx.lab(2, mtu=9000) as lab:
        daemons = lab.daemons(SETTINGS)
        for ranks in (1, 4):
            for size, operations in SIZES:
                n = max(3, operations // (10 if ctx.short or ctx.sanitized else 1))
                run = Run(daemons, [ranks, ranks], size, n)
                want = Expected(size, ranks)
                for host in (0, 1):
                    found = check(run, host, size, ranks, want)
                expect(not any(run.staged), f"registered memory was staged: {run.staged}")
                lines.append(f"2x{ranks} {size}: {found}, daemon: "
                             f"{run.thread[1]['syscalls'] / n:.1f} calls, "
                             f"{run.thread[1]['wakeups'] / n:.2f} wake-ups")
    return "an operation:\n" + "\n".join(lines)


@test
def counters_with_reduction_threads(ctx):
    """The plan moves what it moves, whoever does it."""
    size, n = 4 * MIB, 10
    settings = {**SETTINGS, "daemon": {"reduce_threads": 2}}
    with ctx.lab(2, mtu=9000) as lab:
        daemons = lab.daemons(settings)
        for ranks in (1, 4):
            run = Run(daemons, [ranks, ranks], size, n)
            want = Expected(size, ranks)
            for job in run.job:
                expect(job["ops"] == n and job["bytes_sent"] == want.sent * n
                       and job["bytes_reduced"] == want.reduced * n
                       and job["bytes_local"] == want.local * n, f"2x{ranks}: {job}")
    return f"copied an operation: {[job['bytes_copied'] // n for job in run.job]} bytes"
