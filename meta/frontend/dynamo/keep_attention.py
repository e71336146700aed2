"""`keep_attention`: the calls of attention in a graph of Dynamo's stay whole: with a mask, and with
heads of key and value that serve several of query.

Which kernel PyTorch has for a mask depends on how the mask lies in memory: without one, attention
is taken apart into products, whose scores are kept for the gradient. And models repeat the heads of
key and value, by a copy of each, before they call it: grouped-query attention, Ainslie et al.,
arXiv:2305.13245. Kernels read them where they are.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.functional import scaled_dot_product_attention

from meta import op
from meta.frontend.aten import aten
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.definitions import define
from meta.op.attention import score_scale

ATTENTION_ON = ("cuda",)
"""Kinds of device on which PyTorch takes attention apart whose mask its own kernels do not have."""
_ARGUMENTS = (
    *("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa"),
)


def keep_attention(graph: fx.GraphModule) -> None:
    """Let the calls of attention in a graph of Dynamo's, and in graphs within, stay whole."""
    for part in graph.modules():
        if isinstance(part, fx.GraphModule):
            for node in list(part.graph.nodes):
                if node.target is scaled_dot_product_attention:
                    node.target = attention
                    _without_copies(node)
            part.recompile()


def attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """PyTorch's attention, to be traced, with the arguments of that.

    With a mask it is the operator of one of PyTorch's kernels in any case, and the mask as it is
    given; with heads that are shared, one of our own.
    """
    if enable_gqa and not dropout_p and not (is_causal and attn_mask is not None):
        given = _as_autocast_casts(query, key, value, attn_mask)
        if _is_grouped(*given):
            result: Tensor = grouped_attention(*given, is_causal, scale)[0]
            return result
    plain = not (dropout_p or is_causal or enable_gqa) and isinstance(query.shape[-2], int)
    if plain and attn_mask is not None and _is_whole(query, key, value, attn_mask):
        whole = torch.ops.aten._scaled_dot_product_efficient_attention
        result = whole(query, key, value, attn_mask, True, 0.0, False, scale=scale)[0]
        return result
    return scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _is_whole(query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> bool:
    """Whether there is an operator for attention of these."""
    operands = (query, key, value)
    return (
        query.device.type in ATTENTION_ON
        and all(t.ndim == 4 and t.dtype == query.dtype for t in operands)
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and mask.dtype in (torch.bool, query.dtype)
        and not mask.requires_grad
        and key.shape[2] > 0
    )


def _as_autocast_casts(*tensors: Tensor | None) -> list[Any]:
    """Return tensors of the dtype that autocast gives attention, if it is on."""
    (query, *_) = tensors
    assert query is not None
    kind = query.device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [
        t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t
        for t in tensors
    ]


def _is_grouped(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether our operator has heads of key and value that serve several of query each."""
    if not all(t.ndim == 4 and t.dtype == query.dtype for t in (key, value, query)):
        return False
    heads, shared, others = (t.shape[1] for t in (query, key, value))
    if not all(isinstance(n, int) for n in (heads, shared, others)):
        return False
    return (
        shared == others
        and 0 < shared < heads
        and heads % shared == 0
        and query.shape[0] == key.shape[0] == value.shape[0]
        and query.shape[3] == key.shape[3]
        and key.shape[2] == value.shape[2]
        and query.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)
        and (mask is None or mask.dtype in (torch.bool, query.dtype))
        and (mask is None or (mask.ndim <= 4 and not mask.requires_grad))
        and all(t.numel() > 0 for t in (query, key, value))
    )


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, is_causal: bool, scale: float
) -> tuple[Tensor, Tensor]:
    """Return the weights of values, and the logsumexp of scores, in at least float32."""
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = (query.to(wide) @ _repeated(query, key).mT) * scale
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = (
            scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        )
    logsumexp = scores.logsumexp(-1)
    nothing = logsumexp[..., None] == -torch.inf  # where a query sees no key
    return (scores - logsumexp[..., None]).exp().masked_fill(nothing, 0), logsumexp


def _repeated(query: Tensor, x: Tensor) -> Tensor:
    """Return key or value, in at least float32, with the heads of query."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    return wide.repeat_interleave(query.shape[1] // x.shape[1], 1)


def _like(query: Tensor, value: Tensor) -> Tensor:
    """Return memory for a result, which lies as query does."""
    if query.shape[3] == value.shape[3]:
        return torch.empty_like(query)
    return query.new_empty((*query.shape[:3], value.shape[3]))


def _grouped_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """Attention of query [b, h, s, d] to key and value [b, h / n, t, d], and the logsumexp of its
    scores, [b, h, s].
    """
    weights, logsumexp = _weights(query, key, attn_mask, is_causal, _scale(query, scale))
    result = _like(query, value).copy_(weights @ _repeated(query, value))
    return result, logsumexp


def _scale(query: Tensor, scale: float | None) -> float:
    return score_scale(scale, query.shape[3])


def _fake_forward(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, is_causal: bool, scale: Any
) -> tuple[Tensor, Tensor]:
    dtype = torch.promote_types(query.dtype, torch.float32)
    return _like(query, value), query.new_empty(query.shape[:3], dtype=dtype)


def _grouped_attention_dx(
    dy: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None,
    y: Tensor,
    logsumexp: Tensor,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients by query, key and value."""
    factor = _scale(query, scale)
    weights, _ = _weights(query, key, attn_mask, is_causal, factor)
    slope = dy.to(weights.dtype)
    by_weights = slope @ _repeated(query, value).mT
    by_scores = weights * (by_weights - (slope * y).sum(-1, keepdim=True)) * factor
    dq = by_scores @ _repeated(query, key)
    groups = (key.shape[1], query.shape[1] // key.shape[1])
    found = by_scores.mT @ query.to(weights.dtype), weights.mT @ slope
    dk, dv = (t.reshape(t.shape[0], *groups, *t.shape[2:]).sum(2) for t in found)
    results = zip((query, key, value), (dq, dk, dv), strict=True)
    dq, dk, dv = (torch.empty_like(t).copy_(g) for t, g in results)
    return dq, dk, dv


def _fake_backward(
    dy: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    query, key, value, mask, ctx.is_causal, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(query, key, value, mask, *output)


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    given = (dy, *ctx.saved_tensors, ctx.is_causal, ctx.scale)
    return *grouped_attention_dx(*given), None, None, None


grouped_attention = define(
    "grouped_attention(Tensor query, Tensor key, Tensor value, Tensor? attn_mask, bool is_causal,"
    " float? scale) -> (Tensor, Tensor)",
    _grouped_attention,
    _fake_forward,
    (_backward, _save),
)
grouped_attention_dx = define(
    "grouped_attention_dx(Tensor dy, Tensor query, Tensor key, Tensor value, Tensor? attn_mask,"
    " Tensor y, Tensor logsumexp, bool is_causal, float? scale) -> (Tensor, Tensor, Tensor)",
    _grouped_attention_dx,
    _fake_backward,
)


@aten("meta.grouped_attention", op.fused_attention)
def _convert(
    query: Any, key: Any, value: Any, mask: Any, *, is_causal: bool, scale: Any, call: Any
) -> Any:
    y, logsumexp = op.fused_attention(query, key, value, mask, is_causal, scale)
    return y, cast(logsumexp, "float64" if query.dtype == "float64" else "float32")


@aten("meta.grouped_attention_dx", op.fused_attention_dx)
def _convert_dx(
    dy: Any, query: Any, key: Any, value: Any, mask: Any, y: Any, logsumexp: Any,
    *, is_causal: bool, scale: Any,
) -> Any:  # fmt: skip
    return op.fused_attention_dx(query, key, value, mask, y, logsumexp, dy, is_causal, scale)


def _without_copies(call: fx.Node) -> None:
    """Let a call read the heads of key and value that were repeated before it, by
    ``x[:, :, None].expand(b, h, n, s, d).reshape(b, h * n, s, d)`` or ``repeat_interleave``.
    """
    given = dict(zip(_ARGUMENTS, call.args, strict=False)) | dict(call.kwargs)
    if given.get("enable_gqa", False) or not {"query", "key", "value"} <= given.keys():
        return
    found = [_repeated_heads(given[name]) for name in ("key", "value")]
    if found[0] is None or found[1] is None or found[0][1] != found[1][1]:
        return
    copies: list[Any] = [given["key"], given["value"]]
    if not any(may_write(node) for copy in copies for node in _between(copy, call)):
        given |= {"key": found[0][0], "value": found[1][0], "enable_gqa": True}
        call.args = ()
        call.kwargs = given
        for copy in copies:
            _erase_unread(copy)


def _example(node: object) -> Tensor | None:
    """Return what Dynamo says of a tensor of four or five axes."""
    said = node.meta.get("example_value") if isinstance(node, fx.Node) else None
    return said if isinstance(said, Tensor) and said.ndim in (4, 5) else None


def _repeated_heads(node: Any) -> tuple[fx.Node, int] | None:
    """Return of what a tensor repeats each head, and how often."""
    whole = _example(node)
    if whole is None or whole.ndim != 4 or node.op not in ("call_method", "call_function"):
        return None
    if node.target in ("repeat_interleave", torch.repeat_interleave):
        source = node.args[0] if node.args else None
        given = dict(zip(("repeats", "dim"), node.args[1:], strict=False)) | dict(node.kwargs)
        before, times = _example(source), given.get("repeats")
        if given.pop("dim", None) not in (1, -3) or not isinstance(times, int) or len(given) > 1:
            return None
    else:
        source, times = _expanded(node)
        before = _example(source)
    if not isinstance(source, fx.Node) or before is None or before.ndim != 4:
        return None
    if not isinstance(times, int) or times < 2:
        return None
    heads = before.shape[1]
    same = all(_same(before.shape[a], whole.shape[a]) for a in (0, 2, 3))
    fits = isinstance(heads, int) and whole.shape[1] == heads * times
    return (source, times) if same and fits else None


def _expanded(node: fx.Node) -> tuple[Any, Any]:
    """Return x and n of ``x[:, :, None].expand(b, h, n, s, d).reshape(...)``."""
    nothing = None, None
    expanded = node.args[0] if node.target in ("reshape", "view", torch.reshape) else None
    full = _example(expanded)
    if not isinstance(expanded, fx.Node) or full is None or full.ndim != 5:
        return nothing
    inserted = expanded.args[0] if expanded.target in ("expand", torch.Tensor.expand) else None
    single = _example(inserted)
    if not isinstance(inserted, fx.Node) or single is None or single.ndim != 5:
        return nothing
    source, *place = inserted.args
    everything = slice(None, None, None)
    index = (everything, everything, None, everything, everything)
    by_index = inserted.target is operator.getitem and place in ([index], [index[:3]])
    by_name = inserted.target in ("unsqueeze", torch.unsqueeze) and place in ([2], [-3])
    kept = all(_same(full.shape[a], single.shape[a]) for a in (0, 1, 3, 4))
    if not (by_index or by_name) or not kept or single.shape[2] != 1:
        return nothing
    return source, full.shape[2]


def _same(one: Any, other: Any) -> bool:
    """Whether two extents are the same number, or written the same."""
    return (
        one == other if isinstance(one, int) and isinstance(other, int) else str(one) == str(other)
    )


def _between(first: fx.Node, last: fx.Node) -> list[fx.Node]:
    """Return the nodes after one and before another."""
    found = []
    node = first.next
    while node is not last:
        found.append(node)
        node = node.next
    return found


def may_write(node: fx.Node) -> bool:
    """Whether a node may write to a tensor that there was before it."""
    if node.op == "call_method":
        return str(node.target).endswith("_") or "out" in node.kwargs
    if node.op != "call_function":
        return node.op == "call_module"
    name = getattr(node.target, "__name__", "")
    if getattr(node.target, "__module__", "") == "_operator":
        plain = {name[1:], f"{name[1:]}_"} & set(dir(operator))  # `and_` of `iand`
        return name == "setitem" or (name[:1] == "i" and bool(plain))
    code = getattr(node.target, "__code__", None)  # of a function of Python's, as relu(x, True)
    names = code.co_varnames[: code.co_argcount] if code is not None else ()
    if any(n == "inplace" and a is not False for n, a in zip(names, node.args, strict=False)):
        return True
    known = not isinstance(node.target, torch._ops.HigherOrderOperator)
    return not known or name.endswith("_") or "out" in node.kwargs or "inplace" in node.kwargs


def _erase_unread(node: fx.Node) -> None:
    """Erase a call that nobody reads, and what only it read."""
    called = node.op in ("call_method", "call_function")
    if called and not node.users:
        before = node.all_input_nodes
        node.graph.erase_node(node)
        for other in before:
            _erase_unread(other)
