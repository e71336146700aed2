"""Elementwise operators of two operands on ATen.

Every kernel fills the result given to it, which makes it compact whatever the operands' strides.
Operands are first brought to the dtype in which they are to be computed, numbers as 0-d tensors.
"""

import torch

from meta import op
from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.dialect.torch import torch as dialect
from meta.ir.types import TensorType
from meta.op.core.check import common_dtype

_HALF = (torch.float16, torch.bfloat16)


def _meet(x1, x2):
    """Return the common dtype of two operands."""
    types = [
        TensorType((), FROM_TORCH[x.dtype]) if isinstance(x, torch.Tensor) else x for x in (x1, x2)
    ]
    return TO_TORCH[common_dtype(*types)]


def _as(dtype, *operands):
    device = next(x.device for x in operands if isinstance(x, torch.Tensor))
    return [
        x.to(dtype) if isinstance(x, torch.Tensor) else torch.tensor(x, dtype=dtype, device=device)
        for x in operands
    ]


def _wide(dtype):
    """The dtype in which to compute: of half precision float32."""
    return torch.float32 if dtype in _HALF else dtype


def _arithmetic(function, x1, x2, out):
    function(*_as(_wide(_meet(x1, x2)), x1, x2), out=out)


def _written_into(function, x1, x2, out, where, out_):
    common = _meet(x1, x2)
    value = function(*_as(_wide(common), x1, x2)).to(common)
    if out is None:
        out_.copy_(value)
    elif where is None:
        out_.copy_(value.expand_as(out_))
    else:
        torch.where(where != 0, value.to(out.dtype), out, out=out_)


@dialect.kernel(op.add)
def add(x1, x2, out, where, out_):
    _written_into(torch.add, x1, x2, out, where, out_)


@dialect.kernel(op.subtract)
def subtract(x1, x2, out, where, out_):
    _written_into(torch.sub, x1, x2, out, where, out_)


@dialect.kernel(op.multiply)
def multiply(x1, x2, out):
    _arithmetic(torch.mul, x1, x2, out)


@dialect.kernel(op.divide)
def divide(x1, x2, out):
    torch.div(*_as(_wide(out.dtype), x1, x2), out=out)


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
    x1, x2 = _as(_wide(_meet(x1, x2)), x1, x2)
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


@dialect.kernel(op.mod)
def mod(x1, x2, out):
    _divided(torch.remainder, x1, x2, out, torch.zeros_like)


def _compare(function, x1, x2, out):
    common = _meet(x1, x2)
    numbers = not (isinstance(x1, torch.Tensor) and isinstance(x2, torch.Tensor))
    if numbers and not common.is_floating_point and common != torch.bool:
        common = torch.int64  # a Python int is not squeezed into a narrower tensor's dtype
    function(*_as(common, x1, x2), out=out)


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
    torch.logical_and(*_as(torch.bool, x1, x2), out=out)


@dialect.kernel(op.logical_or)
def logical_or(x1, x2, out):
    torch.logical_or(*_as(torch.bool, x1, x2), out=out)


@dialect.kernel(op.logical_xor)
def logical_xor(x1, x2, out):
    torch.logical_xor(*_as(torch.bool, x1, x2), out=out)


@dialect.kernel(op.where)
def where(condition, x, y, out):
    _, x, y = _as(out.dtype, out, x, y)  # out says on which device numbers are needed
    torch.where(condition != 0, x, y, out=out)
