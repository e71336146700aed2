"""Arithmetic on ATen.

Every kernel fills the result given to it, which makes it compact whatever the operands' strides.
Operands are first brought to the dtype in which they are to be computed, numbers as 0-d tensors.
"""

from functools import partial

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.core.kernel_signature import bind_kernel
from meta.dialect.core.openv import OpEnv
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.aten_calls import functions_of
from meta.dialect.torch.operands import (
    as_operands,
    binary_kernel,
    kernels,
    of_binary,
    of_rounded,
    of_unary,
    own_dtype,
    rounded_numbers,
    wide,
)

of_unary(functions_of(op.negative))
of_binary(functions_of(op.multiply, op.divide, op.maximum, op.minimum, op.copysign, op.hypot))
of_binary(functions_of(op.fmax, op.fmin, op.logaddexp, op.logaddexp2))


def _power(x1, x2, out):
    if out.dtype != torch.uint64:
        torch.pow(x1, x2, out=out)
        return
    # ATen has no powers of these. By squaring; the low bits of products have no sign.
    base, exponent = x1.view(torch.int64), x2.view(torch.int64)
    found = torch.ones(out.shape, dtype=torch.int64, device=out.device)
    for bit in range(64):
        found = torch.where((exponent >> bit) & 1 == 1, found * base, found)
        base = base * base
    out.copy_(found.view(torch.uint64))


of_binary({op.pow: _power}, of_rounded)


@dialect.kernel(op.abs, strided=False)
def abs(x):
    return x.clone() if x.dtype == torch.bool else torch.abs(x)


def _where_true(function, x1, x2, otherwise, where, out):
    own = own_dtype(x1, x2, otherwise)  # in which the sum is rounded before otherwise takes it
    value = function(*as_operands(wide(own), otherwise, x1, x2)).to(own)
    torch.where(where != 0, value.to(otherwise.dtype), otherwise, out=out)


def _sum_or_difference(function):
    plain, chosen = binary_kernel(function), partial(_where_true, function)

    def make(call):
        if call.args.otherwise is None:
            return plain(call)
        return OpEnv(bind_kernel(chosen, call), allocates=False, strided=True)

    return make


dialect.op(op.add)(_sum_or_difference(torch.add))
dialect.op(op.subtract)(_sum_or_difference(torch.sub))


def _divided(function, by_minus_one, x1, x2, out):
    """Divide integers without the two cases on which processors trap: by 0, and the least by -1."""
    x1, x2 = as_operands(wide(out.dtype), out, x1, x2)
    if x2.dtype.is_floating_point:
        function(x1, x2, out=out)
        return
    zero, minus_one = x2 == 0, x2 == (-1 if x2.dtype.is_signed else 0)
    out.copy_(function(x1, x2.masked_fill(zero | minus_one, 1)))
    torch.where(minus_one, by_minus_one(x1), out, out=out)
    out.masked_fill_(zero, 0)


def _of_rounded(function, x1, x2, out):
    x1, x2 = rounded_numbers(out, x1, x2)
    _divided(function, torch.zeros_like, x1, x2, out)


@dialect.kernel(op.floor_divide)
def floor_divide(x1, x2, out):
    (x1,) = rounded_numbers(out, x1)
    _divided(torch.floor_divide, torch.neg, x1, x2, out)


kernels({op.fmod: partial(_of_rounded, torch.fmod)})
# By measurement: docs/measurements.md.
kernels({op.remainder: partial(_of_rounded, torch.remainder)}, plevel={"cpu": LIBRARY})


@dialect.kernel(op.heaviside)
def heaviside(x1, x2, out):
    out.copy_(torch.heaviside(*as_operands(wide(out.dtype), out, x1, x2)))


@dialect.kernel(op.ldexp)
def ldexp(x1, x2, out):
    x1, x2 = as_operands(wide(out.dtype), out, x1, x2)
    torch.mul(x1, torch.exp2(x2), out=out)


@dialect.kernel(op.nextafter)
def nextafter(x1, x2, out):
    torch.nextafter(x1, x2, out=out)  # in the dtype itself, whose numbers are counted


def _in_wide(*tensors):
    return [t.to(wide(t.dtype)) for t in tensors]


def _with_term(function, x, tensor1, tensor2, value, out):
    out.copy_(function(*_in_wide(x, tensor1, tensor2), value=value))


kernels(
    {op.addcmul: partial(_with_term, torch.addcmul), op.addcdiv: partial(_with_term, torch.addcdiv)}
)


@dialect.kernel(op.lerp)
def lerp(x, end, weight, out):
    weights = _in_wide(weight) if isinstance(weight, torch.Tensor) else [weight]
    out.copy_(torch.lerp(*_in_wide(x, end), *weights))


BEYOND = 32
"""The shift to the right from which on every product rounds to 0."""


def _int64(x, like):
    return torch.as_tensor(x, device=like.device).to(torch.int64)


@dialect.kernel(op.fixed_point_multiply)
def fixed_point_multiply(x, multiplier, shift, rounding, out):
    shift = _int64(shift, x)
    left, right = shift.clamp(min=0), (-shift).clamp(0, BEYOND)
    product = (x.to(torch.int64) << left) * _int64(multiplier, x)
    half = torch.ones_like(right) << (right + 30)
    if rounding == "nearest":
        half = half - (product < 0).to(torch.int64)
    out.copy_((product + half) >> (right + 31))


@dialect.kernel(op.fixed_point_number)
def fixed_point_number(x):
    fraction, shift = torch.frexp(x)
    scaled = fraction * 2.0**31
    whole = torch.trunc(scaled + torch.copysign(torch.full_like(scaled, 0.5), scaled))
    carry = whole.abs() == 2.0**31
    return torch.where(carry, whole / 2, whole).to(torch.int32), shift + carry.to(torch.int32)


@dialect.kernel(op.bias_add)
def bias_add(x, bias, axis, out):
    shape = [1] * x.ndim
    shape[axis] = -1
    torch.add(x, bias.reshape(shape), out=out)
