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
from torchlab import HERE, environment

TABLE = os.path.join(HERE, "results/distributed_test.md")
SECONDS = 600
REFUSED = "by its name"  # how the reason of a skip ends where PyTorch asks for Gloo's name


def run_suite(ctx, lab, backend, daemons, size=2, names=()):
    """{name: line of JSON} of PyTorch's DistributedTest over a backend."""
    results = os.path.join(lab.dir, f"{backend}.jsonl")
    env = {**os.environ, **environment(ctx.package), "WORLD_SIZE": str(size),
           "GLOO_SOCKET_IFNAME": "lo", "ROCECOMM_SOCKETS": ",".join(d.socket for d in daemons)}
    log = os.path.join(lab.dir, f"{backend}.log")
    with open(log, "wb") as out:
        done = subprocess.run(
            lab.hosts[0].prefix() + [ctx.python, os.path.join(HERE, "upstream.py"), backend, results,
                                     *names],
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


def table(roce, gloo, version):
    """Every test with both verdicts, those of one kind together."""
    def count(results, word):
        return sum(line["verdict"] == word for line in results.values())

    text = ["<!-- SPDX-License-Identifier: Apache-2.0 -->",
            '# PyTorch\'s own tests over backend "roce"', "",
            f"`torch.testing._internal.distributed.distributed_test` of PyTorch {version}, two ranks on"
            " two hosts with a daemon each; Gloo on the same machine as the yardstick. Written by",
            "`ROCECOMM_UPDATE=1 tools/test pytorch`.", "",
            "| | roce | gloo |", "|---|---|---|"]
    text += [f"| {word} | {count(roce, word)} | {count(gloo, word)} |"
             for word in ("passed", "skipped", "failed")]
    text += ["", "## Passed by both", "",
             ", ".join(n for n in sorted(roce) if roce[n]["verdict"] == "passed"), "",
             "## All others", "", "| test | roce | gloo | why |", "|---|---|---|---|"]
    for name in sorted(roce):
        line, other = roce[name], gloo.get(name, {"verdict": "-", "note": ""})
        if line["verdict"] != "passed":
            text.append(f"| {name} | {line['verdict']} | {other['verdict']} | {reason(line)} |")
    return "\n".join(text) + "\n"


@test
def upstream_distributed_test(ctx):
    """PyTorch's DistributedTest: nothing that Gloo passes fails or is skipped."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        roce = run_suite(ctx, lab, "roce", daemons)
        gloo = run_suite(ctx, lab, "gloo", [])
        for daemon in daemons:
            expect(daemon.alive(), f"{daemon.name}'s daemon is gone\n{daemon.log()}")
    if os.environ.get("ROCECOMM_UPDATE"):
        version = subprocess.run([ctx.python, "-c", "import torch; print(torch.__version__)"],
                                 stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
        os.makedirs(os.path.dirname(TABLE), exist_ok=True)
        with open(TABLE, "w", encoding="utf-8") as f:
            f.write(table(roce, gloo, version))
    passed = [n for n, line in gloo.items() if line["verdict"] == "passed"]
    lost = [n for n in passed if roce.get(n, {}).get("verdict") != "passed"
            and not roce.get(n, {}).get("note", "").endswith(REFUSED)]
    lost += [n for n, line in roce.items() if line["verdict"] == "failed" and n not in lost]
    expect(len(passed) >= 80, f"Gloo passed {len(passed)} only: a wrong yardstick")
    if lost:
        notes = [f"{n}: {roce[n]['verdict']}: {roce[n]['note'][-1500:]}" for n in lost if n in roce]
        raise LabError(f"{len(lost)} lost against Gloo: {' '.join(lost)}\n" + "\n".join(notes))
    return f"{sum(v['verdict'] == 'passed' for v in roce.values())} passed, Gloo {len(passed)}"
