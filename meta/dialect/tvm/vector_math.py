"""exp, log, tanh, erf, sigmoid, pow and fmod of float32 on the CPU in plain arithmetic, which LLVM
can vectorise.

TVM lowers these calls to the C library, one call for each lane: a softmax is then six times
slower than torch's. The rules below replace TVM's own for the ``llvm`` target when this module is
imported; other element types keep TVM's (float16 and bfloat16 are computed in float32).

Largest errors seen over all of the range, in units of the last place: exp 1, log 1, tanh 5, erf 6,
sigmoid 2 (0 where the result is below 1e-38), pow 0.6; fmod is exact. Infinities, NaNs and denormal
numbers come out as IEEE 754 and C ask. To add a function, write it below and add it to
`_RULES`.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any

from tvm import tirx
from tvm.ir import register_op_attr

from meta.dialect.tvm import llvm_code
from meta.dialect.tvm.broadcast import constant, let
from meta.dialect.tvm.c_math import EXP, LOG, polynomial

_LEVEL = 100  # above the level of TVM's own rules
_MAGIC = 12582912.0  # 1.5 * 2**23: adding it leaves the rounded integer in the low mantissa bits
_MAGIC_BITS = 0x4B400000


def _typed(name: str, like: Any) -> str:
    """Return a dtype with as many lanes as ``like`` has."""
    lanes = like.ty.dtype.lanes
    return name if lanes == 1 else f"{name}x{lanes}"


def _bits(value: Any) -> Any:
    return tirx.reinterpret(_typed("int32", value), value)


def _value(bits: Any) -> Any:
    return tirx.reinterpret(_typed("float32", bits), bits)


def _is_negative(x: Any) -> Any:
    """Whether x has the sign of a negative number, as -0.0 has."""
    bits = _bits(x)
    return bits < constant(0, bits)


def _clamp(x: Any, low: float, high: float) -> Any:
    """min(max(x, low), high), a NaN kept: a comparison with it is false and selects it."""
    x = tirx.Select(x < constant(low, x), constant(low, x), x)
    return tirx.Select(x > constant(high, x), constant(high, x), x)


def _exp(x: Any) -> Any:
    """e**x = 2**n * e**r with n = round(x / ln 2); e**r by Cephes' polynomial."""

    def reduced(x: Any) -> Any:
        turns = x * constant(1.44269504088896341, x)
        return let(turns + constant(_MAGIC, x), lambda t: scaled(x, t))

    def scaled(x: Any, t: Any) -> Any:
        # The integer comes from the bits of t: a conversion would be undefined for a NaN.
        bits = _bits(t)
        n = bits - constant(_MAGIC_BITS, bits)
        return let(t - constant(_MAGIC, t), lambda f: let(n, lambda n: remainder(x, f, n)))

    def remainder(x: Any, f: Any, n: Any) -> Any:
        r = x - f * constant(0.693359375, x) + f * constant(2.12194440e-4, x)
        return let(r, lambda r: power(value(r), n))

    def value(r: Any) -> Any:
        return polynomial(r, EXP) * (r * r) + r + constant(1.0, r)

    def power(y: Any, n: Any) -> Any:
        # In two steps, so that results beyond the normal range round to infinity or a denormal.
        def two_to(k: Any) -> Any:
            return _value(tirx.shift_left(k + constant(127, n), constant(23, n)))

        half = tirx.shift_right(n, constant(1, n))
        return let(half, lambda half: y * two_to(half) * two_to(n - half))

    return let(_clamp(x, -104.0, 89.0), reduced)


def _float(value: float) -> str:
    """Return a float32 as LLVM writes it: by the bits of the float64 that it is."""
    (nearest,) = struct.unpack("<f", struct.pack("<f", value))
    return f"0x{struct.unpack('<Q', struct.pack('<d', nearest))[0]:016X}"


def _splat(kind: str, value: object, lanes: int) -> str:
    return str(value) if lanes == 1 else f"<{', '.join([f'{kind} {value}'] * lanes)}>"


def _log_definition(symbol: str, dtype: str, lanes: int) -> str:
    """log x = e * ln 2 + log m with m in [sqrt(1/2), sqrt 2); log m by Cephes' polynomial.

    In LLVM's language, as `_fmod`: code generation takes exponential time for TVM's names of it.
    """
    floats, words, truths = (llvm_code.typed(kind, lanes) for kind in ("float", "i32", "i1"))

    def real(value: float) -> str:
        return _splat("float", _float(value), lanes)

    def whole(value: int) -> str:
        return _splat("i32", value, lanes)

    first, *others = LOG
    series = "".join(
        f"""
  %product{i} = fmul {floats} {real(first) if i == 0 else f"%sum{i - 1}"}, %r
  %sum{i} = fadd {floats} %product{i}, {real(coefficient)}"""
        for i, coefficient in enumerate(others)
    )
    root_bits = 0x3F3504F3  # of sqrt(1/2)
    return f"""
define {floats} @{symbol}({floats} %x) nounwind memory(none) {{
  %tiny = fcmp olt {floats} %x, {real(1.17549435e-38)}
  %scaled = fmul {floats} %x, {real(8388608.0)}
  %normal = select {truths} %tiny, {floats} %scaled, {floats} %x
  %shift = select {truths} %tiny, {words} {whole(23)}, {words} {whole(0)}
  %bits = bitcast {floats} %normal to {words}
  %above = sub {words} %bits, {whole(root_bits)}
  %n = ashr {words} %above, {whole(23)}
  %power = shl {words} %n, {whole(23)}
  %m_bits = sub {words} %bits, %power
  %m = bitcast {words} %m_bits to {floats}
  %exponent = sub {words} %n, %shift
  %e = sitofp {words} %exponent to {floats}
  %r = fsub {floats} %m, {real(1.0)}
  %z = fmul {floats} %r, %r{series}
  %cubic = fmul {floats} %sum{len(others) - 1}, %r
  %tail = fmul {floats} %cubic, %z
  %low = fmul {floats} %e, {real(2.12194440e-4)}
  %with_low = fsub {floats} %tail, %low
  %half = fmul {floats} %z, {real(0.5)}
  %less = fsub {floats} %with_low, %half
  %log_m = fadd {floats} %r, %less
  %high = fmul {floats} %e, {real(0.693359375)}
  %finite = fadd {floats} %log_m, %high
  %is_finite = fcmp olt {floats} %x, {real(math.inf)}
  %or_itself = select {truths} %is_finite, {floats} %finite, {floats} %x
  %negative = fcmp olt {floats} %x, {real(0.0)}
  %or_nan = select {truths} %negative, {floats} {real(math.nan)}, {floats} %or_itself
  %zero = fcmp oeq {floats} %x, {real(0.0)}
  %y = select {truths} %zero, {floats} {real(-math.inf)}, {floats} %or_nan
  ret {floats} %y
}}"""


_LOG = llvm_code.function("log", 1, _log_definition, lowers="tirx.log")


def _log(x: Any) -> Any:
    return llvm_code.call(_LOG, x)


def _tanh(x: Any) -> Any:
    """Eigen's rational approximation; beyond 8.7 the result is 1 in float32. It has to be exact: a
    gradient multiplies what 1 - y**2 leaves by what may be large.
    """

    def rational(x: Any) -> Any:
        return let(x * x, lambda z: quotient(x, z))

    def quotient(x: Any, z: Any) -> Any:
        return x * polynomial(z, _TANH_P) / polynomial(z, _TANH_Q)

    def with_ends(x: Any) -> Any:  # near 0 tanh x = x to the last bit, and a denormal stays one
        small = tirx.abs(x) < constant(4e-4, x)
        y = tirx.Select(small, x, let(_clamp(x, -_TANH_END, _TANH_END), rational))
        y = tirx.Select(x > constant(_TANH_ONE, x), constant(1.0, x), y)
        return tirx.Select(x < constant(-_TANH_ONE, x), constant(-1.0, x), y)

    return let(x, with_ends)


def _erf(x: Any) -> Any:
    """The rational approximation of XLA and Eigen; beyond 4 the result is 1 in float32."""

    def rational(x: Any) -> Any:
        return let(x * x, lambda z: x * quotient(z))

    def quotient(z: Any) -> Any:  # on its own, so that a small x keeps its precision
        return polynomial(z, _ERF_P) / polynomial(z, _ERF_Q)

    return let(_clamp(x, -4.0, 4.0), rational)


def _sigmoid(x: Any) -> Any:
    """1 / (1 + e**-x), in float32 for the half types: e**12 is no float16."""
    one = constant(1.0, x)
    return one / (one + _exp(constant(0.0, x) - x))


def _pow(x: Any, y: Any) -> Any:
    """x**y = 2**(y * log2 |x|) in float64, so that the product's error does not count; then signs.

    log2 m of the mantissa by the series of atanh((m - 1) / (m + 1)), 2**f by that of exp.
    """

    def double(bits: Any) -> Any:
        return tirx.reinterpret(_typed("float64", x), bits)

    def bits(value: Any) -> Any:
        return tirx.reinterpret(_typed("int64", x), value)

    def logarithm(a: Any) -> Any:  # of a > 0, also infinity (1024); a float32 denormal is no case
        def parts(b: Any) -> Any:
            # The exponent counts from sqrt(1/2), so that m is in [sqrt(1/2), sqrt(2)).
            shifted = b - constant(_SQRT_HALF_BITS, b)
            exponent = tirx.shift_right(shifted, constant(52, b))
            m = double(b - tirx.shift_left(exponent, constant(52, b)))
            return let(m, lambda m: of_mantissa(m) + exponent.astype(_typed("float64", m)))

        def of_mantissa(m: Any) -> Any:
            s = (m - constant(1.0, m)) / (m + constant(1.0, m))
            return let(s, lambda s: s * polynomial(s * s, _LOG2))

        return let(bits(a), parts)

    def power_of_two(t: Any) -> Any:  # |t| < 1000
        def split(shifted: Any) -> Any:
            f = t - (shifted - constant(_MAGIC_64, t))
            whole = bits(shifted)
            n = tirx.shift_left(whole, constant(52, whole))
            return let(f, lambda f: double(bits(polynomial(f, _EXP2)) + n))

        return let(t + constant(_MAGIC_64, t), split)

    def magnitude(a: Any, y: Any) -> Any:
        large = constant(1e300, a)
        infinite = tirx.Select(a > large, large, logarithm(a))
        t = y * tirx.Select(tirx.EQ(a, constant(0.0, a)), constant(-1e300, a), infinite)
        return let(_clamp(t, -200.0, 200.0), power_of_two)

    def signed(x: Any, y: Any) -> Any:
        wide = _typed("float64", x)
        plain = magnitude(tirx.abs(x.astype(wide)), y.astype(wide)).astype(_typed("float32", x))
        half = y * constant(0.5, x)
        whole = tirx.EQ(tirx.trunc(y), y)
        odd = tirx.And(whole, tirx.Not(tirx.EQ(tirx.trunc(half), half)))
        zero, one, infinity = (constant(c, x) for c in (0.0, 1.0, math.inf))
        nan = constant(math.nan, x)
        negative = _is_negative(x)
        result = tirx.Select(tirx.And(negative, odd), plain * constant(-1.0, x), plain)
        finite_below = tirx.And(x < zero, x > zero - infinity)
        result = tirx.Select(tirx.And(finite_below, tirx.Not(whole)), nan, result)
        minus = tirx.And(tirx.EQ(x, zero - one), tirx.EQ(tirx.abs(y), infinity))
        result = tirx.Select(tirx.Or(tirx.isnan(x), tirx.isnan(y)), nan, result)
        unit = tirx.Or(tirx.Or(tirx.EQ(x, one), tirx.EQ(y, zero)), minus)
        return tirx.Select(unit, one, result)

    return let(x, lambda x: let(y, lambda y: signed(x, y)))


def _fmod_definition(symbol: str, dtype: str, lanes: int) -> str:
    """The remainder of |a| by |b| in float64, exactly, with the sign of a.

    Each step subtracts b times the leading 29 bits of the quotient: that product has 53 bits, and
    what remains is below 2**-28 of what was there. Ten steps are enough for any two floats. Of
    TVM's names for ten values that each occur twice, its simplifier would make 2**10.
    """
    floats, doubles, words = (llvm_code.typed(kind, lanes) for kind in ("float", "double", "i64"))
    truths, places = llvm_code.typed("i1", lanes), "" if lanes == 1 else f"v{lanes}"

    zero, one = (_splat("double", value, lanes) for value in (0.0, 1.0))
    infinity = _splat("float", _float(math.inf), lanes)
    mask = _splat("i64", -(1 << 24), lanes)  # keeps 29 of the 53 bits of a mantissa
    steps = "".join(
        f"""
  %q{i} = fmul {doubles} %r{i}, %inverse
  %whole{i} = call {doubles} @llvm.trunc.{places}f64({doubles} %q{i})
  %bits{i} = bitcast {doubles} %whole{i} to {words}
  %leading{i} = and {words} %bits{i}, {mask}
  %quotient{i} = bitcast {words} %leading{i} to {doubles}
  %product{i} = fmul {doubles} %quotient{i}, %size
  %r{i + 1} = fsub {doubles} %r{i}, %product{i}"""
        for i in range(_FMOD_STEPS)
    )
    return f"""
declare {doubles} @llvm.trunc.{places}f64({doubles})
declare {floats} @llvm.fabs.{places}f32({floats})
declare {floats} @llvm.copysign.{places}f32({floats}, {floats})

define {floats} @{symbol}({floats} %a, {floats} %b) nounwind memory(none) {{
  %a_size = call {floats} @llvm.fabs.{places}f32({floats} %a)
  %b_size = call {floats} @llvm.fabs.{places}f32({floats} %b)
  %r0 = fpext {floats} %a_size to {doubles}
  %size = fpext {floats} %b_size to {doubles}
  %inverse = fdiv {doubles} {one}, %size{steps}
  %below = fcmp olt {doubles} %r{_FMOD_STEPS}, {zero}
  %raised = fadd {doubles} %r{_FMOD_STEPS}, %size
  %up = select {truths} %below, {doubles} %raised, {doubles} %r{_FMOD_STEPS}
  %above = fcmp oge {doubles} %up, %size
  %lowered = fsub {doubles} %up, %size
  %rest = select {truths} %above, {doubles} %lowered, {doubles} %up
  %narrow = fptrunc {doubles} %rest to {floats}
  %exact = call {floats} @llvm.copysign.{places}f32({floats} %narrow, {floats} %a)
  %b_infinite = fcmp oeq {floats} %b_size, {infinity}
  %a_finite = fcmp olt {floats} %a_size, {infinity}
  %small = and {truths} %b_infinite, %a_finite
  %y = select {truths} %small, {floats} %a, {floats} %exact
  ret {floats} %y
}}"""


_FMOD = llvm_code.function("fmod", 2, _fmod_definition, lowers="tirx.fmod")


def _fmod(a: Any, b: Any) -> Any:
    return llvm_code.call(_FMOD, a, b)


_SQRT_HALF_BITS = 0x3FE6A09E667F3BCD
_MAGIC_64 = 6755399441055744.0  # as _MAGIC: 1.5 * 2**52
_FMOD_STEPS = 10
# 2 / (ln(2) * (2 k + 1)) and ln(2)**k / k!, the highest power first.
_LOG2 = tuple(2.0 / (math.log(2.0) * (2 * k + 1)) for k in range(6, -1, -1))
_EXP2 = tuple(math.log(2.0) ** k / math.factorial(k) for k in range(8, -1, -1))
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


def _register(name: str, rule: Callable[..., Any], default: Callable[..., Any]) -> None:
    """Let a call be ``rule`` of float32 numbers and of halves; ``default`` is for others."""

    def lower(call: Any) -> Any:
        dtype = call.ty.dtype
        kind = str(dtype).split("x")[0]
        if kind == "float32":
            return rule(*call.args)
        if kind in ("float16", "bfloat16"):
            wide = [argument.astype(_typed("float32", call)) for argument in call.args]
            return rule(*wide).astype(str(dtype))
        return default(call)

    tirx.register_intrin_lowering(f"tirx.{name}", "llvm", f=lower, level=_LEVEL)


_RULES: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "exp": (_exp, _llvm),
    "log": (_log, _llvm),
    "pow": (_pow, _llvm),
    "tanh": (_tanh, _libm),
    "erf": (_erf, _libm),
    "fmod": (_fmod, _libm),
    "sigmoid": (_sigmoid, _logistic),
}
FUNCTIONS = frozenset(f"tirx.{name}" for name in _RULES)
"""The calls that become plain arithmetic."""
for _name, _functions in _RULES.items():
    _register(_name, *_functions)

# TVM takes a vector of it apart, though not one of the others.
register_op_attr("tirx.erf", "TVectorizable", True)
# LLVM compares vectors as it does numbers; without this TVM takes a loop of lanes apart.
register_op_attr("tirx.isnan", "TVectorizable", True)
