"""Integers that leave the range of their dtype wrap around, also where several operators are one
kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tvm import te

import meta
from meta import op
from meta.dialect.tvm import integers
from meta.dialect.tvm.lower import prim_func
from meta.model import trace
from meta.testing.emulator.generated import emulated

# What whole numbers would give is in the comment.
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "x + 1 > x": lambda x, y: op.greater(x + 1, x),  # true
    "x - 1 <= x": lambda x, y: op.less_equal(x - 1, x),
    "-x < 1 - x": lambda x, y: op.less(op.negative(x), op.subtract(1, x)),
    "square": lambda x, y: op.greater_equal(x * x, 0),
    "max": lambda x, y: op.maximum(x + 1, x),  # x + 1
    "min": lambda x, y: op.minimum(x * 2, x * 2 + 1),
    "x * 2 // 2": lambda x, y: op.floor_divide(x * 2, 2),  # x
    "(6x + 1) % 3": lambda x, y: op.remainder(x * 6 + 1, 3),  # 1
    "fmod": lambda x, y: op.fmod(x * 6 + 1, 3),
    "hash": lambda x, y: op.remainder((x + 1) * 103 + y * 37, 101),
    "3x == 3y": lambda x, y: op.equal(x * 3, y * 3),
    "shifts": lambda x, y: op.bitwise_right_shift(op.bitwise_left_shift(x, 3), 3),
    "not": lambda x, y: op.astype(op.bitwise_invert(x), "int64"),  # -1 - x, in 32 bits
    "widened sum": lambda x, y: op.astype(x + y, "int64"),
    "widened difference": lambda x, y: op.astype(x - y, "float64"),
    "widened product": lambda x, y: op.remainder(op.astype(x * y, "int64"), 7),
    "narrow": lambda x, y: op.astype(op.astype(x, "int8") + op.astype(y, "int8"), "int64"),
    "there and back": lambda x, y: op.equal(op.astype(op.astype(x, "int8"), str(x.dtype)), x),
    "of positions": lambda x, y: op.remainder(op.arange(0, 12, 1, str(x.dtype)) * x * x + y, 11),
    "index": lambda x, y: op.take(x + x, op.remainder(op.astype(y * 5, "int64"), 12)),
}
DTYPES = ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32"]


def extremes(dtype: str) -> np.ndarray:
    range_ = np.iinfo(dtype)
    large = [range_.max, range_.max - 1, range_.max // 2 + 1, range_.max // 3 + 1]
    small = [range_.min, range_.min + 1, range_.min // 2, 0, 1, 5, 7, range_.max // 4 * 3]
    return np.array(large + small, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.long
def test_compiled_is_eager(name: str, dtype: str) -> None:
    values, program = extremes(dtype), PROGRAMS[name]
    x, y = meta.array(values, dtype), meta.array(values[::-1].copy(), dtype)
    with meta.dialect.prefer("torch"):
        expected = program(x, y).torch()
    with meta.dialect.prefer("tvm"):
        torch.testing.assert_close(program(x, y).torch(), expected, rtol=0, atol=0)
        found = meta.vm.compile(trace(program), x, y, opt_level=3)(x, y).torch()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


# On numbers a, b of the dtype, then read as an int64.
EXPRESSIONS: dict[str, Callable[[Any, Any], Any]] = {
    "a + b": lambda a, b: a + b,
    "a - b": lambda a, b: a - b,
    "a * b": lambda a, b: a * b,
    "~a": lambda a, b: ~a,
    "a << 3": lambda a, b: a << 3,
    "(a + b) // 2": lambda a, b: (a + b) // 2,
    "((a ^ b) - a) >> 1": lambda a, b: ((a ^ b) - a) >> 1,
}


@pytest.mark.parametrize("dtype", DTYPES)
def test_cuda_source(dtype: str) -> None:
    """CUDA computes narrow integers in 32 bits, and takes wide ones for numbers that fit."""
    values = extremes(dtype)
    a, b = (te.placeholder(values.shape, dtype, name) for name in "ab")

    def output(expression: Callable[[Any, Any], Any]) -> te.Tensor:
        value = te.compute(values.shape, lambda i: expression(a[i], b[i]), name="value")
        return te.compute(values.shape, lambda i: value[i].astype("int64"), name="read")

    outputs = list(map(output, EXPRESSIONS.values()))
    found = [torch.empty(values.shape, dtype=torch.int64) for _ in outputs]
    others = values[::-1].copy()
    given = map(torch.from_numpy, (values, others))
    emulated(prim_func([a, b], outputs))(*given, *found)
    for (name, expression), result in zip(EXPRESSIONS.items(), found, strict=True):
        expected = torch.from_numpy(expression(values, others).astype(np.int64))
        torch.testing.assert_close(result, expected, rtol=0, atol=0, msg=name)


def test_what_stays() -> None:
    """Loop variables, indices and steps of reductions, which schedules look into."""
    x = te.placeholder((8, 4), "int32", "x")
    k = te.reduce_axis((0, 4), "k")
    total = te.compute((8,), lambda i: te.sum(x[i, k], axis=k), name="total")
    moved = te.compute((8,), lambda i: total[(i + x[i, 0] * 2) % 8] * (i * 3 + 1), name="moved")
    made = prim_func([x], [moved]).script()
    assert made.count(integers.MULTIPLY.removeprefix("tirx.")) == 1
    assert "meta_wrapping_add" not in made
