"""What the converters of `meta/frontend/relay/converters/qnn.py` have to give."""

import numpy as np
import torch

from meta.frontend.relay import ast
from tests.frontend.relay import quantized as q
from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(5)
F, Z = np.float32, np.int32
A = RNG.integers(-128, 128, (2, 3, 4)).astype(np.int8)
B = RNG.integers(-128, 128, (2, 3, 4)).astype(np.int8)
ROW = RNG.integers(-128, 128, 4).astype(np.int8)
U, V = A.view(np.uint8), B.view(np.uint8)
SCALES, OTHERS = np.array([0.1, 0.25, 0.07], F), np.array([0.02, 0.3, 0.11], F)
ZEROS = np.array([3, -7, 0], Z)
SIMPLE = (F(0.1), Z(3), F(0.2), Z(-2), F(0.35), Z(4))
VECTORS = (SCALES, ZEROS, F(0.2), Z(-2), F(0.35), Z(4))
ALL = tuple(range(2, 8))
OLD = dict(
    zip(
        ("lhs_scale", "lhs_zero_point", "rhs_scale", "rhs_zero_point", "output_scale"),
        (0.1, 3, 0.2, -2, 0.35),
        strict=True,
    ),
    output_zero_point=4,
)


def summed(sign, lhs_axis=-1, rhs_axis=-1):
    def oracle(a, b, s, z, t, u, to, zero):
        left = q.requantize(a, s, z, to, zero, "int32", lhs_axis).astype(np.int64)
        right = q.requantize(b, t, u, to, zero, "int32", rhs_axis).astype(np.int64)
        total = left + sign * right - sign * int(zero)
        return np.clip(total, *q.LIMITS[str(a.dtype)]).astype(a.dtype)

    return oracle


def multiplied(axis=-1):
    def oracle(a, b, s, z, t, u, to, zero):
        left = a.astype(np.int64) - q.along(z, a, axis)
        product = left * (b.astype(np.int64) - q.along(u, b, axis))
        return q.requantize(product, np.multiply(s, t, dtype=F), 0, to, zero, str(a.dtype), axis)

    return oracle


def _old(name, function):
    return Case(name, (A, B), lambda a, b: function(a, b, *SIMPLE), OLD, version=(0, 6))


CASES = [
    *[
        Case(name, args, summed(sign, *axes.values()), axes, constants=constants, label=label)
        for name, sign in (("qnn.add", 1), ("qnn.subtract", -1))
        for args, axes, constants, label in (
            ((A, B, *SIMPLE), {}, ALL, "int8"),
            ((U, V, *SIMPLE), {}, (), "uint8, not constant"),
            ((A, ROW, *SIMPLE), {}, ALL, "broadcast"),
            ((A, B, *VECTORS), {"lhs_axis": 1}, ALL, "vector"),
            (
                (A, B, *VECTORS[2:4], *VECTORS[:2], F(0.3), Z(0)),
                {"lhs_axis": -1, "rhs_axis": 1},
                (),
                "right vector",
            ),
            ((A, B, F(0.35), Z(4), F(0.2), Z(1), F(0.35), Z(4)), {}, ALL, "same as the result"),
        )
    ],
    Case("qnn.mul", (A, B, *SIMPLE), multiplied(), constants=ALL, label="int8"),
    Case("qnn.mul", (U, V, *SIMPLE), multiplied(), label="uint8, not constant"),
    Case("qnn.mul", (A, ROW, *SIMPLE), multiplied(), has_attributes=False, label="broadcast"),
    Case(
        "qnn.mul",
        (A, B, SCALES, ZEROS, OTHERS, ZEROS[::-1].copy(), F(0.5), Z(1)),
        multiplied(1),
        {"lhs_axis": 1, "rhs_axis": 1},
        constants=ALL,
        label="vectors",
    ),
    Case(
        "qnn.mul",
        (A, B, *VECTORS),
        attrs={"lhs_axis": 1, "rhs_axis": 2},
        refused="along different axes",
    ),
    Case("qnn.mul", (A, B, F(0.1)), refused="6 scales and zero points"),
    Case("qnn.add", (A, B), refused="neither an argument"),
    _old("qnn.add", summed(1)),
    _old("qnn.mul", multiplied()),
]


def joined(parts, scales, zeros, to, zero):
    moved = [
        q.requantize(p, s, z, to, zero, str(p.dtype))
        for p, s, z in zip(parts, scales, zeros, strict=True)
    ]
    return np.concatenate(moved, 1)


PARTS, PART_SCALES, PART_ZEROS = (U, V[:, :1]), (F(0.1), F(0.2)), (Z(1), Z(2))


def _constant(value):
    return ast.Constant(torch.tensor(value))


CASES += [
    Case(
        "qnn.concatenate",
        (PARTS, PART_SCALES, PART_ZEROS, F(0.2), Z(2)),
        joined,
        {"axis": 1},
        constants=constants,
        label=label,
    )
    for constants, label in (
        ((1, 2, 3, 4), "constants"),
        ((), "not constant"),
        ((1, 2), "the result's not constant"),
    )
] + [
    Case(
        "qnn.concatenate",
        (PARTS,),
        lambda parts: joined(parts, PART_SCALES, PART_ZEROS, F(0.15), Z(3)),
        {
            "axis": 1,
            "input_scales": (_constant(0.1), _constant(0.2)),
            "input_zero_points": (_constant(1), _constant(2)),
            "output_scale": 0.15,
            "output_zero_point": 3,
        },
        version=(0, 6),
        label="v0.6",
    ),
    Case(
        "qnn.concatenate",
        (PARTS,),
        attrs={"axis": 1, "output_scale": 0.15, "output_zero_point": 3},
        refused="as many scales",
    ),
]
