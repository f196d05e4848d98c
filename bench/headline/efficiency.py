#!/usr/bin/env python3
"""What two ranks of one thread reach: beside one rank, and beside the field's way on two.

    bench/headline/efficiency.py --program build/release/apps/megagraph/megagraph --data FOLDER
                                 --probe build/release/bench/attn/bench_attn [--turns 25]

A training on one rank, one on two and one of the baseline on two live side by side; all are halted, but for the few
steps that are one's turn. A turn is: steps on one rank, steps on two, the probe of multiply-adds in one process and in
two at once, and every third time steps of the baseline. So what is compared lies seconds apart, and a shared machine has
little time to change between. The step that a halt fell into is left out. A gain is the work done in the same time over
one's. Printed are medians and the middle half of all turns, of attention alone and of whole steps. Exit 1 where a median
misses its bar: of what the probe gains 0.93 (dense) and 0.8 (sparse), and times as fast as the baseline."""
import argparse, json, signal, statistics, subprocess, sys, time

import headline

CASES = [  # set, ours, bar of a second rank; baseline, bars of attention and step
    ("tolokers", headline.GRAPHORMER + " parallel.context_method=ring", 0.93, headline.GRAPHORMER + " baseline=dense", 4, 3.5),
    ("debian", headline.GT + " parallel.context_method=halo", 0.8, headline.GT + " baseline=edge", 5, 1.6)]
SECONDS = 1.5  # that a turn's steps of one training take, at least a step
WITH_BASELINE = 3  # every so manieth turn


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
        step = self.next(2)[-1]["all"]  # the first touches memory for the first time
        self.count = max(1, round(SECONDS / step))
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

    def steps(self):
        """Median seconds of attention, of products with weights and of a step, in a turn."""
        self.read()
        self.process.send_signal(signal.SIGCONT)
        new = self.next(1 + self.count)[1:]
        self.process.send_signal(signal.SIGSTOP)
        return [headline.median([x[which] for x in new]) for which in ("attention", "dense", "all")]

    def end(self):
        self.process.kill()
        self.process.wait()
        if self.log:
            self.log.close()


def gains(o, one, two):
    a, b = one.steps(), two.steps()
    gain = probe(o, 2) / probe(o, 1)
    return [gain, a[0] / b[0], a[2] / b[2], a[2], b[2], a[0] / b[0] / gain, a[2] / b[2] / gain], b


def quarters(rows):
    return list(zip(*(statistics.quantiles(column, n=4, method="inclusive") for column in zip(*rows))))


def table(heads, rows):
    print("%-15s" % "" + "".join("%17s" % h for h in heads))
    for what, values in zip(("quarter", "median", "three quarters"), quarters(rows)):
        print("%-15s" % what + "".join("%17.3f" % v for v in values))


def judge(what, value, bar):
    print("%s %.3f, bar %.2f: %s" % (what, value, bar, "met" if value >= bar else "missed"), flush=True)
    return value >= bar


def case(o, name, settings, bar, baseline, attention_bar, step_bar, work):
    data, _ = headline.find_data(o, name, work)
    if not data:
        print("%s: skipped, it is not there" % name)
        return True
    if o.method:
        settings = settings.rsplit("=", 1)[0] + "=" + o.method
    print("%s, %s; %d layer, %d heads of %d; %d turns" % (name, settings, o.layers, o.heads, o.hidden // o.heads, o.turns))
    trainings, turns, theirs = [], [], []
    try:
        for ranks, what in ((1, settings), (2, settings), (2, baseline)):
            trainings.append(Training(o, data, what, ranks, work + "/run%d" % len(trainings)))
            trainings[-1].begin()
        for i in range(o.turns):
            row, ours = gains(o, *trainings[:2])
            turns.append(row)
            if i % WITH_BASELINE == 0:
                b = trainings[2].steps()
                theirs.append([b[0] / ours[0], b[2] / ours[2], ours[0], b[0], ours[2], b[2], ours[1], b[1]])
            if sys.stderr.isatty():
                sys.stderr.write("\rturn %d of %d, step share %.3f  " % (i + 1, o.turns, turns[-1][6]))
    finally:  # what is halted would stay for ever
        for t in trainings:
            t.end()
    table(("probe gains", "attention gains", "step gains", "step 1, s", "step 2, s", "share attention", "share step"), turns)
    met = judge("step's share of what the probe gains", quarters(turns)[1][6], bar)
    print("beside %s on two ranks, %d turns" % (baseline, len(theirs)))
    table(("attention, x", "step, x", "attention, s", "baseline", "step, s", "baseline", "products, s", "baseline"), theirs)
    met &= judge("attention, times as fast", quarters(theirs)[1][0], attention_bar)
    return judge("step, times as fast", quarters(theirs)[1][1], step_bar) and met


def main():
    o = options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("efficiency: ended by a signal"))
    with headline.scratch() as work:
        results = [case(o, *what, work) for what in CASES if what[0] in o.sets.split(",")]
    return 0 if all(results) else 1


sys.exit(main())
