"""What the converters of `meta/frontend/relay/converters/qnn.py` have to give."""

from functools import partial
from math import floor

import numpy as np

from tests.frontend.relay import quantized as q
from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(7)
F, Z = np.float32, np.int32
X = RNG.normal(0, 4, (2, 3, 4)).astype(F)
HALVES = np.array([[-2.5, -1.5, -0.5, 0.5], [0.49999997, 1.5, 2.5, 1e9]], F)
ODD = np.array([np.nan, np.inf, -np.inf, 0.0], F)
SUMS = RNG.integers(-(2**18), 2**18, (2, 3, 4)).astype(Z)
SMALL = RNG.integers(-128, 128, (2, 3, 4)).astype(np.int8)
BYTES = RNG.integers(0, 256, (2, 3, 4)).astype(np.uint8)
WIDE = np.array([-(2**31), -(2**31) + 1, -77, 0, 1, 2**30, 2**31 - 1], Z)
SCALES = np.array([0.1, 0.25, 0.07], F)
ZEROS = np.array([3, -7, 0], Z)
PARAMETERS = (1, 2)


def quantized(x, scale, zero, dtype="int8", axis=-1, attrs=None, **options):
    attrs = attrs or {"out_dtype": dtype, "axis": axis}
    return Case(
        "qnn.quantize",
        (x, scale, zero),
        partial(q.quantize, dtype=dtype, axis=axis),
        attrs,
        **options,
    )


def _dequantized(x, scale, zero, axis=-1, **options):
    return Case(
        "qnn.dequantize",
        (x, scale, zero),
        partial(q.dequantize, axis=axis),
        {"out_dtype": "float32", "axis": axis},
        tolerance=0.0,
        **options,
    )


ROUNDINGS = {"None": q.half_up, "UPWARD": q.half_up, "TONEAREST": q.half_away}


def requantized(x, *parameters, dtype="int8", axis=-1, rounding="UPWARD", **options):
    return Case(
        "qnn.requantize",
        (x, *parameters),
        partial(q.requantize, dtype=dtype, axis=axis, rounding=ROUNDINGS[rounding]),
        {"out_dtype": dtype, "axis": axis, "rounding": rounding},
        **options,
    )


def by_floats(computed, rounding, dtype="int8", axis=-1):
    """The oracle of requantization in a floating point dtype."""
    kind = np.dtype(computed).type

    def one(value, scale, zero, to_scale, to_zero):
        ratio = kind(float(scale) / float(to_scale))
        v = (kind(value) - kind(zero)) * ratio + kind(to_zero)
        if rounding == "UPWARD":
            return q.saturated(floor(v + kind(0.5)), dtype)
        return q.saturated(int(np.sign(v)) * floor(abs(v) + kind(0.5)), dtype)

    def oracle(x, scale, zero, to_scale, to_zero):
        s, z = q.along(scale, x, axis), q.along(zero, x, axis)
        return q.each(lambda v, s, z: one(v, s, z, to_scale, to_zero), x, s, z, dtype=dtype)

    return oracle


def _by_floats(computed, rounding, x, *parameters, axis=-1, dtype="int8", **options):
    return Case(
        "qnn.requantize",
        (x, *parameters),
        by_floats(computed, rounding, dtype, axis),
        {"out_dtype": dtype, "axis": axis, "rounding": rounding, "compute_dtype": computed},
        **options,
    )


ONE, VECTOR = (F(0.3), Z(4), F(0.7), Z(-5)), (SCALES, ZEROS, F(0.2), Z(9))

CASES = [
    quantized(X, F(0.05), Z(3), constants=PARAMETERS),
    quantized(X, F(0.05), Z(130), "uint8", label="not constant"),
    quantized(X, SCALES, ZEROS, "int16", 1, constants=PARAMETERS),
    quantized(X, SCALES, ZEROS, axis=-2, label="vectors, not constant"),
    quantized(X, SCALES[:1], Z(0), axis=-2, label="vector of one"),
    quantized(HALVES, F(1), Z(0), "int32"),
    quantized(ODD, F(1), Z(1), "uint8", label="not finite"),
    quantized(F(2.5), F(0.5), Z(0), label="scalar"),
    Case(
        "qnn.quantize",
        (X,),
        q.quantize(X, 0.05, 3),
        {"out_dtype": "int8", "output_scale": 0.05, "output_zero_point": 3},
        version=(0, 6),
        label="v0.6",
    ),
    Case("qnn.quantize", (X,), attrs={"out_dtype": "int8"}, refused="neither an argument"),
    _dequantized(SMALL, F(0.1), Z(2), constants=PARAMETERS),
    _dequantized(BYTES, F(0.1), Z(128), label="not constant"),
    _dequantized(SUMS, SCALES, ZEROS, 1, constants=PARAMETERS),
    _dequantized(SMALL, SCALES, ZEROS, 1, label="vectors, not constant"),
    Case(
        "qnn.dequantize",
        (SUMS, F(1000.0), Z(0)),
        np.clip(SUMS * 1000.0, -65504, 65504).astype(np.float16),
        {"out_dtype": "float16"},
    ),
    Case(
        "qnn.dequantize",
        (SMALL,),
        q.dequantize(SMALL, 0.1, 2),
        {"out_dtype": "float32", "input_scale": 0.1, "input_zero_point": 2},
        label="v0.6",
    ),
    *[
        case
        for rounding in ROUNDINGS
        for case in (
            requantized(SUMS, *ONE, rounding=rounding, constants=(1, 2, 3, 4)),
            requantized(SUMS, *VECTOR, axis=1, rounding=rounding, constants=(1, 2, 3, 4)),
            requantized(
                SMALL, *VECTOR, axis=1, rounding=rounding, label=f"not constant-{rounding}"
            ),
        )
    ],
    requantized(SUMS, F(0.0001), Z(0), F(0.01), Z(0), dtype="uint8"),
    requantized(SUMS, F(0.5), Z(0), F(1.0), Z(1), dtype="int16", rounding="TONEAREST"),
    requantized(SMALL, F(0.5), Z(0), F(0.125), Z(0), dtype="int16"),
    requantized(SMALL, F(0.3), Z(1), F(0.3), Z(4), dtype="int32", label="same scale"),
    requantized(SMALL, F(2.7), Z(1), F(0.003), Z(0), dtype="int32", rounding="TONEAREST"),
    requantized(WIDE, F(0.25), Z(0), F(0.5), Z(0), dtype="int32"),
    requantized(WIDE, F(0.1), Z(0), F(0.3), Z(0), dtype="int32", rounding="TONEAREST"),
    requantized(WIDE, F(1e-9), Z(0), F(3.0), Z(7), label="tiny ratio"),
    requantized(SUMS, SCALES, ZEROS, F(0.2), Z(9), axis=-2, label="negative axis"),
    Case(
        "qnn.requantize",
        (SUMS,),
        q.requantize(SUMS, 0.3, 4, 0.7, -5),
        {
            "out_dtype": "int8",
            "input_scale": 0.3,
            "input_zero_point": 4,
            "output_scale": 0.7,
            "output_zero_point": -5,
        },
        label="v0.6",
    ),
    *[
        case
        for computed in ("float32", "float64")
        for rounding in ("UPWARD", "TONEAREST")
        for case in (
            _by_floats(computed, rounding, SUMS, *ONE, constants=(1, 2, 3, 4)),
            _by_floats(computed, rounding, SUMS, *VECTOR, axis=1, label=f"{computed}-{rounding}"),
            _by_floats(computed, rounding, SMALL, F(0.5), Z(0), F(1), Z(0), dtype="int32"),
        )
    ],
    Case(
        "qnn.requantize",
        (SUMS, *ONE),
        attrs={"out_dtype": "int8", "rounding": "DOWN"},
        refused="unknown",
    ),
    Case(
        "qnn.requantize", (SUMS, *ONE[:2], F(0), Z(0)), attrs={"out_dtype": "int8"}, refused="is 0"
    ),
    Case(
        "qnn.requantize",
        (SUMS, F(np.inf), *ONE[1:]),
        attrs={"out_dtype": "int8"},
        refused="ratio of scales is inf",
    ),
    Case(
        "qnn.quantize",
        (X, F(1), Z(0)),
        attrs={"out_dtype": "float32"},
        refused="no dtype of quantized values",
    ),
    requantized(SMALL, np.full((1, 1, 1), 0.3, F), Z(1), F(0.2), Z(4), label="scale of rank 3"),
]


def _simulated(code, dtype):
    expected = q.quantize(X, SCALES, ZEROS, dtype, 1).astype(F) if dtype else X
    attrs = {"axis": 1}
    args = (X, Z(code), SCALES, ZEROS)
    return [
        Case("qnn.simulated_quantize", args, expected, attrs, constants=(1,), label=f"{code}"),
        Case("qnn.simulated_quantize", args, expected, attrs, label=f"{code} at run time"),
    ]


REAL = np.round(X * 10)


def _recovered(code):
    s, z = q.along(SCALES, X, 1), q.along(ZEROS, X, 1)
    expected = (REAL - z.astype(F)) * s if code else REAL
    args = (REAL, Z(code), SCALES, ZEROS)
    attrs = {"axis": 1, "out_dtype": "float32"}
    return [
        Case("qnn.simulated_dequantize", args, expected, attrs, constants=(1,), label=f"{code}"),
        Case("qnn.simulated_dequantize", args, expected, attrs, label=f"{code} at run time"),
    ]


def _annotated(x, scale, low, high):
    scaled = np.clip(x / scale, low, high)
    return np.array([q.half_away(v) for v in scaled.flat], F).reshape(x.shape) * scale


SIMULATED = "relay.op.annotation.simulated_quantize"
ANNOTATED = (X, F(0.25), F(-8), F(7))

CASES += [
    *[c for code, d in enumerate((None, "int8", "uint8")) for c in _simulated(code, d)],
    *[c for code in range(4) for c in _recovered(code)],
    *[
        Case(SIMULATED, ANNOTATED, _annotated, {"kind": kind, "sign": True, "rounding": "round"})
        for kind in (1, 2, 3)
    ],
    Case(SIMULATED, ANNOTATED, X, {"kind": 0}),
    Case(SIMULATED, ANNOTATED, attrs={"kind": 1}, training=True, refused="has no gradient"),
    Case(
        "qnn.simulated_quantize",
        (X, Z(1), SCALES, ZEROS),
        attrs={"axis": 1},
        training=True,
        refused="has no gradient",
    ),
    Case(SIMULATED, ANNOTATED, attrs={"kind": 1, "sign": False}, refused="not supported"),
    Case(SIMULATED, ANNOTATED, attrs={"kind": 1, "rounding": "floor"}, refused="not supported"),
]
