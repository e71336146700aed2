"""Discrete Fourier transforms by the names of the Array API standard, 2024.12: ``meta.fft.rfft``.

Written by `python -m tools.stubs`.
"""

from collections.abc import Sequence
from meta.runtime.array_types import ArrayLike
from meta.runtime.array_types import DTypeLike
from meta.runtime.ndarray import ndarray

def fft(
    x: ArrayLike,
    /,
    *,
    n: int | None = None,
    axis: int = -1,
    norm: str = 'backward',
) -> ndarray:
    """Return the transform along an axis; real numbers count as complex ones."""

def fft2(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = 'backward',
) -> ndarray:
    """Return the transform along two axes."""

def fftfreq(
    n: int,
    /,
    *,
    d: float = 1.0,
    dtype: DTypeLike | None = 'float32',
    device: str = 'cpu',
) -> ndarray:
    """Return the frequencies of the elements of a transform of n samples that are ``d`` apart:
    0, 1, ..., -1 divided by n * d.
    """

def fftn(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = 'backward',
) -> ndarray:
    """Return the transform along axes: None means as many of the last as ``s`` has, or all."""

def fftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> ndarray:
    """Return x with the frequency 0 in the middle of axes; None means all."""

def hfft(
    x: ArrayLike,
    /,
    *,
    n: int | None = None,
    axis: int = -1,
    norm: str = 'backward',
) -> ndarray:
    """Return the transform, n real numbers, of a series whose second half is conjugate to the first
    one, x; n is 2 * (extent - 1) if None.
    """

def ifft(
    x: ArrayLike,
    /,
    *,
    n: int | None = None,
    axis: int = -1,
    norm: str = 'backward',
) -> ndarray:
    """Return the inverse of `fft`."""

def ifft2(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = 'backward',
) -> ndarray:
    """Return the inverse of `fft2`."""

def ifftn(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = 'backward',
) -> ndarray:
    """Return the inverse of `fftn`."""

def ifftshift(x: ArrayLike, /, *, axes: int | Sequence[int] | None = None) -> ndarray:
    """Return the inverse of `fftshift`."""

def ihfft(
    x: ArrayLike,
    /,
    *,
    n: int | None = None,
    axis: int = -1,
    norm: str = 'backward',
) -> ndarray:
    """Return the inverse of `hfft`: the first half, n // 2 + 1 elements."""

def irfft(
    x: ArrayLike,
    /,
    *,
    n: int | None = None,
    axis: int = -1,
    norm: str = 'backward',
) -> ndarray:
    """Return the inverse of `rfft`, n real numbers; n is 2 * (extent - 1) if None."""

def irfft2(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = 'backward',
) -> ndarray:
    """Return the inverse of `rfft2`."""

def irfftn(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = 'backward',
) -> ndarray:
    """Return the inverse of `rfftn`; the last extent is 2 * (extent - 1) without ``s``."""

def rfft(
    x: ArrayLike,
    /,
    *,
    n: int | None = None,
    axis: int = -1,
    norm: str = 'backward',
) -> ndarray:
    """Return the first n // 2 + 1 elements of the transform of n real numbers along an axis; the
    others are their conjugates.
    """

def rfft2(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] = (-2, -1),
    norm: str = 'backward',
) -> ndarray:
    """Return the transform of real numbers along two axes, the last one as in `rfft`."""

def rfftfreq(
    n: int,
    /,
    *,
    d: float = 1.0,
    dtype: DTypeLike | None = 'float32',
    device: str = 'cpu',
) -> ndarray:
    """Return the frequencies of the elements of `rfft` of n samples that are ``d`` apart."""

def rfftn(
    x: ArrayLike,
    /,
    *,
    s: Sequence[int] | None = None,
    axes: Sequence[int] | None = None,
    norm: str = 'backward',
) -> ndarray:
    """Return the transform of real numbers along axes, see `fftn`; the last one as in `rfft`."""
