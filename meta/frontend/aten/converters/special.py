"""Special functions: the error function, gamma functions, entropies, Bessel functions, orthogonal
polynomials.
"""

from math import log, pi

import numpy as np

from meta import op
from meta.frontend.aten.operands import as_tensor, promote_operands
from meta.frontend.aten.promotion import as_float, cast, is_number, result_dtype
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible, constant_value
from meta.op.zeta import derivative_of_digamma, zeta
from meta.runtime.ndarray import array


@aten("special_spherical_bessel_j0", op.sinc, op.multiply)
def spherical_bessel_j0(x):
    (x,) = promote_operands(x, floating=True)
    return op.sinc(op.multiply(x, 1 / pi))


@aten("mvlgamma", "special_multigammaln", op.lgamma, op.add)
def mvlgamma(x, *, p):
    """The logarithm of the multivariate gamma function, a sum of lgamma."""
    (x,) = promote_operands(x, floating=True)
    terms = [op.lgamma(op.subtract(x, i / 2) if i else x) for i in range(p)]
    total = op.add(terms[0], p * (p - 1) / 4 * log(pi))
    for term in terms[1:]:
        total = op.add(total, term)
    return total


ZETA = (op.pow, op.add, op.multiply, op.divide, op.where)


@aten("special_zeta", "special_zeta.other_scalar", "special_zeta.self_scalar", *ZETA)
def zeta_of(s, q):
    dtype = as_float(result_dtype(s, q))
    tensors = [x for x in (s, q) if not is_number(x)]
    device = str(tensors[0].device) if hasattr(tensors[0], "device") else "cpu"
    wide = "float64" if dtype == "float64" else "float32"
    return cast(zeta(*(as_tensor(x, wide, device) for x in (s, q))), dtype)


@aten("polygamma", "special_polygamma", op.digamma, op.trigamma, *ZETA)
def polygamma(x, *, n):
    """The derivative of digamma of order n."""
    (x,) = promote_operands(x, floating=True)
    if n < 2:
        return op.trigamma(x) if n else op.digamma(x)
    wide = x if x.dtype == "float64" else cast(x, "float32")
    return cast(derivative_of_digamma(n, wide), x.dtype)


# Orthogonal polynomials: p(0) is 1, p(1) is a function of x, and the others follow.

LARGEST_ORDER = 64
STEPS = {
    "hermite_polynomial_h": (
        lambda x: 2.0 * x,
        lambda k, x, now, before: 2.0 * x * now - 2.0 * k * before,
    ),
    "hermite_polynomial_he": (lambda x: x, lambda k, x, now, before: x * now - float(k) * before),
    "laguerre_polynomial_l": (
        lambda x: 1.0 - x,
        lambda k, x, now, before: ((2.0 * k + 1 - x) * now - float(k) * before) / (k + 1.0),
    ),
    "legendre_polynomial_p": (
        lambda x: x,
        lambda k, x, now, before: ((2.0 * k + 1) * x * now - float(k) * before) / (k + 1.0),
    ),
}
CHEBYSHEV = {
    "t": lambda x: x,
    "u": lambda x: 2.0 * x,
    "v": lambda x: 2.0 * x - 1.0,
    "w": lambda x: 2.0 * x + 1.0,
}


def _chebyshev_step(k, x, now, before):
    return 2.0 * x * now - before


for _kind, _first in CHEBYSHEV.items():
    STEPS[f"chebyshev_polynomial_{_kind}"] = (_first, _chebyshev_step)
    STEPS[f"shifted_chebyshev_polynomial_{_kind}"] = (_first, _chebyshev_step)


def polynomial(name):
    """Return the converter of polynomials whose orders are known while converting."""
    first, step = STEPS[name]

    def converted(x, n):
        dtype = as_float(result_dtype(x, n))
        values = n if is_number(n) else constant_value(n)
        if values is None:
            raise Unconvertible("the orders of polynomials are not known while converting")
        device = str(getattr(n, "device", getattr(x, "device", "cpu")))
        orders = np.trunc(np.asarray(values if is_number(n) else values.astype("float64").numpy()))
        if orders.max(initial=0) > LARGEST_ORDER:
            raise Unconvertible(f"a polynomial of an order above {LARGEST_ORDER} is not unrolled")
        x = as_tensor(x, dtype, device)
        x = 2.0 * x - 1.0 if name.startswith("shifted") else x
        x = op.broadcast_to(x, np.broadcast_shapes(x.shape, orders.shape))
        now, following, found = op.ones_like(x), first(x), op.zeros_like(x)
        for k in range(int(orders.max(initial=0)) + 1):
            found = op.where(array(orders == k, device=device), now, found)
            now, following = following, step(k + 1, x, following, now)
        return found

    return converted


for _name in STEPS:
    for _overload in ("", ".n_scalar", ".x_scalar"):
        aten(f"special_{_name}{_overload}", op.multiply, op.subtract)(polynomial(_name))

aten.refuse(
    *("igamma", "igammac", "special_gammainc", "special_gammaincc"),
    why="there is no incomplete gamma function in the base operators",
)
aten.refuse(
    *(f"special_bessel_{k}" for k in ("j0", "j1", "y0", "y1")),
    *(f"special_{k}modified_bessel_{n}" for k in ("", "scaled_") for n in ("k0", "k1")),
    "special_airy_ai",
    why="of Bessel's functions the base operators have i0 and i1 only",
)
aten.refuse(
    *("special_erfcx", "special_log_ndtr", "special_ndtri"),
    why="the base operators have no scaled form of erfc, without which its tail is lost",
)
