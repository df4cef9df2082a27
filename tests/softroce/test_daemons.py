# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Daemons and jobs on hosts with RoCE devices."""
from harness.lab import Job, expect
from harness.runner import test


@test
def matrix_over_tcp(ctx):
    """The collective matrix of the integration suite, over the rails' TCP."""
    with ctx.lab(rails=2) as lab:
        daemons = lab.daemons({"peer": {"transport": "tcp"}})
        job = Job(lab, daemons, [2, 2], "matrix", "--short")
        job.finish(300)
        return f"{job.ranks[0].lines('digest')[0].split()[-1]} cases a rank"


@test
def train_step_over_tcp(ctx):
    """The demo's main job: a training step of ResNet-50 on two hosts, a rank each."""
    with ctx.lab() as lab:
        daemons = lab.daemons({"peer": {"transport": "tcp"}})
        ranks = []
        for rank, daemon in enumerate(daemons):
            env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "29500",
                   "MASTER_ADDR": lab.hosts[0].address, "ROCECOMM_SOCKET": daemon.socket}
            command = daemon.host.prefix() + [lab.program("tools/train-step/train-step"), "2"]
            ranks.append(lab.spawn(command, log=f"{lab.dir}/rank{rank}", env=env))
        codes = [r.wait(120) for r in ranks]
        with open(f"{lab.dir}/rank0", encoding="utf-8") as f:
            text = f.read()
        expect(codes == [0, 0] and "step" in text, f"exit codes {codes}\n{text}\n{daemons[0].log()}")
