# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""GPU memory between real daemons, on the fake CUDA (tests/fake/cuda)."""
import itertools
import json
import os
import signal
import struct
import sys
import time

from harness.lab import Daemon, Job, LabError, Rank, expect, wait_for
from harness.runner import test

COUNTS = ("device_bytes", "mapped", "physical", "ipc", "host_bytes", "streams", "events", "copies",
          "copied", "waits")
KEPT = ("device_bytes", "mapped", "physical", "ipc", "host_bytes", "streams")


def fake_env(lab, **more):
    """The fake CUDA, in an environment that has nothing of it so far."""
    state = os.path.join(lab.dir, "cuda")
    os.makedirs(state, exist_ok=True)
    env = {"ROCECOMM_CUDA_LIBRARY": lab.program("tests/fake/cuda/libfakecuda.so"),
           "FAKE_CUDA_STATE": state, **more}
    return ["env", *(f"{k}={v}" for k, v in env.items())]


class GpuJob(Job):
    """gpu-rank on each daemon: env[i] for rank i."""

    def __init__(self, lab, daemons, per_host, mode, *options, env=None, wrap=None):
        # pylint: disable=super-init-not-called
        Job.count += 1
        self.lab = lab
        self.dir = os.path.join(lab.dir, f"job{Job.count}")
        os.mkdir(self.dir)
        self.ranks = []
        size = sum(per_host)
        for daemon, n in zip(daemons, per_host):
            for _ in range(n):
                rank = len(self.ranks)
                command = [*fake_env(lab, **(env or {}).get(rank, {})), *(wrap or {}).get(rank, []),
                           lab.program("tools/gpu-rank/gpu-rank"), f"--socket={daemon.socket}",
                           f"--id={self.dir}/id", f"--rank={rank}", f"--size={size}", *options, mode]
                self.ranks.append(Rank(self, daemon, rank, command))

    def output(self, rank):
        with open(self.ranks[rank].out_path, encoding="utf-8") as f:
            return f.read()


def daemons_of(lab, n=2, **env):
    return [Daemon(lab, host, wrap=fake_env(lab, **env)) for host in lab.hosts[:n]]


def counts(lab, daemon):
    """What the daemon's fake driver holds now."""
    path = os.path.join(lab.dir, "cuda", str(daemon.pid))
    with open(path, "rb") as f:
        return dict(zip(COUNTS, struct.unpack(f"{len(COUNTS)}Q", f.read(8 * len(COUNTS)))))


def kept(lab, daemon):
    have = counts(lab, daemon)
    return {k: have[k] for k in KEPT}


def cases(job, rank):
    return int(job.output(rank).split('"cases": ')[1].split("}")[0])


def matrix(ctx, per_host):
    with ctx.lab(2) as lab:
        job = GpuJob(lab, daemons_of(lab), per_host, "check", *(["--short"] if ctx.short else []))
        job.finish(300)
        paths = [line for line in job.output(0).splitlines() if line.startswith("path ")]
        for kind in ("ipc", "vmm"):
            expect(any(p.startswith(f"path {kind}: ") and "staged" in p and "copied by this" not in p
                       for p in paths), f"{kind} memory is not with the daemon: {paths}")
        for kind in ("vmm-unexported", "pool", "managed"):
            expect(any(p.startswith(f"path {kind}: ") and "copied by this process" in p
                       for p in paths), f"{kind}: {paths}")
        warned = job.ranks[0].errors().count("is copied through host memory")
        expect(warned == 1, f"{warned} warnings, one is due")
        return f"{cases(job, 0)} cases a rank"


@test
def gpu_matrix_2x1(ctx):
    """Every operation on every kind of memory, with and without a stream."""
    return matrix(ctx, [1, 1])


@test
def gpu_matrix_2x3(ctx):
    return matrix(ctx, [3, 3])


@test
def gpu_small_operations(ctx):
    """Up to 64 KiB the stream copies by itself, above the daemon does."""
    with ctx.lab(2) as lab:
        daemons = daemons_of(lab)

        def moved(size):
            job = GpuJob(lab, daemons, [1, 1], "loop", "--seconds=60", f"--bytes={size}")
            job.wait_ready()
            status = daemons[0].status()
            job.kill()
            wait_for("the client to be forgotten", lambda: not daemons[0].status()["clients"], 10)
            return (sum(c["bytes_staged"] for c in status["clients"]),
                    sum(g["bytes_from_gpu"] + g["bytes_to_gpu"] for g in status["gpus"]))

        client, daemon = moved(65536)
        expect(client > 0 and daemon == 0, f"64 KiB: {client} by the client, {daemon} by the daemon")
        below = client
        client, daemon = moved(131072)
        expect(client == 0 and daemon > 0, f"128 KiB: {client} by the client, {daemon} by the daemon")
        return f"{below} bytes by the client, {daemon} by the daemon"


@test
def gpu_memory_that_comes_and_goes(ctx):
    """Freed and allocated again at the same addresses: never an old mapping; all given back."""
    with ctx.lab(2) as lab:
        daemons = daemons_of(lab)
        GpuJob(lab, daemons, [1, 1], "check", "--short").finish(120)
        before = [kept(lab, d) for d in daemons]
        job = GpuJob(lab, daemons, [1, 1], "churn", "--seconds=2")
        job.finish(120)
        expect(not job.ranks[0].errors(), job.ranks[0].errors())
        for d, b in zip(daemons, before):
            wait_for(lambda d=d, b=b: f"{kept(lab, d)}, {b} is due",
                     lambda d=d, b=b: kept(lab, d) == b, 10)
        return job.ranks[0].lines("done")[0] + " allocations"


@test
def gpu_daemon_killed(ctx):
    """Streams are let go and the reason is told within 2 s, on both hosts."""
    with ctx.lab(2) as lab:
        daemons = daemons_of(lab)
        job = GpuJob(lab, daemons, [1, 1], "loop", "--seconds=60", "--bytes=4194304")
        job.wait_ready()
        begin = time.monotonic()
        daemons[1].kill()
        codes = job.wait(20)
        took = time.monotonic() - begin
        expect(codes == [3, 3], f"exit codes {codes}\n{job.report()}")
        failed = [r.lines("failed")[0] for r in job.ranks]
        expect(failed[0].startswith("peer-died") and failed[1].startswith("no-daemon"), failed)
        expect(took < 2 * ctx.slow, f"{took:.1f} s")
        return f"{took:.2f} s: {failed[0]}"


def kill_some(ctx, lab, daemons, n):
    """@n jobs at once, of each of which one rank is killed while copies run."""
    jobs = [GpuJob(lab, daemons, [1, 1], "loop", "--seconds=600", f"--bytes={size}")
            for size in ([4194304, 1048576, 65536, 262144] * n)[:n]]
    for job in jobs:
        job.wait_ready(60 * ctx.slow)
    for i, job in enumerate(jobs):
        time.sleep(0.003 * (i % 5))
        job.ranks[i % 2].process.send_signal(signal.SIGKILL)
    for i, job in enumerate(jobs):
        codes = job.wait(30 * ctx.slow)
        left = 1 - i % 2
        expect(codes[left] == 3, f"exit codes {codes}\n{job.report()}")
        expect(job.ranks[left].lines("failed")[0].startswith("peer-died"), job.report())


def held(lab, daemon):
    """What its driver and its process hold."""
    return {**kept(lab, daemon), "files": len(os.listdir(f"/proc/{daemon.pid}/fd")),
            "clients": len(daemon.status()["clients"])}


def wait_held(ctx, lab, daemons, due):
    def right(daemon, want):
        have = held(lab, daemon)
        return all(have[k] == v for k, v in want.items())

    for daemon, want in zip(daemons, due):
        wait_for(lambda d=daemon, w=want: f"{held(lab, d)}, {w} is due",
                 lambda d=daemon, w=want: right(d, w), 10 * ctx.slow)


@test
def gpu_clients_killed(ctx):
    """SIGKILL while copies run: the daemon gives everything back, others notice nothing."""
    rounds, at_once = (2, 10) if ctx.short else (10, 10)
    with ctx.lab(2) as lab:
        daemons = daemons_of(lab, FAKE_CUDA_COPY_US="300")
        kill_some(ctx, lab, daemons, 1)
        wait_held(ctx, lab, daemons, [{"clients": 0, "ipc": 0}] * 2)
        idle = [held(lab, d) for d in daemons]
        other = GpuJob(lab, daemons, [1, 1], "loop", "--seconds=600", "--bytes=65536")
        other.wait_ready()
        busy = [held(lab, d) for d in daemons]
        for held_by_other in busy:
            del held_by_other["host_bytes"]  # pinned slabs stay while the GPU is in use
        for _ in range(rounds):
            kill_some(ctx, lab, daemons, at_once)
            wait_held(ctx, lab, daemons, busy)
        for d in daemons:
            wait_for("staging memory to be given back",
                     lambda d=d: all(g["staging_used"] == 0 for g in d.status()["gpus"]), 10)
        expect(all(r.process.poll() is None for r in other.ranks), other.report())
        other.kill()
        wait_held(ctx, lab, daemons, idle)
        return f"{rounds * at_once} killed; held: {idle[0]}"


@test
def gpu_on_one_host_only(ctx):
    """Field case 3: each rank is told its own path and why; the result is right all the same."""
    with ctx.lab(2) as lab:
        daemons = [Daemon(lab, lab.hosts[0], wrap=fake_env(lab)),
                   Daemon(lab, lab.hosts[1],
                          wrap=fake_env(lab, ROCECOMM_CUDA_LIBRARY="/nowhere/libcuda.so.1"))]
        job = GpuJob(lab, daemons, [1, 1], "check", "--short")
        job.finish(120)
        lines = [next(x for x in job.output(r).splitlines() if x.startswith("path ipc: "))
                 for r in range(2)]
        expect("staged" in lines[0] and "no network device here has registered" in lines[0], lines)
        expect("copied by this process" in lines[1] and "/nowhere" in lines[1], lines)
        expect(daemons[0].status()["gpus"] and not daemons[1].status()["gpus"],
               [d.status()["gpus"] for d in daemons])
        return lines[1]


@test
def gpu_hosts_that_differ(ctx):
    """Field case 3: what one host's daemon can open, the other's cannot; each says so, the result is right."""
    hosts = {"both": ({}, {"ipc", "vmm"}),
             "ipc": ({"FAKE_CUDA_FAIL": "cuMemImportFromShareableHandle=304"}, {"ipc"}),
             "vmm": ({"FAKE_CUDA_FAIL": "cuIpcOpenMemHandle=1"}, {"vmm"}),
             "none": ({"ROCECOMM_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}, set())}
    cells = done = 0
    with ctx.lab(2) as lab:
        for pair in itertools.product(hosts, hosts):
            daemons = [Daemon(lab, host, wrap=fake_env(lab, **hosts[name][0]))
                       for host, name in zip(lab.hosts, pair)]
            job = GpuJob(lab, daemons, [1, 1], "check", "--short")
            job.finish(120)
            for rank, name in enumerate(pair):
                for kind in ("ipc", "vmm"):
                    line = next(x for x in job.output(rank).splitlines() if x.startswith(f"path {kind}: "))
                    opened = kind in hosts[name][1]
                    expect(("copied by this process" not in line) == opened and ("staged" in line) == opened,
                           f"{pair}, rank {rank}: {line}")
            cells += 1
            done += cases(job, 0)
            for daemon in daemons:
                daemon.stop()
    return f"{cells} pairs of hosts, {done} cases"


@test
def gpu_cannot_be_opened_for_a_while(ctx):
    """Field case 9: a GPU that was not in use when its node went away; the rest goes on."""
    with ctx.lab(2) as lab:
        # The first context is made, the next three cannot be: as after a daemon-reload that took
        # the node out of the unit's device rules.
        daemons = daemons_of(lab, FAKE_CUDA_FAIL="cuDevicePrimaryCtxRetain=304@1x3")
        first = GpuJob(lab, daemons, [1, 1], "loop", "--seconds=600", "--bytes=262144")
        first.wait_ready()
        env = {r: {"CUDA_VISIBLE_DEVICES": "1"} for r in range(2)}
        line = ""
        for i in range(6):
            job = GpuJob(lab, daemons, [1, 1], "check", "--short", env=env)
            job.finish(120)
            line = next(x for x in job.output(0).splitlines() if x.startswith("path ipc: "))
            if "copied by this process" not in line:
                break
            expect("CUDA_ERROR_OPERATING_SYSTEM" in line and "context" in line, line)
            refused = line
        expect("staged" in line, f"it is there again, and still not used: {line}")
        expect(i > 0, "it was never refused")
        expect(all(r.process.poll() is None for r in first.ranks), first.report())
        first.kill()
        return refused


@test
def gpu_devices_in_another_order(ctx):
    """Devices are matched by UUID, whatever CUDA_VISIBLE_DEVICES says on either side."""
    with ctx.lab(2) as lab:
        daemons = daemons_of(lab, FAKE_CUDA_DEVICES="3", CUDA_VISIBLE_DEVICES="2,0,1")
        env = {0: {"FAKE_CUDA_DEVICES": "3", "CUDA_VISIBLE_DEVICES": "1,2"},
               1: {"FAKE_CUDA_DEVICES": "3",
                   "CUDA_VISIBLE_DEVICES": "MIG-fa6ec0da-1122-4344-8566-778899aabb02"}}
        job = GpuJob(lab, daemons, [1, 1], "check", "--short", env=env)
        job.finish(120)
        expect("path ipc: GPU 0, staged" in job.output(0), job.output(0))
        for daemon, last in zip(daemons, ("01", "02")):
            expect(f"8566-778899aabb{last}" in daemon.log(60), daemon.log())


def copied(ctx, daemon_env, words, rank_wrap=None, kinds=("ipc", "vmm")):
    """The daemon cannot have the memory: the client copies, says why, and is right."""
    with ctx.lab(2) as lab:
        daemons = daemons_of(lab, **daemon_env)
        job = GpuJob(lab, daemons, [1, 1], "check", "--short", wrap=rank_wrap)
        job.finish(120)
        for kind in kinds:
            line = next(x for x in job.output(0).splitlines() if x.startswith(f"path {kind}: "))
            expect("copied by this process" in line and words in line, line)
        return line


@test
def gpu_daemon_without_driver(ctx):
    return copied(ctx, {"ROCECOMM_CUDA_LIBRARY": "/nowhere/libcuda.so.1"}, "driver")


@test
def gpu_daemon_without_that_gpu(ctx):
    return copied(ctx, {"CUDA_VISIBLE_DEVICES": "1"}, "GPU-fa6ec0da")


@test
def gpu_import_refused(ctx):
    """The driver refuses handles (field cases 14, 15, 19)."""
    return copied(ctx, {"FAKE_CUDA_FAIL": "cuMemImportFromShareableHandle=304,cuIpcOpenMemHandle=1"},
                  "CUDA_ERROR_")


@test
def gpu_client_in_a_pid_namespace(ctx):
    """An IPC handle names a process: from a namespace of its own it is refused, and copied instead."""
    wrap = {0: ["unshare", "-p", "-f", "--kill-child"], 1: ["unshare", "-p", "-f", "--kill-child"]}
    return copied(ctx, {}, "CUDA_ERROR_INVALID_VALUE", rank_wrap=wrap, kinds=("ipc",))


@test
def gpu_copies_fail(ctx):
    """An error of the driver that spoils the context: the job is told, the next one works."""
    with ctx.lab(2) as lab:
        daemons = [Daemon(lab, lab.hosts[0], wrap=fake_env(lab)),
                   Daemon(lab, lab.hosts[1],
                          wrap=fake_env(lab, FAKE_CUDA_FAIL="cuMemcpyDtoHAsync=1@40x1"))]
        job = GpuJob(lab, daemons, [1, 1], "loop", "--seconds=30", "--bytes=1048576")
        codes = job.wait(60)
        expect(codes == [3, 3], f"exit codes {codes}\n{job.report()}")
        failed = [r.lines("failed")[0] for r in job.ranks]
        expect(daemons[1].alive(), daemons[1].log())
        wait_for("the daemon to be rid of the old job",
                 lambda: not daemons[1].status().get("communicators"), 10)
        job = GpuJob(lab, daemons, [1, 1], "check", "--short")
        try:
            job.finish(120)
        except LabError as e:
            raise LabError(f"after {failed}: {e}") from e
        return failed[1]


@test
def gpu_copies_to_other_gpus(ctx):
    """Ranks of one host on two GPUs: data that only moves goes straight, with the reason; gpu_peer = off."""
    with ctx.lab(1) as lab:
        wrap = fake_env(lab, FAKE_CUDA_HOST_US="4000")  # 0.25 GB/s: straight is faster
        env = {rank: {"CUDA_VISIBLE_DEVICES": str(rank % 2)} for rank in range(4)}
        daemon = Daemon(lab, lab.hosts[0], wrap=wrap)
        job = GpuJob(lab, [daemon], [4], "check", "--short", env=env)
        job.finish(200)
        gpus = json.loads(daemon.ctl("paths", "--json").stdout)["gpus"]
        peers = [p for gpu in gpus for p in gpu["peers"]]
        expect(len(gpus) == 2 and len(peers) == 2 and all(p["path"] == "direct" for p in peers), gpus)
        expect(all("copy engines reach it" in p["reason"] for p in peers), peers)
        expect("no network device here" in gpus[0]["reason"] and not gpus[0]["devices"], gpus)
        moved = sum(g["bytes_to_other_gpus"] for g in daemon.status()["gpus"])
        expect(moved > 0, daemon.status()["gpus"])
        expect("direct, copy engines reach it" in daemon.ctl("paths").stdout, daemon.ctl("paths").stdout)
        daemon.stop()
        off = Daemon(lab, lab.hosts[0], {"daemon": {"gpu_peer": "off"}}, wrap=wrap)
        GpuJob(lab, [off], [4], "check", "--short", env=env).finish(200)
        peers = [p for gpu in json.loads(off.ctl("paths", "--json").stdout)["gpus"] for p in gpu["peers"]]
        expect(all(p["path"] == "staged" and "gpu_peer = off" in p["reason"] for p in peers), peers)
        expect(not any(g["bytes_to_other_gpus"] for g in off.status()["gpus"]), off.status()["gpus"])
        return f"{moved} bytes; {cases(job, 0)} cases a rank"


@test
def gpu_check_on_several_gpus(ctx):
    """tools/gpu-check --gpus: its steps, its page, and its words where there are too few GPUs."""
    top = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    with ctx.lab(1) as lab:
        bundle = os.path.join(lab.dir, "bundle")
        os.mkdir(bundle)
        for name in ("daemon/rocecommd", "tools/rocectl/rocectl", "tools/gpu-rank/gpu-rank"):
            os.symlink(os.path.abspath(lab.program(name)), os.path.join(bundle, os.path.basename(name)))
        command = [*fake_env(lab, FAKE_CUDA_DEVICES="4", FAKE_CUDA_HOST_US="4000"), sys.executable,
                   os.path.join(top, "tools/gpu-check"), bundle, "--sizes=8,256K", "--seconds=0.02",
                   f"--out={lab.dir}/page"]
        done = lab.hosts[0].run(*command, "--gpus=5", check=False)
        expect(done.returncode == 1 and "5 GPUs are asked for, a rank each, and 4 are here" in done.stdout,
               done.stdout)
        for word, why in (("--gpus=0", "'0' is not a number of 1 or more"),
                          ("--sizes=8,zz", "'8,zz' is not a list of sizes"),
                          ("--config=nonsense", "'nonsense' is not SECTION.KEY=VALUE")):
            done = lab.hosts[0].run(*command, word, check=False)
            expect(done.returncode == 2 and why in done.stdout, done.stdout)
        done = lab.hosts[0].run(*command, f"--out={lab.dir}/none/page", check=False)
        expect(done.returncode == 1 and f"there is no folder {lab.dir}/none" in done.stdout, done.stdout)
        done = lab.hosts[0].run(*command, "--gpus=2", "--only=together", "--config=daemon.gpu=off", check=False)
        expect(done.returncode == 0 and "0 % of the bytes" in done.stdout, done.stdout)
        done = lab.hosts[0].run(*command, "--gpus=4", "--only=apart,together,mixed", check=False, timeout=300)
        expect(done.returncode == 0, done.stdout)
        with open(f"{lab.dir}/page.json", encoding="utf-8") as f:
            found = json.load(f)
        results = found["results"]
        expect(found["gpus"] == 4 and not found["failures"], found)
        straight = results["together"]["straight, rocecomm"]
        expect(straight > 0 and results["together"]["straight, rocecomm, gpu_peer = off"] == 0, results["together"])
        for word in ("4 GPUs, each its own host", "4 GPUs, one host", "4 GPUs, two hosts", "alltoall"):
            expect(word in done.stdout, done.stdout)
        return f"{100 * straight:.0f} % straight"
