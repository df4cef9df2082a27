# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""PyTorch's own tests of torch.distributed: whatever Gloo passes, "roce" passes.

results/distributed_test.md is the table; ROCECOMM_UPDATE=1 writes it anew.
"""
import json
import os
import subprocess

from harness.lab import LabError, expect
from harness.runner import test
from torchlab import HERE, PATIENT, environment

TABLE = os.path.join(HERE, "results/distributed_test.md")
BACKENDS = ("roce", "gloo")
SECONDS = 600


def run_suite(ctx, lab, backend, daemons, size, names=()):
    """{name: line of JSON} of PyTorch's DistributedTest over a backend."""
    results = os.path.join(lab.dir, f"{backend}.jsonl")
    env = {**os.environ, **environment(ctx.package), "WORLD_SIZE": str(size),
           "GLOO_SOCKET_IFNAME": "lo", "ROCECOMM_SOCKETS": ",".join(d.socket for d in daemons)}
    log = os.path.join(lab.dir, f"{backend}.log")
    with open(log, "wb") as out:
        done = subprocess.run(
            [*lab.hosts[0].prefix(), ctx.python, os.path.join(HERE, "upstream.py"), backend,
             results, *names],
            stdout=out, stderr=subprocess.STDOUT, timeout=SECONDS, env=env, check=False)
    if done.returncode != 0:
        with open(log, encoding="utf-8", errors="replace") as f:
            raise LabError(f"{backend}: the suite ended with {done.returncode}\n{f.read()[-3000:]}")
    with open(results, encoding="utf-8") as f:
        lines = [json.loads(line) for line in f]
    return {line["name"]: line for line in lines}


def reason(line):
    """A skip's reason or a failure's last line, for a cell of a table."""
    words = [w for w in line["note"].strip().split("\n") if w.strip()]
    return words[-1].strip().replace("|", "/")[:110] if words else ""


def count(results, word):
    return sum(line["verdict"] == word for line in results.values())


def table(runs, version):
    """runs: {ranks: {backend: results}}. Every test of the largest with both verdicts."""
    heads = [(size, backend) for size in sorted(runs) for backend in BACKENDS]
    text = ["<!-- SPDX-License-Identifier: Apache-2.0 -->",
            '# PyTorch\'s own tests over backend "roce"', "",
            f"`torch.testing._internal.distributed.distributed_test` of PyTorch {version} on two",
            "hosts with a daemon each; Gloo on the same machine as the yardstick. Written by",
            "`ROCECOMM_UPDATE=1 tools/test pytorch`.", "",
            "| | " + " | ".join(f"{backend}, {size} ranks" for size, backend in heads) + " |",
            "|---" * (len(heads) + 1) + "|"]
    for word in ("passed", "skipped", "failed"):
        cells = [word, *(str(count(runs[size][backend], word)) for size, backend in heads)]
        text.append("| " + " | ".join(cells) + " |")
    size = max(runs)
    roce, gloo = (runs[size][backend] for backend in BACKENDS)
    text += ["", f"## Passed by both, {size} ranks", "",
             ", ".join(n for n in sorted(roce) if roce[n]["verdict"] == "passed"), "",
             f"## All others, {size} ranks", "",
             "| test | roce | gloo | why |", "|---|---|---|---|"]
    for name in sorted(roce):
        line, other = roce[name], gloo.get(name, {"verdict": "-", "note": ""})
        if line["verdict"] != "passed":
            text.append(f"| {name} | {line['verdict']} | {other['verdict']} | {reason(line)} |")
    return "\n".join(text) + "\n"


def lost(roce, gloo):
    """Names of tests that Gloo passes and roce does not, and of those that roce fails."""
    names = [n for n, line in gloo.items() if line["verdict"] == "passed"
             and roce.get(n, {}).get("verdict") != "passed"]
    return names + [n for n, line in roce.items()
                    if line["verdict"] == "failed" and n not in names]


def write_table(ctx, runs):
    version = subprocess.run([ctx.python, "-c", "import torch; print(torch.__version__)"],
                             stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    os.makedirs(os.path.dirname(TABLE), exist_ok=True)
    with open(TABLE, "w", encoding="utf-8") as f:
        f.write(table(runs, version))


@test
def upstream_distributed_test(ctx):
    """PyTorch's DistributedTest: nothing that Gloo passes fails or is skipped."""
    update = bool(os.environ.get("ROCECOMM_UPDATE"))
    runs = {}
    with ctx.lab(2) as lab:
        daemons = lab.daemons(PATIENT)
        for size in (2, 4) if update else (4,):
            runs[size] = {"roce": run_suite(ctx, lab, "roce", daemons, size),
                          "gloo": run_suite(ctx, lab, "gloo", [], size)}
        for daemon in daemons:
            expect(daemon.alive(), f"{daemon.name}'s daemon is gone\n{daemon.log()}")
    if update:
        write_table(ctx, runs)
    for size, run in runs.items():
        roce, gloo = (run[backend] for backend in BACKENDS)
        expect(count(gloo, "passed") >= 80, f"Gloo passed {count(gloo, 'passed')}: no yardstick")
        names = lost(roce, gloo)
        if names:
            notes = [f"{n}: {roce[n]['verdict']}: {roce[n]['note'][-1500:]}"
                     for n in names if n in roce]
            raise LabError(f"{size} ranks: lost against Gloo: {' '.join(names)}\n"
                           + "\n".join(notes))
    return "; ".join(f"{size} ranks: {count(run['roce'], 'passed')} passed, "
                     f"Gloo {count(run['gloo'], 'passed')}" for size, run in runs.items())
