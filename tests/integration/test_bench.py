# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""rocebench: every collective, its JSON, its exit codes, and that its check of results bites."""
import json
import os
import signal
import subprocess

from harness.lab import Daemon, expect, wait_for
from harness.runner import test

SIMPLE = ["allreduce", "allgather", "reduce_scatter", "broadcast", "reduce", "gather", "scatter",
          "alltoall", "alltoallv", "sendrecv"]
STEPS = ["step:resnet50", "step:moe"]
KEYS = {"system": str, "coll": str, "bytes": int, "dtype": str, "op": str, "hosts": int,
        "ranks": int, "inflight": int, "memory": str, "inplace": bool, "reps": int,
        "min_us": float, "median_us": float, "p99_us": float, "p999_us": float,
        "algbw_GBps": float, "busbw_GBps": float, "verified": bool}
# Bytes that 64 B make of f32 and 4 ranks, and busbw / algbw.
FACTORS = {"allreduce": 1.5, "allgather": 0.75, "reduce_scatter": 0.75, "broadcast": 1, "reduce": 1,
           "gather": 0.75, "scatter": 0.75, "alltoall": 0.75, "alltoallv": 0.75, "sendrecv": 1,
           "step:resnet50": 1.5, "step:moe": 0.75}


class Run:
    """One rocebench a host, each with some local ranks."""

    def __init__(self, lab, daemons, ranks, *options):
        self.slow = lab.slow
        self.processes = []
        for i, daemon in enumerate(daemons):
            command = [lab.program("tools/rocebench/rocebench"), f"--socket={daemon.socket}",
                       f"-n{ranks}", *options]
            if len(daemons) > 1:
                command += [f"--hosts={len(daemons)}", f"--host={i}",
                            f"--root={daemons[0].host.address}"]
            # pylint: disable=consider-using-with
            self.processes.append(subprocess.Popen(
                ["setpriv", "--pdeathsig", "KILL", "--", *daemon.host.prefix(), *command],
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                text=True))
        lab.processes += self.processes
        self.out, self.err, self.codes = [], "", []

    def wait(self, seconds=60):
        for process in self.processes:
            out, err = process.communicate(timeout=seconds * self.slow)
            self.out.append(out)
            self.err += err
            self.codes.append(process.returncode)
        return self

    def rows(self):
        """The objects of a run that must have gone well, with all their members."""
        expect(not any(self.codes), f"exit codes {self.codes}: {self.err}")
        expect(not any(self.out[1:]), f"not only rank 0 prints: {self.out[1:]}")
        rows = [json.loads(line) for line in self.out[0].splitlines()]
        for row in rows:
            for key, kind in KEYS.items():
                expect(isinstance(row.get(key), kind), f"{key} in {row}")
            expect(row["min_us"] <= row["median_us"] <= row["p99_us"] <= row["p999_us"], f"{row}")
            expect(row["verified"] and row["system"] == "rocecomm", f"{row}")
        return rows


def check_factor(row):
    want = FACTORS[row["coll"]] * row["algbw_GBps"]
    expect(abs(row["busbw_GBps"] - want) <= 2e-6, f"busbw is not {want}: {row}")


@test
def bench_in_place_beside_io_threads(ctx):
    """The answer to what was sent from a place comes before an I/O thread says that it is sent."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons({"daemon": {"io_threads": 6}, "peer": {"streams": 7}})
        for ranks in (1, 3):
            rows = Run(lab, daemons, ranks, "--inplace", "--sizes=1M,2M,4M", "--time=0.4",
                       "--json").wait().rows()
            expect(all(r["verified"] and r["inplace"] for r in rows), rows)
        return ", ".join(f"{r['median_us']:.0f} us" for r in rows)


@test
def bench_every_collective(ctx):
    """2 hosts x 2 ranks, small sizes: checked, parsable, with the documented bytes."""
    short = ["-w1", "-r5", "--json"]
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        rows = Run(lab, daemons, 2, *short, "--sizes=1,64,4100", *SIMPLE, "barrier").wait().rows()
        seen = {(row["coll"], row["bytes"]) for row in rows}
        expect(len(rows) == 3 * len(SIMPLE) + 1, f"{len(rows)} rows")
        for name in SIMPLE:
            blocks = name not in ("allreduce", "broadcast", "reduce", "alltoallv", "sendrecv")
            for size in (16 if blocks else 4, 64, 4096 if blocks else 4100):
                expect((name, size) in seen, f"no {name} of {size} bytes: {sorted(seen)}")
        for row in rows:
            expect(row["hosts"] == 2 and row["ranks"] == 4 and row["reps"] == 5, f"{row}")
            if row["coll"] != "barrier":
                check_factor(row)
        more = [["--inplace", "-D3", "--memory=plain", "-dbf16", "-oavg", "--sizes=70K"],
                ["-D2", "-du8", "-obxor", "--sizes=333", "--root-rank=3"],
                ["-di64", "-omin", "--memory=plain", "--sizes=9K"],
                ["-df16", "-oprod", "--sizes=2K", "--compute=32"]]
        for options in more:
            rows += Run(lab, daemons, 2, *short, *options, *SIMPLE).wait().rows()
        rows += Run(lab, daemons, 2, "--json", "-t0.05", "--create").wait().rows()
        expect(rows[-1]["coll"] == "create" and rows[-1]["reps"] >= 1, f"{rows[-1]}")
        return f"{len(rows)} rows"


@test
def bench_training_steps(ctx):
    with ctx.lab(2) as lab:
        rows = Run(lab, lab.daemons(), 1, "--json", "-w0", "-r1", *STEPS).wait(120).rows()
        expect([row["coll"] for row in rows] == STEPS, f"{rows}")
        expect(rows[0]["bytes"] == 25557032 * 4 and rows[0]["inplace"], f"{rows[0]}")
        expect(rows[1]["bytes"] == 2 * 2048 * 1024 * 4, f"{rows[1]}")


@test
def bench_check_bites(ctx):
    """One byte flipped in one rank's result: exit 4 on every host, and the row says so."""
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        for name in SIMPLE + ["step:moe"]:
            run = Run(lab, daemons, 2, "--json", "-w0", "-r1", "--sizes=4K", "--corrupt", name)
            run.wait()
            expect(run.codes == [4, 4], f"{name}: exit codes {run.codes}: {run.err}")
            row = json.loads(run.out[0])
            expect(row["coll"] == name and row["verified"] is False, f"{row}")
            expect("is wrong: bytes" in run.err, f"{name}: {run.err}")
        run = Run(lab, daemons, 2, "-w0", "-r1", "--sizes=4K", "--corrupt").wait()
        expect(run.codes == [4, 4] and "WRONG" in run.out[0], f"{run.codes} {run.out[0]}")


@test
def bench_failed_rank_ends_all(ctx):
    with ctx.lab(2) as lab:
        daemons = lab.daemons()
        run = Run(lab, daemons, 2, "-t60", "--sizes=8", "--json")
        parent = run.processes[1].pid

        def ranks():
            with open(f"/proc/{parent}/task/{parent}/children", encoding="ascii") as f:
                return [int(pid) for pid in f.read().split()]

        def joined():
            jobs = daemons[1].status()["jobs"]
            return [c for job in jobs for c in job["communicators"] if c["state"] == "ready"]

        wait_for("two ranks run", lambda: len(ranks()) == 2 and joined(), 15 * lab.slow)
        os.kill(ranks()[0], signal.SIGKILL)
        run.wait(20)
        expect(run.codes == [1, 1], f"exit codes {run.codes}: {run.err}")
        expect("rank 2 was ended by signal 9" in run.err and "peer-died" in run.err, run.err)


@test
def bench_launchers_and_refusals(ctx):
    """One process a rank by the environment; exit codes for what is wrong or too large."""
    with ctx.lab(1) as lab:
        daemon = Daemon(lab, lab.hosts[0])
        program = lab.program("tools/rocebench/rocebench")
        rows = Run(lab, [daemon], 3, "--json", "-w0", "-r3", "--sizes=8").wait().rows()
        expect(rows[0]["ranks"] == 3 and rows[0]["hosts"] == 1, f"{rows}")
        ranks = [lab.spawn([program, "--json", "-w0", "-r3", "--sizes=8"],
                           log=os.path.join(lab.dir, f"bench{r}"),
                           env={"RANK": str(r), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500",
                                "ROCECOMM_SOCKET": daemon.socket}) for r in range(2)]
        codes = [rank.wait(20 * lab.slow) for rank in ranks]
        with open(os.path.join(lab.dir, "bench0"), encoding="utf-8") as f:
            text = f.read()
        expect(codes == [0, 0] and json.loads(text)["ranks"] == 2, f"{codes}: {text}")
        full = lab.hosts[0].run("sh", "-c", f"{program} --json -n2 -w0 -r1 --sizes=8 "
                                f"--socket={daemon.socket} >/dev/full", check=False)
        expect(full.returncode == 1 and "standard output" in full.stdout,
               f"{full.returncode}: {full.stdout}")
        wrong = lab.hosts[0].run(program, "--inflight=600", check=False)
        expect(wrong.returncode == 2 and "600" in wrong.stdout and "512" in wrong.stdout,
               wrong.stdout)
        if not ctx.sanitized:  # they need address space without limit
            # Memory is limited so that ranks that go on do no harm.
            large = lab.hosts[0].run("prlimit", "--data=2147483648", "--", program, "-n2",
                                     "--sizes=512G", f"--socket={daemon.socket}",
                                     "--memory=plain", check=False)
            expect(large.returncode == 1 and "half of the available memory" in large.stdout,
                   f"{large.returncode}: {large.stdout}")
        gone = lab.hosts[0].run(program, f"--socket={lab.dir}/none", check=False)
        expect(gone.returncode == 3, f"{gone.returncode}: {gone.stdout}")
