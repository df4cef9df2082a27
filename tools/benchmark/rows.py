# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What is compared: rows with their goals, the points of the plot, and how low a time can be."""
import fnmatch
from dataclasses import dataclass, field

KIB, MIB = 1 << 10, 1 << 20

# name: ranks a host, on two hosts
LAYOUTS = {"2x1": 1, "2x4": 4}
HOSTS = 2

# One row "beside": this many allreduces, each after this many products of 128 x 128 matrices
# (work.c) in every rank. Counted, not timed: every system has the same to compute.
BESIDE_PRODUCTS = 12
BESIDE_BUCKETS = 4

COMM_FLOOR_US, COMM_AIM_US = 5000, 1000


@dataclass(frozen=True)
class Row:
    """One operation in one layout; goals are factors by which rocecomm is faster."""

    coll: str
    bytes: int
    layout: str
    inflight: int = 1
    reps: int = 12
    warmup: int = 2
    floor: dict = field(default_factory=dict, hash=False)
    aim: dict = field(default_factory=dict, hash=False)
    quick: bool = False
    plot_only: bool = False

    @property
    def name(self):
        """allreduce-64K@2x4, allreduce-64Kx32@2x4, comm@2x4"""
        size = f"-{size_text(self.bytes)}" if self.bytes else ""
        return f"{self.coll}{size}{f'x{self.inflight}' if self.inflight > 1 else ''}@{self.layout}"

    @property
    def key(self):
        """What a line of output has of it."""
        return self.coll, self.bytes, self.inflight

    @property
    def title(self):
        if self.coll == "comm":
            return "communicator over connected hosts"
        if self.coll == "beside":
            return f"step: {self.inflight} allreduces of {size_words(self.bytes)} beside a trainer"
        if self.inflight > 1:
            return f"{self.inflight} {self.coll}s of {size_words(self.bytes)} in flight"
        if self.coll == "alltoall":
            ranks = HOSTS * LAYOUTS[self.layout]
            return f"alltoall {size_words(self.bytes // ranks)} a pair"
        return f"{self.coll.replace('_', '-')} {size_words(self.bytes)}"


def size_text(n):
    for unit, name in ((MIB, "M"), (KIB, "K")):
        if n >= unit and n % unit == 0:
            return f"{n // unit}{name}"
    return str(n)


def size_words(n):
    text = size_text(n)
    return text[:-1] + {"M": " MiB", "K": " KiB"}[text[-1]] if text[-1] in "MK" else text + " B"


def _reps(size):
    for limit, reps in ((8, 2000), (4 * KIB, 400), (64 * KIB, 200), (256 * KIB, 100),
                        (4 * MIB, 30)):
        if size <= limit:
            return {"reps": reps, "warmup": max(2, reps // 10)}
    return {"reps": 12, "warmup": 2}


def _goals(mpi=None, gloo=None):
    return {name: value for name, value in (("openmpi", mpi), ("gloo", gloo)) if value}


def _allreduce(size, layout, floor, aim, quick=False):
    return Row("allreduce", size, layout, floor=floor, aim=aim, quick=quick, **_reps(size))


def _rows():
    g = _goals
    yield _allreduce(8, "2x1", g(0.7, 20), g(1), True)
    yield _allreduce(64 * KIB, "2x1", g(1.3), g(2), True)
    yield _allreduce(4 * MIB, "2x1", g(1.5), g(3))
    yield _allreduce(25 * MIB, "2x1", g(1.5, 2), g(2.5, 3.5), True)
    yield Row("beside", 4 * MIB, "2x1", BESIDE_BUCKETS, 12, 2, g(None, 1), g(None, 1.5))
    yield _allreduce(8, "2x4", g(3, 20), g(5), True)
    yield _allreduce(64 * KIB, "2x4", g(3), g(6), True)
    yield _allreduce(4 * MIB, "2x4", g(1.5), g(3))
    yield _allreduce(25 * MIB, "2x4", g(2, 3.5), g(4, 6), True)
    yield Row("alltoall", 8 * MIB, "2x4", floor=g(1.3), aim=g(2))
    for coll in ("allgather", "reduce_scatter", "broadcast"):
        yield Row(coll, 25 * MIB, "2x4", floor=g(1.3), aim=g(2))
    yield Row("allreduce", 64 * KIB, "2x4", 32, 8, 1, g(2), g(4))
    yield Row("beside", 4 * MIB, "2x4", BESIDE_BUCKETS, 8, 2, g(None, 1), g(None, 1.5))
    yield Row("comm", 0, "2x4", reps=30, warmup=3)


def _plot_rows():
    for layout in LAYOUTS:
        for size in (64, 512, 4 * KIB, 32 * KIB, 256 * KIB, 2 * MIB, 16 * MIB):
            yield Row("allreduce", size, layout, plot_only=True, **_reps(size))


def all_rows():
    return list(_rows()) + list(_plot_rows())


def choose(patterns=(), quick=False, plot=True):
    """Rows whose name matches one of the patterns (shell wildcards); all without patterns."""
    rows = [r for r in all_rows() if (plot or not r.plot_only) and (r.quick or not quick)]
    if not patterns:
        return rows
    chosen = [r for r in all_rows() if any(fnmatch.fnmatchcase(r.name, p) for p in patterns)]
    for p in patterns:
        if not any(fnmatch.fnmatchcase(r.name, p) for r in chosen):
            raise ValueError(f"no row is called {p}; the rows are: "
                             + " ".join(r.name for r in all_rows()))
    return chosen


# ---- limits ---------------------------------------------------------------------------------


def wire_bytes(row):
    """Bytes that must leave each host, or the busier one."""
    ranks_a_host = LAYOUTS[row.layout]
    one = {"allreduce": row.bytes, "beside": row.bytes, "broadcast": row.bytes,
           "allgather": row.bytes / HOSTS, "reduce_scatter": row.bytes / HOSTS,
           "alltoall": ranks_a_host * row.bytes / HOSTS}.get(row.coll, 0)
    return one * row.inflight


def memory_bytes(row):
    """Bytes that a host's cores must at least read and write, each once: operands and results."""
    ranks, local = HOSTS * LAYOUTS[row.layout], LAYOUTS[row.layout]
    size = row.bytes * row.inflight
    one = {"allreduce": 2 * size, "beside": 2 * size, "broadcast": size,
           "allgather": size / ranks + size, "reduce_scatter": size + size / ranks,
           "alltoall": 2 * size}.get(row.coll, 0)
    return local * one


def limit_us(row, limits, cores):
    """A time that no system on this machine can be below, in microseconds, with its parts."""
    cores_a_host = max(1, cores // HOSTS)
    wire = limits["one_way_us"]
    both_ways = row.coll != "broadcast"
    speed = limits["wire_both_GBps" if both_ways else "wire_single_GBps"]
    wire += wire_bytes(row) / speed * 1e-3
    traffic = max(2 * limits["memcpy_GBps"], 3 * limits["sum_GBps"]) * cores_a_host
    local = memory_bytes(row) / traffic * 1e-3
    if row.coll == "beside":
        ranks = HOSTS * LAYOUTS[row.layout]
        work = row.inflight * BESIDE_PRODUCTS * limits["product_us"]
        local += work * ranks / min(cores, ranks)
    return max(wire, local)
