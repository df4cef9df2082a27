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
def matrix_over_rdma(ctx):
    """The same over RDMA, which is what daemons take by themselves: the same bits, nearly nothing on TCP."""
    digests = []
    for transport in ("tcp", "auto"):
        with ctx.lab(rails=2) as lab:
            daemons = lab.daemons({"peer": {"transport": transport}})
            for host in lab.hosts:
                host.roce_counters()
            job = Job(lab, daemons, [2, 2], "matrix", "--short")
            job.finish(300)
            digests.append(job.ranks[0].lines("digest"))
            counted = [host.roce_counted() for host in lab.hosts]
            log = daemons[0].log(200)
    expect(digests[0] == digests[1], f"the results differ: {digests}")
    expect("data goes by RDMA" in log, f"no word of RDMA:\n{log}")
    for c in counted:
        expect(c["roce"][1] > 20 * c["tcp"][1], f"bytes on UDP 4791 and on TCP: {counted}\n{log}")
    return f"{digests[0][0].split()[-1]} cases a rank, bytes on UDP 4791 {counted[0]['roce'][1]}, " \
           f"on TCP {counted[0]['tcp'][1]}"


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
