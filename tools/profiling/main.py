#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""tools/profile: where the time of one size of one collective goes, on one page."""
import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests")]
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
import functions  # noqa: E402
import runs  # noqa: E402
from harness.lab import Daemon, Lab, LabError, own_cpus, parse_settings  # noqa: E402
from harness.words import positive, size_of  # noqa: E402

LINES = 12  # functions shown

EPILOG = """\
what it does
  Makes hosts out of network namespaces (veth, MTU 9000), a daemon on each, and runs rocebench with
  one process a rank. Each host has its share of the CPUs for itself, as in tools/bench. An operation's cost is the difference of a short run and a longer one. It
  contains what rocebench's ranks exchange after the last one: 8 bytes a repetition, their times.
  bytes and wake-ups  the daemons' own counters, which are exact: see COUNTERS in rocectl(1)
  system calls        strace -c on the first daemon's progress thread and on rank 0
  functions           perf on the first daemon and on rank 0, the kernel included: cycles, or time
                      where the processor does not count cycles for us. Without perf, or with
                      --by instructions, callgrind on the first daemon: what it executes outside
                      the kernel, the same in every run, but thirty times slower.

examples
  tools/profile                                      allreduce, 25M, 2 hosts with 4 ranks each
  tools/profile --size 8 --ranks 1
  tools/profile --coll alltoall --size 4M --by instructions
"""


def arguments():
    parser = argparse.ArgumentParser(
        prog="tools/profile", epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Where the time of one size of one collective goes (root).")
    parser.add_argument("--coll", default="allreduce", help="as rocebench has them; allreduce")
    parser.add_argument("--size", type=size_of, default="25M", help="8, 64K, 25M, ...; 25M")
    parser.add_argument("--hosts", type=int, choices=range(1, 9), default=2, metavar="N",
                        help="1 to 8; 2")
    parser.add_argument("--ranks", type=positive, default=4, metavar="N", help="a host; 4")
    parser.add_argument("--inflight", type=positive, default=1, metavar="N",
                        help="operations posted before all are waited for; 1")
    parser.add_argument("--memory", choices=("registered", "plain"), default="registered")
    parser.add_argument("--inplace", action="store_true")
    parser.add_argument("--cpus", choices=("own", "shared"), default="own",
                        help="whether each host has CPUs of its own; own, where there are enough")
    parser.add_argument("--reps", type=positive, metavar="N",
                        help="repetitions; as many as take two seconds")
    parser.add_argument("--by", choices=("auto", "perf", "instructions", "none"), default="auto",
                        help="how functions are measured; perf where it works")
    parser.add_argument("--set", metavar="SECTION.KEY=VALUE", action="append", default=[],
                        help="a setting of the daemons, for experiments")
    parser.add_argument("--build", metavar="DIR", required=True,
                        help="another build than build/release; it is not built then")
    options = parser.parse_args()
    options.build = os.path.abspath(options.build)
    try:
        options.settings = parse_settings(options.set)
    except ValueError as e:
        parser.error(str(e))
    return options


# ---- the page ----------------------------------------------------------------------------------


def number(value):
    """Short, with as many digits as say something."""
    if value == 0:
        return "0"
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def print_counters(found, size):
    rows = (("bytes_wire_sent", "bytes sent, headers included"),
            ("bytes_wire_received", "bytes received"),
            ("bytes_copied", "bytes copied because they were not where they belong"),
            ("bytes_local", "bytes copied between the ranks' buffers, as planned"),
            ("bytes_reduced", "bytes of sums"),
            ("syscalls", "system calls of the progress thread, but yields"),
            ("yields", "yields"),
            ("wakeups", "times the progress thread slept"),
            ("client_wakeups", "calls that woke clients"))
    names = "".join(f"{'host' + 'ABCDEFGH'[i]:>15}" for i in range(min(2, len(found))))
    print(f"\nan operation, by the daemons' counters{names:>38}{'a byte':>9}")
    for key, text in rows:
        values = "".join(f"{number(f[key]):>15}" for f in found[:2])
        share = f"{found[0][key] / size:>9.3f}" if key.startswith("bytes") and size else ""
        print(f"  {text:<52}{values:>22}{share}")


def print_calls(found):
    print("\nsystem calls an operation, by strace")
    for who, calls in zip(("hostA's progress thread", "rank 0"), found):
        some = {k: v for k, v in calls.items() if v >= 0.005}
        total = sum(v for k, v in some.items() if k != "sched_yield")
        text = ", ".join(f"{k} {number(v)}" for k, v in
                         sorted(some.items(), key=lambda item: -item[1]))
        print(f"  {who + ':':<25}{number(total)} but yields: {text}")


def print_functions(title, costs, operations, size, unit):
    total = sum(costs.values())
    a_byte = size >= 4096
    print(f"\n{title}: {number(total / operations)} {unit} an operation"
          + (f", {total / operations / size:.3f} a byte" if a_byte else ""))
    if not total:
        return
    print(f"  {unit + (' a byte' if a_byte else ''):>20}  share")
    for name, cost in costs.most_common(LINES):
        value = cost / operations
        value = f"{value / size:.4f}" if a_byte else number(value)
        text = f"{name[1]}   ({name[0]})" if isinstance(name, tuple) else name
        print(f"  {value:>20}  {100 * cost / total:4.1f} %  {text}")


# ---- measuring ---------------------------------------------------------------------------------


def profile_by_perf(daemons, work, reps, size, event):
    # Rank 0, and so everybody, waits until perf is there.
    gate = os.path.join(daemons[0].lab.dir, "gate")
    os.mkfifo(gate)
    run = runs.Run(daemons, work, reps, ["sh", "-c", 'read -r word <"$0"; exec "$@"', gate])
    pids = (daemons[0].pid, run.ranks[0].pid)
    perf = functions.Perf(daemons[0].lab, event, pids)
    with open(gate, "w", encoding="ascii") as f:
        f.write("go\n")
    run.finish()
    found = perf.stop()
    unit = "cycles" if event == "cycles" else "ns"
    for pid, who in zip(pids, ("hostA's daemon", "rank 0")):
        print_functions(f"{who}, by perf ({event})", found.get(pid, Counter()),
                        run.operations, size, unit)


def make_lab(options):
    cpus = own_cpus(options.hosts) if options.cpus == "own" else None
    return Lab(options.build, options.hosts, mtu=9000, cpus=cpus)


def profile_by_callgrind(options, work, reps, size):
    """Few operations suffice, since the count is exact."""
    reps = min(reps, 200 if size < 1 << 16 else 4)
    settings = {k: dict(v) for k, v in options.settings.items()}
    settings.setdefault("peer", {}).update(heartbeat_ms=5000, peer_timeout_ms=60000)
    with make_lab(options) as lab:
        callgrind = functions.Callgrind(lab.dir)
        daemons = [Daemon(lab, host, settings, wrap=callgrind.wrap if i == 0 else ())
                   for i, host in enumerate(lab.hosts)]
        costs = []
        # The first run makes plans and links.
        for n in (runs.FEW, runs.FEW, runs.FEW + reps):
            runs.Run(daemons, work, n).finish()
            costs.append(callgrind.read(daemons[0].pid))
    more = Counter({k: max(0, v - costs[1][k]) for k, v in costs[2].items()})
    print_functions("hostA's daemon, by callgrind", more, reps * work.inflight, size,
                    "instructions")


def repetitions(options, daemons, work):
    row = runs.Run(daemons, work, 5).finish()
    return options.reps or int(max(10, min(20000, 2e6 / max(1, row["median_us"]))))


def profile(options):
    work = runs.Work(options)
    by = options.by
    event = functions.perf_event() if by in ("auto", "perf") else None
    if by == "perf" and not event:
        raise LabError("perf cannot sample here (is it installed? kernel.perf_event_paranoid?)")
    with make_lab(options) as lab:
        daemons = lab.daemons(options.settings)
        reps = repetitions(options, daemons, work)
        row = runs.Run(daemons, work, reps).finish()
        size = row["bytes"]
        print(f"{row['coll']} of {size:,} bytes ({row['dtype']}, {row['op']}), "
              f"{options.hosts}x{options.ranks} ranks, {row['memory']} memory"
              f"{', in place' if row['inplace'] else ''}, {row['inflight']} in flight\n"
              f"{reps} repetitions: median {number(row['median_us'])} us, 99th percentile "
              f"{number(row['p99_us'])} us, {row['algbw_GBps']:.3f} GB/s")
        print_counters(runs.counters_an_operation(daemons, work, reps), size)
        sys.stdout.flush()
        if shutil.which("strace") and subprocess.run(
                ["strace", "-c", "true"], stdin=subprocess.DEVNULL, capture_output=True,
                check=False).returncode == 0:
            print_calls(runs.calls_an_operation(daemons, work, max(1, min(reps // 4, 500))))
        else:
            print("\nsystem calls: strace is missing, or may not trace here")
        if event:
            profile_by_perf(daemons, work, reps, size, event)
    sys.stdout.flush()
    if not event and by != "none":
        if not shutil.which("valgrind"):
            raise LabError("neither perf nor valgrind can be used here")
        profile_by_callgrind(options, work, reps, size)


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("profile: network namespaces need root")
    try:
        profile(options)
    except (LabError, RuntimeError) as e:
        sys.exit(f"profile: {e}")


if __name__ == "__main__":
    main()
