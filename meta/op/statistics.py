"""Functions of samples and of tables by NumPy's names, composed of operators: covariances, straight
lines between points, orders by several keys, parts of floating point numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any, NamedTuple

from meta import op
from meta.base.dtype import COMPLEX, is_float
from meta.base.errors import ArgumentError
from meta.op.core.function import as_operand, function

_HALF = ("float16", "bfloat16")


def _as_floats(x: Any, name: str) -> Any:
    """Return an argument with real floating point elements: integers and bools are float32."""
    x = as_operand(x)
    if x.dtype in COMPLEX:
        raise ArgumentError(f"{name} takes real numbers", found=str(x.dtype))
    return x if is_float(x.dtype) else op.astype(x, "float32")


@function
def cov(x: Any, /, *, correction: int = 1) -> Any:
    """Return the covariances of variables, of which each row of ``x`` has the observations.

    x: (variables, observations), or a vector, one variable; real; integers count as float32.
    correction: what is subtracted from the number of observations. Result: (variables, variables),
    of one variable (); NaN or inf where no degree of freedom is left. As NumPy's and torch's.
    Raises ArgumentError for other axes and for complex numbers.

    >>> meta.cov(meta.random.normal((3, 8))).shape
    (3, 3)
    """
    x = _as_floats(x, "cov")
    if x.ndim > 2:
        raise ArgumentError("cov takes rows of observations", expected="ndim <= 2", found=x.shape)
    rows = x if x.ndim == 2 else op.reshape(x, (1, -1))
    centred = op.subtract(rows, op.mean(rows, 1, True))
    degrees = rows.shape[1] - correction
    scatter = op.matmul(centred, op.swapaxes(centred, 0, 1))
    found = op.divide(scatter, float(max(degrees, 0)))
    return op.reshape(found, ()) if rows.shape[0] == 1 else found


@function
def corrcoef(x: Any, /) -> Any:
    """Return the correlations, from -1 to 1, of variables, of which each row of ``x`` has the
    observations.

    x: as of `cov`, whose shape the result has; NaN for a variable without variance. As NumPy's and
    torch's. Raises ArgumentError as `cov` does.

    >>> meta.corrcoef(meta.random.normal((3, 8))).shape
    (3, 3)
    """
    covariance = cov(x)
    if covariance.ndim == 0:
        return op.divide(covariance, covariance)
    deviation = op.sqrt(op.diagonal(covariance))
    found = op.divide(op.divide(covariance, op.expand_dims(deviation, 1)), deviation)
    return op.clip(found, -1.0, 1.0)


@function
def interp(x: Any, xp: Any, fp: Any, /, left: Any = None, right: Any = None) -> Any:
    """Return the values at ``x`` of the straight lines between the points (xp, fp).

    x: any shape, real. xp: ascending, a vector; fp: its values. Integers count as float32, and the
    dtypes are promoted. left, right: the values before xp[0] and behind xp[-1]; None: fp[0] and
    fp[-1]. A NaN stays. Gradients reach x, xp and fp. As NumPy's, without a period. Raises
    ArgumentError for what is no vector, an empty one, and other lengths.

    >>> meta.interp(meta.array([0.5]), meta.array([0.0, 1.0]), meta.array([0.0, 10.0])).tolist()
    [5.0]
    """
    x, xp, fp = (_as_floats(a, "interp") for a in (x, xp, fp))
    if xp.ndim != 1 or xp.shape != fp.shape or xp.shape[0] == 0:
        raise ArgumentError(
            "points are two vectors of one length, 1 or more", found=f"{xp.shape} and {fp.shape}"
        )
    zero = op.sum(xp[:0]) + op.sum(fp[:0]) + op.zeros_like(x)  # of the dtype of all
    x, xp, fp = (op.astype(a, zero.dtype) for a in (x, xp, fp))
    first, last = xp[0], xp[-1]
    above = op.clip(op.searchsorted(xp, x, "right"), 1, max(xp.shape[0] - 1, 1))
    below = above - 1
    above = op.minimum(above, xp.shape[0] - 1)
    x0, x1, f0, f1 = (op.take(a, i) for a in (xp, fp) for i in (below, above))
    width = op.subtract(x1, x0)
    flat = op.equal(width, 0)
    outside = op.logical_or(op.less(x, first), op.greater(x, last))
    along = op.subtract(op.where(outside, x0, x), x0)  # an infinite one has a gradient of 0
    share = op.divide(along, op.where(flat, 1.0, width))
    found = op.add(f0, op.multiply(op.where(flat, 0.0, share), op.subtract(f1, f0)))
    found = op.where(op.less(x, first), fp[0] if left is None else left, found)
    found = op.where(op.greater(x, last), fp[-1] if right is None else right, found)
    found = op.where(op.equal(x, last), fp[-1], found)
    return op.where(op.isnan(x), x, found)


@function
def lexsort(keys: Any, /, axis: int = -1) -> Any:
    """Return the indices (int64) that sort by several keys along ``axis``, by the last one first.

    keys: a sequence of arrays of one shape, or an array whose first axis has them. Stable. As
    NumPy's. Raises ArgumentError for no key.

    >>> meta.lexsort((meta.array([2, 1, 0]), meta.array([0, 1, 0]))).tolist()
    [2, 0, 1]
    """
    rows = [as_operand(k) for k in (keys if isinstance(keys, Sequence) else list(keys))]
    if not rows:
        raise ArgumentError("lexsort sorts by one key or more", found="none")
    if rows[0].ndim == 0:
        return op.zeros((), "int64")
    order = op.argsort(rows[0], axis)
    for key in rows[1:]:
        by_key = op.argsort(op.take_along_axis(key, order, axis), axis)
        order = op.take_along_axis(order, by_key, axis)
    return order


@function
def unravel_index(indices: Any, shape: Any, /) -> tuple[Any, ...]:
    """Return the indices along each axis of ``shape`` of indices into its elements in row-major
    order.

    indices: integers of any shape. shape: ints, or one. Result: an array of the shape and dtype of
    ``indices`` for each axis. As NumPy's and torch's; indices beyond the shape, which NumPy
    refuses, are ArgumentErrors where their values are known.

    >>> [x.item() for x in meta.unravel_index(meta.array(5), (2, 3))]
    [1, 2]
    """
    found = as_operand(indices)
    extents = tuple(shape) if isinstance(shape, tuple | list) else (shape,)
    if is_float(found.dtype) or found.dtype in (*COMPLEX, "bool"):
        raise ArgumentError("indices are integers", found=str(found.dtype))
    size = prod(extents)
    if hasattr(found, "tensor") and found.size:
        least, most = op.min(found).item(), op.max(found).item()
        if least < 0 or most >= size:
            raise ArgumentError(
                "an index is beyond the shape",
                op="unravel_index",
                expected=f"0 <= index < {size}",
                found=f"indices from {least} to {most}",
            )
    parts: list[Any] = []
    for extent in reversed(extents):
        parts.append(op.remainder(found, max(extent, 1)))
        found = op.floor_divide(found, max(extent, 1))
    return tuple(reversed(parts))


class Frexp(NamedTuple):
    """Result of `frexp`."""

    mantissa: Any
    exponent: Any


@function
def frexp(x: Any, /) -> Frexp:
    """Return (mantissa, exponent) with x = mantissa * 2**exponent, 0.5 <= abs(mantissa) < 1.

    x: real; integers count as float32. mantissa: its shape and dtype, with the gradient of
    ``x * 2**-exponent``. exponent: int32. Of 0, inf and NaN the mantissa is x, the exponent 0. As
    NumPy's and torch's. Raises ArgumentError for complex numbers.

    >>> [x.tolist() for x in meta.frexp(meta.array([1.0, 6.0]))]
    [[0.5, 0.75], [1, 3]]
    """
    x = _as_floats(x, "frexp")
    value = op.astype(x, "float32") if x.dtype in _HALF else x
    plain = op.logical_and(op.isfinite(value), op.not_equal(value, 0))
    size = op.abs(op.where(plain, value, 1.0))
    # The logarithm may be off by a rounding, and the power of a large exponent out of range: it is
    # multiplied in two steps, and the mantissa says whether one more or less is right.
    exponent = op.add(op.floor(op.log2(size)), 1.0)
    mantissa = _scaled(op.where(plain, value, 1.0), exponent)
    off = op.subtract(
        op.astype(op.greater_equal(op.abs(mantissa), 1.0), value.dtype),
        op.astype(op.less(op.abs(mantissa), 0.5), value.dtype),
    )
    exponent = op.add(exponent, off)
    mantissa = op.where(plain, _scaled(mantissa, off), value)
    counted = op.astype(op.where(plain, exponent, 0.0), "int32")
    return Frexp(op.astype(mantissa, x.dtype), counted)


def _scaled(x: Any, exponent: Any) -> Any:
    """Return x * 2**-exponent, of whole exponents."""
    half = op.trunc(op.multiply(exponent, 0.5))
    return op.ldexp(op.ldexp(x, op.negative(half)), op.subtract(half, exponent))
