#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""tools/bench --compare: rocecomm, Open MPI and Gloo between the same two hosts, in turn."""
import argparse
import json
import os
import signal
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests")]
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
import limits  # noqa: E402
import machine  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402
from harness.lab import Lab, LabError, own_cpus, parse_settings  # noqa: E402
from harness.words import positive  # noqa: E402
from systems import Gloo, OpenMpi, Rocecomm  # noqa: E402

SYSTEMS = ("rocecomm", "openmpi", "gloo")
OURS = "cubic"  # what rocecommd sets by itself

EPILOG = """\
what it does
  Installs Open MPI, iperf3 (packages of Debian or Ubuntu) and PyTorch's CPU wheel (a virtual
  environment in ~/.cache/rocecomm) where they are missing, builds rocecomm, and makes two hosts out
  of network namespaces with a pair of interfaces between them (veth, MTU 9000). On them it runs, in
  turn and several rounds, rocebench over two daemons, Open MPI over TCP with shared memory within a
  host, and Gloo as torch.distributed uses it. Layout 2x4 is two hosts with four ranks each. Nothing
  is left when it ends.

what is fair
  All have the same repetitions, warm-up and way of timing (a repetition's time is that of its
  slowest rank), and all results are checked. A figure is the median of the rounds' medians.
  Congestion control: once everything with what the system has, once everything with cubic (a route
  attribute in the namespaces), which is what rocecommd sets on its own sockets by default; a third
  table has rocecomm as it comes and the others as the system has it.
  Open MPI: short runs tell for each row whether it is faster as it comes, with
  mpi_yield_when_idle or with its hierarchical collectives (coll han) as well; that variant counts,
  and the table names it. One operation is the blocking call, several are the non-blocking ones.
  Gloo reduces in place; Open MPI and rocecomm do not, which is the slower way. rocecomm's memory is
  from roce_mem_alloc(), the others' is plain.
  Beside a trainer: every rank computes the same number of matrix products (the same machine code in
  one shared library), posts an allreduce without waiting, and so on; it waits for all at the end.
  Open MPI is polled once after each product, as it gets on with its operations only in calls.
  CPUs: each host has half of the machine's for itself, whatever runs on it, as hosts have; with
  --cpus=shared every process of both hosts may run on all, and which of them meet on one changes
  from run to run.
  Communicator: roce_comm_init over daemons that are connected; MPI_Comm_split and MPI_Comm_free;
  new_group and destroy_process_group.

what is measured against
  limit: what no system should be below; it is measured too, so other load shows in it. The larger
  of the wire's time (a one-way message, plus the bytes that must leave a host at the speed of iperf3
  in both directions at once) and the memory's (each operand read once and each result written once
  at the speed of memcpy or of a sum of two sources).
  Beside a trainer: the products alone.

files in --out
  compare.json  every line of every program, the limits, the machine
  compare.md    the tables        compare.svg  the plot: allreduce, time against size

examples
  tools/bench --compare                           all of it, a quarter of an hour
  tools/bench --compare --quick                   a few rows, two minutes
  tools/bench --compare --no-peers --only='allreduce-*@2x4' --rounds=3
  tools/bench --report build/bench/compare.json   tables and plot again
"""


def arguments():
    parser = argparse.ArgumentParser(
        prog="tools/bench", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Compares rocecomm with Open MPI and Gloo on this machine (root).")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--compare", action="store_true", help="measure and report")
    what.add_argument("--report", metavar="FILE", help="tables and plot of a compare.json")
    what.add_argument("--list", action="store_true", help="names of the rows")
    parser.add_argument("--quick", action="store_true",
                        help="few rows, two rounds, cubic only")
    parser.add_argument("--only", "--rows", metavar="NAME,...", default="",
                        help="rows with these names (see --list); * stands for anything")
    parser.add_argument("--systems", metavar="NAME,...", default=",".join(SYSTEMS),
                        help="of " + ", ".join(SYSTEMS))
    parser.add_argument("--no-peers", action="store_true", help="rocecomm alone")
    parser.add_argument("--rounds", type=positive, metavar="N", help="default 5")
    parser.add_argument("--congestion", choices=("both", "system", OURS),
                        help="congestion control of everything; default both")
    parser.add_argument("--cpus", choices=("own", "shared"), default="own",
                        help="whether each host has CPUs of its own; default own")
    parser.add_argument("--no-plot", action="store_true", help="without the sizes for the plot")
    parser.add_argument("--out", metavar="DIR", default=os.path.join(TOP, "build/bench"),
                        help="where the files go; default build/bench")
    parser.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[],
                        help="a setting of the daemons, for experiments")
    parser.add_argument("--build", metavar="DIR", default=os.path.join(TOP, "build/release"),
                        help="another build of rocecomm; it is not built then")
    parser.add_argument("--gloo-python", help=argparse.SUPPRESS)
    options = parser.parse_args()
    options.systems = ["rocecomm"] if options.no_peers else options.systems.split(",")
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.congestion = options.congestion or (OURS if options.quick else "both")
    options.build = os.path.abspath(options.build)
    unknown = [s for s in options.systems if s not in SYSTEMS]
    if unknown:
        parser.error(f"no system is called {unknown[0]}")
    try:
        options.rows = rows.choose([p for p in options.only.split(",") if p], options.quick,
                                   not (options.quick or options.no_plot))
    except ValueError as e:
        parser.error(str(e))
    try:
        options.settings = parse_settings(options.set)
    except ValueError as e:
        parser.error(str(e))
    return options


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


def reap(lab):
    """Ends what is left in the lab's network namespaces, which nobody else can be in."""
    holders = {host.holder.pid for host in lab.hosts}
    spaces = {os.stat(f"/proc/{pid}/ns/net").st_ino for pid in holders}
    spaces.discard(os.stat("/proc/self/ns/net").st_ino)
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) not in holders:
            try:
                if os.stat(f"/proc/{name}/ns/net").st_ino in spaces:
                    os.kill(int(name), signal.SIGKILL)
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                pass


def make_systems(options, lab, congestion):
    """congestion: of the namespaces."""
    programs = os.path.join(options.build, "tools")
    made = []
    for name in options.systems:
        if name == "openmpi":
            made.append(OpenMpi(lab, programs))
        elif name == "gloo":
            made.append(Gloo(lab, programs, options.gloo_python))
        else:
            made.append(Rocecomm(lab, programs, "own", options.settings))
            if congestion != OURS:
                peer = {**options.settings.get("peer", {}), "congestion": ""}
                made.append(Rocecomm(lab, programs, "system", {**options.settings, "peer": peer}))
    return made


class Comparison:
    """The figures as they come in, kept on disk after every launch."""

    def __init__(self, options):
        self.options = options
        self.path = os.path.join(options.out, "compare.json")
        self.begin = time.monotonic()
        self.data = {"machine": machine.describe(TOP, options.build, options.gloo_python,
                                                 options.systems),
                     "rounds": options.rounds, "cpus": options.cpus, "limits": {}, "problems": [], "results": []}
        os.makedirs(options.out, exist_ok=True)

    def problem(self, text):
        say(text)
        # The page goes into a repository, which has no use for where this tree lies.
        self.data["problems"].append(text.replace(TOP + os.sep, ""))

    def add(self, results, layout, congestion, turn):
        for result in results:
            result.update(layout=layout, congestion=congestion, round=turn)
        self.data["results"] += results
        self.save()

    def save(self):
        with open(self.path + ".new", "w", encoding="utf-8") as f:
            json.dump(self.data, f, separators=(",", ":"))
        os.rename(self.path + ".new", self.path)

    def run_pass(self, wanted):
        """Everything under one congestion control, unless that is done already."""
        options = self.options
        cpus = own_cpus(rows.HOSTS) if options.cpus == "own" else None
        with Lab(options.build, rows.HOSTS, mtu=9000, cpus=cpus) as lab:
            try:
                congestion = limits.congestion_of(lab.hosts[0])
                if wanted != "system":
                    limits.set_congestion(lab, wanted)
                    congestion = wanted
                if congestion in self.data["limits"]:
                    return
                systems = make_systems(options, lab, congestion)
                # The plot is drawn once.
                chosen = [r for r in options.rows if wanted == OURS or not r.plot_only]
                for system in systems:
                    if hasattr(system, "choose"):
                        say(f"{congestion}: short runs of {system.title}'s variants")
                        system.choose(chosen)
                for turn in range(1, options.rounds + 1):
                    self.data["limits"][congestion] = limits.measure(
                        lab, os.path.join(options.build, "tools"),
                        self.data["limits"].get(congestion))
                    self.run_round(systems, chosen, congestion, turn)
            finally:
                reap(lab)

    def run_round(self, systems, chosen, congestion, turn):
        for layout in rows.LAYOUTS:
            part = [r for r in chosen if r.layout == layout]
            for system in systems if part else ():
                begin = time.monotonic()
                results, problems = system.run(part)
                self.add(results, layout, congestion, turn)
                for text in problems:
                    self.problem(text)
                say(f"{congestion}, round {turn} of {self.options.rounds}, {layout}: "
                    f"{system.title}, {len(results)} rows in {time.monotonic() - begin:.0f} s")

    def run(self):
        cores, load = self.data["machine"]["cores"], self.data["machine"]["load"]
        if load > cores / 2:
            say(f"others use this machine (load {load:g}, {cores} cores): expect noise")
        for wanted in ("system", OURS):
            if self.options.congestion in (wanted, "both"):
                self.run_pass(wanted)
        self.data["machine"]["took_s"] = round(time.monotonic() - self.begin)
        self.save()
        return self.data


def write_reports(data, directory):
    """The tables and the plot; returns the text of the tables."""
    text = report.markdown(data)
    with open(os.path.join(directory, "compare.md"), "w", encoding="utf-8") as f:
        f.write(text)
    picture = plot.svg(data)
    if picture:
        with open(os.path.join(directory, "compare.svg"), "w", encoding="utf-8") as f:
            f.write(picture)
    return text


def give_to_user(directory):
    """Files made under sudo belong to who asked for them."""
    if "SUDO_UID" in os.environ:
        for path in (directory, *(os.path.join(directory, n) for n in os.listdir(directory))):
            os.chown(path, int(os.environ["SUDO_UID"]), int(os.environ["SUDO_GID"]))


def main():
    options = arguments()
    if options.list:
        print("\n".join(r.name for r in rows.all_rows()))
        return 0
    if options.report:
        with open(options.report, encoding="utf-8") as f:
            data = json.load(f)
        print(write_reports(data, os.path.dirname(os.path.abspath(options.report))))
        return 0
    if os.geteuid() != 0:
        sys.exit("bench: network namespaces need root")
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda n, _: sys.exit(128 + n))
    try:
        data = Comparison(options).run()
    except LabError as e:
        sys.exit(f"bench: {e}")
    except KeyboardInterrupt:
        return 130
    print(write_reports(data, options.out))
    give_to_user(options.out)
    return 1 if data["problems"] else 0


sys.exit(main())
