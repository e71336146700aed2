"""Gradients of the normalisation by the root mean square."""

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@gradient(op.rms_norm)
def rms_norm(x, scale, bias: TensorType, dy, axis, eps):
    found = op.rms_norm_dx(x, scale, dy, axis, eps)
    dx, dscale = (found, None) if scale is None else found
    if bias is None:
        return dx, dscale, None
    dbias = op.sum(_cast(dy, statistics_dtype(dy.dtype)), axis, 0, True)
    return dx, dscale, _cast(dbias, bias.dtype)


not_differentiable(
    op.rms_norm_dx,
    why="second derivatives of a normalisation go through its statistics; compose it of mean, "
    "multiply and rsqrt to have them",
)
