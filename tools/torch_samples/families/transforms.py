"""Fourier transforms and complex numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

import meta
from meta import fft
from tools.torch_samples.compose import indices, picked, real

FLIPPED = {"forward": "backward", "ortho": "ortho"}


def along(transform: Any) -> Any:
    """Return torch's form of a transform along one axis."""

    def transformed(input: Any, n: Any = None, dim: int = -1, norm: str | None = None) -> Any:
        return transform(real(input), n=n, axis=dim, norm=norm or "backward")

    return transformed


def places(input: Any, s: Any, dim: Any) -> dict[str, Any]:
    """Return extents and axes; -1 among the extents keeps one."""
    axes = (dim,) if isinstance(dim, int) else None if dim is None else tuple(dim)
    if s is None:
        return {"s": None, "axes": axes}
    sizes = (s,) if isinstance(s, int) else tuple(s)
    named = axes or tuple(range(-len(sizes), 0))
    kept = tuple(input.shape[a] if n == -1 else n for n, a in zip(sizes, named, strict=True))
    return {"s": kept, "axes": named}


def over(transform: Any, dims: Any = None) -> Any:
    """Return torch's form of a transform along several axes."""

    def transformed(input: Any, s: Any = None, dim: Any = dims, norm: str | None = None) -> Any:
        return transform(real(input), **places(input, s, dim), norm=norm or "backward")

    return transformed


def hermitian(dims: Any = None) -> Any:
    """Return hfft2 or hfftn: real numbers from half of a series that is conjugate to the rest."""

    def transformed(input: Any, s: Any = None, dim: Any = dims, norm: str | None = None) -> Any:
        x = real(input)
        x = meta.conj(x) if "complex" in x.dtype else x
        return fft.irfftn(x, **places(input, s, dim), norm=FLIPPED.get(norm or "", "forward"))

    return transformed


def of_hermitian(dims: Any = None) -> Any:
    """Return ihfft2 or ihfftn, the inverse of hfft2 or hfftn."""

    def transformed(input: Any, s: Any = None, dim: Any = dims, norm: str | None = None) -> Any:
        scale = FLIPPED.get(norm or "", "forward")
        return meta.conj(fft.rfftn(real(input), **places(input, s, dim), norm=scale))

    return transformed


def to(dtype: str) -> Any:
    """Return the conversion to complex numbers."""
    return lambda input, memory_format=None: meta.astype(input, dtype)


def polar(abs: Any, angle: Any) -> Any:
    """Complex numbers by size and angle."""
    return meta.complex(abs * meta.cos(angle), abs * meta.sin(angle))


def view_as_real(input: Any) -> Any:
    """Both parts on a new last axis."""
    return meta.stack((meta.real(input), meta.imag(input)), -1)


def view_as_complex(input: Any) -> Any:
    """Numbers whose parts are on the last axis."""
    return meta.complex(picked(input, -1, 0), picked(input, -1, 1))


def stft(
    input: Any,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: Any = None,
    center: bool = True,
    pad_mode: str = "reflect",
    normalized: bool = False,
    onesided: bool | None = None,
    return_complex: bool | None = None,
) -> Any:
    """The transforms of overlapping frames, one per column."""
    x = meta.reshape(input, (1, -1)) if input.ndim == 1 else input
    if center:
        x = meta.pad(x, ((0, 0), (n_fft // 2, n_fft // 2)), pad_mode)
    hop, length = hop_length or n_fft // 4, win_length or n_fft
    frames = 1 + (x.shape[1] - n_fft) // hop
    places = np.arange(frames)[:, None] * hop + np.arange(n_fft)
    framed = meta.take(x, indices(places), 1) * in_the_middle(window, length, n_fft, x.dtype)
    norm = "ortho" if normalized else "backward"
    y = (fft.fft if onesided is False else fft.rfft)(framed, norm=norm)
    y = meta.swapaxes(y, -1, -2)
    y = picked(y, 0, 0) if input.ndim == 1 else y
    return y if return_complex else view_as_real(y)


def in_the_middle(window: Any, length: int, n_fft: int, dtype: str) -> Any:
    """Return a window, or ones, with zeros on both sides."""
    given = meta.ones((length,), dtype) if window is None else window
    left = (n_fft - length) // 2
    return meta.pad(given, ((left, n_fft - length - left),)) if length < n_fft else given


LAST = (-2, -1)

ADAPTERS = {
    "cdouble": to("complex128"),
    "cfloat": to("complex64"),
    "complex": meta.complex,
    "fft.fft": along(fft.fft),
    "fft.fft2": over(fft.fftn, LAST),
    "fft.fftn": over(fft.fftn),
    "fft.hfft": along(fft.hfft),
    "fft.hfft2": hermitian(LAST),
    "fft.hfftn": hermitian(),
    "fft.ifft": along(fft.ifft),
    "fft.ifft2": over(fft.ifftn, LAST),
    "fft.ifftn": over(fft.ifftn),
    "fft.ihfft": along(fft.ihfft),
    "fft.ihfft2": of_hermitian(LAST),
    "fft.ihfftn": of_hermitian(),
    "fft.irfft": along(fft.irfft),
    "fft.irfft2": over(fft.irfftn, LAST),
    "fft.irfftn": over(fft.irfftn),
    "fft.rfft": along(fft.rfft),
    "fft.rfft2": over(fft.rfftn, LAST),
    "fft.rfftn": over(fft.rfftn),
    "imag": meta.imag,
    "nn.functional.silu|complex": lambda input, inplace=False: input / (meta.exp(-input) + 1.0),
    "polar": polar,
    "stft": stft,
    "view_as_complex": view_as_complex,
    "view_as_real": view_as_real,
}
