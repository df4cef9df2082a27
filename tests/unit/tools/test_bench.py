#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Tests of what tools/bench makes of its figures: rows, limits, tables and plot, from a canned file."""
import json
import os
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

HERE = os.path.dirname(os.path.abspath(__file__))
TOP = os.path.dirname(os.path.dirname(os.path.dirname(HERE)))
BENCH = os.path.join(TOP, "tools/benchmark")
CANNED = os.path.join(HERE, "bench_compare.json")
sys.path.insert(0, BENCH)
sys.dont_write_bytecode = True

# pylint: disable=wrong-import-position
import plot  # noqa: E402
import report  # noqa: E402
import rows  # noqa: E402

MIB = 1 << 20


def canned():
    with open(CANNED, encoding="utf-8") as f:
        return json.load(f)


def cells(text, title, work, layout):
    """{heading: cell} of one row of one table."""
    part = text[text.index(f"**{title}"):].split("\n\n")[1].split("\n")
    heads = [h.strip() for h in part[0].strip("|").split("|")]
    for line in part[2:]:
        found = [c.strip() for c in line.strip("|").split("|")]
        if found[:2] == [work, layout]:
            return dict(zip(heads, found))
    raise AssertionError(f"no row {work} {layout} in:\n" + "\n".join(part))


class Rows(unittest.TestCase):
    def test_names_differ(self):
        names = [r.name for r in rows.all_rows()]
        self.assertEqual(len(names), len(set(names)))
        keys = [(r.layout, r.key) for r in rows.all_rows()]
        self.assertEqual(len(keys), len(set(keys)))

    def test_blocks_are_whole(self):
        for r in rows.all_rows():
            if r.coll in ("alltoall", "allgather", "reduce_scatter"):
                self.assertEqual(r.bytes % (4 * rows.HOSTS * rows.LAYOUTS[r.layout]), 0, r.name)

    def test_choice(self):
        chosen = rows.choose(["allreduce-64K*@2x4", "comm@2x4"])
        self.assertEqual([r.name for r in chosen],
                         ["allreduce-64K@2x4", "allreduce-64Kx32@2x4", "comm@2x4"])
        self.assertTrue(all(r.quick for r in rows.choose(quick=True, plot=False)))
        self.assertLess(len(rows.choose(plot=False)), len(rows.choose()))
        with self.assertRaises(ValueError):
            rows.choose(["allreduce-9@2x4"])

    def test_no_aim_is_below_its_floor(self):
        for r in rows.all_rows():
            for system, value in r.aim.items():
                self.assertGreaterEqual(value, r.floor.get(system, 0), r.name)


class Limits(unittest.TestCase):
    limits = {"wire_both_GBps": 5, "wire_single_GBps": 10, "one_way_us": 6, "memcpy_GBps": 10,
              "sum_GBps": 8, "product_us": 150}

    def limit(self, name, cores=2):
        return rows.limit_us(rows.choose([name])[0], self.limits, cores)

    def test_wire(self):
        self.assertAlmostEqual(self.limit("allreduce-8@2x1"), 6 + 8 / 5e3)
        self.assertAlmostEqual(self.limit("allreduce-25M@2x1"), 6 + 25 * MIB / 5e3)
        self.assertAlmostEqual(self.limit("alltoall-8M@2x4"), 6 + 16 * MIB / 5e3)

    def test_memory(self):
        # One core a host moves 24 GB/s: four operands read, four results written.
        self.assertAlmostEqual(self.limit("allreduce-25M@2x4"), 200 * MIB / 24e3)
        self.assertAlmostEqual(self.limit("allreduce-25M@2x4", 16), 6 + 25 * MIB / 5e3)

    def test_work_beside(self):
        # 4 buckets of 12 products in each of 8 ranks on 2 CPUs, and the memory of 4 x 4 MiB.
        self.assertAlmostEqual(self.limit("beside-4Mx4@2x4"),
                               4 * 12 * 150 * 8 / 2 + 4 * 2 * 16 * MIB / 24e3)


class Table(unittest.TestCase):
    def setUp(self):
        self.text = report.markdown(canned())

    def test_median_of_rounds_and_best_variant(self):
        row = cells(self.text, "Everything with cubic", "allreduce 8 B", "2x1")
        self.assertEqual(row["rocecomm"], "12 us")
        self.assertEqual(row["Open MPI"], "11 us")
        self.assertEqual(row["vs Open MPI"], "0.92x")
        self.assertEqual(row["vs Gloo"], "40x")
        self.assertEqual(row["met"], "floor")
        self.assertEqual(row["reps"], "3 x 2000")

    def test_aim(self):
        row = cells(self.text, "Everything with cubic", "allreduce 25 MiB", "2x1")
        self.assertEqual((row["Open MPI"], row["vs Open MPI"], row["vs Gloo"], row["met"]),
                         ("30 ms (yield)", "3.0x", "4.0x", "aim"))
        row = cells(self.text, "Everything with cubic", "communicator over connected hosts", "2x4")
        self.assertEqual((row["rocecomm"], row["floor"], row["aim"], row["met"], row["Gloo"]),
                         ("900 us", "5 ms", "1 ms", "aim", "90 ms"))

    def test_below_the_floor_and_without_figure(self):
        """Below Open MPI's floor; Gloo's wrong results are no figure."""
        row = cells(self.text, "Everything with cubic", "allreduce 25 MiB", "2x4")
        self.assertEqual((row["vs Open MPI"], row["Gloo"], row["vs Gloo"], row["met"]),
                         ("1.80x", "-", "-", "no"))
        self.assertIn("Problem: gloo: wrong elements", self.text)

    def test_congestion_controls_are_kept_apart(self):
        row = cells(self.text, "Everything with the system's", "allreduce 25 MiB", "2x1")
        self.assertEqual((row["rocecomm"], row["Open MPI"]), ("20 ms", "60 ms (yield)"))
        row = cells(self.text, "As they come", "allreduce 25 MiB", "2x1")
        self.assertEqual((row["rocecomm"], row["Open MPI"]), ("10 ms", "60 ms (yield)"))
        self.assertEqual(row["limit"], "5.25 ms")

    def test_missing_peers(self):
        data = canned()
        data["results"] = [r for r in data["results"] if r["system"] == "rocecomm"]
        row = cells(report.markdown(data), "Everything with cubic", "allreduce 25 MiB", "2x1")
        self.assertEqual((row["rocecomm"], row["met"]), ("10 ms", "cannot tell"))
        self.assertNotIn("Open MPI", row)

    def test_all_goals_of_a_row_count(self):
        row = rows.choose(["allreduce-25M@2x1"])[0]
        for mpi, gloo, said in ((30, 40, "aim"), (30, 30, "floor"), (30, 15, "no"), (14, 90, "no"),
                                (30, None, "cannot tell"), (14, None, "no")):
            self.assertEqual(report.verdict(row, 10, {"openmpi": mpi, "gloo": gloo}), said)
        self.assertEqual(report.verdict(row, None, {}), "no figure")

    def test_an_aim_is_not_met_while_the_floor_is_unknown(self):
        """8 bytes: the aim names Open MPI, the floor Gloo as well."""
        row = rows.choose(["allreduce-8@2x1"])[0]
        for mpi, gloo, said in ((12, 250, "aim"), (12, None, "cannot tell"), (12, 150, "no"),
                                (9, 250, "floor"), (None, 250, "cannot tell")):
            self.assertEqual(report.verdict(row, 10, {"openmpi": mpi, "gloo": gloo}), said)

    def test_units(self):
        self.assertEqual([report.time_text(t) for t in (1.234, 999, 1000, 85900, 2.5e6)],
                         ["1.23 us", "999 us", "1 ms", "85.9 ms", "2.5 s"])
        self.assertEqual([report.time_text(t) for t in (999.4, 999.6, 999499, 999600, 1234e6)],
                         ["999 us", "1 ms", "999 ms", "1 s", "1234 s"])


class Plot(unittest.TestCase):
    def test_picture(self):
        tree = xml.etree.ElementTree.fromstring(plot.svg(canned()))
        name = "{http://www.w3.org/2000/svg}"
        lines = tree.findall(f"{name}polyline")
        # 2x1: the limit and three systems; 2x4 has one size, of two systems and the limit.
        self.assertEqual(len(lines), 4)
        width, height = float(tree.get("width")), float(tree.get("height"))
        for line in lines:
            for point in line.get("points").split():
                x, y = map(float, point.split(","))
                self.assertTrue(0 < x < width and 0 < y < height)
        words = " ".join(t.text for t in tree.iter(f"{name}text"))
        for word in ("rocecomm", "Open MPI", "Gloo", "limit", "2 hosts x 1 rank (cubic)"):
            self.assertIn(word, words)

    def test_faster_is_lower(self):
        series = {"rocecomm": [(8, 10), (64, 10)], "gloo": [(8, 100), (64, 100)]}
        panel = plot.Panel(60, series, (8, 64), (1, 1000))
        self.assertGreater(panel.at(8, 10)[1], panel.at(8, 100)[1])
        self.assertLess(panel.at(8, 10)[0], panel.at(64, 10)[0])

    def test_nothing_to_draw(self):
        data = canned()
        data["results"] = [r for r in data["results"] if r["coll"] == "comm"]
        self.assertIsNone(plot.svg(data))


class Command(unittest.TestCase):
    def bench(self, *words):
        return subprocess.run([sys.executable, os.path.join(BENCH, "compare.py"), *words],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                              check=False)

    def test_report_writes_the_files(self):
        with tempfile.TemporaryDirectory() as directory:
            path = os.path.join(directory, "compare.json")
            with open(path, "w", encoding="utf-8") as f:
                json.dump(canned(), f)
            done = self.bench("--report", path)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(sorted(os.listdir(directory)),
                             ["compare.json", "compare.md", "compare.svg"])
            self.assertIn("**Everything with cubic**", done.stdout)

    def test_usage(self):
        self.assertEqual(self.bench("--help").returncode, 0)
        self.assertIn("comm@2x4", self.bench("--list").stdout.split())
        for words in ((), ("--compare", "--systems=nccl"), ("--compare", "--only=nothing"),
                      ("--compare", "--set=streams=2"), ("--compare", "--rounds=-1"),
                      ("--compare", "--rounds=0"), ("--compare", "--rounds=x")):
            self.assertEqual(self.bench(*words).returncode, 2, words)


if __name__ == "__main__":
    unittest.main()
