# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Daemons that stand for hosts, ranks on the machine's GPUs, and what is known of both."""
import collections
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time

from harness.lab import parse_settings

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NCCL_TUNED = {"NCCL_NSOCKS_PERTHREAD": "4", "NCCL_SOCKET_NTHREADS": "4"}

# Of a rank: its numbers, its daemon's, where that listens, the file with the communicator's id, its GPU.
Place = collections.namedtuple("Place", "rank size host socket id device")


class Failed(Exception):
    """A step did not do what it should; the text says what."""


def smi(*words):
    done = subprocess.run(["sh", "-c", "exec nvidia-smi \"$@\"", "nvidia-smi", *words], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    return [line for line in done.stdout.splitlines() if line.strip()]


def fake():
    """Is the CUDA driver a stand-in? PyTorch and NCCL know nothing of it."""
    return bool(os.environ.get("ROCECOMM_CUDA_LIBRARY"))


def gpus():
    """GPUs of this machine that processes can see, in words."""
    if fake():
        return [f"Fake GPU {i}" for i in range(int(os.environ.get("FAKE_CUDA_DEVICES", "2")))]
    listed = [line for line in smi("-L") if line.startswith("GPU ")]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return listed if visible is None else listed[:len([v for v in visible.split(",") if v.strip()])]


class Site:
    """Daemons, each its own host, and what is known of them."""

    def __init__(self, bundle, work, config, hosts=2, devices=1):
        self.bundle = bundle
        self.config = config
        self.work = work
        self.devices = devices
        self.processes = [None] * hosts
        self.jobs = 0
        subprocess.run([self.program("rocectl"), "key", "new", os.path.join(work, "key")], check=True,
                       stdout=subprocess.DEVNULL)
        try:
            for i in range(hosts):
                self.start(i)
        except Failed:
            self.stop()
            raise

    def program(self, name):
        return os.path.join(self.bundle, name)

    def socket(self, i):
        return os.path.join(self.work, f"{i}.sock")

    def log(self, i, lines=8):
        with open(os.path.join(self.work, f"{i}.log"), encoding="utf-8", errors="replace") as f:
            return "".join(f.readlines()[-lines:])

    def start(self, i):
        conf = os.path.join(self.work, f"{i}.conf")
        sections = {"daemon": {"socket": self.socket(i)},
                    "peer": {"key_file": f"{self.work}/key", "listen": "127.0.0.1", "port": 29510 + i}}
        for section, keys in parse_settings(self.config).items():
            sections.setdefault(section, {}).update(keys)
        with open(conf, "w", encoding="ascii") as f:
            for section, keys in sections.items():
                f.write(f"[{section}]\n" + "".join(f"{k} = {v}\n" for k, v in keys.items()))
        with open(os.path.join(self.work, f"{i}.log"), "a", encoding="ascii") as log:
            # pylint: disable=consider-using-with
            self.processes[i] = subprocess.Popen([self.program("rocecommd"), f"--config={conf}"],
                                                 stdout=log, stderr=log)
        end = time.monotonic() + 15
        while self.ctl(i, "version").returncode != 0:
            if time.monotonic() > end or self.processes[i].poll() is not None:
                raise Failed(f"the daemon does not answer:\n{self.log(i)}")
            time.sleep(0.05)

    def stop(self):
        for p in self.processes:
            if p and p.poll() is None:
                p.terminate()
        for p in filter(None, self.processes):
            with contextlib.suppress(subprocess.TimeoutExpired):
                p.wait(10)
                continue
            p.kill()
            p.wait()

    def ctl(self, i, *words):
        return subprocess.run([self.program("rocectl"), f"--socket={self.socket(i)}", *words],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)

    def moved(self):
        """Bytes that copy engines have moved, by way, of all daemons."""
        total = collections.Counter()
        for i in range(len(self.processes)):
            for gpu in json.loads(self.ctl(i, "status", "--json").stdout)["gpus"]:
                for key in ("bytes_from_gpu", "bytes_to_gpu", "bytes_to_other_gpus"):
                    total[key] += gpu[key]
        return dict(total)

    def kept(self):
        """Memory of the GPU and of the host, and descriptors, of each daemon."""
        used = dict(line.split(", ") for line in smi("--query-compute-apps=pid,used_memory",
                                                     "--format=csv,noheader,nounits"))
        out = []
        for p in self.processes:
            maps = fds = 0
            with contextlib.suppress(OSError):
                with open(f"/proc/{p.pid}/maps", encoding="utf-8") as f:
                    maps = sum(1 for _ in f)
                fds = len(os.listdir(f"/proc/{p.pid}/fd"))
            out.append({"gpu_MiB": used.get(str(p.pid), "?"), "maps": maps, "fds": fds})
        return out


@contextlib.contextmanager
def site(bundle, config, hosts, devices):
    """Daemons of its own, gone afterwards."""
    with tempfile.TemporaryDirectory() as work:
        made = Site(bundle, work, config, hosts, devices)
        try:
            yield made
        finally:
            made.stop()


class Ranks:
    """Processes of one job: make(place) is the command of each. Rank r has GPU r of those there are."""

    def __init__(self, site_, per_host, make, env=None):
        site_.jobs += 1
        self.site = site_
        self.paths = []
        self.processes = []
        size = sum(per_host)
        for host, n in enumerate(per_host):
            for _ in range(n):
                rank = len(self.processes)
                path = os.path.join(site_.work, f"job{site_.jobs}-{rank}")
                place = Place(rank, size, host, site_.socket(host), os.path.join(site_.work, f"id{site_.jobs}"),
                              rank % site_.devices)
                self.paths.append(path)
                with open(path, "w", encoding="utf-8") as out:
                    # pylint: disable=consider-using-with
                    self.processes.append(subprocess.Popen(make(place), stdout=out, stderr=subprocess.STDOUT,
                                                           env=dict(os.environ, **(env or {}))))

    def output(self, rank):
        with open(self.paths[rank], encoding="utf-8", errors="replace") as f:
            return f.read()

    def lines(self, rank):
        return [json.loads(x) for x in self.output(rank).splitlines() if x.startswith("{")]

    def wait(self, seconds):
        end = time.monotonic() + seconds
        try:
            return [p.wait(max(0.1, end - time.monotonic())) for p in self.processes]
        except subprocess.TimeoutExpired as e:
            self.kill()
            raise Failed(f"not ended within {seconds} s: {self.output(0)[-600:]}\n"
                         f"{self.site.log(0)}") from e

    def finish(self, seconds):
        codes = self.wait(seconds)
        if any(codes):
            words = "\n".join(self.output(r)[-500:] for r in range(len(codes)))
            raise Failed(f"exit codes {codes}:\n{words}\n{self.site.log(0)}")
        return self

    def ready(self, seconds=30):
        end = time.monotonic() + seconds
        while not all("ready" in self.output(r) for r in range(len(self.paths))):
            if time.monotonic() > end or any(p.poll() is not None for p in self.processes):
                raise Failed(f"a rank is not ready: {[self.output(r)[-400:] for r in range(len(self.paths))]}")
            time.sleep(0.02)

    def kill(self):
        for p in self.processes:
            if p.poll() is None:
                p.kill()
            p.wait()


# ---- commands ----------------------------------------------------------------------------------


def gpu_rank(site_, mode, *options):
    return lambda p: [site_.program("gpu-rank"), f"--socket={p.socket}", f"--id={p.id}", f"--rank={p.rank}",
                      f"--size={p.size}", f"--device={p.device}", *options, mode]


def torch_rank(site_, backend, *options, hosts=None):
    """@hosts: NCCL is told that ranks are on as many hosts; None: each on its own."""
    return lambda p: [
        sys.executable, os.path.join(TOP, "tests/device/gpu-torch"), "--backend", backend, "--rank", str(p.rank),
        "--size", str(p.size), "--library", site_.program("libroceclient.so.0"), "--socket", p.socket, "--id", p.id,
        "--device", str(p.device), "--host", str(p.rank if hosts is None else p.rank * hosts // p.size), *options]


def ddp_rank(backend, *options, hosts=None):
    return lambda p: [
        sys.executable, os.path.join(TOP, "tests/device/gpu-ddp"), "--backend", backend, "--rank", str(p.rank),
        "--size", str(p.size), "--store", p.id + ".store", "--socket", p.socket, "--device", str(p.device),
        "--host", str(p.rank if hosts is None else p.rank * hosts // p.size), *options]


@contextlib.contextmanager
def mps(work):
    """Yields the environment of clients of an MPS server of our own, or None."""
    env = {"CUDA_MPS_PIPE_DIRECTORY": work + "/mps", "CUDA_MPS_LOG_DIRECTORY": work + "/mps"}
    os.makedirs(work + "/mps", exist_ok=True)
    try:
        subprocess.run(["nvidia-cuda-mps-control", "-d"], env=dict(os.environ, **env), check=True)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    try:
        yield env
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True,
                       env=dict(os.environ, **env), check=False)


# ---- DDP ---------------------------------------------------------------------------------------


def ddp_options(args):
    """On a stand-in PyTorch has no GPU: a small net on the CPU shows that the step works."""
    if fake():
        return ["--cpu", "--width", "64", "--layers", "1", "--steps", "4"]
    return ["--width", str(args.width), "--steps", str(args.steps)]


def ddp(site_, per_host, args, backend, env=None, hosts=None):
    """Trains; returns rank 0's line."""
    env = {"ROCECOMM_LIBRARY": site_.program("libroceclient.so.0"), **(env or {})}
    job = Ranks(site_, per_host, ddp_rank(backend, *ddp_options(args), hosts=hosts), env)
    return job.finish(400).lines(0)[-1]


def ddp_compare(ours, theirs):
    """
    Losses side by side. Two ranks' sums are the same in any order; of more ranks the order of the sums
    differs, and what follows from it grows slowly.
    """
    pairs = list(zip(ours["losses"], theirs["losses"]))
    apart = max(abs(a - b) / abs(b) for a, b in pairs)
    limit = 1e-5 if ours["ranks"] == 2 else 1e-3
    result = {"ranks": ours["ranks"], "parameters": ours["parameters"], "steps": ours["steps"],
              "loss": [ours["losses"][0], ours["losses"][-1]], "furthest_apart": apart,
              "step_ms": {ours["ddp"]: ours["median_step_ms"], theirs["ddp"]: theirs["median_step_ms"]}}
    if len(ours["losses"]) != len(theirs["losses"]) or not apart <= limit:
        raise Failed(f"losses differ by up to {apart:.2g} of their value ({limit:g} is allowed): {pairs}")
    if not ours["losses"][-1] < ours["losses"][0]:
        raise Failed(f"nothing is learnt: {ours['losses']}")
    return result
