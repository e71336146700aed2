"""Gradients of complex numbers and Fourier transforms.

The gradient of a real number by z = a + ib is that by a plus i times that by b, so the gradient of
a linear function is its conjugate transposed matrix times dy. Of a Fourier transform that is the
transform with the other sign of the exponent and the same factor.
"""

from typing import Any

from meta import op
from meta.base.dtype import complex_of
from meta.grad.core import collapse, gradient, gradients
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.op.fourier import SCALES

gradients(
    {
        op.real: lambda dy: op.astype(dy, complex_of(dy.dtype)),
        op.imag: lambda dy: op.complex(op.imag(op.astype(dy, complex_of(dy.dtype))), dy),
        op.conj: lambda dy: op.conj(dy),
        op.fft_c2c: lambda dy, axes, inverse, norm: op.fft_c2c(dy, axes, not inverse, SCALES[norm]),
    }
)


@gradient(op.complex)
def complex(real: TensorType, imag: TensorType, dy: Any) -> Any:
    return collapse(op.real(dy), real), collapse(op.imag(dy), imag)


@gradient(op.angle)
def angle(x: Any, dy: Any) -> Any:
    """dx = i * x * dy / |x|²; 0 at 0."""
    a, b = op.real(x), op.imag(x)
    square = a * a + b * b
    scaled = op.where(square == 0, 0, dy / square)
    return op.complex(-(b * scaled), a * scaled)


def _slice_axis(x: Any, axis: int, begin: int, end: int) -> Any:
    """Return the part of an axis from ``begin`` to ``end``."""
    before = (0,) * axis
    return op.strided_slice(x, (*before, begin), (*x.shape[:axis], end))


def _pad_axis(x: Any, axis: int, begin: int, extent: int) -> Any:
    """Return zeros, with x from ``begin`` on along an axis of this extent."""
    shape = (*x.shape[:axis], extent, *x.shape[axis + 1 :])
    end = (*x.shape[:axis], begin + x.shape[axis])
    return op.strided_slice_dx(x, shape, (*(0,) * axis, begin), end)


def _last(axes: Any, ndim: int) -> int:
    return normalize_axis(axes if isinstance(axes, int) else axes[-1], ndim)


@gradient(op.fft_r2c)
def fft_r2c(x: TensorType, axes: Any, norm: str, dy: Any) -> Any:
    """dx is the real part of the other transform of dy, with zeros for what is left out."""
    at = _last(axes, x.ndim)
    whole = _pad_axis(dy, at, 0, x.static_shape[at])
    return op.real(op.fft_c2c(whole, axes, True, SCALES[norm]))


@gradient(op.fft_c2r)
def fft_c2r(x: TensorType, axes: Any, n: int, norm: str, dy: Any) -> Any:
    """dx is the transform of dy, doubled where an element stands for its conjugate, too."""
    at = _last(axes, x.ndim)
    half = op.fft_r2c(dy, axes, SCALES[norm])
    end = (n + 1) // 2
    if end <= 1:
        return half
    return half + _pad_axis(_slice_axis(half, at, 1, end), at, 1, half.shape[at])
