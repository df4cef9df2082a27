# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: The rocecomm authors
"""Steps of gpu-check --gpus N: one GPU a rank.

apart:     each rank its own host; check, and allreduce beside NCCL over sockets (default and tuned)
together:  all ranks on one host, one daemon; copies from GPU to GPU and, with gpu_peer = off, through
           the host, beside NCCL over NVLink or whatever the GPUs have between them
mixed:     two hosts with half of the ranks each (four GPUs or more), beside NCCL told the same
ddp:       a GPT on all GPUs: losses equal to NCCL's, step time beside it over sockets and inside a host
"""
from gpucheck.lab import NCCL_TUNED, Failed, Ranks, ddp, ddp_compare, fake, gpu_rank, site, torch_rank

OPS = "allreduce,broadcast,allgather,alltoall,reduce-scatter"


def per_host(n, hosts):
    """Ranks in equal parts, the first hosts have what is over."""
    return [n // hosts + (i < n % hosts) for i in range(hosts)]


def bench(site_, ranks, args, ops, sizes):
    job = Ranks(site_, ranks, gpu_rank(site_, "bench", f"--ops={ops}", f"--sizes={sizes}", f"--seconds={args.seconds}"))
    return job.finish(400).lines(0)


def check(site_, ranks):
    """Every operation on every kind of memory."""
    job = Ranks(site_, ranks, gpu_rank(site_, "check", "--short")).finish(300)
    return job.lines(0)[-1]["cases"]


def nccl(args, ranks, env=None, hosts=None, sizes=None):
    """Rows of NCCL, or why there are none; NCCL_HOSTID makes hosts of ranks."""
    if args.no_nccl or fake():
        return [{"failed": "not asked for" if args.no_nccl else "there is no GPU for NCCL"}]
    with site(args.bundle, [], 1, args.gpus) as site_:
        port = 29800 + nccl.runs % 100
        nccl.runs += 1
        job = Ranks(site_, [sum(ranks)], torch_rank(site_, "nccl", "--sizes", sizes or args.sizes, "--seconds",
                                                    str(args.seconds), "--port", str(port), hosts=hosts), env)
        try:
            return job.finish(300).lines(0)
        except Failed as e:
            return [{"failed": str(e)[-500:]}]


nccl.runs = 0


def step_apart(args):
    ranks = per_host(args.gpus, args.gpus)
    with site(args.bundle, args.config, args.gpus, args.gpus) as site_:
        result = {"cases": check(site_, ranks), "rocecomm": bench(site_, ranks, args, "allreduce", args.sizes),
                  "paths": site_.ctl(0, "paths").stdout}
    result["NCCL over sockets"] = nccl(args, ranks)
    result["NCCL over sockets, tuned"] = nccl(args, ranks, NCCL_TUNED)
    return result


def straight_share(before, after):
    """Of the bytes that copy engines moved: how many went straight to another GPU."""
    moved = {k: after[k] - before.get(k, 0) for k in after}
    return round(moved.get("bytes_to_other_gpus", 0) / max(sum(moved.values()), 1), 3)


def step_together(args):
    result = {}
    for name, config in (("rocecomm", []), ("rocecomm, gpu_peer = off", ["daemon.gpu_peer=off"])):
        with site(args.bundle, [*args.config, *config], 1, args.gpus) as site_:
            if not config:
                result["cases"] = check(site_, [args.gpus])
            before = site_.moved()
            result[name] = bench(site_, [args.gpus], args, OPS, args.sizes)
            result["straight, " + name] = straight_share(before, site_.moved())
            result.setdefault("paths", site_.ctl(0, "paths").stdout)
            if config and result["straight, " + name] != 0:
                raise Failed(f"gpu_peer = off, and bytes went from GPU to GPU: {site_.moved()}")
    result["NCCL inside one host"] = nccl(args, [args.gpus], hosts=1)
    return result


def step_mixed(args):
    if args.gpus < 4:
        return {"left out": f"two hosts with two ranks each take four GPUs, {args.gpus} are asked for"}
    ranks = per_host(args.gpus, 2)
    with site(args.bundle, args.config, 2, args.gpus) as site_:
        result = {"cases": check(site_, ranks), "rocecomm": bench(site_, ranks, args, OPS, args.sizes),
                  "paths": site_.ctl(0, "paths").stdout}
    result["NCCL, two hosts"] = nccl(args, ranks, hosts=2)
    result["NCCL, two hosts, tuned"] = nccl(args, ranks, NCCL_TUNED, hosts=2)
    return result


def step_ddp(args):
    """The backend "roce" with each rank its own host, and all on one."""
    other = "gloo" if fake() else "nccl"
    apart = per_host(args.gpus, args.gpus)
    with site(args.bundle, args.config, args.gpus, args.gpus) as site_:
        ours = ddp(site_, apart, args, "roce")
        theirs = ddp(site_, apart, args, other)
        result = {"apart": ddp_compare(ours, theirs)}
        if not fake():
            result["step_ms, NCCL over sockets, tuned"] = ddp(site_, apart, args, "nccl", NCCL_TUNED)["median_step_ms"]
    with site(args.bundle, args.config, 1, args.gpus) as site_:
        ours = ddp(site_, [args.gpus], args, "roce")
        theirs = ddp(site_, [args.gpus], args, other, hosts=1)
        result["together"] = ddp_compare(ours, theirs)
    return result


STEPS = {"apart": step_apart, "together": step_together, "mixed": step_mixed, "ddp": step_ddp}

# ---- the page ----------------------------------------------------------------------------------


def size_name(n):
    return f"{n >> 20} MiB" if n >= 1 << 20 else f"{n >> 10} KiB" if n >= 1 << 10 else f"{n} B"


def table(title, result):
    """Systems and operations against sizes: median us (bus bandwidth)."""
    rows, failed = {}, []
    for name, lines in result.items():
        if not isinstance(lines, list):
            continue
        for x in lines:
            if "failed" in x:
                failed.append(f"- {name}: {x['failed']}")
            elif "median_us" in x:
                row = rows.setdefault(f"{name}, {x.get('op', 'allreduce')}, {x['dtype']}", {})
                row[x["bytes"]] = (x["median_us"], x["busbw_GBs"])
    sizes = sorted({s for r in rows.values() for s in r})
    out = [f"| {title} | " + " | ".join(map(size_name, sizes)) + " |", "|---|" + "---|" * len(sizes)]
    for name, r in rows.items():
        cells = [f"{r[s][0]:.0f} us ({r[s][1]:.2f} GB/s)" if s in r else "-" for s in sizes]
        out.append(f"| {name} | " + " | ".join(cells) + " |")
    return [*(out if rows else []), *failed]


def ddp_lines(result):
    out = []
    for where, name in (("apart", "each rank its own host"), ("together", "all ranks on one host")):
        r = result.get(where)
        if r:
            times = ", ".join(f"{k} {v} ms" for k, v in r["step_ms"].items())
            out.append(f"- DDP, {name}: {r['ranks']} ranks, {r['parameters'] / 1e6:.1f} M parameters, "
                       f"{r['steps']} steps, loss {r['loss'][0]:.6f} to {r['loss'][1]:.6f}, "
                       f"furthest apart {r['furthest_apart']:.1e} of its value; a step {times}")
    if "step_ms, NCCL over sockets, tuned" in result:
        out.append(f"- DDP, NCCL over sockets, tuned: a step {result['step_ms, NCCL over sockets, tuned']} ms")
    return out


def page(args, results, failures):
    """All but the head."""
    titles = {"apart": f"{args.gpus} GPUs, each its own host", "together": f"{args.gpus} GPUs, one host",
              "mixed": f"{args.gpus} GPUs, two hosts"}
    text = []
    for name in results:
        r = results[name] or {}
        if name in failures:
            text.append(f"- {name}: FAILED: {failures[name]}")
            continue
        if "left out" in r:
            text.append(f"- {name}: left out: {r['left out']}")
        if "cases" in r:
            text.append(f"- {name}: {r['cases']} cases a rank right")
        for key in r:
            if key.startswith("straight, "):
                text.append(f"- {name}, {key[10:]}: {100 * r[key]:.0f} % of the bytes that copy engines moved went "
                            "straight from GPU to GPU")
    text += ddp_lines(results.get("ddp") or {})
    for name, title in titles.items():
        if results.get(name):
            text += ["", *table(title, results[name])]
    if results.get("together"):
        text += ["", "Inside one host NCCL over NVLink is the better tool: `new_group(ranks, backend=\"nccl\")` "
                 "for the ranks of a host, and \"roce\" for groups across hosts.", "",
                 "`rocectl paths`, all ranks on one host:", "", "```", results["together"]["paths"].rstrip(), "```"]
    return text
