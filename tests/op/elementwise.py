"""Test records of elementwise functions of one tensor, and casts."""

import math

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample

TENSORS = [sample(F(3, 5)), sample(F()), sample(F(0, 3)), sample(F(2, 1, 7))]

POSITIVE = [sample(F(*s, low=0.25, high=4.0)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]

EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan]

INTEGERS = [sample(I(2, 3, low=-4, high=5, dtype=d)) for d in ("int8", "int32", "int64")]

OTHERS = [
    *INTEGERS,
    sample(I(4, low=0, high=200, dtype="uint8")),
    sample(I(4, low=40000, high=2**16, dtype="uint16")),
    sample(I(4, low=0, high=200, dtype="uint32")),
    sample(B(3, 2)),
]


def _unary_floats(name, oracle, samples):
    return OpCase(name, samples=samples, oracle=oracle)


def _unary_others(name, oracle, samples):
    """Samples that have no gradient: integers and bools, infinities and NaN."""
    return OpCase(name, samples=samples, oracle=oracle, dtypes=("float32",), grad=False)


def _real(name, oracle, samples, extremes):
    """A real function, which is computed in float32 for integers and bools."""

    def as_float(x):
        return oracle(x if x.is_floating_point() else x.float())

    return [
        _unary_floats(name, oracle, samples),
        _unary_others(name, as_float, OTHERS),
        OpCase(name, samples=[sample(C(extremes))], oracle=oracle, grad=False),
    ]


def _derivative(forward, of_y=None):
    """Return the oracle of a gradient operator: torch's own gradient, itself differentiable.

    ``of_y`` gives the derivative as a function of y, which the operators use if they have it.
    """

    def oracle(x, y, dy):
        if y is not None and of_y is not None:
            return dy * of_y(y)
        again = any(t is not None and t.requires_grad for t in (x, dy))
        leaf = x if x.requires_grad else x.detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(forward(leaf), leaf, dy, create_graph=again)
        return found

    return oracle


def _derivative_case(name, forward, low, high, of_y=None, y_low=0.0, y_high=1.0):
    x, y = F(3, 4, low=low, high=high), F(3, 4, low=y_low, high=y_high)
    samples = [
        sample(x, None, F(3, 4)),
        sample(F(low=low, high=high), None, F()),
        sample(F(0, 2), None, F(0, 2)),
        sample(x=F(2, 1, low=low, high=high), y=None, dy=F(2, 1)),
    ]
    if of_y is not None:
        samples.append(sample(None, y, F(3, 4)))
    return OpCase(name, samples=samples, oracle=_derivative(forward, of_y))


CASES = [
    *_real("sqrt", torch.sqrt, POSITIVE, [-1.0, *EDGES]),
    _derivative_case("sqrt_dx", torch.sqrt, 0.5, 4, lambda y: 1 / (2 * y), 0.5, 2),
    *_real("exp", torch.exp, TENSORS, [-1000.0, 2.0, *EDGES]),
    *_real("log", torch.log, POSITIVE, [-1.0, *EDGES]),
    *_real("rsqrt", torch.rsqrt, POSITIVE, [16.0, -1.0, *EDGES]),
    _unary_floats("copy", torch.clone, TENSORS),
    _unary_others("copy", torch.clone, [*OTHERS, sample(C(EDGES))]),
    _unary_others("detach", torch.clone, [*TENSORS, *OTHERS, sample(C(EDGES))]),
]

_INTS = I(3, low=0, high=2)

MISMATCHED = [
    error(F(2), None, F(3), match="x does not match dy"),
    error(F(3), None, C([1.0] * 3, "float64"), match="cast the float32 one"),
    error(_INTS, None, F(3), match="x must be floating point"),
]

NO_ARGUMENT = error(None, None, F(3), match="neither x nor y is given")

NO_X = error(None, F(3), F(3), match="x is not given")

CASES += refusals(
    {
        "sqrt_dx": [*MISMATCHED, NO_ARGUMENT],
    }
)

CASES += [
    *_real("log2", torch.log2, POSITIVE, [8.0, -1.0, *EDGES]),
    *_real("log10", torch.log10, POSITIVE, [1000.0, -1.0, *EDGES]),
    *_real("log1p", torch.log1p, POSITIVE, [-1.0, -2.0, -0.5, 1e-3, 1e4, *EDGES]),
    *_real("expm1", torch.expm1, TENSORS, [-1000.0, 1000.0, 1e-3, *EDGES]),
    *_real("reciprocal", torch.reciprocal, POSITIVE, [-4.0, 1e-3, *EDGES]),
]

# Each well inside a step, so that rounding to half precision changes nothing.
STEPS = [sample(C([[0.25, -0.75, 1.25], [2.75, -3.25, -0.25]])), sample(C(1.75)), sample(F(0, 3))]

STEPS += [sample(F(2, 3, low=0.1, high=0.4))]

HALVES = [sample(C([0.5, -0.5, 1.5, 2.5, -2.5, 100.5, -1.0, 3.0, *EDGES]))]


def _cases(name, function):
    def oracle(x):
        return function(x) if x.is_floating_point() or name == "sign" else x.clone()

    return [
        OpCase(name, samples=STEPS, oracle=oracle),
        OpCase(name, samples=HALVES, oracle=oracle, grad=False),
        OpCase(name, samples=OTHERS, oracle=oracle, dtypes=("float32",), grad=False),
    ]


CASES += [
    *_cases("ceil", torch.ceil),
    *_cases("floor", torch.floor),
    *_cases("round", torch.round),
    *_cases("trunc", torch.trunc),
    *_cases("sign", lambda x: torch.where(x.isnan(), x, torch.sign(x))),
    OpCase("frac", samples=STEPS, oracle=torch.frac, second=False),
    OpCase("frac", samples=HALVES, oracle=torch.frac, grad=False),
]

TURNS = [1e-3, -1e3, 1.0, -2.0, *EDGES]

SIGNED_ZEROS = [0.0, 0.0, -0.0, -0.0, 1.0, -1.0, math.inf, math.nan]


def _shapes(low, high):
    return [sample(F(*s, low=low, high=high)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]


def _atan2(x1, x2):
    like = x1 if isinstance(x1, torch.Tensor) else x2
    dtype = like.dtype if like.dtype.is_floating_point else torch.float32
    return torch.atan2(*[torch.as_tensor(x, dtype=dtype) for x in (x1, x2)])


ANGLES = [
    sample(F(3, 4), F(3, 4)),
    sample(F(2, 1, 3), F(4, 1)),
    sample(F(), F(3)),
    sample(F(0, 2), F(2)),
    sample(F(3), 2),
    sample(1.5, F(3)),
    sample(C([0.0, 1.0, -1.0]), C([0.0, 0.0, -2.0])),
]

ANGLES_OF_OTHERS = [
    sample(C(SIGNED_ZEROS), C([0.0, -0.0, 0.0, -0.0, -0.0, 0.0, -math.inf, 1.0])),
    sample(I(3, low=-4, high=5, dtype="int32"), I(2, 3, low=-4, high=5, dtype="int32")),
    sample(I(3, low=-4, high=5, dtype="int8"), 2),
    sample(B(3), B(3)),
]

CASES += [
    *_real("sin", torch.sin, _shapes(-4, 4), TURNS),
    *_real("cos", torch.cos, _shapes(-4, 4), TURNS),
    *_real("tan", torch.tan, _shapes(-1.2, 1.2), TURNS),
    *_real("asin", torch.asin, _shapes(-0.9, 0.9), [1.0, -1.0, 1.5, *EDGES]),
    *_real("acos", torch.acos, _shapes(-0.9, 0.9), [1.0, -1.0, 1.5, *EDGES]),
    *_real("atan", torch.atan, _shapes(-4, 4), [1e4, -1e4, *EDGES]),
    *_real("sinh", torch.sinh, _shapes(-2, 2), [-1000.0, 1000.0, 1e-3, *EDGES]),
    *_real("cosh", torch.cosh, _shapes(-2, 2), [-1000.0, 1000.0, 1e-3, *EDGES]),
    *_real("asinh", torch.asinh, _shapes(-4, 4), [-1e4, 1e4, 1e-3, *EDGES]),
    *_real("acosh", torch.acosh, _shapes(1.2, 4), [1.0, 1e4, 0.5, *EDGES]),
    *_real("atanh", torch.atanh, _shapes(-0.9, 0.9), [1.0, -1.0, 1.5, 1e-3, *EDGES]),
    *_real("deg2rad", torch.deg2rad, _shapes(-2, 2), [180.0, -1e4, *EDGES]),
    *_real("rad2deg", torch.rad2deg, _shapes(-2, 2), [3.0, -100.0, *EDGES]),
    OpCase("atan2", samples=ANGLES, oracle=_atan2),
    OpCase("atan2", samples=ANGLES_OF_OTHERS, oracle=_atan2, grad=False),
]

CASES += refusals(
    {
        "atan2": [
            error(F(3), C([1.0], "float64"), match="cast the float32 one"),
            error(F(2), F(3), match="broadcast"),
            error(I(3, low=1, high=3), 0.5, match="does not fit a tensor of int64"),
        ]
    }
)


def _others_of_special(name, oracle, *samples):
    return OpCase(name, samples=list(samples), oracle=oracle, grad=False)


square = torch.square

CASES += [
    *_real("exp2", torch.exp2, TENSORS, [-1000.0, 10.0, *EDGES]),
    OpCase("square", samples=TENSORS, oracle=square),
    _others_of_special("square", square, *INTEGERS, sample(C(EDGES))),
]

NUMBERS = [*TENSORS, sample(F(4), 1.0, 2.0, -2.0), sample(C([1.0, *EDGES]), posinf=3.0, neginf=-1)]

REPLACED = [
    sample(C([1.0, *EDGES]), 0.5, 4.0, -8.0),
    sample(C([1.0, *EDGES]), neginf=-1.0, posinf=2),
]

CASES += [
    OpCase("nan_to_num", samples=NUMBERS, oracle=torch.nan_to_num),
    OpCase("nan_to_num", samples=REPLACED, oracle=torch.nan_to_num, grad=False),
    OpCase("nan_to_num", OTHERS, torch.nan_to_num, ("float32",), grad=False),
]

CASES += [
    OpCase(
        "astype",
        samples=[sample(F(2, 3), d) for d in ("float16", "bfloat16", "float32", "float64")]
        + [sample(F(), "float64"), sample(F(0, 2), "float32")],
        oracle=lambda x, dtype: x,
        # The target may be coarser than the dtype under test.
        rtol=dict.fromkeys(("float16", "float32", "float64"), 1e-2),
        atol=dict.fromkeys(("float16", "float32", "float64"), 1e-3),
        grad=False,
        why="rounding has no numeric derivative; checked in test_transform.py",
    ),
]

# Rounding to the dtype under test, which may be coarser than the argument's.
COARSE = dict.fromkeys(("float16", "bfloat16", "float32", "float64"), 1e-2)

CASES += [
    OpCase(
        "cast_like",
        samples=[
            sample(F(2, 3), F(1)),
            sample(F(2, 3), I(2, low=0, high=2)),
            sample(F(2, 3), B()),
            sample(F(), F(2)),
            sample(F(0, 2), F()),
            sample(I(3, low=-9, high=9), F(2)),
            sample(B(3), F(2)),
        ],
        oracle=lambda x, like_type: x.to(like_type.dtype),
        grad=False,
        why="rounding has no numeric derivative; see test_like.py",
    ),
    OpCase(
        "group_cast",
        samples=[
            sample((F(2, 3), F(), F(0, 2)), "float16"),
            sample((F(2, 3), I(2, low=-9, high=9), B(3)), "float32"),
            sample((F(4),), "float64"),
        ],
        oracle=lambda tensor_list, dtype: tuple(t.double() for t in tensor_list),
        rtol=COARSE,
        atol=COARSE,
        grad=False,
        why="rounding has no numeric derivative; see test_like.py",
    ),
]

CASES += refusals(
    {
        "group_cast": [error((), "float32", match="tensor_list is empty")],
    }
)
