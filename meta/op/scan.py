"""Operators whose elements depend on all elements before them along an axis. Add one here."""

from meta.base.dtype import has_gradient
from meta.op.core import DType, Tensor, op
from meta.op.core.check import normalize_axis, require, require_gradient, require_same_dtype


def scanned_dtype(own: str, dtype: str | None) -> str:
    """Return the dtype of a scan of elements of the dtype ``own``."""
    return dtype or (own if has_gradient(own) else "int64")


@op(complex=True)
def cumsum(x: Tensor, axis: int, dtype: DType | None = None, exclusive: bool = False) -> Tensor:
    """Sums of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays.

    ``dtype``: to which elements are cast first; None is that of ``x`` if it is floating point or
    complex, else int64. Half precision is added in float32. ``exclusive``: an element is not in its
    own sum, so that the first is 0. TypeInferError for the dtype bool.
    """
    normalize_axis(axis, x.ndim)
    require(dtype != "bool", "bool cannot be accumulated", expected="a dtype of numbers")
    return x.with_dtype(scanned_dtype(x.dtype, dtype))


@op(like=cumsum, complex=True)
def cumprod() -> None:
    """Products of the elements up to each along ``axis``, in ``dtype``; the shape of ``x`` stays.

    ``dtype``: as of `cumsum`; half precision is multiplied in float32. ``exclusive``: an element is
    not in its own product, so that the first is 1. TypeInferError for the dtype bool. The gradient
    is right also where elements are 0.
    """


@op(complex=True)
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
