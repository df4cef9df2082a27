# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What it costs: system calls of clients and of an idle daemon, memory."""
import os
import re
import shutil
import signal
import subprocess
import time

from harness.lab import Daemon, Job, expect, wait_for
from harness.runner import Skip, test


def need_strace(ctx):
    if not shutil.which("strace"):
        raise Skip("no strace here")
    done = subprocess.run(["strace", "-c", "true"], capture_output=True, check=False)
    if done.returncode != 0:
        raise Skip("strace may not trace here")
    if ctx.sanitized:
        raise Skip("sanitizers make system calls of their own")


def calls(path):
    """{system call: count} of a strace -c file."""
    with open(path, encoding="ascii", errors="replace") as f:
        rows = [line.split() for line in f]
    found = {}
    for row in rows:
        if len(row) >= 5 and re.fullmatch(r"[0-9.]+", row[0]) and row[3].isdigit():
            if row[-1] != "total":
                found[row[-1]] = int(row[3])
    return found


@test
def client_system_calls(ctx):
    """10,000 posts and waits: nothing but yielding the processor and rare sleeps."""
    need_strace(ctx)
    posts = 10000

    def traced(daemon, iterations):
        path = os.path.join(daemon.lab.dir, f"client{iterations}.strace")
        job = Job(daemon.lab, [daemon], [1], "post", f"--iterations={iterations}", "--count=16",
                  wrap={0: ["strace", "-f", "-c", "-o", path]})
        job.finish(60)
        return calls(path)

    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0])
        idle, busy = traced(daemon, 0), traced(daemon, posts)
        more = {k: v - idle.get(k, 0) for k, v in busy.items() if v != idle.get(k, 0)}
        waits = ("sched_yield", "futex")
        other = {k: v for k, v in more.items() if k not in waits and v > 0}
        bells = other.pop("write", 0)
        expect(sum(other.values()) <= 20, f"system calls that come with posts: {other}")
        # The bell rings only when the progress thread has gone to sleep between two posts.
        expect(bells <= posts / 20, f"{bells} writes for {posts} posts")
        expect(more.get("futex", 0) <= posts / 5, f"{more.get('futex')} futex calls")
        return f"for {posts} operations: {more}"


@test
def idle_daemon_system_calls(ctx):
    """No client for 10 s: only heartbeats, and there is nobody to send them to."""
    need_strace(ctx)
    seconds = 3 if ctx.short else 10
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0])
        Job(lab, [daemon], [2], "loop", "--iterations=3").finish(20)
        time.sleep(1)
        path = os.path.join(lab.dir, "idle.strace")
        before = daemon.cpu_seconds()
        tracer = lab.spawn(["strace", "-f", "-c", "-p", str(daemon.pid), "-o", path])
        time.sleep(seconds)
        os.kill(tracer.pid, signal.SIGINT)
        wait_for("strace ends", lambda: tracer.poll() is not None, 5)
        used = daemon.cpu_seconds() - before
        found = calls(path)
        total = sum(found.values())
        expect(total <= 30 * seconds, f"{total} system calls in {seconds} idle seconds: {found}")
        expect(used <= 0.01 * seconds + 0.02, f"{used:.2f} s CPU in {seconds} idle seconds")
        return f"{total} in {seconds} s: {found}"


@test
def idle_memory(ctx):
    """Under 12 MB resident without a client."""
    if ctx.sanitized:
        raise Skip("sanitizers take memory of their own")
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        first = max(d.rss_kib() for d in daemons)
        Job(lab, daemons, [2, 2], "loop", "--iterations=20", "--count=1000000").finish(20)
        time.sleep(1)
        after = max(d.rss_kib() for d in daemons)
        expect(first < 12000, f"resident {first} KiB after the start")
        expect(after < 12000, f"resident {after} KiB after a job of 4 MB operations")
        return f"{first} KiB at the start, {after} KiB after a job"


@test
def communicator_over_connected_daemons(ctx):
    """2 hosts x 4 ranks make one by id and by split in 5 ms at most, half of all times."""
    found = []
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        for variant in ("id", "split"):
            job = Job(lab, daemons, [4, 4], "comms", f"--variant={variant}", "--iterations=50")
            job.finish(60)
            rows = [[float(us) for us in rank.lines("comms")[0].split()] for rank in job.ranks]
            make, worst, destroy, cycle = (max(column) / 1e3 for column in zip(*rows))
            found.append(f"{variant} {make:.2f} ms (at most {worst:.2f}), destroyed in "
                         f"{destroy:.2f}, all in all {cycle:.2f}")
            if not ctx.sanitized:
                expect(make <= 5, f"by {variant}, it takes {make:.2f} ms")
    return "; ".join(found)
