# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What the machine allows between the two hosts and within one, measured in the same run."""
import json
import os
import time

from harness.lab import LabError
from systems import INTERFACE, Launch

SECONDS = 1  # of each run of iperf3
TRIES = 3
PORT = 5201


def set_congestion(lab, name):
    """TCP congestion control of everything the hosts send, within and between them.

    By route, not by sysctl: a network namespace may only default to what the whole machine allows
    everybody, and that is not ours to change.
    """
    for host in lab.hosts:
        network = host.address.rsplit(".", 1)[0] + ".0/24"
        for words in ([network, "dev", INTERFACE, "proto", "kernel", "scope", "link"],
                      ["table", "local", "local", host.address, "dev", INTERFACE, "proto",
                       "kernel", "scope", "host"]):
            host.ip("route", "change", *words, "src", host.address, "congctl", name)


def congestion_of(host):
    return host.run("cat", "/proc/sys/net/ipv4/tcp_congestion_control").stdout.strip()


def _ping(lab, program):
    with Launch(lab) as launch:
        launch.start(lab.hosts[1], [program, "pong"])
        time.sleep(0.3)
        return json.loads(lab.hosts[0].run(program, "ping", lab.hosts[1].address).stdout)


def _iperf(lab, senders, *options):
    """GB/s, all directions together, with a pair of iperf3 for each sender (number of a host)."""
    with Launch(lab) as launch:
        for i in senders:
            launch.start(lab.hosts[1 - i], ["iperf3", "-s", "-1", "-p", str(PORT + i)])
        time.sleep(0.5)
        for i in senders:
            launch.start(lab.hosts[i], ["iperf3", "-c", lab.hosts[1 - i].address, "-p",
                                        str(PORT + i), "-J", "-t", str(SECONDS), *options])
        if not launch.wait(60):
            raise LabError(f"iperf3 failed: {launch.errors()}")
        ends = [json.loads(launch.output(len(senders) + n))["end"] for n in range(len(senders))]
    return sum(end[key]["bits_per_second"] / 8e9 for end in ends
               for key in ("sum_received", "sum_received_bidir_reverse") if key in end)


def measure(lab, programs, before=None):
    """One round's measurement; with those before, the best of all: limits are what is possible."""
    program = os.path.join(programs, "benchmark/limits")
    # A process for each direction where there are CPUs for four of them.
    many = len(os.sched_getaffinity(0)) >= 4
    both = max(_iperf(lab, [0, 1]) if many else _iperf(lab, [0], "--bidir")
               for _ in range(TRIES)) / 2
    single = max(_iperf(lab, [0]) for _ in range(TRIES))
    ping = _ping(lab, program)
    local = json.loads(lab.hosts[0].run(program, "local").stdout)
    found = {"wire_both_GBps": round(both, 3), "wire_single_GBps": round(max(single, both), 3),
             **ping, **{k: v for k, v in local.items() if k != "used"}}
    for key, value in (before or {}).items():
        if key in found:
            found[key] = (max if key.endswith("GBps") else min)(found[key], value)
    return found
