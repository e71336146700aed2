"""exp, log, tanh, erf, sigmoid, pow and fmod of float32 on the CPU in plain arithmetic, which LLVM
can vectorise.

TVM lowers these calls to the C library, one call for each lane: a softmax is then six times
slower than torch's. The rules below replace TVM's own for the ``llvm`` target when this module is
imported; other element types keep TVM's (float16 and bfloat16 are computed in float32).

Largest errors seen over all of the range, in units of the last place: exp 1, log 1, tanh 5, erf 6,
sigmoid 2 (0 where the result is below 1e-38), pow 0.6; fmod is exact. Infinities, NaNs and denormal
numbers come out as IEEE 754 and C ask. To add a function, write it below in terms of `_Lanes` and
add it to `_RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx
from tvm.ir import register_op_attr

_LEVEL = 100  # above the level of TVM's own rules
_MAGIC = 12582912.0  # 1.5 * 2**23: adding it leaves the rounded integer in the low mantissa bits
_MAGIC_BITS = 0x4B400000


class _Lanes:
    """Constants and bit casts with as many lanes as the argument."""

    def __init__(self, like: Any) -> None:
        self.lanes = like.ty.dtype.lanes

    def dtype(self, name: str) -> str:
        return name if self.lanes == 1 else f"{name}x{self.lanes}"

    def constant(self, value: float | int, name: str = "float32") -> Any:
        scalar = tirx.const(value, name)
        return scalar if self.lanes == 1 else tirx.Broadcast(scalar, self.lanes)

    def bits(self, value: Any) -> Any:
        return tirx.reinterpret(self.dtype("int32"), value)

    def value(self, bits: Any) -> Any:
        return tirx.reinterpret(self.dtype("float32"), bits)

    def polynomial(self, x: Any, coefficients: Sequence[float]) -> Any:
        """Horner's rule; the highest power's coefficient comes first."""
        result = self.constant(coefficients[0])
        for coefficient in coefficients[1:]:
            result = result * x + self.constant(coefficient)
        return result

    def clamp(self, x: Any, low: float, high: float) -> Any:
        """min(max(x, low), high), a NaN kept: a comparison with it is false and selects it."""
        x = tirx.Select(x < self.constant(low), self.constant(low), x)
        return tirx.Select(x > self.constant(high), self.constant(high), x)


def _let(value: Any, body: Callable[[Any], Any]) -> Any:
    """Name a value that is used several times; expressions are trees."""
    variable = tirx.Var("t", value.ty)
    return tirx.Let(variable, value, body(variable))


def _exp(lanes: _Lanes, x: Any) -> Any:
    """e**x = 2**n * e**r with n = round(x / ln 2); e**r by Cephes' polynomial."""
    constant = lanes.constant

    def reduced(x: Any) -> Any:
        return _let(x * constant(1.44269504088896341) + constant(_MAGIC), lambda t: scaled(x, t))

    def scaled(x: Any, t: Any) -> Any:
        # The integer comes from the bits of t: a conversion would be undefined for a NaN.
        n = lanes.bits(t) - constant(_MAGIC_BITS, "int32")
        f = t - constant(_MAGIC)
        return _let(f, lambda f: _let(n, lambda n: remainder(x, f, n)))

    def remainder(x: Any, f: Any, n: Any) -> Any:
        r = x - f * constant(0.693359375) + f * constant(2.12194440e-4)
        return _let(r, lambda r: power(value(r), n))

    def value(r: Any) -> Any:
        p = lanes.polynomial(r, _EXP)
        return p * (r * r) + r + constant(1.0)

    def power(y: Any, n: Any) -> Any:
        # In two steps, so that results beyond the normal range round to infinity or a denormal.
        def two_to(k: Any) -> Any:
            biased = k + constant(127, "int32")
            return lanes.value(tirx.shift_left(biased, constant(23, "int32")))

        half = tirx.shift_right(n, constant(1, "int32"))
        return _let(half, lambda half: y * two_to(half) * two_to(n - half))

    return _let(lanes.clamp(x, -104.0, 89.0), reduced)


def _log(lanes: _Lanes, x: Any) -> Any:
    """log x = e * ln 2 + log m with m in [sqrt(1/2), sqrt 2); log m by Cephes' polynomial."""
    constant = lanes.constant
    smallest, root_bits = 1.17549435e-38, 0x3F3504F3  # the bits of sqrt(1/2)

    def split(x: Any) -> Any:
        tiny = x < constant(smallest)
        normal = tirx.Select(tiny, x * constant(8388608.0), x)
        shift = tirx.Select(tiny, constant(23, "int32"), constant(0, "int32"))
        return _let(lanes.bits(normal), lambda bits: parts(x, bits, shift))

    def parts(x: Any, bits: Any, shift: Any) -> Any:
        exponent = tirx.shift_right(bits - constant(root_bits, "int32"), constant(23, "int32"))

        def reduced(n: Any) -> Any:
            m = lanes.value(bits - tirx.shift_left(n, constant(23, "int32")))
            e = (n - shift).astype(lanes.dtype("float32"))
            return _let(m - constant(1.0), lambda r: _let(e, lambda e: special(x, series(r, e))))

        return _let(exponent, reduced)

    def series(r: Any, e: Any) -> Any:
        def rest(z: Any) -> Any:
            y = lanes.polynomial(r, _LOG) * r * z - e * constant(2.12194440e-4)
            return r + (y - constant(0.5) * z) + e * constant(0.693359375)

        return _let(r * r, rest)

    def special(x: Any, y: Any) -> Any:
        infinity = constant(float("inf"))
        y = tirx.Select(x < infinity, y, x)  # infinity, NaN
        y = tirx.Select(x < constant(0.0), constant(float("nan")), y)
        return tirx.Select(tirx.EQ(x, constant(0.0)), constant(-float("inf")), y)

    return _let(x, split)


def _tanh(lanes: _Lanes, x: Any) -> Any:
    """Eigen's rational approximation; beyond 8.7 the result is 1 in float32. It has to be exact: a
    gradient multiplies what 1 - y**2 leaves by what may be large.
    """

    def rational(x: Any) -> Any:
        return _let(x * x, lambda z: quotient(x, z))

    def quotient(x: Any, z: Any) -> Any:
        return x * lanes.polynomial(z, _TANH_P) / lanes.polynomial(z, _TANH_Q)

    def with_ends(x: Any) -> Any:  # near 0 tanh x = x to the last bit, and a denormal stays one
        small = tirx.abs(x) < lanes.constant(4e-4)
        y = tirx.Select(small, x, _let(lanes.clamp(x, -_TANH_END, _TANH_END), rational))
        y = tirx.Select(x > lanes.constant(_TANH_ONE), lanes.constant(1.0), y)
        return tirx.Select(x < lanes.constant(-_TANH_ONE), lanes.constant(-1.0), y)

    return _let(x, with_ends)


def _erf(lanes: _Lanes, x: Any) -> Any:
    """The rational approximation of XLA and Eigen; beyond 4 the result is 1 in float32."""

    def rational(x: Any) -> Any:
        return _let(x * x, lambda z: x * quotient(z))

    def quotient(z: Any) -> Any:  # on its own, so that a small x keeps its precision
        return lanes.polynomial(z, _ERF_P) / lanes.polynomial(z, _ERF_Q)

    return _let(lanes.clamp(x, -4.0, 4.0), rational)


def _sigmoid(lanes: _Lanes, x: Any) -> Any:
    """1 / (1 + e**-x), in float32 for the half types: e**12 is no float16."""
    one = lanes.constant(1.0)
    return one / (one + _exp(lanes, lanes.constant(0.0) - x))


def _pow(lanes: _Lanes, x: Any, y: Any) -> Any:
    """x**y = 2**(y * log2 |x|) in float64, so that the product's error does not count; then signs.

    log2 m of the mantissa by the series of atanh((m - 1) / (m + 1)), 2**f by that of exp.
    """

    def number(value: float) -> Any:
        return lanes.constant(value, "float64")

    def integer(value: int) -> Any:
        return lanes.constant(value, "int64")

    def double(bits: Any) -> Any:
        return tirx.reinterpret(lanes.dtype("float64"), bits)

    def bits(value: Any) -> Any:
        return tirx.reinterpret(lanes.dtype("int64"), value)

    def series(x: Any, coefficients: Sequence[float]) -> Any:
        result = number(coefficients[0])
        for coefficient in coefficients[1:]:
            result = result * x + number(coefficient)
        return result

    def logarithm(a: Any) -> Any:  # of a > 0, also infinity (1024); a float32 denormal is no case
        def parts(b: Any) -> Any:
            # The exponent counts from sqrt(1/2), so that m is in [sqrt(1/2), sqrt(2)).
            shifted = b - integer(_SQRT_HALF_BITS)
            exponent = tirx.shift_right(shifted, integer(52))
            m = double(b - tirx.shift_left(exponent, integer(52)))
            return _let(m, lambda m: of_mantissa(m) + exponent.astype(lanes.dtype("float64")))

        def of_mantissa(m: Any) -> Any:
            s = (m - number(1.0)) / (m + number(1.0))
            return _let(s, lambda s: s * series(s * s, _LOG2))

        return _let(bits(a), parts)

    def power_of_two(t: Any) -> Any:  # |t| < 1000
        def split(shifted: Any) -> Any:
            f = t - (shifted - number(_MAGIC_64))
            n = tirx.shift_left(bits(shifted), integer(52))
            return _let(f, lambda f: double(bits(series(f, _EXP2)) + n))

        return _let(t + number(_MAGIC_64), split)

    def magnitude(a: Any, y: Any) -> Any:
        def clamped(t: Any) -> Any:
            t = tirx.Select(t < number(-200.0), number(-200.0), t)
            return tirx.Select(t > number(200.0), number(200.0), t)

        infinite = tirx.Select(a > number(1e300), number(1e300), logarithm(a))
        t = y * tirx.Select(tirx.EQ(a, number(0.0)), number(-1e300), infinite)
        return _let(clamped(t), power_of_two)

    def signed(x: Any, y: Any) -> Any:
        wide = lanes.dtype("float64")
        plain = magnitude(tirx.abs(x.astype(wide)), y.astype(wide)).astype(lanes.dtype("float32"))
        half = y * lanes.constant(0.5)
        whole = tirx.EQ(tirx.trunc(y), y)
        odd = tirx.And(whole, tirx.Not(tirx.EQ(tirx.trunc(half), half)))
        zero, one, infinity = (lanes.constant(c) for c in (0.0, 1.0, float("inf")))
        nan = lanes.constant(float("nan"))
        negative = lanes.bits(x) < lanes.constant(0, "int32")
        result = tirx.Select(tirx.And(negative, odd), plain * lanes.constant(-1.0), plain)
        finite_below = tirx.And(x < zero, x > zero - infinity)
        result = tirx.Select(tirx.And(finite_below, tirx.Not(whole)), nan, result)
        minus = tirx.And(tirx.EQ(x, zero - one), tirx.EQ(tirx.abs(y), infinity))
        result = tirx.Select(tirx.Or(tirx.isnan(x), tirx.isnan(y)), nan, result)
        unit = tirx.Or(tirx.Or(tirx.EQ(x, one), tirx.EQ(y, zero)), minus)
        return tirx.Select(unit, one, result)

    return _let(x, lambda x: _let(y, lambda y: signed(x, y)))


def _fmod(lanes: _Lanes, a: Any, b: Any) -> Any:
    """The remainder of |a| by |b| in float64, exactly, with the sign of a.

    Each step subtracts b times the leading 29 bits of the quotient: that product has 53 bits, and
    what remains is below 2**-28 of what was there. Ten steps are enough for any two floats.
    """
    wide = lanes.dtype("float64")
    mask = lanes.constant(-(1 << 24), "int64")  # keeps 29 of the 53 bits of a mantissa

    def number(value: float) -> Any:
        return lanes.constant(value, "float64")

    def step(r: Any, b: Any, inverse: Any, left: int) -> Any:
        if left == 0:
            # The reciprocal was rounded, so the last quotient may be off by one.
            r = tirx.Select(r < number(0.0), r + b, r)
            return _let(r, lambda r: tirx.Select(r >= b, r - b, r))
        bits = tirx.reinterpret(lanes.dtype("int64"), tirx.trunc(r * inverse))
        quotient = tirx.reinterpret(wide, tirx.bitwise_and(bits, mask))
        return _let(r - quotient * b, lambda r: step(r, b, inverse, left - 1))

    def signed(a: Any, b: Any) -> Any:
        size, infinity = tirx.abs(b.astype(wide)), lanes.constant(float("inf"))
        r = _let(
            size,
            lambda size: _let(
                number(1.0) / size,
                lambda inverse: step(tirx.abs(a.astype(wide)), size, inverse, _FMOD_STEPS),
            ),
        )
        r = r.astype(lanes.dtype("float32"))
        negative = lanes.bits(a) < lanes.constant(0, "int32")
        exact = tirx.Select(negative, r * lanes.constant(-1.0), r)
        small = tirx.And(tirx.EQ(tirx.abs(b), infinity), tirx.abs(a) < infinity)
        return tirx.Select(small, a, exact)

    return _let(a, lambda a: _let(b, lambda b: signed(a, b)))


_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_MAGIC_64 = 6755399441055744.0  # as _MAGIC: 1.5 * 2**52
_FMOD_STEPS = 10
# 2 / (ln(2) * (2 k + 1)) and ln(2)**k / k!, the highest power first.
_LOG2 = tuple(2.0 / (math.log(2.0) * (2 * k + 1)) for k in range(6, -1, -1))
_EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(8, -1, -1))
_EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
_TANH_END, _TANH_ONE = 7.90531110763549805, 8.7
_TANH_P = (
    -2.76076847742355e-16, 2.00018790482477e-13, -8.60467152213735e-11, 5.12229709037114e-08,
    1.48572235717979e-05, 6.37261928875436e-04, 4.89352455891786e-03,
)  # fmt: skip
_TANH_Q = (
    1.19825839466702e-06, 1.18534705686654e-04, 2.26843463243900e-03, 4.89352518554385e-03,
)  # fmt: skip
_ERF_P = (
    -2.72614225801306e-10, 2.77068142495902e-08, -2.10102402082508e-06, -5.69250639462346e-05,
    -7.34990630326855e-04, -2.95459980854025e-03, -1.60960333262415e-02,
)  # fmt: skip
_ERF_Q = (
    -1.45660718464996e-05, -2.13374055278905e-04, -1.68282697438203e-03, -7.37332916720468e-03,
    -1.42647390514189e-02,
)  # fmt: skip

_RULES: dict[str, Callable[..., Any]] = {
    "exp": _exp, "log": _log, "tanh": _tanh, "erf": _erf, "sigmoid": _sigmoid, "pow": _pow,
    "fmod": _fmod,
}  # fmt: skip


FUNCTIONS = frozenset(f"tirx.{name}" for name in _RULES)
"""The calls that become plain arithmetic."""


def _libm(call: Any) -> Any:
    """The C library's function: TVM's float64 tanh is wrong for small arguments."""
    return tirx.call_pure_extern(call.ty, call.op.name.removeprefix("tirx."), *call.args)


def _llvm(call: Any) -> Any:
    """LLVM's own intrinsic, which becomes the C library's function."""
    name = call.op.name.replace("tirx.", "llvm.")
    return tirx.call_llvm_pure_intrin(call.ty, name, *call.args)


def _logistic(call: Any) -> Any:
    one = tirx.const(1.0, call.ty.dtype)
    return one / (one + tirx.exp(-call.args[0]))


def _register(name: str, rule: Callable[..., Any]) -> None:
    def lower(call: Any) -> Any:
        dtype = call.ty.dtype
        kind = str(dtype).split("x")[0]
        lanes = _Lanes(call)
        if kind == "float32":
            return rule(lanes, *call.args)
        if kind in ("float16", "bfloat16"):
            wide = [argument.astype(lanes.dtype("float32")) for argument in call.args]
            return rule(lanes, *wide).astype(str(dtype))
        return default(call)

    default = {"exp": _llvm, "log": _llvm, "pow": _llvm, "sigmoid": _logistic}.get(name, _libm)

    tirx.register_intrin_lowering(f"tirx.{name}", "llvm", f=lower, level=_LEVEL)


for _name, _rule in _RULES.items():
    _register(_name, _rule)

# TVM takes a vector of it apart, though not one of the others.
register_op_attr("tirx.erf", "TVectorizable", True)
