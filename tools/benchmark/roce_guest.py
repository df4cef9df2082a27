#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""tools/bench --roce: rocecomm over soft-RoCE, beside perftest and Open MPI over UCX.

Everything runs in one guest of tests/softroce, in turn, between the same two hosts. The guest has one
CPU, which all processes of both hosts share, so figures say how much work a way of sending is, and
compare with others of the same run only.
"""
import argparse
import datetime
import json
import os
import re
import statistics
import subprocess
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
SOFTROCE = os.path.join(TOP, "tests/softroce")
sys.path[:0] = [os.path.join(TOP, "tests"), SOFTROCE, HERE]
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
from harness.lab import Daemon, LabError, wait_for  # noqa: E402
from rocelab import RoceLab  # noqa: E402

MIB = 1 << 20
QPS = 2
INFLIGHT = 4
SENDRECV = (65536, MIB, 8 * MIB)
ALLREDUCE = (8, 65536, 4 * MIB, 25 * MIB)
COUNTERS = ("rdma_work_requests", "rdma_doorbells", "rdma_completions", "syscalls", "wakeups")
SECONDS = 1500


def kernel_says(codes):
    """Where a program was when a signal ended it."""
    if all(code is None or code >= 0 for code in codes):
        return ""
    lines = subprocess.run(["dmesg"], stdout=subprocess.PIPE, text=True, check=False).stdout.split("\n")
    return "; ".join([line for line in lines if "segfault" in line or "killed" in line.lower()][-3:])


class Bench:
    """All measurements of a round, as lines of JSON."""

    def __init__(self, lab, options):
        self.lab = lab
        self.options = options

    # Said at once, so that a guest that dies takes nothing along.
    def note(self, system, what, size, value):
        print(json.dumps({"figure": [system, what, size, value]}), flush=True)

    def problem(self, text):
        print(json.dumps({"problem": text}), flush=True)

    # ---- perftest ---------------------------------------------------------------------------

    def perftest(self, program, *options):
        """The line of results, as numbers. It measures the CPU's clock first, which fails now and then."""
        for _ in range(4):
            row = self.perftest_once(program, *options)
            if row is None or all(0 < value < float("inf") for value in row[2:5]):
                return row
        self.problem(f"{program} {' '.join(options)}: it finds no clock on this machine: {row}")
        return None

    def perftest_once(self, program, *options):
        """The server is on the first host, the client on the other."""
        lab = self.lab
        log = f"{lab.dir}/{program}.log"
        words = [[program, "-d", h.devices[0], "-x", str(h.gid_index(h.devices[0], h.address)), "-F",
                  "-m", "4096", *options] for h in lab.hosts]
        server = lab.spawn(lab.hosts[0].prefix() + words[0], log=log)
        try:
            wait_for(f"{program} listens", lambda: server.poll() is not None or "LISTEN" in
                     lab.hosts[0].run("ss", "-Htln", "sport = :18515").stdout, 20)
            done = lab.hosts[1].run("timeout", "90", *words[1], lab.hosts[0].address, check=False,
                                    timeout=120)
            rows = [l.split() for l in done.stdout.split("\n") if re.match(r"^ *\d+ +\d+ +\S", l)]
            if done.returncode != 0 or not rows:
                self.problem(f"{program} {' '.join(options)}: ended with {done.returncode}: "
                             + done.stdout.strip()[-200:])
                return None
            return [float(word) for word in rows[-1]]
        finally:
            try:
                server.wait(5)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()
            lab.processes.remove(server)

    def perftest_all(self):
        for size in SENDRECV:
            n = str(max(32, min(1000, 128 * MIB // size)))
            for what, flags in (("oneway", []), ("sendrecv", ["-b"])):  # -b: the sum of both ways
                row = self.perftest("ib_write_bw", "-s", str(size), "-n", n, "-q", str(QPS), *flags)
                if row:
                    self.note("ib_write_bw", what, size, row[3] * MIB / 1e6)
        row = self.perftest("ib_send_bw", "-s", str(MIB), "-n", "128", "-e")
        if row:
            self.note("ib_send_bw", "oneway", MIB, row[3] * MIB / 1e6)
        for name, n, flags in (("write", 200, []), ("send", 2000, ["-e"])):  # who polls takes 10 ms each
            row = self.perftest(f"ib_{name}_lat", "-s", "8", "-n", str(n), *flags)
            if row:
                self.note(f"ib_{name}_lat", "lat", 8, row[4])  # median, half a round trip

    # ---- rocecomm ---------------------------------------------------------------------------

    def rocebench(self, daemons, transport, collective, size, reps=0):
        runs = []
        reps = reps or max(5, min(500, 200 * MIB // max(size, 1)))
        job = f"{transport}{collective}{size}-{time.monotonic_ns()}"
        for number, daemon in enumerate(daemons):
            command = [self.lab.program("tools/rocebench/rocebench"), f"--socket={daemon.socket}",
                       "--hosts=2", f"--host={number}", f"--root={self.lab.hosts[0].address}",
                       f"--job={job}",
                       f"--transport={transport}", f"--sizes={size}", f"--reps={reps}", "--json",
                       *([f"--inflight={INFLIGHT}"] if collective == "sendrecv" and size > 8 else []), collective]
            out = f"{self.lab.dir}/bench{number}"
            open(out, "w", encoding="utf-8").close()
            runs.append(self.lab.spawn(daemon.host.prefix() + command, log=out))
        try:
            codes = [r.wait(180) for r in runs]
        except subprocess.TimeoutExpired:
            codes = [None]
            for run in runs:
                run.kill()
                run.wait()
        for run in runs:
            self.lab.processes.remove(run)
        with open(f"{self.lab.dir}/bench0", encoding="utf-8") as f:
            text = f.read()
        if codes != [0, 0]:
            self.problem(f"rocebench {transport} {collective} {size}: {codes} {text.strip()[-300:]} "
                         + kernel_says(codes))
            return None
        row = json.loads(text.strip().split("\n")[-1])
        if not row["verified"]:
            self.problem(f"rocebench {transport} {collective} {size}: a result is wrong")
        return row

    def count(self, daemons, transport, size):
        """What the first daemon does for one allreduce: two runs, so that what comes once drops out."""
        few = max(4, min(100, 16 * MIB // size))
        seen = []
        for reps in (few, 3 * few):
            before = daemons[0].status()["thread"]
            if not self.rocebench(daemons, transport, "allreduce", size, reps):
                return
            after = daemons[0].status()["thread"]
            seen.append({k: after[k] - before[k] for k in COUNTERS if k in after})
        for key, value in seen[0].items():
            self.note(transport, key, size, (seen[1][key] - value) / (2 * few))

    def rocecomm(self, transport):
        settings = {"peer": {"transport": transport}, "rdma": {"qps": QPS}}
        daemons = [Daemon(self.lab, host, settings) for host in self.lab.hosts]
        try:
            for size in (8, *SENDRECV):
                row = self.rocebench(daemons, transport, "sendrecv", size)
                if row:
                    inflight = row["inflight"]
                    if size == 8:
                        self.note(transport, "sendrecv", 8, row["median_us"])
                    else:  # both directions
                        self.note(transport, "sendrecv", size,
                                  2 * size * inflight / row["median_us"])
            for size in ALLREDUCE:
                row = self.rocebench(daemons, transport, "allreduce", size)
                if row:
                    self.note(transport, "allreduce", size, row["median_us"])
                self.count(daemons, transport, size)
            done = daemons[0].ctl("check", "--json", "--seconds=3", self.lab.hosts[1].name,
                                  check=False)
            seen = json.loads(done.stdout) if done.stdout.startswith("{") else {}
            if seen.get("latency"):
                self.note(transport, "lat", 8, seen["latency"]["median_ns"] / 2e3)
            if seen.get("bandwidth"):
                self.note(transport, "oneway", MIB, seen["bandwidth"]["bytes_per_second"] / 1e6)
        finally:
            for daemon in daemons:
                daemon.stop(10)
                self.lab.processes.remove(daemon.process)

    # ---- Open MPI ---------------------------------------------------------------------------

    def openmpi(self):
        """
        Allreduce and exchange of 2 x 1 ranks over UCX's reliable connections. rxe does not write the
        header that UCX looks at in datagrams, which make its connections: without ETH_DGID_CHECK=n it
        drops all of them. Its rendezvous by RDMA READ breaks off on rxe, hence put_zcopy.
        """
        program = os.path.join(self.options.build, "tools/benchmark/mpi_bench")
        if self.options.no_openmpi or not os.path.exists(program):
            return
        lab = self.lab
        cases = [f"allreduce:{size}:1:{max(5, min(100, 100 * MIB // max(size, 1)))}:5"
                 for size in ALLREDUCE]
        cases += [f"sendrecv:{size}:{INFLIGHT if size > 8 else 1}:{max(5, min(100, 50 * MIB // size))}:3"
                  for size in (8, *SENDRECV)]
        ucx = {"TLS": "rc_verbs,ud_verbs,self", "UD_ETH_DGID_CHECK": "n", "RNDV_SCHEME": "put_zcopy",
               "LOG_LEVEL": "error"}
        command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", "2",
                   "--host", ",".join(h.address + ":1" for h in lab.hosts),
                   "--mca", "plm_rsh_agent", os.path.join(HERE, "roce_rsh_agent"),
                   "--mca", "orte_leave_session_attached", "1", "--mca", "orte_tmpdir_base", lab.dir,
                   "--mca", "oob_tcp_if_include", "eth0", "--mca", "pml", "ucx",
                   "--mca", "mpi_yield_when_idle", "1",
                   "--mca", "opal_common_ucx_progress_iterations", "1",  # yields in all its loops
                   *[w for key, value in ucx.items() for w in ("-x", f"UCX_{key}={value}")],
                   program, "--hosts=2", "--variant=ucx", *cases]
        log = f"{lab.dir}/mpi"
        run = lab.spawn(lab.hosts[0].prefix() + command, log=log, env={
            "BENCH_HOSTS": " ".join(f"{h.address}={h.pid}" for h in lab.hosts)})
        try:
            code = run.wait(300)
        except subprocess.TimeoutExpired:
            run.terminate()
            code = run.wait(20)
        lab.processes.remove(run)
        with open(log, encoding="utf-8", errors="replace") as f:
            text = f.read()
        for line in text.split("\n"):
            if line.startswith("{"):
                row = json.loads(line)
                us, size = row["median_us"], row["bytes"]
                if row["coll"] == "sendrecv" and size > 8:
                    us = 2 * size * row["inflight"] / us  # MB/s, both directions
                self.note("openmpi", row["coll"], size, us)
        if code != 0:
            self.problem(f"Open MPI over UCX: {code}: {text.strip()[:600]}")


# ---- the table ------------------------------------------------------------------------------


def middle(figures, system, what, size):
    values = figures.get((system, what, size))
    return statistics.median(values) if values else None


def text(value, unit):
    if value is None:
        return "-"
    if unit == "us" and value >= 1000:
        return f"{value / 1000:.3g} ms"
    return f"{value:.0f} {unit}" if value >= 100 else f"{value:.1f} {unit}"


def ratio(value, other):
    return f"{value / other:.2f}" if value and other else "-"


def size_text(size):
    return f"{size} B" if size < 1024 else f"{size >> 10} KiB" if size < MIB else f"{size // MIB} MiB"


def row_of(figures, name, what, size, unit, perftest=None, allows=""):
    """A row of the main table; perftest: (figure, its text). Ratios above 1: rocecomm is better."""
    ours, tcp, ucx = (middle(figures, s, what, size) for s in ("rdma", "tcp", "openmpi"))
    peak, said = perftest or (None, allows)

    def times(other):
        return ratio(other, ours) if unit == "us" else ratio(ours, other)

    return [name, text(ours, unit), text(tcp, unit), said, text(ucx, unit), times(peak), times(ucx),
            times(tcp)]


def peaks(figures, what, size, unit, *programs):
    """(figure of the first, all as text) of perftest's programs, as (program, how it is called)."""
    values = [(middle(figures, p, what, size), name) for p, name in programs]
    return values[0][0], ", ".join(f"{text(v, unit)} ({name})" for v, name in values)


def table(figures):
    """Lines of Markdown."""
    rows = [["work", "rocecomm, RDMA", "rocecomm, TCP", "perftest", "Open MPI, UCX",
             "RDMA against perftest", "against Open MPI", "against TCP"], ["---"] + ["---:"] * 7]
    rows.append(row_of(figures, "1 MiB one way between the daemons (rocectl check)", "oneway", MIB,
                       "MB/s", peaks(figures, "oneway", MIB, "MB/s", ("ib_write_bw", "ib_write_bw"),
                                     ("ib_send_bw", "ib_send_bw -e"))))
    for size in SENDRECV:
        rows.append(row_of(figures, f"send and receive at once, {size_text(size)}, {INFLIGHT} in flight",
                           "sendrecv", size, "MB/s",
                           peaks(figures, "sendrecv", size, "MB/s", ("ib_write_bw", "ib_write_bw -b"))))
    for size in ALLREDUCE:
        peak = middle(figures, "ib_write_bw", "sendrecv", 8 * MIB if size > MIB else MIB)
        # Each host sends and receives all of it once; peak counts both directions.
        limit = 2 * size / peak if peak and size >= MIB else None
        rows.append(row_of(figures, f"allreduce, {size_text(size)}, 2x1", "allreduce", size, "us",
                           (limit, f"{text(limit, 'us')} (what ib_write_bw -b allows)")
                           if limit else None))
    rows.append(row_of(figures, "8 B one way between the daemons (rocectl check)", "lat", 8, "us",
                       peaks(figures, "lat", 8, "us", ("ib_send_lat", "ib_send_lat -e"),
                             ("ib_write_lat", "ib_write_lat, polls"))))
    rows.append(row_of(figures, "8 B exchanged between ranks", "sendrecv", 8, "us"))
    return ["| " + " | ".join(r) + " |" for r in rows]


def counts(figures):
    """Lines of Markdown: what an allreduce costs a daemon, as it counts itself."""
    rows = [["an allreduce, one daemon of two", *(k.replace("rdma_", "").replace("_", " ")
                                                  for k in COUNTERS), "system calls over TCP"],
            ["---"] + ["---:"] * (len(COUNTERS) + 1)]
    for size in ALLREDUCE:
        values = [middle(figures, "rdma", key, size) for key in COUNTERS]
        values.append(middle(figures, "tcp", "syscalls", size))
        # Below what else the daemon does meanwhile it cannot be told.
        rows.append([size_text(size), *("-" if v is None or v < 0 else f"{v:.1f}" for v in values)])
    return ["| " + " | ".join(r) + " |" for r in rows]


def goals(figures):
    """Lines of Markdown: what was aimed at, and what it is."""
    def value(system, what, size):
        return middle(figures, system, what, size)

    limit = value("ib_write_bw", "sendrecv", 8 * MIB)
    big = value("rdma", "allreduce", 25 * MIB)
    rows = (("bandwidth of large messages, one way, against ib_write_bw: 0.9 or more",
             value("rdma", "oneway", MIB), value("ib_write_bw", "oneway", MIB), 0.9),
            ("bandwidth of large messages, both ways, against ib_write_bw -b: 0.9 or more",
             value("rdma", "sendrecv", 8 * MIB), limit, 0.9),
            ("allreduce 25 MiB against what ib_write_bw -b allows: 0.85 or more",
             limit and 50 * MIB / limit, big, 0.85),
            ("allreduce 25 MiB against Open MPI over UCX: more than 1",
             value("openmpi", "allreduce", 25 * MIB), big, 1),
            ("8 B one way against ib_send_lat -e: 0.5 or more",
             value("ib_send_lat", "lat", 8), value("rdma", "lat", 8), 0.5))
    lines = []
    for what, mine, other, least in rows:
        have = mine / other if mine and other else None
        lines.append(f"- {what}: " + ("not measured" if have is None else f"{have:.2f}"
                                      + ("" if have >= least else ", missed")))
    return lines


def inside(options):
    """One round."""
    with RoceLab(options.build, hosts=2) as lab:
        bench = Bench(lab, options)
        for step in (bench.perftest_all, lambda: bench.rocecomm("rdma"), lambda: bench.rocecomm("tcp"),
                     bench.openmpi):
            try:
                step()
            except LabError as e:
                bench.problem(str(e))
    return 0


def one_round(options, figures, problems):
    """In a guest of its own; adds to {(system, what, bytes): [value of each round]}."""
    command = [os.path.join(SOFTROCE, "guest"), "--hosts", "0", "--memory", "2048", "--timeout",
               str(SECONDS), "--", sys.executable, os.path.abspath(__file__),
               f"--build={options.build}", *(["--no-openmpi"] if options.no_openmpi else [])]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as guest:
        for line in guest.stdout:
            try:
                seen = json.loads(line) if line.startswith("{") else {}
            except json.JSONDecodeError:
                continue  # cut off
            if "figure" in seen:
                system, what, size, value = seen["figure"]
                figures.setdefault((system, what, size), []).append(value)
                print(f"bench: {system} {what} {size}: {value:.6g}", file=sys.stderr, flush=True)
            if "problem" in seen:
                problems.append(seen["problem"])
    if guest.returncode != 0:
        problems.append(f"the guest ended with {guest.returncode}")
    return guest.returncode


def machine():
    """CPUs, load and commit, for whoever reads the figures later."""
    commit = subprocess.run(["git", "-C", TOP, "log", "-1", "--format=%h"], stdout=subprocess.PIPE,
                            text=True, check=False).stdout.strip()
    return f"{os.cpu_count()} CPUs, load {os.getloadavg()[0]:.0f}, commit {commit or 'unknown'}"


def write(options, rounds, figures, problems, lines):
    today = datetime.date.today().isoformat()
    name = os.path.join(options.out, f"{today}-roce")
    with open(name + ".json", "w", encoding="utf-8") as f:
        json.dump({"date": today, "rounds": rounds, "machine": machine(), "problems": problems,
                   "figures": [{"system": s, "what": w, "bytes": b, "values": v}
                               for (s, w, b), v in figures.items()]}, f, indent=1)
        f.write("\n")
    with open(name + ".md", "w", encoding="utf-8") as f:
        f.write("<!-- SPDX-License-Identifier: Apache-2.0 -->\n\n# rocecomm over soft-RoCE\n\n"
                f"`tools/bench --roce`, {today}, medians of {rounds} round{'s' * (rounds > 1)}, each in one guest of "
                f"tests/softroce with one CPU and two hosts ({machine()}); MTU 4096, {QPS} queue "
                "pairs. "
                "Bandwidths of both ways are their sum. A ratio above 1: rocecomm is better. Who polls "
                "(ib_write_bw, ib_write_lat, UCX) shares the CPU with the network's own work here.\n\n"
                + "\n".join(lines) + "\n" + "".join(f"\nA problem: {p}\n" for p in problems))


def outside(options):
    """What a round brought is written at once."""
    figures, problems, lines = {}, [], []
    for number in range(options.rounds):
        print(f"bench: round {number + 1} of {options.rounds}", file=sys.stderr, flush=True)
        one_round(options, figures, problems)
        lines = [*table(figures), "", *counts(figures), "", *goals(figures)]
        if options.out:
            write(options, number + 1, figures, problems, lines)
    print("\n".join(lines))
    for problem in problems:
        print(f"bench: {problem}", file=sys.stderr)
    return 1 if problems else 0


def main():
    parser = argparse.ArgumentParser(prog="tools/bench --roce", description=__doc__.split("\n")[0])
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", help="folder for the figures (DATE-roce.json and .md)")
    parser.add_argument("--no-openmpi", action="store_true")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    return inside(options) if os.path.isdir("/run/softroce") else outside(options)


if __name__ == "__main__":
    sys.exit(main())
