"""Test records of the operators on bits."""

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample


def reinterpret(x, dtype):
    return x.view(getattr(torch, dtype))


CASES = [
    OpCase(
        "reinterpret",
        samples=[
            sample(C([0x3F800000, -(2**31), 0x7F800000], "int32"), "float32"),
            sample(I(3, 4, low=-100, high=100, dtype="int8"), "uint8"),
            sample(I(2, 3, low=0, high=2**30, dtype="int32"), "float32"),
            sample(I(5, low=-9, high=9), "int64"),
            sample(I(5, low=0, high=2**50), "float64"),
            sample(C(7, "int16"), "float16"),
            sample(I(0, 2, dtype="int32", low=0, high=2), "float32"),
        ],
        oracle=reinterpret,
        dtypes=("float32",),
        grad=False,
    ),
]

CASES += refusals(
    {
        "reinterpret": [
            error(F(3), "int64", match="cannot be read"),
            error(B(3), "int8", match="cannot be read"),
        ]
    }
)
