"""Cases of elementwise functions."""

import numpy as np
import torch
import torch.nn.functional as F
from tvm import relax as R

from tests.frontend.relax.records import RelaxCase, data

A, B = data(2, 3), data(2, 1)
UNIT = data(2, 3, low=-0.9, high=0.9)
POSITIVE = data(2, 3, low=0.5, high=3.0)
ABOVE = data(2, 3, low=1.1, high=3.0)
INTS, J = data(2, 3, low=-9, high=9, dtype="int32"), np.array([[2], [-3]], np.int32)
BITS, SHIFTS = data(2, 3, low=0, high=90, dtype="int32"), np.array([[1], [3]], np.int32)
HALVES = np.array([0.5, 1.5, 2.5, -0.5, -1.2], np.float32)
P, Q = np.array([[True], [False]]), np.array([True, False])
ODD = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)


def _case(name, function, x, *more, **kwargs):
    build = R.op
    for part in name.split("."):
        build = getattr(build, part)
    return RelaxCase(name, build, (x, *more), function, **kwargs)


CASES = [
    _case("abs", torch.abs, A),
    _case("acos", torch.acos, UNIT),
    _case("acosh", torch.acosh, ABOVE),
    _case("add", torch.add, A, B),
    _case("asin", torch.asin, UNIT),
    _case("asinh", torch.asinh, A),
    _case("atan", torch.atan, A),
    _case("atan2", torch.atan2, A, B),
    _case("atanh", torch.atanh, UNIT),
    _case("bitwise_and", torch.bitwise_and, BITS, SHIFTS),
    _case("bitwise_not", torch.bitwise_not, BITS),
    _case("bitwise_or", torch.bitwise_or, BITS, SHIFTS),
    _case("bitwise_xor", torch.bitwise_xor, BITS, SHIFTS),
    _case("ceil", torch.ceil, A),
    _case("cos", torch.cos, A),
    _case("cosh", torch.cosh, A),
    _case("divide", torch.divide, A, B),
    _case("divide", lambda a, b: torch.div(a, b, rounding_mode="trunc"), INTS, J, label="integers"),
    _case("equal", torch.eq, INTS, INTS),
    _case("erf", torch.erf, A),
    _case("exp", torch.exp, A),
    _case("floor", torch.floor, A),
    _case("floor_divide", torch.floor_divide, INTS, J),
    _case("floor_mod", torch.remainder, A, B),
    _case("greater", torch.gt, A, B),
    _case("greater_equal", torch.ge, A, B),
    _case("isfinite", torch.isfinite, ODD),
    _case("isinf", torch.isinf, ODD),
    _case("isnan", torch.isnan, ODD),
    _case("left_shift", torch.bitwise_left_shift, BITS, SHIFTS),
    _case("less", torch.lt, A, B),
    _case("less_equal", torch.le, A, B),
    _case("log", torch.log, POSITIVE),
    _case("log_add_exp", torch.logaddexp, A, B),
    _case("logical_and", torch.logical_and, P, Q),
    _case("logical_not", torch.logical_not, P),
    _case("logical_or", torch.logical_or, P, Q),
    _case("logical_xor", torch.logical_xor, P, Q),
    _case("maximum", torch.maximum, A, B),
    _case("minimum", torch.minimum, A, B),
    _case("mod", torch.fmod, INTS, J),
    _case("multiply", torch.multiply, A, B),
    _case("negative", torch.neg, A),
    _case("nn.gelu", F.gelu, A),
    _case("nn.gelu_tanh", lambda x: F.gelu(x, approximate="tanh"), A),
    _case("nn.relu", F.relu, A),
    _case("nn.selu", F.selu, A),
    _case("nn.silu", F.silu, A),
    _case("not_equal", torch.ne, INTS, J),
    _case("power", torch.pow, POSITIVE, B),
    _case("right_shift", torch.bitwise_right_shift, BITS, SHIFTS),
    _case("round", torch.round, HALVES),
    _case("rsqrt", torch.rsqrt, POSITIVE),
    _case("sigmoid", torch.sigmoid, A),
    _case("sign", torch.sign, A),
    _case("sin", torch.sin, A),
    _case("sinh", torch.sinh, A),
    _case("sqrt", torch.sqrt, POSITIVE),
    _case("square", torch.square, A),
    _case("subtract", torch.subtract, A, B),
    _case("tan", torch.tan, UNIT),
    _case("tanh", torch.tanh, A),
    _case("trunc", torch.trunc, A),
    _case("where", torch.where, P, A, B),
    _case("ewise_fma", lambda a, b, c: a * b + c, A, A, A),
    RelaxCase("clip", lambda x: R.op.clip(x, -1, 0.5), (A,), lambda x: x.clamp(-1, 0.5)),
    RelaxCase(
        "clip", lambda x: R.op.clip(x, -3, 4), (INTS,), lambda x: x.clamp(-3, 4), label="integers"
    ),
    RelaxCase(
        "clip",
        lambda x: R.op.clip(x, 0, 2**54 + 1),
        (np.array([-1, 2**54 + 1, 2**60]),),
        torch.tensor([0, 2**54 + 1, 2**54 + 1]),
        label="large integers",
    ),
    RelaxCase(
        "clip",
        lambda x: R.op.clip(x, -1000, float("inf")),
        (np.array([-128, 127], np.int8),),
        lambda x: x,
        label="beyond the dtype",
    ),
    RelaxCase(
        "nn.leakyrelu", lambda x: R.op.nn.leakyrelu(x, 0.3), (A,), lambda x: F.leaky_relu(x, 0.3)
    ),
    RelaxCase(
        "nn.softplus", lambda x: R.op.nn.softplus(x, 2.0, 3.0), (A,), lambda x: F.softplus(x, 2, 3)
    ),
    RelaxCase("nn.prelu", lambda x, w: R.op.nn.prelu(x, w, 1), (A, data(3)), F.prelu),
    RelaxCase(
        "nn.prelu",
        lambda x, w: R.op.nn.prelu(x, w, 0),
        (A, data(2)),
        lambda x, w: torch.where(x > 0, x, x * w[:, None]),
        label="axis 0",
    ),
]
