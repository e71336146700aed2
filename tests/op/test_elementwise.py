"""What the records cannot say of elementwise operators: Python numbers, accuracy."""

import math

import pytest
import torch

import meta
from meta.dialect import only


@pytest.mark.parametrize(
    ("name", "args", "value"),
    [
        ("add", (2, 3), 5),
        ("add", (4, 5), 9),  # another value of the same types: nothing may be remembered
        ("subtract", (2, 0.5), 1.5),
        ("divide", (7, 2), 3.5),
        ("divide", (1, 0), math.inf),
        ("floor_divide", (-7, 2), -4),
        ("floor_divide", (-7.0, 0), -math.inf),
        ("remainder", (-7, 3), 2),
        ("remainder", (-4.0, 2.0), -0.0),
        ("pow", (2, 10), 1024),
        ("pow", (10.0, 400), math.inf),
        ("maximum", (2, 3.0), 3.0),
        ("minimum", (2, 3.0), 2),
        ("less", (1, 2), True),
        ("not_equal", (1, 1.0), False),
        ("logical_xor", (3, 0), True),
        ("negative", (3,), -3),
        ("logical_not", (0.0,), True),
        ("relu", (-2,), 0),
        ("log", (0,), -math.inf),
        ("sigmoid", (-1000,), 0.0),
        ("gelu", (100, "tanh"), 100.0),
        ("atanh", (1,), math.inf),
        ("atan2", (0.0, 1), 0.0),
        ("round", (2.5,), 2.0),
        ("floor", (7,), 7),
        ("sign", (-0.5,), -1.0),
        ("reciprocal", (0,), math.inf),
        ("isinf", (-math.inf,), True),
        ("clip", (5, 0, 3), 3),
        ("clip", (5, None, 3), 3),
        ("clip", (-5, 0), 0),
        ("threshold", (2, 3, 7.5), 7.5),
        ("bitwise_and", (6, 3), 2),
        ("bitwise_invert", (True,), False),
        ("bitwise_left_shift", (1, 63), -(2**63)),
        ("bitwise_right_shift", (-5, 100), -1),
    ],
)
def test_numbers_give_a_number_at_once(name, args, value):
    found = getattr(meta, name)(*args)
    assert found == value
    assert type(found) is type(value)


def test_a_number_beyond_a_narrow_integer_dtype_is_compared_exactly():
    x = torch.tensor([-128, 0, 127], dtype=torch.int8)
    for dialect in ("tvm", "torch"):
        with only(dialect):
            assert meta.less(x, 1000).numpy().all()
            assert not meta.equal(x, 256).numpy().any()


@pytest.mark.parametrize("name", ["exp", "log", "tanh", "erf", "sigmoid", "sqrt", "rsqrt"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tvm_is_accurate_over_the_whole_range(name, dtype):
    magnitude = torch.logspace(-6, 1.9, 2000, dtype=dtype)
    x = magnitude if name in ("log", "sqrt", "rsqrt") else torch.cat([magnitude, -magnitude])
    with only("tvm"):
        found = getattr(meta, name)(x).torch().double()
    expected = getattr(torch, name)(x.double())
    # Near 0 the difference of numbers near 1 keeps its absolute accuracy only.
    error = (found - expected).abs() / (expected.abs() + 0.1)
    assert error.max() <= 8 * torch.finfo(dtype).eps


NEAR_ZERO = ["sin", "tan", "asin", "atan", "sinh", "asinh", "atanh", "log1p", "expm1"]


@pytest.mark.product
@pytest.mark.parametrize("name", [*NEAR_ZERO, "cos", "cosh", "acos", "acosh", "log2", "log10"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_tvm_is_accurate_for_tiny_and_for_large_arguments(name, dtype):
    magnitude = torch.logspace(-30, 30, 4000, dtype=torch.float64)
    x = torch.cat([magnitude, -magnitude, torch.linspace(-2, 2, 4000)]).to(dtype)
    with only("tvm"):
        found = getattr(meta, name)(x).torch().double()
    expected = getattr(torch, name)(x.double())
    exact = expected.to(dtype).isfinite()
    assert torch.equal(found.isnan(), expected.isnan())
    error = (found - expected).abs()[exact]
    tiny = torch.finfo(dtype).tiny
    assert (error <= 4 * torch.finfo(dtype).eps * expected[exact].abs() + tiny).all()


def test_the_branch_not_taken_has_no_gradient():
    x = meta.array([0.0, 4.0])
    x.requires_grad = True
    y = meta.where(meta.greater(x, 0), meta.sqrt(x), meta.zeros_like(x))
    meta.where(meta.greater(x, 0), y, 0.0).backward(torch.ones(2))
    assert x.grad.numpy()[1] == pytest.approx(0.25)


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_gelu_of_infinity(dialect, dtype, approximate):
    """In as many elements as a vector has, and in one."""
    for count in (1, 33):
        x = meta.array([math.inf] * count + [math.nan, 20.0], dtype)
        with only(dialect):
            y = meta.gelu(x, approximate).torch()
        assert (y[:count] == math.inf).all() and y[-2].isnan() and y[-1] == 20.0
