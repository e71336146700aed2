"""Comparisons, logical operators, bits and classes of floats on ATen."""

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.arithmetic import tensors_of
from meta.dialect.torch.operands import as_operands, compact, number, own_dtype


def _like(out, *operands):
    return [
        x if isinstance(x, torch.Tensor) else number(x, None, out.device).to(out.dtype)
        for x in operands
    ]


@dialect.kernel(op.bitwise_and)
def bitwise_and(x1, x2, out):
    torch.bitwise_and(*_like(out, x1, x2), out=out)


@dialect.kernel(op.bitwise_or)
def bitwise_or(x1, x2, out):
    torch.bitwise_or(*_like(out, x1, x2), out=out)


@dialect.kernel(op.bitwise_xor)
def bitwise_xor(x1, x2, out):
    torch.bitwise_xor(*_like(out, x1, x2), out=out)


@dialect.kernel(op.bitwise_not)
def bitwise_not(x, out):
    torch.bitwise_not(x, out=out)


def _amount(x, out):
    """An amount given as a number: one beyond int8 must not wrap to a small one."""
    if isinstance(x, torch.Tensor):
        return x
    return number(x if 0 <= x < 64 else 64, None, out.device).to(out.dtype)


@dialect.kernel(op.left_shift)
def left_shift(x1, x2, out):
    torch.bitwise_left_shift(*_like(out, x1), _amount(x2, out), out=out)


@dialect.kernel(op.right_shift)
def right_shift(x1, x2, out):
    torch.bitwise_right_shift(*_like(out, x1), _amount(x2, out), out=out)


@dialect.kernel(op.reinterpret)
def reinterpret(x, dtype):
    return x.view(TO_TORCH[dtype]).clone()


@compact(op.isnan)
def isnan(x):
    return torch.isnan(x)


@compact(op.isinf)
def isinf(x):
    return torch.isinf(x)


@compact(op.isfinite)
def isfinite(x):
    return torch.isfinite(x)


@compact(op.isposinf)
def isposinf(x):
    return torch.isposinf(x)


@compact(op.isneginf)
def isneginf(x):
    return torch.isneginf(x)


@compact(op.signbit)
def signbit(x):
    return torch.signbit(x)


def _compare(function, x1, x2, out):
    own = own_dtype(x1, x2)
    numbers = not (isinstance(x1, torch.Tensor) and isinstance(x2, torch.Tensor))
    if numbers and not own.is_floating_point and own != torch.bool:
        own = torch.int64  # a Python int is not squeezed into a narrow integer dtype
    function(*as_operands(own, out, x1, x2), out=out)


@dialect.kernel(op.less)
def less(x1, x2, out):
    _compare(torch.lt, x1, x2, out)


@dialect.kernel(op.less_equal)
def less_equal(x1, x2, out):
    _compare(torch.le, x1, x2, out)


@dialect.kernel(op.greater)
def greater(x1, x2, out):
    _compare(torch.gt, x1, x2, out)


@dialect.kernel(op.greater_equal)
def greater_equal(x1, x2, out):
    _compare(torch.ge, x1, x2, out)


@dialect.kernel(op.equal)
def equal(x1, x2, out):
    _compare(torch.eq, x1, x2, out)


@dialect.kernel(op.not_equal)
def not_equal(x1, x2, out):
    _compare(torch.ne, x1, x2, out)


@dialect.kernel(op.logical_and)
def logical_and(x1, x2, out):
    torch.logical_and(*as_operands(torch.bool, out, x1, x2), out=out)


@dialect.kernel(op.logical_or)
def logical_or(x1, x2, out):
    torch.logical_or(*as_operands(torch.bool, out, x1, x2), out=out)


@dialect.kernel(op.logical_xor)
def logical_xor(x1, x2, out):
    torch.logical_xor(*as_operands(torch.bool, out, x1, x2), out=out)


@dialect.kernel(op.where)
def where(condition, x, y, out):
    torch.where(condition != 0, *as_operands(out.dtype, out, x, y), out=out)


@dialect.kernel(op.isclose)
def isclose(x1, x2, rtol, atol, equal_nan, out):
    own = next(x.dtype for x in (x1, x2) if isinstance(x, torch.Tensor))
    a, b = tensors_of(own if own.is_floating_point else torch.float64, x1, x2)
    distance = (a - b).abs()  # `torch.isclose` refuses tolerances below 0 and NaN
    near = (distance <= atol + rtol * b.abs()) & (distance < torch.inf)
    both_nan = a.isnan() & b.isnan() if equal_nan else near
    torch.logical_or((a == b) | near, both_nan, out=out)


@compact(op.logical_not)
def logical_not(x):
    return torch.logical_not(x)
