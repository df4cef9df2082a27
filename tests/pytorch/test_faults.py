# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What a program is told on every rank when another fails, on two hosts of two ranks each."""
import os
import signal
import time

from harness.lab import expect, wait_for
from harness.runner import test
from torchlab import HERE

FAULTS = os.path.join(HERE, "programs/faults.py")
RESTART = os.path.join(HERE, "programs/restart.py")
SOON = 6.0  # seconds; the daemons promise two


def errors(job, ranks, words, kind="DistBackendError"):
    """Every one of these ranks was told all of these words; returns the first one's sentence."""
    job.wait(60, ranks)
    for process in ranks:
        said = process.lines("error")
        expect(said, f"{process.name} has no error\n{job.report()}")
        expect(process.lines("kind") == [kind], f"{process.name}: {process.lines('kind')}: {said}")
        for word in words:
            expect(word in said[0], f"{process.name}: '{word}' is not in: {said[0]}")
    return ranks[0].lines("error")[0]


def killed(ctx, scenario, kind):
    with ctx.lab(2) as lab:
        with ctx.job(lab, lab.daemons(), [2, 2], FAULTS, scenario) as job:
            job.wait_line("ready")
            time.sleep(0.5)
            job.processes[3].process.kill()
            begin = time.monotonic()
            text = errors(job, job.processes[:3], ["rank 3", "hostB"], kind)
            took = time.monotonic() - begin
    expect(took < SOON * lab.slow, f"told after {took:.1f} s")
    return f"{took:.1f} s: {text}"


@test
def rank_killed(ctx):
    """In all_reduce: every other rank is told which rank, on which host."""
    return killed(ctx, "reduce", "DistBackendError")


@test
def rank_killed_in_backward(ctx):
    """In DistributedDataParallel: backward() raises it."""
    return killed(ctx, "train", "RuntimeError")


@test
def rank_late(ctx):
    """The group's timeout passes: the ranks that wait are told for whom."""
    with ctx.lab(2) as lab:
        with ctx.job(lab, lab.daemons(), [2, 2], FAULTS, "late") as job:
            job.wait_line("ready")
            return errors(job, job.processes[:3], ["rank 3", "timeout"])


@test
def ranks_disagree(ctx):
    """Both lengths and the rank are named, on all ranks."""
    with ctx.lab(2) as lab:
        with ctx.job(lab, lab.daemons(), [2, 2], FAULTS, "disagree") as job:
            job.wait_line("ready")
            return errors(job, job.processes, ["rank 3", "8", "9"])


@test
def daemon_killed(ctx):
    """Ranks of the other host are told of its host, its own that the daemon is gone."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        with ctx.job(lab, daemons, [2, 2], FAULTS, "reduce") as job:
            job.wait_line("ready")
            time.sleep(0.5)
            daemons[1].kill(signal.SIGKILL)
            far = errors(job, job.processes[:2], ["hostB"])
            near = errors(job, job.processes[2:], ["daemon"])
            return f"{far}; and its own ranks: {near}"


@test
def daemon_missing(ctx):
    """A host without a daemon: the ranks of the other are told at once, not when time is up."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        daemons[1].kill(signal.SIGKILL)
        with ctx.job(lab, daemons, [2, 2], FAULTS, "start") as job:
            near = errors(job, job.processes[2:], ["daemon"])
            far = errors(job, job.processes[:2], ["hostB", "daemon"])
            took = max(float(p.lines("after")[0]) for p in job.processes)
    expect(took < 3 * SOON * lab.slow, f"told after {took:.1f} s")
    return f"{took:.1f} s: {far}; and its own ranks: {near}"


@test
def interrupted_wait(ctx):
    """Ctrl-C leaves a wait at once, as KeyboardInterrupt."""
    with ctx.lab(2) as lab:
        with ctx.job(lab, lab.daemons(), [2, 2], FAULTS, "wait") as job:
            job.wait_line("ready")
            time.sleep(1)
            begin = time.monotonic()
            os.kill(job.processes[0].pid, signal.SIGINT)
            errors(job, job.processes[:1], [], "KeyboardInterrupt")
            took = time.monotonic() - begin
            expect(took < 2 * lab.slow, f"left after {took:.1f} s")
            # It has left the job: the others that wait are told so.
            errors(job, job.processes[1:3], ["rank 0", "hostA"])
    return f"left after {took:.2f} s"


@test
def exit_beside_a_callback(ctx):
    """A future's callback still runs when the program ends: that waits for it, and does not abort."""
    with ctx.lab(2) as lab:
        with ctx.job(lab, lab.daemons(), [2, 2], FAULTS, "leave") as job:
            job.finish()
            for process in job.processes:
                expect(process.lines("called"), job.report())


@test
def elastic_restart(ctx):
    """torchrun starts all ranks of both hosts again after one died; the daemons join them again."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        marker = os.path.join(lab.dir, "died")

        # Only with this rendezvous do both agents begin anew. Names of hosts cannot be looked up.
        def torchrun(number):
            return [*ctx.torchrun, "--max-restarts=2", "--monitor-interval=0.2",
                    "--rdzv-backend=c10d", f"--rdzv-endpoint={lab.hosts[0].address}:29400",
                    "--rdzv-conf", f"is_host={number == 0}"]

        with ctx.job(lab, daemons, [2, 2], RESTART, marker, torchrun=torchrun) as job:
            job.finish(180)
            said = [line for p in job.processes for line in p.lines("finished")]
            expect(len(said) == 4 and os.path.exists(marker), f"{said}\n{job.report()}")
        for daemon in daemons:
            wait_for(f"{daemon.name} has no communicator left",
                     lambda d=daemon: not d.status()["jobs"])
            expect(daemon.alive(), daemon.log())
    return "4 ranks finished after a restart"
