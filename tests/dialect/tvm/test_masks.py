"""Indices that are remainders by powers of two, in loops that LLVM vectorises: none is lost."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.dialect.tvm import llvm_code
from meta.dialect.tvm.llvm_code import hidden
from meta.model import trace

SHAPES = [(3, 8, 2), (2, 2, 8, 8), (4, 16), (2, 4, 4)]
TIMES = {
    len(s): [t for t in itertools.product((1, 2, 3), repeat=len(s)) if max(t) > 1] for s in SHAPES
}


def check(program: Any, x: torch.Tensor, expected: torch.Tensor) -> None:
    with meta.dialect.prefer("tvm"):
        run = meta.vm.compile(trace(program), meta.ndarray(x))
        found = run(meta.ndarray(x)).torch()
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


def numbers(shape: tuple[int, ...], dtype: str) -> torch.Tensor:
    return (
        torch.arange(torch.Size(shape).numel())
        .remainder(50)
        .reshape(shape)
        .to(getattr(torch, dtype))
    )


@pytest.mark.product
@pytest.mark.parametrize("dtype", ["float32", "uint8", "int64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_tiles(shape: tuple[int, ...], dtype: str) -> None:
    """The last ones of x[2, 2, 8, 8] were read behind its end."""
    x = numbers(shape, dtype)
    times = TIMES[len(shape)][:: 1 if len(shape) < 4 else 7]

    def tiles(x: Any) -> Any:
        return tuple(op.divide(op.tile(x, t), 2) for t in times)

    with meta.dialect.prefer("tvm"):
        found = meta.vm.compile(trace(tiles), meta.ndarray(x))(meta.ndarray(x))
    for t, y in zip(times, found, strict=True):
        torch.testing.assert_close(y.torch(), x.repeat(t) / 2, rtol=0, atol=0, msg=str(t))


@pytest.mark.parametrize("shape", SHAPES[:2], ids=str)
def test_what_is_rolled_and_repeated(shape: tuple[int, ...]) -> None:
    x = numbers(shape, "float32")
    for axis in range(len(shape)):
        check(lambda x, a=axis: op.roll(x, 3, a) * 2.0, x, x.roll(3, axis) * 2)
        check(lambda x, a=axis: op.repeat(x, 2, a) * 2.0, x, x.repeat_interleave(2, axis) * 2)


def test_only_scalars_and_powers_of_two() -> None:
    from tvm.script import tirx as T

    @T.prim_func(private=True, check_well_formed=False)
    def function(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32")):
        for i in range(64):
            y[i] = x[i % 8] + x[i % 6] + T.Cast("float32", i % 4)

    text = hidden(function).script()
    assert "x[T.meta_masked(i, 7)] + x[i % 6]" in text and "i % 4" in text


def test_names_of_remainders() -> None:
    """What several indices share has a name, and any integer dtype, which has no sign in LLVM."""
    from tvm.script import tirx as T

    @T.prim_func(private=True, check_well_formed=False)
    def function(x: T.Buffer((64,), "uint64"), y: T.Buffer((64,), "uint64")):
        for i in range(64):
            rest: T.let[T.uint64] = x[i] % T.uint64(8)
            y[i] = rest * rest

    made = llvm_code.with_definitions(hidden(function))
    assert "T.meta_masked(x[i], T.uint64(7))" in made.script()
    assert "define i64 @meta_masked_uint64x1(i64 %x, i64 %mask)" in made.body.value.value
