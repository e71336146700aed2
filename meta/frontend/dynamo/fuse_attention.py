"""Attention in graphs of Dynamo's: PyTorch's calls stay whole, and attention in half precision that
a model writes out becomes one operator, before AOTAutograd takes them apart.

PyTorch has a kernel for a mask by how that lies in memory: without one, attention becomes products,
whose scores are kept for the gradient. Heads of key and value that a model repeats before the call
are read where they are, without the copies. Attention that a model writes out writes its scores
several times; without a gradient, the pass `fuse_attention` finds it in programs.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, fx
from torch.nn.functional import scaled_dot_product_attention

from meta import op
from meta.dialect.core.ir_calls import op_call, tensor_of
from meta.frontend.dynamo.attention_operators import fused_attention
from meta.frontend.dynamo.composites import TORCH_CALLS
from meta.frontend.dynamo.fx_nodes import erase, fake_value
from meta.frontend.dynamo.graph_program import GraphProgram, TorchCalls, target_name
from meta.ir import Binding
from meta.op.attention import HEADS_FIRST
from meta.op.core.tracing import Trace
from meta.passes.alias_analysis import AliasSets
from meta.passes.attention import HALVES, attentions, has_gradients
from meta.passes.attention.axes import Refused
from meta.passes.attention.fused_call import AttentionMatch
from meta.passes.pattern import Match, match, operator, pattern, wildcard
from meta.passes.simplify.shapes import PERMUTATIONS, order_of

ATTENTION_ON = ("cuda",)
"""Kinds of device on which PyTorch takes attention apart whose mask its own kernels do not have,
and on which there are kernels for attention and all its gradients.
"""
_HALVES = (torch.float16, torch.bfloat16)
_REPEATS = {"reshape", "view", "repeat_interleave"}


def fuse_attention(graph: fx.GraphModule) -> None:
    """Write calls for attention in a graph of Dynamo's, and in graphs within."""
    for part in graph.modules():
        if isinstance(part, fx.GraphModule):
            nodes = list(part.graph.nodes)
            calls = [n for n in nodes if n.target is scaled_dot_product_attention]
            for call in calls:
                call.target = attention
            repeated = any(target_name(s) in _REPEATS for c in calls for s in c.all_input_nodes)
            softmax = torch.is_grad_enabled() and any(target_name(n) == "softmax" for n in nodes)
            if repeated or softmax:
                program = GraphProgram(part)
                _read_shared_heads(program, calls)
                if softmax:
                    _fuse_written(program)
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
    given; with heads that are shared, a mask that is trained, or dropout, one of our own.
    """
    given = _as_autocast_casts(query, key, value, attn_mask)
    served = isinstance(query.shape[-2], int) and _has_operator(*given)
    shares = enable_gqa or (key.ndim == 4 and key.shape[1] == 1)  # which is broadcast
    grouped = shares and _is_grouped(*given)
    plain = not (dropout_p or is_causal or enable_gqa)
    options: tuple[Any, ...] = ()
    if 0 < dropout_p < 1:
        if _has_dropout(*given) and (grouped or served):
            drawn = torch.randint(0, torch.iinfo(torch.int64).max, (1,), device=query.device)
            options = is_causal, scale, False, None, drawn, dropout_p
    elif grouped and not dropout_p and not (is_causal and attn_mask is not None):
        options = is_causal, scale, False
    elif served and plain and attn_mask is not None:
        if not attn_mask.requires_grad:
            whole = torch.ops.aten._scaled_dot_product_efficient_attention
            result: Tensor = whole(*given, True, 0.0, False, scale=scale)[0]
            return result
        options = False, scale, False
    if options:
        result = fused_attention(*given, *options)[0]
        return result
    return scaled_dot_product_attention(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


def _has_dropout(query: Tensor, _key: Tensor, _value: Tensor, mask: Tensor | None) -> bool:
    """Whether dropout of probabilities has a kernel of our own: PyTorch's draw their numbers where
    no CUDA graph can be.
    """
    served = query.device.type in ATTENTION_ON and query.dtype in _HALVES
    trains = mask is not None and mask.requires_grad
    return served and isinstance(query.shape[-2], int) and not trains


def _has_operator(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> bool:
    """Whether there is an operator for attention of these, and for its gradient by a mask that is
    trained.
    """
    return (
        query.device.type in ATTENTION_ON
        and all(t.ndim == 4 and t.dtype == query.dtype for t in (key, value, query))
        and query.shape[:2] == key.shape[:2] == value.shape[:2]
        and query.dtype in (*_HALVES, torch.float32)
        and key.shape[2] > 0
        and (mask is None or mask.dtype in (torch.bool, query.dtype))
        and (mask is None or query.dtype in _HALVES or not mask.requires_grad)
    )


def _as_autocast_casts(*tensors: Tensor | None) -> list[Any]:
    """Return tensors of the dtype that autocast gives attention, if it is on."""
    (query, *_) = tensors
    assert query is not None
    kind = query.device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype, cast = torch.get_autocast_dtype(kind), (*_HALVES, torch.float32)
    return [t.to(dtype) if t is not None and t.dtype in cast else t for t in tensors]


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
        and query.dtype in (*_HALVES, torch.float32, torch.float64)
        and (mask is None or mask.dtype in (torch.bool, query.dtype))
        and (mask is None or (mask.ndim <= 4 and not mask.requires_grad))
        and all(t.numel() > 0 for t in (query, key, value))
    )


def _has_repeated_heads(match: Match, x: Any) -> str | None:
    """Return why a result is not x [b, h, s, d] with each head several times, or None."""
    after = tensor_of(match.root.var)
    if x.ndim != 4 or after.ndim != 4:
        return "it has no heads"
    own, shape = x.shape, after.shape
    if not isinstance(own[1], int) or not isinstance(shape[1], int) or shape[1] % own[1]:
        return "the number of heads is known at run time only"
    times = shape[1] // own[1]
    if times < 2 or shape != (own[0], shape[1], *own[2:]):
        return "no head is there several times"
    if match.captures["axis"] is not None:
        repeated = match.captures["times"] == times and match.captures["axis"] in (1, -3)
        return None if repeated else "another axis is repeated"
    wide = [tensor_of(m.var).shape for m in match.members if tensor_of(m.var).ndim == 5]
    single = (*own[:2], 1, *own[2:]), (*own[:2], times, *own[2:])
    return None if tuple(wide) == single else "heads are not repeated one by one"


@pattern(check=_has_repeated_heads)
def _repeated_heads(x: Any, times: Any = wildcard(), axis: Any = wildcard()) -> Any:
    inserted = operator(op.reshape, op.expand_dims)(x, ...)
    expanded = op.broadcast_to(inserted, wildcard())
    return op.reshape(expanded, wildcard()) | op.repeat(x, times, axis)


def _read_shared_heads(program: GraphProgram, calls: list[fx.Node]) -> None:
    """Let calls read the heads of key and value that are repeated before."""
    found = {m.root: m for m in match(_repeated_heads, program.function, shared=True)}
    for call in calls:
        given: Any = inspect.signature(attention).bind(*call.args, **call.kwargs).arguments
        copies = [n for n in (given.get("key"), given.get("value")) if isinstance(n, fx.Node)]
        bindings = [b for b in map(program.binding_of, copies) if b is not None]
        repeats = [found[b] for b in bindings if b in found]
        if given.get("enable_gqa", False) or len(repeats) != 2:
            continue
        atoms = [m.captures["x"] for m in repeats]
        heads = {tensor_of(a).shape[1] for a in atoms}
        sources = [program.nodes.get(a) for a in atoms]
        roots = [m.root.var for m in repeats]
        if len(heads) == 1 and None not in sources and program.is_undisturbed(call, roots, atoms):
            call.args = ()
            call.kwargs = given | {"key": sources[0], "value": sources[1], "enable_gqa": True}
            for copy in copies:
                erase(copy)


def row_maximum(x: Tensor, axis: int, keepdims: bool) -> Tensor:
    """What scores are lowered by, which a softmax does not depend on."""
    return x.detach().amax(axis, keepdims)


def strided_slice(
    x: Tensor,
    begin: tuple[int, ...],
    end: tuple[int, ...],
    strides: tuple[int, ...] | None,
    *_: Any,
) -> Tensor:
    """The arguments are those of `meta.strided_slice`, as converters give them: a bound each."""
    return x[tuple(map(slice, begin, end, strides or (1,) * len(begin)))]


def where(seen: Tensor, x1: Any, x2: Any) -> Tensor:
    """The arguments are those of `meta.where`, of which one is a tensor, and one a number."""
    swaps = not isinstance(x1, Tensor)
    y: Tensor = x2.masked_fill(seen, x1) if swaps else x1.masked_fill(seen.logical_not(), x2)
    return y


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, is_causal: bool, scale: float,
    layout: str, window: tuple[int, int] | None = None, *_: Any,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """The arguments are those of `meta.fused_attention`."""
    swaps = layout != HEADS_FIRST
    if swaps:
        query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    y, logsumexp = fused_attention(query, key, value, mask, is_causal, scale, True, window)
    return y.transpose(1, 2) if swaps else y, logsumexp


_TORCH_CALLS: TorchCalls = {
    **TORCH_CALLS,
    op.add: lambda x1, x2, *_: x1 + x2,
    op.any: torch.any,
    op.broadcast_to: torch.broadcast_to,
    op.fused_attention: _attention,
    op.logical_and: torch.logical_and,
    op.logical_not: torch.logical_not,
    op.logical_or: torch.logical_or,
    op.max: row_maximum,
    op.maximum: lambda x1, x2, *_: x1.clamp_min(x2),
    op.multiply: torch.mul,
    op.permute_dims: torch.permute,
    op.strided_slice: strided_slice,
    op.subtract: lambda x1, x2, *_: x1 - x2,
    op.where: where,
    op.zeros_like: lambda x, *_: torch.zeros_like(x),
}


def _fuse_written(program: GraphProgram) -> None:
    """Write one call in the place of each attention in half precision."""

    def require(found: AttentionMatch, binding: Binding) -> None:
        device = fake_value(program.owners[binding.var]).device
        served = device.type in ATTENTION_ON and found.dtype in HALVES and has_gradients(found)
        if not served:
            raise Refused("there is no kernel for it and its gradient")

    found, _ = attentions(program.function, AliasSets(program.function), (), require)
    for binding, one in found.items():
        trace = Trace()
        block = trace.finish(trace.run(one.emit, trace, None))
        users = [program.binding_of(u) for u in program.owners[binding.var].users]
        program.write(binding, block, _TORCH_CALLS, not all(map(_swaps_steps, users)))
    program.erase_replaced()


def _swaps_steps(binding: Binding | None) -> bool:
    """Whether a call swaps the axes of heads and of steps."""
    call = None if binding is None else op_call(binding.value)
    return call is not None and call.op in PERMUTATIONS and order_of(call) == (0, 2, 1, 3)
