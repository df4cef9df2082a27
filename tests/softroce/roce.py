# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What tests of daemons over RoCE share: settings, paths, jobs that are disturbed meanwhile."""
import contextlib
import json
import os
import random
import re
import threading
import time

from harness.lab import Job, expect, wait_for

MIB = 1 << 20
MOMENTS = random.Random(47)
FLOATS_64_MIB = 64 * MIB // 4


def rounds(ctx, usual):
    """How often something is broken: ROCECOMM_ROCE_ROUNDS says so for acceptance (50)."""
    return int(os.environ.get("ROCECOMM_ROCE_ROUNDS", 2 if ctx.short else usual))


def settings(transport="auto", require="", **rdma):
    """Of the configuration; the other words are keys of [rdma]. A busy machine may stop the guest for seconds."""
    peer = {"transport": transport, "peer_timeout_ms": 5000}
    if require:
        peer["require"] = require
    return {"peer": peer, "rdma": rdma}


def links(daemon):
    return json.loads(daemon.ctl("links", "--json").stdout)


def paths(daemon):
    return json.loads(daemon.ctl("paths", "--json").stdout)


def rails(daemon, peer=0):
    """The RDMA paths to a peer."""
    peers = paths(daemon)["peers"]
    return [p for p in peers[peer]["paths"] if p["kind"] == "rdma"] if peers else []


def transport(daemon, peer=0):
    """What new messages to a peer take: rdma, tcp, or None."""
    peers = paths(daemon)["peers"]
    return peers[peer]["transport"] if peers else None


def describe(daemons):
    return "\n".join(d.ctl("paths", check=False).stdout for d in daemons)


def connect(lab, daemons, per_host=None):
    """A small job, after which all hosts are linked; its ranks' paths."""
    job = Job(lab, daemons, per_host or [1] * len(daemons), "loop", "--iterations=3", name="first")
    job.finish(60)
    return job


def firewall(host, *rules, policy="accept"):
    """Rules of nft for what comes in, and what becomes of the rest."""
    lines = "".join(f"		{rule}\n" for rule in rules)
    host.run("nft", "-f", "-", text=f"""
table inet wall {{
	chain in {{
		type filter hook input priority 0; policy {policy};
{lines}	}}
}}
""")


def addresses_on(lab, name, net, *kind):
    """The hosts' only IPv4 addresses become those of a link over eth0: NET.1, NET.2."""
    for number, host in enumerate(lab.hosts):
        host.ip("-4", "address", "flush", "dev", "eth0")
        host.ip("link", "add", "link", "eth0", "name", name, "type", *kind)
        host.ip("address", "add", f"{net}.{number + 1}/24", "dev", name)
        host.ip("link", "set", name, "up")


def expect_rdma(daemons, count=1):
    """All use RDMA, over so many rails."""
    for daemon in daemons:
        wait_for(lambda: f"{count} rails are up\n{describe(daemons)}\n{daemons[0].log()}",
                 lambda d=daemon: sum(r["state"] == "up" for r in rails(d)) == count, 30, 0.2)
        expect(transport(daemon) == "rdma", describe(daemons))


def flow(lab, daemons, floats, iterations, per_host=None):
    """Allreduces whose every element is checked."""
    return Job(lab, daemons, per_host or [1] * len(daemons), "flow", f"--count={floats}",
               f"--iterations={iterations}", name="flow")


def wait_begun(job, number, seconds=120):
    """Waits until rank 0 has begun operation `number`."""
    rank = job.ranks[0]
    wait_for(lambda: f"operation {number} begins\n{job.report()}",
             lambda: rank.lines("begin")[-1:] >= [str(number)] and len(rank.lines("begin")) > number
             or rank.process.poll() is not None, seconds * job.lab.slow, 0.005)


def begun(job):
    """How many operations rank 0 has begun."""
    return len(job.ranks[0].lines("begin"))


def times(job):
    """Seconds of each operation that has ended on rank 0."""
    return [float(line.split()[1]) / 1000 for line in job.ranks[0].lines("end")]


def wait_next(job, seconds=120):
    """Waits until an operation begins that has not yet; returns how long the last one took."""
    number = begun(job)
    wait_for(lambda: f"operation {number} begins\n{job.report()}",
             lambda: begun(job) > number or job.ranks[0].process.poll() is not None,
             seconds * job.lab.slow, 0.005)
    expect(all(r.process.poll() is None for r in job.ranks),
           f"a rank ended in operation {number}\n{job.report()}")
    return (times(job) or [1.0])[-1]


def disturbed(job, count, act):
    """
    Calls act(i) in the middle of an operation, at a random moment, for i from 0 to count - 1. The
    job, which checks every element itself, must get on, and is ended then; returns how long its
    operations took.
    """
    for i in range(count):
        time.sleep(MOMENTS.random() * wait_next(job) * 0.7)
        act(i)
    for _ in range(2):
        wait_next(job)
    job.kill()
    return times(job)


@contextlib.contextmanager
def pauses():
    """Gives a list of how long each sleep of a tenth of a second took: does the guest stand still?"""
    over, slept = threading.Event(), [0.0]

    def sleep():
        begin = time.monotonic()
        while not over.wait(0.1):
            slept.append(time.monotonic() - begin)
            begin = time.monotonic()

    thread = threading.Thread(target=sleep, daemon=True)
    thread.start()
    try:
        yield slept
    finally:
        over.set()
        thread.join()


def queue_pairs(host):
    """Of all devices of the host, without those that the kernel has for itself."""
    out = host.run("rdma", "resource", "show", "qp").stdout
    return len(re.findall(r"\btype RC\b", out))


def regions(host):
    return len(host.run("rdma", "resource", "show", "mr").stdout.strip().split("\n"))


def log_lines(daemon, pattern):
    with open(daemon.log_path, encoding="utf-8", errors="replace") as f:
        return [line for line in f if re.search(pattern, line)]


def error_of(job, seconds=60):
    """All ranks end with an error; those, as (status, milliseconds, sentence)."""
    codes = job.wait(seconds)
    lines = [r.lines("error")[0].split(" ", 2) for r in job.ranks if r.lines("error")]
    expect(codes == [10] * len(codes) and len(lines) == len(codes),
           f"exit codes {codes}\n{job.report()}")
    return [(word, float(ms), text) for word, ms, text in lines]


def refused(job, seconds=60):
    """No rank can join; what the first one says, and how long it took."""
    begin = time.monotonic()
    codes = job.wait(seconds)
    expect(all(codes), f"somebody joined: exit codes {codes}\n{job.report()}")
    return job.ranks[0].errors(), time.monotonic() - begin
