"""Elementwise operators of two operands on ATen.

Every kernel fills the result given to it, which makes it compact whatever the operands' strides.
Operands are first brought to the dtype in which they are to be computed, numbers as 0-d tensors.
"""

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import as_operands, own_dtype, wide


def _arithmetic(function, x1, x2, out):
    function(*as_operands(wide(out.dtype), out, x1, x2), out=out)


def _where_true(function, x1, x2, otherwise, where, out):
    if otherwise is None:
        _arithmetic(function, x1, x2, out)
        return
    own = own_dtype(x1, x2, otherwise)  # in which the sum is rounded before otherwise takes it
    value = function(*as_operands(wide(own), otherwise, x1, x2)).to(own)
    if where is None:
        out.copy_(value.expandas_operands(out))
    else:
        torch.where(where != 0, value.to(otherwise.dtype), otherwise, out=out)


@dialect.kernel(op.add)
def add(x1, x2, otherwise, where, out):
    _where_true(torch.add, x1, x2, otherwise, where, out)


@dialect.kernel(op.subtract)
def subtract(x1, x2, otherwise, where, out):
    _where_true(torch.sub, x1, x2, otherwise, where, out)


@dialect.kernel(op.multiply)
def multiply(x1, x2, out):
    _arithmetic(torch.mul, x1, x2, out)


@dialect.kernel(op.divide)
def divide(x1, x2, out):
    torch.div(*as_operands(wide(out.dtype), out, x1, x2), out=out)


@dialect.kernel(op.power)
def power(x1, x2, out):
    _arithmetic(torch.pow, x1, x2, out)


@dialect.kernel(op.maximum)
def maximum(x1, x2, out):
    _arithmetic(torch.maximum, x1, x2, out)


@dialect.kernel(op.minimum)
def minimum(x1, x2, out):
    _arithmetic(torch.minimum, x1, x2, out)


def _divided(function, x1, x2, out, by_minus_one):
    """Divide integers without the two cases on which processors trap: by 0, and the least by -1."""
    x1, x2 = as_operands(wide(out.dtype), out, x1, x2)
    if x2.dtype.is_floating_point:
        function(x1, x2, out=out)
        return
    zero, minus_one = x2 == 0, x2 == (-1 if x2.dtype.is_signed else 0)
    out.copy_(function(x1, x2.masked_fill(zero | minus_one, 1)))
    torch.where(minus_one, by_minus_one(x1), out, out=out)
    out.masked_fill_(zero, 0)


@dialect.kernel(op.floor_divide)
def floor_divide(x1, x2, out):
    _divided(torch.floor_divide, x1, x2, out, torch.neg)


# By measurement: docs/performance.md.
@dialect.kernel(op.mod, plevel={"cpu": LIBRARY})
def mod(x1, x2, out):
    _divided(torch.remainder, x1, x2, out, torch.zeros_like)


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
