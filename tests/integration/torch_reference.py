#!/usr/bin/env python3
"""Ten training steps of each model by PyTorch in fp64, from the formulas of apps/model/model.h alone; autograd makes
the gradients. Writes the numbers that tests/integration compares the program with. PyTorch (1.13 or newer) and NumPy
are needed to write them again, never to build, run or test:

    python3 tests/integration/torch_reference.py tests/integration/ten_steps

A case is one file, <case>.txt, one array a line:   name rank size*rank value*product(sizes)
Integers are written as integers, fp32 values with 9 digits (exact: strtof gives the same float), losses with 17.
NaN is written nan. Lines whose name starts with # are comments.

    kind 0 graphormer, 1 gt, 2 gps; local 0 none, 1 gcn, 2 gine, 3 gatedgcn; readout 0 nodes, 1 mean, 2 sum, 3 virtual;
    loss 0 cross entropy, 1 binary, 2 absolute; the other sizes by their names in mg_model_desc, each a scalar (rank 0);
    hops D; rate, weight_decay, beta1, beta2, epsilon, clip (0: none) of the optimizer
    tokens, graphs, segments [graphs + 1], features [tokens][inputs], degrees, laplacian, random_walk
    graph_starts [tokens + 1], graph_columns [edges], edge_features [edges][edge_inputs]
    near_starts [tokens + 1], near_columns [pairs], near_codes [pairs]; far_code; mask_far: the plan's MG_ATTN_NEAR map,
        virtual pairs included; dense_codes [tokens][tokens]: the same as bytes per pair (pairs of two graphs: far_code)
    path_starts [pairs + 1], path_edges [steps]: where path_steps > 0
    rows [count] output rows that the loss counts, labels [rows of outputs] or targets [rows of outputs][outputs],
        class_weights [outputs]; absent arrays are not given
    decay.NAME: 1 where parameter NAME takes weight decay
    initial.NAME, gradient.NAME (of the first step, before clipping), final.NAME (after ten steps): each of its shape
    outputs [rows][outputs]: the first forward's;  losses [10]: mean loss before each step;  norms [10]: gradient norm

A virtual token's row of features, degrees, laplacian and random_walk holds values that must not be read (NaN, -1).
epsilon is 1e-3 here, not 1e-8: the bias of the keys has gradient 0 in exact arithmetic (softmax forgets what all keys
share), and a smaller epsilon would turn its rounding noise into steps of full length. The same script in fp32 gives
outputs and losses to 3e-7, final parameters to 2e-6 of the largest of each array.
"""
import math
import os
import sys

import numpy as np
import torch
from torch.nn.functional import layer_norm

torch.set_default_dtype(torch.float64)
torch.set_num_threads(1)
KINDS = ["graphormer", "gt", "gps"]
LOCALS = ["none", "gcn", "gine", "gatedgcn"]
READOUTS = ["nodes", "mean", "sum", "virtual"]
LOSSES = ["cross_entropy", "binary", "absolute"]
STEPS = 10
ADAMW = {"rate": 0.01, "weight_decay": 0.1, "beta1": 0.9, "beta2": 0.98, "epsilon": 1e-3}


def fp32(values):
    return np.asarray(values, np.float32)


# --- inputs: graphs, distances, paths ---


def random_graph(rng, nodes, extra):
    """A random tree, then `extra` more edges, but the last node stays alone when there are more than six."""
    connected = nodes - 1 if nodes > 6 else nodes
    edges = {(i, int(rng.integers(max(0, i - 3), i))) for i in range(1, connected)}
    while len(edges) < connected - 1 + extra:
        i, j = sorted(rng.choice(connected, 2, replace=False))
        edges.add((int(j), int(i)))
    return edges


def csr(tokens, edges):
    rows = [sorted({j for i, j in both if i == token}) for both in [edges | {(j, i) for i, j in edges}]
            for token in range(tokens)]
    starts = np.cumsum([0] + [len(row) for row in rows])
    return starts, np.array([j for row in rows for j in row], np.int64)


def hops_from(source, starts, columns, tokens):
    distance = np.full(tokens, -1)
    distance[source] = 0
    front = [source]
    while front:
        reached = []
        for i in front:
            for j in columns[starts[i]:starts[i + 1]]:
                if distance[j] < 0:
                    distance[j] = distance[i] + 1
                    reached.append(int(j))
        front = reached
    return distance


def shortest_path(distance, starts, columns, target):
    """Entries of columns from the source of `distance` to target: at each node the lowest predecessor."""
    path, node = [], target
    while distance[node] > 0:
        before = min(i for i in range(len(distance)) if distance[i] == distance[node] - 1
                     and node in columns[starts[i]:starts[i + 1]])
        path.insert(0, int(starts[before] + list(columns[starts[before]:starts[before + 1]]).index(node)))
        node = before
    return path


def make_batch(rng, case):
    """sizes: nodes of each graph. With virtual tokens each graph's last token is one."""
    virtual = case["virtual_token"]
    edges, segments, virtual_tokens = set(), [0], []
    for size in case["sizes"]:
        begin = segments[-1]
        edges |= {(begin + i, begin + j) for i, j in random_graph(rng, size, size // 3)}
        segments.append(begin + size + virtual)
        if virtual:
            virtual_tokens.append(segments[-1] - 1)
    tokens, hops = segments[-1], case["hops"]
    starts, columns = csr(tokens, edges)
    graph_of = np.repeat(np.arange(len(case["sizes"])), np.diff(segments))
    far = hops + 1
    near, paths = [], []
    dense = np.full((tokens, tokens), far)
    for i in range(tokens):
        distance = hops_from(i, starts, columns, tokens)
        for j in range(tokens):
            if graph_of[i] != graph_of[j]:
                continue
            if i != j and (i in virtual_tokens or j in virtual_tokens):
                code, path = hops + 2, []
            elif 0 <= distance[j] <= hops:
                code, path = distance[j], shortest_path(distance, starts, columns, j)
            else:
                continue
            near.append((i, j, code))
            paths.append(path)
            dense[i, j] = code
    near = np.array(near)
    batch = {
        "tokens": tokens, "graphs": len(case["sizes"]), "segments": np.array(segments),
        "graph_starts": starts, "graph_columns": columns, "degrees": np.diff(starts), "far_code": far,
        "mask_far": int(case["kind"] == "gt"), "near_starts": np.searchsorted(near[:, 0], np.arange(tokens + 1)),
        "near_columns": near[:, 1], "near_codes": near[:, 2], "dense_codes": dense,
        "features": fp32(rng.normal(size=(tokens, case["inputs"]))),
        "edge_features": fp32(rng.normal(size=(len(columns), case["edge_inputs"]))),
        "laplacian": fp32(rng.normal(size=(tokens, case["laplacian"])) * 0.5),
        "random_walk": fp32(rng.uniform(size=(tokens, case["random_walk"]))),
    }
    if case["path_steps"]:
        batch["path_starts"] = np.cumsum([0] + [len(path) for path in paths])
        batch["path_edges"] = np.array([edge for path in paths for edge in path], np.int64)
    for token in virtual_tokens:
        batch["degrees"][token] = -1
        for name in ("features", "laplacian", "random_walk"):
            batch[name][token] = np.nan
    return batch


def make_targets(rng, case, batch):
    rows = batch["tokens"] if case["readout"] == "nodes" else batch["graphs"]
    if case["readout"] == "nodes":
        batch["rows"] = np.sort(rng.choice(rows, rows * 2 // 3, replace=False))
    if case["loss"] == "cross_entropy":
        batch["labels"] = rng.integers(0, case["outputs"], rows)
        batch["labels"][int(batch["rows"][1]) if "rows" in batch else 1] = -1
        if case.get("weighted"):
            batch["class_weights"] = fp32(rng.uniform(0.5, 2, case["outputs"]))
    else:
        targets = rng.normal(size=(rows, case["outputs"]))
        batch["targets"] = fp32(targets > 0 if case["loss"] == "binary" else targets)
        batch["targets"][0, -1] = np.nan


# --- parameters ---


def parameter_shapes(case):
    """name: (shape, takes weight decay), in the order of model.h."""
    hidden, ffn, edge = case["hidden"], case["ffn"], case["edge_inputs"]
    shapes = {}
    if case["inputs"]:
        shapes["embedding.input.weight"] = ((hidden, case["inputs"]), 1)
        shapes["embedding.input.bias"] = ((hidden,), 0)
    if case["degree"]:
        shapes["embedding.degree"] = ((case["degree"], hidden), 0)
    for name in ("laplacian", "random_walk"):
        if case[name]:
            shapes["embedding.%s.weight" % name] = ((hidden, case[name]), 1)
    if case["virtual_token"]:
        shapes["embedding.virtual"] = ((hidden,), 0)
    for layer in range(case["layers"]):
        block = {"norm1.weight": ((hidden,), 0), "norm1.bias": ((hidden,), 0),
                 "attention.qkv.weight": ((3 * hidden, hidden), 1), "attention.qkv.bias": ((3 * hidden,), 0),
                 "attention.out.weight": ((hidden, hidden), 1), "attention.out.bias": ((hidden,), 0)}
        if case["codes"]:
            block["attention.table"] = ((case["heads"], case["codes"]), 0)
        if case["path_steps"]:
            block["attention.path"] = ((case["path_steps"], case["heads"], edge), 0)
        if case["local"] == "gcn":
            block.update({"local.weight": ((hidden, hidden), 1), "local.bias": ((hidden,), 0)})
        if case["local"] == "gine":
            block["local.eps"] = ((1,), 0)
            if edge:
                block["local.edge.weight"] = ((hidden, edge), 1)
            block.update({"local.up.weight": ((hidden, hidden), 1), "local.up.bias": ((hidden,), 0),
                          "local.down.weight": ((hidden, hidden), 1), "local.down.bias": ((hidden,), 0)})
        if case["local"] == "gatedgcn":
            block.update({"local.weight": ((4 * hidden, hidden), 1), "local.bias": ((4 * hidden,), 0)})
            if edge:
                block["local.edge.weight"] = ((hidden, edge), 1)
        if ffn:
            block.update({"norm2.weight": ((hidden,), 0), "norm2.bias": ((hidden,), 0),
                          "ffn.up.weight": ((ffn, hidden), 1), "ffn.up.bias": ((ffn,), 0),
                          "ffn.down.weight": ((hidden, ffn), 1), "ffn.down.bias": ((hidden,), 0)})
        shapes.update({"blocks.%d.%s" % (layer, name): shape for name, shape in block.items()})
    shapes.update({"head.norm.weight": ((hidden,), 0), "head.norm.bias": ((hidden,), 0),
                   "head.weight": ((case["outputs"], hidden), 1), "head.bias": ((case["outputs"],), 0)})
    return shapes


def initial_values(rng, shapes):
    """Nothing is left at 0 or 1, so that every term of the formulas has a part in the numbers."""
    values = {}
    for name, (shape, decay) in shapes.items():
        if decay:
            values[name] = fp32(rng.uniform(-1, 1, shape) * math.sqrt(6 / sum(shape)))
        else:
            values[name] = fp32(rng.uniform(-0.3, 0.3, shape) + name.endswith(("norm1.weight", "norm2.weight",
                                                                             "head.norm.weight")))
    return values


# --- the model, formula by formula ---


def gelu(x):
    return x * torch.sigmoid(1.5957691216 * (x + 0.044715 * x ** 3))


def embed(p, case, batch):
    tokens = batch["tokens"]
    x = torch.zeros(tokens, case["hidden"])
    if case["inputs"]:
        x = x + torch.nan_to_num(batch["features"]) @ p["embedding.input.weight"].T + p["embedding.input.bias"]
    if case["degree"]:
        x = x + p["embedding.degree"][batch["degrees"].clamp(0, case["degree"] - 1)]
    for name in ("laplacian", "random_walk"):
        if case[name]:
            x = x + torch.nan_to_num(batch[name]) @ p["embedding.%s.weight" % name].T
    if case["virtual_token"]:
        real = batch["real"][:, None]
        x = torch.where(real, x, p["embedding.virtual"][None, :].expand_as(x))
    return x


def path_values(path, case, batch):
    """[heads][tokens][tokens], 0 where there is no path."""
    values = torch.zeros(case["heads"], batch["tokens"], batch["tokens"])
    starts = batch["path_starts"]
    for pair in range(len(batch["near_columns"])):
        edges = batch["path_edges"][starts[pair]:starts[pair + 1]]
        if len(edges):
            steps = (path[:len(edges)] * batch["edge_features"][edges][:, None, :]).sum((0, 2)) / len(edges)
            where = torch.zeros(batch["tokens"], batch["tokens"])
            where[batch["near_rows"][pair], batch["near_columns"][pair]] = 1
            values = values + steps[:, None, None] * where
    return values


def attention(p, case, batch, h):
    tokens, heads = batch["tokens"], case["heads"]
    dim = case["hidden"] // heads
    qkv = (h @ p["attention.qkv.weight"].T + p["attention.qkv.bias"]).view(tokens, 3, heads, dim)
    q, k, v = qkv.unbind(1)
    scores = torch.einsum("ihd,jhd->hij", q, k) / math.sqrt(dim)
    if case["codes"]:
        scores = scores + p["attention.table"][:, batch["dense_codes"]]
    if case["path_steps"]:
        scores = scores + path_values(p["attention.path"], case, batch)
    scores = scores.masked_fill(~batch["visible"], -math.inf)
    out = torch.einsum("hij,jhd->ihd", scores.softmax(-1), v).reshape(tokens, -1)
    return out @ p["attention.out.weight"].T + p["attention.out.bias"]


def sum_to_rows(batch, values):
    return torch.zeros(batch["tokens"], values.shape[1]).index_add(0, batch["edge_rows"], values)


def gcn(p, case, batch, h):
    root = 1 / torch.sqrt(batch["degrees"].clamp(0) + 1.0)
    scale = (root[batch["edge_rows"]] * root[batch["graph_columns"]])[:, None]
    mixed = sum_to_rows(batch, scale * h[batch["graph_columns"]]) + (root ** 2)[:, None] * h
    return torch.relu(mixed @ p["local.weight"].T + p["local.bias"])


def gine(p, case, batch, h):
    messages = h[batch["graph_columns"]]
    if case["edge_inputs"]:
        messages = messages + batch["edge_features"] @ p["local.edge.weight"].T
    mixed = (1 + p["local.eps"]) * h + sum_to_rows(batch, torch.relu(messages))
    inside = torch.relu(mixed @ p["local.up.weight"].T + p["local.up.bias"])
    return inside @ p["local.down.weight"].T + p["local.down.bias"]


def gatedgcn(p, case, batch, h):
    a, b, u, v = (h @ p["local.weight"].T + p["local.bias"]).chunk(4, 1)
    rows, columns = batch["edge_rows"], batch["graph_columns"]
    gate = a[rows] + b[columns]
    if case["edge_inputs"]:
        gate = gate + batch["edge_features"] @ p["local.edge.weight"].T
    gate = torch.sigmoid(gate)
    return torch.relu(u + sum_to_rows(batch, gate * v[columns]) / (sum_to_rows(batch, gate) + 1e-6))


def block(p, case, batch, x):
    h = layer_norm(x, x.shape[1:], p["norm1.weight"], p["norm1.bias"], 1e-5)
    change = attention(p, case, batch, h)
    if case["local"] != "none":
        local = {"gcn": gcn, "gine": gine, "gatedgcn": gatedgcn}[case["local"]](p, case, batch, h)
        change = change + local * batch["real"][:, None]
    x = x + change
    if case["ffn"]:
        h = layer_norm(x, x.shape[1:], p["norm2.weight"], p["norm2.bias"], 1e-5)
        inside = gelu(h @ p["ffn.up.weight"].T + p["ffn.up.bias"])
        x = x + inside @ p["ffn.down.weight"].T + p["ffn.down.bias"]
    return x


def pool(case, batch, y):
    pooled = []
    for begin, end in zip(batch["segments"][:-1], batch["segments"][1:]):
        nodes = y[begin:end - case["virtual_token"]]
        pooled.append({"mean": nodes.mean(0), "sum": nodes.sum(0), "virtual": y[end - 1]}[case["readout"]])
    return torch.stack(pooled)


def forward(parameters, case, batch):
    x = embed(parameters, case, batch)
    for layer in range(case["layers"]):
        prefix = "blocks.%d." % layer
        x = block({name[len(prefix):]: value for name, value in parameters.items() if name.startswith(prefix)},
                  case, batch, x)
    y = layer_norm(x, x.shape[1:], parameters["head.norm.weight"], parameters["head.norm.bias"], 1e-5)
    if case["readout"] != "nodes":
        y = pool(case, batch, y)
    return y @ parameters["head.weight"].T + parameters["head.bias"]


def mean_loss(case, batch, outputs):
    rows = batch.get("rows", torch.arange(len(outputs)))
    outputs = outputs[rows]
    if case["loss"] == "cross_entropy":
        labels = batch["labels"][rows]
        known = labels >= 0
        weights = batch.get("class_weights", torch.ones(case["outputs"]))[labels.clamp(0)] * known
        terms = outputs.logsumexp(1) - outputs.gather(1, labels.clamp(0)[:, None])[:, 0]
        return (weights * terms).sum() / weights.sum()
    targets = batch["targets"][rows]
    known = ~targets.isnan()
    targets = torch.nan_to_num(targets)
    if case["loss"] == "binary":
        terms = -targets * torch.log(torch.sigmoid(outputs)) - (1 - targets) * torch.log(torch.sigmoid(-outputs))
    else:
        terms = (outputs - targets).abs()
    return (terms * known).sum() / known.sum()


# --- training ---


def as_tensors(case, batch):
    made = {name: torch.as_tensor(np.asarray(value, np.float64 if np.asarray(value).dtype.kind == "f" else np.int64))
            if isinstance(value, np.ndarray) else value for name, value in batch.items()}
    tokens = batch["tokens"]
    graph_of = torch.repeat_interleave(torch.arange(batch["graphs"]), made["segments"].diff())
    made["visible"] = graph_of[:, None] == graph_of[None, :]
    if batch["mask_far"]:
        made["visible"] = made["visible"] & (made["dense_codes"] != batch["far_code"])
    made["edge_rows"] = torch.repeat_interleave(torch.arange(tokens), made["graph_starts"].diff())
    made["near_rows"] = torch.repeat_interleave(torch.arange(tokens), made["near_starts"].diff())
    made["real"] = torch.ones(tokens, dtype=torch.bool)
    if case["virtual_token"]:
        made["real"][made["segments"][1:] - 1] = False
    return made


def train(case, batch, initial, shapes):
    batch = as_tensors(case, batch)
    parameters = {name: torch.tensor(value, dtype=torch.float64, requires_grad=True) for name, value in initial.items()}
    groups = [{"params": [parameters[name] for name, (_, decay) in shapes.items() if decay == wanted],
               "weight_decay": ADAMW["weight_decay"] * wanted} for wanted in (0, 1)]
    betas = (ADAMW["beta1"], ADAMW["beta2"])
    optimizer = torch.optim.AdamW(groups, lr=ADAMW["rate"], betas=betas, eps=ADAMW["epsilon"])
    results = {"losses": [], "norms": []}
    for step in range(STEPS):
        optimizer.zero_grad()
        outputs = forward(parameters, case, batch)
        loss = mean_loss(case, batch, outputs)
        loss.backward()
        norm = math.sqrt(sum(float((value.grad ** 2).sum()) for value in parameters.values()))
        if step == 0:
            results["outputs"] = fp32(outputs.detach())
            results.update({"gradient." + name: fp32(value.grad) for name, value in parameters.items()})
        if case["clip"]:
            for value in parameters.values():
                value.grad *= min(1.0, case["clip"] / norm)
        optimizer.step()
        results["losses"].append(loss.item())
        results["norms"].append(norm)
    results["losses"], results["norms"] = np.array(results["losses"]), np.array(results["norms"])
    results.update({"final." + name: fp32(value.detach()) for name, value in parameters.items()})
    return results


# --- files ---


def line(name, value):
    value = np.asarray(value)
    form = {"i": "%d", "f": "%.9g" if value.dtype == np.float32 else "%.17g"}[value.dtype.kind]
    return " ".join([name, str(value.ndim)] + ["%d" % size for size in value.shape] + [form % v for v in value.ravel()])


def write(path, case, batch, initial, shapes, results):
    lines = ["# %s: see torch_reference.py" % os.path.basename(path)]
    for name, words in (("kind", KINDS), ("local", LOCALS), ("readout", READOUTS), ("loss", LOSSES)):
        lines.append(line(name, words.index(case[name])))
    for name in ("inputs", "edge_inputs", "outputs", "layers", "hidden", "heads", "ffn", "codes", "path_steps",
                 "degree", "laplacian", "random_walk", "virtual_token", "hops"):
        lines.append(line(name, case[name]))
    lines += [line(name, value) for name, value in ADAMW.items()] + [line("clip", float(case["clip"]))]
    lines += [line(name, value) for name, value in batch.items() if np.size(value)]
    lines += [line("decay." + name, decay) for name, (_, decay) in shapes.items()]
    lines += [line("initial." + name, value) for name, value in initial.items()]
    lines += [line(name, value) for name, value in results.items()]
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


BASE = {"inputs": 5, "edge_inputs": 0, "outputs": 3, "layers": 2, "hidden": 8, "heads": 2, "ffn": 12, "codes": 0,
        "path_steps": 0, "degree": 0, "laplacian": 0, "random_walk": 0, "virtual_token": 0, "hops": 2, "clip": 0,
        "local": "none", "readout": "nodes", "loss": "cross_entropy"}
CASES = {
    # packed graphs, virtual tokens, distance table, edge paths, degrees beyond the table; several labels, one missing
    "graphormer": dict(BASE, kind="graphormer", sizes=[6, 9, 1, 7], edge_inputs=2, codes=5, path_steps=2, degree=4,
                       virtual_token=1, readout="virtual", loss="binary", clip=0.5),
    # near pairs alone, one node with no neighbour; class weights, a missing label, rows that do not count
    "gt": dict(BASE, kind="gt", sizes=[20], hops=1, codes=3, laplacian=2, random_walk=3, weighted=True),
    # six graphs in one batch, no bias at all, the sum of nodes
    "gps-gcn": dict(BASE, kind="gps", sizes=[8, 5, 9, 4, 7, 6], local="gcn", degree=6, heads=1, readout="sum",
                    clip=1.0),
    # virtual tokens, which take no part in the local sums; the mean of nodes; regression, one target missing
    "gps-gine": dict(BASE, kind="gps", sizes=[7, 8, 4], local="gine", edge_inputs=3, codes=5, virtual_token=1,
                     readout="mean", loss="absolute"),
    # no feed-forward part
    "gps-gatedgcn": dict(BASE, kind="gps", sizes=[18], local="gatedgcn", edge_inputs=2, hops=1, codes=3, ffn=0,
                         random_walk=2),
}


def main():
    folder = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), "ten_steps")
    os.makedirs(folder, exist_ok=True)
    for number, (name, case) in enumerate(CASES.items()):
        rng = np.random.default_rng(number)
        batch = make_batch(rng, case)
        make_targets(rng, case, batch)
        shapes = parameter_shapes(case)
        initial = initial_values(rng, shapes)
        results = train(case, batch, initial, shapes)
        write(os.path.join(folder, name + ".txt"), case, batch, initial, shapes, results)
        print("%-13s %5d parameters, loss %.6f to %.6f" % (name, sum(v.size for v in initial.values()),
                                                          results["losses"][0], results["losses"][-1]))


if __name__ == "__main__":
    main()
