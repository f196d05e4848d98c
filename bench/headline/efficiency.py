#!/usr/bin/env python3
"""What a second rank gains, beside what multiply-adds gain from a second process in the same turns.

    bench/headline/efficiency.py --program build/release/apps/megagraph/megagraph --data FOLDER
                                 --probe build/release/bench/attn/bench_attn [--turns 25]

A training on one rank and one on two ranks of one thread live side by side; one of the two is halted, but for the few
steps that are its turn. A turn is: steps on one rank, steps on two, the probe in one process and in two at once. So what
is compared lies seconds apart, and a shared machine has little time to change between. The step that a halt fell into is
left out. A gain is the work done in the same time over one's. Printed are medians and the middle half of all turns, of
attention alone and of whole steps. Exit 1 where a median share misses its bar: 0.93 dense, 0.8 sparse."""
import argparse, json, signal, statistics, subprocess, sys, time

import headline

CASES = [("tolokers", headline.GRAPHORMER + " parallel.context_method=ring", 0.93),
         ("debian", headline.GT + " parallel.context_method=halo", 0.8)]
STEPS = {1: 1, 2: 2}  # of a turn, by ranks


def options():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    headline.add_common(p)
    p.add_argument("--probe", required=True)
    p.add_argument("--turns", type=int, default=25)
    p.add_argument("--sets", default="tolokers,debian")
    p.add_argument("--method", default="", help="of context, in place of ring and halo")
    p.set_defaults(layers=1, steps=1000000)
    return p.parse_args()


def probe(o, processes):
    """Flops per second of all processes together."""
    running = [subprocess.Popen([o.probe, "--flops=0.1"], stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(float(p.communicate()[0]) for p in running)


class Training:
    """Halted but inside steps()."""

    def __init__(self, o, data, settings, ranks, folder):
        self.folder, self.limit, self.log = folder, o.limit, None
        with open(folder + ".out", "w") as out:
            self.process = subprocess.Popen(headline.command_of(o, data, settings, ranks, folder),
                                            env=headline.ENVIRONMENT, stdout=out, stderr=subprocess.STDOUT)

    def begin(self):
        self.next(2)  # the first touches memory for the first time
        self.process.send_signal(signal.SIGSTOP)

    def read(self):
        """The phases of the steps that the log has more than at the last call; a line is written at once."""
        if not self.log:
            try:
                self.log = open(self.folder + "/log.jsonl")
            except FileNotFoundError:
                return []
        return [json.loads(x)["phase_seconds"] for x in self.log if '"phase_seconds"' in x]

    def next(self, count):
        """At least so many more steps."""
        end, new = time.monotonic() + self.limit, []
        while len(new) < count:
            if self.process.poll() is not None or time.monotonic() > end:
                with open(self.folder + ".out") as f:
                    sys.exit("efficiency: a training was not to be had: " + f.read().strip().split("\n")[-1][:200])
            time.sleep(0.005)
            new += self.read()
        return new

    def steps(self, count):
        """Median seconds of attention and of a step, of so many and perhaps one more."""
        self.read()
        self.process.send_signal(signal.SIGCONT)
        new = self.next(1 + count)[1:]
        self.process.send_signal(signal.SIGSTOP)
        return [headline.median([x[which] for x in new]) for which in ("attention", "all")]

    def end(self):
        self.process.kill()
        self.process.wait()
        if self.log:
            self.log.close()


def turn(o, one, two):
    a, b = one.steps(STEPS[1]), two.steps(STEPS[2])
    gain = probe(o, 2) / probe(o, 1)
    return [gain, a[0] / b[0], a[1] / b[1], a[1], b[1], a[0] / b[0] / gain, a[1] / b[1] / gain]


def case(o, name, settings, bar, work):
    data, _ = headline.find_data(o, name, work)
    if not data:
        print("%s: skipped, it is not there" % name)
        return True
    if o.method:
        settings = settings.rsplit("=", 1)[0] + "=" + o.method
    print("%s, %s; %d layer, %d heads of %d; %d turns" % (name, settings, o.layers, o.heads, o.hidden // o.heads, o.turns))
    trainings, turns = [], []
    try:
        for ranks in (1, 2):
            trainings.append(Training(o, data, settings, ranks, work + "/run%d" % ranks))
            trainings[-1].begin()
        for i in range(o.turns):
            turns.append(turn(o, *trainings))
            if sys.stderr.isatty():
                sys.stderr.write("\rturn %d of %d, step share %.3f  " % (i + 1, o.turns, turns[-1][6]))
    finally:  # what is halted would stay for ever
        for t in trainings:
            t.end()
    quarters = list(zip(*(statistics.quantiles(column, n=4, method="inclusive") for column in zip(*turns))))
    print("%-15s" % "" + "%12s" * 5 % ("probe gains", "attention", "step", "step 1, s", "step 2, s") + "%20s" % "shares of probe")
    for what, values in zip(("quarter", "median", "three quarters"), quarters):
        print("%-15s" % what + "%12.2f%12.2f%12.2f%12.3f%12.3f%11.3f%9.3f" % values)
    share = quarters[1][6]
    print("step share %.3f, bar %.2f: %s" % (share, bar, "met" if share >= bar else "missed"), flush=True)
    return share >= bar


def main():
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("efficiency: ended by a signal"))
    with headline.scratch() as work:
        results = [case(o, name, settings, bar, work) for name, settings, bar in CASES if name in o.sets.split(",")]
    return 0 if all(results) else 1


sys.exit(main())
