"""Test records of the elementwise operators of two operands, and of `where`."""

import math

import torch

from meta.base.errors import ArgumentError
from meta.testing import B, C, F, I, OpCase, error, refusals, sample

INTS = ("uint8", "int8", "int16", "int32", "int64")


def _shapes(low=-2.0, high=2.0, low2=None, high2=None):
    def first(*shape):
        return F(*shape, low=low, high=high)

    def second(*shape):
        return F(*shape, low=low if low2 is None else low2, high=high if high2 is None else high2)

    pairs = [
        ((3, 4), (3, 4)),
        ((2, 3, 4), (4,)),
        ((3, 1), (1, 4)),
        ((), (2, 3)),
        ((2, 1, 3), (5, 1)),
    ]
    pairs += [((), ()), ((0, 3), (1, 3)), ((0, 3), ()), ((1,), (1, 1))]
    samples = [sample(first(*a), second(*b)) for a, b in pairs]
    return [
        *samples,
        sample(first(2, 3), high / 2),
        sample(high / 2, second(2, 3)),
        sample(first(4), 1),
    ]


def _ints(low=-9, high=10, low2=-9, high2=10):
    def make(dtype, a, b, *shape):
        return I(*shape, low=max(a, 0) if dtype == "uint8" else a, high=b, dtype=dtype)

    samples = [sample(make(d, low, high, 4, 5), make(d, low2, high2, 5)) for d in INTS]
    return [
        *samples,
        sample(make("int32", low, high, 3, 4), 3),
        sample(7, make("int64", low2, high2, 4)),
    ]


BOOLS = [sample(B(4, 3), B(3)), sample(B(3), True)]
NAN = [C([math.nan, 1.0, math.nan, 0.0, math.inf]), C([1.0, math.nan, math.nan, 0.0, -math.inf])]


def _where_true(function):
    def oracle(x1, x2, otherwise=None, where=None):
        value = (
            function(torch.as_tensor(x1), torch.as_tensor(x2))
            if otherwise is not None
            else function(x1, x2)
        )
        if otherwise is None:
            return value
        value = value.to(otherwise.dtype).expand(otherwise.shape)
        return value if where is None else torch.where(where != 0, value, otherwise)

    return oracle


INTO = [
    sample(F(3, 4), F(4), F(3, 4)),
    sample(F(3, 4), F(4), otherwise=F(3, 4), where=B(3, 4)),
    sample(F(4), F(4), otherwise=F(3, 4), where=B(3, 1)),
    sample(F(3), 2.5, otherwise=F(3), where=I(3, low=0, high=2, dtype="int32")),
]
INT_INTO = [
    sample(I(3, low=0, high=9), 2, otherwise=I(3, low=0, high=9, dtype="int32"), where=B(3)),
    sample(2, 3, otherwise=I(3, low=0, high=9, dtype="int32"), where=B(3)),
    sample(I(3, low=0, high=9), 2, otherwise=F(3)),
]


def _tensors(function):
    """Call a torch function that takes tensors only."""

    def oracle(x1, x2):
        like = x1 if isinstance(x1, torch.Tensor) else x2
        dtype = torch.result_type(x1, x2)
        a, b = (torch.as_tensor(x, device=like.device).to(dtype) for x in (x1, x2))
        return function(a, b)

    return oracle


def _by_zero(function):
    """Integer division as numpy defines it by zero; torch raises there."""

    def oracle(x1, x2):
        if x1.dtype.is_floating_point:
            return function(x1, x2)
        return torch.where(x2 == 0, 0, function(x1, torch.where(x2 == 0, 1, x2)))

    return _tensors(oracle)


def _int_power(x1, x2):
    if x1.dtype.is_floating_point or not bool((x2 < 0).any()):
        return torch.pow(x1, x2)
    return torch.trunc(torch.pow(x1.double(), x2.double())).nan_to_num(0, 0, 0).to(x1.dtype)


# Quotients are kept away from whole numbers, where one rounding decides about the floor.
QUOTIENTS = [
    sample(C([7.0, -7.0, 7.0, -7.0, 0.5]), C([2.0, 2.0, -2.0, -2.0, -4.0])),
    sample(C([[7.0], [-5.5]]), C([2.0, -3.0])),
    sample(C([5.0, -5.0]), 2),
    sample(7.5, C([2.0, -2.0])),
    sample(F(0, 2), F(2, low=1.0)),
    sample(F(2, 3, low=0.6, high=0.9), F(3, low=0.2, high=0.25)),
    sample(C(5.0), C(3.0)),
]
INT_QUOTIENTS = [
    *_ints(),
    sample(I(3, low=1, high=5, dtype="int32"), 0),
    sample(C([-128, -128, 5], "int8"), C([-1, 0, -1], "int8")),
    sample(C([-(2**31), 2**31 - 1], "int32"), C([-1, -1], "int32")),
    sample(C([-(2**63), 2**63 - 1], "int64"), C([-1, -1], "int64")),
]
COMPARED = [
    *_shapes(),
    *_ints(),
    *BOOLS,
    sample(*NAN),
    sample(C([0.1, 0.5, -0.0]), 0.5),
    sample(C([1.0, 2.0, 3.0]), C([1.0, 3.0, 2.0])),
    sample(2, C([1, 2, 3], "int8")),
]
LOGICAL = [
    *_shapes(),
    *_ints(-1, 2, -1, 2),
    sample(I(3, 2, low=-1, high=2, dtype="int32"), F(3, 2)),
    sample(B(3, 2), F(3, 1)),
    sample(I(6, low=-1, high=2, dtype="int8"), 1.5),
    sample(B(4), I(4, low=0, high=2, dtype="int16")),
    *BOOLS,
    sample(*NAN),
    sample(F(3), False),
]


def _where(condition, x, y):
    return torch.where(condition != 0, x, y)


DIVISORS = [*_ints(low2=1), sample(B(3), B(3)), sample(I(3, low=1, high=4), 2)]
EQUAL = sample(C([1.0, 2.0]), C([1.0, 3.0]))
POWERS = [
    *_shapes(0.5, 2.0),
    sample(F(3, 4), 2),
    sample(F(3, 4), 3.0),
    sample(F(3, low=0.5), -1),
    sample(F(3), 0),
    sample(C([0.0, 2.0, -2.0]), 2.0),
    sample(C([0.0, 2.0, 0.0, 0.5]), C([2.0, 0.0, 1.0, -1.0])),
    sample(F(4, low=0.5), C([0.0, 1.0, 2.0, 3.0])),
    sample(0.0, C([1.0, 2.0])),
]
INT_POWERS = [
    *_ints(-3, 4, 0, 5),
    sample(C([2, -1, 1, 0, -3, -1], "int32"), C([-1, -3, -7, 5, 3, 70], "int32")),
    sample(C([0, 1, 2, 3, -5], "int32"), C([64, 127, 64, 65, 1000], "int32")),
    sample(C([3, -7, 2], "int64"), C([2**40 + 1, 2**62 + 3, 63], "int64")),
    sample(C([0, 1, 2, 3], "int32"), 64),
]
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


def _floats(name, oracle, *samples):
    return OpCase(name, samples=list(samples), oracle=oracle)


def _others(name, oracle, *samples):
    """Samples that are run once: without a float of the dtype under test, or without a gradient."""
    return OpCase(name, samples=list(samples), oracle=oracle, dtypes=("float32",), grad=False)


def _bools(name, oracle, samples):
    return OpCase(name, samples=samples, oracle=_tensors(oracle), grad=False)


CASES = [
    _floats("add", _where_true(torch.add), *_shapes(), *INTO),
    _others("add", _where_true(torch.add), *_ints(), *BOOLS, *INT_INTO),
    _floats("subtract", _where_true(_tensors(torch.sub)), *_shapes(), *INTO),
    _others("subtract", _where_true(_tensors(torch.sub)), *_ints(), *INT_INTO),
    _floats("multiply", torch.mul, *_shapes()),
    _others("multiply", torch.mul, *_ints(), *BOOLS),
    _floats("divide", _tensors(torch.div), *_shapes(0.5, 2.0)),
    _others("divide", _tensors(torch.div), *DIVISORS),
    _floats("power", _tensors(torch.pow), *POWERS),
    _others("power", _tensors(_int_power), *INT_POWERS),
    _floats("maximum", _tensors(torch.maximum), *_shapes(), EQUAL),
    _others("maximum", _tensors(torch.maximum), *_ints(), *BOOLS, sample(*NAN)),
    _floats("minimum", _tensors(torch.minimum), *_shapes(), EQUAL),
    _others("minimum", _tensors(torch.minimum), *_ints(), *BOOLS, sample(*NAN)),
    _bools("floor_divide", torch.floor_divide, QUOTIENTS),
    _others("floor_divide", _by_zero(torch.floor_divide), *INT_QUOTIENTS),
    _floats("mod", _tensors(torch.remainder), *QUOTIENTS),
    _others("mod", _by_zero(torch.remainder), *INT_QUOTIENTS),
    _bools("less", torch.lt, COMPARED),
    _bools("less_equal", torch.le, COMPARED),
    _bools("greater", torch.gt, COMPARED),
    _bools("greater_equal", torch.ge, COMPARED),
    _bools("equal", torch.eq, COMPARED),
    _bools("not_equal", torch.ne, COMPARED),
    _bools("logical_and", torch.logical_and, LOGICAL),
    _bools("logical_or", torch.logical_or, LOGICAL),
    _bools("logical_xor", torch.logical_xor, LOGICAL),
    _floats("where", _where, *CONDITIONS),
    _others("where", _where, *CHOICES),
]

_HALF, _INT = C([1.0, 2.0, 3.0], "float16"), I(3, low=1, high=5)
SHAPES = error(F(2, 3), F(2), match="shapes cannot be broadcast together")
MIXED = [
    error(F(3), _INT, match='cast the int64 one: meta.cast.x, "float32"'),
    error(_HALF, F(3), match='cast the float16 one: meta.cast.x, "float32"'),
    error(_INT, 1.5, match="a Python float does not fit a tensor of int64"),
    error(2, B(3), match="a Python int does not fit a tensor of bool"),
    SHAPES,
]
TWO_BOOLS = error(B(3), B(3), match="not defined for two bool operands")
INTO_OUT = [
    error(F(3), F(3), out=F(3), match=r"x\.update\(result\) writes", raises=ArgumentError),
    error(F(3), F(3), None, B(3), match="where is given without otherwise"),
    error(F(3), F(3), F(2), match="otherwise has another shape"),
    error(F(3), F(3), _INT, match="otherwise cannot hold the result"),
    error(1, 2.5, _INT, match="a Python float does not fit a tensor of int64"),
]

CASES += refusals(
    {
        "add": [*MIXED, *INTO_OUT],
        "subtract": [*MIXED, *INTO_OUT, TWO_BOOLS],
        "multiply divide maximum minimum": MIXED,
        "power": [*MIXED, TWO_BOOLS, error(10, 30, match="does not fit into 64 bits")],
        "floor_divide mod": [*MIXED, TWO_BOOLS],
        "less less_equal greater greater_equal": MIXED,
        "equal not_equal": MIXED,
        "logical_and logical_or logical_xor": [SHAPES],
        "where": [error(B(3), *one.args, match=one.match) for one in MIXED],
    }
)
