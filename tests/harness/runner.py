# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Runs test functions one after the other and counts: one line a test, one closing line."""
import argparse
import os
import signal
import sys
import time
import traceback

from harness.lab import Lab, LabError

TESTS = []


class Skip(Exception):
    """This machine cannot do it; the text says why."""


def test(function):
    """Decorator: function(ctx) is a test named like it, with dashes."""
    TESTS.append((function.__name__.replace("_", "-"), function))
    return function


class Context:
    """What a test gets."""

    def __init__(self, options):
        self.build = os.path.abspath(options.build)
        self.short = options.short
        self.sanitized = self._sanitized()
        self.slow = 5.0 if self.sanitized else 1.0

    def _sanitized(self):
        with open(os.path.join(self.build, "daemon/rocecommd"), "rb") as f:
            data = f.read()
        return b"__asan_init" in data or b"__tsan_init" in data

    def lab(self, hosts=1, **options):
        return Lab(self.build, hosts, slow=self.slow, **options)


def take_interrupts():
    """
    What starts programs in the background (nohup, a shell's &) ignores Ctrl-C, and programs hand that
    on to theirs; tests interrupt ranks.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def main(make_context=Context, description="Integration tests (root)."):
    """Runs the tests that the command line names; their ctx is what make_context(options) returns."""
    take_interrupts()
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--build", required=True, help="build directory")
    parser.add_argument("--short", action="store_true", help="fewer and shorter")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("names", nargs="*", help="tests; a part of the name is enough")
    options = parser.parse_args()
    chosen = [(n, f) for n, f in TESTS
              if not options.names or any(part in n for part in options.names)]
    if options.list:
        print("\n".join(n for n, _ in chosen))
        return 0
    if os.geteuid() != 0:
        sys.exit("integration: network namespaces need root")
    context = make_context(options)
    counts = {"ok": 0, "not ok": 0, "skip": 0}
    for name, function in chosen:
        begin = time.monotonic()
        verdict, note = "ok", ""
        try:
            note = function(context) or ""
        except Skip as e:
            verdict, note = "skip", str(e)
        except LabError as e:
            verdict, note = "not ok", str(e)
        except Exception:  # pylint: disable=broad-except
            verdict, note = "not ok", traceback.format_exc()
        counts[verdict] += 1
        first, _, rest = note.partition("\n")
        took = time.monotonic() - begin
        print(f"{verdict} - {name} ({took:.1f} s){': ' + first if first else ''}", flush=True)
        for line in rest.split("\n"):
            if line:
                print("    " + line, flush=True)
    print(f"{counts['ok']} passed, {counts['not ok']} failed, {counts['skip']} skipped")
    return 1 if counts["not ok"] or not chosen else 0
