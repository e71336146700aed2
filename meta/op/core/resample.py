"""Where the samples of a resized axis lie: arithmetic shared by type functions and kernels.

Sample ``o`` of the result lies at the coordinate ``(a*o + b) / d`` of the argument, a quotient of
integers, so which elements it reads is exact on every backend and in every precision. The methods
below use operators only, so they take Python ints, torch tensors and TVM expressions alike. To add
a coordinate mode, a rounding or a method, add it to its table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.base.errors import TypeInferError
from meta.op.core.check import require

# (a, b, d) of the coordinate (a*o + b) / d, by the extents of the argument and of the result.
_COORDINATES: dict[str, Callable[[int, int], tuple[int, int, int]]] = {
    "half_pixel": lambda n, out: (2 * n, n - out, 2 * out),
    "align_corners": lambda n, out: (n - 1, 0, out - 1) if out > 1 else (0, 0, 1),
    "asymmetric": lambda n, out: (n, 0, out),
    "pytorch_half_pixel": lambda n, out: (2 * n, n - out, 2 * out) if out > 1 else (0, 0, 1),
    "tf_half_pixel_for_nn": lambda n, out: (2 * n, n, 2 * out),
}
# What is added to the coordinate, in units of 1 / (2*d), before it is rounded down.
_ROUNDINGS: dict[str, Callable[[int], int]] = {
    "floor": lambda d: 0,
    "ceil": lambda d: 2 * d - 2,
    "round": lambda d: d,
    "round_prefer_ceil": lambda d: d,
    "round_prefer_floor": lambda d: d - 1,
}
# The elements that are read, counted from the one at or before the coordinate.
_TAPS = {"nearest_neighbor": (0,), "linear": (0, 1), "cubic": (-1, 0, 1, 2)}


@dataclass(frozen=True, slots=True)
class Sampling:
    """One axis of ``size`` elements resized to ``out`` samples at ``(a*o + b) / d``."""

    size: int
    out: int
    a: int
    b: int
    d: int
    taps: tuple[int, ...]
    alpha: float
    exclude: bool

    @property
    def largest(self) -> int:
        """A bound on the integers that occur."""
        return self.a * self.out + abs(self.b) + 4 * self.d * (self.size + 4)

    def base(self, o: Any) -> Any:
        """Return the element at or before the coordinate of sample ``o``; it may be outside."""
        return (o * self.a + self.b) // self.d

    def numerator(self, o: Any) -> Any:
        """Return how far behind `base` the coordinate is, in units of 1 / d."""
        return (o * self.a + self.b) % self.d

    def weights(self, t: Any) -> list[Any]:
        """Return the weights of the taps, for a coordinate ``t`` behind the base, 0 <= t < 1.

        Keys, "Cubic convolution interpolation for digital image processing", 1981, for the cubic.
        """
        if len(self.taps) == 2:
            return [1.0 - t, t]
        c = self.alpha
        return [
            ((t - 2.0) * t + 1.0) * t * c,
            ((t * (c + 2.0) - (c + 3.0)) * t) * t + 1.0,
            (((2.0 * c + 3.0) - t * (c + 2.0)) * t - c) * t,
            (1.0 - t) * t * t * c,
        ]

    def first(self, i: Any) -> Any:
        """Return the first sample that reads element ``i`` > 0, if any does; may be negative."""
        return -((self.b - (i - self.taps[-1]) * self.d) // self.a)

    @property
    def readers(self) -> int:
        """How many samples read an element, counted from the `first` to the last, at most."""
        spans: dict[int, int] = {}
        starts = [0] * self.size
        for i in range(1, self.size if self.a else 0):
            starts[i] = max(self.first(i), 0)
        for o in range(self.out):
            for tap in self.taps:
                i = min(max(self.base(o) + tap, 0), self.size - 1)
                spans[i] = max(spans.get(i, 0), o - starts[i] + 1)
        return max(spans.values(), default=1)


def sampling(
    size: int,
    out: int,
    method: str,
    mode: str,
    rounding: str = "",
    alpha: float = -0.5,
    exclude: int = 0,
) -> Sampling:
    """Read the arguments of resizing one axis; raise TypeInferError for one that is unknown."""
    for name, value, table in (
        ("method", method, _TAPS),
        ("coordinate_transformation_mode", mode, _COORDINATES),
        ("rounding_method", rounding or "floor", _ROUNDINGS),
    ):
        if value not in table:
            raise TypeInferError(
                f"{name} is not known", expected=", ".join(table), found=repr(value)
            )
    require(exclude in (0, 1), "cubic_exclude is a flag", expected="0 or 1", found=exclude)
    require(out >= 1, "there must be one sample at least", found=out)
    require(size >= 1, "there is nothing to resize", expected="extents of 1 or more", found=size)
    a, b, d = _COORDINATES[mode](size, out)
    if method == "nearest_neighbor":
        kind = rounding or ("round" if mode == "align_corners" else "floor")
        a, b, d = 2 * a, 2 * b + _ROUNDINGS[kind](d), 2 * d
    return Sampling(size, out, a, b, d, _TAPS[method], alpha, bool(exclude))


def upsampled(
    sizes: tuple[int, ...], scales: tuple[float, ...], method: str, align_corners: bool
) -> tuple[tuple[int, ...], str, str]:
    """Return size, method and coordinate mode of the resize that an upsampling is."""
    size = tuple(round(n * scale) for n, scale in zip(sizes, scales, strict=True))
    mode = "align_corners" if align_corners else "asymmetric"
    return size, method.removeprefix("bi"), mode
