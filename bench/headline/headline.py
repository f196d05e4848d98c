#!/usr/bin/env python3
"""The two claims in one run: peak memory of a rank and seconds of a step, ours beside the field's ways.

    bench/headline/headline.py --program build/release/apps/megagraph/megagraph --data FOLDER [--readme bench/README.md]

Each cell is a training of a few steps by the program itself. Memory is the program's own count, of the rank that held
most. A baseline that does not fit is refused by the program, which says the bytes it needs: it counts as out of memory
where they exceed --memory, and as not run where only this machine is too small for all ranks at once. A training that
takes longer than --limit is ended, and the same is not tried again on fewer ranks. Seconds are the median of the steps
after the first, on as many ranks as there are cores at most. The table is Markdown; --readme puts it between the lines
of a file that hold "headline: begin" and "headline: end". Needs Python alone; efficiency.py uses what is here."""
import argparse, json, os, re, shutil, subprocess, sys, tempfile, time

GRAPHORMER, GT = "model.kind=graphormer", "model.kind=gt"
WAYS = [  # name, settings, the baselines it is held against
    ("dense", GRAPHORMER + " baseline=dense", ""),
    ("dense_rows", GRAPHORMER + " baseline=dense_rows", ""),
    ("flash", GRAPHORMER + " baseline=flash", ""),
    ("graphormer ring", GRAPHORMER + " parallel.context_method=ring", "dense dense_rows flash"),
    ("graphormer all_to_all", GRAPHORMER + " parallel.context_method=all_to_all", "dense dense_rows flash"),
    ("edge", GT + " baseline=edge", ""),
    ("edge_rows", GT + " baseline=edge_rows", ""),
    ("gt halo", GT + " parallel.context_method=halo", "edge edge_rows"),
]
LARGE = 30000  # nodes from which attention over all pairs is run at the most ranks only, unless --full


def number(text):
    unit = text[-1].upper()
    return float(text[:-1]) * 1024 ** (1 + "KMGT".index(unit)) if unit in "KMGT" else float(text)


def add_common(p):
    p.add_argument("--program", required=True)
    p.add_argument("--data", required=True, help="folder of cora.npz, tolokers.npz, debian.npz")
    p.add_argument("--memory", default="16G", help="limit of a rank")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=1, help="of a rank")
    p.add_argument("--limit", type=float, default=300, help="seconds that a training may take")
    p.add_argument("--share", type=float, default=0.8, help="of the memory that is free here, for all ranks together")


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_common(p)
    p.add_argument("--sets", default="cora,tolokers,debian,generated")
    p.add_argument("--ways", default="", help="those whose names begin so, by commas")
    p.add_argument("--ranks", default="1,2,4,8")
    p.add_argument("--full", action="store_true", help="large graphs at all ranks")
    p.add_argument("--no-seconds", action="store_true", help="on a machine that others use")
    p.add_argument("--readme", help="a file to put the table into")
    o = p.parse_args()
    o.ranks = [int(r) for r in o.ranks.split(",")]
    return o


def machine_left():
    with open("/proc/meminfo") as f:
        return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", f.read()).group(1))


def say(text):
    print(text, file=sys.stderr, flush=True)


ENVIRONMENT = dict(os.environ, OMP_WAIT_POLICY="passive")


def command_of(o, data, settings, ranks, folder):
    most = int(min(number(o.memory), o.share * machine_left() / ranks))
    if ranks == 1:
        settings = re.sub(r" parallel.context_method=\w+", "", settings)
    shutil.rmtree(folder, ignore_errors=True)
    return [o.program, "train", "--data", data, "--out", folder, "--ranks", str(ranks), "--memory", str(most),
            "--threads", str(o.threads), "--set", "model.layers=%d" % o.layers, "model.heads=%d" % o.heads,
            "model.hidden=%d" % o.hidden, "model.attention_dropout=0", "model.encodings.laplacian=0",
            "train.epochs=%d" % o.steps, "train.evaluate=%d" % o.steps] + settings.split()


def train(o, data, settings, ranks, folder):
    """A dict of bytes and the steps of the log; or of needs, or why it failed."""
    command = command_of(o, data, settings, ranks, folder)
    try:
        done = subprocess.run(command, env=ENVIRONMENT, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=o.limit)
    except subprocess.TimeoutExpired:
        return {"why": "longer than %.0f s" % o.limit}
    refused = re.search(r"needs (\d+) bytes", done.stdout)
    if refused:
        return {"needs": int(refused.group(1))}
    if done.returncode:
        return {"why": "failed: " + done.stdout.strip().split("\n")[-1][:100]}
    with open(folder + "/summary.json") as f:
        s = json.load(f)
    with open(folder + "/log.jsonl") as f:
        lines = [json.loads(line) for line in f]
    steps = [x for x in lines if "step" in x]
    return {"bytes": max(s["peak_memory_bytes"]), "steps": steps}


def median(values):
    return sorted(values)[len(values) // 2]


def seconds_of(r):
    return median([x["seconds"] for x in r["steps"][1:] or r["steps"]])  # the first also touches memory for the first time


def size(count):
    return "%.0f MiB" % (count / 2**20) if count < 2**30 else "%.1f GiB" % (count / 2**30)


def cell(o, r, ranks):
    if "needs" in r:
        over = r["needs"] > number(o.memory)
        return "needs %s: %s" % (size(r["needs"]), "out of memory" if over else "not run here")
    if "why" in r:
        return r["why"]
    timed = not o.no_seconds and ranks <= (os.cpu_count() or 1)
    return size(r["bytes"]) + (", %.3g s" % seconds_of(r) if timed else "")


def against(o, found, way, others, ranks):
    """What ours saves at the most ranks, and how many times as fast it is on two."""
    r, parts = found.get((way, ranks), {}), []
    for b in others.split():
        theirs = found.get((b, ranks), {})
        theirs = theirs.get("bytes", theirs.get("needs"))
        if "bytes" not in r or not theirs:
            continue
        saved = 100 * (1 - r["bytes"] / theirs)
        text = "%s: %.1f %% %s" % (b, abs(saved), "less" if saved > 0 else "more")
        two, their_two = found.get((way, 2), {}), found.get((b, 2), {})
        if not o.no_seconds and "steps" in two and "steps" in their_two:
            text += ", %.2f times as fast" % (seconds_of(their_two) / seconds_of(two))
        parts.append(text)
    return "; ".join(parts)


def chosen(o, way):
    return not o.ways or any(way.startswith(w) for w in o.ways.split(","))


def table_of(o, name, data, nodes, work):
    """Lines of a table; trainings from the most ranks to the fewest."""
    found = {}
    for ranks in sorted(o.ranks, reverse=True):
        for way, settings, _ in WAYS:
            if not chosen(o, way):
                continue
            begun, before = time.time(), found.get((way, min([r for w, r in found if w == way], default=0)), {})
            all_pairs = GRAPHORMER in settings and "baseline=dense" not in settings
            if nodes >= LARGE and all_pairs and not o.full and ranks != max(o.ranks):
                found[way, ranks] = {"why": "not run (--full)"}
            elif before.get("why", "").startswith("longer"):
                found[way, ranks] = before
            else:
                found[way, ranks] = train(o, data, settings, ranks, work + "/run")
            say("    %s, %s, %d ranks: %s (%.0f s)" % (name, way, ranks, cell(o, found[way, ranks], ranks),
                                                       time.time() - begun))
    ways = [(way, others) for way, _, others in WAYS if chosen(o, way)]
    head = "| %s, %d nodes | %s | at %d ranks, times on 2, against |" % (
        name, nodes, " | ".join("%d rank%s" % (r, "s" * (r > 1)) for r in o.ranks), max(o.ranks))
    lines = [head, "|---" * (len(o.ranks) + 2) + "|"]
    for way, others in ways:
        cells = [cell(o, found[way, r], r) for r in o.ranks]
        lines.append("| %s | %s | %s |" % (way, " | ".join(cells), against(o, found, way, others, max(o.ranks))))
    return lines + [""]


def find_data(o, name, work):
    """Path and number of nodes of a set; None where it is not there."""
    data = os.path.join(o.data, name + ".npz")
    if name == "generated":
        data = work + "/generated.npz"
        subprocess.run([o.program, "generate", "sbm", "--nodes", "3000", "--out", data], check=True,
                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    if not os.path.exists(data):
        return None, 0
    info = subprocess.run([o.program, "info", data], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    nodes = re.search(r"nodes: (\d+)", info.stdout)
    return data, int(nodes.group(1)) if nodes else 0


def put(path, lines):
    with open(path) as f:
        text = f.read().split("\n")
    begin = next(i for i, line in enumerate(text) if "headline: begin" in line)
    end = next(i for i, line in enumerate(text) if "headline: end" in line)
    with open(path, "w") as f:
        f.write("\n".join(text[:begin + 1] + lines + text[end:]))


def scratch():
    return tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None)


def main():
    o = options()
    lines = ["", "Peak memory of a rank%s. %d layers of %d, %d heads, %d steps, %d thread%s a rank; limit %s a rank." %
             ("" if o.no_seconds else ", seconds of a step", o.layers, o.hidden, o.heads, o.steps, o.threads,
              "s" * (o.threads > 1), o.memory), ""]
    with scratch() as work:
        for name in o.sets.split(","):
            data, nodes = find_data(o, name, work)
            part = table_of(o, name, data, nodes, work) if data else ["%s: skipped, it is not there" % name, ""]
            print("\n".join(part), flush=True)
            lines += part
    if o.readme:
        put(o.readme, lines)


if __name__ == "__main__":
    main()
