"""Test records of products with quantised weights."""

import torch

from meta.testing import C, F, I, OpCase, error, sample
from tests.op.float8 import float8

# Of half precision the weights are rounded, too, where they are written down.
HALF = {"atol": {"float16": 5e-2, "bfloat16": 4e-1}, "rtol": {"bfloat16": 3e-2}}


def _int8(n, k):
    return I(n, k, low=-128, high=128, dtype="int8")


def _int4(n, k):
    return I(n, k // 2, low=0, high=256, dtype="uint8")


def _scales(*shape):
    return F(*shape, low=0.01, high=0.02)


def oracle(x, weight, scales, zeros=None):
    """Numbers one by one, as the docstring says where they lie."""
    n, groups = scales.shape
    k = x.shape[-1]
    columns = []
    for c in range(k):
        if weight.dtype == torch.uint8:
            byte = weight[:, c // 32 * 16 + c % 16].long()
            stored = byte // 16 if c % 32 >= 16 else byte % 16
        else:
            stored = weight[:, c].double()
        middle = 8 if weight.dtype == torch.uint8 else 0
        at = c // (k // groups)
        number = 1.0 * stored - (middle if zeros is None else zeros[:, at])
        columns.append(number * scales[:, at])
    w = torch.stack(columns, 1) if columns else torch.zeros(n, 0, dtype=x.dtype)
    return x @ w.T.to(x.dtype)


_X, _W = F(3, 64), _int8(5, 64)

CASES = [
    OpCase(
        "quantized_matmul",
        [
            sample(F(3, 7), _int8(5, 7), _scales(5, 1)),
            sample(F(1, 64), _int8(9, 64), _scales(9, 2)),
            sample(F(2, 3, 96), _int8(8, 96), _scales(8, 3), F(8, 3, low=-9, high=9)),
            sample(F(17, 6), _int8(2, 6), _scales(2, 3), F(2, 3)),
            sample(F(2, 4), _int8(3, 4), _scales(3, 2), F(3, 2)),
            sample(F(128), _int4(7, 128), _scales(7, 1)),
            sample(F(1, 128), _int4(16, 128), _scales(16, 4), F(16, 4, low=0, high=15)),
            sample(F(5, 256), _int4(3, 256), _scales(3, 4)),
            sample(F(256), _int4(3, 256), _scales(3, 8), F(3, 8, low=0, high=15)),
            sample(F(2, 96), _int4(3, 96), _scales(3, 6)),
            sample(F(18, 32), _int4(3, 32), _scales(3, 1), F(3, 1, low=0, high=15)),
            sample(F(0, 64), _int4(3, 64), _scales(3, 2)),
            sample(F(2, 32), _int4(0, 32), _scales(0, 1)),
            sample(F(3, 0), _int8(5, 0), _scales(5, 1)),
        ],
        oracle,
        errors=[
            error(I(3, 64, low=0, high=2), _W, _scales(5, 1), match="x must be floating"),
            error(F(), _W, _scales(5, 1), match="x has no columns"),
            error(F(3, 63), _W, _scales(5, 1), match="x has 63 columns and the weight 64"),
            error(_X, F(5, 64), _scales(5, 1), match="no weight is stored so"),
            error(_X, _int8(5, 64), _scales(5, 3), match="scales do not fit"),
            error(_X, _W, _scales(4, 1), match="scales do not fit"),
            error(_X, _W, _scales(5, 0), match="scales do not fit"),
            error(_X, _W, _scales(5), match="scales must have 2 axes"),
            error(_X, _W, I(5, 1, low=1, high=2), match="scales must be floating"),
            error(_X, _W, _scales(5, 2), F(5, 1), match="zeros do not fit"),
            error(_X, _W, _scales(5, 1), I(5, 1, low=0, high=2), match="zeros must be floating"),
            error(F(3, 48), _int4(5, 48), _scales(5, 1), match="of 4 bits have 48 columns"),
        ],
        **HALF,
    ),
    OpCase(
        "quantized_matmul",
        [
            sample(F(2, 64), float8(5, 64), _scales(5, 2)),
            sample(F(2, 64), float8(5, 64), C([[0.5]] * 5, "bfloat16")),
        ],
        oracle,
        dialects=("torch",),
        grad=False,
        **HALF,
    ),
    OpCase(
        "quantized_matmul",
        [sample(F(4, 64), _int4(5, 64), C([[0.5, 0.25]] * 5, "float16"))],
        oracle,
        grad=False,  # of scales it is rounded to their dtype
        **HALF,
    ),
]
