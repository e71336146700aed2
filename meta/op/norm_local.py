"""Normalisation by a neighbourhood's or a vector's length, without parameters. Add one here."""

from meta.op.core import Ints, Tensor, op
from meta.op.core.check import normalize_axes, normalize_axis, require, require_float


def _window(x: Tensor, size: int, axis: int) -> None:
    require_float(x, "x")
    normalize_axis(axis, x.ndim)
    require(size >= 1, "size must be positive", found=size)


@op
def lrn(
    x: Tensor,
    size: int = 5,
    axis: int = 1,
    bias: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
) -> Tensor:
    """Local response normalisation: ``x / (bias + alpha / size * sum(x²)) ** beta``.

    The sum is over ``size`` neighbours along ``axis``, from ``size // 2`` before to
    ``(size - 1) // 2`` behind, those outside being 0 (Krizhevsky et al., 2012, section 3.3; as
    torch's `local_response_norm`, whose ``k`` is ``bias``).

    x: floating point. Result: its type; half precision is computed in float32.
    """
    _window(x, size, axis)
    return x


@op
def lrn_dx(
    x: Tensor,
    dy: Tensor,
    size: int = 5,
    axis: int = 1,
    bias: float = 1.0,
    alpha: float = 1e-4,
    beta: float = 0.75,
) -> Tensor:
    """Gradient of `lrn`.

    With d = bias + alpha / size * sum(x²): ``dx = dy / d**beta - 2 alpha beta / size * x * s``, s
    being the sum of ``dy x / d**(beta + 1)`` over the places whose neighbourhood holds the element.

    x: the argument. dy: the gradient of the result, of the same type. Result: the same type.
    """
    _window(x, size, axis)
    require(dy == x or not dy.is_static, "dy is not of x's type", expected=x, found=dy)
    return x


@op
def l2_normalize(x: Tensor, eps: float = 1e-12, axis: Ints = ()) -> Tensor:
    """Scale vectors to length 1: ``x / sqrt(max(sum(x²), eps))``.

    A vector lies along ``axis``, an int or several; () means all axes. Note that ``eps`` bounds
    the square of the length.

    x: floating point. Result: its type; half precision is computed in float32.
    """
    require_float(x, "x")
    normalize_axes(axis, x.ndim)
    return x


@op
def l2norm(x: Tensor) -> Tensor:
    """The Euclidean length of all elements, sqrt(sum(x²)), as a 0-d array; 0 if there are none.

    x: floating point, any shape; half precision is summed in float32. The gradient at length 0 is
    taken as 0.
    """
    require_float(x, "x")
    return x.with_shape(())
