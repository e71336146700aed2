"""Kernels of several operators keep the arithmetic of floats, which is not that of real numbers."""

from __future__ import annotations

from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch
from tvm import te, tirx

import meta
from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.floats import subtracted, unsimplified
from meta.dialect.tvm.llvm_code import nearest
from meta.dialect.tvm.lower import prim_func
from meta.model import trace

X = [nan, inf, -inf, 0.0, 1.0, -2.0, -0.0, 3.0]
Y = [nan, 1.0, inf, nan, 1.0, -3.0, 0.0, 4.0]

# What TVM's simplifier would do to it is in the comment.
PROGRAMS: dict[str, Callable[[Any, Any], Any]] = {
    "x - x": lambda x, y: (x - x) + 1.0,  # 1
    "of a value": lambda x, y: op.tanh(x) - op.tanh(x) + y,  # y
    "(x + c) - c": lambda x, y: (x + 2048.0) - 2048.0,  # x, not rounded
    "(x - c) + c": lambda x, y: (x - 2048.0) + 2048.0,
    "(x + y) - x": lambda x, y: ((x + 4096.0) + y) - (x + 4096.0),  # y
    "lost digits": lambda x, y: ((x + y) - x) - y,  # 0: Kahan's sum does nothing
    "(x - y) + y": lambda x, y: op.add(op.subtract(x, y), y),  # x
    "x == x": lambda x, y: op.where(op.equal(x, x), x, 1.0) + 1.0,  # always true
    "x != x": lambda x, y: op.where(op.not_equal(x, x), 5.0, x) + 1.0,  # always false
    "not <": lambda x, y: op.where(op.logical_not(op.less(x, y)), x, 7.0),  # y <= x
    "not <=": lambda x, y: op.where(op.logical_not(op.less_equal(x, y)), x, 7.0),
    "not >": lambda x, y: op.where(op.logical_not(op.greater(x, y)), x, 7.0),
    "not >=": lambda x, y: op.where(op.logical_not(op.greater_equal(x, y)), x, 7.0),
    "not ==": lambda x, y: op.where(op.logical_not(op.equal(x, y)), 6.0, 7.0),
    "not !=": lambda x, y: op.where(op.logical_not(op.not_equal(x, y)), 6.0, 7.0),
    "< or >": lambda x, y: op.where(op.logical_or(op.less(x, y), op.less(y, x)), 6.0, 7.0),
    "<= and >=": lambda x, y: op.where(
        op.logical_and(op.less_equal(x, y), op.less_equal(y, x)), 6.0, 7.0
    ),
    "< xor >=": lambda x, y: op.where(
        op.logical_xor(op.less(x, y), op.greater_equal(x, y)), 6.0, 7.0
    ),
    "mse": lambda x, y: op.mse_loss(x, x, reduction="none") + y,
    "huber": lambda x, y: op.huber_loss(x, x, reduction="sum") + y,
    "compared": lambda x, y: op.equal(op.less(x, y), op.less(y, x)),
    # What TVM's bfloat16 would do: nothing, between operators.
    "products": lambda x, y: (x * 1.7) * (x + 0.3) * y + x,
    "there and back": lambda x, y: (
        op.astype(op.astype(op.astype(x, "float32") * 1.7, "bfloat16"), "float32") * 2.0
    ),
    "integers": lambda x, y: (
        op.astype(op.astype(op.astype(x * 100.3, "int32") * 3, "bfloat16"), "float32") + 1.0
    ),
    "ten": lambda x, y: 0.5 * x * (1.0 + op.tanh(0.8 * (x + 0.0447 * x * x * x))) * y,
}  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "bfloat16"])
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.long
def test_compiled_is_eager(name: str, dtype: str) -> None:
    """The same operators, one kernel each and all in one."""
    program = PROGRAMS[name]
    x, y = (meta.ndarray(torch.tensor(v, dtype=getattr(torch, dtype))) for v in (X, Y))
    with meta.dialect.only("tvm"):
        expected = program(x, y).torch()
        run = meta.vm.compile(trace(program), x, y, opt_level=3)
        assert sum(line.count("@fused_") for line in str(run.module).splitlines()) <= 2
        found = run(x, y).torch()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


def test_the_forms() -> None:
    a, b = (te.placeholder((4,), "float32", name) for name in "ab")
    n = te.placeholder((4,), "int32", "n")
    difference = te.compute((4,), lambda i: a[i] - b[i])
    same = te.compute((4,), lambda i: tirx.EQ(a[i], b[i]))
    whole = te.compute((4,), lambda i: n[i] - n[3 - i])
    function = prim_func([a, b, n], [difference, same, whole])
    text = function.script()
    assert "] + b[v_i] * T.float32(-1.0)" in text
    assert "] == b[v_i] * T.float32(-1.0) * T.float32(-1.0)" in text
    assert 'T.Cast("int8"' in text
    assert "meta_wrapping_sub(n[v_i], n[3 - v_i])" in text  # see `integers`
    x, y = tirx.Var("x", "float32"), tirx.Var("y", "float32")
    assert subtracted(x + y) is None
    assert subtracted(unsimplified(x - y))[0].same_as(x)


def test_a_cast_to_the_dtype_of_a_tensor() -> None:
    """It is no str, but names a floating point dtype all the same: nothing is truncated."""
    half = te.placeholder((4,), "float16", "half")
    found = cast(tirx.Var("x", "float32"), half.dtype)
    assert str(found) == 'T.Cast("float16", x)'


def test_rounding_to_bfloat16_in_a_kernel() -> None:
    """Ties, the largest numbers, denormal ones, NaNs of any bits, in vectors and alone."""
    words = [0x3F808000, 0x3F818000, 0x3F808001, 0x3F807FFF, 0x7F7FFFFF, 0x7F7F7FFF, 0x7F800000]
    words += [0x7FFFFFFF, 0x7F800001, 0x7FC00000, 0x00000001, 0x00008000, 0x00018000, 0x007FFFFF]
    bits = torch.tensor([w - (s << 31) for w in words for s in (0, 1)] * 3, dtype=torch.int64)
    x = bits.to(torch.int32).view(torch.float32)
    program = trace(
        lambda x: op.negative(op.astype(op.astype(op.negative(x), "bfloat16"), "float32"))
    )
    expected = x.bfloat16().float()
    with meta.dialect.only("tvm"):
        for given in (x, x[:16], x[:5]):
            found = meta.vm.compile(program, meta.ndarray(given), opt_level=3)(meta.ndarray(given))
            wanted = expected[: len(given)]
            torch.testing.assert_close(found.torch(), wanted, rtol=0, atol=0, equal_nan=True)
            is_number = ~wanted.isnan()
            assert torch.equal(found.torch().signbit()[is_number], wanted.signbit()[is_number])


@pytest.mark.parametrize("value", [0.1, -3.14159, 1e-40, 3.3895e38, 65535.0, inf, nan])
def test_constants_of_bfloat16(value: float) -> None:
    expected = torch.tensor(value).bfloat16().item()
    assert nearest(value) == expected or value != value


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_log_softmax_in_half_precision(dtype: str) -> None:
    x = torch.zeros(4, 6, dtype=getattr(torch, dtype))
    with meta.dialect.only("tvm"):
        found = op.log_softmax(meta.ndarray(x), axis=0).torch()
    torch.testing.assert_close(found, x.log_softmax(0))
