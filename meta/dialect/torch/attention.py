"""Attention and rotary embeddings on ATen.

ATen has a fused kernel per device, which never holds all scores; what these do not take is
composed of matrix products (`attention_blocks`). The fused kernels read rows as adjacent
elements, whatever the strides are: those of CUDA are given compact arguments, the CPU's any whose
rows are compact.
"""

from functools import cache, partial

import torch
import torch.nn.functional as F

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.core import LIBRARY
from meta.dialect.core.kernel_signature import bind_kernel
from meta.dialect.core.openv import OpEnv
from meta.dialect.core.shared_patterns import require_masks_only
from meta.dialect.torch import attention_blocks as blocks
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.attention_blocks import Scoring
from meta.dialect.torch.operands import wide
from meta.op.attention import HEADS_FIRST, heads_first, score_scale

_aten = torch.ops.aten
_flash_on_cpu = _aten._scaled_dot_product_flash_attention_for_cpu.default
_flash_on_cpu_backward = _aten._scaled_dot_product_flash_attention_for_cpu_backward.default


# The fused CUDA kernel loads biases 16 at a time, and rows of 16 bytes.
_BIAS_STEP, _ROW_BYTES = 16, 16


def _fused(query, key, value, how):
    """Return the kind of device whose fused kernel takes the arguments, or None."""
    # The CPU's divides by extents: an empty array would end the process.
    if not (query.numel() and key.numel() and value.numel()):
        return None
    if query.shape[-1] != value.shape[-1] or how.drops or how.slopes is not None:
        return None
    if how.cap is not None:
        return None
    if query.device.type == "cpu":
        return "cpu"
    aligned = query.shape[-1] * query.element_size() % _ROW_BYTES == 0
    return "cuda" if aligned and query.dtype != torch.float64 else None


def _per_head(x, query):
    """Repeat the heads of key or value for those of query that share them."""
    share = query.shape[1] // max(x.shape[1], 1)
    return x if share <= 1 else x.repeat_interleave(share, 1)


def _per_group(dx, like):
    """Sum gradients over the heads that share one of ``like``."""
    if dx.shape == like.shape:
        return dx
    batch, groups, length, width = like.shape
    split = dx.reshape(batch, groups, dx.shape[1] // max(groups, 1), length, width)
    return split.sum(2, dtype=wide(dx.dtype))


def _bias(query, key, how):
    """Return the mask as numbers to add, with 4 axes, and whether to look back only.

    ATen takes a mask or the causal one, so that both together become one; so does a window.
    """
    mask, causal = _repeated(how.mask, query), how.causal
    if mask is None and how.window is None:
        return None, causal
    if mask is None:
        return _banded(query, key, how), False
    seen = None
    if how.reach != (-1, -1):
        rows, keys = (torch.arange(x.shape[2], device=query.device) for x in (query, key))
        seen = how.visible(rows, keys)
    if mask.dtype == torch.bool and seen is not None:
        mask = mask & seen
    elif seen is not None:
        mask = mask.masked_fill(~seen, -torch.inf)
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, -torch.inf)
    return mask.reshape((1,) * (4 - mask.ndim) + mask.shape), False


def _rows_of_groups(query, key, bias):
    """Return the single queries of the heads that share a key as its queries, and their bias: the
    heads of keys and values are read as they are, not repeated.
    """
    batch, heads, _, width = query.shape
    groups = key.shape[1]
    rows = query.reshape(batch, groups, heads // groups, width)
    if bias is None or bias.shape[1] == 1:
        return rows, bias
    return rows, bias.reshape(bias.shape[0], groups, heads // groups, bias.shape[3])


def _banded(query, key, how):
    """Return a window as numbers to add, None where all is seen: a copy of a line of them by
    distance for each query, which is ten times as fast as to compare all places.
    """
    rows, keys = query.shape[2], key.shape[2]
    distances = torch.arange(1 - rows, keys, device=query.device)
    seen = how.visible(torch.zeros(1, dtype=torch.int64, device=query.device), distances)
    if seen is None:
        return None
    line = torch.zeros(distances.shape, dtype=query.dtype, device=query.device)
    line.masked_fill_(~seen[0], -torch.inf)
    return line.unfold(0, keys, 1).flip(0)[None, None]


def _cuda_bias(bias, query, key):
    """Return the bias in full, each row starting at an aligned place."""
    if bias is None:
        return None
    keys = key.shape[2]
    full = bias.expand(*query.shape[:3], keys)
    return F.pad(full, (0, -keys % _BIAS_STEP))[..., :keys]


def _repeated(mask, query):
    """Return a mask whose batches follow one another in those of query as often as they do."""
    batch = query.shape[0]
    if mask is None or mask.ndim != 4 or mask.shape[0] in (1, batch):
        return mask
    return mask.repeat(batch // mask.shape[0], 1, 1, 1)


def _how(query, mask, causal, scale, *options):
    """Return what is done to scores and weights."""
    return Scoring(mask, causal, score_scale(scale, query.shape[-1]), *options)


def fused_attention(
    query, key, value, mask, causal, scale, layout, window, slopes, dropout_key, dropout_p, out
):
    how = _how(query, mask, causal, scale, window, slopes, dropout_key, dropout_p)
    query, key, value = _heads_first(layout, query, key, value)
    y, logsumexp = attend(query, key, value, how)
    _view(out[0], layout).copy_(y)
    out[1].copy_(logsumexp)


def fused_attention_cpu(
    query, key, value, mask, causal, scale, layout, window, slopes, dropout_key, dropout_p
):
    how = _how(query, mask, causal, scale, window, slopes, dropout_key, dropout_p)
    query, key, value = _heads_first(layout, query, key, value)
    y, logsumexp = attend(query, key, value, how)
    return _view(y, layout), logsumexp


def _compact(run, call):
    """Let a kernel return results as they lie where that is compact: the CPU's has heads last."""
    dtypes = [TO_TORCH[t.dtype] for t in call.outputs]

    def compact(*values):
        found = zip(run(*values), dtypes, strict=True)
        return tuple([(x if x.dtype is d else x.to(d)).contiguous() for x, d in found])

    return compact


def _view(x, layout):
    """Return a view of x with its heads first."""
    return x if layout == HEADS_FIRST else x.transpose(1, 2)


def _heads_first(layout, *tensors):
    """Return tensors with their heads first, compact ones for the kernels that need it."""
    views = tensors if layout == HEADS_FIRST else [x.transpose(1, 2) for x in tensors]
    return [x.contiguous() if x.is_cuda or x.stride(-1) != 1 else x for x in views]


def attend(query, key, value, how):
    """Return the results of attention whose heads come first."""
    kind = _fused(query, key, value, how)
    if kind is None:
        return blocks.forward(query, key, value, how)
    bias, causal = _bias(query, key, how)
    if query.shape[2] == 1 and query.shape[1] > key.shape[1] and not causal:
        return _of_groups(partial(_attended, kind, causal, how.scale))(query, key, value, bias)
    key, value = _per_head(key, query), _per_head(value, query)
    return _attended(kind, causal, how.scale, query, key, value, bias)


def _attended(kind, causal, scale, query, key, value, bias):
    """Return the results of the fused kernel for a kind of device."""
    if kind == "cpu":
        y, logsumexp = _flash_on_cpu(query, key, value, 0.0, causal, attn_mask=bias, scale=scale)
    else:
        bias = _cuda_bias(bias, query, key)
        y, logsumexp, _, _ = _aten._scaled_dot_product_efficient_attention(
            query, key, value, bias, True, 0.0, causal, scale=scale
        )
        # It comes in steps of 32 queries.
        logsumexp = logsumexp[:, :, : query.shape[2]]
    if bias is None or (kind == "cpu" and _cpu_sees_blindness(query.dtype)):
        return y, logsumexp
    blind = bias.amax(-1) == -torch.inf
    if not blind.is_cuda and not blind.any():  # a look takes less than the copies
        return y, logsumexp
    return y.masked_fill(blind.unsqueeze(-1), 0), logsumexp.masked_fill(blind, 0)


@cache
def _cpu_sees_blindness(dtype):
    """Whether ATen's kernel for the CPU gives 0 where all scores are masked, as we do."""
    query, key = torch.zeros(1, 1, 1, 1, dtype=dtype), torch.ones(1, 1, 9, 1, dtype=dtype)
    blind = torch.full((1, 1, 1, 9), -torch.inf, dtype=dtype)
    results = _flash_on_cpu(query, key, key, 0.0, False, attn_mask=blind)
    return not any(r.any() for r in results)


def _is_direct(call):
    """Whether a call is one of ATen's for the CPU as it stands: what else is looked at at each call
    takes as long as a token that is decoded, or a good part of a small layer's gradient.
    """
    args = call.args
    query, value, mask = args.query, args.value, args.mask
    options = args.window, args.slopes, args.dropout_key
    types = [t for t in (query, args.key, value, mask) if t is not None]
    if any(o is not None for o in options) or not all(t.is_static and t.size for t in types):
        return False
    fits = mask is None or (mask.ndim == 4 and mask.shape[0] in (1, query.shape[0]))
    if not fits or (mask is not None and (args.causal or mask.dtype != query.dtype)):
        return False
    if query.shape[-1] != value.shape[-1] or not _cpu_sees_blindness(TO_TORCH[query.dtype]):
        return False
    # Half precision is not to be rounded before it is added up over heads.
    return call.op is op.fused_attention or query.dtype in ("float32", "float64")


def _direct(call):
    """Return the kernel of a call that `_is_direct`."""
    args, layout, causal = call.args, call.args.layout, call.args.causal
    types = [heads_first(t, layout).static_shape for t in (args.query, args.key)]
    (_, heads, count, width), (_, groups, *_) = types
    scale, is_masked = score_scale(args.scale, width), args.mask is not None

    def attended(query, key, value, mask):
        key, value = _per_head(key, query), _per_head(value, query)
        return _flash_on_cpu(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)

    if heads != groups and count == 1 and not causal:
        attended = _of_groups(attended)

    def forward(query, key, value, mask=None):
        query, key, value = _heads_first(layout, query, key, value)
        y, logsumexp = attended(query, key, value, mask)
        return _view(y, layout), logsumexp

    def backward(query, key, value, *others):
        mask, y, logsumexp, dy = others if is_masked else (None, *others)
        query, key, value, y, dy = _heads_first(layout, query, key, value, y, dy)
        value, y = _centred(value, y)
        given = dy, query, _per_head(key, query), _per_head(value, query), y, logsumexp, 0.0, causal
        dq, dk, dv = _flash_on_cpu_backward(*given, attn_mask=mask, scale=scale)
        return [_view(x, layout) for x in (dq, _per_group(dk, key), _per_group(dv, value))]

    return forward if call.op is op.fused_attention else backward


def _of_groups(run):
    """Return a kernel for single queries whose heads share keys."""

    def run_on_rows(query, key, value, mask=None):
        rows, added = _rows_of_groups(query, key, mask)
        y, logsumexp = run(rows, key, value, added)
        return y.reshape(query.shape), logsumexp.reshape(query.shape[:3])

    return run_on_rows


def _centred(value, y):
    """Return value and y, less the last row of y: an offset that gradients do not depend on.

    The probabilities of a query add up to 1, so what all values have in common cancels in
    ``dy @ value.T - sum(dy * y)``; it would take digits of what they differ in with it. In half
    precision y itself is too coarse for that to matter.
    """
    if value.dtype != wide(value.dtype) or not (y.numel() and value.numel()):
        return value, y
    offset, share = y.narrow(2, y.shape[2] - 1, 1), y.shape[1] // value.shape[1]
    if share == 1:
        return value - offset, y - offset
    offset = offset[:, ::share]
    return value - offset, y - _per_head(offset, y)


def fused_attention_dx(
    query, key, value, mask, y, logsumexp, dy, causal, scale, layout, window, slopes, dropout_key,
    dropout_p, out,
):  # fmt: skip
    how = _how(query, mask, causal, scale, window, slopes, dropout_key, dropout_p)
    query, key, value, y, dy = _heads_first(layout, query, key, value, y, dy)
    dx = _backward(query, key, value, y, dy, logsumexp, how)
    for result, found in zip(out, dx, strict=True):
        _view(result, layout).copy_(found)


def fused_attention_dx_cpu(
    query, key, value, mask, y, logsumexp, dy, causal, scale, layout, window, slopes, dropout_key,
    dropout_p,
):  # fmt: skip
    how = _how(query, mask, causal, scale, window, slopes, dropout_key, dropout_p)
    query, key, value, y, dy = _heads_first(layout, query, key, value, y, dy)
    dx = _backward(query, key, value, y, dy, logsumexp, how)
    return [_view(x, layout) for x in dx]


def _backward(query, key, value, y, dy, logsumexp, how):
    """Return the gradients with the heads first."""
    if not how.drops:
        value, y = _centred(value, y)
    kind = _fused(query, key, value, how)
    if kind is None:
        dq, dk, dv = blocks.backward(query, key, value, y, logsumexp, dy, how)
        return dq, _per_group(dk, key), _per_group(dv, value)
    keys, values = _per_head(key, query), _per_head(value, query)
    bias, causal = _bias(query, keys, how)
    if kind == "cpu":
        dq, dk, dv = _flash_on_cpu_backward(
            *(dy, query, keys, values, y, logsumexp, 0.0, causal), attn_mask=bias, scale=how.scale
        )
    else:
        given = query, keys, values, bias, y, logsumexp, dy, causal, how.scale
        dq, dk, dv, _ = _cuda_backward(*given)
    return dq, _per_group(dk, key), _per_group(dv, value)


def _by_device(base, filling, returning):
    """Register a kernel that fills its results, and the CPU's, which returns them."""

    def make(call):
        on_cpu = call.device.kind == "cpu"
        if not on_cpu and call.args.query.dtype != "float64":
            # By blocks it takes long, and a window would be a mask of all scores.
            require_masks_only(call)
        if not on_cpu:
            return OpEnv(bind_kernel(filling, call), allocates=False, strided=False)
        run = _direct(call) if _is_direct(call) else bind_kernel(returning, call)
        run = _compact(run, call)
        return OpEnv(run, allocates=True, strided=False)

    dialect.op(base)(make)


_by_device(op.fused_attention, fused_attention, fused_attention_cpu)
_by_device(op.fused_attention_dx, fused_attention_dx, fused_attention_dx_cpu)


def _cuda_backward(query, key, value, bias, y, logsumexp, dy, causal, scale, by_bias=False):
    # Its forward lays y out as [b, l, h, e]; of another layout it reads wrong elements.
    y = y.transpose(1, 2).contiguous().transpose(1, 2)
    padded = F.pad(logsumexp, (0, -query.shape[2] % 32), value=torch.inf)
    seed = torch.zeros((), dtype=torch.int64, device=query.device)
    return _aten._scaled_dot_product_efficient_attention_backward(
        *(dy, query, key, value, _cuda_bias(bias, query, key), y, padded, seed, seed, 0.0),
        [True, True, True, by_bias],
        causal,
        scale=scale,
    )


def _by_blocks(base, gradient):
    """Register the gradient of what scores are computed of besides query and key."""

    @dialect.kernel(base, plevel=LIBRARY)
    def kernel(
        query, key, value, mask, y, logsumexp, dy, causal, scale, layout, window, slopes,
        dropout_key, dropout_p, out,
    ):  # fmt: skip
        how = _how(query, mask, causal, scale, window, slopes, dropout_key, dropout_p)
        query, key, value, y, dy = _heads_first(layout, query, key, value, y, dy)
        if not how.drops:
            value, y = _centred(value, y)
        out.copy_(gradient(query, key, value, y, logsumexp, dy, how))


def _of_mask(query, key, value, y, logsumexp, dy, how):
    """Return the gradient of a mask that is added, in its shape."""
    if _fused(query, key, value, how) != "cuda":
        return blocks.of_mask(query, key, value, y, logsumexp, dy, how)
    keys, values = _per_head(key, query), _per_head(value, query)
    bias, causal = _bias(query, keys, how)
    given = query, keys, values, bias, y, logsumexp, dy, causal, how.scale
    *_, found = _cuda_backward(*given, by_bias=True)
    mask = how.mask
    shape = (1,) * (4 - mask.ndim) + mask.shape
    repeats = query.shape[0] // shape[0]
    found = found.unflatten(0, (repeats, shape[0])).sum(0, dtype=wide(found.dtype))
    return found.sum_to_size(shape).view(mask.shape)


_by_blocks(op.fused_attention_dmask, _of_mask)
_by_blocks(op.fused_attention_dslopes, blocks.of_slopes)


def _pairs(x, interleaved):
    """Return the first and the second member of each pair, in the computing dtype."""
    x = x.to(wide(x.dtype))
    return (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)


@dialect.kernel(op.rotary_embedding)
def rotary_embedding(x, cos, sin, interleaved):
    a, b = _pairs(x, interleaved)
    cos, sin = cos.to(a.dtype), sin.to(a.dtype)
    turned = a * cos - b * sin, b * cos + a * sin
    y = torch.stack(turned, -1).flatten(-2) if interleaved else torch.cat(turned, -1)
    return y.to(x.dtype)


@dialect.kernel(op.rotary_embedding_dtable)
def rotary_embedding_dtable(x, dy, cos, interleaved):
    (a, b), (p, q) = _pairs(x, interleaved), _pairs(dy, interleaved)
    return tuple(
        t.sum_to_size(cos.shape).to(cos.dtype).contiguous() for t in (p * a + q * b, q * a - p * b)
    )
