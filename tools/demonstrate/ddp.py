# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""tools/demo ddp: PyTorch's DistributedDataParallel over two hosts, with "roce" and with Gloo."""
import argparse
import os
import re
import signal
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [os.path.join(TOP, "tests"), os.path.join(TOP, "tests/pytorch")]
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
from harness.lab import Lab, LabError, wait_for  # noqa: E402
from torchlab import EXAMPLES, PATIENT, Job, install  # noqa: E402

RANKS = 4  # a host
PROGRAM = "ddp_digits.py"
LOSS = re.compile(r"^epoch +(\d+) +loss +(\S+)", re.M)


def say(text=""):
    print(text, flush=True)


def show_status(job):
    """rocectl on both hosts, once the first epoch is over."""
    wait_for(lambda: "the first epoch\n" + job.report(),
             lambda: LOSS.search(job.processes[0].output())
             or job.processes[0].process.poll() is not None, 300)
    for daemon in job.daemons:
        say(f"{daemon.name}$ rocectl status")
        say(daemon.ctl("status").stdout)


def train(lab, package, daemons, backend, epochs):
    """{epoch: loss as printed}"""
    torchrun = [sys.executable, "-m", "torch.distributed.run"]
    program = os.path.join(EXAMPLES, PROGRAM)
    command = [sys.executable, program, f"--backend={backend}", f"--epochs={epochs}"]
    say(f"on both$ torchrun --nnodes 2 --nproc-per-node {RANKS} {PROGRAM} --backend {backend}")
    begin = time.monotonic()
    with Job(lab, package, daemons, [RANKS] * len(daemons), command, torchrun=torchrun) as job:
        if backend == "roce":
            show_status(job)
        text = job.finish(600)
    say("\n".join(line for line in text.split("\n") if line.startswith(("epoch", "right"))))
    say(f"({time.monotonic() - begin:.1f} s with the start of all processes)\n")
    return dict(LOSS.findall(text))


def compare(ours, theirs):
    """Says how equal the losses are; whether that is as it has to be."""
    apart = [e for e in theirs if ours.get(e) != theirs[e]]
    if not apart and len(ours) == len(theirs):
        say(f"All {len(ours)} losses are those of Gloo, to the last digit.")
        return True
    worst = max(abs(float(ours[e]) - float(theirs[e])) / float(theirs[e]) for e in apart)
    say(f"{len(theirs) - len(apart)} of {len(theirs)} losses are those of Gloo to the last digit; "
        f"the others are apart\nby a part of {worst:.0e}: gradients of eight ranks are summed in "
        "another order (first those of a\nhost, then those of the hosts), which changes their "
        "last bit.")
    return worst < 1e-3


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", required=True)
    parser.add_argument("--epochs", type=int, required=True)
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        with tempfile.TemporaryDirectory(prefix="rocecomm-demo-") as folder, \
                Lab(options.build, 2, mtu=9000) as lab:
            package = install(sys.executable, options.build, folder)
            daemons = lab.daemons(PATIENT)
            names = " and ".join(f"{h.name} ({h.address})" for h in lab.hosts)
            say(f"Two hosts, {names}, with a rocecommd each; {RANKS} ranks a host.\n")
            ours = train(lab, package, daemons, "roce", options.epochs)
            theirs = train(lab, package, daemons, "gloo", options.epochs)
            return 0 if compare(ours, theirs) else 1
    except LabError as e:
        sys.exit(f"demo: {e}")
    except KeyboardInterrupt:
        return 130


sys.exit(main())
