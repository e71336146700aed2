"""Reductions along axes.

``axis`` is an int or several; None means all axes and () none of them. ``keepdims`` leaves the
reduced axes in place with size 1.
"""

from collections.abc import Callable
from math import inf
from typing import Any

from meta.base.dtype import canonical
from meta.base.registry import OPERATORS
from meta.op.core import Ints, Tensor, op
from meta.op.core.axes import reduction_axes
from meta.op.core.check import (
    extents_of,
    require,
    require_float,
    require_gradient,
    require_same_dtype,
    require_shape,
)
from meta.op.core.elementwise import with_docstring
from meta.op.core.names import Names
from meta.op.core.reduction import reduction, sum_dtype

Axes = Ints | None


def _reduced(x: Tensor, axis: Axes, keepdims: bool | Ints, dtype: str) -> Tensor:
    return Tensor(reduction(x.ndim, axis, keepdims).shape(x.shape), dtype)


def _back(x: Tensor, dy: Tensor, axis: Axes, keepdims: bool | Ints) -> Tensor:
    reduced = _reduced(x, axis, keepdims, x.dtype)
    require_shape(dy, reduced, "dy has another shape than the reduction")
    return x


@op(axes=reduction_axes, composed=True, complex=True)
def sum(x: Tensor, axis: Axes = None, keepdims: bool | Ints = False) -> Tensor:
    """The sum of elements; 0 if there are none.

    Bool and signed integers give int64, unsigned ones uint64; both wrap. ``dtype``: in a call, to
    which elements are cast before, and that of the result. ``keepdims`` may also be a tuple, one
    flag per entry of ``axis`` (as from `get_kept_dims`).
    """
    return _reduced(x, axis, keepdims, sum_dtype(x.dtype))


def in_dtype_of_sum(reduce: Callable[..., Any], x: Any, dtype: Any) -> Any:
    """Return ``reduce(x)``, which adds or multiplies, in a dtype to which elements are cast."""
    astype = OPERATORS["astype"]
    found = reduce(x if dtype is None else astype(x, dtype))
    return found if dtype is None or found.dtype == canonical(dtype) else astype(found, dtype)


@sum.calls
def _sum(x: Any, axis: Any = None, keepdims: Any = False, dtype: Any = None) -> Any:
    if dtype is None:
        return sum.plain(x, axis, keepdims)
    return in_dtype_of_sum(lambda t: sum.plain(t, axis, keepdims), x, dtype)


@op(axes=reduction_axes, options=sum, complex=True)
def sum_dx(x: Tensor, dy: Tensor, *options: Any) -> Tensor:
    """The gradient of `sum` at ``x``: ``dy`` repeated along the summed axes.

    Of ``x`` only the type counts.
    """
    return _back(x, dy, *options)


@op(
    axes=reduction_axes,
    complex=True,
    promotes=("x",),
    counts_as_float=True,
    names=Names("array_api"),
)
def mean(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The arithmetic mean; NaN if there are no elements.

    x: floating point or complex; integers and bools of a call count as float32. TypeInferError for
    others.
    """
    require_gradient(x, "x")
    return _reduced(x, axis, keepdims, x.dtype)


@op(axes=reduction_axes, options=mean, complex=True)
def mean_dx(dy: Tensor, shape: Ints, *options: Any) -> Tensor:
    """The gradient of `mean` at an argument of ``shape``: dy / n, repeated along reduced axes."""
    require_gradient(dy, "dy")
    return _back(dy.with_shape(extents_of(shape)), dy, *options)


def _require_elements(x: Tensor, axis: Axes) -> None:
    axes = reduction(x.ndim, axis, False).axes
    require(
        0 not in [x.shape[a] for a in axes],
        "there are no elements to choose from",
        expected="reduced axes of extent 1 or more",
        found=f"axis {axes} of {x}",
    )


def _int64(_: str) -> str:
    return "int64"


def _bool(_: str) -> str:
    return "bool"


CHOICES: dict[str, tuple[Callable[[str], str], str]] = {
    "max": (str, "The largest element. NaN if one is NaN. Any dtype."),
    "min": (str, "The smallest element. NaN if one is NaN. Any dtype."),
    "argmax": (_int64, "The index (int64) of the first largest one; a NaN counts as largest."),
    "argmin": (
        _int64,
        "The index (int64) of the first smallest element; a NaN counts as smallest.",
    ),
}
"""Which element is chosen, and the result's dtype of the argument's."""
CHOSEN = """TypeInferError if there are no elements. An index is, over several axes, one into these
axes flattened in row-major order. The gradient of an element is shared evenly among equal ones."""
ALL: dict[str, tuple[Callable[[str], str], str]] = {
    "all": (_bool, "Whether no element is 0 (bool); true if there are none."),
    "any": (_bool, "Whether an element is not 0 (bool); false if there are none."),
}
"""What all elements make, of none of them too."""


def _define(name: str, dtype_of: Callable[[str], str], what: str) -> None:
    @op(name=name, axes=reduction_axes, complex=name in ALL, names=Names("array_api"))
    @with_docstring(f"{what}\n\n{CHOSEN}" if name in CHOICES else what)
    def reduce(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
        if name in CHOICES:
            _require_elements(x, axis)
        return _reduced(x, axis, keepdims, dtype_of(x.dtype))


for _name, _row in {**CHOICES, **ALL}.items():
    _define(_name, *_row)


@op(axes=reduction_axes, composed=True, complex=True)
def prod(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """The product of elements; 1 if there are none. Dtypes as of `sum`."""
    return _reduced(x, axis, keepdims, sum_dtype(x.dtype))


@prod.calls
def _prod(x: Any, axis: Any = None, keepdims: Any = False, dtype: Any = None) -> Any:
    if dtype is None:
        return prod.plain(x, axis, keepdims)
    return in_dtype_of_sum(lambda t: prod.plain(t, axis, keepdims), x, dtype)


@op(axes=reduction_axes, options=mean, complex=True)
def prod_dx(x: Tensor, dy: Tensor, *options: Any) -> Tensor:
    """The gradient of `prod` at ``x``: dy times the product of all other elements.

    It is right also where elements are 0.
    """
    require_gradient(x, "x")
    require_same_dtype(x, dy)
    return _back(x, dy, *options)


def per_degree(count: int, correction: int | float) -> float:
    """Return 1 / (count - correction), inf where no degree of freedom is left.

    It multiplies a sum of squares, so that 0 of them gives NaN, as 0 / 0 does.
    """
    return 1 / (count - correction) if count > correction else inf


@op(axes=reduction_axes, promotes=("x",), counts_as_float=True)
def var(
    x: Tensor,
    axis: Axes = None,
    keepdims: bool = False,
    correction: int | float = 0.0,
) -> Tensor:
    """The variance: the sum of (x - mean)² over n elements, divided by n - ``correction``.

    ``correction``: 0, the default, as NumPy and the Array API have it; 1, torch's default, gives
    the unbiased estimate; it may be a fraction. x: floating point; half precision is computed in
    float32. The result has its dtype. It is NaN (or inf, if the sum is not 0) where
    n <= ``correction``, and NaN if there are no elements.
    """
    require_float(x, "x")
    return _reduced(x, axis, keepdims, x.dtype)


@op(like=var, promotes=("x",), counts_as_float=True)
def std() -> None:
    """The standard deviation, sqrt(`var`). Its gradient where it is 0 is taken as 0."""


@op(axes=reduction_axes)
def logsumexp(x: Tensor, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))), computed on x - max(x) so that nothing overflows.

    x: floating point; half precision is computed in float32. The result has its dtype; it is -inf
    if there are no elements.
    """
    require_float(x, "x")
    return _reduced(x, axis, keepdims, x.dtype)
