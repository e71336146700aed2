"""Samples of images, bags of rows, sequences, segments and numeric gradients."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import axis_of, indices, narrowed, real
from tools.torch_samples.decline import Outside, decline_if, outside_if
from tools.torch_samples.draws import Drawn
from tools.torch_samples.families.draws import dropped
from tools.torch_samples.families.indexing import index_put

MODES = ("bilinear", "nearest", "bicubic")
PADDINGS = ("zeros", "border", "reflection")


def grid_sample(
    input: Any,
    grid: Any,
    mode: str = "bilinear",
    padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Any:
    """Read an image at places."""
    return meta.grid_sample(input, grid, mode, padding_mode, bool(align_corners))


def grid_sampler(input: Any, grid: Any, mode: int, padding: int, align_corners: bool) -> Any:
    """`grid_sample` with numbers for names."""
    return meta.grid_sample(input, grid, MODES[mode], PADDINGS[padding], align_corners)


def embedding_bag(
    weight: Any,
    input: Any,
    offsets: Any = None,
    max_norm: float | None = None,
    norm_type: float = 2.0,
    scale_grad_by_freq: bool = False,
    mode: str = "mean",
    sparse: bool = False,
    per_sample_weights: Any = None,
    include_last_offset: bool = False,
    padding_idx: int | None = None,
) -> Any:
    """Sums, means or maxima of rows of a table."""
    outside_if(sparse, Outside.LAYOUT)
    outside_if(max_norm is not None, Outside.WRITES)
    decline_if(scale_grad_by_freq, "a gradient divided by how often a row was taken")
    return meta.embedding_bag(
        input,
        weight,
        offsets,
        mode=mode,
        per_sample_weights=per_sample_weights,
        include_last_offset=include_last_offset,
        padding_idx=padding_idx,
    )


def ctc_loss(
    log_probs: Any, targets: Any, input_lengths: Any, target_lengths: Any, **k: Any
) -> Any:
    """The loss of alignments; lengths are arrays or lists."""
    lengths = (
        t if hasattr(t, "dtype") else indices(list(t)) for t in (input_lengths, target_lengths)
    )
    return meta.ctc_loss(log_probs, targets, *lengths, **k)


def gradient(input: Any, *, spacing: Any = None, dim: Any = None, edge_order: int = 1) -> Any:
    """Differences along axes, central inside and one-sided at both ends."""
    x = real(input)
    axes = range(x.ndim) if dim is None else (dim,) if isinstance(dim, int) else dim
    steps = spacing if isinstance(spacing, tuple | list) else [spacing] * len(axes)
    short = x.dtype == "bfloat16"
    x = meta.astype(x, "float32") if short else x
    found = []
    for a, s in zip(axes, steps, strict=True):
        places = meta.astype(s, "float32") if short and hasattr(s, "dtype") else s
        y = slope(x, axis_of(x, a), 1.0 if s is None else places, edge_order)
        found.append(meta.astype(y, "bfloat16") if short else y)
    return tuple(found)


def slope(x: Any, at: int, spacing: Any, order: int) -> Any:
    """Return the differences along one axis, whose coordinates may be given."""
    y, n = meta.swapaxes(x, at, -1), x.shape[at]
    given = hasattr(spacing, "dtype")
    places = spacing if given else meta.arange(0, n, 1, x.dtype) * spacing
    steps = places[1:] - places[:-1]
    one, two, both = steps[:-1], steps[1:], places[2:] - places[:-2]
    inner = (
        y[..., 2:] * (one / (two * both))
        + y[..., 1:-1] * ((two - one) / (one * two))
        - y[..., :-2] * (two / (one * both))
    )
    if order == 1:
        rise = (y[..., 1:] - y[..., :-1]) / steps
        first, last = rise[..., :1], rise[..., -1:]
    else:
        first = edge(y[..., :3], one[:1], two[:1])
        last = -edge(meta.flip(y[..., -3:], -1), two[-1:], one[-1:])
    return meta.swapaxes(meta.concat((first, inner, last), -1), at, -1)


def edge(y: Any, one: Any, two: Any) -> Any:
    """Return the derivative at the first of three values, by the parabola through them."""
    both = one + two
    return (
        y[..., 1:2] * (both / (one * two))
        - y[..., :1] * ((one + both) / (one * both))
        - y[..., 2:] * (one / (two * both))
    )


def masked_index(input: Any, mask: Any, index: Any, fill: float) -> Any:
    """Elements at indices where a mask lets them through, else a number."""
    places = clipped(input, index)
    found = input[places]
    filling = bool(fill) if input.dtype == "bool" else fill
    filling = int(fill) if input.dtype == "int64" else filling
    return meta.where(mask, found, filling)


def clipped(input: Any, index: Any) -> Any:
    """Return indices that are inside of a tensor."""
    return tuple(
        i if i is None else meta.clip(i, -n, n - 1)
        for i, n in zip(index, input.shape, strict=False)
    )


def masked_index_put(input: Any, mask: Any, index: Any, values: Any) -> Any:
    """Add to elements at indices where a mask lets it."""
    nothing = meta.zeros_like(values)
    places = tuple(
        meta.where(i < 0, i + n, i)
        for i, n in zip(clipped(input, index), input.shape, strict=False)
    )
    return index_put(input, places, meta.where(mask, values, nothing), accumulate=True)


def segment_reduce(
    data: Any,
    reduce: str,
    *,
    lengths: Any = None,
    offsets: Any = None,
    axis: int = 0,
    unsafe: bool = False,
    initial: float | None = None,
) -> Any:
    """Reduce stretches of the last of the axes that lengths have."""
    counts = np.diff(offsets.numpy(), axis=-1) if lengths is None else lengths.numpy()
    if axis:
        rows = [
            segment_reduce(
                data[i], reduce, lengths=meta.array(counts[i]), axis=axis - 1, initial=initial
            )
            for i in range(data.shape[0])
        ]
        return meta.stack(tuple(rows), 0)
    parts, begin = [], 0
    for count in counts:
        parts.append(segment(narrowed(data, 0, begin, begin + int(count)), reduce, initial))
        begin += int(count)
    return meta.stack(tuple(parts), 0)


def segment(part: Any, reduce: str, initial: float | None) -> Any:
    """Return one stretch, reduced from an initial number."""
    empty, shape = part.shape[0] == 0, part.shape[1:]
    start = {"max": -math.inf, "min": math.inf, "sum": 0.0, "prod": 1.0, "mean": 0.0}[reduce]
    first = start if initial is None else float(initial)
    if empty:
        nothing = math.nan if reduce == "mean" and initial is None else first
        return meta.full(shape, nothing, part.dtype)
    if reduce in ("max", "min"):
        choose = meta.max if reduce == "max" else meta.min
        row = meta.full((1, *shape), first, part.dtype)
        return choose(meta.concat((row, part), 0), 0)
    if reduce == "prod":
        return meta.prod(part, 0) * first
    total = meta.sum(part, 0) + first
    return total / part.shape[0] if reduce == "mean" else total


def multi_head_attention(
    query: Any,
    key: Any,
    value: Any,
    embed_dim_to_check: int,
    num_heads: int,
    in_proj_weight: Any,
    in_proj_bias: Any,
    bias_k: Any,
    bias_v: Any,
    add_zero_attn: bool,
    dropout_p: float,
    out_proj_weight: Any,
    out_proj_bias: Any,
    *,
    training: bool = True,
    attn_mask: Any = None,
    q_proj_weight: Any = None,
    k_proj_weight: Any = None,
    v_proj_weight: Any = None,
    use_separate_proj_weight: bool = False,
    **kwargs: Any,
) -> Any:
    """Attention of several heads with its projections, of (length, batch, features)."""
    size = query.shape[-1]
    whole = in_proj_weight
    weights = (
        (q_proj_weight, k_proj_weight, v_proj_weight)
        if use_separate_proj_weight
        else tuple(narrowed(whole, 0, i * size, (i + 1) * size) for i in range(3))
    )
    q, k, v = (
        meta.linear(t, w, None if in_proj_bias is None else in_proj_bias[i * size : (i + 1) * size])
        for i, (t, w) in enumerate(zip((query, key, value), weights, strict=True))
    )
    if bias_k is not None:
        k, v = (
            meta.concat((t, meta.broadcast_to(b, (1, *t.shape[1:]))), 0)
            for t, b in ((k, bias_k), (v, bias_v))
        )
    if add_zero_attn:
        k, v = (meta.concat((t, meta.zeros((1, *t.shape[1:]), t.dtype)), 0) for t in (k, v))
    q, k, v = (heads(t, num_heads) for t in (q, k, v))
    scores = q @ meta.swapaxes(k, -1, -2) * (1 / math.sqrt(size // num_heads))
    if attn_mask is not None:
        missing = scores.shape[-1] - attn_mask.shape[-1]
        mask = meta.pad(attn_mask, ((0, 0), (0, missing))) if missing else attn_mask
        scores = scores + mask
    shares = dropped(None)(meta.softmax(scores), dropout_p, training)
    y = meta.permute_dims(shares @ v, (2, 0, 1, 3))
    y = meta.linear(meta.reshape(y, query.shape), out_proj_weight, out_proj_bias)
    return y, meta.mean(shares, 1)


def heads(x: Any, count: int) -> Any:
    """Return (batch, head, length, features of the head)."""
    length, batch, size = x.shape
    return meta.permute_dims(meta.reshape(x, (length, batch, count, size // count)), (1, 2, 0, 3))


ADAPTERS = {
    "_segment_reduce|lengths": segment_reduce,
    "_segment_reduce|offsets": segment_reduce,
    "_unsafe_masked_index": masked_index,
    "_unsafe_masked_index_put_accumulate": masked_index_put,
    "gradient": gradient,
    "grid_sampler_2d": grid_sampler,
    "grid_sampler_3d": grid_sampler,
    "native_dropout_backward": lambda grad, mask, scale: grad * meta.cast_like(mask, grad) * scale,
    "nn.functional.ctc_loss": ctc_loss,
    "nn.functional.embedding_bag": embedding_bag,
    "nn.functional.grid_sample": grid_sample,
    "nn.functional.multi_head_attention_forward": Drawn(
        multi_head_attention,
        lambda *args, training=True, **kwargs: training and args[10] > 0,
        together=100,
    ),
}
