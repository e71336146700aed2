"""Test records of arithmetic of several operands."""

import math
from fractions import Fraction
from math import floor, frexp

import numpy as np
import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.elementwise import EDGES, OTHERS, TENSORS, _unary_floats, _unary_others

INTS = ("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32")


def _pair_shapes(low=-2.0, high=2.0, low2=None, high2=None):
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


def _pair_ints(low=-9, high=10, low2=-9, high2=10):
    def make(dtype, a, b, *shape):
        return I(*shape, low=max(a, 0) if dtype[0] == "u" else a, high=b, dtype=dtype)

    samples = [sample(make(d, low, high, 4, 5), make(d, low2, high2, 5)) for d in INTS]
    return [
        *samples,
        sample(make("int32", low, high, 3, 4), 3),
        sample(7, make("int64", low2, high2, 4)),
    ]


PAIR_BOOLS = [sample(B(4, 3), B(3)), sample(B(3), True)]

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
        return torch.where(where != 0, value, otherwise)

    return oracle


CHOSEN = [
    sample(F(3, 4), F(4), otherwise=F(3, 4), where=B(3, 4)),
    sample(F(4), F(4), otherwise=F(3, 4), where=B(3, 1)),
    sample(F(3), 2.5, otherwise=F(3), where=I(3, low=0, high=2, dtype="int32")),
]

INT_CHOSEN = [
    sample(I(3, low=0, high=9), 2, otherwise=I(3, low=0, high=9, dtype="int32"), where=B(3)),
    sample(2, 3, otherwise=I(3, low=0, high=9, dtype="int32"), where=B(3)),
    sample(I(3, low=0, high=9), 2, otherwise=F(3), where=B(3)),
]


def _pair_tensors(function):
    """Call a torch function that takes tensors only."""

    def oracle(x1, x2):
        like = x1 if isinstance(x1, torch.Tensor) else x2
        dtype = torch.result_type(x1, x2)
        a, b = (torch.as_tensor(x, device=like.device).to(dtype) for x in (x1, x2))
        return function(a, b)

    return oracle


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
    *_pair_ints(low2=1),
    sample(I(3, low=1, high=5, dtype="int32"), -2),
    sample(C([-128, -128, 5], "int8"), C([-1, 1, -1], "int8")),
    sample(C([-(2**31), 2**31 - 1], "int32"), C([-1, -1], "int32")),
    sample(C([-(2**63), 2**63 - 1], "int64"), C([-1, -1], "int64")),
]

DIVISORS = [*_pair_ints(low2=1), sample(B(3), B(3)), sample(I(3, low=1, high=4), 2)]

EQUAL = sample(C([1.0, 2.0]), C([1.0, 3.0]))

POWERS = [
    *_pair_shapes(0.5, 2.0),
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
    *_pair_ints(-3, 4, 0, 5),
    sample(C([2, -1, 1, 0, -3, -1], "int32"), C([-1, -3, -7, 5, 3, 70], "int32")),
    sample(C([0, 1, 2, 3, -5], "int32"), C([64, 127, 64, 65, 1000], "int32")),
    sample(C([3, -7, 2], "int64"), C([2**40 + 1, 2**62 + 3, 63], "int64")),
    sample(C([0, 1, 2, 3], "int32"), 64),
]


def _pair_floats(name, oracle, *samples):
    return OpCase(name, samples=list(samples), oracle=oracle)


def _pair_others(name, oracle, *samples):
    """Samples that are run once: without a float of the dtype under test, or without a gradient."""
    return OpCase(name, samples=list(samples), oracle=oracle, dtypes=("float32",), grad=False)


def _pair_bools(name, oracle, samples):
    return OpCase(name, samples=samples, oracle=_pair_tensors(oracle), grad=False)


CASES = [
    _pair_floats("add", _where_true(torch.add), *_pair_shapes(), *CHOSEN),
    _pair_others("add", _where_true(torch.add), *_pair_ints(), *PAIR_BOOLS, *INT_CHOSEN),
    _pair_floats("subtract", _where_true(_pair_tensors(torch.sub)), *_pair_shapes(), *CHOSEN),
    _pair_others("subtract", _where_true(_pair_tensors(torch.sub)), *_pair_ints(), *INT_CHOSEN),
    _pair_floats("multiply", torch.mul, *_pair_shapes()),
    _pair_others("multiply", torch.mul, *_pair_ints(), *PAIR_BOOLS),
    _pair_floats("divide", _pair_tensors(torch.div), *_pair_shapes(0.5, 2.0)),
    _pair_others("divide", _pair_tensors(torch.div), *DIVISORS),
    _pair_floats("pow", _pair_tensors(torch.pow), *POWERS),
    _pair_others("pow", _pair_tensors(_int_power), *INT_POWERS),
    _pair_floats("maximum", _pair_tensors(torch.maximum), *_pair_shapes(), EQUAL),
    _pair_others("maximum", _pair_tensors(torch.maximum), *_pair_ints(), *PAIR_BOOLS, sample(*NAN)),
    _pair_floats("minimum", _pair_tensors(torch.minimum), *_pair_shapes(), EQUAL),
    _pair_others("minimum", _pair_tensors(torch.minimum), *_pair_ints(), *PAIR_BOOLS, sample(*NAN)),
    _pair_bools("floor_divide", torch.floor_divide, QUOTIENTS),
    _pair_others("floor_divide", _pair_tensors(torch.floor_divide), *INT_QUOTIENTS),
    _pair_floats("remainder", _pair_tensors(torch.remainder), *QUOTIENTS),
    _pair_others("remainder", _pair_tensors(torch.remainder), *INT_QUOTIENTS),
]

_HALF, _INT = C([1.0, 2.0, 3.0], "float16"), I(3, low=1, high=5)

NO_BROADCAST = error(F(2, 3), F(2), match="shapes cannot be broadcast together")

MIXED = [
    error(F(3), _INT, match='cast the int64 one: meta.astype.x, "float32"'),
    error(_HALF, F(3), match='cast the float16 one: meta.astype.x, "float32"'),
    error(_INT, 1.5, match="a Python float does not fit a tensor of int64"),
    error(2, B(3), match="a Python int does not fit a tensor of bool"),
    NO_BROADCAST,
]

TWO_BOOLS = error(B(3), B(3), match="not defined for two bool operands")

NOT_CHOSEN = [
    error(F(3), F(3), None, B(3), match="where is given without otherwise"),
    error(F(3), F(3), F(3), match="otherwise is given without where"),
    error(F(3), F(3), F(2), B(3), match="otherwise has another shape"),
    error(F(3), F(3), _INT, B(3), match="otherwise cannot hold the result"),
    error(1, 2.5, _INT, B(3), match="a Python float does not fit a tensor of int64"),
]

CASES += refusals(
    {
        "add": [*MIXED, *NOT_CHOSEN],
        "subtract": [*MIXED, *NOT_CHOSEN, TWO_BOOLS],
        "multiply divide maximum minimum": MIXED,
        "pow": [
            *MIXED,
            TWO_BOOLS,
            error(10, 30, match="does not fit into 64 bits"),
            error(2, -1, match="no negative power"),
            error(_INT, -1, match="no negative power"),
        ],
        "floor_divide remainder": [
            *MIXED,
            TWO_BOOLS,
            error(7, 0, match="an integer is divided by 0"),
            error(_INT, 0, match="an integer is divided by 0"),
        ],
    }
)

FLOAT_INTS = ("uint8", "int8", "int32", "int64", "uint16", "uint32")

INF, FLOAT_NAN = math.inf, math.nan


def _pairs(low=-2.0, high=2.0, low2=None, high2=None):
    def second(*shape):
        return F(*shape, low=low if low2 is None else low2, high=high if high2 is None else high2)

    pairs = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((), ())]
    pairs += [((0, 3), (1, 3)), ((1,), (1, 1))]
    samples = [sample(F(*a, low=low, high=high), second(*b)) for a, b in pairs]
    return [*samples, sample(F(2, 3, low=low, high=high), 1.5), sample(1.5, second(2, 3))]


def _float_ints(low2=-9):
    def ints(dtype, low, *shape):
        return I(*shape, low=max(low, 0) if dtype[0] == "u" else low, high=10, dtype=dtype)

    return [
        *[sample(ints(d, -9, 4, 5), ints(d, low2, 5)) for d in FLOAT_INTS],
        sample(ints("int32", -9, 3, 4), 3),
        sample(7, ints("int64", low2, 4)),
    ]


def _tensors(function, real=False):
    """Call a torch function that takes tensors of one dtype."""

    def oracle(x1, x2, *args, **kwargs):
        like = x1 if isinstance(x1, torch.Tensor) else x2
        dtype = torch.float32 if real and not like.dtype.is_floating_point else like.dtype
        pair = (torch.as_tensor(x, device=like.device).to(dtype) for x in (x1, x2))
        return function(*pair, *args, **kwargs)

    return oracle


def _floats(name, oracle, *samples, **options):
    return OpCase(name, samples=list(samples), oracle=oracle, **options)


def _others(name, oracle, *samples):
    """Samples of special values, integers and bools, which have no gradient."""
    return OpCase(name, samples=list(samples), oracle=oracle, dtypes=("float32",), grad=False)


def _nextafter(x1, x2):
    """With a gradient, which torch 2.11 does not have."""
    step = torch.nextafter(x1.detach(), x2.detach()) - x1.detach()
    return torch.where(x1 != x2, x1, x1.detach()) + step + 0 * x2


# Quotients are kept away from whole numbers, where one rounding decides about them.
FLOAT_QUOTIENTS = [
    sample(C([7.0, -7.0, 7.0, -7.0, 0.5]), C([2.0, 2.0, -2.0, -2.0, -4.0])),
    sample(C([[7.0], [-5.5]]), C([2.0, -3.0])),
    sample(C([5.0, -5.0]), 2),
    sample(7.5, C([2.0, -2.0])),
    sample(F(0, 2), F(2, low=1.0)),
    sample(F(2, 3, low=0.6, high=0.9), F(3, low=0.2, high=0.25)),
    sample(C(5.0), C(3.0)),
]

TRAPS = [
    sample(C([-128, -128, 5], "int8"), C([-1, 1, -1], "int8")),
    sample(C([-(2**63), 2**63 - 1], "int64"), C([-1, -1], "int64")),
]

ENDS = [
    sample(C([1.0, -0.0, INF, FLOAT_NAN, 0.0, -INF]), C([-0.0, 1.0, -INF, -1.0, FLOAT_NAN, -INF])),
    sample(C([INF, -INF, INF, 2.0]), C([INF, -INF, FLOAT_NAN, FLOAT_NAN])),
]

STEPS = sample(
    C([1.0, -0.0, 2.0, FLOAT_NAN, 0.0, -INF]), C([-0.0, 1.0, 2.0, -1.0, FLOAT_NAN, -INF])
)

FLOAT_BOOLS = [sample(B(4, 3), B(3))]

TIES = sample(C([1.0, 2.0, -1.0]), C([1.0, 3.0, -2.0]))

CASES += [
    _floats("fmod", _tensors(torch.fmod), *FLOAT_QUOTIENTS),
    _others("fmod", _tensors(torch.fmod), *_float_ints(1), *TRAPS, *ENDS),
    _floats("copysign", _tensors(torch.copysign), *_pairs(), second=False),
    _others("copysign", _tensors(torch.copysign, True), *_float_ints(), *FLOAT_BOOLS, *ENDS),
    _floats("hypot", _tensors(torch.hypot), *_pairs(0.5, 2.0)),
    _others("hypot", _tensors(torch.hypot), *ENDS, sample(C([3e30, 1e-30]), C([4e30, 0.0]))),
    _floats("fmax", _tensors(torch.fmax), *_pairs(), TIES),
    _others("fmax", _tensors(torch.fmax), *_float_ints(), *FLOAT_BOOLS, *ENDS),
    _floats("fmin", _tensors(torch.fmin), *_pairs(), TIES),
    _others("fmin", _tensors(torch.fmin), *_float_ints(), *FLOAT_BOOLS, *ENDS),
    _floats("logaddexp", _tensors(torch.logaddexp), *_pairs()),
    _others(
        "logaddexp", _tensors(torch.logaddexp), *ENDS, sample(C([900.0, 0.0]), C([901.0, -90]))
    ),
    _floats("logaddexp2", _tensors(torch.logaddexp2), *_pairs()),
    _others("logaddexp2", _tensors(torch.logaddexp2), *ENDS),
    _floats("heaviside", _tensors(torch.heaviside), *_pairs(), grad=False),
    _others("heaviside", _tensors(torch.heaviside), *_float_ints(), *FLOAT_BOOLS, *ENDS),
    _floats("ldexp", _tensors(torch.ldexp), *_pairs()),
    _others("ldexp", _tensors(torch.ldexp, True), *_float_ints(), *FLOAT_BOOLS),
    _floats("nextafter", _tensors(_nextafter), *_pairs()[:7]),
    _floats("nextafter", _tensors(torch.nextafter), STEPS, grad=False),
]


def _triples(low=-2.0):
    return [
        sample(F(3, 4), F(3, 4), F(3, 4, low=low)),
        sample(F(3, 1), F(4), F(2, 1, 4, low=low)),
        sample(F(), F(), F(low=low)),
        sample(F(0, 2), F(2), F(1, low=low)),
    ]


def _scaled(function):
    return lambda x, tensor1, tensor2, value=1: function(x, tensor1, tensor2, value=value)


def _ints(dtype):
    return [I(3, low=0, high=6, dtype=dtype) for _ in range(3)]


MORE = [sample(F(3), F(3), F(3, low=0.5), 0.5), sample(F(3), F(3), F(3, low=0.5), value=-2)]

PRODUCTS = [sample(*_ints(d)) for d in ("uint8", "int32", "uint16", "uint32")] + [
    sample(*_ints("int64"), 3)
]

WEIGHTS = [
    sample(F(2, 3), F(3), 0.25),
    sample(F(2, 3), F(3), weight=2),
    sample(C([1.0, 2.0, 3.0]), C([5.0, -1.0, 0.1]), C([0.0, 1.0, 0.5])),
]

CASES += [
    OpCase("addcmul", [*_triples(), *MORE], _scaled(torch.addcmul)),
    OpCase("addcmul", PRODUCTS, _scaled(torch.addcmul), dtypes=("float32",), grad=False),
    OpCase("addcdiv", [*_triples(0.5), *MORE], _scaled(torch.addcdiv)),
    OpCase("lerp", [*_triples(), *WEIGHTS], lambda x, end, weight: torch.lerp(x, end, weight)),
]


def _rounded(value, rounding):
    if rounding == "upward" or value >= 0:
        return floor(value + Fraction(1, 2))
    return -floor(-value + Fraction(1, 2))


def multiplied(x, multiplier, shift, rounding="upward"):
    def one(value, factor, exponent):
        product = Fraction(int(value) * int(factor))
        return _rounded(product * Fraction(2) ** (int(exponent) - 31), rounding)

    operands = [np.asarray(v) for v in (x, multiplier, shift)]
    return torch.from_numpy(np.array(np.vectorize(one, otypes=["int64"])(*operands))).int()


def number(x):
    def one(value):
        fraction, shift = frexp(value)
        whole = _rounded(Fraction(fraction) * 2**31, "nearest")
        return (whole // 2, shift + 1) if abs(whole) == 2**31 else (whole, shift)

    pairs = [one(v) for v in x.flatten().tolist()]
    columns = zip(*pairs, strict=True) if pairs else ((), ())
    return tuple(torch.tensor(c, dtype=torch.int32).reshape(x.shape) for c in columns)


def _fixed_ints(*shape, low=-(2**31), high=2**31):
    return I(*shape, low=low, high=high, dtype="int32")


HALVES = C([-7, -6, -5, -3, -2, -1, 0, 1, 2, 3, 5, 6, 7], "int32")

EXTREMES = C([-(2**31), 2**31 - 1, -1, 1, 0], "int32")

FACTORS = (2**30, 2**31 - 1, 1288490188, 0, -(2**30))

CASES += [
    OpCase(
        "fixed_point_multiply",
        samples=[
            *(
                sample(x, factor, shift, rounding)
                for rounding in ("upward", "nearest")
                for x in (HALVES, EXTREMES)
                for factor, shift in zip(FACTORS, (0, -1, -2, -5, 0), strict=True)
            ),
            sample(HALVES, 2**30, -1, "nearest"),
            sample(EXTREMES, 2**31 - 1, -32),
            sample(EXTREMES, 2**31 - 1, -40, "nearest"),
            sample(_fixed_ints(3, 4), 1395864371, -7),
            sample(_fixed_ints(3, 4, low=-1000, high=1000), 1395864371, 9, "nearest"),
            sample(
                _fixed_ints(2, 5, 3),
                _fixed_ints(5, 1, low=2**30),
                _fixed_ints(5, 1, low=-9, high=1),
            ),
            sample(
                _fixed_ints(2, 5),
                _fixed_ints(5, low=2**30),
                _fixed_ints(5, low=-9, high=1),
                rounding="nearest",
            ),
            sample(_fixed_ints(0, 2), 2**30, 1),
            sample(_fixed_ints(), 2**30, 1),
        ],
        oracle=multiplied,
        dtypes=("float32",),
        grad=False,
        errors=[
            error(F(2), 2**30, 1, match="x must be int32"),
            error(_fixed_ints(2), I(2, low=0, high=2), 1, match="int64"),
            error(_fixed_ints(2), 2**30, 1, "down", match="unknown rounding"),
            error(_fixed_ints(2), _fixed_ints(3), 1, match="cannot be broadcast"),
        ],
    ),
    OpCase(
        "fixed_point_number",
        samples=[
            sample(C([0.5, 1.0, 0.25, 0.0, 3.0, 1e-60, 1e60, -0.3], "float64")),
            sample(C([1 - 2**-53, 0.5 + 2**-32, 0.5 - 2**-34, 2 - 2**-40, -1 + 2**-53], "float64")),
            sample(C([[0.1 / 0.3], [0.7 / 0.2]], "float64")),
            sample(C(0.3, "float64")),
        ],
        oracle=number,
        dtypes=("float32",),
        grad=False,
        errors=[error(C([0.5], "float32"), match="x must be float64")],
    ),
]


def add_along(x, bias, axis=1):
    return (x.movedim(axis, -1) + bias).movedim(-1, axis)


CASES += [
    OpCase(
        "bias_add",
        [
            sample(F(2, 3), F(3)),
            sample(F(2, 3, 4, 5), F(3)),
            sample(F(2, 3, 4), F(4), axis=-1),
            sample(F(2, 3, 4), F(2), axis=0),
            sample(F(5), F(5), axis=0),
            sample(F(0, 3), F(3)),
            sample(F(2, 1), F(1), axis=1),
        ],
        add_along,
    ),
    OpCase(
        "bias_add",
        [sample(I(2, 3, low=-5, high=5), I(3, low=-5, high=5))],
        add_along,
        dtypes=(),
        grad=False,
    ),
]

CASES += refusals(
    {
        "bias_add": [
            error(F(2, 3), F(2), match="bias does not fit"),
            error(F(2, 3), F(1, 3), match="bias must have 1 axes"),
            error(F(2, 3), F(3), axis=2, match="axis 2 is out of range"),
            error(F(2, 3), C([1.0, 2.0, 3.0], "float64"), match="cast the float32 one"),
        ],
    }
)

CASES += [
    _unary_floats("negative", torch.neg, TENSORS),
    _unary_others("negative", torch.neg, [*OTHERS[:-1], sample(C(EDGES))]),
    _unary_floats("abs", torch.abs, TENSORS),
    _unary_others("abs", torch.abs, [*OTHERS[:-1], sample(C(EDGES))]),
    _unary_others("abs", torch.clone, [sample(B(3, 2))]),
]

CASES += refusals(
    {
        "negative": [error(B(3), match="bool has no negative")],
    }
)
