"""Normalisation of groups of channels, per example. See `norm.py` for precision of parameters."""

from meta.op.core import Tensor, TensorType, op
from meta.op.core.check import require, require_float
from meta.op.norm import check_parameters


def _grouped(x: TensorType, num_groups: int, **parameters: TensorType | None) -> None:
    """Check x, the number of groups, and per-channel tensors."""
    require_float(x, "x")
    require(x.ndim >= 2, "x must have a channel axis", expected="ndim >= 2", found=str(x))
    channels = x.shape[1]
    divides = num_groups >= 1 and (not isinstance(channels, int) or channels % num_groups == 0)
    require(
        divides,
        "num_groups must divide the number of channels",
        expected=f"a divisor of {channels}",
        found=num_groups,
    )
    check_parameters(x, channels, parameters)


@op
def group_norm(
    x: Tensor,
    num_groups: int,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    """Normalise each group of adjacent channels: ``(x - mean) / sqrt(var + eps) * scale + bias``.

    mean and (biased) variance are those of one example's ``C / num_groups`` channels, over all
    spatial axes (Wu and He, arXiv:1803.08494), in float32 for half precision.

    x: floating point [N, C, ...]. num_groups: a divisor of C. scale, bias: [C], of x's dtype, or
    float32 where x is half; left out 1 and 0. Result: x's type.

    Raises TypeInferError if num_groups, a shape or a dtype does not fit.
    """
    _grouped(x, num_groups, scale=scale, bias=bias)
    return x


@op
def instance_norm(
    x: Tensor, scale: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """Normalise each channel of each example: `group_norm` with one channel per group.

    Ulyanov et al., arXiv:1607.08022. x: floating point [N, C, ...]; the rest as in `group_norm`.
    """
    _grouped(x, 1, scale=scale, bias=bias)
    return x


@op
def group_norm_dx(
    x: Tensor, num_groups: int, scale: Tensor | None, dy: Tensor, eps: float = 1e-5
) -> TensorType | tuple[TensorType, TensorType, TensorType]:
    """Gradients of `group_norm`: dx alone if ``scale`` is None, else (dx, dscale, dbias).

    With xhat = (x - mean) * invvar and g = dy * scale:
    ``dx = invvar * (g - mean(g) - xhat * mean(g * xhat))`` within each group, and per channel
    ``dscale = sum(dy * xhat)``, ``dbias = sum(dy)``. dx has x's type, the others have scale's.
    """
    _grouped(x, num_groups, scale=scale)
    require(dy == x or not dy.is_static, "dy is not of x's type", expected=x, found=dy)
    return x if scale is None else (x, scale, scale)
