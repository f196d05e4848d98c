#!/usr/bin/env python3
"""The two claims in one run: peak memory of a rank and seconds of a step, ours beside the field's three ways.

    bench/headline/headline.py --program build/release/apps/megagraph/megagraph --data FOLDER

Each line is a training of a few steps by the program itself. Memory is the program's own count, of the rank that held
most. A baseline that does not fit is refused by the program, which says the bytes it needs: it counts as out of memory
where they exceed --memory, and as not run where only this machine is too small for all ranks at once. Seconds are
printed where there is a core for each rank. Needs Python alone."""
import argparse, json, os, re, shutil, subprocess, sys, tempfile, time

GRAPHORMER, GT = "model.kind=graphormer", "model.kind=gt"
WAYS = [  # name, settings, the baseline it is held against
    ("dense", GRAPHORMER + " baseline=dense", None),
    ("dense_rows", GRAPHORMER + " baseline=dense_rows", None),
    ("flash", GRAPHORMER + " baseline=flash", None),
    ("graphormer ring", GRAPHORMER + " parallel.context_method=ring", "dense dense_rows flash"),
    ("graphormer all_to_all", GRAPHORMER + " parallel.context_method=all_to_all", "dense dense_rows flash"),
    ("edge", GT + " baseline=edge", None),
    ("gt halo", GT + " parallel.context_method=halo", "edge"),
]
LARGE = 30000  # nodes from which attention over all pairs is run at the most ranks only, unless --full


def number(text):
    unit = text[-1].upper()
    return float(text[:-1]) * 1024 ** (1 + "KMGT".index(unit)) if unit in "KMGT" else float(text)


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--program", required=True)
    p.add_argument("--data", required=True, help="folder of cora.npz, tolokers.npz, debian.npz")
    p.add_argument("--sets", default="cora,tolokers,debian,generated")
    p.add_argument("--ways", default="", help="those whose names begin so, by commas")
    p.add_argument("--ranks", default="1,2,4,8")
    p.add_argument("--memory", default="16G", help="limit of a rank")
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--heads", type=int, default=8)
    p.add_argument("--hidden", type=int, default=64)
    p.add_argument("--steps", type=int, default=2)
    p.add_argument("--threads", default="", help="of a rank; the cores are shared out otherwise")
    p.add_argument("--full", action="store_true", help="large graphs at all ranks, 4 layers, 10 steps")
    o = p.parse_args()
    if o.full:
        o.layers, o.steps = 4, 10
    o.ranks = [int(r) for r in o.ranks.split(",")]
    return o


def machine_left():
    with open("/proc/meminfo") as f:
        return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", f.read()).group(1))


def say(text):
    print(text, file=sys.stderr, flush=True)


def train(o, data, settings, ranks, folder):
    """A dict of bytes, seconds; or of needs, or why it failed."""
    most = int(min(number(o.memory), 0.8 * machine_left() / ranks))
    if ranks == 1:
        settings = re.sub(r" parallel.context_method=\w+", "", settings)
    command = [o.program, "train", "--data", data, "--out", folder, "--ranks", str(ranks), "--memory", str(most), "--set",
               "model.layers=%d" % o.layers, "model.heads=%d" % o.heads, "model.hidden=%d" % o.hidden,
               "model.attention_dropout=0", "model.encodings.laplacian=0", "train.epochs=%d" % o.steps,
               "train.evaluate=%d" % o.steps] + settings.split()
    if o.threads:
        command[4:4] = ["--threads", o.threads]
    done = subprocess.run(command, env=dict(os.environ, OMP_WAIT_POLICY="passive"), stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True)
    refused = re.search(r"needs (\d+) bytes", done.stdout)
    if refused:
        return {"needs": int(refused.group(1))}
    if done.returncode:
        return {"why": done.stdout.strip().split("\n")[-1][:100]}
    with open(folder + "/summary.json") as f:
        s = json.load(f)
    with open(folder + "/log.jsonl") as f:
        steps = [json.loads(line) for line in f if '"step"' in line]
    later = sorted(x["seconds"] for x in steps[1:] or steps)  # the first also touches memory for the first time
    return {"bytes": max(s["peak_memory_bytes"]), "seconds": later[len(later) // 2]}


def size(count):
    return "%.0f MiB" % (count / 2**20) if count < 2**30 else "%.1f GiB" % (count / 2**30)


def memory_of(o, r):
    if "bytes" in r:
        return size(r["bytes"])
    if "needs" in r:
        over = r["needs"] > number(o.memory)
        return "needs %s: %s" % (size(r["needs"]), "out of memory" if over else "not run here")
    return "failed: " + r["why"]


def against(r, other, name):
    """What ours saves."""
    theirs = other.get("bytes", other.get("needs"))
    if "bytes" not in r or not theirs:
        return ""
    text = "%s: %.1f %% less memory" % (name, 100 * (1 - r["bytes"] / theirs))
    if r.get("timed") and "seconds" in other:
        text += ", %.2f times as fast" % (other["seconds"] / r["seconds"])
    return text


def table_of(o, name, data, nodes, work):
    print("\n%s: %d nodes; %d layers of %d, %d heads, %d steps; limit %s a rank" %
          (name, nodes, o.layers, o.hidden, o.heads, o.steps, o.memory))
    print("%-22s %5s  %-32s %9s  %s" % ("", "ranks", "peak memory of a rank", "step, s", "against"))
    found = {}
    for ranks in o.ranks:
        for way, settings, others in WAYS:
            if o.ways and not any(way.startswith(w) for w in o.ways.split(",")):
                continue
            quadratic = GRAPHORMER in settings and "baseline=dense" not in settings
            if nodes >= LARGE and quadratic and not o.full and ranks != max(o.ranks):
                continue
            begun = time.time()
            r = found[way, ranks] = train(o, data, settings, ranks, work + "/run")
            shutil.rmtree(work + "/run", ignore_errors=True)
            r["timed"] = "seconds" in r and ranks <= os.cpu_count()
            ratios = [against(r, found[b, ranks], b) for b in (others or "").split() if (b, ranks) in found]
            print("%-22s %5d  %-32s %9s  %s" % (way, ranks, memory_of(o, r), "%.3f" % r["seconds"] if r["timed"] else "-",
                                                "; ".join(x for x in ratios if x)), flush=True)
            say("    %s, %s, %d ranks: %.0f s" % (name, way, ranks, time.time() - begun))


def main():
    o = options()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as work:
        for name in o.sets.split(","):
            data = os.path.join(o.data, name + ".npz")
            if name == "generated":
                data = work + "/generated.npz"
                subprocess.run([o.program, "generate", "sbm", "--nodes", "10000", "--out", data], check=True,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            if not os.path.exists(data):
                print("\n%s: skipped, %s is not there" % (name, data))
                continue
            info = subprocess.run([o.program, "info", data], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            nodes = re.search(r"nodes: (\d+)", info.stdout)
            table_of(o, name, data, int(nodes.group(1)) if nodes else 0, work)


main()
