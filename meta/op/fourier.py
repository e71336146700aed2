"""Complex numbers, and the discrete Fourier transforms of `meta.fft`.

A complex tensor is complex64, with float32 parts, or complex128, with float64 parts. A transform is
``y[j] = c * sum(x[k] * exp(-2i * pi * j * k / n))`` along each of its axes, the inverse one has
a positive exponent. ``norm`` says what c is: "backward" 1, and 1 / n in the inverse; "forward" the
other way round; "ortho" 1 / sqrt(n) in both.
"""

from __future__ import annotations

from meta.base.dtype import COMPLEX, REAL_OF, complex_of
from meta.base.errors import TypeInferError
from meta.op.core import Ints, Tensor, op
from meta.op.core.axes import along
from meta.op.core.check import broadcast_shapes, normalize_axes, require, require_same_dtype
from meta.op.core.names import Names

SCALES = {"backward": "forward", "forward": "backward", "ortho": "ortho"}
"""Where a transform is divided, and where it is in the transform with the same factor that goes the
other way.
"""


def _require_complex(x: Tensor) -> None:
    """Raise TypeInferError unless a tensor is complex."""
    require(x.dtype in COMPLEX, "x must be complex", expected="complex64, complex128", found=str(x))


def _require_real_pair(x: Tensor, name: str) -> None:
    """Raise TypeInferError unless a tensor may be a part of complex numbers."""
    if x.dtype not in REAL_OF.values():
        raise TypeInferError(
            f"{name} must be float32 or float64",
            expected=", ".join(REAL_OF.values()),
            found=str(x),
            hint='cast it first: meta.astype(x, "float32")',
        )


def _require_transform(x: Tensor, axes: Ints, norm: str) -> tuple[int, ...]:
    """Return the axes in their order; TypeInferError for axes or a norm that make no transform."""
    given = (axes,) if isinstance(axes, int) else axes
    require(len(given) > 0, "a transform needs an axis", expected="at least one axis")
    normalize_axes(given, x.ndim)
    places = tuple(a % x.ndim for a in given)
    empty = [a for a in places if x.shape[a] == 0]
    require(not empty, "an axis to transform is empty", found=f"axis {empty[:1]} of {x}")
    require(norm in SCALES, "unknown norm", expected=", ".join(SCALES), found=repr(norm))
    return places


@op(elementwise=True, complex=True)
def complex(real: Tensor, imag: Tensor) -> Tensor:
    """real + i * imag. Both float32 or both float64, broadcast against one another.

    Result: complex64 or complex128. Raises TypeInferError for other dtypes.
    """
    for name, x in (("real", real), ("imag", imag)):
        _require_real_pair(x, name)
    dtype = require_same_dtype(real, imag)
    return Tensor(broadcast_shapes(real.shape, imag.shape), complex_of(dtype))


@op(elementwise=True, complex=True, view_elsewhere=True)
def real(x: Tensor) -> Tensor:
    """The real parts of complex numbers, as float32 or float64.

    Raises TypeInferError for other dtypes.
    """
    _require_complex(x)
    return x.with_dtype(REAL_OF[x.dtype])


@op(elementwise=True, like=real, complex=True, view_elsewhere=True, names=Names("array_api"))
def imag() -> None:
    """The imaginary parts of complex numbers, as float32 or float64.

    Raises TypeInferError for other dtypes.
    """


@op(elementwise=True, like=real, complex=True)
def angle() -> None:
    """The angles of complex numbers from the positive real axis, from -pi to pi, as float32 or
    float64; 0 at 0, where the gradient is taken as 0, too. Raises TypeInferError for other dtypes.
    """


@op(elementwise=True, complex=True)
def conj(x: Tensor) -> Tensor:
    """The conjugates of complex numbers, a - ib for a + ib.

    Raises TypeInferError for other dtypes.
    """
    _require_complex(x)
    return x


@op(axes=along("x", by="axes"), complex=True)
def fft_c2c(x: Tensor, axes: Ints, inverse: bool = False, norm: str = "backward") -> Tensor:
    """The transform of complex numbers along axes, or the inverse one. The result has x's type.

    Raises TypeInferError for other dtypes, axes that are empty or named twice, and another norm.
    """
    _require_complex(x)
    _require_transform(x, axes, norm)
    return x


@op(axes=along("x", by="axes"), complex=True)
def fft_r2c(x: Tensor, axes: Ints, norm: str = "backward") -> Tensor:
    """The transform of real numbers along axes, without what is conjugate to the rest.

    x: float32 or float64. Result: complex; the last of ``axes``, of extent n, has n // 2 + 1.
    Raises TypeInferError for other dtypes, axes that are empty or named twice, and another norm.
    """
    _require_real_pair(x, "x")
    last = _require_transform(x, axes, norm)[-1]
    extent = x.with_shape(x.shape[last : last + 1]).static_shape[0] // 2 + 1
    return x.with_shape((*x.shape[:last], extent, *x.shape[last + 1 :])).with_dtype(
        complex_of(x.dtype)
    )


@op(axes=along("x", by="axes"), complex=True)
def fft_c2r(x: Tensor, axes: Ints, n: int, norm: str = "backward") -> Tensor:
    """The inverse of `fft_r2c`: real numbers whose transform's first half is x.

    x: complex. n: the extent of the last of ``axes`` in the result; in x it is n // 2 + 1. Where x
    is no half of a transform of real numbers, the nearest one is taken: imaginary parts that have
    to be 0 are not read. Raises TypeInferError for other dtypes, axes that are empty or named
    twice, another norm, and an n that does not fit.
    """
    _require_complex(x)
    last = _require_transform(x, axes, norm)[-1]
    fits = n >= 1 and x.shape[last] == n // 2 + 1
    expected = f"2 * extent - 2 or 2 * extent - 1 of axis {last}, and at least 1"
    require(fits, "n does not fit the last axis", expected=expected, found=f"{n} and {x}")
    return x.with_shape((*x.shape[:last], n, *x.shape[last + 1 :])).with_dtype(REAL_OF[x.dtype])
