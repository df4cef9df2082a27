# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""The systems under test: how each is started on the two hosts, and its lines of JSON collected."""
import json
import os
import subprocess
import tempfile
import time

from harness.lab import Daemon, LabError
from rows import BESIDE_PRODUCTS, HOSTS, LAYOUTS

HERE = os.path.dirname(os.path.abspath(__file__))
INTERFACE = "eth0"
PORT = 29500


class Launch:
    """Processes that belong together; all of them end with it, however it ends."""

    def __init__(self, lab):
        self.lab = lab
        self.dir = tempfile.mkdtemp(prefix="launch-", dir=lab.dir)
        self.started = []  # (process, file of its output, file of its errors)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self, host, command, env=None):
        number = len(self.started)
        out, err = (os.path.join(self.dir, f"{number}.{kind}") for kind in ("out", "err"))
        process = self.lab.spawn(host.prefix() + command, log=out, err=err, env=env)
        self.started.append((process, out, err))

    def wait(self, seconds):
        """Whether all ended well within that time."""
        end = time.monotonic() + seconds
        while any(p.poll() is None for p, _, _ in self.started):
            if any(p.poll() not in (None, 0) for p, _, _ in self.started):
                end = min(end, time.monotonic() + 5)  # the others wait for it in vain
            if time.monotonic() > end:
                return False
            time.sleep(0.02)
        return all(p.returncode == 0 for p, _, _ in self.started)

    def stop(self):
        for process, _, _ in self.started:
            if process.poll() is None:
                process.terminate()
        end = time.monotonic() + 3
        for process, _, _ in self.started:
            try:
                process.wait(max(0.01, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
            self.lab.processes.remove(process)

    def output(self, number):
        with open(self.started[number][1], encoding="utf-8", errors="replace") as f:
            return f.read()

    def results(self):
        """The JSON objects that the first process printed."""
        found = []
        for line in self.output(0).split("\n"):
            try:
                found += [json.loads(line)] if line.startswith("{") else []
            except json.JSONDecodeError:
                pass  # cut off by the end of the process
        return found

    def errors(self):
        text = []
        for number, (_, _, err) in enumerate(self.started):
            with open(err, encoding="utf-8", errors="replace") as f:
                text += [f"process {number}: {line.rstrip()}" for line in f if line.strip()]
        return "; ".join(text[:6])


class System:
    """Base of all. name: as in the results' "system"."""

    name = ""
    title = ""

    def __init__(self, lab, programs):
        self.lab = lab
        self.programs = programs  # the build's tools folder
        self.seconds = 900

    def cases(self, rows, share=1.0):
        """The rows as peer.c and gloo_bench.py take them."""
        return [f"{r.coll}:{r.bytes}:{r.inflight}:{max(3, round(r.reps * share))}:"
                f"{max(1, round(r.warmup * share))}" for r in rows]

    def options(self, variant):
        return [f"--hosts={HOSTS}", f"--variant={variant}", f"--work={BESIDE_PRODUCTS}"]

    def run(self, rows):
        """Rows of one layout: (results, texts of what went wrong)."""
        raise NotImplementedError

    def collect(self, launch, expected, seconds):
        good = launch.wait(seconds)
        results = launch.results()
        problems = [f"{self.name}: wrong elements in {r['coll']} of {r['bytes']} bytes"
                    for r in results if r.get("verified") is not True]
        if not problems and (not good or len(results) < expected):
            problems = [f"{self.name}: {len(results)} of {expected} rows within {seconds} s: "
                        + (launch.errors() or "nothing on standard error")]
        return results, problems


class Rocecomm(System):
    """Daemons of its own for each run; rocebench for all rows but those beside a trainer."""

    name = "rocecomm"
    title = "rocecomm"

    def __init__(self, lab, programs, variant, settings):
        super().__init__(lab, programs)
        self.variant = variant
        self.settings = settings
        self.jobs = 0

    def run(self, rows):
        results, problems, daemons = [], [], []
        try:
            for host in self.lab.hosts:
                daemons.append(Daemon(self.lab, host, self.settings))
            for row in rows:
                with Launch(self.lab) as launch:
                    (self.beside if row.coll == "beside" else self.rocebench)(
                        launch, daemons, row)
                    found, wrong = self.collect(launch, 1, self.seconds)
                for result in found:
                    result["variant"] = self.variant
                    if row.coll == "comm":  # rocebench calls it create
                        result.update(coll="comm", bytes=0)
                results += found
                problems += wrong
        except LabError as e:
            problems.append(f"rocecomm: {e}")
        finally:
            for daemon in daemons:
                daemon.stop()
                self.lab.processes.remove(daemon.process)
        return results, problems

    def rocebench(self, launch, daemons, row):
        self.jobs += 1
        operation = ["--create"] if row.coll == "comm" else [
            row.coll, f"--sizes={row.bytes}", f"--inflight={row.inflight}"]
        for i, daemon in enumerate(daemons):
            launch.start(daemon.host, [
                os.path.join(self.programs, "rocebench/rocebench"),
                f"--ranks={LAYOUTS[row.layout]}", f"--hosts={HOSTS}", f"--host={i}",
                f"--root={self.lab.hosts[0].address}", f"--job=bench{self.jobs}",
                f"--socket={daemon.socket}", "--memory=registered", "--json",
                f"--reps={row.reps}", f"--warmup={row.warmup}", *operation])

    def beside(self, launch, daemons, row):
        ranks = LAYOUTS[row.layout]
        for i, daemon in enumerate(daemons):
            for local in range(ranks):
                launch.start(daemon.host, [os.path.join(self.programs, "benchmark/roce_beside"),
                                           *self.options(self.variant), "--memory=registered",
                                           *self.cases([row])],
                             {"ROCECOMM_SOCKET": daemon.socket, "RANK": str(i * ranks + local),
                              "WORLD_SIZE": str(HOSTS * ranks), "LOCAL_RANK": str(local),
                              "MASTER_ADDR": self.lab.hosts[0].address,
                              "MASTER_PORT": str(PORT)})


class OpenMpi(System):
    """mpirun on the first host. Which of the variants is best for a row, short runs tell before."""

    name = "openmpi"
    title = "Open MPI"
    variants = {
        "plain": [],
        "yield": ["--mca", "mpi_yield_when_idle", "1"],
        "yield, han": ["--mca", "mpi_yield_when_idle", "1", "--mca", "coll_han_priority", "100"],
    }

    def __init__(self, lab, programs):
        super().__init__(lab, programs)
        self.chosen = {}  # row: variant

    def launch(self, rows, variant, share, seconds):
        first = self.lab.hosts[0]
        ranks = LAYOUTS[rows[0].layout]
        slots = ",".join(f"{host.address}:{ranks}" for host in self.lab.hosts)
        mca = {"plm_rsh_agent": os.path.join(HERE, "plm_rsh_agent"),
               "orte_leave_session_attached": "1", "pml": "ob1", "btl": "tcp,self,vader",
               "btl_tcp_if_include": INTERFACE, "oob_tcp_if_include": INTERFACE,
               "orte_tmpdir_base": self.lab.dir}
        with Launch(self.lab) as launch:
            launch.start(first, [
                "mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none",
                "-n", str(HOSTS * ranks), "--host", slots,
                *(word for item in mca.items() for word in ("--mca", *item)),
                *self.variants[variant],
                os.path.join(self.programs, "benchmark/mpi_bench"), *self.options(variant),
                *self.cases(rows, share)],
                {"BENCH_HOSTS": " ".join(f"{h.address}={h.holder.pid}" for h in self.lab.hosts)})
            return self.collect(launch, len(rows), seconds)

    def choose(self, rows):
        best = {}
        for layout in LAYOUTS:
            part = [r for r in rows if r.layout == layout]
            for variant in self.variants if part else ():
                if LAYOUTS[layout] == 1 and "han" in variant:
                    continue  # nothing to do on a host with one rank
                # Ranks that poll without giving way may take minutes where CPUs are few.
                results, _ = self.launch(part, variant, 0.1, 40)
                for row, result in zip(part, results):
                    best.setdefault(row, []).append((result["median_us"], variant))
        for row in rows:
            self.chosen[row] = min(best.get(row, [(0, "yield")]))[1]

    def run(self, rows):
        results, problems = [], []
        for variant in self.variants:
            part = [r for r in rows if self.chosen[r] == variant]
            if part:
                found, wrong = self.launch(part, variant, 1.0, self.seconds)
                results += found
                problems += wrong
        return results, problems


class Gloo(System):
    """One Python a rank, in the virtual environment that tools/bench keeps."""

    name = "gloo"
    title = "Gloo"

    def __init__(self, lab, programs, python):
        super().__init__(lab, programs)
        self.python = python

    def run(self, rows):
        ranks = LAYOUTS[rows[0].layout]
        library = os.path.join(self.programs, "benchmark/libbenchwork.so")
        with Launch(self.lab) as launch:
            for i, host in enumerate(self.lab.hosts):
                for local in range(ranks):
                    launch.start(host, [self.python, os.path.join(HERE, "gloo_bench.py"),
                                        *self.options(""), f"--library={library}",
                                        *self.cases(rows)],
                                 {"RANK": str(i * ranks + local), "OMP_NUM_THREADS": "1",
                                  "WORLD_SIZE": str(HOSTS * ranks), "LOCAL_RANK": str(local),
                                  "MASTER_ADDR": self.lab.hosts[0].address,
                                  "MASTER_PORT": str(PORT), "GLOO_SOCKET_IFNAME": INTERFACE})
            return self.collect(launch, len(rows), self.seconds)
