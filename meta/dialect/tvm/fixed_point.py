"""Products of integers and fixed-point numbers in TE, in 64 bits."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import broadcast, cast, let
from meta.dialect.tvm.compute import BROADCAST, INJECTIVE, compute

BEYOND = 32
"""The shift to the right from which on every product rounds to 0."""


def _int64(value):
    return tirx.const(value, "int64")


@compute(op.fixed_point_multiply, BROADCAST)
def fixed_point_multiply(x, multiplier, shift, rounding):
    def scaled(value, factor, exponent):
        product = tirx.shift_left(value, tirx.max(exponent, _int64(0))) * factor
        if rounding == "upward":
            return rounded(product, _int64(0), exponent)
        # Less than a half is added to a negative product: a half of it goes down.
        return let(product, lambda p: rounded(p, cast(p < _int64(0), "int64"), exponent))

    def rounded(product, less, exponent):
        right = tirx.min(tirx.max(_int64(0) - exponent, _int64(0)), _int64(BEYOND))
        half = tirx.shift_left(_int64(1), right + _int64(30)) - less
        return tirx.shift_right(product + half, right + _int64(31))

    def element(value, factor, exponent):
        return scaled(*[cast(v, "int64") for v in (value, factor, exponent)])

    return broadcast(element, x, multiplier, shift, dtype="int32")


FRACTION = 52
"""Bits of a float64 behind the leading one."""


@compute(op.fixed_point_number, INJECTIVE)
def fixed_point_number(x):
    def parts(*index):
        """Return the leading 31 bits of the significand, rounded, and its exponent."""
        bits = tirx.reinterpret("int64", x(*index))
        field = tirx.bitwise_and(tirx.shift_right(bits, _int64(FRACTION)), _int64(0x7FF))
        fraction = tirx.bitwise_and(bits, _int64((1 << FRACTION) - 1))
        whole = tirx.bitwise_or(fraction, _int64(1 << FRACTION))
        dropped = FRACTION + 1 - 31
        kept = tirx.shift_right(whole + _int64(1 << (dropped - 1)), _int64(dropped))
        return bits, field, kept

    def multiplier(*index):
        bits, field, kept = parts(*index)
        kept = tirx.min(kept, _int64(1 << 31))
        kept = tirx.Select(kept == _int64(1 << 31), _int64(1 << 30), kept)
        signed = tirx.Select(bits < _int64(0), _int64(0) - kept, kept)
        return tirx.Select(field == _int64(0), _int64(0), signed).astype("int32")

    def shift(*index):
        _, field, kept = parts(*index)
        carry = tirx.Select(kept == _int64(1 << 31), _int64(1), _int64(0))
        exponent = field - _int64(1022) + carry
        return tirx.Select(field == _int64(0), _int64(0), exponent).astype("int32")

    return [
        te.compute(x.shape, multiplier, name="multiplier"),
        te.compute(x.shape, shift, name="shift"),
    ]
