"""Random numbers: one seed, and the same numbers on every device, on arrays and in programs.

Written by `python -m tools.stubs`.
"""

from collections.abc import Sequence
from meta.runtime.array_types import ArrayLike
from meta.runtime.array_types import DTypeLike
from meta.runtime.array_types import DeviceLike
from meta.runtime.ndarray import ndarray
from meta.runtime.random import Generator as Generator
from meta.runtime.random import _Default
from meta.runtime.random import seed as seed

def bernoulli(p: float | ArrayLike, *, dtype: DTypeLike | None = None) -> ndarray:
    """Return 1 with probability ``p`` and else 0, independently for each element of ``p``."""

default: _Default

def exponential(
    shape: int | Sequence[int],
    *,
    scale: float | ArrayLike = 1.0,
    dtype: DTypeLike | None = 'float32',
    device: DeviceLike | None = None,
) -> ndarray:
    """Return independent samples of the exponential distribution with mean ``scale``."""

def gumbel(
    shape: int | Sequence[int],
    *,
    loc: float | ArrayLike = 0.0,
    scale: float | ArrayLike = 1.0,
    dtype: DTypeLike | None = 'float32',
    device: DeviceLike | None = None,
) -> ndarray:
    """Return independent samples of the Gumbel distribution, ``loc - scale * log(e)`` with samples
    ``e`` of the exponential one.
    """

def multinomial(p: ArrayLike, num_samples: int, replacement: bool = False) -> ndarray:
    """Return indices along the last axis of ``p``, drawn with probabilities proportional to it."""

def normal(
    shape: int | Sequence[int],
    *,
    mean: float | ArrayLike = 0.0,
    std: float | ArrayLike = 1.0,
    dtype: DTypeLike | None = 'float32',
    device: DeviceLike | None = None,
) -> ndarray:
    """Return independent samples of a normal distribution."""

def permutation(x: int | ArrayLike, *, device: DeviceLike | None = None) -> ndarray:
    """Return the ints 0 to x - 1 in random order (int64); of an array, its slices along axis 0."""

def randint(
    shape: int | Sequence[int],
    *,
    low: int,
    high: int,
    dtype: DTypeLike | None = 'int64',
    device: DeviceLike | None = None,
) -> ndarray:
    """Return independent integers, uniform on [low, high); ``dtype`` has them all."""

def uniform(
    shape: int | Sequence[int],
    *,
    low: float | ArrayLike = 0.0,
    high: float | ArrayLike = 1.0,
    dtype: DTypeLike | None = 'float32',
    device: DeviceLike | None = None,
) -> ndarray:
    """Return independent samples of the uniform distribution on [low, high)."""
