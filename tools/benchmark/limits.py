# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What the machine allows between the two hosts and within one, measured in the same run."""
import json
import os
import time

from systems import INTERFACE, Launch

IPERF_SECONDS = 1


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


def _served(lab, server, client):
    """Runs the client on the first host while the server runs on the second."""
    with Launch(lab) as launch:
        launch.start(lab.hosts[1], server)
        time.sleep(0.5)
        return json.loads(lab.hosts[0].run(*client, timeout=60).stdout)


def _iperf(lab, *options):
    end = _served(lab, ["iperf3", "-s", "-1"],
                  ["iperf3", "-c", lab.hosts[1].address, "-J", "-t", str(IPERF_SECONDS),
                   *options])["end"]
    speeds = [end[key]["bits_per_second"] / 8e9
              for key in ("sum_received", "sum_received_bidir_reverse") if key in end]
    return sum(speeds) / len(speeds), end.get("sender_tcp_congestion", "")


def measure(lab, programs, before=None):
    """One round's measurement; with those before, the best of all: limits are what is possible."""
    program = os.path.join(programs, "benchmark/limits")
    both, congestion = _iperf(lab, "--bidir")
    single, _ = _iperf(lab)
    ping = _served(lab, [program, "pong"], [program, "ping", lab.hosts[1].address])
    local = json.loads(lab.hosts[0].run(program, "local").stdout)
    found = {"wire_both_GBps": round(both, 3), "wire_single_GBps": round(max(single, both), 3),
             **ping, **{k: v for k, v in local.items() if k != "used"}}
    for key, value in (before or {}).items():
        if key in found:
            found[key] = (max if key.endswith("GBps") else min)(found[key], value)
    return {"congestion": congestion, **found}
