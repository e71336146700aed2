"""Uniform and normal numbers of random words, with the same bits on every device and processor.

Each step is one operation that IEEE 754 rounds to nearest, and none is contracted with the next, so
that NumPy, ATen, code of LLVM and CUDA agree. `Reals` is what these do differently; integers are
64-bit ones, or arrays of them. `meta/dialect/cuda/random.cu` has the same text.

Normal numbers are those of Box and Muller, "A note on the generation of random normal deviates",
1958. The logarithm is the series of the inverse hyperbolic tangent, sine and cosine are Taylor's
polynomials on an eighth of a turn; both end where the next term is below the last place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

HALF_LOG = {23: 0x3F3504F3, 52: 0x3FE6A09E667F3BCD}
"""The bits of sqrt(1/2), by the digits of a mantissa."""


class Reals(Protocol):
    """Floating point arithmetic beyond ``+ - * /``.

    Attributes
    ----------
    mantissa: its digits, 23 or 52.
    """

    mantissa: int

    def real(self, number: Any) -> Any:
        """Return an integer that needs no rounding, or has 31 bits, as a real number."""

    def bits(self, x: Any) -> Any:
        """Return the bits of a real number, as an integer of its size."""

    def of_bits(self, bits: Any) -> Any:
        """Return the real number of these bits."""

    def sqrt(self, x: Any) -> Any:
        """Return the square root, rounded to nearest."""

    def choose(self, bit: Any, then: Any, other: Any) -> Any:
        """Return ``then`` where an integer is not 0, and else ``other``."""


def top_bits(a: Any, b: Any) -> Any:
    """Return the 53 upper bits of two words, as an integer."""
    return a >> 5 << 26 | b >> 6


def uniform(words: Sequence[Any], reals: Reals) -> list[Any]:
    """Return numbers on [0, 1) of four words: two in float64, else four."""
    if reals.mantissa == 52:
        a, b, c, d = words
        return [reals.real(top_bits(*pair)) * 2.0**-53 for pair in ((a, b), (c, d))]
    return [reals.real(word >> 8) * 2.0**-24 for word in words]


def normal(words: Sequence[Any], reals: Reals) -> list[Any]:
    """Return standard normal numbers of four words: two in float64, else four."""
    a, b, c, d = words
    if reals.mantissa == 52:
        return _pair(reals.real(top_bits(a, b) + 1), top_bits(c, d), 53, reals)
    found = []
    for first, second in ((a, b), (c, d)):
        # In halves: few processors turn 33 bits into a float. The sum is rounded once.
        above = reals.real(first >> 16) * 65536.0 + reals.real((first & 0xFFFF) + 1)
        found += _pair(above, second, 32, reals)
    return found


def _pair(above: Any, turn: Any, bits: int, reals: Reals) -> list[Any]:
    """Return two normal numbers of ``above``, a real number from 1 to 2**bits, and an integer from
    0 to 2**bits - 1.
    """
    radius = _radius(above, bits, reals)
    cos, sin = _cos_sin(turn, bits, reals)
    return [radius * cos, radius * sin]


def _radius(x: Any, bits: int, reals: Reals) -> Any:
    """Return sqrt(-2 log(x / 2**bits)): log x = e log 2 + log m, with m from sqrt(1/2) on."""
    word = reals.bits(x)
    exponent = (word - HALF_LOG[reals.mantissa]) >> reals.mantissa
    m = reals.of_bits(word - (exponent << reals.mantissa))
    s = (m - 1.0) / (m + 1.0)
    log_m = s * _polynomial(s * s, SERIES["LOG"][reals.mantissa])
    return reals.sqrt((reals.real(exponent - bits) * math.log(2) + log_m) * -2.0)


def _cos_sin(turn: Any, bits: int, reals: Reals) -> tuple[Any, Any]:
    """Return cosine and sine of ``turn / 2**bits`` of a full turn."""
    quarter = (turn + (1 << bits - 3)) >> bits - 2
    angle = reals.real(turn - (quarter << bits - 2)) * (2 * math.pi / 2**bits)
    z = angle * angle
    sin = angle * (z * _polynomial(z, SERIES["SIN"][reals.mantissa])) + angle
    cos = z * _polynomial(z, SERIES["COS"][reals.mantissa]) + 1.0
    odd, lower, left = quarter & 1, quarter & 2, (quarter + 1) & 2
    first, second = reals.choose(odd, sin, cos), reals.choose(odd, cos, sin)
    return reals.choose(left, -first, first), reals.choose(lower, -second, second)


def _polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return the value of a polynomial, the coefficient of its highest power given first."""
    first, second, *rest = coefficients
    y = x * first + second
    for coefficient in rest:
        y = y * x + coefficient
    return y


def _series(terms: int, start: int, step: Any) -> tuple[float, ...]:
    return tuple(step(k) for k in range(terms - 1, start - 1, -1))


SERIES: dict[str, dict[int, tuple[float, ...]]] = {
    "LOG": {m: _series(n, 0, lambda k: 2 / (2 * k + 1)) for m, n in ((23, 5), (52, 11))},
    "SIN": {m: _series(n, 1, lambda k: (-1) ** k / math.factorial(2 * k + 1))
            for m, n in ((23, 4), (52, 9))},
    "COS": {m: _series(n, 1, lambda k: (-1) ** k / math.factorial(2 * k))
            for m, n in ((23, 5), (52, 10))},
}  # fmt: skip
"""Coefficients by the digits of a mantissa, that of the highest power first."""
