# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Cost by function: perf where the kernel lets it, else callgrind.

perf samples processes, kernel included: by cycles where the processor counts them for us, else (in
most virtual machines) by the clock. Callgrind counts every instruction of a daemon outside the
kernel; it runs the daemon thirty times slower, but its figures are the same in every run.
"""
import os
import re
import select
import shutil
import signal
import subprocess
import tempfile
from collections import Counter

FREQUENCY = 4999


def perf_event():
    """What perf can sample here: "cycles", "cpu-clock", or None."""
    if not shutil.which("perf"):
        return None
    with tempfile.TemporaryDirectory() as directory:
        for event in ("cycles", "cpu-clock"):
            data = os.path.join(directory, event)
            command = ["perf", "record", "-q", "-e", event, "-F", str(FREQUENCY), "-o", data, "--",
                       "dd", "if=/dev/zero", "of=/dev/null", "bs=64k", "count=5000"]
            counted = subprocess.run(["perf", "stat", "-x,", "-e", event, "true"],
                                     stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                     check=False)
            if counted.returncode != 0 or "<not" in counted.stderr:
                continue
            if subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True,
                              check=False).returncode == 0 and perf_samples(data):
                return event
    return None


def perf_samples(path):
    """[(thread name, process, cost, function)] of a perf.data file; cost in cycles or ns."""
    text = subprocess.run(["perf", "script", "-i", path, "-F", "comm,pid,period,ip,sym"],
                          stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          check=False).stdout
    line = re.compile(r"^\s*(\S.*?)\s+(\d+)\s+(\d+)\s+([0-9a-f]+)\s+(.*)$", re.M)
    return [(m[1], int(m[2]), int(m[3]), function_name(m[5], m[4])) for m in line.finditer(text)]


def function_name(name, address):
    """Without what the compiler appends; kernel functions are marked."""
    name = re.sub(r"\.(constprop|isra|part|cold)(\.\d+)*", "", name.strip())
    if name == "[unknown]":
        return "(unknown)"
    return f"{name} [kernel]" if int(address, 16) >> 63 else name


class Perf:
    """perf record on processes, from now until stop()."""

    def __init__(self, lab, event, pids):
        self.path = os.path.join(lab.dir, "perf.data")
        log = os.path.join(lab.dir, "perf.log")
        control, ack = (os.path.join(lab.dir, "perf." + name) for name in ("control", "ack"))
        for path in (control, ack):
            os.mkfifo(path)
        # Reading and writing: opening waits for nobody.
        fds = [os.open(path, os.O_RDWR | os.O_NONBLOCK) for path in (control, ack)]
        self.process = lab.spawn(["perf", "record", "-q", "-e", event, "-F", str(FREQUENCY), "-o",
                                  self.path, "-D", "-1", f"--control=fifo:{control},{ack}", "-p",
                                  ",".join(map(str, pids))], log=log)
        os.write(fds[0], b"enable\n")
        ready = select.select([fds[1]], [], [], 10)[0]
        for fd in fds:
            os.close(fd)
        if not ready:
            with open(log, encoding="utf-8", errors="replace") as f:
                raise RuntimeError(f"perf record does not begin: {f.read().strip()}")

    def stop(self):
        """Returns {process: Counter of (thread, function)}."""
        if self.process.poll() is None:  # it ends by itself when all of the processes have
            os.kill(self.process.pid, signal.SIGINT)
        self.process.wait(30)
        found = {}
        for thread, pid, cost, function in perf_samples(self.path):
            found.setdefault(pid, Counter())[thread, function] += cost
        return found


class Callgrind:
    """A daemon under callgrind: wrap its command, then read the cost since the last reading."""

    def __init__(self, directory):
        self.directory = directory
        self.count = 0
        self.wrap = ["valgrind", "-q", "--tool=callgrind", "--dump-line=no",
                     f"--callgrind-out-file={directory}/callgrind.out"]

    def read(self, pid):
        """Counter of functions, in instructions."""
        self.count += 1
        done = subprocess.run(["callgrind_control", "-d", str(pid)], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=False, timeout=60)
        path = f"{self.directory}/callgrind.out.{self.count}"
        if not os.path.exists(path):
            raise RuntimeError(f"callgrind_control -d: {(done.stdout + done.stderr).strip()}")
        with open(path, encoding="utf-8", errors="replace") as f:
            return callgrind_costs(f)


def callgrind_costs(lines):
    """Own cost of each function in a callgrind profile."""
    names, costs = {}, Counter()
    function, inclusive = None, False
    for line in lines:
        named = re.match(r"c?fn=\((\d+)\)(?: (.*))?", line)
        if named:
            number, name = named.groups()
            if name:
                names[number] = re.sub(r"'\d+$", "", name.strip())
            if line.startswith("fn="):
                function = number
        elif line.startswith("calls="):
            inclusive = True  # the next line is what the callee took
        elif re.match(r"[+*\-0-9]", line):
            fields = line.split()
            if not inclusive and function is not None and len(fields) > 1:
                costs[names.get(function, function)] += int(fields[1])
            inclusive = False
    return costs
