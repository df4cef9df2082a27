# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The verbs backend of the daemon alone, between two processes: tests/device/verbs-pair."""
import re
import time

from harness.lab import expect, wait_for
from harness.runner import test
from test_devices import pair


def verbs_pair(lab, *options, seconds=60, meanwhile=None):
    """The line of results of the connecting end, as {name: text}."""
    program = lab.program("tests/device/verbs-pair/verbs_pair")
    out = pair(lab, [program, "--listen"],
               [program, "--connect", lab.hosts[0].address, *options], seconds, meanwhile)
    line = [l for l in out.split("\n") if l.startswith("mode=")]
    expect(line, f"no result:\n{out}")
    return dict(re.findall(r"(\S+)=(\S+)", line[-1]))


def under_way(lab):
    """Waits until messages are sent on all rails."""
    host = lab.hosts[0]
    for device in host.devices:
        wait_for(lambda d=device: f"traffic on {d}",
                 lambda d=device: int(host.port(d, "hw_counters/sent_pkts") or 0) > 500, 60, 0.1)


@test
def verbs_latency(ctx):
    with ctx.lab(gid_shift=True) as lab:
        result = verbs_pair(lab, "--mode", "lat", "--size", "8", "--count",
                            "200" if ctx.short else "1000")
        return ", ".join(f"{k} {v}" for k, v in result.items())


@test
def verbs_bandwidth_without_copies(ctx):
    """Registered memory at both ends: nothing is copied, the payload is on UDP 4791 and not on TCP."""
    size, count = 1 << 20, 20 if ctx.short else 100
    with ctx.lab() as lab:
        lab.hosts[1].roce_counters()
        result = verbs_pair(lab, "--mode", "bw", "--size", str(size), "--count", str(count))
        counted = lab.hosts[1].roce_counted()
        expect(result["copied"] == "0", f"{result}")
        expect(counted["roce"][1] >= size * count, f"{counted}")
        expect(counted["tcp"][1] < 65536, f"{counted}")
        return f"{result['MBps']} MB/s"


@test
def verbs_random_messages(ctx):
    """Three rails, GID indexes that differ, random sizes: every byte is checked."""
    with ctx.lab(rails=3, gid_shift=True) as lab:
        result = verbs_pair(lab, "--mode", "check", "--rails", "3", "--seconds",
                            "3" if ctx.short else "10")
        expect(result["bad"] == "0" and result["rails_lost"] == "0", f"{result}")
        return f"{result['messages']} messages"


@test
def verbs_random_messages_with_loss(ctx):
    with ctx.lab() as lab:
        for host in lab.hosts:
            host.disturb(0, "loss", "1%")
        result = verbs_pair(lab, "--mode", "check", "--seconds", "5", seconds=120)
        expect(result["bad"] == "0", f"{result}")
        return f"{result['messages']} messages"


@test
def verbs_rail_down_in_the_middle(ctx):
    """Two rails, one goes down while messages are under way: all of them arrive, and arrive once."""
    with ctx.lab(rails=2) as lab:
        def down():
            under_way(lab)
            lab.hosts[0].ip("link", "set", "eth1", "down")

        result = verbs_pair(lab, "--mode", "check", "--rails", "2", "--seconds", "6", seconds=90,
                            meanwhile=down)
        expect(result["bad"] == "0", f"{result}")
        return f"{result['messages']} messages, rails lost: {result['rails_lost']}"


@test
def verbs_only_rail_out_for_a_while(ctx):
    """UDP 4791 is dropped for longer than the retries last: the ends meet again and lose nothing."""
    with ctx.lab() as lab:
        def block():
            under_way(lab)
            lab.hosts[0].block_roce()
            time.sleep(2.5)
            lab.hosts[0].unblock_roce()

        result = verbs_pair(lab, "--mode", "check", "--seconds", "7", seconds=90, meanwhile=block)
        expect(result["bad"] == "0" and result["rails_lost"] != "0", f"{result}")
        return f"{result['messages']} messages, times lost: {result['rails_lost']}"


@test
def verbs_only_link_down_for_a_while(ctx):
    with ctx.lab() as lab:
        def down():
            under_way(lab)
            for host in lab.hosts:
                host.ip("link", "set", "eth0", "down")
                time.sleep(1.5)
                host.ip("link", "set", "eth0", "up")
                # What the ends have to say to each other goes over TCP, which waits ever longer.
                time.sleep(6)

        result = verbs_pair(lab, "--mode", "check", "--seconds", "16", seconds=90, meanwhile=down)
        expect(result["bad"] == "0" and result["rails_lost"] != "0", f"{result}")
        return f"{result['messages']} messages, times lost: {result['rails_lost']}"


@test
def verbs_rails_that_flap(ctx):
    """Now one of two rails goes, now the other, on either host; each is used again when it is back."""
    rounds = 2 if ctx.short else 8
    with ctx.lab(rails=2) as lab:
        def flap():
            under_way(lab)
            for i in range(rounds):
                host = lab.hosts[i // 2 % 2]
                host.ip("link", "set", f"eth{i % 2}", "down")
                time.sleep(0.6)
                host.ip("link", "set", f"eth{i % 2}", "up")
                time.sleep(1.2)

        result = verbs_pair(lab, "--mode", "check", "--rails", "2", "--seconds",
                            str(3 + 2 * rounds), seconds=120, meanwhile=flap)
        expect(result["bad"] == "0" and int(result["rails_lost"]) >= rounds, f"{result}")
        return f"{result['messages']} messages, rails lost: {result['rails_lost']}"


@test
def verbs_receivers_are_not_overrun(ctx):
    """Credits and tickets do it, not the device's answer that nobody posted a receive."""
    with ctx.lab() as lab:
        verbs_pair(lab, "--mode", "bw", "--size", "512", "--count", "20000", "--window", "64")
        verbs_pair(lab, "--mode", "bw", "--size", "65536", "--count", "1000", "--window", "64")
        for host in lab.hosts:
            for name in ("rcvd_rnr_err", "send_rnr_err"):
                value = host.port(host.devices[0], f"hw_counters/{name}")
                expect(value == "0", f"{host.name}: {name} is {value}")


@test
def verbs_different_mtu(ctx):
    """4096 bytes at one end, 1024 at the other: both use 1024."""
    with ctx.lab() as lab:
        lab.hosts[1].ip("link", "set", "eth0", "mtu", "1500")
        result = verbs_pair(lab, "--mode", "check", "--seconds", "2")
        expect(result["bad"] == "0" and result["rails_lost"] == "0", f"{result}")


@test
def verbs_over_ipv6(ctx):
    """No IPv4 address anywhere."""
    with ctx.lab() as lab:
        for number, host in enumerate(lab.hosts):
            host.ip("-6", "address", "add", f"fd47::{number + 1}/64", "dev", "eth0", "nodad")
            host.ip("-4", "address", "flush", "dev", "eth0")
        lab.hosts[0].address = "fd47::1"
        result = verbs_pair(lab, "--mode", "check", "--seconds", "2")
        expect(result["bad"] == "0", f"{result}")
