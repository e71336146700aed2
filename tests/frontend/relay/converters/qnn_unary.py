"""What the converters of `meta/frontend/relay/converters/qnn.py` have to give."""

from math import erf

import numpy as np

from tests.frontend.relay import quantized as q
from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(3)
F, Z = np.float32, np.int32
ALL_BYTES = np.arange(256, dtype=np.uint8).reshape(16, 16)
ALL_INTS = ALL_BYTES.view(np.int8)
PARAMETERS = (F(0.043), Z(7), F(0.0117), Z(-20))
CONSTANT = (1, 2, 3, 4)
FUNCTIONS = {
    "abs": np.abs,
    "erf": np.vectorize(erf),
    "exp": np.exp,
    "log": np.log,
    "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "sqrt": np.sqrt,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "tanh": np.tanh,
    "hardswish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
}


def through_floats(function):
    def oracle(x, scale, zero, to_scale, to_zero):
        with np.errstate(all="ignore"):
            real = function(q.dequantize(x, scale, zero)).astype(F)
        return q.quantize(real, to_scale, to_zero, str(x.dtype))

    return oracle


def leaky(alpha):
    slope, rest = q.fixed_point(alpha), q.fixed_point(1 - alpha)

    def oracle(x, scale, zero, to_scale, to_zero):
        moved = q.requantize(x, scale, zero, to_scale, to_zero, "int32")

        def one(value, own):
            below = q.half_up(int(own) * slope) + q.half_up(int(to_zero) * rest)
            return q.saturated(below if value < zero else int(own), str(x.dtype))

        return q.each(one, x, moved, dtype=x.dtype)

    return oracle


def softmax(axis):
    """Element by element, in whole numbers."""

    def line(values, scale, zero):
        unit = q.half_away(float(F(1) / F(scale)))
        shares = []
        for v in values:
            x = int(v) - max(map(int, values))
            power = x + (x >> 1) - (x >> 4)
            whole = -power // unit
            rest = power + whole * unit
            base = (rest >> 1) + unit
            shares.append(base << (8 - whole) if whole <= 8 else 0)
        total = sum(shares)
        return [((2**30 // total) * s) >> 23 for s in shares]

    def oracle(x, scale, zero, to_scale, to_zero):
        shares = np.apply_along_axis(line, axis, x, scale, zero)
        return q.requantize(shares, 1 / 128, 0, to_scale, to_zero, "int8")

    return oracle


LOGITS = RNG.integers(-60, 40, (3, 5, 4)).astype(np.int8)
SOFT = (F(0.09), Z(3), F(1 / 256), Z(-128))

CASES = [
    Case(f"qnn.{name}", (x, *PARAMETERS), through_floats(f), constants=constants, label=label)
    for name, f in FUNCTIONS.items()
    for x, constants, label in (
        (ALL_INTS, CONSTANT, "int8"),
        (ALL_BYTES, (), "uint8, not constant"),
    )
] + [
    Case("qnn.leaky_relu", (x, *parameters), leaky(alpha), {"alpha": alpha}, constants=constants)
    for alpha, x, parameters, constants in (
        (0.25, ALL_INTS, PARAMETERS, CONSTANT),
        (0.1, ALL_BYTES, (F(0.05), Z(120), F(0.05), Z(120)), ()),
        (1.0, ALL_INTS, PARAMETERS, CONSTANT),
    )
]
CASES += [
    Case("qnn.softmax", (LOGITS, *SOFT), softmax(axis), {"axis": axis}, constants=constants)
    for axis, constants in ((-1, CONSTANT), (1, ()))
]


def pooled(count_include_pad):
    """Means of 2 by 3 windows with a stride of (2, 1) and padding 1, the fraction dropped."""

    def oracle(x, scale, zero, to_scale, to_zero):
        moved = q.requantize(x, scale, zero, to_scale, to_zero, "int32")
        n, c, height, width = x.shape
        y = np.zeros((n, c, (height + 2 - 2) // 2 + 1, width + 2 - 3 + 1), x.dtype)
        for at in np.ndindex(*y.shape):
            rows = [r for r in range(at[2] * 2 - 1, at[2] * 2 + 1) if 0 <= r < height]
            columns = [k for k in range(at[3] - 1, at[3] + 2) if 0 <= k < width]
            total = sum(int(moved[at[0], at[1], r, k]) for r in rows for k in columns)
            count = 6 if count_include_pad else len(rows) * len(columns)
            y[at] = q.saturated(abs(total) // count * (1 if total >= 0 else -1), str(x.dtype))
        return y

    return oracle


IMAGE = RNG.integers(-128, 128, (2, 3, 5, 4)).astype(np.int8)
WINDOW = {"pool_size": (2, 3), "strides": (2, 1), "padding": (1, 1)}

CASES += [
    Case(
        "qnn.avg_pool2d",
        (x, F(0.1), Z(3), F(0.13), Z(-5)),
        pooled(flag),
        {**WINDOW, "count_include_pad": flag},
        constants=CONSTANT,
        label=f"{x.dtype}-{flag}",
    )
    for x in (IMAGE, IMAGE.view(np.uint8))
    for flag in (False, True)
]
