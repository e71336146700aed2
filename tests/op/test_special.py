"""What the records cannot say of special functions and their neighbours: accuracy over the whole
range, Python numbers, refusals, the largest numbers of a dtype.
"""

import math

import pytest
import torch

import meta
from meta.base.errors import TypeInferError
from meta.dialect import only

FLOATS = torch.ones(2)
INTS = torch.ones(2, dtype=torch.int64)
BOOLS = torch.ones(2, dtype=torch.bool)


def _spread(low, high):
    magnitude = torch.logspace(low, high, 1000, dtype=torch.float64)
    return torch.cat([magnitude, -magnitude])


REFERENCES = {
    "erfc": (torch.special.erfc, _spread(-6, 0.7), 4),
    "erfinv": (torch.special.erfinv, torch.linspace(-0.999, 0.999, 2000, dtype=torch.float64), 4),
    "lgamma": (torch.special.gammaln, _spread(-6, 4)[:1000], 4),
    # Near its zero at 1.46 digamma is the difference of numbers near 1.
    "digamma": (torch.special.digamma, _spread(-6, 4)[:1000], 8),
    "trigamma": (lambda x: torch.special.zeta(2, x), _spread(-6, 4)[:1000], 8),
    "i0e": (torch.special.i0e, _spread(-6, 4), 32),
    "i1e": (torch.special.i1e, _spread(-6, 4), 32),
}


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tvm_is_accurate_over_the_range(name, dtype):
    reference, values, units = REFERENCES[name]
    x = values.to(dtype)
    with only("tvm"):
        found = getattr(meta, name)(x).torch().double()
    expected = reference(x.double())
    floor = 0.5 if name in ("lgamma", "digamma") else 0.0
    error = (found - expected).abs()
    bound = units * torch.finfo(dtype).eps * (expected.abs() + floor) + torch.finfo(dtype).tiny
    assert (error <= bound).all()


def test_erfinv_is_accurate_up_to_the_last_number_below_one():
    x = 1 - torch.logspace(-15.9, -1, 200, dtype=torch.float64)
    with only("tvm"):
        found = meta.erfinv(x).torch()
    # erfc is steep there: its relative error is that of the argument times 2 * y**2.
    error = (torch.special.erfc(found) / (1 - x) - 1).abs()
    assert (error <= 16 * torch.finfo(torch.float64).eps * (1 + 2 * found * found)).all()


@pytest.mark.parametrize("name", ["digamma", "trigamma"])
def test_derivatives_of_gamma_are_reflected_below_zero(name):
    x = torch.linspace(-7.9, -0.1, 1999, dtype=torch.float64)
    x = x[(x - x.round()).abs() > 0.01]
    with only("tvm"):
        found = getattr(meta, name)(x).torch()
    if name == "digamma":
        expected = torch.special.digamma(x)
    else:
        expected = (math.pi / torch.sin(math.pi * x)) ** 2 - torch.special.zeta(2, 1 - x)
    assert torch.allclose(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_infinities_become_the_largest_numbers_of_the_dtype(dtype, dialect):
    x = torch.tensor([math.inf, -math.inf, math.nan], dtype=getattr(torch, dtype))
    with only(dialect):
        assert torch.equal(meta.nan_to_num(x).torch(), torch.nan_to_num(x))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_nextafter_moves_by_one_number(dtype, dialect):
    kind = getattr(torch, dtype)
    info = torch.finfo(kind)
    x = torch.tensor([1.0, 1.0, -1.0, -1.0, 0.0, -0.0, info.max, 2.0, math.nan], dtype=kind)
    to = torch.tensor([2.0, 0.0, 0.0, -2.0, -1.0, 1.0, math.inf, 2.0, 1.0], dtype=kind)
    least = info.smallest_normal * info.eps
    below = 1 - info.eps / 2
    expected = [1 + info.eps, below, -below, -1 - info.eps, -least, least, math.inf, 2.0, math.nan]
    with only(dialect):
        found = meta.nextafter(x, to).torch().double()
    assert torch.equal(
        found.nan_to_num(7.0), torch.tensor(expected, dtype=torch.float64).nan_to_num(7.0)
    )


@pytest.mark.parametrize(
    ("name", "args", "value"),
    [
        ("erfc", (0,), 1.0),
        ("erfinv", (1,), math.inf),
        ("lgamma", (3.0,), math.log(2)),
        ("trigamma", (0,), math.inf),
        ("logit", (0.5,), 0.0),
        ("logit", (2.0, 0.5), 0.0),
        ("xlogy", (0, 0), 0.0),
        ("entr", (-1,), -math.inf),
        ("exp2", (3,), 8.0),
        ("square", (-3,), 9),
        ("i1", (0,), 0.0),
        ("fmod", (-7, 3), -1),
        ("fmod", (-7.5, 2), -1.5),
        ("copysign", (3, -0.0), -3.0),
        ("hypot", (3, 4), 5.0),
        ("fmax", (1.0, math.nan), 1.0),
        ("fmin", (math.nan, 2), 2),
        ("heaviside", (0, 7), 7),
        ("heaviside", (-0.5, 7), 0.0),
        ("ldexp", (3, 2), 12.0),
        ("isclose", (math.inf, math.inf), True),
        ("isclose", (math.inf, 1.0), False),
        ("isclose", (1.0, 1.5, 0.0, 0.5), True),
        ("signbit", (-0.0,), True),
        ("isneginf", (-math.inf,), True),
        ("nan_to_num", (math.nan, 2.5), 2.5),
        ("frac", (-2.25,), -0.25),
        ("rad2deg", (0,), 0.0),
    ],
)
def test_numbers_give_a_number_at_once(name, args, value):
    found = getattr(meta, name)(*args)
    assert found == pytest.approx(value)
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("name", "args", "says"),
    [
        ("mish", (INTS,), "floating point"),
        ("mish_dx", (FLOATS, torch.ones(3)), "dy does not match"),
        ("square", (BOOLS,), "bool"),
        ("frac", (INTS,), "floating point"),
        ("hypot", (INTS, INTS), "floating point"),
        ("fmod", (BOOLS, BOOLS), "bool"),
        ("xlogy", (FLOATS, FLOATS.double()), "differ in dtype"),
        ("fmax", (INTS, 1.5), "does not fit"),
        ("isclose", (FLOATS, INTS), "differ in dtype"),
        ("logaddexp", (FLOATS, torch.ones(3)), "broadcast"),
        ("addcmul", (BOOLS, BOOLS, BOOLS), "bool"),
        ("addcmul", (INTS, INTS, INTS, 0.5), "does not fit"),
        ("addcdiv", (INTS, INTS, INTS), "floating point"),
        ("lerp", (FLOATS, FLOATS, torch.ones(3)), "broadcast"),
    ],
)
def test_what_makes_no_sense_is_refused(name, args, says):
    with meta.strict_dtypes(), pytest.raises(TypeInferError, match=says):
        getattr(meta, name)(*args)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32", "float64"])
def test_the_derivative_of_trigamma_is_a_value_of_zeta(dtype: str) -> None:
    values = torch.tensor([1e-3, 0.5, 1.0, 2.5, 40.0, 1e4, -0.5, -2.25, math.inf])
    x = meta.array(values, dtype=dtype)
    x.requires_grad = True
    meta.trigamma(x).backward(meta.ones_like(x))
    wide = values.to(x.torch().dtype).double()
    expected = torch.special.polygamma(2, wide).where(wide < math.inf, 0.0)
    tolerance = {"bfloat16": 1e-2, "float32": 1e-5, "float64": 1e-9}[dtype]
    torch.testing.assert_close(x.grad.torch().double(), expected, rtol=tolerance, atol=tolerance)
