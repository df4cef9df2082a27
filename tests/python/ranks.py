# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""What a rank of a check is made of: functions test_*, run in the order in which they stand."""
import os
import sys
import traceback


def check(condition, text):
    """Raises with `text` unless `condition`."""
    if not condition:
        raise AssertionError(text)


def raises(kind, function, words=""):
    """function() raises `kind`, with these words in it."""
    try:
        function()
    except kind as error:
        check(words in str(error), f"'{words}' is not in: {error}")
        return error
    raise AssertionError(f"nothing was raised; {kind.__name__} with '{words}' was due")


def main(names, begin, end):
    """Runs the tests that the arguments name (default: all); one line each."""
    failed = 0
    begin()
    for name, function in list(names.items()):
        if not name.startswith("test_") or (sys.argv[1:] and not any(part in name for part in sys.argv[1:])):
            continue
        try:
            function()
            print(f"ok - {name[5:].replace('_', '-')}", flush=True)
        except Exception:  # pylint: disable=broad-except
            failed += 1
            print(f"not ok - {name[5:].replace('_', '-')}", flush=True)
            traceback.print_exc()
    sys.stdout.flush()
    end()
    if failed:
        # Others may wait for this rank in a group that it left half way.
        os._exit(1)
    return 0
