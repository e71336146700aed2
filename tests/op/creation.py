"""Test records of operators that create tensors."""

import numpy as np
import torch

from meta.base.dtype import TO_TORCH
from meta.testing import B, F, I, OpCase, error, refusals, sample
from meta.testing.case import FLOATS

DTYPES = [
    "bool",
    "uint8",
    "uint16",
    "uint32",
    "int32",
    "int64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
]

KINDS = {bool: torch.bool, int: torch.int64, float: torch.float32}


def _full(shape, fill_value, dtype=None, device="cpu"):
    wanted = KINDS[type(fill_value)] if dtype is None else TO_TORCH[dtype]
    return torch.from_numpy(np.full(shape, fill_value)).to(wanted)


def _arange(start, stop=None, step=1, dtype=None, device="cpu"):
    start, stop = (0, start) if stop is None else (start, stop)
    numbers = torch.from_numpy(np.arange(start, stop, step))
    return numbers.to(KINDS[type(start + stop + step)] if dtype is None else TO_TORCH[dtype])


def _filled(value):
    """Make an oracle of zeros or ones."""
    return lambda shape, dtype="float32", device="cpu": _full(shape, value, dtype)


def _like(function):
    """Make an oracle of a filled tensor of torch's ``function``."""
    return lambda *args, dtype=None: function(
        *args, dtype=None if dtype is None else TO_TORCH[dtype]
    )


def _one_hot(indices, depth, on_value=1, off_value=0, axis=-1, dtype=None, **_):
    indices = indices.long()
    inside = (indices >= 0) & (indices < depth)
    hot = torch.nn.functional.one_hot(torch.where(inside, indices, depth), depth + 1)
    hot = hot[..., :depth].movedim(-1, axis)
    wanted = KINDS.get(type(on_value)) if dtype is None else TO_TORCH[dtype]
    on_value, off_value = (torch.as_tensor(v).reshape(()) for v in (on_value, off_value))
    return (hot * on_value + (1 - hot) * off_value).to(wanted)


SHAPES = [sample(3), sample((2, 3)), sample(()), sample((0, 2)), sample((1, 4, 1), device="cpu")]

FILLED = SHAPES + [sample((2, 3), dtype=dtype) for dtype in DTYPES]

LIKE = [
    sample(F(2, 3), dtype="int32"),
    sample(I(3, low=0, high=9), dtype="float16"),
    sample(B(0, 2), dtype="float64"),
] + [
    sample(x)
    for x in (
        F(3, 4),
        F(),
        F(0, 2),
        F(1, 5, 1),
        I(3, low=0, high=9),
        I(2, 2, low=0, high=9, dtype="int32"),
        B(4),
    )
]

CASES = [
    OpCase("zeros", FILLED, _filled(0), dtypes=(), grad=False),
    OpCase("ones", FILLED, _filled(1), dtypes=(), grad=False),
    OpCase(
        "full",
        [sample(*s.args, value, **s.kwargs) for value in (7, -2.5, True) for s in SHAPES]
        + [sample((2, 3), 1.0, dtype=dtype) for dtype in DTYPES]
        + [sample((2, 3), -2.75, dtype=dtype) for dtype in FLOATS]
        + [sample((2,), -2.0, "int32"), sample((2,), 2**40 + 1), sample((2,), 0.5)],
        _full,
        dtypes=(),
        grad=False,
    ),
    OpCase(
        "arange",
        [
            sample(5),
            sample(2.5),
            sample(1, 4),
            sample(1, 2.5),
            sample(0, 5, 1, dtype="float32"),
            sample(-3),
            sample(5, 0, -2),
            sample(3, dtype="int8"),
            sample(3, 3, 1),
            sample(4, 0, 1),
            sample(-1.5, 2.0, 0.25),
            sample(0.0, 1.0, 0.1, dtype="float64"),
            sample(1, 10, 4, dtype="uint8"),
            sample(65530, 65536, 2, dtype="uint16"),
            sample(2**32 - 3, 2**32, dtype="uint32"),
            sample(0, 7, 2, dtype="float16"),
            sample(2**53 + 1, 2**53 + 3, 1, dtype="int64"),
        ],
        _arange,
        dtypes=(),
        grad=False,
    ),
    OpCase(
        "one_hot",
        [
            sample(I(5, low=0, high=4), 4, 1, 0),
            sample(I(2, 3, low=-2, high=6, dtype="int32"), 4, 1, 0, axis=1, mode="ignore"),
            sample(I(2, 3, low=0, high=4), 4, 5, -3, axis=0, dtype="int64"),
            sample(I(2, 3, low=0, high=4), 4, 1.5, -0.5, axis=-2, dtype="float32"),
            sample(I(low=0, high=3), 3, 1, 0, dtype="bool"),
            sample(I(4, low=0, high=3), 3),
            sample(I(4, low=0, high=3), 3, 2.5, axis=0),
            sample(I(4, low=0, high=3), depth=3, on_value=True, off_value=False),
            sample(I(0, low=0, high=1), 3, 1, 0),
            sample(I(3, low=0, high=1), 0, 1, 0, mode="ignore"),
        ],
        _one_hot,
        dtypes=(),
        grad=False,
    ),
    OpCase(
        "one_hot",
        [
            sample(I(4, low=0, high=3), 3, F(), F(1, 1), dtype="float64"),
            sample(I(4, low=-1, high=4), 3, F(1), 0, axis=0, dtype="float64", mode="ignore"),
        ],
        _one_hot,
    ),
    OpCase("zeros_like", LIKE, _like(torch.zeros_like), grad=False),
    OpCase("ones_like", LIKE, _like(torch.ones_like), grad=False),
    OpCase(
        "full_like",
        [sample(*s.args, 1.0, **s.kwargs) for s in LIKE]
        + [sample(F(3), 2), sample(F(3), 1.5), sample(I(3, low=0, high=9), -2.0)],
        _like(torch.full_like),
        grad=False,
    ),
]

NEGATIVE = "a shape has no negative extents"

CASES += refusals(
    {
        "zeros": [error((2, -1), match=NEGATIVE)],
        "ones": [error(-3, match=NEGATIVE)],
        "full": [
            error((2, -1), 1.5, match=NEGATIVE),
            error((2,), 1.5, "int32", match="'fill_value' does not fit int32"),
            error((2,), 2, dtype="bool", match="True, False, 0 or 1"),
        ],
        "arange": [
            error(0, 5, 0, match="the step of arange is 0"),
            error(0, 1e400, 1, match="finite numbers"),
            error(0, 5, 1, dtype="bool", match="which bool cannot"),
            error(0, 300, 1, dtype="int8", match="the last number does not fit int8"),
            error(300, 0, -1, dtype="int8", match="the first number does not fit int8"),
            error(0.5, 3, 0.5, dtype="int64", match="int64 counts in whole numbers"),
        ],
        "one_hot": [
            error(F(3), 4, 1, 0, match="indices must be integers"),
            error(I(3, low=0, high=2), 4, F(2), 0, match="on_value must be one number"),
            error(I(3, low=0, high=2), -1, 1, 0, match="depth is negative"),
            error(I(3, low=0, high=2), 4, 1, 0, 2, match="axis 2 is out of range"),
            error(I(3, low=0, high=2), 4, mode="clip", match="unknown mode"),
        ],
    }
)
