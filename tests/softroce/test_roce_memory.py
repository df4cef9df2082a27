# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Memory that devices have, and devices that the configuration takes away: on real soft-RoCE."""
import json
import signal

import roce
from harness.lab import Daemon, Job, expect, wait_for
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


def deny(daemon, settings, names):
    """A new list of denied devices, by SIGHUP; the daemon has read it when this returns."""
    settings["rdma"]["devices_denied"] = names
    daemon.write_config(settings)
    daemon.kill(signal.SIGHUP)

    def shown():
        line = [x for x in daemon.ctl("config").stdout.split("\n") if x.startswith("rdma.devices_denied")]
        return ("roce*" in line[0]) == bool(names)
    wait_for(lambda: daemon.ctl("config").stdout, shown, 10)


@test
def roce_device_denied_by_reload(ctx):
    """A reload denies the device in the middle of a job: TCP carries on; allowed again, RDMA does."""
    with ctx.lab() as lab:
        settings = [roce.settings(reopen_ms=100), roce.settings(reopen_ms=100)]
        daemons = [Daemon(lab, lab.hosts[0], settings[0]), Daemon(lab, lab.hosts[1], settings[1])]
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        rounds = roce.rounds(ctx, 4)
        job = Job(lab, daemons, [1, 1], "loop", f"--count={1 << 18}", "--iterations=1000000")
        for i in range(rounds):
            h = i % 2
            deny(daemons[h], settings[h], "roce*")
            for daemon in daemons:
                wait_for(lambda: f"TCP, round {i}:\n{roce.describe(daemons)}",
                         lambda d=daemon: roce.transport(d) == "tcp", 30)
            used = [d for d in roce.links(daemons[h])["devices"] if d["used"]]
            expect(not used, f"{used}")
            reasons = str(roce.paths(daemons[h]))
            expect("denied by the configuration" in reasons, reasons)
            before = [d.status()["thread"]["loops"] for d in daemons]
            deny(daemons[h], settings[h], "")
            for daemon in daemons:
                wait_for(lambda: f"RDMA, round {i}:\n{roce.describe(daemons)}",
                         lambda d=daemon: roce.transport(d) == "rdma", 60)
            expect(all(d.status()["thread"]["loops"] > b for d, b in zip(daemons, before)), "it hangs")
        expect(job.ranks[0].process.poll() is None and job.ranks[1].process.poll() is None, "it failed")
        job.kill()
        return f"{rounds} rounds"
