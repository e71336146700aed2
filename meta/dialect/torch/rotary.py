"""Rotary position embedding on ATen. Half precision is computed in float32."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import wide


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
