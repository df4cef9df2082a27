# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""A laboratory: hosts out of network namespaces, daemons on them, ranks that talk to the daemons.

Nothing has a name outside: a host is a process that holds a network and a UTS namespace, the pairs
of interfaces are made inside, and every process dies with the runner. Several laboratories can
exist at once.
"""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time


class LabError(Exception):
    """Something that a test expects did not happen; the text says what."""


def wait_for(what, test, seconds=10.0, pause=0.02):
    """Waits until test() is true and returns its value; fails with `what`."""
    end = time.monotonic() + seconds
    while True:
        value = test()
        if value:
            return value
        if time.monotonic() > end:
            raise LabError(f"not within {seconds:g} s: {what() if callable(what) else what}")
        time.sleep(pause)


def expect(condition, text):
    if not condition:
        raise LabError(text)


def parse_settings(words):
    """SECTION.KEY=VALUE, any number of them, as {section: {key: value}}; ValueError names a wrong one."""
    sections = {}
    for word in words:
        name, equals, value = word.partition("=")
        section, dot, key = name.rpartition(".")
        if not equals or not dot:
            raise ValueError(f"not SECTION.KEY=VALUE: {word}")
        sections.setdefault(section, {})[key] = value
    return sections


def extra_settings():
    """ROCECOMM_TEST_CONFIG="daemon.io_threads=2 peer.streams=3": for daemons of all tests."""
    return parse_settings(os.environ.get("ROCECOMM_TEST_CONFIG", "").split())


def own_cpus(hosts):
    """The CPUs of each host where none is shared, neighbours together; None: too few for that."""
    have = sorted(os.sched_getaffinity(0))
    each = len(have) // hosts
    return [have[i * each:(i + 1) * each] for i in range(hosts)] if each else None


class Host:
    """One network and UTS namespace, and the CPUs that its processes may run on (None: all)."""

    def __init__(self, lab, number):
        self.lab = lab
        self.name = "host" + "ABCDEFGH"[number]
        self.address = f"10.47.0.{number + 1}"
        self.cpus = lab.cpus[number] if lab.cpus else None
        up = os.path.join(lab.dir, self.name + ".up")
        self.holder = lab.spawn([*self._on_cpus(), "unshare", "-n", "-u", "--", "sh", "-c",
                                 f"hostname {self.name} && touch {up} && exec sleep 7200"])
        wait_for(f"namespaces of {self.name} (needs CAP_SYS_ADMIN)", lambda: os.path.exists(up))

    def _on_cpus(self):
        return ["taskset", "-c", ",".join(map(str, self.cpus))] if self.cpus else []

    def prefix(self):
        return [*self._on_cpus(), "nsenter", "-t", str(self.holder.pid), "-n", "-u", "--"]

    def run(self, *command, check=True, timeout=60):
        """Runs a command to its end inside the host."""
        done = subprocess.run(self.prefix() + list(command), stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=timeout, check=False)
        if check and done.returncode != 0:
            raise LabError(f"{self.name}: {' '.join(command)}: {done.stdout.strip()}")
        return done

    def ip(self, *words):
        return self.run("ip", *words)

    def decoy(self, name, address):
        """An interface that is up, has an address and reaches nobody."""
        if self.run("ip", "link", "add", name, "type", "dummy", check=False).returncode != 0:
            self.ip("link", "add", name, "type", "bridge")
        self.ip("address", "add", address, "dev", name)
        self.ip("link", "set", name, "up")


class Daemon:
    """A rocecommd on a host."""

    def __init__(self, lab, host, settings=None, name=None, wrap=(), start=True):
        self.lab = lab
        self.host = host
        self.name = name or host.name
        self.socket = os.path.join(lab.dir, self.name + ".sock")
        self.config = os.path.join(lab.dir, self.name + ".conf")
        self.log_path = os.path.join(lab.dir, self.name + ".log")
        self.wrap = list(wrap)
        self.process = None
        self.write_config(settings or {})
        if start:
            self.start()

    def write_config(self, settings):
        """settings: {"section": {"key": value}}, over socket, key file and the environment's."""
        sections = {"daemon": {"socket": self.socket}, "peer": {"key_file": self.lab.key}}
        for source in (extra_settings(), settings):
            for section, keys in source.items():
                sections.setdefault(section, {}).update(keys)
        with open(self.config, "w", encoding="utf-8") as f:
            for section, keys in sections.items():
                f.write(f"[{section}]\n")
                for key, value in keys.items():
                    f.write(f"{key} = {value}\n")

    def command(self):
        return [*self.wrap, self.lab.program("daemon/rocecommd"), f"--config={self.config}"]

    def start(self, wait=True):
        self.process = self.lab.spawn(self.host.prefix() + self.command(), log=self.log_path)
        if wait:
            wait_for(lambda: f"daemon of {self.host.name} answers; its log:\n{self.log()}",
                     lambda: self.process.poll() is not None or self.answers(),
                     15 * self.lab.slow)
            expect(self.process.poll() is None, f"the daemon ended at once:\n{self.log()}")

    def answers(self):
        return self.ctl("version", check=False).returncode == 0

    @property
    def pid(self):
        if self.wrap:  # strace and the like: the daemon is their child
            with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children",
                      encoding="ascii") as f:
                children = f.read().split()
            if children:
                return int(children[0])
        return self.process.pid

    def alive(self):
        return self.process is not None and self.process.poll() is None

    def kill(self, sig=signal.SIGKILL):
        os.kill(self.pid, sig)

    def stop(self, seconds=5.0):
        """Ends it by SIGTERM; returns how long that took."""
        begin = time.monotonic()
        self.kill(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired as e:
            raise LabError(f"still there {seconds:g} s after SIGTERM:\n{self.log()}") from e
        return time.monotonic() - begin

    def log(self, lines=25):
        try:
            with open(self.log_path, encoding="utf-8", errors="replace") as f:
                return "".join(f.readlines()[-lines:])
        except FileNotFoundError:
            return ""

    def ctl(self, *words, check=True):
        return self.host.run(self.lab.program("tools/rocectl/rocectl"),
                             f"--socket={self.socket}", *words, check=check)

    def status(self):
        return json.loads(self.ctl("status", "--json").stdout)

    def rss_kib(self):
        """Resident memory without what is shared with clients."""
        with open(f"/proc/{self.pid}/status", encoding="ascii") as f:
            fields = dict(line.split(":", 1) for line in f)
        return sum(int(fields[k].split()[0]) for k in ("RssAnon", "RssFile"))

    def fds(self):
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def cpu_seconds(self):
        with open(f"/proc/{self.pid}/stat", encoding="ascii") as f:
            fields = f.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Rank:
    """One process of a job."""

    def __init__(self, job, daemon, rank, command):
        self.rank = rank
        self.daemon = daemon
        self.out_path = os.path.join(job.dir, f"rank{rank}.out")
        self.err_path = os.path.join(job.dir, f"rank{rank}.err")
        # pylint: disable=consider-using-with
        self.process = job.lab.spawn(daemon.host.prefix() + command, log=self.out_path,
                                     err=self.err_path)

    @property
    def pid(self):
        return self.process.pid

    def lines(self, word):
        """Lines of output that begin with a word, without it."""
        with open(self.out_path, encoding="utf-8", errors="replace") as f:
            return [l[len(word):].strip() for l in f if l.split(" ")[0].strip() == word]

    def errors(self):
        with open(self.err_path, encoding="utf-8", errors="replace") as f:
            return f.read().strip()


class Job:
    """The ranks of one collcheck run: per_host[i] ranks on daemons[i]."""

    count = 0

    def __init__(self, lab, daemons, per_host, mode, *options, name="collcheck", wrap=None):
        Job.count += 1
        self.lab = lab
        self.dir = os.path.join(lab.dir, f"job{Job.count}")
        os.mkdir(self.dir)
        self.ranks = []
        size = sum(per_host)
        for daemon, n in zip(daemons, per_host):
            for _ in range(n):
                rank = len(self.ranks)
                command = [lab.program("tests/integration/collcheck"),
                           f"--socket={daemon.socket}", f"--id={self.dir}/id", f"--name={name}",
                           f"--rank={rank}", f"--size={size}", *options, mode]
                if wrap and wrap.get(rank):
                    command = wrap[rank] + command
                self.ranks.append(Rank(self, daemon, rank, command))

    def wait(self, seconds=60.0):
        """Waits for all ranks; returns their exit codes."""
        end = time.monotonic() + seconds * self.lab.slow
        codes = []
        for rank in self.ranks:
            try:
                codes.append(rank.process.wait(max(0.01, end - time.monotonic())))
            except subprocess.TimeoutExpired as e:
                raise LabError(f"rank {rank.rank} has not ended in {seconds:g} s\n"
                               + self.report()) from e
        return codes

    def finish(self, seconds=60.0):
        """Waits; all must have ended well."""
        codes = self.wait(seconds)
        if any(codes):
            raise LabError(f"exit codes {codes}\n{self.report()}")

    def wait_ready(self, seconds=30.0):
        wait_for(lambda: "all ranks are ready\n" + self.report(),
                 lambda: all(r.lines("ready") for r in self.ranks)
                 or any(r.process.poll() is not None for r in self.ranks),
                 seconds * self.lab.slow)
        expect(all(r.lines("ready") for r in self.ranks),
               "a rank ended early\n" + self.report())

    def report(self):
        text = []
        for rank in self.ranks:
            text += [f"rank {rank.rank}: {line}" for line in rank.errors().split("\n")[:6] if line]
        for daemon in dict.fromkeys(r.daemon for r in self.ranks):
            text += [f"{daemon.name}: {line}" for line in daemon.log(12).split("\n") if line]
        return "\n".join(text[:60])

    def kill(self):
        for rank in self.ranks:
            if rank.process.poll() is None:
                rank.process.kill()
        for rank in self.ranks:
            rank.process.wait()


class Lab:
    """Use as a context manager: `with Lab(build, 2) as lab`."""

    def __init__(self, build, hosts=1, mtu=1500, slow=1.0, cpus=None):
        """cpus: for each host a list of CPUs, its own; all hosts have all by default."""
        self.build = build
        self.slow = slow  # factor for time-outs: sanitizers
        self.cpus = cpus
        self.processes = []
        self.dir = tempfile.mkdtemp(prefix="rocecomm-lab-")
        self.key = os.path.join(self.dir, "cluster.key")
        try:
            subprocess.run([self.program("tools/rocectl/rocectl"), "key", "new", self.key],
                           check=True, stdout=subprocess.DEVNULL)
            self._make_hosts(hosts, mtu)
        except BaseException:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def program(self, name):
        return os.path.join(self.build, name)

    def spawn(self, command, log=None, err=None, env=None):
        """Starts a process that dies with this one."""
        with open(log or os.devnull, "ab") as out, open(err or os.devnull, "ab") as errors:
            # pylint: disable=consider-using-with
            process = subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *command], stdin=subprocess.DEVNULL,
                stdout=out, stderr=errors if err else subprocess.STDOUT,
                env={**os.environ, **(env or {})})
        self.processes.append(process)
        return process

    def _make_hosts(self, hosts, mtu):
        self.hosts = [Host(self, i) for i in range(hosts)]
        self._wire(mtu)

    def _wire(self, mtu):
        """Two hosts: a pair of interfaces. More: a bridge on the first."""
        first = self.hosts[0]
        for host in self.hosts:
            host.ip("link", "set", "lo", "up")
        if len(self.hosts) == 2:
            first.ip("link", "add", "eth0", "mtu", str(mtu), "type", "veth", "peer", "name",
                     "eth0", "mtu", str(mtu), "netns", str(self.hosts[1].holder.pid))
        elif len(self.hosts) > 2:
            first.ip("link", "add", "eth0", "type", "bridge")
            for i, host in enumerate(self.hosts[1:]):
                first.ip("link", "add", f"port{i}", "mtu", str(mtu), "type", "veth", "peer",
                         "name", "eth0", "mtu", str(mtu), "netns", str(host.holder.pid))
                first.ip("link", "set", f"port{i}", "master", "eth0", "up")
        if len(self.hosts) > 1:
            for host in self.hosts:
                host.ip("address", "add", f"{host.address}/24", "dev", "eth0")
                host.ip("link", "set", "eth0", "up")
            for host in self.hosts:  # daemons look at their addresses when they start
                wait_for(f"carrier of {host.name}",
                         lambda h=host: "state UP" in h.ip("-o", "link", "show", "eth0").stdout)

    def daemons(self, settings=None):
        """One on each host."""
        return [Daemon(self, host, settings) for host in self.hosts]

    def close(self):
        for process in reversed(self.processes):
            if process.poll() is None:
                process.kill()
        for process in self.processes:
            process.wait()
        shutil.rmtree(self.dir, ignore_errors=True)
