"""Gradients of data values: lists and trees, shared parts, fields that nobody reads."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base import config
from meta.ir import verify
from meta.passes import autodiff, infer_type, simplify
from meta.testing import check
from meta.vm.compiler.calling_convention import module_program
from meta.vm.run.interpreter import interpret, run_module
from tests.program_text import module
from tests.vm.data_programs import SUM, SUM_BY_LOOPS, TREE

# Fields of several kinds, one of which is a tuple; the two constructors hold different ones.
BOX = """
type Box {
  Empty(int64[])
  Full(float32[2], (int64[], (float32[2], float32[2])), type Box)
  Other(float32[2])
}
"""

FIELDS = (
    BOX
    + """
func @main(%x: float32[2], %w: float32[2], %p: bool[]) -> float32[2] {
  %none: type Box = construct Empty(const int64[] 3) -> type Box
  %s: float32[2] = sin(%x)
  %b: type Box = if %p {
    %t: (float32[2], float32[2]) = (%w, %x)
    %one: type Box = construct Full(%s, (const int64[] 1, %t), %none) -> type Box
    %two: type Box = construct Full(%x, (const int64[] 2, (%s, %w)), %one) -> type Box
    yield %two
  } else {
    %o: type Box = construct Other(%w) -> type Box
    yield %o
  }
  %y: float32[2] = @read(%b)
  %z: float32[2] = @read(%b)
  %v: float32[2] = multiply(%y, %z)
  return %v
}
func @read(%b: type Box) -> float32[2] {
  %full: bool[] = is_variant Full(%b)
  %y: float32[2] = if %full {
    %f: (int64[], (float32[2], float32[2])) = get_field Full.1(%b) -> \
(int64[], (float32[2], float32[2]))
    %g: (float32[2], float32[2]) = %f.1
    %a: float32[2] = %g.1
    %h: float32[2] = get_field Full.0(%b) -> float32[2]
    %rest: type Box = get_field Full.2(%b) -> type Box
    %c: float32[2] = @read(%rest)
    %d: float32[2] = multiply(%a, %h)
    %e: float32[2] = add(%d, %c)
    yield %e
  } else {
    %other: bool[] = is_variant Other(%b)
    %k: float32[2] = if %other {
      %l: float32[2] = get_field Other.0(%b) -> float32[2]
      %m: float32[2] = exp(%l)
      yield %m
    } else {
      yield const float32[2] [2.0, 3.0]
    }
    yield %k
  }
  return %y
}""".replace("\\\n", "")
)

# What is made and read in one block, and what is made and never read.
STRAIGHT = (
    BOX
    + """
func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
  %none: type Box = construct Empty(const int64[] 3) -> type Box
  %s: float32[2] = sin(%x)
  %unread: type Box = construct Other(%s) -> type Box
  %b: type Box = construct Full(%s, (const int64[] 1, (%w, %x)), %unread) -> type Box
  %a: float32[2] = get_field Full.0(%b) -> float32[2]
  %c: float32[2] = get_field Full.0(%b) -> float32[2]
  %d: float32[2] = multiply(%a, %c)
  %e: float32[2] = multiply(%d, %w)
  return %e
}"""
)

PROGRAMS: dict[str, tuple[str, list[Any]]] = {
    "list": (SUM, [1.5, 5]),
    "list of nothing": (SUM, [1.5, 0]),
    "list by loops": (SUM_BY_LOOPS, [1.5, 5]),
    "tree": (TREE, [[1.0, 2.0], 3]),
    "fields": (FIELDS, [[0.3, 0.7], [1.5, -2.0], True]),
    "fields of another constructor": (FIELDS, [[0.3, 0.7], [1.5, -2.0], False]),
    "one block": (STRAIGHT, [[0.3, 0.7], [1.5, -2.0]]),
}


@pytest.mark.parametrize(("text", "values"), PROGRAMS.values(), ids=PROGRAMS)
def test_gradients_are_those_of_the_tape(text: str, values: list[Any]) -> None:
    program = module(text)
    args = [meta.array(v, p.type.dtype) for v, p in zip(values, program.main.params, strict=True)]
    floats = [i for i, a in enumerate(args) if a.dtype == "float32"]
    leaves = [meta.array(a.torch().clone()) for a in args]
    for i in floats:
        leaves[i].requires_grad = True
    y = interpret(module_program(program), *leaves)
    dy = meta.array(torch.linspace(1, 2, y.torch().numel()).reshape(y.shape))
    if y.requires_grad:
        y.backward(dy)
    found = autodiff(program, wrt=floats)
    verify(found, typed=True)
    with config.override(META_VERIFY=True):
        runs = [
            run_module(found, [dy, *args]),
            run_module(infer_type(simplify(found)), [dy, *args]),
        ]
        runs += [meta.vm.compile(found, dy, *args, opt_level=n)(dy, *args) for n in (0, 2)]
    for value, gradients in runs:
        check(value, y, 1e-6, 1e-6)
        for i, gradient in zip(floats, gradients, strict=True):
            tape = leaves[i].grad
            check(gradient, meta.zeros_like(args[i]) if tape is None else tape, 1e-5, 1e-5)


@pytest.mark.parametrize(("text", "values"), PROGRAMS.values(), ids=PROGRAMS)
def test_second_derivatives(text: str, values: list[Any]) -> None:
    """The gradient of a gradient, beside the difference of two gradients."""
    program = module(text)
    args = [meta.array(v, p.type.dtype) for v, p in zip(values, program.main.params, strict=True)]
    dy = meta.ones_like(interpret(module_program(program), *args))
    first = autodiff(program, wrt=[0])
    second = autodiff(infer_type(first), wrt=[1])
    verify(second, typed=True)
    zero, one = meta.zeros_like(dy), meta.ones_like(args[0])
    _, (found,) = run_module(second, [zero, one, dy, *args])
    step = 1e-2

    def slope(x: torch.Tensor) -> torch.Tensor:
        _, (gradient,) = run_module(first, [dy, meta.array(x), *args[1:]])
        return gradient.torch()

    x = args[0].torch()
    expected = (slope(x + step) - slope(x - step)) / (2 * step)
    torch.testing.assert_close(found.torch(), expected, rtol=2e-2, atol=2e-2)
