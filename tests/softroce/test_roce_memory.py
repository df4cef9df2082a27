# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Memory that devices have, and devices that the configuration takes away: on real soft-RoCE."""
import json

import roce
from harness.lab import Job, expect, wait_for
from harness.runner import test


@test
def roce_check_copies_nothing(ctx):
    """What rocectl check sends comes from and goes to registered memory, as a client's does."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma"))
        roce.connect(lab, daemons)
        before = [d.status()["thread"] for d in daemons]
        seen = json.loads(daemons[0].ctl("check", "--json", "--seconds=1", lab.hosts[1].name).stdout)
        after = [d.status()["thread"] for d in daemons]
        sent = after[0]["bytes_rdma_sent"] - before[0]["bytes_rdma_sent"]
        copied = [b["bytes_copied"] - a["bytes_copied"] for a, b in zip(before, after)]
        expect(seen["ok"] and sent >= seen["bandwidth"]["messages"] << 20, f"{sent} {seen}")
        # Messages of 8 bytes, and acknowledgements, go in frames, which are copied.
        expect(max(copied) < sent // 50, f"{copied} of {sent}")
        return f"{copied} of {sent} bytes copied"


@test
def roce_links_count_memory(ctx):
    """rocectl links: what is registered while a job runs, and no more when it is over."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma"))
        roce.connect(lab, daemons)

        def memory():
            return [d for d in roce.links(daemons[0])["devices"] if d["used"]][0]["memory"]
        before = memory()
        job = Job(lab, daemons, [1, 1], "loop", f"--count={4 << 20}", "--iterations=1000000")
        wait_for(lambda: f"{before} {memory()}",
                 lambda: memory()["bytes"] >= before["bytes"] + (16 << 20), 60)
        job.kill()
        wait_for(lambda: f"{before} {memory()}", lambda: memory() == before, 30)
        expect("registered" in daemons[0].ctl("links").stdout, daemons[0].ctl("links").stdout)
        return f"{before}"
