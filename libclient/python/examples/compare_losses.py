#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""compare_losses.py A B: two loss curves that the examples wrote with --losses, side by side.

Ends with status 1 where they are further apart than the order of summation explains: a thousandth
of the loss.
"""
import json
import sys

TOLERANCE = 1e-3


def read(path):
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def main():
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    left, right = map(read, sys.argv[1:])
    if len(left) != len(right):
        sys.exit(f"{len(left)} losses against {len(right)}")
    worst = 0.0
    for number, (a, b) in enumerate(zip(left, right), 1):
        apart = abs(a - b) / max(abs(a), 1e-12)
        worst = max(worst, apart)
        print(f"{number:5d}  {a:.9f}  {b:.9f}  {apart:.1e}")
    same = sum(f"{a:.6f}" == f"{b:.6f}" for a, b in zip(left, right))
    print(f"largest relative difference {worst:.1e}; {same} of {len(left)} equal to six decimals")
    return int(worst > TOLERANCE)


sys.exit(main())
