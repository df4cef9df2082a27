# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Markdown out of a compare.json: the goals, row by row, and what the figures were measured on."""
import statistics

import rows

OURS = "cubic"
CPUS = {"own": "half of the cores each", "shared": "all cores for both"}
NAMES = {"rocecomm": "rocecomm", "openmpi": "Open MPI", "gloo": "Gloo"}


def medians(data):
    """{(congestion, system, layout, (coll, bytes, inflight)): {variant: (median, rounds, reps)}}"""
    times = {}
    for r in data["results"]:
        if r["verified"]:
            key = (r["congestion"], r["system"], r["layout"],
                   (r["coll"], r["bytes"], r["inflight"]))
            times.setdefault(key, {}).setdefault(r["variant"], []).append(
                (r["median_us"], r["reps"]))
    return {key: {variant: (statistics.median(t for t, _ in found), len(found), found[0][1])
                  for variant, found in variants.items()}
            for key, variants in times.items()}


def best(figures, congestion, system, row, variant=None):
    """(median, rounds, reps, variant): of that variant, or of the fastest; None without any."""
    variants = figures.get((congestion, system, row.layout, row.key), {})
    if variant is not None:
        return (*variants[variant], variant) if variant in variants else None
    return min(((*v, name) for name, v in variants.items()), default=None)


def time_text(us):
    for unit, scale in (("us", 1), ("ms", 1e3)):
        if us / scale < 999.5:  # what is more has four digits
            return f"{us / scale:.3g} {unit}"
    return f"{us / 1e6:.3g} s" if us < 999.5e6 else f"{us / 1e6:.0f} s"


def ratio_text(ratio):
    return f"{ratio:.0f}x" if ratio >= 20 else f"{ratio:.1f}x" if ratio >= 3 else f"{ratio:.2f}x"


def goal_text(row, goals):
    if row.coll == "comm":
        return time_text(rows.COMM_FLOOR_US if goals is row.floor else rows.COMM_AIM_US)
    both = len(goals) > 1
    return ", ".join(f"{value:g}x{' ' + NAMES[s] if both or s == 'gloo' else ''}"
                     for s, value in goals.items())


def reached(row, goals, time, others):
    """Whether all goals are met; None when that cannot be told."""
    if row.coll == "comm":
        return time <= (rows.COMM_FLOOR_US if goals is row.floor else rows.COMM_AIM_US)
    known = {s: value for s, value in goals.items() if others.get(s) is not None}
    if any(others[s] / time < value for s, value in known.items()):
        return False
    return True if known and len(known) == len(goals) else None


def verdict(row, time, others):
    if time is None:
        return "no figure"
    floor, aim = (reached(row, goals, time, others) for goals in (row.floor, row.aim))
    if floor:
        return "aim" if aim else "floor"
    return "no" if floor is False else "cannot tell"


def table(data, figures, congestion, variant, cores):
    """Lines of one table: rocecomm's variant against the others, under one congestion control."""
    systems = [s for s in ("openmpi", "gloo")
               if any(key[0] == congestion and key[1] == s for key in figures)]
    heads = ["work", "hosts x ranks", "limit", "rocecomm", *(NAMES[s] for s in systems),
             *(f"vs {NAMES[s]}" for s in systems), "floor", "aim", "met", "reps"]
    lines = [" | ".join(heads), " | ".join(["---"] * 2 + ["---:"] * (2 + 2 * len(systems))
                                           + ["---"] * 3 + ["---:"])]
    # What rocecomm may reach is what its own congestion control allows.
    limits = data["limits"].get(OURS if variant == "own" else congestion,
                                data["limits"][congestion])
    for row in rows.all_rows():
        ours = best(figures, congestion, "rocecomm", row, variant)
        others = {s: best(figures, congestion, s, row) for s in systems}
        if row.plot_only or not (ours or any(others.values())):
            continue
        time = ours[0] if ours else None
        times = {s: f[0] if f else None for s, f in others.items()}
        cells = [row.title, row.layout, time_text(rows.limit_us(row, limits, cores))
                 if row.coll != "comm" else "", time_text(time) if time else "-"]
        for s in systems:
            mark = f" ({others[s][3]})" if others[s] and others[s][3] not in ("", "plain") else ""
            cells.append(time_text(times[s]) + mark if times[s] else "-")
        cells += [ratio_text(times[s] / time) if time and times[s] else "-" for s in systems]
        some = ours or next(f for f in others.values() if f)
        cells += [goal_text(row, row.floor), goal_text(row, row.aim), verdict(row, time, times),
                  f"{some[1]} x {some[2]}"]
        lines.append(" | ".join(cells))
    return [f"| {line} |" for line in lines]


def limits_lines(data):
    lines = ["| congestion control | TCP both ways at once, each | one way | message one way | "
             "memcpy | sum of two | matrix product |", "|---|---:|---:|---:|---:|---:|---:|"]
    for name, m in data["limits"].items():
        lines.append(f"| {name} | {m['wire_both_GBps']:.2f} GB/s | {m['wire_single_GBps']:.2f} GB/s"
                     f" | {m['one_way_us']:.1f} us | {m['memcpy_GBps']:.1f} GB/s | "
                     f"{m['sum_GBps']:.1f} GB/s | {m['product_us']:.0f} us |")
    return lines


def sections(data):
    """(title, congestion, variant of rocecomm) of each table that there are figures for."""
    system = [c for c in data["limits"] if c != OURS]
    if OURS in data["limits"]:
        yield f"Everything with {OURS}", OURS, "own"
    for name in system:
        yield f"Everything with the system's congestion control ({name})", name, "system"
        yield (f"As they come: rocecomm sets {OURS} on its sockets, the others have {name}",
               name, "own")


def markdown(data):
    figures = medians(data)
    m = data["machine"]
    versions = ", ".join(f"{name} {version}" for name, version in m["versions"].items())
    lines = [f"{m['cpu']}, {m['cores']} cores, {m['memory_GiB']} GiB, Linux {m['kernel']} "
             f"({m['virtual']}); two network namespaces, veth, MTU 9000, "
             f"{CPUS[data.get('cpus', 'shared')]}. {m['date']}, load before "
             f"{m['load']:g}. {versions}. {data['rounds']} rounds in turn; medians of the rounds' "
             "medians; all results verified.", ""]
    for title, congestion, variant in sections(data):
        lines += [f"**{title}**", "", *table(data, figures, congestion, variant, m["cores"]), ""]
    lines += ["**Limits in the same run**", "", *limits_lines(data), "",
              "limit: the larger of wire (a message's way plus the bytes that must leave a host) "
              "and memory (operands read once, results written once). vs: how many times faster "
              "rocecomm is. floor and aim: against Open MPI unless named. In brackets: Open MPI's "
              "variant that was fastest in this row. reps: rounds x repetitions."]
    lines += [f"Problem: {text}" for text in data["problems"]]
    return "\n".join(lines) + "\n"
