"""Discrete Fourier transforms by the names of the Array API standard, 2024.12: ``meta.fft.rfft``.

Arrays are float32, float64, complex64 or complex128. All functions are composed of operators
(`meta/op/fourier.py`), so they can be traced, compiled and differentiated. ``n`` and ``s`` are the
extents of what is transformed: an axis is cut off there, or continued with zeros. ``norm`` says
which transform is divided by the number of elements: "backward" the inverse, "forward" the other
one, "ortho" each by the root.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import REAL_OF, TO_NUMPY, canonical, complex_of
from meta.base.errors import TypeInferError
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.function import as_operand
from meta.op.fourier import SCALES
from meta.runtime.ndarray import array, ndarray

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]

Array = Any
"""An array, a traced one, or what `meta.array` takes."""
Extents = Sequence[int] | None
LAST = (-2, -1)


def _number(x: Array, name: str, real: bool = False) -> Array:
    """Return an array of a dtype that can be transformed; TypeInferError for others."""
    x = as_operand(x)
    if x.dtype in REAL_OF.values() or (x.dtype in REAL_OF and not real):
        return x
    hint = "fft takes complex numbers" if x.dtype in REAL_OF else 'meta.astype(x, "float32")'
    raise TypeInferError(
        "an array of this dtype has no such transform",
        op=f"fft.{name}",
        expected=", ".join([*REAL_OF.values(), *(() if real else REAL_OF)]),
        found=x.dtype,
        hint=hint,
    )


def _complex(x: Array, name: str) -> Array:
    """Return complex numbers."""
    x = _number(x, name)
    return x if x.dtype in REAL_OF else op.astype(x, complex_of(x.dtype))


def _real_axes(x: Array, s: Extents, axes: Sequence[int] | None, name: str) -> tuple[int, ...]:
    """Return the axes to transform, counted from the start, in their order."""
    if axes is None:
        axes = range(-x.ndim if s is None else -len(s), 0)
    if s is not None and len(s) != len(axes):
        found = f"{len(s)} extents, {len(axes)} axes"
        raise TypeInferError("s and axes differ in length", op=f"fft.{name}", found=found)
    normalize_axes(tuple(axes) or None, x.ndim)
    return tuple(normalize_axis(a, x.ndim) for a in axes)


def _resized(x: Array, axes: Sequence[int], s: Extents, name: str) -> Array:
    """Return x with these extents along axes: cut off at the end, or with zeros behind it."""
    for axis, extent in zip(axes, s or (), strict=bool(s)):
        if extent < 1:
            what = "the extent of a transform must be at least 1"
            raise TypeInferError(what, op=f"fft.{name}", found=extent)
        kept = min(extent, x.shape[axis])
        begin, end = (0,) * (axis + 1), (*x.shape[:axis], kept)
        if kept < x.shape[axis]:
            x = op.strided_slice(x, begin, end)
        if kept < extent:
            shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
            x = op.strided_slice_dx(x, shape, begin, end)
    return x


def _c2c(
    x: Array, s: Extents, axes: Sequence[int] | None, inverse: bool, norm: str, name: str
) -> Array:
    x = _complex(x, name)
    places = _real_axes(x, s, axes, name)
    return op.fft_c2c(_resized(x, places, s, name), places, inverse, norm)


def _r2c(x: Array, s: Extents, axes: Sequence[int] | None, norm: str, name: str) -> Array:
    x = _number(x, name, real=True)
    places = _real_axes(x, s, axes, name)
    return op.fft_r2c(_resized(x, places, s, name), places, norm)


def _c2r(x: Array, s: Extents, axes: Sequence[int] | None, norm: str, name: str) -> Array:
    x = _complex(x, name)
    places = _real_axes(x, s, axes, name)
    if not places:
        raise TypeInferError("a transform needs an axis", op=f"fft.{name}")
    extents = [x.shape[a] for a in places] if s is None else list(s)
    n = extents[-1] if s is not None else 2 * (extents[-1] - 1)
    if n < 1:
        raise TypeInferError(
            "the extent of a transform must be at least 1",
            op=f"fft.{name}",
            found=n,
            hint="give n, or s: 2 * (extent - 1) is the default",
        )
    extents[-1] = n // 2 + 1
    return op.fft_c2r(_resized(x, places, extents, name), places, n, norm)


def _single(n: int | None) -> Extents:
    return None if n is None else (n,)


def fft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the transform along an axis; real numbers count as complex ones.

    >>> meta.fft.fft(meta.array([1.0, 0.0, 0.0, 0.0])).tolist()
    [(1+0j), (1+0j), (1+0j), (1+0j)]
    """
    return _c2c(x, _single(n), (axis,), False, norm, "fft")


def ifft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of `fft`.

    >>> meta.fft.ifft(meta.fft.fft(meta.ones(4))).real.tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    return _c2c(x, _single(n), (axis,), True, norm, "ifft")


def fftn(
    x: Array,
    /,
    *,
    s: Extents = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Array:
    """Return the transform along axes: None means as many of the last as ``s`` has, or all.

    >>> meta.fft.fftn(meta.ones((2, 3, 4))).shape
    (2, 3, 4)
    """
    return _c2c(x, s, axes, False, norm, "fftn")


def ifftn(
    x: Array,
    /,
    *,
    s: Extents = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Array:
    """Return the inverse of `fftn`.

    >>> meta.fft.ifftn(meta.ones((2, 3, 4))).shape
    (2, 3, 4)
    """
    return _c2c(x, s, axes, True, norm, "ifftn")


def fft2(
    x: Array, /, *, s: Extents = None, axes: Sequence[int] = LAST, norm: str = "backward"
) -> Array:
    """Return the transform along two axes.

    >>> meta.fft.fft2(meta.ones((4, 6))).shape
    (4, 6)
    """
    return _c2c(x, s, axes, False, norm, "fft2")


def ifft2(
    x: Array, /, *, s: Extents = None, axes: Sequence[int] = LAST, norm: str = "backward"
) -> Array:
    """Return the inverse of `fft2`.

    >>> meta.fft.ifft2(meta.ones((4, 6))).shape
    (4, 6)
    """
    return _c2c(x, s, axes, True, norm, "ifft2")


def rfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the first n // 2 + 1 elements of the transform of n real numbers along an axis; the
    others are their conjugates.

    >>> meta.fft.rfft(meta.ones(8)).shape
    (5,)
    """
    return _r2c(x, _single(n), (axis,), norm, "rfft")


def irfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of `rfft`, n real numbers; n is 2 * (extent - 1) if None.

    >>> meta.fft.irfft(meta.fft.rfft(meta.ones(6))).shape
    (6,)
    """
    return _c2r(x, _single(n), (axis,), norm, "irfft")


def rfftn(
    x: Array,
    /,
    *,
    s: Extents = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Array:
    """Return the transform of real numbers along axes, see `fftn`; the last one as in `rfft`.

    >>> meta.fft.rfftn(meta.ones((2, 3, 4))).shape
    (2, 3, 3)
    """
    return _r2c(x, s, axes, norm, "rfftn")


def irfftn(
    x: Array,
    /,
    *,
    s: Extents = None,
    axes: Sequence[int] | None = None,
    norm: str = "backward",
) -> Array:
    """Return the inverse of `rfftn`; the last extent is 2 * (extent - 1) without ``s``.

    >>> meta.fft.irfftn(meta.fft.rfftn(meta.ones((2, 3, 4)))).shape
    (2, 3, 4)
    """
    return _c2r(x, s, axes, norm, "irfftn")


def rfft2(
    x: Array, /, *, s: Extents = None, axes: Sequence[int] = LAST, norm: str = "backward"
) -> Array:
    """Return the transform of real numbers along two axes, the last one as in `rfft`.

    >>> meta.fft.rfft2(meta.ones((4, 6))).shape
    (4, 4)
    """
    return _r2c(x, s, axes, norm, "rfft2")


def irfft2(
    x: Array, /, *, s: Extents = None, axes: Sequence[int] = LAST, norm: str = "backward"
) -> Array:
    """Return the inverse of `rfft2`.

    >>> meta.fft.irfft2(meta.fft.rfft2(meta.ones((4, 6)))).shape
    (4, 6)
    """
    return _c2r(x, s, axes, norm, "irfft2")


def _flipped(norm: str) -> str:
    """Return the norm with the same factor in the other direction; an unknown one as it is."""
    return SCALES.get(norm, norm)


def hfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the transform, n real numbers, of a series whose second half is conjugate to the first
    one, x; n is 2 * (extent - 1) if None.

    >>> meta.fft.hfft(meta.ones(5)).shape
    (8,)
    """
    return _c2r(op.conj(_complex(x, "hfft")), _single(n), (axis,), _flipped(norm), "hfft")


def ihfft(x: Array, /, *, n: int | None = None, axis: int = -1, norm: str = "backward") -> Array:
    """Return the inverse of `hfft`: the first half, n // 2 + 1 elements.

    >>> meta.fft.ihfft(meta.ones(8)).shape
    (5,)
    """
    return op.conj(_r2c(x, _single(n), (axis,), _flipped(norm), "ihfft"))


def _frequencies(of: Any, n: int, d: float, dtype: object, device: str, name: str) -> ndarray:
    kind = canonical(dtype)
    if kind not in REAL_OF.values() or n < 1 or d == 0:
        raise TypeInferError(
            "there are no such frequencies",
            op=f"fft.{name}",
            expected="n of at least 1, a d that is not 0, float32 or float64",
            found=f"n={n}, d={d}, dtype={kind}",
        )
    return array(of(n, d).astype(TO_NUMPY[kind]), device=device)


def fftfreq(
    n: int, /, *, d: float = 1.0, dtype: object = "float32", device: str = "cpu"
) -> ndarray:
    """Return the frequencies of the elements of a transform of n samples that are ``d`` apart:
    0, 1, ..., -1 divided by n * d.

    >>> meta.fft.fftfreq(4).tolist()
    [0.0, 0.25, -0.5, -0.25]
    """
    return _frequencies(np.fft.fftfreq, n, d, dtype, device, "fftfreq")


def rfftfreq(
    n: int, /, *, d: float = 1.0, dtype: object = "float32", device: str = "cpu"
) -> ndarray:
    """Return the frequencies of the elements of `rfft` of n samples that are ``d`` apart.

    >>> meta.fft.rfftfreq(4).tolist()
    [0.0, 0.25, 0.5]
    """
    return _frequencies(np.fft.rfftfreq, n, d, dtype, device, "rfftfreq")


def _shifted(x: Array, axes: int | Sequence[int] | None, forward: bool) -> Array:
    x = as_operand(x)
    if axes is None:
        axes = range(x.ndim)
    places = tuple(normalize_axis(a, x.ndim) for a in ((axes,) if isinstance(axes, int) else axes))
    halves = tuple(x.shape[a] // 2 if forward else -(x.shape[a] // 2) for a in places)
    return op.roll(x, halves, places) if places else x


def fftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return x with the frequency 0 in the middle of axes; None means all.

    >>> meta.fft.fftshift(meta.fft.fftfreq(4)).tolist()
    [-0.5, -0.25, 0.0, 0.25]
    """
    return _shifted(x, axes, True)


def ifftshift(x: Array, /, *, axes: int | Sequence[int] | None = None) -> Array:
    """Return the inverse of `fftshift`.

    >>> meta.fft.ifftshift(meta.array([-1, 0, 1])).tolist()
    [0, 1, -1]
    """
    return _shifted(x, axes, False)
