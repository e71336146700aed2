"""Bitwise operators and shifts on ATen, which defines shifts beyond the bits as we do."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import number


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
