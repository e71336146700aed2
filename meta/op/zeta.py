"""The zeta function of Hurwitz, the sum of (q + k) ** -s over k = 0, 1, ..., and the derivatives of
digamma, which are values of it. Composed of operators by the formula of Euler and Maclaurin: some
terms are added, the rest is an integral and its corrections.
"""

from __future__ import annotations

from math import factorial, inf, nan
from typing import Any

from meta import op

TERMS = 10
"""How many terms are added."""
CORRECTIONS = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510)
"""The Bernoulli numbers of index 2, 4, ...."""


def _zeta_of_positive(s: Any, q: Any) -> Any:
    total = op.pow(q, op.negative(s))
    for k in range(1, TERMS):
        total = op.add(total, op.pow(op.add(q, float(k)), op.negative(s)))
    end = op.add(q, float(TERMS))
    last = op.pow(end, op.negative(s))
    total = op.add(total, op.divide(op.multiply(last, end), op.subtract(s, 1.0)))
    total = op.add(total, op.multiply(last, 0.5))
    # The correction of index j has s (s + 1) ... (s + 2j - 2) / end ** (s + 2j - 1).
    factor = op.divide(op.multiply(last, s), end)
    for j, bernoulli in enumerate(CORRECTIONS, 1):
        total = op.add(total, op.multiply(factor, bernoulli / factorial(2 * j)))
        rising = op.multiply(op.add(s, 2.0 * j - 1), op.add(s, 2.0 * j))
        factor = op.divide(op.multiply(factor, rising), op.multiply(end, end))
    return total


def zeta(s: Any, q: Any) -> Any:
    """Return zeta of two tensors of one dtype, as torch has it: inf at its poles, NaN for s < 1 and
    for a negative q with a broken s.
    """
    # The m terms of a negative base have the magnitudes 1 - q - m, ..., -q.
    m = op.maximum(op.ceil(op.negative(q)), 0.0)
    r = op.subtract(op.subtract(1.0, q), m)
    magnitudes = op.subtract(_zeta_of_positive(s, r), _zeta_of_positive(s, op.subtract(1.0, q)))
    odd = op.equal(op.remainder(s, 2.0), 1.0)
    of_negative = op.where(odd, op.negative(magnitudes), magnitudes)
    total = _zeta_of_positive(s, op.add(q, m))
    total = op.add(total, op.where(op.greater(m, 0.0), of_negative, 0.0))
    pole = op.logical_and(op.less_equal(q, 0.0), op.equal(op.floor(q), q))
    broken = op.logical_and(op.less(q, 0.0), op.not_equal(op.floor(s), s))
    total = op.where(pole, inf, op.where(broken, nan, total))
    return op.where(op.equal(s, 1.0), inf, op.where(op.less(s, 1.0), nan, total))


def derivative_of_digamma(n: int, x: Any) -> Any:
    """Return the derivative of order n, 1 or more, of digamma at a tensor of float32 or float64:
    (-1) ** (n + 1) * n! * zeta(n + 1, x).
    """
    sign = -1.0 if n % 2 == 0 else 1.0
    found = op.multiply(zeta(op.full_like(x, n + 1.0), x), sign * factorial(n))
    return op.where(op.equal(x, inf), 0.0, found)
