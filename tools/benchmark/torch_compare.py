#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""tools/bench --torch: the backends "roce" and "gloo" of torch.distributed between two hosts."""
import argparse
import json
import os
import statistics
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(HERE))
sys.path[:0] = [HERE, os.path.join(TOP, "tests"), os.path.join(TOP, "tests/pytorch")]
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
import machine  # noqa: E402
from harness.lab import Lab, LabError, own_cpus  # noqa: E402
from systems import Launch  # noqa: E402
from torchlab import PATIENT, Job, install  # noqa: E402

HOSTS = 2
LAYOUTS = {"2x1": 1, "2x4": 4}
SIZES = {"all_reduce-8B": 8, "all_reduce-25MiB": 25 << 20}

EPILOG = """\
what it does
  Two hosts out of network namespaces (veth, MTU 9000), each with CPUs of its own where there are
  enough, a rocecommd on each. In turn, for a number of rounds: ranks with the backend "roce", ranks
  with Gloo, and rocebench over the same daemons. A repetition's time is that of its slowest rank, a
  figure the median of the rounds' medians.

rows
  step, not hidden   forward and backward of ResNet-18 (11.7 million parameters, 64 x 64 pixels)
                     with DistributedDataParallel, less the same without, in turn, all ranks at
                     work: the median of the differences
  all_reduce         in place, f32, of one tensor that torch has allocated, again and again, so that
                     its memory is lent to the daemon (libclient/python/README.md); rocebench: the
                     same operation from C, of memory that the daemon shares
  init               init_process_group, once all processes and the store are up
"""


def arguments():
    parser = argparse.ArgumentParser(
        prog="tools/bench --torch", epilog=EPILOG, description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--reps", type=int, default=20, help="of an all_reduce of 25 MiB")
    parser.add_argument("--steps", type=int, default=10, help="of DDP a round; 0: none")
    parser.add_argument("--layouts", default=",".join(LAYOUTS), help="of " + ", ".join(LAYOUTS))
    parser.add_argument("--same-addresses", action="store_true",
                        help="start the ranks with setarch -R: code is at the same address in all, and those that "
                        "share a CPU share what it has learned of branches")
    parser.add_argument("--out", metavar="DIR", default=os.path.join(TOP, "build/bench"))
    parser.add_argument("--build", default=os.path.join(TOP, "build/release"))
    options = parser.parse_args()
    options.layouts = options.layouts.split(",")
    if any(name not in LAYOUTS for name in options.layouts):
        parser.error("no such layout")
    return options


def run_torch(options, lab, package, daemons, layout, backend):
    """[row of a rank program]"""
    command = [sys.executable, os.path.join(HERE, "torch_rank.py"), f"--backend={backend}",
               f"--reps={options.reps}", f"--steps={options.steps}"]
    if options.same_addresses:
        command[:0] = ["setarch", "-R"]
    with Job(lab, package, daemons, [LAYOUTS[layout]] * HOSTS, command) as job:
        text = job.finish(600)
    rows = [json.loads(line) for line in text.split("\n") if line.startswith("{")]
    wrong = [r["row"] for r in rows if r.get("verified") is False]
    if wrong:
        raise LabError(f"{backend}: wrong results in {', '.join(wrong)}")
    return rows


def run_rocebench(options, lab, daemons, layout, job):
    """The same operations from C."""
    rows = []
    for name, size in SIZES.items():
        reps = options.reps * (40 if size == 8 else 1)
        with Launch(lab) as launch:
            for number, daemon in enumerate(daemons):
                launch.start(daemon.host, [
                    os.path.join(options.build, "tools/rocebench/rocebench"),
                    f"--ranks={LAYOUTS[layout]}", f"--hosts={HOSTS}", f"--host={number}",
                    f"--root={lab.hosts[0].address}", f"--job={job}-{size}",
                    f"--socket={daemon.socket}", "--memory=registered", "--inplace", "--json",
                    f"--reps={reps}", f"--warmup={max(3, reps // 10)}", "allreduce",
                    f"--sizes={size}"])
            if not launch.wait(300):
                raise LabError(f"rocebench: {launch.errors()}")
            rows += [{"row": name, "median_us": r["median_us"]} for r in launch.results()]
    return rows


def measure(options):
    """{layout: {system: {row: [median of each round]}}}"""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="rocecomm-bench-") as folder, \
            Lab(options.build, HOSTS, mtu=9000, cpus=own_cpus(HOSTS)) as lab:
        package = install(sys.executable, options.build, folder)
        daemons = lab.daemons(PATIENT)
        for turn in range(options.rounds):
            for layout in options.layouts:
                systems = figures.setdefault(layout, {})
                for system in ("roce", "gloo", "rocebench"):
                    rows = run_rocebench(options, lab, daemons, layout, f"torch{turn}{layout}") \
                        if system == "rocebench" \
                        else run_torch(options, lab, package, daemons, layout, system)
                    for r in rows:
                        rounds = systems.setdefault(system, {}).setdefault(r["row"], [])
                        rounds.append(r["median_us"])
                    print(f"bench: round {turn + 1} of {options.rounds}, {layout}: {system}",
                          file=sys.stderr, flush=True)
    return figures


def median(figures, system, name):
    values = figures.get(system, {}).get(name)
    return statistics.median(values) if values else None


def duration(us):
    if us is None:
        return "-"
    return f"{us / 1000:.1f} ms" if abs(us) >= 1000 else f"{us:.0f} us"


def markdown(data):
    """A table a layout."""
    text = [f"{data['machine']['cpu']}, {data['machine']['cores']} cores; PyTorch {data['torch']}; "
            f"{data['rounds']} rounds; {data['machine']['date']}"
            f"{'; ranks at the same addresses' if data['same_addresses'] else ''}", ""]
    for layout, figures in data["figures"].items():
        text += [f"| {layout} | roce | gloo | gloo / roce | rocebench |", "|---|---|---|---|---|"]
        lines = [("step with DDP", "step-ddp"), ("step alone", "step-alone"),
                 ("step, not hidden", "step-not-hidden"), ("all_reduce 25 MiB", "all_reduce-25MiB"),
                 ("all_reduce 8 B", "all_reduce-8B"), ("init", "init"),
                 ("init and a first all_reduce", "init-and-first")]
        for title, name in lines:
            ours, theirs, bare = (median(figures, s, name) for s in ("roce", "gloo", "rocebench"))
            if ours is None or theirs is None:
                continue
            ratio = f"{theirs / ours:.2f}" if ours > 0 else "-"
            text.append(f"| {title} | {duration(ours)} | {duration(theirs)} | {ratio} | "
                        f"{duration(bare) if bare else ''} |")
        text.append("")
    return "\n".join(text)


def main():
    options = arguments()
    if os.geteuid() != 0:
        sys.exit("bench: network namespaces need root")
    import torch  # pylint: disable=import-outside-toplevel
    data = {"machine": machine.describe(TOP, options.build, sys.executable, []),
            "torch": torch.__version__, "rounds": options.rounds,
            "same_addresses": options.same_addresses}
    try:
        data["figures"] = measure(options)
    except LabError as e:
        sys.exit(f"bench: {e}")
    os.makedirs(options.out, exist_ok=True)
    with open(os.path.join(options.out, "torch.json"), "w", encoding="utf-8") as f:
        json.dump(data, f)
    text = markdown(data)
    with open(os.path.join(options.out, "torch.md"), "w", encoding="utf-8") as f:
        f.write(text)
    print(text)
    return 0


sys.exit(main())
