# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""PyTorch programs on the hosts of a laboratory: the ranks of a job, and what they say."""
import os
import re
import subprocess
import time

from harness.lab import LabError, wait_for

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SOURCE = os.path.join(TOP, "libclient/python")
EXAMPLES = os.path.join(SOURCE, "examples")
PORT = 29500
# Ranks that compute, and others, take the CPUs of small machines from the daemons for long.
PATIENT = {"peer": {"peer_timeout_ms": "120000"}}
ABORT = re.compile(r"Fatal Python error|terminate called")
CAUSE = re.compile(r"(\[rank\d+\]: *)?[\w.]*(Error|Exception)\b")


def environment(package, socket=None):
    """What a program needs: the folder in which the package is installed, and its host's daemon."""
    env = {"PYTHONPATH": package, "OMP_NUM_THREADS": "1",
           "PYTHONFAULTHANDLER": "1",  # a rank that aborts says where each of its threads was
           "GLOO_SOCKET_IFNAME": "eth0", "PYTHONDONTWRITEBYTECODE": "1",
           "TORCH_SHOW_CPP_STACKTRACES": "0", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    if socket:
        env["ROCECOMM_SOCKET"] = socket
    return env


def install(python, build, folder):
    """Makes the package's wheel from a build, and installs it into a folder. Returns that."""
    wheels, package = os.path.join(folder, "wheels"), os.path.join(folder, "package")
    steps = ([os.path.join(SOURCE, "wheel"), build, wheels, "--no-build-isolation"],
             [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps",
              "--no-index", "--root-user-action=ignore", "--find-links", wheels, "--target", package,
             "rocecomm"])
    for step in steps:
        done = subprocess.run(step, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                              env={**os.environ, "PYTHON": python}, timeout=300, check=False)
        if done.returncode != 0:
            raise LabError(f"{' '.join(step)}: {done.stdout[-1500:]}")
    return package


class Process:
    """A rank or a torchrun, with what it says in two files."""

    def __init__(self, job, name, daemon, command, env):
        self.name, self.daemon = name, daemon
        self.out_path = os.path.join(job.dir, f"{name}.out")
        self.err_path = os.path.join(job.dir, f"{name}.err")
        self.process = job.lab.spawn(daemon.host.prefix() + command, log=self.out_path,
                                     err=self.err_path, env=env)

    @property
    def pid(self):
        return self.process.pid

    @staticmethod
    def _read(path):
        with open(path, encoding="utf-8", errors="replace") as f:
            return f.read()

    def output(self):
        return self._read(self.out_path)

    def errors(self):
        return self._read(self.err_path)

    def lines(self, word):
        """Lines of output that begin with a word, without it."""
        return [l[len(word):].strip() for l in self.output().split("\n")
                if l.split(" ")[0] == word]


class Job:
    """A program as per_host[i] ranks on daemons[i], each started by hand, or by a torchrun a host.

    torchrun: its command without what this class knows, or a function of the host's number."""

    count = 0

    def __init__(self, lab, package, daemons, per_host, command, env=None, torchrun=None):
        Job.count += 1
        self.lab, self.daemons = lab, daemons
        self.dir = os.path.join(lab.dir, f"torch{Job.count}")
        os.mkdir(self.dir)
        self.processes = []
        master = {"MASTER_ADDR": daemons[0].host.address, "MASTER_PORT": str(PORT)}
        for number, (daemon, count) in enumerate(zip(daemons, per_host)):
            base = {**environment(package, daemon.socket), **(env or {})}
            if torchrun:
                words = [*(torchrun(number) if callable(torchrun) else torchrun),
                         f"--nnodes={len(daemons)}", f"--node-rank={number}",
                         f"--nproc-per-node={count}", f"--master-addr={master['MASTER_ADDR']}",
                         f"--master-port={PORT}", f"--local-addr={daemon.host.address}"]
                self.processes.append(Process(self, daemon.name, daemon, words + command[1:], base))
                continue
            for local in range(count):
                rank = len(self.processes)
                own = {**master, "RANK": str(rank), "WORLD_SIZE": str(sum(per_host)),
                       "LOCAL_RANK": str(local), "LOCAL_WORLD_SIZE": str(count)}
                self.processes.append(
                    Process(self, f"rank{rank}", daemon, command, {**base, **own}))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.process.poll() is None:
                process.process.kill()
            process.process.wait()

    def wait(self, seconds, which=None):
        """Waits for these (default: all); returns their exit codes."""
        end = time.monotonic() + seconds * self.lab.slow
        codes = []
        for process in self.processes if which is None else which:
            try:
                codes.append(process.process.wait(max(0.01, end - time.monotonic())))
            except subprocess.TimeoutExpired as e:
                raise LabError(f"{process.name} has not ended in {seconds:g} s\n"
                               + self.report()) from e
        return codes

    def finish(self, seconds=120.0):
        """Waits; all must have ended well. Returns the first's output."""
        codes = self.wait(seconds)
        if any(codes):
            raise LabError(f"exit codes {codes}\n{self.report()}")
        return self.processes[0].output()

    def wait_line(self, word, seconds=60.0, which=None):
        """Waits until these (default: all) have said a line that begins with a word."""
        chosen = self.processes if which is None else which
        wait_for(lambda: f"'{word}' from all\n{self.report()}",
                 lambda: all(p.lines(word) or p.process.poll() is not None for p in chosen),
                 seconds * self.lab.slow)
        if not all(p.lines(word) for p in chosen):
            raise LabError(f"no '{word}'\n{self.report()}")

    def report(self):
        text = []
        for process in self.processes:
            said = (process.output() + process.errors()).strip().split("\n")
            causes = [line for line in said if CAUSE.match(line)]
            fatal = next((i for i, line in enumerate(said) if ABORT.search(line)), len(said))
            text += [f"{process.name}: {line}"
                     for line in [*causes[:4], "...", *said[fatal:fatal + 40], *said[-4:]]]
        for daemon in dict.fromkeys(p.daemon for p in self.processes):
            text += [f"{daemon.name}: {line}" for line in daemon.log(6).split("\n") if line]
        return "\n".join(text[:160])
