# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What goes wrong on RoCE networks: rails that go, filters, addresses, MTU, loss, missing devices."""
import contextlib
import time

import roce
from harness.lab import Daemon, Job, expect, wait_for
from harness.runner import test


def flow_of_64_mib(lab, daemons, count=10**6):
    return roce.flow(lab, daemons, roce.FLOATS_64_MIB, count)


@contextlib.contextmanager
def two_rails(ctx):
    """A laboratory, its daemons and a job that has begun, whose data takes two rails."""
    with ctx.lab(rails=2) as lab:
        daemons = lab.daemons(roce.settings("rdma"))
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons, 2)
        job = flow_of_64_mib(lab, daemons)
        roce.wait_begun(job, 1)
        yield lab, daemons, job


def wait_for_both(daemons, job, number):
    """Until both rails are used again, or the job has ended, which whoever disturbs it says."""
    wait_for(lambda: f"both rails are up again (round {number})\n{roce.describe(daemons)}",
             lambda: sum(r["state"] == "up" for r in roce.rails(daemons[0])) == 2
             or job.ranks[0].process.poll() is not None, 60, 0.1)


@test
def roce_rail_down_in_the_middle(ctx):
    """
    Two rails; one goes down in the middle of an allreduce of 64 MiB, again and again at random
    moments: the same bits, no hang, and the rail is used again after it came back.
    """
    count = roce.rounds(ctx, 6)
    with two_rails(ctx) as (lab, daemons, job):

        def flap(i):
            host, rail = lab.hosts[roce.MOMENTS.randrange(2)], roce.MOMENTS.randrange(2)
            host.ip("link", "set", f"eth{rail}", "down")
            time.sleep(0.2 + roce.MOMENTS.random())
            host.ip("link", "set", f"eth{rail}", "up")
            # The next round begins with both.
            wait_for_both(daemons, job, i)

        times = roce.disturbed(job, count, flap)
        left = len(roce.log_lines(daemons[0], "other rails carry on"))
        expect(left >= count / 2, f"rails were left {left} times in {count} rounds")
        before = [r["bytes_sent"] for r in roce.rails(daemons[0])]
        flow_of_64_mib(lab, daemons, 3).finish(120)
        after = [r["bytes_sent"] for r in roce.rails(daemons[0])]
        expect(all(a > b for a, b in zip(after, before)), f"bytes on rails: {before}, then {after}")
        return (f"{count} rounds, {len(times)} operations, rails left {left} times, longest "
                f"{max(times):.1f} s")


@test
def roce_full_queue_of_a_rail(ctx):
    """
    Two rails; the network refuses nearly all packets of one, as it does for a moment where a link
    goes down. rxe tries again at once then, for which kernel/rxe-task.patch is: without it the guest
    stands still. The other rail carries on, and this one is used again afterwards.
    """
    count = roce.rounds(ctx, 2)
    with two_rails(ctx) as (lab, daemons, job):

        def fill(i):
            host = lab.hosts[i % 2]
            host.disturb(1, "delay", "1s", "limit", "1")
            time.sleep(3)
            host.disturb(1)
            wait_for_both(daemons, job, i)

        with roce.pauses() as pauses:
            times = roce.disturbed(job, count, fill)
        expect(max(pauses) < 3 * lab.slow, f"the guest stood still for {max(pauses):.1f} s")
        roce.expect_rdma(daemons, 2)
        return (f"{count} rounds, {len(times)} operations, longest {max(times):.1f} s, longest pause "
                f"{max(pauses):.1f} s")


@test
def roce_filter_for_a_while(ctx):
    """UDP 4791 is dropped for some seconds: TCP carries on, and RDMA is used again afterwards."""
    count = roce.rounds(ctx, 3)
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings(reopen_ms=200))
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        job = flow_of_64_mib(lab, daemons)
        roce.wait_begun(job, 1)

        def block(i):
            lab.hosts[i % 2].block_roce()
            time.sleep(3)
            lab.hosts[i % 2].unblock_roce()

        times = roce.disturbed(job, count, block)
        roce.expect_rdma(daemons)
        return f"{count} rounds, {len(times)} operations, longest {max(times):.1f} s"


@test
def roce_filter_for_good_is_an_error_in_time(ctx):
    """RDMA is required and UDP 4791 stays blocked: an error that names what is needed to find it."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings(require="rdma", recover_timeout_ms=2000,
                                            ack_timeout=14))
        roce.connect(lab, daemons)
        job = roce.flow(lab, daemons, 1 << 20, 1000)
        roce.wait_begun(job, 2)
        lab.hosts[1].block_roce()
        begin = time.monotonic()
        errors = roce.error_of(job, 60)
        seconds = time.monotonic() - begin
        text = errors[0][2]
        expect(seconds < 20 * lab.slow, f"after {seconds:.1f} s: {text}")
        for word in ("the rails to host", lab.hosts[0].devices[0], lab.hosts[1].name, "4791"):
            expect(any(word in e[2] for e in errors), f"no {word} in: {errors}")
        for address in (lab.hosts[0].address, lab.hosts[1].address):
            expect(any(address in e[2] for e in errors), f"no GID {address} in: {errors}")
        return f"after {seconds:.1f} s: {text}"


@test
def roce_both_links_down_is_an_error_in_time(ctx):
    """Neither RDMA nor TCP: the peer is gone, and everybody is told."""
    with ctx.lab(rails=2) as lab:
        daemons = lab.daemons(roce.settings())
        roce.connect(lab, daemons)
        job = roce.flow(lab, daemons, 1 << 20, 1000)
        roce.wait_begun(job, 2)
        for rail in (0, 1):
            lab.hosts[0].ip("link", "set", f"eth{rail}", "down")
        begin = time.monotonic()
        errors = roce.error_of(job, 60)
        seconds = time.monotonic() - begin
        expect(seconds < 20 * lab.slow, f"after {seconds:.1f} s: {errors}")
        for rail in (0, 1):
            lab.hosts[0].ip("link", "set", f"eth{rail}", "up")
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons, 2)
        return f"after {seconds:.1f} s: {errors[0][0]}"


@test
def roce_filter_from_the_beginning(ctx):
    """TCP with the reason; where RDMA is required, the same reason at once."""
    with ctx.lab() as lab:
        lab.hosts[1].block_roce()
        daemons = lab.daemons(roce.settings(ack_timeout=12, probe_timeout_ms=1500))
        roce.flow(lab, daemons, 100000, 3).finish(60)
        wait_for(lambda: roce.describe(daemons),
                 lambda: any("4791" in r["reason"] for r in roce.rails(daemons[0])), 20, 0.2)
        seen = roce.paths(daemons[0])["peers"][0]
        expect(seen["transport"] == "tcp", f"{seen}")
        expect(roce.log_lines(daemons[0], "4791"), daemons[0].log())
        for daemon in daemons:
            daemon.stop()
            daemon.write_config(roce.settings(require="rdma", ack_timeout=12, probe_timeout_ms=1500))
            daemon.start()
        text, seconds = roce.refused(Job(lab, daemons, [1, 1], "loop", "--iterations=3"))
        expect("4791" in text and seconds < 10 * lab.slow, f"after {seconds:.1f} s: {text}")
        return text.split("\n")[0]


@test
def roce_no_device_on_one_host(ctx):
    """TCP and one warning a job; required: an error within five seconds with the same reason."""
    with ctx.lab() as lab:
        lab.hosts[1].run("rdma", "link", "delete", lab.hosts[1].devices[0])
        daemons = lab.daemons(roce.settings())
        job = roce.flow(lab, daemons, 10000, 10**6)
        job.wait_ready()
        for daemon in daemons:
            seen = roce.paths(daemon)["peers"][0]
            expect(seen["transport"] == "tcp", f"{seen}")
            expect(any("no RDMA device" in p["reason"] for p in seen["paths"]), f"{seen}")
            comm = daemon.status()["jobs"][0]["communicators"][0]
            expect(comm["path"].startswith("tcp") and "no RDMA device" in comm["path"], comm["path"])
        job.kill()
        warned = roce.log_lines(daemons[0], "no RDMA device")
        expect(1 <= len(warned) <= 3, f"{len(warned)} lines:\n{''.join(warned)}")
        for daemon in daemons:
            daemon.stop()
            daemon.write_config(roce.settings(require="rdma"))
            daemon.start()
        text, seconds = roce.refused(Job(lab, daemons, [1, 1], "loop", "--iterations=3"))
        expect("no RDMA device" in text and seconds < 5 * lab.slow, f"after {seconds:.1f} s: {text}")
        return text.split("\n")[0]


@test
def roce_device_comes_and_goes(ctx):
    """A device that is removed is left, one that is added is used, without a restart."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings())
        host = lab.hosts[1]
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        job = roce.flow(lab, daemons, 1 << 20, 60)
        roce.wait_begun(job, 2)
        host.run("rdma", "link", "delete", host.devices[0])
        wait_for(lambda: roce.describe(daemons), lambda: roce.transport(daemons[0]) == "tcp", 30, 0.2)
        job.finish(120)
        host.add_device(0)
        wait_for(lambda: f"the new device is used\n{roce.describe(daemons)}\n{daemons[1].log()}",
                 lambda: roce.transport(daemons[0]) == "rdma", 60, 0.5)
        roce.flow(lab, daemons, 100000, 3).finish(60)


@test
def roce_gids_change(ctx):
    """Addresses come, go and move to other indexes while data flows."""
    with ctx.lab(rails=2, gid_shift=True) as lab:
        daemons = lab.daemons(roce.settings())
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons, 2)
        job = roce.flow(lab, daemons, 1 << 20, 40)
        host = lab.hosts[1]
        roce.wait_begun(job, 2)
        host.ip("address", "add", "198.18.77.1/32", "dev", "eth0")
        host.ip("address", "delete", f"{host.rail_address(1)}/24", "dev", "eth1")
        roce.wait_begun(job, 6)
        host.ip("address", "add", "198.18.77.2/32", "dev", "eth1")
        host.ip("address", "add", f"{host.rail_address(1)}/24", "dev", "eth1")
        job.finish(240)
        roce.expect_rdma(daemons, 2)
        roce.flow(lab, daemons, 1 << 20, 3).finish(60)


@test
def roce_over_ipv6_only(ctx):
    with ctx.lab() as lab:
        for number, host in enumerate(lab.hosts):
            host.ip("-6", "address", "add", f"fd47::{number + 1}/64", "dev", "eth0", "nodad")
            host.ip("-4", "address", "flush", "dev", "eth0")
        daemons = lab.daemons(roce.settings("rdma"))
        roce.flow(lab, daemons, 1 << 20, 3).finish(60)
        roce.expect_rdma(daemons)
        rail = roce.rails(daemons[0])[0]
        expect((rail["gid"], rail["remote_gid"]) == ("fd47::1", "fd47::2"), f"{rail}")


@test
def roce_over_a_vlan(ctx):
    """The only addresses are those of VLAN 5: its GIDs are used, and its packets are tagged."""
    with ctx.lab() as lab:
        roce.addresses_on(lab, "eth0.5", "10.48.0", "vlan", "id", "5")
        daemons = lab.daemons(roce.settings())
        roce.flow(lab, daemons, 1 << 20, 3).finish(120)
        rails = roce.rails(daemons[0])
        expect(all(r["reason"] for r in rails), roce.describe(daemons))
        if roce.transport(daemons[0]) == "rdma":
            expect(rails[0]["gid"] == "10.48.0.1" and rails[0]["interface"] == "eth0.5", f"{rails}")
        return f"{roce.transport(daemons[0])}: {rails[0]['reason']}"


@test
def roce_different_mtu(ctx):
    """4096 bytes on one host, 1024 on the other: 1024 on both, and one warning with both values."""
    with ctx.lab() as lab:
        lab.hosts[1].ip("link", "set", "eth0", "mtu", "1500")
        daemons = lab.daemons(roce.settings("rdma"))
        job = flow_of_64_mib(lab, daemons, 2)
        job.finish(240)
        roce.expect_rdma(daemons)
        for daemon, mtus in zip(daemons, ((4096, 1024), (1024, 4096))):
            rail = roce.rails(daemon)[0]
            expect(rail["mtu"] == 1024 and (rail["local_mtu"], rail["remote_mtu"]) == mtus, f"{rail}")
        warned = roce.log_lines(daemons[0], "MTU")
        expect(len(warned) == 1 and "4096" in warned[0] and "1024" in warned[0]
               and lab.hosts[1].name in warned[0], f"{warned}\n{daemons[0].log()}")


@test
def roce_mtu_that_does_not_pass(ctx):
    """Both ports say 4096 bytes, packets of that size vanish: TCP with the reason, never a hang."""
    with ctx.lab() as lab:
        for host in lab.hosts:
            roce.firewall(host, "udp dport 4791 meta length > 2000 drop")
        daemons = lab.daemons(roce.settings(ack_timeout=12, probe_timeout_ms=2000))
        roce.flow(lab, daemons, 1 << 18, 3).finish(120)
        seen = roce.paths(daemons[0])["peers"][0]
        rail = [p for p in seen["paths"] if p["kind"] == "rdma"][0]
        expect(seen["transport"] == "tcp" and "small packets pass, those of the full MTU (4096) do not"
               in rail["reason"], f"{seen}")
        return rail["reason"]


@test
def roce_check_finds_a_black_hole(ctx):
    """Full packets vanish, of TCP too, small ones pass: rocectl check names the MTU in bounded time."""
    with ctx.lab() as lab:
        for host in lab.hosts:
            roce.firewall(host, "meta length > 1400 drop")
        settings = roce.settings(ack_timeout=12, probe_timeout_ms=2000)
        settings["daemon"] = {"transfer_timeout_ms": 6000}
        daemons = lab.daemons(settings)
        start = time.monotonic()
        done = daemons[0].ctl("check", "--seconds=0.5", lab.hosts[1].address, check=False)
        took = time.monotonic() - start
        expect(done.returncode == 4 and took < 30, f"{took:.1f} s: {done.returncode}: {done.stdout}")
        expect("are packets of the full MTU lost" in done.stdout, done.stdout)
        return f"{took:.1f} s"


@test
def roce_loss_and_order(ctx):
    """One packet in a hundred is lost, others are late: right results."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings())
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        for host in lab.hosts:
            host.disturb(0, "loss", "1%", "delay", "1ms", "reorder", "97%")
        job = roce.flow(lab, daemons, 1 << 18, 3 if ctx.short else 10)
        job.finish(300)
        seen = roce.links(daemons[0])["devices"][0]["ports"][0]["network"]
        for host in lab.hosts:
            host.disturb(0)
        expect(seen["out_of_sequence"] or seen["retransmits"], f"{seen}")
        return f"out of sequence {seen['out_of_sequence']}, sent again {seen['retransmits']}"


@test
def roce_port_events(ctx):
    """A port that nobody uses goes down: nothing happens. A used one comes back: it is used again."""
    with ctx.lab(rails=2) as lab:
        daemons = lab.daemons(roce.settings(devices_denied="eth1"))
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        job = roce.flow(lab, daemons, 1 << 18, 60)
        roce.wait_begun(job, 2)
        for _ in range(3):
            lab.hosts[0].ip("link", "set", "eth1", "down")
            lab.hosts[0].ip("link", "set", "eth1", "up")
        job.finish(120)
        rail = [r for r in roce.rails(daemons[0]) if r["rail"] is not None][0]
        expect(rail["failures"] == 0, f"{rail}")


@test
def roce_locked_memory_limit(ctx):
    """64 KiB of lockable memory and no capability: RDMA is refused with the limit and its mend."""
    with ctx.lab() as lab:
        wrap = ["prlimit", "--memlock=65536", "--", "setpriv", "--bounding-set", "-ipc_lock", "--"]
        daemons = [Daemon(lab, lab.hosts[0], roce.settings(), wrap=wrap),
                   Daemon(lab, lab.hosts[1], roce.settings())]
        roce.flow(lab, daemons, 100000, 3).finish(60)
        reasons = [p["reason"] for p in roce.paths(daemons[0])["peers"][0]["paths"]]
        expect(roce.transport(daemons[0]) == "tcp", f"{reasons}")
        expect(any("LimitMEMLOCK" in r and "64" in r for r in reasons), f"{reasons}")
        return [r for r in reasons if "LimitMEMLOCK" in r][0]
