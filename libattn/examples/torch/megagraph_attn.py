"""Exact softmax attention with a bias by code of each pair, as a function of PyTorch with gradients, on the CPU.

    from megagraph_attn import Plan, attention

    plan = Plan.dense(codes)                  # uint8 [queries, keys]; once for all heads, layers and steps
    out = attention(q, k, v, plan, table)     # q, k, v [..., heads, tokens, dim] as scaled_dot_product_attention has
    out.sum().backward()                      # them; table [heads, codes], learned

The same as softmax(scale * q @ k.transpose(-1, -2) + table[:, codes]) @ v, without a matrix of heads x queries x keys,
forward or backward. fp32 and bf16; tensors of any strides whose last is 1 are read where they lie. Nothing to build: the
shared library is called by ctypes. It is the one that MEGAGRAPH_ATTN_LIBRARY names, or libmegagraph-attn.so.0 where the
system looks for libraries.

    python3 megagraph_attn.py --layout | cc -fsyntax-only -x c -

has the C compiler compare every structure below with the installed header (-I its folder, where
that is not the system's).
"""
import ctypes as c
import os
import sys

# --- megagraph/attn.h, field by field ---


class _Map(c.Structure):
    _name = "mg_attn_map"
    _fields_ = [("kind", c.c_int), ("queries", c.c_int64), ("keys", c.c_int64), ("codes", c.c_int32),
                ("far_code", c.c_int32), ("mask_far", c.c_int), ("dense", c.c_void_p), ("dense_stride", c.c_int64),
                ("near_starts", c.c_void_p), ("near_columns", c.c_void_p), ("near_codes", c.c_void_p),
                ("tiles", c.c_void_p), ("stream", c.c_void_p), ("stream_context", c.c_void_p),
                ("stream_rows", c.c_int64), ("segments", c.c_int64), ("query_segments", c.c_void_p),
                ("key_segments", c.c_void_p), ("query_begin", c.c_int64), ("query_end", c.c_int64),
                ("key_begin", c.c_int64), ("key_end", c.c_int64)]


class _Tensor(c.Structure):
    _name = "mg_attn_tensor"
    _fields_ = [("data", c.c_void_p), ("token_stride", c.c_int64), ("head_stride", c.c_int64)]


class _Dropout(c.Structure):
    _name = "mg_attn_dropout"
    _fields_ = [("probability", c.c_float), ("seed", c.c_uint64), ("step", c.c_uint32), ("layer", c.c_uint32),
                ("head_begin", c.c_int32), ("query_ids", c.c_void_p), ("key_ids", c.c_void_p)]


class _Call(c.Structure):
    _name = "mg_attn_call"
    _fields_ = [("heads", c.c_int32), ("dim", c.c_int32), ("value_dim", c.c_int32), ("type", c.c_int),
                ("scale", c.c_float), ("threads", c.c_int), ("q", _Tensor), ("k", _Tensor), ("v", _Tensor),
                ("table", c.c_void_p), ("values", c.c_void_p), ("key_bias", c.c_void_p), ("dropout", _Dropout),
                ("out", _Tensor), ("out_fp32", c.c_int), ("lse", c.c_void_p), ("dout", _Tensor), ("dlse", c.c_void_p),
                ("dq", _Tensor), ("dk", _Tensor), ("dv", _Tensor), ("gradients_fp32", c.c_int), ("dtable", c.c_void_p),
                ("dvalues", c.c_void_p), ("dkey_bias", c.c_void_p), ("workspace", c.c_void_p)]


_CONSTANTS = {"MG_ATTN_NONE": 0, "MG_ATTN_DENSE": 1, "MG_ATTN_NEAR": 2, "MG_ATTN_FP32": 0, "MG_ATTN_BF16": 1}


def layout():
    """A C file that compiles only where the header agrees with the structures above."""
    lines = ["#include <megagraph/attn.h>", "#include <stddef.h>"]
    for struct in (_Map, _Tensor, _Dropout, _Call):
        name = struct._name
        for field, _ in struct._fields_:
            at = getattr(struct, field)
            lines.append(f"_Static_assert(offsetof({name}, {field}) == {at.offset} && "
                         f"sizeof((({name} *)0)->{field}) == {at.size}, \"{name}.{field}\");")
        lines.append(f"_Static_assert(sizeof({name}) == {c.sizeof(struct)}, \"size of {name}\");")
    lines += [f"_Static_assert({name} == {value}, \"{name}\");" for name, value in _CONSTANTS.items()]
    return "\n".join(lines)


if __name__ == "__main__" and sys.argv[1:] == ["--layout"]:
    print(layout())
    sys.exit()

import torch
from torch.autograd.function import once_differentiable

_library = c.CDLL(os.environ.get("MEGAGRAPH_ATTN_LIBRARY", "libmegagraph-attn.so.0"))  # calls let go of Python's lock
_library.mg_attn_last_error.restype = c.c_char_p
_library.mg_attn_plan_create.argtypes = [c.POINTER(c.c_void_p), c.POINTER(_Map)]
_library.mg_attn_plan_destroy.argtypes = [c.c_void_p]
_library.mg_attn_plan_destroy.restype = None
_library.mg_attn_workspace_bytes.argtypes = [c.c_void_p, c.POINTER(_Call), c.c_int]
_library.mg_attn_workspace_bytes.restype = c.c_int64
_library.mg_attn_forward.argtypes = [c.c_void_p, c.POINTER(_Call)]
_library.mg_attn_backward.argtypes = [c.c_void_p, c.POINTER(_Call)]

_TYPES = {torch.float32: _CONSTANTS["MG_ATTN_FP32"], torch.bfloat16: _CONSTANTS["MG_ATTN_BF16"]}


def _check(status):
    if status < 0:
        raise RuntimeError(_library.mg_attn_last_error().decode())
    return status


def _need(condition, text):
    if not condition:
        raise ValueError(text)


def _array(tensor, dtype, name):
    _need(tensor.dtype == dtype and tensor.device.type == "cpu" and tensor.dim() == 1 and tensor.is_contiguous(),
          f"{name} must be a contiguous CPU vector of {dtype}, not {tensor.dtype} {tuple(tensor.shape)}")
    return tensor.data_ptr()


# --- plans ---


class Plan:
    """Which pairs are seen, and with which code. It keeps the tensors it reads: do not write to them."""

    def __init__(self, kind, queries, keys, codes, columns, keep=None, **fields):
        self.queries, self.keys, self.handle = queries, keys, c.c_void_p()
        self.codes, self.columns, self._keep = codes, columns, keep  # codes of the map; of them, those a table has
        map_ = _Map(kind=_CONSTANTS[kind], queries=queries, keys=keys, codes=codes, **fields)
        _check(_library.mg_attn_plan_create(c.byref(self.handle), c.byref(map_)))

    def __del__(self):
        if getattr(self, "handle", None) and _library:
            _library.mg_attn_plan_destroy(self.handle)

    @staticmethod
    def dense(codes, count=None, mask=None):
        """codes uint8 [queries, keys], below `count` (one more than the largest); pairs of code `mask` are not seen."""
        _need(codes.dtype == torch.uint8 and codes.device.type == "cpu" and codes.dim() == 2,
              f"codes must be a CPU matrix of uint8, not {codes.dtype} {tuple(codes.shape)}")
        codes = codes if codes.stride(1) == 1 and codes.stride(0) >= codes.shape[1] else codes.contiguous()
        count = int(codes.max()) + 1 if count is None else count
        hidden = {} if mask is None else {"far_code": mask, "mask_far": 1}
        return Plan("MG_ATTN_DENSE", codes.shape[0], codes.shape[1], count, count, codes, dense=codes.data_ptr(),
                    dense_stride=codes.stride(0), **hidden)

    @staticmethod
    def near(starts, columns, codes=None, keys=None, count=1, far=None):
        """Query i sees keys columns[starts[i]:starts[i + 1]] (ascending), with these codes (None: all 0); all other
        pairs have the code `far`, or are not seen where that is None. starts int64, columns int32, codes uint8."""
        queries = starts.numel() - 1
        hide = far is None  # by a code that no listed pair has
        return Plan("MG_ATTN_NEAR", queries, queries if keys is None else keys, count + hide, count,
                    (starts, columns, codes), far_code=count if hide else far, mask_far=hide,
                    near_starts=_array(starts, torch.int64, "starts"),
                    near_columns=_array(columns, torch.int32, "columns"),
                    near_codes=None if codes is None else _array(codes, torch.uint8, "codes"))


# --- calls ---


def _rows(tensor):
    """[heads, tokens, dim] as it lies in memory."""
    return _Tensor(tensor.data_ptr(), tensor.stride(1), tensor.stride(0))


def _run(function, plan, call, backward):
    call.threads = torch.get_num_threads()
    size = _check(_library.mg_attn_workspace_bytes(plan.handle, c.byref(call), backward))
    workspace = torch.empty(size + 64, dtype=torch.uint8)
    call.workspace = -(-workspace.data_ptr() // 64) * 64
    _check(function(plan.handle, c.byref(call)))


def _dim_last(tensor):
    return tensor if tensor.shape[-1] == 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def _new(like, dim):
    """[heads, tokens, dim] stored as [tokens, heads, dim], so that heads join into rows without a copy."""
    return like.new_empty(like.shape[1], like.shape[0], dim).transpose(0, 1)


def _call(q, k, v, table, out, lse, scale):
    return _Call(heads=q.shape[0], dim=q.shape[2], value_dim=v.shape[2], type=_TYPES[q.dtype], scale=scale, q=_rows(q),
                 k=_rows(k), v=_rows(v), table=None if table is None else table.data_ptr(), out=_rows(out),
                 lse=lse.data_ptr())


class Attention(torch.autograd.Function):
    """Of one graph: q, k, v [heads, tokens, dim]."""

    @staticmethod
    def forward(ctx, q, k, v, table, plan, scale):
        q, k, v = _dim_last(q), _dim_last(k), _dim_last(v)
        wide = table
        if table is not None:
            _need(tuple(table.shape) == (q.shape[0], plan.columns) and table.dtype == torch.float32,
                  f"table is {tuple(table.shape)} {table.dtype}: ({q.shape[0]}, {plan.columns}) float32 is needed")
            wide = torch.nn.functional.pad(table, (0, plan.codes - plan.columns)).contiguous()
        out, lse = _new(q, v.shape[2]), torch.empty(q.shape[0], q.shape[1], dtype=torch.float32)
        _run(_library.mg_attn_forward, plan, _call(q, k, v, wide, out, lse, scale), 0)
        ctx.save_for_backward(q, k, v, wide, out, lse)
        ctx.plan, ctx.scale = plan, scale
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, dout):
        q, k, v, wide, out, lse = ctx.saved_tensors
        call = _call(q, k, v, wide, out, lse, ctx.scale)
        dout = _dim_last(dout)  # a sum's gradient is one number with strides of 0
        call.dout = _rows(dout)
        dq, dk, dv = (_new(t, t.shape[2]) if need else None for t, need in zip((q, k, v), ctx.needs_input_grad))
        for name, gradient in (("dq", dq), ("dk", dk), ("dv", dv)):
            if gradient is not None:
                setattr(call, name, _rows(gradient))
        dtable = torch.empty_like(wide) if ctx.needs_input_grad[3] else None
        if dtable is not None:
            call.dtable = dtable.data_ptr()
        _run(_library.mg_attn_backward, ctx.plan, call, 1)
        return dq, dk, dv, None if dtable is None else dtable[:, :ctx.plan.columns], None, None


def attention(q, k, v, codes=None, table=None, scale=None):
    """q, k, v [heads, tokens, dim], or [batch, heads, tokens, dim]. codes: a Plan, a list of one for each of the batch,
    or uint8 codes [queries, keys] or [batch, queries, keys], for which a plan is made in each call; None: no bias.
    table [heads, codes]. scale: 1 / sqrt(dim)."""
    for tensor in (q, k, v):
        _need(tensor.dtype in _TYPES and tensor.dtype == q.dtype and tensor.device.type == "cpu" and
              tensor.dim() == q.dim() and tensor.dim() in (3, 4) and tensor.shape[:-2] == q.shape[:-2],
              f"q, k, v must be CPU tensors [batch, heads, tokens, dim] of one type, fp32 or bf16, not {tensor.dtype} "
              f"{tuple(tensor.shape)} on {tensor.device.type}")
    _need(q.shape[-1] == k.shape[-1] and k.shape[-2] == v.shape[-2],
          f"q {tuple(q.shape)}, k {tuple(k.shape)} and v {tuple(v.shape)} do not fit")
    _need(codes is not None or table is None, "a table needs codes")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    batch = q.dim() == 4
    if codes is None:
        codes = Plan("MG_ATTN_NONE", q.shape[-2], k.shape[-2], 1, 1)
    if isinstance(codes, torch.Tensor):
        count = None if table is None else table.shape[1]
        codes = [Plan.dense(m, count) for m in codes] if codes.dim() == 3 else Plan.dense(codes, count)
    plans = codes if isinstance(codes, (list, tuple)) else [codes] * (q.shape[0] if batch else 1)
    _need(len(plans) == (q.shape[0] if batch else 1), f"there are {len(plans)} plans for a batch of {q.shape[:-3]}")
    for plan in plans:
        _need((plan.queries, plan.keys) == (q.shape[-2], k.shape[-2]),
              f"the plan is {plan.queries} queries x {plan.keys} keys; q is {tuple(q.shape)}, k {tuple(k.shape)}")
    if not batch:
        return Attention.apply(q, k, v, table, plans[0], scale)
    outs = [Attention.apply(*tensors, table, plan, scale) for *tensors, plan in zip(q, k, v, plans)]
    return outs[0].unsqueeze(0) if len(outs) == 1 else torch.stack(outs)
