# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""One package on three releases of PyTorch: values of all operations, and training, on two hosts."""
import os
import shutil

import roots
from harness.lab import expect
from harness.runner import Skip, test
from torchlab import PATIENT, TOP, Job

CHECKS = os.path.join(TOP, "tests/python")
# Debian's builds have no libuv, but 2.6 asks for it.
WITHOUT_LIBUV = {"USE_LIBUV": "0"}
# The others of check_process.py look at the daemon, by means that are not here.
PROCESS = ["data_parallel", "lent_tensors_in", "many_tensors", "hooks", "join", "zero_redundancy",
           "sharded", "tensors_over_a_mesh"]


def count_good(job, seconds):
    """How many checks went well; all ranks must have done the same."""
    job.finish(seconds)
    done = {len([line for line in p.output().split("\n") if line.startswith("ok - ")])
            for p in job.processes}
    expect(len(done) == 1 and done != {0}, f"ranks ran {done} checks\n{job.report()}")
    return done.pop()


def smoke(ctx, python, want, env=None):
    """Both sets of checks by an interpreter; the note says with which PyTorch."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons(PATIENT)
        programs = os.path.join(lab.dir, "programs")  # where a root sees them too
        shutil.copytree(CHECKS, programs)
        package = os.path.join(lab.dir, "package")
        shutil.copytree(ctx.package, package)
        say = [*python, "-c", "import torch; print('version', torch.__version__)"]
        with Job(lab, package, daemons, [1], say) as job:
            job.finish(120)
            version = job.processes[0].lines("version")[0]
        if not version.startswith(want):
            raise Skip(f"PyTorch here is {version}, not {want}")
        command = [*python, f"{programs}/check_group.py"]
        with Job(lab, package, daemons, [1, 1], command, env) as job:
            values = count_good(job, 240)
        command = [*python, f"{programs}/check_process.py", *PROCESS]
        with Job(lab, package, daemons, [2, 1], command, env) as job:
            training = count_good(job, 240)
    return f"PyTorch {version}: {values} checks of values, {training} of training"


def debian(ctx, release, want):
    """The PyTorch of a Debian release: this machine's, or that of a root."""
    here = roots.this_release()
    if here == release:
        return smoke(ctx, ["/usr/bin/python3"], want, WITHOUT_LIBUV)
    if here not in roots.RELEASES or roots.RELEASES.index(here) > roots.RELEASES.index(release):
        raise Skip(f"built on {here or 'no Debian'}, the library may not run on {release}")
    return smoke(ctx, [*roots.prefix(release), "/usr/bin/python3"], want, WITHOUT_LIBUV)


@test
def release_1_13_of_debian_12(ctx):
    """The oldest."""
    return debian(ctx, "bookworm", "1.13")


@test
def release_2_6_of_debian_13(ctx):
    """The one between."""
    return debian(ctx, "trixie", "2.6")


@test
def release_2_13_of_pypi(ctx):
    """The newest."""
    return smoke(ctx, [ctx.python], "2.13")
