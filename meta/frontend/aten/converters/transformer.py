"""Layers of transformers that torch runs as one call for inference."""

from meta import op
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible


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
