"""Scaled dot-product attention as one graph of cuDNN, for half precision.

A mask of bools becomes numbers to add. A query that may look nowhere gets 0 from cuDNN, too, but
minus infinity for its logsumexp.

Attention whose query, key and value are parts of one array's rows, as a joint projection gives
them: cuDNN reads them where they are, and writes gradients that are joined alike.

A part has its heads behind the steps: of rows [b, s, ...] with 3 * heads * width elements, those of
a third.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH, bits
from meta.dialect.core import OpEnv, decline_if, require_static, shared_patterns
from meta.dialect.core.shared_patterns import (
    ROWS,
    THIRDS,
    attention_gradient_pattern,
    attention_pattern,
    gradients_with_mask_pattern,
    saved_attention_pattern,
    split_offsets,
)
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.graph import Graph, Operand
from meta.dialect.cudnn.plans import Run, planned, with_plan
from meta.ir.types import TensorType
from meta.op.attention import HEADS_FIRST, HEADS_LATER, heads_first, mask_repeats, score_scale
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis

HALVES = ("float16", "bfloat16")


@dataclass(frozen=True, slots=True)
class Attention:
    """An attention as cuDNN sees it; mask: of numbers to add, with four axes; back: how many keys
    behind its own place a query sees, None for all.
    """

    query: Operand
    key: Operand
    value: Operand
    mask: Operand | None
    result: Operand
    causal: bool
    scale: float
    back: int | None = None

    @property
    def statistics(self) -> Operand:
        """The logsumexp, with an axis of extent 1 in the place of the keys."""
        return Operand.compact((*self.query.dims[:3], 1), "float32")


def described_by(call: CallValues) -> Attention:
    """Return the attention of a call, or of its gradient; Unsupported if there is no graph."""
    a = call.args
    # Its dropout takes a seed of its own, and draws other numbers.
    decline_if(a.dropout_key is not None, "weights are dropped by a key")
    decline_if(a.slopes is not None, "scores fall by slopes")
    causal, back = a.causal, None
    if a.window is not None:
        left, right = a.window
        causal = causal or right == 0
        decline_if(a.mask is not None or not causal, "a window is beside a mask, or looks ahead")
        back = None if left < 0 else left
    types = [t for t in (a.query, a.key, a.value, a.mask) if t is not None]
    require_static(*types)
    decline_if(a.query.dtype not in HALVES, f"cuDNN has no attention of {a.query.dtype}")
    decline_if(not all(t.size for t in types), "there is an empty tensor")
    query, key, value = (_operand(t, a.layout) for t in (a.query, a.key, a.value))
    # The gradient is wrong for a mask that is broadcast over queries, or over keys.
    mask = None
    if a.mask is not None:
        mask = Operand.compact(_mask_shape(call), a.query.dtype)
    y = a.query.with_shape((*a.query.shape[:3], a.value.shape[3]))
    result = _operand(y, a.layout)
    scale = score_scale(a.scale, query.dims[3])
    return Attention(query, key, value, mask, result, causal, scale, back)


def _operand(type_: TensorType, layout: str) -> Operand:
    return Operand.compact(type_.static_shape, type_.dtype, layout, HEADS_FIRST)


def _mask_shape(call: CallValues) -> tuple[int, ...]:
    """Return the shape of the mask with its last two axes in full."""
    a = call.args
    shape = (1,) * (4 - a.mask.ndim) + a.mask.static_shape
    length, keys = (heads_first(t, a.layout).static_shape[2] for t in (a.query, a.key))
    return (shape[0] * mask_repeats(a.mask, a.query.shape[0]), shape[1], length, keys)


def arguments(graph: Graph, a: Attention) -> dict[str, Any]:
    """Name the tensors that both directions begin with; return what both nodes are told."""
    named = {n: graph.argument(o) for n, o in zip("qkv", (a.query, a.key, a.value), strict=True)}
    if a.mask is not None:
        named["bias"] = graph.argument(a.mask)
    options = {} if a.back is None else {"diagonal_band_left_bound": a.back + 1}
    return {**named, **options, "attn_scale": a.scale, "use_causal_mask": a.causal}


def sdpa(graph: Graph, a: Attention) -> None:
    y, statistics = graph.node.sdpa(**arguments(graph, a), generate_stats=True)
    graph.result(y, a.result)
    graph.result(statistics, a.statistics)


def sdpa_backward(graph: Graph, a: Attention) -> None:
    _backward(graph, a, (a.query, a.key, a.value))


def sdpa_backward_with_mask(graph: Graph, a: Attention) -> None:
    _backward(graph, a, (a.query, a.key, a.value), by_mask=True)


def _backward(
    graph: Graph, a: Attention, gradients: tuple[Operand, ...], by_mask: bool = False
) -> None:
    """Describe the gradient, written as ``gradients`` lie: those of query, key and value; before
    them that of the mask if ``by_mask``, as the frontend takes it for an argument.
    """
    named = arguments(graph, a)
    y, statistics, dy = (graph.argument(o) for o in (a.result, a.statistics, a.result))
    if by_mask:
        assert a.mask is not None
        named["dBias"] = graph.argument(a.mask)
    results = graph.node.sdpa_backward(**named, o=y, stats=statistics, dO=dy)
    for found, operand in zip(results, gradients, strict=True):
        graph.result(found, operand)


@dialect.op(op.fused_attention)
def fused_attention(call: CallValues) -> OpEnv:
    return _attention(sdpa, call)


@dialect.op(op.fused_attention_dx)
def fused_attention_dx(call: CallValues) -> OpEnv:
    return _attention(sdpa_backward, call)


def _attention(describe: Callable[..., None], call: CallValues) -> OpEnv:
    options = {"dtype": call.args.query.dtype, "device": call.device.ordinal}
    if call.args.mask is None:
        return planned(describe, described_by(call), **options)
    added, added_bytes = _added(call), prod(_mask_shape(call)) * bits(call.args.query.dtype) // 8

    def env(run: Run) -> OpEnv:
        def masked(query, key, value, mask, *rest):
            run(query, key, value, added(mask), *rest)
            if describe is sdpa:
                logsumexp = rest[1]
                logsumexp.masked_fill_(logsumexp == -inf, 0)

        return OpEnv(masked, allocates=False, workspace=lambda: added_bytes + run.workspace)

    return with_plan(env, describe, described_by(call), **options)


def _added(call: CallValues) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return how the mask of a call becomes numbers to add to the scores."""
    a = call.args
    shape, times = _mask_shape(call), mask_repeats(a.mask, a.query.shape[0])

    def spread(mask: torch.Tensor) -> torch.Tensor:
        return (mask if times == 1 else mask.repeat(times, 1, 1, 1)).expand(shape)

    if a.mask.dtype != "bool":
        return lambda mask: spread(mask).contiguous()
    dtype, device = TO_TORCH[a.query.dtype], str(call.device)
    seen, hidden = (torch.tensor(x, dtype=dtype, device=device) for x in (0.0, -inf))
    return lambda mask: torch.where(spread(mask), seen, hidden)


@dialect.pattern_op(gradients_with_mask_pattern)
def fused_attention_dx_dmask(
    query: TensorType, key: TensorType, value: TensorType, mask: TensorType, y: TensorType,
    logsumexp: TensorType, dy: TensorType, causal: bool, scale: float | None, layout: str,
    result: tuple[TensorType, ...], device: Device,
) -> OpEnv:  # fmt: skip
    args = query, key, value, mask, y, logsumexp, dy, causal, scale, layout
    call = op.fused_attention_dx.call_values(args, device)
    described, added, shape = described_by(call), _added(call), _mask_shape(call)
    of_mask = (1,) * (4 - mask.ndim) + mask.static_shape
    size = prod(shape) * bits(query.dtype) // 8

    def env(run: Run) -> OpEnv:
        def launch(*tensors: torch.Tensor) -> None:
            *parts, mask, y, logsumexp, dy, dq, dk, dv, dmask = tensors
            by_scores = dmask if of_mask == shape else dmask.new_empty(shape)
            run(*parts, added(mask), y, logsumexp, dy, by_scores, dq, dk, dv)
            if by_scores is not dmask:
                repeats = by_scores.view(-1, of_mask[0], *shape[1:])
                summed = repeats.sum(0, dtype=torch.float32).sum_to_size(of_mask)
                dmask.copy_(summed.view(dmask.shape))

        return OpEnv(launch, allocates=False, workspace=lambda: 4 * size + run.workspace)

    on = device.ordinal
    return with_plan(env, sdpa_backward_with_mask, described, dtype=query.dtype, device=on)


def _sdpa_in_rows(graph: Graph, a: Attention) -> None:
    """Describe gradients of which each begins its rows where the one before it ends."""
    row = THIRDS * a.query.dims[1] * a.query.dims[3]
    _backward(graph, a, tuple(in_rows(o, row) for o in (a.query, a.key, a.value)))


def in_rows(part: Operand, row: int) -> Operand:
    """Return a compact operand (batch, heads, steps, width) as a part of rows of all heads."""
    _, _, steps, width = part.dims
    return replace(part, strides=(steps * row, width, row, 1))


def _joined(call: CallValues) -> OpEnv:
    """Return the graph that writes the parts where they belong."""
    decline_if(call.args.mask is not None, "made for an attention without a mask")
    _, _, heads, width = call.args.query.static_shape
    row = heads * width

    def env(run: Run) -> OpEnv:
        def launch(*tensors: torch.Tensor) -> None:
            *inputs, out = tensors
            run(*inputs, *(out.narrow(-1, i * row, row) for i in range(THIRDS)))

        return OpEnv(launch, allocates=False, workspace=lambda: run.workspace)

    options = {"dtype": call.args.query.dtype, "device": call.device.ordinal}
    return with_plan(env, _sdpa_in_rows, described_by(call), **options)


shared_patterns.register_packed_attention(dialect, _joined)


ALIGNED = 8
"""What the elements of a head are a multiple of, and so where parts begin."""


def _sdpa_alone(graph: Graph, a: Attention) -> None:
    """Describe the result without what its gradient needs."""
    y, _ = graph.node.sdpa(**arguments(graph, a), generate_stats=False)
    graph.result(y, a.result)


def _packed(
    describe: Callable[[Graph, Attention], None], rows: TensorType, starts: tuple[int, ...],
    y: TensorType, mask: Any, causal: bool, scale: float | None, layout: str, device: Device,
) -> OpEnv:  # fmt: skip
    """Return what runs a graph. The gradient fills one array, of the shape of the rows."""
    decline_if(mask is not None, "made for an attention without a mask")
    decline_if(layout != HEADS_LATER, "made for heads behind the steps")
    batch, steps, heads, width = y.static_shape
    part, row = heads * width, THIRDS * heads * width
    fits = rows.static_shape[:ROWS] == (batch, steps) and prod(rows.static_shape[ROWS:]) == row
    decline_if(not fits or y.dtype != rows.dtype, f"{y} is no attention of thirds of {rows}")
    decline_if(width % ALIGNED != 0, f"heads are no multiple of {ALIGNED} elements")
    one = rows.with_shape((batch, steps, heads, width))
    call = op.fused_attention.call_values((one, one, one, None, causal, scale, layout), device)
    compact = described_by(call)
    query, key, value = (in_rows(p, row) for p in (compact.query, compact.key, compact.value))
    described = replace(compact, query=query, key=key, value=value)

    def parts_of(whole: torch.Tensor, starts: Sequence[int]) -> list[torch.Tensor]:
        flat = whole.view(batch, steps, row)
        return [flat.narrow(-1, begin, part) for begin in starts]

    def env(run: Run) -> OpEnv:
        def forward(whole: torch.Tensor, *results: torch.Tensor) -> None:
            run(*parts_of(whole, starts), *results)

        def backward(whole: torch.Tensor, *rest: torch.Tensor) -> None:
            *given, joined = rest
            run(*parts_of(whole, starts), *given, *parts_of(joined, range(0, row, part)))

        launch = backward if describe is sdpa_backward else forward
        return OpEnv(launch, allocates=False, workspace=lambda: run.workspace)

    return with_plan(env, describe, described, dtype=rows.dtype, device=device.ordinal)


@dialect.pattern_op(attention_pattern)
def attention_of_rows(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = split_offsets(rows, sections, at)
    return _packed(_sdpa_alone, rows, starts, result, mask, causal, scale, layout, device)


@dialect.pattern_op(saved_attention_pattern)
def attention_of_rows_saved(
    rows: TensorType, sections: Any, at: int, mask: Any, causal: bool, scale: float | None,
    layout: str, result: tuple[TensorType, TensorType], device: Device,
) -> OpEnv:  # fmt: skip
    starts = split_offsets(rows, sections, at)
    return _packed(sdpa, rows, starts, result[0], mask, causal, scale, layout, device)


@dialect.pattern_op(attention_gradient_pattern)
def attention_of_rows_dx(
    rows: TensorType, sections: Any, at: int, mask: Any, y: TensorType, causal: bool,
    scale: float | None, layout: str, axis: int, result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    starts = split_offsets(rows, sections, at)
    decline_if(normalize_axis(axis, result.ndim) != ROWS, "gradients are not joined as rows")
    return _packed(sdpa_backward, rows, starts, y, mask, causal, scale, layout, device)
