#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""upstream.py BACKEND RESULTS [NAME...]: PyTorch's own DistributedTest over a backend.

Runs with the Python that has PyTorch; the suite ships in its wheel. It asks for backends by name in
its decorators: it is imported as for Gloo, so that these gates open for what Gloo can do, and told
the real backend afterwards. Not opened: PROFILING_SUPPORTED_BACKENDS, the lists of those whose
events come from C++, with input shapes and an asynchronous end; tests/python looks at ours.
ROCECOMM_SOCKETS=a,b,... are daemons to spread the ranks over.

RESULTS gets a line of JSON a test: name, verdict, note, seconds.
"""
import json
import os
import sys
import tempfile
import time
import unittest

BACKEND, RESULTS, NAMES = sys.argv[1], sys.argv[2], sys.argv[3:]
SIZE = int(os.environ.get("WORLD_SIZE", "2"))
SOCKETS = [s for s in os.environ.get("ROCECOMM_SOCKETS", "").split(",") if s]

os.environ.update(BACKEND="gloo", WORLD_SIZE=str(SIZE), TEMP_DIR=tempfile.mkdtemp(),
                  MASTER_ADDR="127.0.0.1", MASTER_PORT="29500", OMP_NUM_THREADS="1")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")
for folder in ("barrier", "test_dir", "init_dir"):
    os.mkdir(os.path.join(os.environ["TEMP_DIR"], folder))

# pylint: disable=wrong-import-position
import torch  # noqa: E402
from torch.testing._internal.distributed import distributed_test as suite  # noqa: E402


class LikeGloo(str):
    """A backend's name that is also equal to "gloo" where a test asks for that while it runs."""

    __hash__ = str.__hash__

    def __eq__(self, other):
        return other == "gloo" or str.__eq__(self, other)

    def __ne__(self, other):
        return not self == other


if BACKEND == "roce":
    import rocecomm.torch  # noqa: F401,E402 pylint: disable=unused-import

    for names in suite.DistTestCases.backend_feature.values():
        if "gloo" in names:
            names.add(BACKEND)
    suite.BACKEND = LikeGloo(BACKEND)
os.environ["BACKEND"] = BACKEND
torch.set_num_threads(1)


class Upstream(suite.TestDistBackend, suite.DistributedTest._DistTestBase):
    """One process a rank, forked for each test."""

    def setUp(self):
        super().setUp()
        self._start_processes(torch.multiprocessing.get_context("fork").Process)

    @classmethod
    def _run(cls, rank, test_name, file_name, pipe, **kwargs):
        if SOCKETS:
            os.environ["ROCECOMM_SOCKET"] = SOCKETS[rank * len(SOCKETS) // SIZE]
        super()._run(rank, test_name, file_name, pipe, **kwargs)


class Result(unittest.TestResult):
    """Writes each verdict down as it comes."""

    def __init__(self, out):
        super().__init__()
        self.out, self.begin, self.seen = out, 0.0, set()

    def startTest(self, test):
        super().startTest(test)
        self.begin = time.monotonic()

    def verdict(self, test, word, note=""):
        name = test.id().rpartition(".")[2]
        if name in self.seen:
            return  # a failure was told by several means
        self.seen.add(name)
        took = time.monotonic() - self.begin
        json.dump({"name": name, "verdict": word, "note": note, "seconds": round(took, 2)},
                  self.out)
        self.out.write("\n")
        self.out.flush()

    def addSuccess(self, test):
        self.verdict(test, "passed")

    def addSkip(self, test, reason):
        self.verdict(test, "skipped", reason)

    def addFailure(self, test, err):
        super().addFailure(test, err)
        self.verdict(test, "failed", self.failures[-1][1])

    def addError(self, test, err):
        super().addError(test, err)
        self.verdict(test, "failed", self.errors[-1][1])


def main():
    loader = unittest.TestLoader()
    names = [n for n in loader.getTestCaseNames(Upstream) if not NAMES or n in NAMES]
    with open(RESULTS, "w", encoding="utf-8") as out:
        result = Result(out)
        for name in names:
            Upstream(name).run(result)


main()
