"""Attention.

The fused forms of torch return the logarithm of the sum of exponentials for their gradients, which
`fused_attention` returns too. Forms with dropout save the state of torch's generator instead of
what was dropped; they are not converted.
"""

import math

from meta import op
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.converters.activation import safe_softmax
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible

DROPS = "it drops weights by the state of torch's generator"


@aten("_masked_softmax", op.softmax, op.where)
def masked_softmax(x, mask, *, dim, mask_type):
    """Without what the mask is true for; NaN in rows without anything."""
    kept = op.where(_spread(mask, x, mask_type), -math.inf, x)
    return op.softmax(kept, -1 if dim is None else dim)


def _spread(mask, x, mask_type):
    """Return a mask of the scores [b, h, l, l] of what it has: [l, l] or [b, l]."""
    if mask_type == 0:
        mask = op.reshape(mask, (1, 1, *mask.shape))
    elif mask_type == 1:
        mask = op.reshape(mask, (mask.shape[0], 1, 1, mask.shape[1]))
    return op.broadcast_to(mask, tuple(x.shape))


@aten("_masked_softmax_backward", op.softmax_dx, op.where)
def masked_softmax_backward(dy, y, mask, *, dim):
    dx = op.softmax_dx(y, dy, -1 if dim is None else dim)
    return op.where(mask, 0.0, dx)


@aten("scaled_dot_product_attention", op.scaled_dot_product_attention)
def attention(query, key, value, mask, *, dropout_p, is_causal, scale, enable_gqa):
    return op.scaled_dot_product_attention(
        query, key, value, mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )


@aten("_scaled_dot_product_attention_math", op.matmul, op.softmax)
def attention_math(
    query, key, value, mask, dropout_mask, *, dropout_p, is_causal, scale, enable_gqa
):
    """The result, and the weights, which are left out of a program that does not read them."""
    if dropout_p:
        raise Unconvertible(DROPS)
    if enable_gqa:
        key, value = (op.repeat(t, query.shape[-3] // t.shape[-3], -3) for t in (key, value))
    scale = _scale(query, scale)
    scores = op.multiply(op.matmul(query, op.swapaxes(key, -1, -2)), scale)
    if is_causal:
        allowed = op.tril(op.ones_like(scores, "bool"))
        scores = op.where(allowed, scores, -math.inf)
    if mask is not None:
        if mask.dtype == "bool":
            scores = op.where(mask, scores, -math.inf)
        else:
            scores = op.add(scores, mask)
    weights = safe_softmax(scores, dim=-1, dtype=None)
    return op.matmul(weights, value), weights


def _scale(query, scale):
    return max(query.shape[-1], 1) ** -0.5 if scale is None else scale


def _forward(query, key, value, mask, dropout_p, is_causal, scale):
    """Return the result and the logarithm of sums, with gradients' masks in query's dtype."""
    if dropout_p:
        raise Unconvertible(DROPS)
    return op.fused_attention(query, key, value, _mask(query, mask), is_causal, scale)


def _mask(query, mask):
    return mask if mask is None or mask.dtype == "bool" else cast(mask, query.dtype)


def _gradients(dy, query, key, value, mask, y, logsumexp, dropout_p, is_causal, scale):
    if dropout_p:
        raise Unconvertible(DROPS)
    given = (query, key, value, _mask(query, mask), y, logsumexp, dy)
    return op.fused_attention_dx(*given, is_causal, scale)


def _seeds(call, dtype="int64", first=()):
    """Return what is in the place of a generator's state where nothing is drawn."""
    device = str(call.device)
    return op.zeros(first, dtype, device), op.zeros((), dtype, device)


@aten("_scaled_dot_product_flash_attention_for_cpu", op.fused_attention)
def flash_for_cpu(query, key, value, mask, *, dropout_p, is_causal, scale):
    return _forward(query, key, value, mask, dropout_p, is_causal, scale)


@aten("_scaled_dot_product_flash_attention_for_cpu_backward", op.fused_attention_dx)
def flash_for_cpu_backward(
    dy, query, key, value, y, logsumexp, mask, *, dropout_p, is_causal, scale
):
    return _gradients(dy, query, key, value, mask, y, logsumexp, dropout_p, is_causal, scale)


@aten("_scaled_dot_product_flash_attention", op.fused_attention)
def flash(query, key, value, *, dropout_p, is_causal, scale, call):
    y, logsumexp = _forward(query, key, value, None, dropout_p, is_causal, scale)
    lengths = query.shape[2], key.shape[2]
    nothing = op.zeros((0,), query.dtype, str(call.device))
    return y, logsumexp, None, None, *lengths, *_seeds(call, "uint64", (2,)), nothing


@aten(
    "_scaled_dot_product_flash_attention_backward",
    op.fused_attention_dx,
    ignore=("max_q", "max_k"),
)
def flash_backward(
    dy, query, key, value, y, logsumexp, _q, _k, _seed, _offset, *, dropout_p, is_causal, scale
):
    return _gradients(dy, query, key, value, None, y, logsumexp, dropout_p, is_causal, scale)


@aten("_scaled_dot_product_efficient_attention", op.fused_attention)
def efficient(query, key, value, mask, *, compute_log_sumexp, dropout_p, is_causal, scale, call):
    """Its sums are padded to multiples of 32 queries, or left out."""
    y, logsumexp = _forward(query, key, value, mask, dropout_p, is_causal, scale)
    logsumexp = cast(logsumexp, "float32")
    if not isinstance(query.shape[2], int):
        raise Unconvertible("it pads sums of a length that is not known")
    if compute_log_sumexp:
        if more := -query.shape[2] % 32:
            logsumexp = op.pad(logsumexp, ((0, 0), (0, 0), (0, more)), constant_values=math.inf)
    else:
        logsumexp = logsumexp[:, :, :0]
    return y, logsumexp, *_seeds(call)


@aten("_scaled_dot_product_efficient_attention_backward", op.fused_attention_dx)
def efficient_backward(
    dy,
    query,
    key,
    value,
    mask,
    y,
    logsumexp,
    _seed,
    _offset,
    *,
    dropout_p,
    grad_input_mask,
    is_causal,
    scale,
):
    logsumexp = logsumexp[:, :, : query.shape[2]]
    given = (dy, query, key, value, mask, y, logsumexp, dropout_p, is_causal, scale)
    by_mask = None
    if mask is not None and grad_input_mask[3]:
        own = (query, key, value, _mask(query, mask), y, logsumexp, dy)
        by_mask = cast(op.fused_attention_dmask(*own, is_causal, scale), mask.dtype)
    found = (*_gradients(*given), by_mask)
    return tuple(g if w else None for g, w in zip(found, grad_input_mask, strict=True))


@aten("_scaled_dot_product_cudnn_attention", op.fused_attention, ignore=("compute_log_sumexp",))
def cudnn(query, key, value, mask, *, dropout_p, is_causal, scale, call):
    y, logsumexp = _forward(query, key, value, mask, dropout_p, is_causal, scale)
    lengths = query.shape[2], key.shape[2]
    return y, op.expand_dims(logsumexp, 3), None, None, *lengths, *_seeds(call), None


@aten(
    "_scaled_dot_product_cudnn_attention_backward",
    op.fused_attention_dx,
    ignore=("max_q", "max_k"),
)
def cudnn_backward(
    dy,
    query,
    key,
    value,
    y,
    logsumexp,
    _seed,
    _offset,
    mask,
    _q,
    _k,
    *,
    dropout_p,
    is_causal,
    scale,
):
    logsumexp = op.reshape(logsumexp, tuple(query.shape[:3]))
    return _gradients(dy, query, key, value, mask, y, logsumexp, dropout_p, is_causal, scale)


aten.refuse(
    "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_fused_attention_overrideable_backward",
    "_scaled_dot_product_attention_math_for_mps",
    why="it is of a device that is not supported",
)
aten.refuse("_scaled_dot_product_flash_attention.quantized", why="its operands are quantised")
aten.refuse(
    "_flash_attention_forward",
    "_flash_attention_backward",
    "_efficient_attention_forward",
    "_efficient_attention_backward",
    "_cudnn_attention_forward",
    "_cudnn_attention_backward",
    why="it takes sequences of several lengths in one tensor",
)


# Layers of transformers that torch runs as one call for inference.


def _allowed(mask, mask_type, shape):
    """Return what may be looked at, of a mask that is true for what may not, or None.

    mask_type: 0 of queries by keys [l, l], 1 of keys [b, l], 2 of scores [b, h, l, l].
    """
    if mask is None:
        return None
    if mask.dtype != "bool":
        mask = op.not_equal(mask, 0)
    if mask_type == 1:
        mask = op.reshape(mask, (shape[0], 1, 1, shape[1]))
    return op.logical_not(mask)


def _heads(x, heads):
    """Return [b, l, h * d] as [b, h, l, d]."""
    batch, length, width = x.shape
    return op.permute_dims(op.reshape(x, (batch, length, heads, width // heads)), (0, 2, 1, 3))


def _attention(x, heads, qkv_weight, qkv_bias, weight, bias, mask, mask_type):
    """Return the attention of a sequence to itself, projected."""
    rows = op.linear(x, qkv_weight, qkv_bias)
    q, k, v = (_heads(part, heads) for part in op.split(rows, 3, 2))
    y = op.scaled_dot_product_attention(q, k, v, _allowed(mask, mask_type, x.shape))
    return op.linear(op.reshape(op.permute_dims(y, (0, 2, 1, 3)), tuple(x.shape)), weight, bias)


@aten("_native_multi_head_attention", op.linear, op.fused_attention, ignore=("embed_dim",))
def native_multi_head_attention(
    query,
    key,
    value,
    qkv_weight,
    qkv_bias,
    weight,
    bias,
    mask,
    *,
    num_head,
    need_weights,
    average_attn_weights,
    mask_type,
):
    if need_weights:
        raise Unconvertible("it returns the weights of attention")
    if query is not key or key is not value:
        raise Unconvertible("it is attention of one sequence to another")
    return _attention(query, num_head, qkv_weight, qkv_bias, weight, bias, mask, mask_type), None


@aten(
    "_transformer_encoder_layer_fwd",
    op.linear,
    op.layer_norm,
    op.fused_attention,
    ignore=("embed_dim",),
)
def transformer_encoder_layer(
    x,
    qkv_weight,
    qkv_bias,
    weight,
    bias,
    norm_weight_1,
    norm_bias_1,
    norm_weight_2,
    norm_bias_2,
    ffn_weight_1,
    ffn_bias_1,
    ffn_weight_2,
    ffn_bias_2,
    mask,
    *,
    num_heads,
    use_gelu,
    norm_first,
    eps,
    mask_type,
):
    width = (x.shape[-1],)

    def norm(t, scale, offset):
        return op.layer_norm(t, width, scale, offset, eps)

    def attend(t):
        return _attention(t, num_heads, qkv_weight, qkv_bias, weight, bias, mask, mask_type)

    def feed(t):
        inner = op.linear(t, ffn_weight_1, ffn_bias_1)
        inner = op.gelu(inner) if use_gelu else op.relu(inner)
        return op.linear(inner, ffn_weight_2, ffn_bias_2)

    if norm_first:
        x = op.add(x, attend(norm(x, norm_weight_1, norm_bias_1)))
        return op.add(x, feed(norm(x, norm_weight_2, norm_bias_2)))
    x = norm(op.add(x, attend(x)), norm_weight_1, norm_bias_1)
    return norm(op.add(x, feed(x)), norm_weight_2, norm_bias_2)
