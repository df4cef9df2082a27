# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""More buffers than may be registered with devices: they give way and come back, on real soft-RoCE."""
import roce
from harness.lab import Daemon, Job, expect, wait_for
from harness.runner import test

FLOATS = 1 << 16
BYTES = 4 * FLOATS
BUFFERS = 16


def memory(daemon):
    return roce.links(daemon)["memory"]


def used_device(daemon):
    return [d for d in roce.links(daemon)["devices"] if d["used"]][0]


def own_memory(daemon):
    """What is registered when nobody has buffers: the daemon's own."""
    wait_for(lambda: f"clients are gone: {daemon.status()['daemon']}",
             lambda: daemon.status()["daemon"]["buffers"] == 0, 30)
    return used_device(daemon)["memory"]


def sums(ctx, lab, daemons, buffers=BUFFERS, floats=FLOATS, pause=1100, iterations=0):
    """Sums in place with changing buffers; every value is checked. Every tenth begins after a pause."""
    iterations = iterations or (30 if ctx.short else 60)
    return Job(lab, daemons, [1] * len(daemons), "buffers", f"--count={floats}", f"--buffers={buffers}",
               f"--iterations={iterations}", f"--late=0:{pause}", name="buffers")


def sent_over_rdma(daemon):
    return daemon.status()["thread"]["bytes_rdma_sent"]


@test
def roce_buffers_give_way(ctx):
    """Five regions for sixteen buffers: right sums, over RDMA, and never more than five; no rail fails."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma", max_regions=5))
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        own = own_memory(daemons[0])["regions"]
        before = [sent_over_rdma(d) for d in daemons]
        iterations = 30 if ctx.short else 60
        sums(ctx, lab, daemons, iterations=iterations).finish(240)
        for daemon, sent in zip(daemons, before):
            seen = memory(daemon)
            expect(seen["evictions"] >= BUFFERS - 5 and seen["returns"] > 0, f"{seen}")
            expect(sent_over_rdma(daemon) - sent >= iterations * 3 * BYTES, "not over RDMA")
            expect(all(r["failures"] == 0 for r in roce.rails(daemon)), roce.describe(daemons))
            expect(own_memory(daemon)["regions"] == own, f"{used_device(daemon)['memory']}")
            expect(memory(daemon)["staged"] == 0, f"its client is gone: {memory(daemon)}")
            expect(used_device(daemon)["registrations"]["evicted"] == seen["evictions"], f"{seen}")
            expect(daemon.status()["thread"]["rdma_evictions"] == seen["evictions"], f"{seen}")
            expect("gave way" in daemon.ctl("links").stdout, daemon.ctl("links").stdout)
        return f"{memory(daemons[0])}"


@test
def roce_room_is_bounded(ctx):
    """While a job runs, no more is registered than max_pinned says, beside the daemon's own."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma", max_pinned=4 * BYTES))
        roce.connect(lab, daemons)
        own = own_memory(daemons[0])["bytes"]
        job = sums(ctx, lab, daemons, pause=300)
        most = 0
        while any(r.process.poll() is None for r in job.ranks):
            most = max(most, used_device(daemons[0])["memory"]["bytes"])
        job.finish(10)
        expect(own < most <= own + 4 * BYTES, f"{most} beside {own}")
        return f"{most - own} of {BUFFERS * BYTES} bytes"


@test
def roce_tenant_has_a_quota(ctx):
    """max_pinned of a tenant: its own buffers give way; what is larger is staged, and said to be."""
    with ctx.lab() as lab:
        settings = roce.settings("rdma")
        settings["tenant default"] = {"max_pinned": 4 * BYTES}
        daemons = lab.daemons(settings)
        roce.connect(lab, daemons)
        sums(ctx, lab, daemons, pause=300).finish(240)
        evictions = memory(daemons[0])["evictions"]
        expect(evictions > 0, f"{memory(daemons[0])}")
        own_memory(daemons[0])
        tenant = daemons[0].status()["tenants"][0]
        expect(tenant["pinned"] == {"used": 0, "limit": 4 * BYTES}, f"{tenant}")
        roce.flow(lab, daemons, 5 * FLOATS, 5).finish(120)
        seen = memory(daemons[0])
        expect(seen["fallbacks"] > 0 and "max_pinned of tenant default" in seen["reason"], f"{seen}")
        text = daemons[0].ctl("links").stdout
        expect("max_pinned of tenant default" in text, text)
        expect(daemons[0].log().count("max_pinned of tenant default") == 1, daemons[0].log())
        return f"{evictions} gave way; {seen['reason']}"


@test
def roce_locked_memory_makes_room(ctx):
    """A limit of locked memory that is too low for all buffers: some give way, RDMA stays, nothing fails."""
    with ctx.lab() as lab:
        wrap = ["prlimit", f"--memlock={64 << 20}", "--", "setpriv", "--bounding-set", "-ipc_lock", "--"]
        daemons = [Daemon(lab, host, roce.settings("rdma"), wrap=wrap) for host in lab.hosts]
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        sums(ctx, lab, daemons, buffers=20, floats=1 << 20, iterations=10 if ctx.short else 20).finish(240)
        for daemon in daemons:
            seen = memory(daemon)
            expect(seen["evictions"] > 0, f"{seen}")
            expect(used_device(daemon)["memory"]["refused"]["memlock"] == 0, f"{used_device(daemon)}")
            expect(all(r["failures"] == 0 for r in roce.rails(daemon)), roce.describe(daemons))
        return f"{memory(daemons[0])}"
