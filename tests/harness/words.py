# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Words of command lines, for argparse: type=positive, type=size_of."""
import argparse
import re

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


def positive(text):
    """A number of 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 1 or more")
    return int(text)


def size_of(text):
    """Bytes: a number with K, M, G or nothing behind it."""
    found = re.fullmatch(r"(\d+)([KMG]?)", text.upper())
    if not found:
        raise argparse.ArgumentTypeError(f"not a size such as 8, 64K or 25M: {text}")
    return int(found[1]) * UNITS[found[2]]
