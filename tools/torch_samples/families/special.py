"""Special functions and the classical polynomials."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import real


def mvlgamma(input: Any, p: int) -> Any:
    """The logarithm of the multivariate gamma function, a sum of lgamma."""
    y = meta.lgamma(input) + p * (p - 1) / 4 * math.log(math.pi)
    for i in range(1, p):
        y = y + meta.lgamma(input - i / 2)
    return y


def kaiser(
    M: int, *, beta: float = 12.0, sym: bool = True, dtype: Any = None, **kwargs: Any
) -> Any:
    """The window of Kaiser: i0(beta * sqrt(1 - d**2)) / i0(beta), d from -1 to 1."""
    if M <= 1:
        return meta.ones((M,), dtype or "float32")
    half = (M - 1 if sym else M) / 2
    d = meta.arange(0, M, 1, "float64") / half - 1
    inner = meta.sqrt(meta.maximum(1 - d * d, 0.0)) * beta
    return meta.astype(meta.i0(inner) / meta.i0(beta), dtype or "float32")


Step = Callable[[int, Any, Any, Any], Any]


def polynomial(first: Callable[[Any], Any], step: Step) -> Any:
    """Return polynomials p(x, n) from p(x, 1) and the recurrence from k and k - 1 to k + 1."""

    def valued(x: Any, n: Any) -> Any:
        if isinstance(x, int | float):
            x = meta.full((), float(x), n.dtype if "float" in n.dtype else "float32")
        x = real(x)
        orders = np.trunc(
            meta.astype(n, "float64").numpy() if hasattr(n, "numpy") else np.asarray(n)
        )
        x = meta.broadcast_to(x, np.broadcast_shapes(x.shape, orders.shape))
        wanted = meta.array(orders.astype(np.int64))
        now, following = meta.ones_like(x), first(x)
        y = meta.zeros_like(x)
        for k in range(int(orders.max(initial=0)) + 1):
            y = meta.where(wanted == k, now, y)
            now, following = following, step(k + 1, x, following, now)
        return y

    return valued


def chebyshev(first: Callable[[Any], Any], shifted: bool = False) -> Any:
    """Return a kind of Chebyshev's polynomials: all have the recurrence 2 x p(k) - p(k - 1)."""
    of_x = polynomial(first, lambda k, x, now, before: 2 * x * now - before)
    if not shifted:
        return of_x

    def moved(x: Any, n: Any) -> Any:
        return of_x(2 * (real(x) if hasattr(x, "dtype") else x) - 1, n)

    return moved


FIRST = {
    "t": lambda x: x,
    "u": lambda x: 2 * x,
    "v": lambda x: 2 * x - 1,
    "w": lambda x: 2 * x + 1,
}

ADAPTERS = {
    "digamma": meta.digamma,
    "erfc": meta.erfc,
    "erfinv": meta.erfinv,
    "i0": meta.i0,
    "lgamma": meta.lgamma,
    "mvlgamma|mvlgamma_p_1": mvlgamma,
    "mvlgamma|mvlgamma_p_3": mvlgamma,
    "mvlgamma|mvlgamma_p_5": mvlgamma,
    "signal.windows.kaiser": kaiser,
    "special.entr": meta.entr,
    "special.hermite_polynomial_h": polynomial(
        lambda x: 2 * x, lambda k, x, now, before: 2 * x * now - 2 * k * before
    ),
    "special.hermite_polynomial_he": polynomial(
        lambda x: x, lambda k, x, now, before: x * now - k * before
    ),
    "special.i0e": meta.i0e,
    "special.i1": meta.i1,
    "special.i1e": meta.i1e,
    "special.laguerre_polynomial_l": polynomial(
        lambda x: 1 - x,
        lambda k, x, now, before: ((2 * k + 1 - x) * now - k * before) / (k + 1),
    ),
    "special.legendre_polynomial_p": polynomial(
        lambda x: x, lambda k, x, now, before: ((2 * k + 1) * x * now - k * before) / (k + 1)
    ),
    "special.modified_bessel_i0": meta.i0,
    "special.modified_bessel_i1": meta.i1,
    "special.ndtr": meta.ndtr,
    "special.ndtri": lambda input: math.sqrt(2) * meta.erfinv(2 * real(input) - 1),
    "special.spherical_bessel_j0": lambda input: meta.sinc(real(input) * (1 / math.pi)),
    "special.xlog1py": meta.xlog1py,
    **{f"special.chebyshev_polynomial_{k}": chebyshev(first) for k, first in FIRST.items()},
    **{
        f"special.shifted_chebyshev_polynomial_{k}": chebyshev(first, shifted=True)
        for k, first in FIRST.items()
    },
}
