"""Functions of elements: arithmetic, bounds, special functions, orthogonal polynomials.

Those that are a base operator of promoted operands are in `plain.py`.
"""

from math import inf, log, pi

import numpy as np
import torch

from meta import op
from meta.base.dtype import COMPLEX, TO_TORCH, is_float
from meta.frontend.aten.arguments import (
    as_float,
    as_tensor,
    cast,
    device_of,
    is_number,
    number,
    promote,
    require_real,
    result_dtype,
)
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arithmetic import clip_to_bounds, truncated_quotient
from meta.ir.dims import SymbolicDim
from meta.model.control_flow import while_loop
from meta.op.core.check import broadcast_shapes
from meta.op.zeta import derivative_of_digamma, zeta
from meta.runtime.ndarray import array


@aten("sign", "sgn", op.sign, op.where, op.not_equal)
def sign(x):
    """As torch has it: 0 of a NaN, of complex ones NaN."""
    found = op.sign(x)
    return op.where(op.not_equal(x, x), 0, found) if is_float(x.dtype) else found


@aten("round.decimals", "special_round", op.round)
def round_(x, *, decimals):
    return op.round(x, decimals) if decimals and is_float(x.dtype) else op.round(x)


@aten("nan_to_num", op.nan_to_num)
def nan_to_num(x, *, nan, posinf, neginf):
    require_real(x)
    if not is_float(x.dtype):
        return x
    return op.nan_to_num(x, 0.0 if nan is None else nan, posinf, neginf)


FIELDS = {"float32": ("int32", 23, 8), "float64": ("int64", 52, 11)}
"""Of a float the integer of its width, the bits of its fraction and those of its exponent."""


@aten("frexp.Tensor", op.reinterpret, op.bitwise_right_shift, op.detach, op.where)
def frexp(x):
    """A fraction of magnitude 1/2 to 1, and the exponent (int32) of 2 by which it is multiplied."""
    wide = x if x.dtype in FIELDS else op.astype(x, "float32")
    integer, fraction, width = FIELDS[wide.dtype]
    bias = 2 ** (width - 1) - 1
    # A subnormal number has no exponent of its own: it is scaled to one that has.
    scale = 2.0**fraction
    small = op.less(op.abs(wide), 2.0 ** (1 - bias))
    scaled = op.where(small, op.multiply(wide, scale), wide)
    bits = op.reinterpret(scaled, integer)
    field = op.bitwise_and(op.bitwise_right_shift(bits, fraction), 2**width - 1)
    exponent = op.subtract(field, bias - 1)
    exponent = op.where(small, op.subtract(exponent, fraction), exponent)
    kept = op.bitwise_and(bits, -(2 ** (width + fraction)) + 2**fraction - 1)
    part = op.reinterpret(op.bitwise_or(kept, (bias - 1) << fraction), wide.dtype)
    # Zeros, infinities and NaN are their own fraction, of exponent 0.
    plain = op.logical_and(op.isfinite(wide), op.not_equal(wide, 0.0))
    # Bits have no gradient: that of the product by a power of 2 is added, whose value is 0 here.
    factor = op.detach(op.divide(part, op.where(plain, scaled, 1.0)))
    product = op.where(plain, op.multiply(scaled, factor), 0.0)
    part = op.where(plain, op.add(part, op.subtract(product, op.detach(product))), wide)
    exponent = op.where(plain, op.astype(exponent, "int32"), 0)
    return cast(part, x.dtype), exponent


# Two operands.


def scaled(x, alpha, dtype):
    """Return x * alpha in a dtype; a number stays one."""
    if alpha == 1:
        return x
    product = x * alpha if is_number(x) else op.multiply(x, number(alpha, dtype, device_of(x)))
    return number(product, dtype, device_of()) if is_number(product) else product


def terms(x, y):
    """Return the terms of a sum. PyTorch rounds a number to half precision first, but not on
    CUDA.
    """
    dtype = TO_TORCH[result_dtype(x, y)]
    if dtype.itemsize > 2 or device_of(x, y).kind != "cpu":
        return x, y
    return tuple(torch.tensor(t, dtype=dtype).item() if isinstance(t, float) else t for t in (x, y))


@aten("add.Tensor", "add.Scalar", op.add, op.multiply)
def add(x, y, *, alpha):
    dtype = result_dtype(x, y)
    x, y = promote(x, y)
    return op.add(*terms(x, scaled(y, alpha, dtype)))


@aten("sub.Tensor", "sub.Scalar", "subtract.Tensor", "subtract.Scalar", op.subtract, op.multiply)
def subtract(x, y, *, alpha):
    dtype = result_dtype(x, y)
    x, y = promote(x, y)
    return op.subtract(*terms(x, scaled(y, alpha, dtype)))


@aten("rsub.Tensor", "rsub.Scalar", op.subtract, op.multiply)
def rsub(x, y, *, alpha):
    dtype = result_dtype(x, y)
    x, y = promote(x, y)
    return op.subtract(*terms(y, scaled(x, alpha, dtype)))


@aten("_add_relu.Tensor", "_add_relu.Scalar", op.add, op.multiply, op.relu)
def add_relu(x, y, *, alpha):
    return op.relu(add(x, y, alpha=alpha))


@aten(
    *(f"{n}.{o}_mode" for n in ("div", "divide") for o in ("Tensor", "Scalar")),
    op.divide,
    op.floor_divide,
    op.trunc,
    op.fmod,
    op.subtract,
)
def divide(x, y, *, rounding_mode):
    if rounding_mode is None:
        return op.divide(*promote(x, y, floating=True))
    x, y = promote(x, y)
    return op.floor_divide(x, y) if rounding_mode == "floor" else truncated_quotient(x, y)


POWERS = {2: op.square, 0.5: op.sqrt, -0.5: op.rsqrt, -1: op.reciprocal}
"""Powers that are functions of their own, in torch, too."""


@aten("pow.Tensor_Scalar", op.pow, *POWERS.values())
def power(x, exponent):
    x, y = promote(x, exponent)
    known = POWERS.get(y) if is_number(y) else None
    if known is not None and is_float(x.dtype):
        return known(x)
    return op.pow(x, y)


@aten("float_power.Tensor_Tensor", "float_power.Tensor_Scalar", "float_power.Scalar", op.pow)
def float_power(x, y):
    """The power in the widest dtype of its kind."""
    wide = "complex128" if result_dtype(x, y) in COMPLEX else "float64"
    return op.pow(*promote(x, y, dtype=wide))


@aten("ldexp.Tensor", op.pow, op.multiply)
def ldexp(x, exponent):
    return op.multiply(*promote(x, op.pow(*promote(2.0, exponent))))


@aten("lerp.Tensor", "lerp.Scalar", op.lerp, op.add, op.multiply, op.subtract)
def lerp(x, end, weight):
    x, end, weight = promote(x, end, weight)
    if x.dtype in COMPLEX:
        return op.add(x, op.multiply(op.subtract(end, x), weight))
    return op.lerp(x, end, weight)


@aten("addcmul", op.addcmul, op.add, op.multiply)
def addcmul(x, a, b, *, value):
    x, a, b = promote(x, a, b)
    value = number(value, x.dtype, device_of(x))
    if x.dtype in COMPLEX:
        return op.add(x, op.multiply(op.multiply(a, b), value))
    return op.addcmul(x, a, b, value)


@aten("addcdiv", op.addcdiv, op.add, op.multiply, op.divide)
def addcdiv(x, a, b, *, value):
    x, a, b = promote(x, a, b)
    if x.dtype in COMPLEX:
        return op.add(x, op.divide(op.multiply(a, number(value, x.dtype, device_of(x))), b))
    return op.addcdiv(x, a, b, value)


# Bounds.


def bounded(x, low, high):
    """Return x, at least ``low`` and at most ``high``, each a number, a tensor or None; ``high``
    where low > high.
    """
    dtype, device = result_dtype(x, low, high), device_of(x)
    x = cast(x, dtype)
    if all(b is None or isinstance(b, bool | int | float) for b in (low, high)) and dtype != "bool":
        # The gradient at a bound passes, as torch's does, but not all of that of `maximum`.
        return clip_to_bounds(x, -inf if low is None else low, inf if high is None else high)
    if low is not None:
        x = op.maximum(x, as_tensor(low, dtype, device))
    return x if high is None else op.minimum(x, as_tensor(high, dtype, device))


@aten("clamp", "clip", op.clip, op.maximum, op.minimum)
def clamp(x, *, min, max):
    return bounded(x, min, max)


@aten("clamp.Tensor", "clip.Tensor", op.maximum, op.minimum)
def clamp_tensor(x, low, high):
    return bounded(x, low, high)


@aten("clamp_min", "clamp_min.Tensor", op.maximum)
def clamp_min(x, low):
    return bounded(x, low, None)


@aten("clamp_max", "clamp_max.Tensor", op.minimum)
def clamp_max(x, high):
    return bounded(x, None, high)


@aten("gcd", op.fmod, op.where)
def gcd(x, y):
    """Euclid's algorithm, until no element has a remainder."""
    x, y = promote(x, y)
    shape = broadcast_shapes(x.shape, y.shape)

    def step(pair):
        divisor, rest = pair
        done = op.equal(rest, 0)
        remainder = op.fmod(divisor, op.where(done, 1, rest))
        return op.where(done, divisor, rest), op.where(done, 0, remainder)

    start = tuple(op.broadcast_to(op.abs(t), shape) for t in (x, y))
    return while_loop(lambda pair: op.any(op.not_equal(pair[1], 0)), step, start)[0]


@aten("lcm", op.fmod, op.where, op.floor_divide)
def lcm(x, y):
    """|x / gcd * y|, of at least 32 bits before it is cut off."""
    x, y = promote(x, y)
    dtype = "int64" if x.dtype == "int64" else "int32"
    wide_x, wide_y = cast(x, dtype), cast(y, dtype)
    divisor = gcd(wide_x, wide_y)
    part = op.floor_divide(wide_x, op.where(op.equal(divisor, 0), 1, divisor))
    return cast(op.abs(op.multiply(part, wide_y)), x.dtype)


# Special functions: the error function, gamma functions, entropies, Bessel functions, orthogonal
# polynomials.


@aten("special_spherical_bessel_j0", op.sinc, op.multiply)
def spherical_bessel_j0(x):
    (x,) = promote(x, floating=True)
    return op.sinc(op.multiply(x, 1 / pi))


@aten("mvlgamma", "special_multigammaln", op.lgamma, op.add)
def mvlgamma(x, *, p):
    """The logarithm of the multivariate gamma function, a sum of lgamma."""
    (x,) = promote(x, floating=True)
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
    (x,) = promote(x, floating=True)
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
        if values is None or isinstance(values, SymbolicDim):
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
