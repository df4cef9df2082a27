# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Programs that train, over two hosts with torchrun: the losses are those of Gloo."""
import os
import re

from harness.lab import expect, wait_for
from harness.runner import test
from torchlab import EXAMPLES, HERE, PATIENT

NUMBER = re.compile(r"(?:loss|right) +([0-9.]+)")
TOLERANCE = 1e-3  # of a loss; the order of summation differs between backends


def train(ctx, lab, daemons, backend, program, *arguments, watch=None):
    """What rank 0 printed, line by line."""
    with ctx.job(lab, daemons, [2, 2], program, f"--backend={backend}", *arguments,
                 torchrun=ctx.torchrun) as job:
        seen = watch(job) if watch else None
        lines = [line for line in job.finish(240).split("\n") if NUMBER.search(line)]
        return lines, seen


def compare(ctx, program, *arguments, watch=None, twice=False):
    """Runs both backends, ours perhaps twice; the note says how equal they were."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons(PATIENT)
        roce, seen = train(ctx, lab, daemons, "roce", program, *arguments, watch=watch)
        gloo, _ = train(ctx, lab, daemons, "gloo", program, *arguments)
        if twice:
            again, _ = train(ctx, lab, daemons, "roce", program, *arguments)
            expect(roce == again, f"two runs differ: {roce} and {again}")
    expect(len(roce) == len(gloo) > 2, f"{roce} against {gloo}")
    for ours, theirs in zip(roce, gloo):
        a, b = (float(NUMBER.search(line)[1]) for line in (ours, theirs))
        expect(abs(a - b) <= TOLERANCE * abs(b), f"'{ours}', Gloo has '{theirs}'")
    first, last = (float(NUMBER.search(roce[i])[1]) for i in (0, -2))
    expect(last < first, f"it learns nothing: {roce}")
    same = sum(a == b for a, b in zip(roce, gloo))
    return f"{same} of {len(gloo)} lines as Gloo's to the last digit; {roce[-1]}", seen


@test
def example_ddp_digits(ctx):
    """DistributedDataParallel, twice the same; rocectl shows the job while it runs."""
    def watch(job):
        daemon = job.daemons[0]
        return wait_for(lambda: "the job in rocectl status",
                        lambda: "ddp_digits" in (text := daemon.ctl("status").stdout) and text, 60)

    note, status = compare(ctx, os.path.join(EXAMPLES, "ddp_digits.py"), "--epochs=4",
                           watch=watch, twice=True)
    expect("ddp_digits" in status, status)
    return note


@test
def example_fsdp_transformer(ctx):
    """FSDP2."""
    return compare(ctx, os.path.join(EXAMPLES, "fsdp_transformer.py"), "--steps=30")[0]


@test
def lightning_fabric(ctx):
    """Lightning Fabric trains over the backend, named in one place."""
    return compare(ctx, os.path.join(HERE, "programs/fabric_train.py"))[0]


@test
def hugging_face_accelerate(ctx):
    """Hugging Face Accelerate trains over the backend, named in one place."""
    return compare(ctx, os.path.join(HERE, "programs/accelerate_train.py"))[0]


@test
def torchtnt(ctx):
    """TorchTNT trains over the backend, named in one place."""
    return compare(ctx, os.path.join(HERE, "programs/torchtnt_train.py"))[0]
