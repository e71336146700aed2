"""Gradients of the normalisation of groups of channels."""

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.ir.types import TensorType
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


def _gradients(x, num_groups, scale, bias, dy, eps):
    """Return the gradients by slot: x, scale, bias."""
    found = op.group_norm_dx(x, num_groups, scale, dy, eps)
    dx, dscale, dbias = (found, None, None) if scale is None else found
    if bias is None:
        return dx, dscale, None
    if dbias is None:
        dbias = op.sum(_cast(dy, statistics_dtype(dy.dtype)), 1, 0, True)
    return dx, dscale, _cast(dbias, bias.dtype)


@gradient(op.group_norm)
def group_norm(x, num_groups, scale, bias: TensorType, dy, eps):
    return _gradients(x, num_groups, scale, bias, dy, eps)


@gradient(op.instance_norm)
def instance_norm(x, scale, bias: TensorType, dy, eps):
    # Without channels there is nothing to divide into groups: one group of none.
    return _gradients(x, max(x.shape[1], 1), scale, bias, dy, eps)


not_differentiable(
    op.group_norm_dx,
    why="second derivatives of a normalisation go through its statistics; compose it of mean, "
    "subtract, multiply and rsqrt to have them",
)
