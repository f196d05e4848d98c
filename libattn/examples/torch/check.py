"""Checks megagraph_attn against PyTorch's own softmax attention in fp64, and its gradients by finite differences.

    MEGAGRAPH_ATTN_LIBRARY=.../libmegagraph-attn.so python3 check.py
"""
import torch

from megagraph_attn import Plan, attention

torch.manual_seed(1)


def plain(q, k, v, bias, scale=None):
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    return torch.softmax(scale * q @ k.transpose(-1, -2) + bias, -1) @ v


def tensors(*shapes, dtype=torch.float32):
    return [torch.randn(*shape).to(dtype).requires_grad_() for shape in shapes]


def distance(a, b):
    a, b = a.detach().double(), b.detach().double()
    return float((a - b).norm() / b.norm())


def compare(name, ours, theirs, inputs, limit):
    """ours and theirs are functions of `inputs`; theirs is run in fp64. Norm of the difference over the norm."""
    out = ours(*inputs)
    doubles = [t.detach().double().requires_grad_() for t in inputs]
    exact = theirs(*doubles)
    w = torch.randn(out.shape).to(out.dtype)
    gradients = torch.autograd.grad((out * w).sum(), inputs)
    exact_gradients = torch.autograd.grad((exact * w.double()).sum(), doubles)
    errors = [distance(a, b) for a, b in zip((out, *gradients), (exact, *exact_gradients))]
    print(f"{name}: out and gradients against fp64 softmax: " + " ".join(f"{e:.1e}" for e in errors))
    assert max(errors) < limit, f"{name}: {max(errors):.1e} is over {limit}"


def differences(name, function, inputs, step=1e-2, limit=1e-3):
    """<gradient, u> against (f(x + step u) - f(x - step u)) / (2 step) for random u, elements normal; f is fp32 inside,
    summed in fp64. The limit is for the difference over |gradient|, which <gradient, u> is like: the step's square and
    rounding leave about a tenth of it."""
    w = torch.randn(function(*inputs).shape).double()
    value = lambda *x: (function(*x).double() * w).sum()
    worst = 0
    for n, gradient in enumerate(torch.autograd.grad(value(*inputs), inputs)):
        for _ in range(4):
            u = torch.randn(gradient.shape)
            moved = [value(*inputs[:n], inputs[n].detach() + s * step * u, *inputs[n + 1:]).item() for s in (1, -1)]
            error = abs((moved[0] - moved[1]) / (2 * step) - float((gradient.double() * u.double()).sum()))
            worst = max(worst, error / float(gradient.norm()))
    print(f"{name}: finite differences: {worst:.1e}")
    assert worst < limit, f"{name}: {worst:.1e} is over {limit}"


def near_list(seen):
    """A matrix of what is seen as starts and columns."""
    starts = torch.zeros(seen.shape[0] + 1, dtype=torch.int64)
    starts[1:] = seen.sum(1).cumsum(0)
    return starts, seen.nonzero()[:, 1].to(torch.int32)


def dense():
    heads, queries, keys, dim, codes = 3, 150, 100, 16, 6
    m = torch.randint(codes, (queries, keys), dtype=torch.uint8)
    plan = Plan.dense(m, codes)
    inputs = tensors((heads, queries, dim), (heads, keys, dim), (heads, keys, 8), (heads, codes))
    ours = lambda q, k, v, table: attention(q, k, v, plan, table)
    compare("dense", ours, lambda q, k, v, table: plain(q, k, v, table[:, m.long()]), inputs, 2e-6)
    differences("dense", ours, inputs)
    halves = tensors((heads, queries, dim), (heads, keys, dim), (heads, keys, 8), dtype=torch.bfloat16)
    compare("bf16", ours, lambda q, k, v, table: plain(q, k, v, table[:, m.long()]), halves + inputs[3:], 1e-2)


def masked():
    m = torch.randint(4, (70, 90), dtype=torch.uint8)
    m[:, 0] = 0
    plan = Plan.dense(m, 4, mask=3)
    hidden = torch.zeros(70, 90).double().masked_fill(m == 3, -torch.inf)
    inputs = tensors((2, 70, 8), (2, 90, 8), (2, 90, 8), (2, 4))
    compare("masked", lambda q, k, v, table: attention(q, k, v, plan, table, 0.3),
            lambda q, k, v, table: plain(q, k, v, table[:, m.long()] + hidden, 0.3), inputs, 2e-6)


def near():
    tokens, codes = 300, 3
    seen = (torch.rand(tokens, tokens) < 0.02) | torch.eye(tokens, dtype=torch.bool)
    m = torch.full((tokens, tokens), codes, dtype=torch.uint8)
    m[seen] = torch.randint(codes, (int(seen.sum()),), dtype=torch.uint8)
    hidden = torch.zeros(tokens, tokens).double().masked_fill(~seen, -torch.inf)
    inputs = tensors(*[(4, tokens, 8)] * 3, (4, codes))
    sparse = Plan.near(*near_list(seen), m[seen], count=codes)
    ours = lambda q, k, v, table: attention(q, k, v, sparse, table)
    compare("near, the rest hidden", ours,
            lambda q, k, v, table: plain(q, k, v, table[:, m.long().clamp(max=codes - 1)] + hidden), inputs, 2e-6)
    differences("near, the rest hidden", ours, inputs)
    full = Plan.near(*near_list(seen), m[seen], count=codes + 1, far=codes)
    inputs[3] = torch.randn(4, codes + 1, requires_grad=True)
    compare("near, the rest far", lambda q, k, v, table: attention(q, k, v, full, table),
            lambda q, k, v, table: plain(q, k, v, table[:, m.long()]), inputs, 2e-6)


def strides():
    """Heads in one row of a projection, a batch, codes in a larger matrix: read where they lie."""
    batch, tokens, heads, dim, codes = 2, 80, 4, 8, 5
    m = torch.randint(codes, (batch, tokens, tokens + 16), dtype=torch.uint8)[:, :, 3:tokens + 3]
    plans = [Plan.dense(x, codes) for x in m]
    split = lambda rows: [x.unflatten(-1, (heads, dim)).transpose(1, 2) for x in rows.chunk(3, -1)]
    inputs = tensors((batch, tokens, 3 * heads * dim), (heads, codes))
    bias = lambda table: table[:, m.long()].transpose(0, 1)
    compare("one projection, batch of 2", lambda rows, table: attention(*split(rows), plans, table),
            lambda rows, table: plain(*split(rows), bias(table)), inputs, 2e-6)
    compare("codes as a tensor", lambda rows, table: attention(*split(rows), m, table),
            lambda rows, table: plain(*split(rows), bias(table)), inputs, 2e-6)
    q, k, v = split(inputs[0][:1])
    out = attention(q, k, v, plans[0], inputs[1])
    assert out.transpose(1, 2).reshape(tokens, heads * dim).data_ptr() == out.data_ptr(), "out was copied"
    out.sum().backward()  # a gradient of strides 0
    compare("no bias", lambda *x: attention(*x), lambda *x: plain(*x, 0), tensors(*[(2, 65, 24)] * 3), 2e-6)


def errors():
    q = torch.randn(2, 5, 8)
    codes = torch.full((5, 5), 7, dtype=torch.uint8)
    for wrong in (lambda: attention(q, q, q, codes, torch.zeros(2, 3)), lambda: attention(q.double(), q, q),
                  lambda: attention(q, q[:, :4], q, codes), lambda: Plan.dense(codes.long()),
                  lambda: attention(q, q, q, Plan.dense(codes, 9), torch.zeros(2, 8))):
        try:
            wrong()
        except (ValueError, RuntimeError) as error:
            print("refused:", error)
        else:
            raise AssertionError("a wrong call was not refused")


for part in (dense, masked, near, strides, errors):
    part()
print(f"check: all is well with PyTorch {torch.__version__}")
