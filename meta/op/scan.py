"""Operators whose elements depend on all elements before them along an axis. Add one here."""

from typing import Any

from meta.op.core import DType, Tensor, op
from meta.op.core.axes import along
from meta.op.core.check import normalize_axis, require, require_gradient, require_same_dtype
from meta.op.core.function import as_operand
from meta.op.core.op import ComposedOp
from meta.op.core.reduction import sum_dtype
from meta.op.shapes import reshape


def scan_dtype(own: str, dtype: str | None) -> str:
    """Return the dtype of a scan of elements of the dtype ``own``."""
    return dtype or sum_dtype(own)


@op(axes=along("x"), composed=True, complex=True)
def cumsum(x: Tensor, axis: int, dtype: DType | None = None, exclusive: bool = False) -> Tensor:
    """Sums of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays.

    In a call ``axis`` may be None or left out: x is flattened first, as by NumPy. ``dtype``: to
    which elements are cast first; None is that of `sum`. Half precision is added in float32. In a
    program, ``exclusive`` says that an element is not in its own sum, so that the first is 0.
    TypeInferError for the dtype bool.
    """
    normalize_axis(axis, x.ndim)
    require(dtype != "bool", "bool cannot be accumulated", expected="a dtype of numbers")
    return x.with_dtype(scan_dtype(x.dtype, dtype))


@op(like=cumsum, composed=True, complex=True)
def cumprod() -> None:
    """Products of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays.

    Arguments as of `cumsum`; half precision is multiplied in float32, and the first of an exclusive
    scan is 1. The gradient is right also where elements are 0.
    """


def _define_call(scan: ComposedOp) -> None:
    @scan.calls
    def call(x: Any, axis: int | None = None, dtype: Any = None) -> Any:
        if axis is None:
            x, axis = reshape(as_operand(x), (-1,)), 0
        return scan.plain(x, axis, dtype)


_define_call(cumsum)
_define_call(cumprod)


@op(axes=along("a", "b"), complex=True)
def linear_scan(a: Tensor, b: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """The recurrence ``y[i] = a[i] * y[i - 1] + b[i]`` along ``axis``, from ``y[0] = b[0]``.

    ``reverse``: from the other end, ``y[i] = a[i] * y[i + 1] + b[i]``. ``a`` and ``b`` are floating
    point or complex and of one type, which the result has; half precision is computed in float32.
    It is what gradients of products are made of, and a linear state space model by itself.
    """
    require_gradient(a, "a")
    require_same_dtype(a, b)
    require(a.shape == b.shape, "a and b differ in shape", found=f"{a} and {b}")
    normalize_axis(axis, a.ndim)
    return a
