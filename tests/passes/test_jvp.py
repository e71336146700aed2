"""Tangents of calls, loops, conditionals and closures. The oracle is the tape, that goes back:
``dy · (J dx) = (dy J) · dx``.
"""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base.errors import GradientError
from meta.ir import structural_equal, verify
from meta.passes import infer_type, jvp
from tests.passes.test_autodiff_control_flow import (
    PROGRAMS,
    arguments,
    by_tape,
    flat,
    optimized,
    run,
    run_compiled,
)
from tests.program_text import module, names


@pytest.mark.parametrize(("text", "values"), PROGRAMS.values(), ids=PROGRAMS)
def test_tangents_are_the_transpose_of_gradients(text: str, values: list[object]) -> None:
    program = module(text)
    args = arguments(program, values)
    wrt = [i for i, a in enumerate(args) if a.dtype == "float32"]
    expected, dys, grads = by_tape(program, args)
    torch.manual_seed(0)
    dxs = [meta.array(torch.randn(args[i].shape)) for i in wrt]
    found = jvp(program, wrt=wrt)
    verify(found, typed=True)
    assert structural_equal(infer_type(found), found)
    along = sum(float((g * dx).sum()) for g, dx in zip(grads, dxs, strict=True))
    for executed in (found, optimized(found)):
        for execute in (run, run_compiled):
            y, tangents = execute(executed, *args, *dxs)
            for a, b in zip(flat(y), expected, strict=True):
                torch.testing.assert_close(a.torch(), b.torch().detach())
            total = sum(float((dy * t).sum()) for dy, t in zip(dys, tangents, strict=True))
            assert total == pytest.approx(along, rel=1e-4, abs=1e-5)


@pytest.mark.parametrize(
    ("line", "tangent"),
    [
        ("%y: float32[3] = tanh(%x)", ["tanh", "tanh_dx"]),
        ("%y: float32[3] = add(%x, 2.0)", ["add"]),
        ("%y: float32[3] = add(%w, %x)", ["add"]),
        ("%y: float32[3] = multiply(%x, %w)", ["multiply", "multiply"]),
        ("%y: float32[3] = multiply(%w, 2.0)", ["multiply", "zeros_like"]),
        ("%y: float32[3] = floor(%x)", ["floor", "zeros_like"]),
        ("%y: float32[3] = softmax(%x)", ["softmax", "softmax_dx"]),
        ("%y: float32[1, 3] = reshape(%x, (1, 3))", ["reshape", "reshape"]),
        ("%y: float32[6] = concat((%x, %w), 0)", ["concat", "zeros_like", "concat"]),
        ("%y: float32[] = sum(%x)", ["sum", "sum", "reshape"]),
    ],
)
def test_a_tangent_takes_no_more_than_it_must(line: str, tangent: list[str]) -> None:
    result = line.split(":")[1].split(" = ")[0]
    program = module(
        f"func @main(%x: float32[3], %w: float32[3]) -> {result} {{\n  {line}\n  return %y\n}}"
    )
    assert names(optimized(jvp(program, wrt=["x"]))) == tangent


def test_a_loop_keeps_nothing_for_later() -> None:
    """The companion of a loop's function calls itself, and returns no closure."""
    program = jvp(module(PROGRAMS["loop"][0]), wrt=["h"])
    assert "fn(" not in str(program) and "_jvp" in str(program)


def test_what_is_not_floating_point_does_not_move() -> None:
    with pytest.raises(GradientError, match="has no gradient"):
        jvp(module("func @main(%n: int32[]) -> int32[] {\n  return %n\n}"), wrt=["n"])
