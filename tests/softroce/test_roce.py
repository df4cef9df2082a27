# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Daemons and jobs over RoCE: which way is taken and why, what goes over it, what it costs."""
import json
import re

import roce
from harness.lab import Daemon, Job, expect, wait_for
from harness.runner import test


@test
def roce_links_without_a_peer(ctx):
    """rocectl links: devices, states, MTU, GIDs and counters, with no other host in sight."""
    with ctx.lab(hosts=1, rails=2) as lab:
        daemon = Daemon(lab, lab.hosts[0])
        seen = roce.links(daemon)
        expect([d["name"] for d in seen["devices"]] == lab.hosts[0].devices, f"{seen}")
        device = seen["devices"][0]
        expect(device["used"] and device["software"] and device["driver"] == "rxe", f"{device}")
        port = device["ports"][0]
        expect(port["state"] == "ACTIVE" and port["layer"] == "Ethernet" and port["mtu"] == 4096,
               f"{port}")
        good = [g for g in port["gids"] if g["usable"]]
        expect([g["gid"] for g in good] == [lab.hosts[0].address] and good[0]["type"] == "v2"
               and good[0]["interface"] == "eth0", f"{port['gids']}")
        expect(any(g["reason"] == "link-local" for g in port["gids"]), f"{port['gids']}")
        expect(port["network"]["out_of_sequence"] == 0 and port["network"]["cnp_sent"] is None,
               f"{port['network']}")
        text = daemon.ctl("links").stdout
        expect("software RoCE, not for performance" in text and "can be used" in text, text)
        expect("CNP sent n/a" in text, text)
        return text.split("\n")[1]


@test
def roce_links_say_why_not(ctx):
    """A link that is down, a device that is denied, one whose node cannot be opened."""
    with ctx.lab(rails=3) as lab:
        host = lab.hosts[0]
        host.ip("link", "set", "eth1", "down")
        node = host.run("cat", f"/sys/class/infiniband_verbs/uverbs{uverbs(host, 2)}/ibdev").stdout
        expect(node.strip() == host.devices[2], node)
        host.run("mount", "--bind", "/dev/null", f"/dev/infiniband/uverbs{uverbs(host, 2)}")
        daemon = Daemon(lab, host, roce.settings(devices_denied="eth0"))
        seen = {d["name"]: d for d in roce.links(daemon)["devices"]}
        expect(seen[host.devices[0]]["ports"][0]["reason"] == "denied by the configuration",
               f"{seen}")
        expect(seen[host.devices[1]]["ports"][0]["reason"] == "the port is down", f"{seen}")
        closed = seen[host.devices[2]]
        expect(not closed["used"] and "cannot be opened" in (closed["reason"] or ""), f"{closed}")


def uverbs(host, rail):
    """The number of the device node of a rail."""
    out = host.run("sh", "-c", "grep . /sys/class/infiniband_verbs/uverbs*/ibdev").stdout
    for line in out.split("\n"):
        if line.endswith(":" + host.devices[rail]):
            return int(re.search(r"uverbs(\d+)/", line)[1])
    raise AssertionError(out)


@test
def roce_matrix_is_that_of_tcp(ctx):
    """
    The whole matrix over two rails with different GID indexes: the same bits as over TCP; the
    payload is on UDP 4791, and none of it on TCP.
    """
    per_host = [2, 2]
    digests = {}
    with ctx.lab(rails=2, gid_shift=True) as lab:
        for transport in ("tcp", "rdma"):
            daemons = lab.daemons(roce.settings(transport))
            words = ["matrix"] + (["--short"] if ctx.short else [])
            roce.connect(lab, daemons)
            if transport == "rdma":
                roce.expect_rdma(daemons, 2)
                for host in lab.hosts:
                    host.roce_counters()
            job = Job(lab, daemons, per_host, *words)
            job.finish(900)
            digests[transport] = [r.lines("digest") for r in job.ranks]
            if transport == "rdma":
                sent = sum(d.status()["thread"]["bytes_rdma_sent"] for d in daemons)
                counted = [h.roce_counted() for h in lab.hosts]
                octets = sum(c["roce"][1] for c in counted)
                tcp = sum(c["tcp"][1] for c in counted)
                expect(octets >= sent > 0, f"{counted}, sent {sent}")
                expect(tcp < sent / 50, f"{tcp} of {sent} bytes on TCP: {counted}")
            for daemon in daemons:
                daemon.stop()
        expect(digests["tcp"] == digests["rdma"], f"the bits differ: {digests}")
        return f"{digests['rdma'][0][0].split()[-1]} cases a rank, {octets >> 20} MiB of RoCE"


@test
def roce_path_is_said(ctx):
    """paths, status, the log and the client's path all say rdma and why."""
    with ctx.lab(rails=2) as lab:
        daemons = lab.daemons(roce.settings())
        job = roce.flow(lab, daemons, 100000, 10**6)
        job.wait_ready()
        for daemon in daemons:
            seen = roce.paths(daemon)["peers"][0]
            expect(seen["transport"] == "rdma" and len(seen["paths"]) == 3, f"{seen}")
            for path in seen["paths"]:
                expect(path["reason"] and path["chosen"] == (path["kind"] == "rdma"), f"{path}")
            rails = [p for p in seen["paths"] if p["kind"] == "rdma"]
            expect(all(r["mtu"] == 4096 and r["qps"] >= 2 and r["bytes_sent"] > 0 for r in rails),
                   f"{rails}")
            comm = daemon.status()["jobs"][0]["communicators"][0]
            expect(comm["path"].startswith("rdma"), comm["path"])
            expect(roce.log_lines(daemon, "rdma|RDMA"), daemon.log())
        job.kill()
        return daemons[0].ctl("paths").stdout.split("\n")[1]


@test
def roce_train_step(ctx):
    """The demo's training step over RoCE."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma"))
        ranks = []
        for rank, daemon in enumerate(daemons):
            env = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_PORT": "29500",
                   "MASTER_ADDR": lab.hosts[0].address, "ROCECOMM_SOCKET": daemon.socket}
            command = daemon.host.prefix() + [lab.program("tools/train-step/train-step"), "2"]
            ranks.append(lab.spawn(command, log=f"{lab.dir}/rank{rank}", env=env))
        codes = [r.wait(180) for r in ranks]
        with open(f"{lab.dir}/rank0", encoding="utf-8") as f:
            text = f.read()
        expect(codes == [0, 0] and "step" in text, f"exit codes {codes}\n{text}\n{daemons[0].log()}")
        roce.expect_rdma(daemons)


@test
def roce_registered_memory_is_not_copied(ctx):
    """Allreduces out of roce_mem_alloc(): no byte is copied on the host, nor is any lost."""
    count, n = 1 << 20, 10
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma"))
        job = roce.flow(lab, daemons, count, n)
        job.finish(120)
        for daemon in daemons:
            thread = daemon.status()["thread"]
            expect(thread["bytes_rdma_sent"] > count * 4 * n, f"{thread}")
            # What is summed lands in a zone of its own first; what is not goes where it belongs.
            expect(thread["bytes_copied"] < thread["bytes_rdma_received"] / 20, f"{thread}")


@test
def roce_sixteen_jobs_share_queue_pairs(ctx):
    """As many queue pairs for sixteen jobs as for one, and no region is left behind."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings())
        roce.connect(lab, daemons)
        roce.expect_rdma(daemons)
        qps = [roce.queue_pairs(h) for h in lab.hosts]
        mrs = [roce.regions(h) for h in lab.hosts]
        expect(all(qps), f"no queue pairs: {qps}")
        if ctx.short:  # all are there, and one after the other has sent; their ranks sleep then
            jobs = [Job(lab, daemons, [1, 1], "loop", "--count=20000", "--iterations=2",
                        "--late=0:600000", "--arrival-ms=900000", name=f"job{i}") for i in range(16)]
        else:
            jobs = [roce.flow(lab, daemons, 20000, 10**6) for _ in range(16)]
        for job in jobs:
            job.wait_ready(120)
        during = [roce.queue_pairs(h) for h in lab.hosts]
        for job in jobs:
            job.kill()
        expect(during == qps, f"{qps} before, {during} meanwhile")
        after = [roce.queue_pairs(h) for h in lab.hosts]
        expect(after == qps, f"{qps} before, {after} afterwards")
        wait_for(lambda: f"regions go: {mrs} before, {[roce.regions(h) for h in lab.hosts]}",
                 lambda: [roce.regions(h) for h in lab.hosts] == mrs)
        return f"{qps[0]} queue pairs"


@test
def roce_work_requests_are_few(ctx):
    """An allreduce of 1 MiB takes so many work requests, and these so many completions."""
    n = 50
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings())
        roce.connect(lab, daemons)
        before = roce.rails(daemons[0])[0]
        roce.flow(lab, daemons, 1 << 18, n).finish(120)
        after = roce.rails(daemons[0])[0]
        requests = (after["work_requests"] - before["work_requests"]) / n
        completions = (after["completions"] - before["completions"]) / n
        expect(0 < requests < 20, f"{requests} work requests an operation")
        expect(completions < 2 * requests + 8, f"{completions} completions for {requests} requests")
        return f"{requests:.1f} work requests, {completions:.1f} completions an operation"


@test
def roce_doorbells_are_few(ctx):
    """
    An allreduce of 25 MiB on two hosts is 200 messages a host, here and there. Requests, grants and
    short messages of a turn share work requests, and what is posted in a turn a doorbell. Sockets are
    left alone meanwhile, but for a look now and then.
    """
    n = 4
    limits = {"rdma_work_requests": 450, "rdma_doorbells": 180, "rdma_completions": 340,
              "syscalls": 160}
    said = []
    for count in (1, 2):
        with ctx.lab(rails=count) as lab:
            daemons = lab.daemons(roce.settings())
            roce.connect(lab, daemons)
            roce.expect_rdma(daemons, count)
            before = daemons[0].status()["thread"]
            roce.flow(lab, daemons, 25 << 18, n).finish(240)
            after = daemons[0].status()["thread"]
            for key, limit in limits.items():
                each = (after[key] - before[key]) / n
                expect(0 < each < limit, f"{each} {key} an operation over {count} rails")
                said.append(f"{each:.0f} {key.removeprefix('rdma_').replace('_', ' ')}")
    return ", ".join(said)


@test
def roce_traffic_class_is_on_the_wire(ctx):
    """DSCP 26 both ways on UDP 4791; a host that has another one is told so."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings(traffic_class=104))
        for host in lab.hosts:
            host.run("nft", "-f", "-", text="""
table inet dscp {
	chain out {
		type filter hook output priority 0;
		udp dport 4791 ip dscp 26 counter
		udp dport 4791 ip dscp != 26 counter
	}
}
""")
        roce.flow(lab, daemons, 100000, 5).finish(60)
        for host in lab.hosts:
            out = host.run("nft", "list", "table", "inet", "dscp").stdout
            right, wrong = (int(n) for n in re.findall(r"counter packets (\d+)", out))
            expect(right > 100 and wrong == 0, f"{host.name}: {right} with DSCP 26, {wrong} without")
        for daemon in daemons:
            expect(all(r["traffic_class"] == 104 for r in roce.rails(daemon)), roce.describe(daemons))
        daemons[1].stop()
        daemons[1].write_config(roce.settings(traffic_class=0))
        daemons[1].start()
        roce.connect(lab, daemons)
        rail = roce.rails(daemons[0])[0]
        expect(rail["traffic_class"] == 104 and rail["remote_traffic_class"] == 0, f"{rail}")
        expect("set the same on all hosts" in daemons[0].ctl("paths").stdout, roce.describe(daemons))
        expect(roce.log_lines(daemons[0], "traffic.class"), daemons[0].log())


@test
def roce_only_tcp_when_told(ctx):
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("tcp"))
        lab.hosts[0].roce_counters()
        roce.flow(lab, daemons, 100000, 3).finish(60)
        expect(roce.transport(daemons[0]) == "tcp", roce.describe(daemons))
        expect(lab.hosts[0].roce_counted()["roce"][0] == 0, "packets on UDP 4791")
        expect("transport = tcp" in daemons[0].ctl("links").stdout, daemons[0].ctl("links").stdout)


@test
def roce_client_needs_no_device(ctx):
    """A client without /dev/infiniband and with next to no locked memory: the daemon has both."""
    with ctx.lab() as lab:
        daemons = lab.daemons(roce.settings("rdma"))
        bare = ["unshare", "-m", "--", "sh", "-c",
                'mount -t tmpfs none /dev/infiniband && exec prlimit --memlock=65536 "$@"', "sh"]
        job = Job(lab, daemons, [1, 1], "flow", f"--count={1 << 20}", "--iterations=3",
                  wrap={0: bare, 1: bare})
        job.finish(60)
        roce.expect_rdma(daemons)


@test
def roce_with_the_documented_ports_only(ctx):
    """Nothing but TCP 4870 and UDP 4791 may pass, either way."""
    with ctx.lab() as lab:
        for host in lab.hosts:
            roce.firewall(host, "iif lo accept", "meta l4proto icmpv6 accept", "tcp dport 4870 accept",
                          "tcp sport 4870 accept", "udp dport 4791 accept", policy="drop")
        daemons = lab.daemons(roce.settings("rdma"))
        roce.flow(lab, daemons, 100000, 3).finish(60)
        roce.expect_rdma(daemons)


@test
def roce_bench_says_the_transport(ctx):
    """rocebench --transport=rdma measures RDMA, or nothing."""
    with ctx.lab() as lab:
        for transport, wanted in (("auto", "rdma"), ("tcp", "rdma")):
            daemons = lab.daemons(roce.settings(transport))
            runs = []
            for number, daemon in enumerate(daemons):
                command = daemon.host.prefix() + [
                    lab.program("tools/rocebench/rocebench"), f"--socket={daemon.socket}",
                    "--hosts=2", f"--host={number}", f"--root={lab.hosts[0].address}",
                    f"--transport={wanted}", "--sizes=64K", "-r", "20", "--json"]
                runs.append(lab.spawn(command, log=f"{lab.dir}/{transport}{number}"))
            codes = [r.wait(60) for r in runs]
            with open(f"{lab.dir}/{transport}0", encoding="utf-8") as f:
                text = f.read()
            if transport == "auto":
                expect(codes == [0, 0], f"{codes}\n{text}")
                row = json.loads(text.strip().split("\n")[-1])
                expect(row["transport"] == "rdma" and row["verified"], text)
            else:
                expect(all(codes) and "the daemons use tcp" in text, f"{codes}\n{text}")
            for daemon in daemons:
                daemon.stop()


@test
def roce_check(ctx):
    """rocectl check by address, not linked before: TCP, rails, GIDs, MTU, DSCP, figures, a verdict."""
    with ctx.lab(rails=2, gid_shift=True) as lab:
        daemons = lab.daemons(roce.settings())
        seen = json.loads(daemons[0].ctl("check", "--json", "--seconds=1",
                                         lab.hosts[1].address).stdout)
        expect(seen["ok"] and seen["peer"] == lab.hosts[1].name and seen["linked"], f"{seen}")
        what = [f["what"] for f in seen["findings"]]
        for word in ("tcp", "rdma", "mtu", "dscp", "latency", "bandwidth"):
            expect(word in what, f"no {word}: {what}")
        expect(what.count("rdma") == 2 and seen["latency"]["median_ns"] > 0
               and seen["bandwidth"]["bytes_per_second"] > 1e6, f"{seen}")
        rdma = [p for p in seen["paths"] if p["kind"] == "rdma"]
        expect(sum(p["bytes_sent"] for p in rdma) > seen["bandwidth"]["messages"] << 20, f"{rdma}")
        text = daemons[1].ctl("check", "--seconds=0.2", lab.hosts[0].name).stdout
        expect("RDMA and TCP, all well" in text, text)
        expect(daemons[0].ctl("check", lab.hosts[0].address, check=False).returncode == 1, "itself")
        return text.strip().split("\n")[-2]


@test
def roce_check_finds_faults(ctx):
    """UDP 4791 blocked, MTU and DSCP that differ, nobody there: said in words, exit status 4."""
    with ctx.lab(rails=2) as lab:
        a, b = lab.hosts
        b.ip("link", "set", "eth1", "mtu", "1500")
        quick = {"ack_timeout": 12, "probe_timeout_ms": 1500}
        daemons = [Daemon(lab, a, roce.settings(traffic_class=104, **quick)),
                   Daemon(lab, b, roce.settings(**quick))]
        done = daemons[0].ctl("check", "--seconds=0.2", b.address, check=False)
        expect(done.returncode == 4 and "set the same MTU" in done.stdout
               and "DSCP 26" in done.stdout and "reached, with faults" in done.stdout, done.stdout)
        b.block_roce()  # which nobody notices before data flows
        done = daemons[0].ctl("check", "--seconds=0.2", b.name, check=False)
        expect(done.returncode == 4 and "TCP ok, RoCE blocked" in done.stdout
               and "4791" in done.stdout, done.stdout)
        done = daemons[0].ctl("check", "--seconds=0.2", "10.47.0.77", check=False)
        expect(done.returncode == 4 and "cannot be reached" in done.stdout, done.stdout)
        return done.stdout.split("\n")[0]
