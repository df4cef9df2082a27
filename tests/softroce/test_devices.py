# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The test bed itself: are there two hosts with RoCE devices that reach each other?"""
import re
import threading

from harness.lab import expect, wait_for
from harness.runner import test


def pair(lab, server, client, seconds=60, meanwhile=None):
    """Runs a program that listens on port 18515 and its client on two hosts; the client's output.

    meanwhile() is called while both run.
    """
    a, b = lab.hosts[:2]
    log = f"{lab.dir}/server.log"
    process = lab.spawn(a.prefix() + server, log=log)

    def text():
        with open(log, encoding="utf-8", errors="replace") as f:
            return f.read()

    wait_for(lambda: f"{server[0]} listens:\n{text()}",
             lambda: process.poll() is not None
             or "LISTEN" in a.run("ss", "-Htln", "sport = :18515").stdout)
    thread = threading.Thread(target=meanwhile or (lambda: None))
    thread.start()
    done = b.run(*client, check=False, timeout=seconds)
    thread.join()
    expect(done.returncode == 0, f"{client[0]} on {b.name} ended with {done.returncode}:\n"
           f"{done.stdout}\n{server[0]} on {a.name}:\n{text()}")
    wait_for(lambda: f"{server[0]} ends:\n{text()}", lambda: process.poll() is not None)
    expect(process.returncode == 0, f"{server[0]} ended with {process.returncode}:\n{text()}")
    return done.stdout


def pingpong(lab, rail=0, options=()):
    """ibv_rc_pingpong with verified data; each host with the GID index that it has."""
    a, b = lab.hosts[:2]
    words = []
    for host in (a, b):
        device = host.devices[rail]
        words.append(["ibv_rc_pingpong", "-e", "-c", "-d", device, "-g",
                      str(host.gid_index(device, host.rail_address(rail))), *options])
    return pair(lab, words[0], [*words[1], a.rail_address(rail)])


@test
def devices_on_both_hosts(ctx):
    """Two rails: each host sees its own devices and no others, by netlink and in /sys."""
    with ctx.lab(rails=2) as lab:
        for host in lab.hosts:
            listed = host.run("ibv_devices").stdout.split("\n")[2:]
            names = sorted(line.split()[0] for line in listed if line.strip())
            expect(names == host.devices, f"{host.name}: ibv_devices shows {names}")
            links = host.run("rdma", "link").stdout
            for rail, device in enumerate(host.devices):
                expect(re.search(rf"link {device}/1 state ACTIVE .*netdev eth{rail}\b", links),
                       f"{host.name}: rdma link shows {links}")
            info = host.run("ibv_devinfo", "-d", host.devices[0]).stdout
            expect("active_mtu:\t\t4096" in info, f"{host.name}: {info}")


@test
def gids_of_both_hosts(ctx):
    """All are v2; with --gid-shift the index of the rail's address differs between hosts."""
    with ctx.lab(hosts=3, gid_shift=True) as lab:
        indexes = []
        for host in lab.hosts:
            device = host.devices[0]
            kinds = {kind for _, kind in host.gids(device).values()}
            expect(kinds == {"RoCE v2"}, f"{host.name}: {host.gids(device)}")
            indexes.append(host.gid_index(device, host.address))
        expect(len(set(indexes)) == 3, f"the indexes do not differ: {indexes}")
        return f"indexes {indexes}"


@test
def pingpong_and_counted_packets(ctx):
    """The data goes over UDP 4791 in both directions, and not over TCP."""
    size, rounds = 65536, 100
    with ctx.lab() as lab:
        for host in lab.hosts:
            host.roce_counters()
        out = pingpong(lab, options=["-s", str(size), "-n", str(rounds), "-m", "4096"])
        for host in lab.hosts:
            counted = host.roce_counted()
            packets, octets = counted["roce"]
            least = size // 4096 * rounds
            expect(packets >= least and octets >= size * rounds, f"{host.name}: {counted}")
            expect(counted["tcp"][1] < 16384, f"{host.name}: {counted}")
        return out.strip().split("\n")[-1]


@test
def pingpong_over_second_rail_and_shifted_gids(ctx):
    with ctx.lab(rails=2, gid_shift=True) as lab:
        for rail in (0, 1):
            pingpong(lab, rail, ["-n", "20"])


@test
def write_bandwidth(ctx):
    """ib_write_bw runs: the number that the transport is measured against."""
    with ctx.lab() as lab:
        words = []
        for host in lab.hosts:
            device = host.devices[0]
            words.append(["ib_write_bw", "-d", device, "-x",
                          str(host.gid_index(device, host.address)), "-F", "-s",
                          "65536", "-n", "200" if ctx.short else "1000", "--report_gbits"])
        out = pair(lab, words[0], [*words[1], lab.hosts[0].address], 120)
        row = re.search(r"^ 65536 +\d+ +[\d.]+ +([\d.]+)", out, re.M)
        expect(row, f"no bandwidth in:\n{out}")
        # It measures the CPU's clock first, and if that varies, as on a busy machine, shows 0.
        return f"{row[1]} Gbit/s" if float(row[1]) else "this machine is too busy for a number"


@test
def link_down_shows(ctx):
    """A link that goes down does so on both hosts and comes back, as far as verbs are concerned."""
    with ctx.lab() as lab:
        a, b = lab.hosts
        a.ip("link", "set", "eth0", "down")
        for host in (a, b):
            wait_for(f"port down on {host.name}",
                     lambda h=host: h.port_state(h.devices[0]) == "DOWN")
        a.ip("link", "set", "eth0", "up")
        for host in (a, b):
            wait_for(f"port up on {host.name}",
                     lambda h=host: h.port_state(h.devices[0]) == "ACTIVE")
        pingpong(lab, options=["-n", "20"])


@test
def filter_drops_roce(ctx):
    """With UDP 4791 blocked at one host only TCP passes: the pair connects and then hears nothing."""
    with ctx.lab() as lab:
        a, b = lab.hosts
        b.block_roce()
        words = [["stdbuf", "-oL", "ibv_rc_pingpong", "-e", "-d", h.devices[0], "-g",
                  str(h.gid_index(h.devices[0], h.address))] for h in (a, b)]
        server = lab.spawn(a.prefix() + words[0])
        wait_for("ibv_rc_pingpong listens",
                 lambda: "LISTEN" in a.run("ss", "-Htln", "sport = :18515").stdout)
        done = b.run("timeout", "3", *words[1], a.address, check=False)
        expect("remote address" in done.stdout, f"they did not connect:\n{done.stdout}")
        expect(done.returncode != 0 and "Mbit" not in done.stdout, f"it got through:\n{done.stdout}")
        server.kill()
        server.wait()
        b.unblock_roce()
        pingpong(lab, options=["-n", "20"])


@test
def loss_and_order_are_mended(ctx):
    """netem loses and reorders packets of RoCE; the reliable connection delivers all the same."""
    with ctx.lab() as lab:
        for host in lab.hosts:
            host.disturb(0, "loss", "1%", "delay", "1ms", "reorder", "97%")
        pingpong(lab, options=["-n", "50", "-s", "16384"])
        seen = lab.hosts[0].run("rdma", "statistic", "show").stdout
        seen += lab.hosts[1].run("rdma", "statistic", "show").stdout
        counted = dict.fromkeys(["rcvd_seq_err", "out_of_seq_request", "duplicate_request"], 0)
        for name, value in re.findall(r"(\w+) (\d+)", seen):
            if name in counted:
                counted[name] += int(value)
        expect(any(counted.values()), f"no packet was out of order: {seen}")
        for host in lab.hosts:
            host.disturb(0)
        return ", ".join(f"{k} {v}" for k, v in counted.items())
