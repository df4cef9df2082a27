# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Are the results right: every operation, layouts, two jobs at once."""
from harness.lab import Job, expect
from harness.runner import test

LAYOUTS = {"1x1": [1], "1x4": [4], "2x1": [1, 1], "2x4": [4, 4], "3-hosts-1-4-2": [1, 4, 2]}


def matrix(ctx, layout):
    """Twice; both runs must give the same bits."""
    per_host = LAYOUTS[layout]
    with ctx.lab(len(per_host)) as lab:
        daemons = lab.daemons()
        digests = []
        for _ in range(2):
            job = Job(lab, daemons, per_host, "matrix", *(["--short"] if ctx.short else []))
            job.finish(600)
            digests.append([r.lines("digest") for r in job.ranks])
        expect(digests[0] == digests[1], f"the two runs differ: {digests}")
        return f"{digests[0][0][0].split()[-1]} cases a rank, twice"


@test
def matrix_1x1(ctx):
    return matrix(ctx, "1x1")


@test
def matrix_1x4(ctx):
    return matrix(ctx, "1x4")


@test
def matrix_2x1(ctx):
    return matrix(ctx, "2x1")


@test
def matrix_2x4(ctx):
    return matrix(ctx, "2x4")


@test
def matrix_3_hosts_1_4_2(ctx):
    return matrix(ctx, "3-hosts-1-4-2")


@test
def floats_are_equal_everywhere(ctx):
    """Arbitrary floats: the same bits on all ranks and in two runs, near the reference."""
    with ctx.lab(3) as lab:
        daemons = lab.daemons()
        digests = set()
        for _ in range(2):
            job = Job(lab, daemons, [1, 4, 2], "bits")
            job.finish(120)
            digests |= {line for r in job.ranks for line in r.lines("digest")}
        expect(len(digests) == 1, f"results differ: {digests}")


@test
def two_jobs_eight_communicators(ctx):
    seconds = 5 if ctx.short else 60
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        jobs = [Job(lab, daemons, [4, 4], "random", "--comms=8", f"--seconds={seconds}",
                    f"--seed={seed}", name=f"job{seed}") for seed in (1, 2)]
        for job in jobs:
            job.finish(seconds + 90)
        done = [int(j.ranks[0].lines("done")[0].split()[0]) for j in jobs]
        expect(all(d > 0 for d in done), f"operations: {done}")
        return f"{done[0]} and {done[1]} operations in {seconds} s"


@test
def settings_at_their_least(ctx):
    """No eager messages but empty ones, one credit, the smallest chunks, no spinning."""
    seconds = 3 if ctx.short else 10
    settings = {"peer": {"eager_kib": 0, "eager_credits": 1, "chunk_kib": 4},
                "daemon": {"progress_spin_us": 0}}
    with ctx.lab(2) as lab:
        job = Job(lab, lab.daemons(settings), [2, 1], "random", f"--seconds={seconds}")
        job.finish(seconds + 60)
        done = int(job.ranks[0].lines("done")[0].split()[0])
        expect(done > 0, f"{done} operations")
        return f"{done} operations in {seconds} s"
