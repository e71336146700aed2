"""Test records of more elementwise operators of two operands."""

import math

import torch

from meta.testing import B, C, F, I, OpCase, sample

INTS = ("uint8", "int8", "int32", "int64")
INF, NAN = math.inf, math.nan


def _pairs(low=-2.0, high=2.0, low2=None, high2=None):
    def second(*shape):
        return F(*shape, low=low if low2 is None else low2, high=high if high2 is None else high2)

    pairs = [((3, 4), (3, 4)), ((2, 3, 4), (4,)), ((3, 1), (1, 4)), ((), (2, 3)), ((), ())]
    pairs += [((0, 3), (1, 3)), ((1,), (1, 1))]
    samples = [sample(F(*a, low=low, high=high), second(*b)) for a, b in pairs]
    return [*samples, sample(F(2, 3, low=low, high=high), 1.5), sample(1.5, second(2, 3))]


def _ints(low2=-9):
    def ints(dtype, low, *shape):
        return I(*shape, low=0 if dtype == "uint8" else low, high=10, dtype=dtype)

    return [
        *[sample(ints(d, -9, 4, 5), ints(d, low2, 5)) for d in INTS],
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


def _fmod(x1, x2):
    if x1.dtype.is_floating_point:
        return torch.fmod(x1, x2)
    return torch.where(x2 == 0, 0, torch.fmod(x1, torch.where(x2 == 0, 1, x2)))


def _isclose(x1, x2, *args, **kwargs):
    if not x1.dtype.is_floating_point:
        x1, x2 = x1.double(), x2.double()
    return torch.isclose(x1, x2, *args, **kwargs)


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
QUOTIENTS = [
    sample(C([7.0, -7.0, 7.0, -7.0, 0.5]), C([2.0, 2.0, -2.0, -2.0, -4.0])),
    sample(C([[7.0], [-5.5]]), C([2.0, -3.0])),
    sample(C([5.0, -5.0]), 2),
    sample(7.5, C([2.0, -2.0])),
    sample(F(0, 2), F(2, low=1.0)),
    sample(F(2, 3, low=0.6, high=0.9), F(3, low=0.2, high=0.25)),
    sample(C(5.0), C(3.0)),
]
TRAPS = [
    sample(C([-128, -128, 5], "int8"), C([-1, 0, -1], "int8")),
    sample(C([-(2**63), 2**63 - 1], "int64"), C([-1, 0], "int64")),
]
ENDS = [
    sample(C([1.0, -0.0, INF, NAN, 0.0, -INF]), C([-0.0, 1.0, -INF, -1.0, NAN, -INF])),
    sample(C([INF, -INF, INF, 2.0]), C([INF, -INF, NAN, NAN])),
]
STEPS = sample(C([1.0, -0.0, 2.0, NAN, 0.0, -INF]), C([-0.0, 1.0, 2.0, -1.0, NAN, -INF]))
BOOLS = [sample(B(4, 3), B(3))]
TIES = sample(C([1.0, 2.0, -1.0]), C([1.0, 3.0, -2.0]))
CLOSE = [
    sample(C([1.0, 1.0, 100.0, INF, INF, NAN]), C([1.0, 1.5, 100.0625, INF, -INF, NAN])),
    sample(C([1.0, 1.0, 100.0]), C([1.0, 1.5, 100.5]), 0.25),
    sample(C([1.0, 1.0, -4.0]), C([1.0, 1.5, 4.0]), 0.0, atol=1),
    sample(C([NAN, NAN, 1.0]), C([NAN, 1.0, NAN]), equal_nan=True),
    sample(C([1.0, 2.0]), 1.0),
    sample(2, C([[1.0], [2.0]])),
    sample(F(0, 2), F(2)),
    sample(C(1.0), C(1.0)),
]

CASES = [
    _floats("fmod", _tensors(_fmod), *QUOTIENTS),
    _others("fmod", _tensors(_fmod), *_ints(), *TRAPS, *ENDS),
    _floats("copysign", _tensors(torch.copysign), *_pairs(), second=False),
    _others("copysign", _tensors(torch.copysign, True), *_ints(), *BOOLS, *ENDS),
    _floats("hypot", _tensors(torch.hypot), *_pairs(0.5, 2.0)),
    _others("hypot", _tensors(torch.hypot), *ENDS, sample(C([3e30, 1e-30]), C([4e30, 0.0]))),
    _floats("fmax", _tensors(torch.fmax), *_pairs(), TIES),
    _others("fmax", _tensors(torch.fmax), *_ints(), *BOOLS, *ENDS),
    _floats("fmin", _tensors(torch.fmin), *_pairs(), TIES),
    _others("fmin", _tensors(torch.fmin), *_ints(), *BOOLS, *ENDS),
    _floats("logaddexp", _tensors(torch.logaddexp), *_pairs()),
    _others(
        "logaddexp", _tensors(torch.logaddexp), *ENDS, sample(C([900.0, 0.0]), C([901.0, -90]))
    ),
    _floats("logaddexp2", _tensors(torch.logaddexp2), *_pairs()),
    _others("logaddexp2", _tensors(torch.logaddexp2), *ENDS),
    _floats("heaviside", _tensors(torch.heaviside), *_pairs(), grad=False),
    _others("heaviside", _tensors(torch.heaviside), *_ints(), *BOOLS, *ENDS),
    _floats("ldexp", _tensors(torch.ldexp), *_pairs()),
    _others("ldexp", _tensors(torch.ldexp, True), *_ints(), *BOOLS),
    _floats("nextafter", _tensors(_nextafter), *_pairs()[:7]),
    _floats("nextafter", _tensors(torch.nextafter), STEPS, grad=False),
    _floats("isclose", _tensors(_isclose), *CLOSE, grad=False),
    _others("isclose", _tensors(_isclose), *_ints(), *BOOLS),
]
