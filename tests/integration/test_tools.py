# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Scripts of tools/ that make hosts of their own."""
import os
import re
import shutil
import subprocess
import sys

from harness.lab import expect
from harness.runner import Skip, test
from test_costs import need_strace

TOP = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def page(ctx, *options):
    """What tools/profile prints for a small size."""
    done = subprocess.run(
        [sys.executable, os.path.join(TOP, "tools/profiling/main.py"), "--build", ctx.build,
         "--size", "64K", "--ranks", "1", "--reps", "20", *options],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        timeout=100 * ctx.slow, check=False)
    expect(done.returncode == 0, f"exit code {done.returncode}: {done.stdout}")
    expect(done.stdout.startswith("allreduce of 65,536 bytes (f32, sum), 2x1 ranks, registered "),
           done.stdout)
    return done.stdout


@test
def profile_by_counters_and_strace(ctx):
    """tools/profile: bytes and system calls of an operation."""
    need_strace(ctx)
    text = page(ctx, "--by", "none")
    sent = re.search(r"bytes sent, headers included +([0-9,]+) ", text)
    expect(sent and 65600 <= int(sent[1].replace(",", "")) <= 65700, text)
    expect(re.search(r"bytes of sums +6[0-9,]+ ", text), text)
    expect(re.search(r"hostA's progress thread: .*sendmsg", text), text)


@test
def profile_by_perf(ctx):
    """tools/profile: time or cycles by function."""
    sys.path.insert(0, os.path.join(TOP, "tools/profiling"))
    import functions  # pylint: disable=import-outside-toplevel
    if ctx.sanitized:
        raise Skip("sanitizers do not go with strace")
    if not functions.perf_event():
        raise Skip("perf is not here, or may not sample")
    text = page(ctx, "--by", "perf", "--reps", "300")
    expect(re.search(r"^hostA's daemon, by perf \(.*\): [1-9]", text, re.M), text)
    expect(re.search(r"^ +[0-9.]+ +[0-9.]+ %  \w", text, re.M), text)


@test
def profile_by_instructions(ctx):
    """tools/profile: instructions by function; a sum of 16384 elements must be among them."""
    if not shutil.which("valgrind"):
        raise Skip("no valgrind here")
    if ctx.sanitized:
        raise Skip("valgrind cannot run what sanitizers have made")
    text = page(ctx, "--by", "instructions")
    expect(re.search(r"^hostA's daemon, by callgrind: [1-9]", text, re.M), text)
    expect(re.search(r" %  sum_f32$", text, re.M), text)
