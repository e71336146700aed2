"""Kernels of Triton that tests register, on a dialect of their own, and calls of operators."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from meta import op
from meta.base.device import Device
from meta.dialect.triton import TritonDialect
from meta.ir.types import TensorType
from meta.op.core.call import CallValues

BLOCKS = [
    triton.Config({"BLOCK": 64}, num_warps=4),
    triton.Config({"BLOCK": 128}, num_warps=8, num_stages=2),
    {"BLOCK": 32, "num_warps": 1},
]


def flat(meta: Any) -> tuple[int, ...]:
    """The grid of a kernel that goes through all elements of the result."""
    return (triton.cdiv(meta["numel"], meta["BLOCK"]),)


@triton.jit
def positive(v):
    return tl.where(v > 0, v, 0.0)


@triton.jit
def relu(x, out, numel, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numel
    value = positive(tl.load(x + at, mask=inside))
    tl.store(out + at, value.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add(x1, x2, out, numel, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < numel
    value = tl.load(x1 + at, mask=inside) + tl.load(x2 + at, mask=inside)
    tl.store(out + at, value, mask=inside)


@triton.jit
def softmax(x, out, x_stride_0, x_stride_1, out_stride_0, x_size_0, x_size_1, BLOCK: tl.constexpr):
    row, column = tl.program_id(0), tl.arange(0, BLOCK)
    inside = column < x_size_1
    at = x + row * x_stride_0 + column * x_stride_1
    value = tl.load(at, mask=inside, other=-float("inf")).to(tl.float32)
    power = tl.exp(value - tl.max(value, axis=0))
    result = power / tl.sum(power, axis=0)
    tl.store(out + row * out_stride_0 + column, result.to(out.dtype.element_ty), mask=inside)


def last_axis(call: CallValues) -> str | None:
    return None if call.args.axis in (1, -1) else "made for the last axis"


def register(dialect: TritonDialect) -> None:
    """Let a dialect have the kernels of this file."""
    dialect.kernel(op.relu, grid=flat, configs=BLOCKS)(relu)
    dialect.kernel(op.add, grid=flat, configs=[{"BLOCK": 64}])(add)
    dialect.kernel(
        op.softmax,
        grid=lambda meta: (meta["x_size_0"],),
        heuristics={"BLOCK": lambda meta: triton.next_power_of_2(meta["x_size_1"])},
        when=last_axis,
    )(softmax)


def call(operator: Any, *types: TensorType, **attributes: Any) -> CallValues:
    """Return a call of an operator on types, on a GPU."""
    bound = operator.schema.bind(types, attributes, lambda value: value)
    found: CallValues = operator.call_values(bound, Device("cuda:0"))
    return found
