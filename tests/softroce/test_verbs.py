# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The verbs backend of the daemon alone, between two processes: tests/device/verbs-pair."""
import re
import time

from harness.lab import expect
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
            time.sleep(2)
            lab.hosts[0].ip("link", "set", "eth1", "down")

        result = verbs_pair(lab, "--mode", "check", "--rails", "2", "--seconds", "6", seconds=90,
                            meanwhile=down)
        expect(result["bad"] == "0", f"{result}")
        return f"{result['messages']} messages, rails lost: {result['rails_lost']}"
