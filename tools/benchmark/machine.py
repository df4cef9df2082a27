# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What the figures were measured on and with."""
import os
import platform
import re
import subprocess
import time


def _first_line(*command):
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout.strip().split("\n")[0]


def _number(text):
    found = re.search(r"\d+(\.\d+)+[^\s,]*", text)
    return found[0] if found else "unknown"


def _cpu_model():
    with open("/proc/cpuinfo", encoding="utf-8") as f:
        for line in f:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()


def describe(top, build, python, systems):
    with open("/proc/meminfo", encoding="ascii") as f:
        memory = int(f.readline().split()[1]) / (1 << 20)
    versions = {"rocecomm": _number(_first_line(os.path.join(build, "daemon/rocecommd"),
                                                "--version")),
                "iperf3": _number(_first_line("iperf3", "--version"))}
    commit = _first_line("git", "-c", f"safe.directory={top}", "-C", top, "describe", "--always",
                         "--dirty", "--abbrev=10", "--exclude=*")
    if commit:
        versions["rocecomm"] += f" ({commit})"
    if "openmpi" in systems:
        versions["Open MPI"] = _number(_first_line("mpirun", "--version"))
    if "gloo" in systems:
        versions["PyTorch (Gloo)"] = _first_line(
            python, "-c", "import importlib.metadata as m; print(m.version('torch'))")
    return {"cpu": _cpu_model(), "cores": len(os.sched_getaffinity(0)),
            "memory_GiB": round(memory), "kernel": platform.release(),
            "virtual": _first_line("systemd-detect-virt") or "unknown",
            "date": time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime()),
            "load": round(os.getloadavg()[0], 2), "versions": versions}
