# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Ranks and daemons that die, ranks that disagree or are late."""
import os
import signal
import time

from harness.lab import Job, LabError, expect, wait_for
from harness.runner import test


def errors_of(job, without=()):
    """{rank: (status, text)} of ranks that ended with an error."""
    found = {}
    for rank in job.ranks:
        if rank.rank in without:
            continue
        lines = rank.lines("error")
        expect(lines, f"rank {rank.rank} saw no error\n{job.report()}")
        status, _, text = lines[0].split(" ", 2)
        found[rank.rank] = (status, text)
    return found


def status_is(status, name):
    return name.lower().replace("_", "-") in status.lower().replace("_", "-")


def after_death(ctx, strike, victims, per_host=(2, 2)):
    """Loops on all ranks, strikes, and looks at the survivors and at a job that is not hit."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        job = Job(lab, daemons, per_host, "loop", "--iterations=1000000000", "--count=100000")
        job.wait_ready()
        other = None
        if victims != "host":
            other = Job(lab, daemons, per_host, "random", "--seconds=6", "--comms=2")
        time.sleep(1)
        begin = time.monotonic()
        dead = strike(lab, daemons, job)
        survivors = [r for r in job.ranks if r.rank not in dead]
        try:
            for rank in survivors:
                rank.process.wait(2.0 * lab.slow + 0.5)
        except Exception as e:
            raise LabError(f"a survivor goes on: {e}\n{job.report()}") from e
        took = time.monotonic() - begin
        errors = errors_of(job, dead)
        for status, text in errors.values():
            expect(status_is(status, "PEER_DIED") or status_is(status, "NO_DAEMON"),
                   f"{status}: {text}")
        if other:
            other.finish(60)
        sample = errors[survivors[-1].rank]
        return errors, f"after {took:.2f} s: {sample[0]}: {sample[1]}"


@test
def killed_rank_is_named(ctx):
    def strike(_lab, _daemons, job):
        job.ranks[3].process.kill()
        return {3}

    errors, note = after_death(ctx, strike, "rank")
    for status, text in errors.values():
        expect(status_is(status, "PEER_DIED"), f"{status}: {text}")
        expect("rank 3" in text and "hostB" in text, f"does not name rank 3 on hostB: {text}")
    return note


@test
def killed_daemon_is_named(ctx):
    def strike(_lab, daemons, _job):
        daemons[1].kill(signal.SIGKILL)
        return set()

    errors, note = after_death(ctx, strike, "host")
    for rank in (0, 1):
        status, text = errors[rank]
        expect(status_is(status, "PEER_DIED"), f"{status}: {text}")
        expect("hostB" in text, f"does not name hostB: {text}")
    return note


@test
def sigterm_ends_within_2_s(ctx):
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        job = Job(lab, daemons, [2, 2], "loop", "--iterations=1000000000", "--count=1000")
        job.wait_ready()
        took = daemons[1].stop()
        expect(took < 2.0 * lab.slow, f"SIGTERM took {took:.2f} s")
        expect(daemons[1].process.returncode == 0,
               f"exit status {daemons[1].process.returncode}:\n{daemons[1].log()}")
        job.wait(10)
        errors = errors_of(job)
        expect(status_is(errors[3][0], "SHUTDOWN"), f"local rank: {errors[3]}")
        for rank in (0, 1):
            expect(status_is(errors[rank][0], "PEER_DIED") or
                   status_is(errors[rank][0], "SHUTDOWN"), f"{errors[rank]}")
            expect("hostB" in errors[rank][1], f"does not name hostB: {errors[rank][1]}")
        return f"{took:.2f} s; elsewhere: {errors[0][1]}"


@test
def new_communicator_after_a_death(ctx):
    """The daemons go on: a new job of fewer ranks works at once."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        job = Job(lab, daemons, [2, 2], "loop", "--iterations=1000000000", "--count=4000000")
        job.wait_ready()
        job.ranks[0].process.kill()
        job.wait(10)
        Job(lab, daemons, [1, 2], "loop", "--iterations=20").finish(20)
        before = [d.cpu_seconds() for d in daemons]
        time.sleep(2)
        used = [d.cpu_seconds() - b for d, b in zip(daemons, before)]
        expect(all(u < 0.2 * lab.slow for u in used), f"idle daemons used {used} s CPU of 2 s")


def mismatch(ctx, variant, words):
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        other = Job(lab, daemons, [1, 1], "random", "--seconds=3")
        job = Job(lab, daemons, [2, 2], "mismatch", f"--variant={variant}", "--count=16")
        job.wait(20)
        for rank, (status, text) in errors_of(job).items():
            expect(status_is(status, "MISMATCH"), f"rank {rank}: {status}: {text}")
            for word in words:
                expect(word in text, f"rank {rank}: '{word}' is not in: {text}")
        for rank in job.ranks:
            took = int(rank.lines("error")[0].split(" ")[1])
            expect(took < 2000 * lab.slow, f"rank {rank.rank} took {took} ms")
        sample = job.ranks[0].lines("error")[0]
        other.finish(30)
        return sample.split(" ", 2)[2]


@test
def mismatch_count(ctx):
    return mismatch(ctx, "count", ["16", "8", "allreduce"])


@test
def mismatch_dtype(ctx):
    return mismatch(ctx, "dtype", ["f32", "i32"])


@test
def mismatch_dtype_of_equal_bytes(ctx):
    return mismatch(ctx, "dtype-bytes", ["f32", "bf16"])


@test
def mismatch_op(ctx):
    return mismatch(ctx, "op", ["sum", "max"])


@test
def mismatch_kind(ctx):
    return mismatch(ctx, "kind", ["allreduce", "broadcast"])


@test
def mismatch_root(ctx):
    return mismatch(ctx, "root", ["broadcast", "root"])


@test
def mismatch_order(ctx):
    return mismatch(ctx, "order", ["allreduce", "broadcast"])


@test
def rank_that_never_arrives_is_named(ctx):
    """Arrival time-out of 1 s, rank 2 four seconds late."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        job = Job(lab, daemons, [2, 2], "mismatch", "--variant=skip", "--arrival-ms=1000")
        job.wait(20)
        for rank, (status, text) in errors_of(job, {2}).items():
            expect(status_is(status, "TIMEOUT"), f"rank {rank}: {status}: {text}")
            expect("rank 2" in text or "ranks 2" in text, f"does not name rank 2: {text}")
        return job.ranks[0].lines("error")[0].split(" ", 2)[2]


@test
def late_rank_within_its_time(ctx):
    """A rank that is late, but not later than it may be, harms nobody."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons({"daemon": {"transfer_timeout_ms": 300}})
        Job(lab, daemons, [2, 2], "loop", "--iterations=5", "--late=2:1500").finish(20)


@test
def stopped_rank_goes_on(ctx):
    """SIGSTOP for a while, then SIGCONT: the operation ends well."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        job = Job(lab, daemons, [2, 2], "loop", "--iterations=300", "--count=100000")
        job.wait_ready()
        os.kill(job.ranks[1].pid, signal.SIGSTOP)
        time.sleep(1.5)
        os.kill(job.ranks[1].pid, signal.SIGCONT)
        job.finish(60)


@test
def death_while_joining(ctx):
    """A rank that dies before all have joined: the others are told, not left waiting."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        job = Job(lab, daemons, [2, 2], "loop", "--iterations=3",
                  wrap={3: ["sh", "-c", "sleep 60", "--"]})
        wait_for("three ranks have joined", lambda: "collcheck" in str(daemons[0].status()), 10)
        time.sleep(0.5)
        job.ranks[1].process.kill()
        for rank in (0, 2):
            job.ranks[rank].process.wait(5)
            expect("rank 1" in job.ranks[rank].errors(),
                   f"rank {rank} does not name rank 1: {job.ranks[rank].errors()}")
        return job.ranks[2].errors()
