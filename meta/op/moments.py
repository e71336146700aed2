"""Statistics of elements: variance, standard deviation, logsumexp. Add one here.

``axis``, ``keepdims`` and ``exclude`` are those of `reduce.py`.
"""

from math import inf

from meta.op import reduce
from meta.op.core import Ints, Tensor, op
from meta.op.core.check import require_float
from meta.op.core.reduction import reduction


def _float_reduced(x: Tensor, axis: Ints, keepdims: bool, exclude: bool) -> Tensor:
    require_float(x, "x")
    return x.with_shape(reduction(x.ndim, axis, keepdims, exclude).shape(x.shape))


def per_degree(count: int, correction: int) -> float:
    """Return 1 / (count - correction), inf where no degree of freedom is left.

    It multiplies a sum of squares, so that 0 of them gives NaN, as 0 / 0 does.
    """
    return 1 / (count - correction) if count > correction else inf


@op
def var(
    x: Tensor,
    axis: Ints = (),
    keepdims: bool = False,
    exclude: bool = False,
    correction: int = 1,
) -> Tensor:
    """The variance: the sum of (x - mean)² over n elements, divided by n - ``correction``.

    x: floating point; half precision is computed in float32. The result has its dtype. It is NaN
    (or inf, if the sum is not 0) where n <= ``correction``, and NaN if there are no elements.
    """
    return _float_reduced(x, axis, keepdims, exclude)


@op(schema=var)
def std(
    x: Tensor,
    axis: Ints = (),
    keepdims: bool = False,
    exclude: bool = False,
    correction: int = 1,
) -> Tensor:
    """The standard deviation, sqrt(`var`). Its gradient where it is 0 is taken as 0."""
    return _float_reduced(x, axis, keepdims, exclude)


@op
def logsumexp(x: Tensor, axis: Ints = (), keepdims: bool = False, exclude: bool = False) -> Tensor:
    """log(sum(exp(x))), computed on x - max(x) so that nothing overflows.

    x: floating point; half precision is computed in float32. The result has its dtype; it is -inf
    if there are no elements.
    """
    return _float_reduced(x, axis, keepdims, exclude)


@op(schema=reduce.max)
def amax(x: Tensor, axis: Ints = (), keepdims: bool = False, exclude: bool = False) -> Tensor:
    """`max` under the name that torch has for it: several axes, the gradient shared by ties."""
    result: Tensor = reduce.max.type_function(x, axis, keepdims, exclude)
    return result


@op(schema=reduce.min)
def amin(x: Tensor, axis: Ints = (), keepdims: bool = False, exclude: bool = False) -> Tensor:
    """`min` under the name that torch has for it: several axes, the gradient shared by ties."""
    result: Tensor = reduce.min.type_function(x, axis, keepdims, exclude)
    return result
