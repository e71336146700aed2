"""Test records of comparisons, logical operators, bits and classes of floats."""

import math

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.arithmetic import (
    FLOAT_BOOLS,
    FLOAT_NAN,
    INF,
    MIXED,
    NAN,
    NO_BROADCAST,
    PAIR_BOOLS,
    _float_ints,
    _floats,
    _others,
    _pair_bools,
    _pair_floats,
    _pair_ints,
    _pair_others,
    _pair_shapes,
    _tensors,
)
from tests.op.elementwise import EDGES, OTHERS, TENSORS, _unary_others

DTYPES = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32")


def _ints(*shape, dtype="int32", low=-100, high=100):
    return I(*shape, low=0 if dtype[0] == "u" else low, high=high, dtype=dtype)


PAIRS = [
    *[sample(_ints(4, 5, dtype=d), _ints(5, dtype=d)) for d in DTYPES],
    sample(_ints(2, 1, 3), _ints(4, 1)),
    sample(_ints(), _ints()),
    sample(_ints(0, 2), _ints(2)),
    sample(_ints(3), 5),
    sample(-2, _ints(3, dtype="int8")),
]

BOOLS = [sample(B(4, 3), B(3)), sample(B(3), True)]

SHIFTS = [
    *[sample(_ints(4, 5, dtype=d), _ints(5, dtype=d, low=-2, high=10)) for d in DTYPES],
    sample(C([-1, 5, 5, -5], "int32"), C([31, 32, -1, 100], "int32")),
    sample(C([-1, 5, 5, -5], "int64"), C([63, 64, -1, 33], "int64")),
    sample(C([200, 3], "uint8"), C([1, 9], "uint8")),
    sample(C([65000, 3], "uint16"), C([1, 17], "uint16")),
    sample(C([2**32 - 9, 3], "uint32"), C([1, 33], "uint32")),
    sample(_ints(2, 1, 3), _ints(4, 1, low=0, high=8)),
    sample(_ints(0, 2), _ints(2)),
    sample(_ints(), 2),
    sample(3, _ints(4, dtype="int16", low=0, high=8)),
]


def _case(name, function, samples):
    def oracle(x1, x2):
        like = x1 if isinstance(x1, torch.Tensor) else x2
        return function(*[torch.as_tensor(x, dtype=like.dtype) for x in (x1, x2)])

    return OpCase(name, samples=samples, oracle=oracle, dtypes=("float32",), grad=False)


NOTS = [sample(s.args[0]) for s in PAIRS[:-1]] + [sample(B(3, 2))]

CASES = [
    _case("bitwise_and", torch.bitwise_and, PAIRS + BOOLS),
    _case("bitwise_or", torch.bitwise_or, PAIRS + BOOLS),
    _case("bitwise_xor", torch.bitwise_xor, PAIRS + BOOLS),
    OpCase(
        "bitwise_invert", samples=NOTS, oracle=torch.bitwise_not, dtypes=("float32",), grad=False
    ),
    _case("bitwise_left_shift", torch.bitwise_left_shift, SHIFTS),
    _case("bitwise_right_shift", torch.bitwise_right_shift, SHIFTS),
]

_INT8 = I(3, low=0, high=5, dtype="int8")

MISMATCHED_PAIRS = [
    error(F(3), _INT8, match="only integers have bits"),
    error(_INT8, 1.5, match="only integers have bits"),
    error(_INT8, I(3, low=0, high=5), match="cast the int8 one"),
    error(_INT8, I(2, low=0, high=5, dtype="int8"), match="broadcast"),
]

CASES += refusals(
    {
        "bitwise_and": [*MISMATCHED_PAIRS, error(B(3), 1, match="does not fit a tensor of bool")],
        "bitwise_or bitwise_xor": MISMATCHED_PAIRS,
        "bitwise_left_shift bitwise_right_shift": [
            *MISMATCHED_PAIRS,
            error(B(3), 1, match=r"expected: integers\n"),
        ],
        "bitwise_invert": [error(F(3), match="only integers have bits")],
    }
)


def reinterpret(x, dtype):
    return x.view(getattr(torch, dtype))


CASES += [
    OpCase(
        "reinterpret",
        samples=[
            sample(C([0x3F800000, -(2**31), 0x7F800000], "int32"), "float32"),
            sample(I(3, 4, low=-100, high=100, dtype="int8"), "uint8"),
            sample(I(2, 3, low=0, high=2**30, dtype="int32"), "float32"),
            sample(I(5, low=-9, high=9), "int64"),
            sample(I(5, low=0, high=2**50), "float64"),
            sample(C(7, "int16"), "float16"),
            sample(C([-1, 7], "int16"), "uint16"),
            sample(C([-1, 7], "int32"), "uint32"),
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

SAMPLES = [*TENSORS, *OTHERS, sample(C([1.0, *EDGES, -3e4]))]

CASES += [
    OpCase("isnan", samples=SAMPLES, oracle=torch.isnan, grad=False),
    OpCase("isinf", samples=SAMPLES, oracle=torch.isinf, grad=False),
    OpCase("isfinite", samples=SAMPLES, oracle=torch.isfinite, grad=False),
    OpCase("isposinf", samples=SAMPLES, oracle=torch.isposinf, grad=False),
    OpCase("isneginf", samples=SAMPLES, oracle=torch.isneginf, grad=False),
    OpCase("signbit", samples=SAMPLES, oracle=torch.signbit, grad=False),
]

COMPARED = [
    *_pair_shapes(),
    *_pair_ints(),
    *PAIR_BOOLS,
    sample(*NAN),
    sample(C([0.1, 0.5, -0.0]), 0.5),
    sample(C([1.0, 2.0, 3.0]), C([1.0, 3.0, 2.0])),
    sample(2, C([1, 2, 3], "int8")),
]

LOGICAL = [
    *_pair_shapes(),
    *_pair_ints(-1, 2, -1, 2),
    sample(I(3, 2, low=-1, high=2, dtype="int32"), F(3, 2)),
    sample(B(3, 2), F(3, 1)),
    sample(I(6, low=-1, high=2, dtype="int8"), 1.5),
    sample(B(4), I(4, low=0, high=2, dtype="int16")),
    *PAIR_BOOLS,
    sample(*NAN),
    sample(F(3), False),
]


def _where(condition, x, y):
    return torch.where(condition != 0, x, y)


CONDITIONS = [
    sample(B(3, 4), F(3, 4), F(3, 4)),
    sample(B(3, 1), F(4), F(2, 1, 4)),
    sample(B(), F(2), F()),
    sample(B(0, 2), F(2), F(0, 2)),
    sample(B(4), F(4), 0.0),
    sample(B(4), 1, F(4)),
    sample(I(5, low=-1, high=2), F(5), F(1)),
]

CHOICES = [
    sample(C([1.0, 0.0, 2.0]), F(3), F(3)),
    sample(F(3), I(3, low=0, high=5, dtype="int32"), I(3, low=0, high=5, dtype="int32")),
    sample(F(3), 1, I(3, low=0, high=5, dtype="int8")),
    sample(B(3), 1, 2),
    sample(B(3), 1, 2.5),
    sample(B(3), True, False),
    sample(C([1.0, 0.0, math.nan]), C([1.0, math.nan, 2.0]), C([math.nan, 2.0, 3.0])),
]

CASES += [
    _pair_bools("less", torch.lt, COMPARED),
    _pair_bools("less_equal", torch.le, COMPARED),
    _pair_bools("greater", torch.gt, COMPARED),
    _pair_bools("greater_equal", torch.ge, COMPARED),
    _pair_bools("equal", torch.eq, COMPARED),
    _pair_bools("not_equal", torch.ne, COMPARED),
    _pair_bools("logical_and", torch.logical_and, LOGICAL),
    _pair_bools("logical_or", torch.logical_or, LOGICAL),
    _pair_bools("logical_xor", torch.logical_xor, LOGICAL),
    _pair_floats("where", _where, *CONDITIONS),
    _pair_others("where", _where, *CHOICES),
]

CASES += refusals(
    {
        "less less_equal greater greater_equal": MIXED,
        "equal not_equal": MIXED,
        "logical_and logical_or logical_xor": [NO_BROADCAST],
        "where": [error(B(3), *one.args, match=one.match) for one in MIXED],
    }
)


def _isclose(x1, x2, *args, **kwargs):
    if not x1.dtype.is_floating_point:
        x1, x2 = x1.double(), x2.double()
    return torch.isclose(x1, x2, *args, **kwargs)


CLOSE = [
    sample(
        C([1.0, 1.0, 100.0, INF, INF, FLOAT_NAN]), C([1.0, 1.5, 100.0625, INF, -INF, FLOAT_NAN])
    ),
    sample(C([1.0, 1.0, 100.0]), C([1.0, 1.5, 100.5]), 0.25),
    sample(C([1.0, 1.0, -4.0]), C([1.0, 1.5, 4.0]), 0.0, atol=1),
    sample(C([FLOAT_NAN, FLOAT_NAN, 1.0]), C([FLOAT_NAN, 1.0, FLOAT_NAN]), equal_nan=True),
    sample(C([1.0, 2.0]), 1.0),
    sample(2, C([[1.0], [2.0]])),
    sample(F(0, 2), F(2)),
    sample(C(1.0), C(1.0)),
]

CASES += [
    _floats("isclose", _tensors(_isclose), *CLOSE, grad=False),
    _others("isclose", _tensors(_isclose), *_float_ints(), *FLOAT_BOOLS),
]

CASES += [
    _unary_others("logical_not", torch.logical_not, [*TENSORS, *OTHERS, sample(C(EDGES))]),
]
