"""Comparisons, logical operators, bits and classes of floats on ATen."""

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.aten_calls import functions_of
from meta.dialect.torch.operands import (
    as_operands,
    number,
    of_binary,
    of_unary,
    own_dtype,
    rounded_number,
    wide,
)

of_unary(functions_of(op.isnan, op.isinf, op.isfinite, op.isposinf, op.isneginf))
of_unary(functions_of(op.signbit, op.logical_not))


def _like(out, *operands):
    return [
        x if isinstance(x, torch.Tensor) else rounded_number(x, out.dtype, out.device)
        for x in operands
    ]


def _of_bits(function, x1, x2, out):
    function(*_like(out, x1, x2), out=out)


of_binary(functions_of(op.bitwise_and, op.bitwise_or, op.bitwise_xor), _of_bits)


@dialect.kernel(op.bitwise_invert)
def bitwise_invert(x, out):
    torch.bitwise_not(x, out=out)


def _amount(x):
    """An amount given as a number: one beyond int8 must not wrap to a small one."""
    return x if isinstance(x, torch.Tensor) or 0 <= x < 64 else 64


def _shifted(function, x1, x2, out):
    function(*_like(out, x1, _amount(x2)), out=out)


of_binary(functions_of(op.bitwise_left_shift, op.bitwise_right_shift), _shifted)


@dialect.kernel(op.reinterpret)
def reinterpret(x, dtype):
    return x.view(TO_TORCH[dtype]).clone()


LEAST = -(2**63)


def _ordered(x, out):
    """Return numbers without a sign as int64 of the same order; a negative one, which is below
    all, cannot be one.
    """
    if isinstance(x, torch.Tensor):
        return x.view(torch.int64) ^ LEAST
    return number(x + LEAST, torch.int64, out.device)


def _compared(function, x1, x2, out):
    own = own_dtype(x1, x2)
    if own == torch.uint64:  # of which ATen has no order
        below = [not isinstance(x, torch.Tensor) and x < 0 for x in (x1, x2)]
        if any(below):
            signs = [number(-int(b), torch.int64, out.device) for b in below]
            out.copy_(function(*signs))
        else:
            function(_ordered(x1, out), _ordered(x2, out), out=out)
        return
    numbers = not (isinstance(x1, torch.Tensor) and isinstance(x2, torch.Tensor))
    whole = not (own.is_floating_point or own.is_complex or own == torch.bool)
    if numbers and whole:
        own = torch.int64  # a Python int is not squeezed into a narrow integer dtype
    function(*as_operands(own, out, x1, x2), out=out)


of_binary(
    functions_of(*(op.less, op.less_equal, op.greater, op.greater_equal, op.equal, op.not_equal)),
    _compared,
)


def _of_bools(function, x1, x2, out):
    function(*as_operands(torch.bool, out, x1, x2), out=out)


of_binary(functions_of(op.logical_and, op.logical_or, op.logical_xor), _of_bools)


@dialect.kernel(op.where)
def where(condition, x, y, out):
    x, y = as_operands(out.dtype, out, x, y)
    if out.dtype == torch.uint64:  # torch 2.11 has no `where` of it; elements are only moved
        x, y, out = (t.view(torch.int64) for t in (x, y, out))
    torch.where(condition != 0, x, y, out=out)


@dialect.kernel(op.isclose)
def isclose(x1, x2, rtol, atol, equal_nan, out):
    own = own_dtype(x1, x2)
    a, b = as_operands(wide(own) if own.is_floating_point else torch.float64, out, x1, x2)
    distance = (a - b).abs()  # `torch.isclose` refuses tolerances below 0 and NaN
    near = (distance <= atol + rtol * b.abs()) & (distance < torch.inf)
    both_nan = a.isnan() & b.isnan() if equal_nan else near
    torch.logical_or((a == b) | near, both_nan, out=out)
