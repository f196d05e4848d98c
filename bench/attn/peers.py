"""libattn beside what PyTorch has for the CPU: one process, the same tensors and threads, sides in turns, medians.

    cmake -S libattn -B build/attn -DBUILD_SHARED_LIBS=ON && cmake --build build/attn
    MEGAGRAPH_ATTN_LIBRARY=build/attn/libmegagraph-attn.so python3 bench/attn/peers.py

Prints two tables in Markdown. libattn always has a table of biases by code, and its gradient in training; the others have
what their names say:
    no bias          scaled_dot_product_attention, its fused kernel
    fixed bias       the same with a matrix of heads x N x N made before the time starts: fused, where the version can
    bias gradient    the same; the matrix wants a gradient, which ends there
    table[:, codes]  the same; the matrix is gathered from a table each time, which gets the gradient
    FlexAttention    compiled, score + table[head, codes[query, key]]
    plain            softmax(scale q k + bias) v; the bias as in "fixed bias", or in training as in "table[:, codes]"
The time of libattn is without its plan, which is made once for all layers and steps.
"""
import argparse
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../libattn/examples/torch"))
from megagraph_attn import Plan, attention

CODES = 8
CASES = [(4096, 8, 16), (4096, 8, 32), (2048, 8, 64)]
TARGETS = {("training", "bias gradient", 4096, 16): 5, ("training", "table[:, codes]", 4096, 16): 5,
           ("forward", "fixed bias", 4096, 16): 1.5}
sdpa = getattr(torch.nn.functional, "scaled_dot_product_attention", None)


class Case:
    """q, k, v are rows of a projection, seen as [1, heads, tokens, dim]: what a model has. Codes are like distances."""

    def __init__(self, tokens, heads, dim):
        torch.manual_seed(1)
        self.tokens, self.heads, self.dim, self.scale = tokens, heads, dim, dim ** -0.5
        self.q, self.k, self.v, self.dout = (
            torch.randn(1, tokens, heads, dim).transpose(1, 2).requires_grad_(n < 3) for n in range(4))
        self.table = torch.randn(heads, CODES, requires_grad=True)
        place = torch.rand(tokens, 2).sort(0).values
        apart = torch.cdist(place, place) * 4 * CODES + torch.rand(tokens, tokens)
        self.codes = apart.clamp(0, CODES - 1).to(torch.uint8)
        self.long_codes = self.codes.long()
        self.plan = Plan.dense(self.codes, CODES)
        self.bias = self.table.detach()[:, self.long_codes].unsqueeze(0)

    def gathered(self):
        return self.table[:, self.long_codes].unsqueeze(0)

    def leaf(self):
        return self.bias.detach().requires_grad_()

    # Sides: each takes q, k, v and a bias.
    def ours(self, bias):
        return attention(self.q, self.k, self.v, self.plan, bias)

    def fused(self, bias):
        return sdpa(self.q, self.k, self.v, attn_mask=bias)

    def plain(self, bias):
        return torch.softmax(self.q @ self.k.transpose(-1, -2) * self.scale + bias, -1) @ self.v

    def inference(self, side, bias):
        with torch.no_grad():
            return side(bias() if bias else None)

    def training(self, side, bias):
        given = bias() if bias else None
        wanted = [self.q, self.k, self.v]
        if bias:  # a bias that is gathered from the table gives its gradient to the table
            wanted.append(given if given.is_leaf else self.table)
        return torch.autograd.grad(side(given), wanted, self.dout)


def flex_of(case, check):
    """FlexAttention for this case, compiled and, if wished, compared; or why it cannot be."""
    try:
        from torch.nn.attention.flex_attention import flex_attention
    except ImportError:
        raise RuntimeError(f"PyTorch {torch.__version__} has none; 2.5 has") from None
    q, k, v, table, codes = *(t.detach() for t in (case.q, case.k, case.v, case.table)), case.codes.int()
    compiled = torch.compile(flex_attention, dynamic=False)
    add = lambda score, batch, head, i, j: score + table[head, codes[i, j]]
    run = lambda: compiled(q, k, v, score_mod=add)
    side = lambda: case.inference(lambda _: run(), None)
    out = side()  # compiles
    error = float((out - case.inference(case.plain, lambda: case.bias)).abs().max()) if check else 0
    if error > 1e-3:
        raise RuntimeError(f"its result is off by {error:.1e}")
    return side


def sides_of(kind, case, chosen, check):
    """Name, function without arguments; or name, reason why not. libattn and those chosen (None: all)."""
    run = case.inference if kind == "forward" else case.training
    fixed = lambda: case.bias
    sides = [("libattn", lambda: run(case.ours, lambda: case.table))]
    if sdpa:
        sides.append(("no bias", lambda: run(case.fused, None)))
        if kind == "forward":
            sides.append(("fixed bias", lambda: run(case.fused, fixed)))
        else:
            sides.append(("bias gradient", lambda: run(case.fused, case.leaf)))
            sides.append(("table[:, codes]", lambda: run(case.fused, case.gathered)))
    else:
        sides.append(("scaled_dot_product_attention", f"PyTorch {torch.__version__} has none; 2.0 has"))
    if kind == "forward" and (not chosen or "FlexAttention" in chosen):
        try:
            sides.append(("FlexAttention", flex_of(case, check)))
        except Exception as reason:  # whatever the compiler says
            sides.append(("FlexAttention", str(reason).strip().splitlines()[0]))
    sides.append(("plain", lambda: run(case.plain, fixed if kind == "forward" else case.gathered)))
    return [side for side in sides if not chosen or side[0] in ["libattn", *chosen]]


def agree(kind, sides):
    """Sides with the bias of the table give what libattn gives: the comparison is of the same thing."""
    pick = lambda result: result if kind == "forward" else result[0]
    ours = pick(sides[0][1]())
    for name, side in sides[1:]:
        if callable(side) and name != "no bias":
            error = float((pick(side()) - ours).norm() / ours.norm())
            if not error < 1e-4:
                sys.exit(f"peers: {kind}, {name} and libattn differ by {error:.1e} of the norm")


def warm():
    """A small case: the first gradient of a process imports for seconds."""
    case = Case(128, 2, 16)
    case.training(case.ours, lambda: case.table)
    case.training(case.plain, case.gathered)
    if sdpa:
        case.training(case.fused, case.leaf)


def measure(sides, seconds, least):
    """Medians of seconds, the sides in turns: rounds until the time is over, at least `least`."""
    times, begin = {name: [] for name, side in sides if callable(side)}, time.perf_counter()
    while True:
        for name, side in sides:
            if callable(side):
                start = time.perf_counter()
                side()
                times[name].append(time.perf_counter() - start)
        rounds, spent = len(times["libattn"]), time.perf_counter() - begin
        if rounds >= least and spent + spent / rounds > seconds:
            return {name: statistics.median(values) for name, values in times.items()}, rounds


def report(kind, case, arguments):
    sides = sides_of(kind, case, arguments.side, not arguments.skip_check)
    if not arguments.skip_check:
        agree(kind, sides)
    medians, rounds = measure(sides, arguments.seconds, arguments.rounds)
    missed = 0
    for name, side in sides:
        row = f"| {case.tokens}, {case.heads}, {case.dim} | {name} | "
        if not callable(side):
            print(row + f"cannot run: {side} | | |")
            continue
        ratio, target = medians[name] / medians["libattn"], TARGETS.get((kind, name, case.tokens, case.dim))
        mark = "" if target is None else f"{'✓' if ratio >= target else '✗'} {target}"
        missed += mark.startswith("✗")
        print(row + f"{1e3 * medians[name]:.0f} | {'' if name == 'libattn' else f'{ratio:.2f}'} | {mark} |")
    print(f"peers: {kind} {case.tokens}, {case.heads}, {case.dim}: medians of {rounds}", file=sys.stderr, flush=True)
    return missed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--case", type=int, choices=range(len(CASES)), action="append", help="of " + str(CASES))
    parser.add_argument("--kind", choices=("forward", "training"), action="append")
    parser.add_argument("--side", action="append", help="beside libattn: some of the names above; all where not given")
    parser.add_argument("--seconds", type=float, default=10, help="of each case and kind; its check comes on top")
    parser.add_argument("--rounds", type=int, default=3, help="at least, also where they take longer")
    parser.add_argument("--skip-check", action="store_true", help="that the sides agree")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    warm()
    missed = 0
    print(f"PyTorch {torch.__version__}, {arguments.threads} threads, {CODES} codes, fp32")
    for kind in arguments.kind or ("forward", "training"):
        print(f"\n| tokens, heads, dim | {kind} | ms | times libattn's | target |\n|---|---|---|---|---|")
        for number in arguments.case or range(len(CASES)):
            missed += report(kind, Case(*CASES[number]), arguments)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
