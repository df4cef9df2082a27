# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What users of such systems meet, one test a symptom; README.md says what covers the others."""
import json
import os
import re
import time

import roce
from harness.lab import Daemon, Job, expect, wait_for
from harness.runner import test

UNIT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../systemd/rocecommd.service.in")


@test
def field_client_without_locked_memory(ctx):
    """64 KiB of lockable memory and no capability are enough for a client with 256 MiB in use."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma"))
        bare = ["prlimit", "--memlock=65536", "--", "setpriv", "--bounding-set", "-ipc_lock", "--"]
        count = (32 if ctx.short else 256) << 18
        Job(lab, daemons, [1, 1], "loop", f"--count={count}", "--iterations=2",
            wrap={0: bare, 1: bare}).finish(120)
        roce.expect_rdma(daemons)
        return f"{count >> 18} MiB"


@test
def field_daemon_without_locked_memory(ctx):
    """RDMA is required: the job is refused with the limit, its value and where it is raised; so says check."""
    with open(UNIT, encoding="ascii") as f:
        expect(re.search(r"^LimitMEMLOCK=infinity$", f.read(), re.M), "the unit has a limit")
    with ctx.lab() as lab:
        wrap = ["prlimit", "--memlock=65536", "--", "setpriv", "--bounding-set", "-ipc_lock", "--"]
        daemons = [Daemon(lab, lab.hosts[0], roce.settings(require="rdma"), wrap=wrap),
                   Daemon(lab, lab.hosts[1], roce.settings(require="rdma"))]
        text, seconds = roce.refused(Job(lab, daemons, [1, 1], "loop", "--iterations=3"))
        expect("LimitMEMLOCK" in text and "64 KiB" in text, text)
        expect(seconds < 10 * lab.slow, f"after {seconds:.1f} s: {text}")
        begin = time.monotonic()
        done = daemons[0].ctl("check", "--seconds=0.2", lab.hosts[1].address, check=False)
        expect(done.returncode == 4 and "LimitMEMLOCK" in done.stdout, done.stdout)
        expect(time.monotonic() - begin < 15 * lab.slow, "check took its time")
        return text.split("\n")[0]


@test
def field_only_link_local_gids(ctx):
    """No address on the device's interface: TCP over the other one, or an error, with that reason."""
    with ctx.lab(rails=2) as lab:
        for host in lab.hosts:
            host.ip("-4", "address", "flush", "dev", "eth1")
        only = {"devices_denied": "eth0"}
        daemons = lab.daemons(roce.settings(**only))
        roce.connect(lab, daemons)
        reasons = [p["reason"] for p in roce.paths(daemons[0])["peers"][0]["paths"]]
        expect(roce.transport(daemons[0]) == "tcp" and any("link-local" in r for r in reasons),
               f"{reasons}")
        for daemon in daemons:
            daemon.stop()
            daemon.write_config(roce.settings(require="rdma", **only))
            daemon.start()
        text, seconds = roce.refused(Job(lab, daemons, [1, 1], "loop", "--iterations=3"))
        expect("link-local" in text and seconds < 5 * lab.slow, f"after {seconds:.1f} s: {text}")
        return text.split("\n")[0]


@test
def field_over_macvlan(ctx):
    """The only address is that of a macvlan interface, with its own GID."""
    with ctx.lab() as lab:
        roce.addresses_on(lab, "mac0", "10.49.0", "macvlan", "mode", "bridge")
        daemons = lab.daemons(roce.settings())
        roce.flow(lab, daemons, 1 << 18, 3).finish(60)
        rails = roce.rails(daemons[0])
        expect(rails and all(r["reason"] for r in rails), roce.describe(daemons))
        if roce.transport(daemons[0]) == "rdma":
            expect(rails[0]["gid"] == "10.49.0.1" and rails[0]["interface"] == "mac0", f"{rails}")
        return f"{roce.transport(daemons[0])}: {rails[0]['reason']}"


@test
def field_device_of_another_namespace(ctx):
    """Devices belong to one network namespace each here: a host without one is told how to give it one."""
    with ctx.lab() as lab:
        host = lab.hosts[1]
        host.run("rdma", "link", "delete", host.devices[0])
        daemons = lab.daemons(roce.settings())
        roce.connect(lab, daemons)
        text = daemons[1].ctl("links").stdout
        for word in ("no RDMA device", "netns", "exclusive"):
            expect(word in text, f"no '{word}' in: {text}")
        reasons = [p["reason"] for p in roce.paths(daemons[1])["peers"][0]["paths"]]
        expect(roce.transport(daemons[1]) == "tcp" and any("exclusive" in r for r in reasons),
               f"{reasons}")
        return [r for r in reasons if "exclusive" in r][0]


def bytes_by_source_port(host):
    """{UDP source port: bytes} of what the host has sent to 4791 since count_source_ports()."""
    seen = json.loads(host.run("nft", "-j", "list", "set", "inet", "ports", "seen").stdout)
    elements = [e for part in seen["nftables"] if "set" in part for e in part["set"].get("elem", [])]
    return {e["elem"]["val"]: e["elem"]["counter"]["bytes"] for e in elements}


def count_source_ports(host):
    host.run("nft", "-f", "-", text="""
table inet ports {
	set seen {
		type inet_service
		size 1024
		flags dynamic
		counter
	}
	chain out {
		type filter hook output priority 0;
		udp dport 4791 add @seen { udp sport }
	}
}
""")


@test
def field_queue_pairs_have_ports_of_their_own(ctx):
    """
    What ECMP and bonds hash by: each queue pair of a rail has a UDP source port, and bulk is spread
    over them evenly, here as counted on the wire.
    """
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings(qps=4))
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        for host in lab.hosts:
            count_source_ports(host)
        roce.flow(lab, daemons, 16 << 18, 4).finish(120)
        said = []
        for host, daemon in zip(lab.hosts, daemons):
            rail = roce.rails(daemon)[0]
            expect(len(set(rail["udp_ports"])) == rail["qps"] >= 2, f"{rail}")
            seen = bytes_by_source_port(host)
            bulk = sorted(n for n in seen.values() if n > max(seen.values()) / 4)
            expect(len(bulk) >= 4, f"{seen}")
            expect(bulk[-1] - bulk[0] < bulk[-1] * 0.1, f"uneven: {seen}")
            said.append(f"{len(bulk)} ports, {bulk[0] * 100 // bulk[-1]} %")
        return ", ".join(said)


@test
def field_thousand_communicators(ctx):
    """Communicators that come and go leave no queue pair, region or descriptor behind."""
    n = 100 if ctx.short else 1000
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings())
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)

        def held():
            return [(roce.queue_pairs(h), roce.regions(h), d.fds()) for h, d in zip(lab.hosts, daemons)]

        before = held()
        for variant in ("id", "split"):
            Job(lab, daemons, [1, 1], "comms", f"--iterations={n}", f"--variant={variant}").finish(240)
        wait_for(lambda: f"{before} before, {held()} after {2 * n} communicators",
                 lambda: held() == before, 10)
        return f"{2 * n}: queue pairs, regions, descriptors {before}"


@test
def field_firewall_that_drops(ctx):
    """TCP to the peer is dropped without a word: an error before the time-out, with host and port."""
    with ctx.lab() as lab:
        roce.firewall(lab.hosts[0], "tcp dport 4870 drop")
        daemons = lab.daemons(roce.settings())
        job = Job(lab, daemons, [1, 1], "loop", "--iterations=2", "--join-ms=20000")
        begin = time.monotonic()
        wait_for(lambda: f"the rank on {lab.hosts[1].name} is told\n{job.report()}",
                 lambda: job.ranks[1].process.poll() is not None, 15 * lab.slow, 0.05)
        seconds = time.monotonic() - begin
        text = job.ranks[1].errors()
        expect(f"{lab.hosts[0].address}:4870" in text, text)
        expect(seconds < 10 * lab.slow, f"after {seconds:.1f} s: {text}")
        job.kill()
        return f"after {seconds:.1f} s: {text.split(chr(10))[0]}"


@test
def field_firewall_that_forgets(ctx):
    """
    A firewall that knows connections and forgets those that are silent for ten seconds: a rank that
    is late by longer finds everything as it was, over RDMA as over TCP.
    """
    with ctx.lab() as lab:
        for host in lab.hosts:
            roce.firewall(host, "iif lo accept", "meta l4proto icmpv6 accept",
                          "ct state established,related accept",
                          "tcp dport 4870 ct state new accept", "udp dport 4791 accept",
                          policy="drop")
            host.run("sysctl", "-w", "net.netfilter.nf_conntrack_tcp_timeout_established=10",
                     "net.netfilter.nf_conntrack_tcp_loose=0")
        said = []
        for transport in ("tcp", "rdma"):
            daemons = lab.daemons(roce.settings(transport))
            job = Job(lab, daemons, [1, 1], "loop", "--count=100000", "--iterations=4",
                      "--late=1:14000", "--arrival-ms=60000")
            begin = time.monotonic()
            job.finish(60)
            said.append(f"{transport} {time.monotonic() - begin:.1f} s")
            for daemon in daemons:
                daemon.stop()
        return ", ".join(said)


def exchange_rate(lab, daemons, name, size="4M", reps=5):
    """MB/s each way, of two messages in flight, between a rank on each host."""
    runs = []
    for number, daemon in enumerate(daemons):
        command = daemon.host.prefix() + [
            lab.program("tools/rocebench/rocebench"), f"--socket={daemon.socket}", "--hosts=2",
            f"--host={number}", f"--root={lab.hosts[0].address}", f"--job={name}", f"--sizes={size}",
            "--inflight=2", "--warmup=1", f"--reps={reps}", "--json", "sendrecv"]
        runs.append(lab.spawn(command, log=f"{lab.dir}/{name}{number}"))
    codes = [r.wait(120) for r in runs]
    with open(f"{lab.dir}/{name}0", encoding="utf-8") as f:
        text = f.read()
    expect(codes == [0, 0], f"{codes}\n{text}")
    row = json.loads(text.strip().split("\n")[-1])
    return row["bytes"] * row["inflight"] / row["median_us"]


@test
def field_streams_fill_the_link(ctx):
    """A link of 160 Mbit/s, TCP: what is taken without a word about streams is near the best number."""
    with ctx.lab() as lab:
        for host in lab.hosts:
            host.run("tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", "160mbit", "burst",
                     "256k", "limit", "4m")
        rates = {}
        for streams in ("auto", "1", "2", "4", "8"):
            daemons = lab.daemons({"peer": {"transport": "tcp", "streams": streams}})
            rates[streams] = exchange_rate(lab, daemons, f"streams-{streams}")
            for daemon in daemons:
                daemon.stop()
        expect(rates["auto"] > 0.8 * max(rates.values()), f"MB/s: {rates}")
        return ", ".join(f"{k}: {v:.1f} MB/s" for k, v in rates.items())


def busiest_port(host):
    """The peer's port and ours of the TCP connection that has sent most."""
    out = host.run("ss", "-tinHO", "state", "established").stdout
    rows = [(int(m[3]), m[1], m[2]) for m in re.finditer(
        r":(\d+)\s+[^\s]*:(\d+)\s.*?bytes_sent:(\d+)", out)]
    return max(rows)[1:]


@test
def field_slow_stream_gates_nobody(ctx):
    """Four streams, one of which has a tenth of the others' rate in one direction: they take its work."""
    with ctx.lab() as lab:
        host = lab.hosts[0]
        daemons = lab.daemons({"peer": {"transport": "tcp", "streams": "4"}})
        host.run("tc", "qdisc", "add", "dev", "eth0", "root", "handle", "1:", "prio", "bands", "2",
                 "priomap", *["1"] * 16)
        host.run("tc", "qdisc", "add", "dev", "eth0", "parent", "1:2", "tbf", "rate", "150mbit",
                 "burst", "256k", "limit", "1m")
        host.run("tc", "qdisc", "add", "dev", "eth0", "parent", "1:1", "tbf", "rate", "15mbit",
                 "burst", "64k", "limit", "128k")
        before = exchange_rate(lab, daemons, "before", "16M", 3)
        ours, theirs = busiest_port(host)
        host.run("tc", "filter", "add", "dev", "eth0", "parent", "1:", "protocol", "ip", "u32",
                 "match", "ip", "sport", ours, "0xffff", "match", "ip", "dport", theirs, "0xffff",
                 "flowid", "1:1")
        after = exchange_rate(lab, daemons, "after", "16M", 3)
        expect(after > 0.7 * min(before, 150 / 8), f"{before:.1f} MB/s, {after:.1f} with a slow one")
        return f"{before:.1f} MB/s, {after:.1f} with a slow one"
