# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""SVG of allreduce: time against size, both logarithmic, a panel a layout, a line a system."""
import math
from html import escape

import report
import rows

WIDTH, HEIGHT, LEFT, TOP, BOTTOM, GAP = 470, 380, 62, 46, 78, 16
LINES = (("limit", "limit", "#777777", "5 4"), ("rocecomm", "rocecomm", "#0072b2", ""),
         ("openmpi", "Open MPI", "#d55e00", ""), ("gloo", "Gloo", "#009e73", ""))


def _series(data, figures, congestion, layout, cores):
    """{system: [(bytes, microseconds)]}, by size; empty without figures."""
    found = {name: {} for name, *_ in LINES}
    for row in rows.all_rows():
        if row.coll != "allreduce" or row.inflight != 1 or row.layout != layout:
            continue
        for system in ("rocecomm", "openmpi", "gloo"):
            variant = "own" if system == "rocecomm" else None
            figure = report.best(figures, congestion, system, row, variant)
            if figure:
                found[system][row.bytes] = figure[0]
                found["limit"][row.bytes] = rows.limit_us(row, data["limits"][congestion], cores)
    return {name: sorted(points.items()) for name, points in found.items() if points}


class Panel:
    """One pair of axes; everything it draws goes to self.out."""

    def __init__(self, x, series, sizes, times):
        self.out = []
        self.x, self.series = x, series
        self.right = x + WIDTH - LEFT - GAP
        self.bottom = HEIGHT - BOTTOM
        self.sizes, self.times = sizes, times

    def at(self, size, time):
        def place(value, low, high, begin, end):
            share = (math.log(value) - math.log(low)) / (math.log(high) - math.log(low))
            return round(begin + share * (end - begin), 1)
        return (place(size, *self.sizes, self.x, self.right),
                place(time, *self.times, self.bottom, TOP))

    def text(self, x, y, words, anchor="middle", more=""):
        self.out.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}"{more}>'
                        f"{escape(words)}</text>")

    def axes(self, title):
        time = self.times[0]
        while time <= self.times[1] * 1.01:
            y = self.at(self.sizes[0], time)[1]
            self.out.append(f'<path d="M{self.x} {y}H{self.right}" class="grid"/>')
            self.text(self.x - 6, y + 4, report.time_text(time).replace("us", "µs"), "end")
            time *= 10
        for size in (8, 64, 512, 4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20):
            if self.sizes[0] <= size <= self.sizes[1]:
                x = self.at(size, self.times[0])[0]
                self.out.append(f'<path d="M{x} {self.bottom}V{TOP}" class="grid"/>')
                self.text(x, self.bottom + 17, rows.size_text(size))
        self.text((self.x + self.right) / 2, TOP - 12, title, more=' class="title"')
        self.text((self.x + self.right) / 2, self.bottom + 35, "bytes of the buffer")

    def lines(self):
        for name, _, colour, dash in LINES:
            points = [self.at(*p) for p in self.series.get(name, ())]
            if not points:
                continue
            path = " ".join(f"{x},{y}" for x, y in points)
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            self.out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" '
                            f'stroke-width="2"{dashes}/>')
            if not dash:
                self.out += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>'
                             for x, y in points]


def _range(values):
    """Whole powers of ten around them."""
    return 10 ** math.floor(math.log10(min(values))), 10 ** math.ceil(math.log10(max(values)))


def _legend(out, names, width):
    x = width / 2 - 55 * len(names)
    y = HEIGHT - 14
    for name, title, colour, dash in LINES:
        if name in names:
            dashes = f' stroke-dasharray="{dash}"' if dash else ""
            out.append(f'<path d="M{x} {y - 4}h26" stroke="{colour}" stroke-width="2"{dashes}/>')
            out.append(f'<text x="{x + 32}" y="{y}">{escape(title)}</text>')
            x += 110


def svg(data):
    """The picture as text; None without two sizes of anything."""
    congestions = [c for _, c, variant in report.sections(data) if variant == "own"]
    figures = report.medians(data)
    cores = data["machine"]["cores"]
    panels = []
    for layout in rows.LAYOUTS if congestions else ():
        series = _series(data, figures, congestions[0], layout, cores)
        if any(len(points) > 1 for points in series.values()):
            panels.append((layout, series))
    if not panels:
        return None
    points = [p for _, series in panels for line in series.values() for p in line]
    sizes = min(p[0] for p in points), max(p[0] for p in points)
    times = _range([p[1] for p in points])
    width = WIDTH * len(panels)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{HEIGHT}" '
           f'viewBox="0 0 {width} {HEIGHT}" font-family="sans-serif" font-size="11">',
           "<style>.grid{stroke:#dddddd;stroke-width:1;fill:none}.title{font-size:14px;"
           "font-weight:bold}</style>", f'<rect width="{width}" height="{HEIGHT}" fill="white"/>']
    names = set()
    for number, (layout, series) in enumerate(panels):
        panel = Panel(LEFT + number * WIDTH, series, sizes, times)
        ranks = rows.LAYOUTS[layout]
        panel.axes(f"allreduce f32, {rows.HOSTS} hosts x {ranks} rank{'s' if ranks > 1 else ''} "
                   f"({congestions[0]})")
        panel.lines()
        out += panel.out
        names |= set(series)
    _legend(out, names, width)
    return "\n".join(out + ["</svg>"]) + "\n"
