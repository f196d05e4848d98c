#!/usr/bin/env python3
"""What a second rank gains, beside what multiply-adds gain from a second process in the same turns.

    bench/headline/efficiency.py --program build/release/apps/megagraph/megagraph --data FOLDER
                                 --probe build/release/bench/attn/bench_attn [--turns 5]

A turn is: the probe in one process, then in two at once; a training on one rank, then on two ranks of one thread; the
probe again. A gain is the work done in the same time over one's. Printed for each turn and as medians, of attention
alone and of whole steps. Exit 1 where a share misses its bar: 0.93 dense, 0.8 sparse."""
import argparse, subprocess, sys

import headline

CASES = [("tolokers", headline.GRAPHORMER + " parallel.context_method=ring", 0.93),
         ("debian", headline.GT + " parallel.context_method=halo", 0.8)]


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    headline.add_common(p)
    p.add_argument("--probe", required=True)
    p.add_argument("--turns", type=int, default=5)
    p.add_argument("--sets", default="tolokers,debian")
    p.add_argument("--method", default="", help="of context, in place of ring and halo")
    p.set_defaults(layers=1, steps=4)
    return p.parse_args()


def probe_once(o, processes):
    """Flops per second of all processes together."""
    running = [subprocess.Popen([o.probe, "--flops=0.3"], stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(float(p.communicate()[0]) for p in running)


def probe(o):
    return probe_once(o, 2) / probe_once(o, 1)


def times(r):
    """Seconds of attention and of a step, the first left out."""
    return (headline.median([e["attention"] for e in r["epochs"][1:]]), headline.seconds_of(r))


def turn(o, data, settings, work):
    before = probe(o)
    runs = [headline.train(o, data, settings, ranks, work + "/run") for ranks in (1, 2)]
    for r in runs:
        if "steps" not in r:
            sys.exit("efficiency: a training was not to be had: %s" % r)
    after = probe(o)
    one, two = times(runs[0]), times(runs[1])
    return [(before + after) / 2, one[0] / two[0], one[1] / two[1], one[1], two[1]]


def case(o, name, settings, bar, work):
    data, _ = headline.find_data(o, name, work)
    if not data:
        print("%s: skipped, it is not there" % name)
        return True
    if o.method:
        settings = settings.rsplit("=", 1)[0] + "=" + o.method
    print("%s, %s; %d layer, %d heads of %d" % (name, settings, o.layers, o.heads, o.hidden // o.heads))
    print("%12s %10s %10s %10s %10s %18s" % ("probe gains", "attention", "step", "step 1, s", "step 2, s", "shares of probe"))
    turns = []
    for _ in range(o.turns):
        t = turn(o, data, settings, work)
        turns.append(t + [t[1] / t[0], t[2] / t[0]])
        print("%12.2f %10.2f %10.2f %10.3f %10.3f %9.3f %8.3f" % tuple(turns[-1]), flush=True)
    medians = [headline.median(column) for column in zip(*turns)]
    print("%12.2f %10.2f %10.2f %10.3f %10.3f %9.3f %8.3f   medians; bar %.2f" % (tuple(medians) + (bar,)), flush=True)
    return medians[6] >= bar


def main():
    o = options()
    with headline.scratch() as work:
        results = [case(o, name, settings, bar, work) for name, settings, bar in CASES if name in o.sets.split(",")]
    return 0 if all(results) else 1


sys.exit(main())
