"""Updates in place: one pass over memory, in vectors, with the results of separate passes."""

from __future__ import annotations

import pytest
import torch
from tvm import te
from tvm.target import Target

import meta
from meta.base.device import CPU
from meta.dialect.tvm import schedule_cpu
from meta.dialect.tvm.fused import fuse
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.optimizer import updated
from meta.ir import parse


def scheduled(shape: tuple[int, ...]) -> str:
    x, dx, v = (te.placeholder(shape, "float32", name) for name in ("x", "dx", "v"))
    rate, mu = te.var("rate", "float64"), te.var("mu", "float64")
    given = {"x": x, "dx": dx, "v": v, "learning_rate": rate, "mu": mu}
    function = prim_func([*given.values()], updated(meta.op.sgd, given), in_place=(0, 2))
    return str(schedule_cpu.schedule(function, Target({"kind": "llvm"})).script())


@pytest.mark.parametrize(
    ("shape", "width"), [((64, 32), 16), ((64, 64, 3, 3), 144), ((8, 64, 1, 1), 16)]
)
def test_one_loop_over_vectors_of_both(shape: tuple[int, ...], width: int) -> None:
    text = scheduled(shape)
    assert text.count(f"T.vectorized({width})") == text.count("T.vectorized") == 2
    assert text.count("fused_0_m in ") == 1


@pytest.mark.parametrize("shape", [(10,), (8, 3, 7, 7)])
def test_no_vector_where_elements_would_be_gathered(shape: tuple[int, ...]) -> None:
    assert "T.vectorized" not in scheduled(shape)


@pytest.mark.parametrize("shape", [(64, 32), (16, 16, 3, 3), (8, 3, 7, 7), (10,), (3, 1), (1,)])
def test_results(shape: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dx, v = (torch.randn(shape, generator=generator) for _ in range(3))
    found_x, found_v = meta.array(x.clone()), meta.array(v.clone())
    with meta.dialect.only("tvm"):
        meta.op.sgd(found_x, meta.array(dx), found_v, 0.1, 0.9)
    expected = 0.9 * v + dx
    torch.testing.assert_close(found_v.torch(), expected)
    torch.testing.assert_close(found_x.torch(), x - 0.1 * expected)


def test_a_stage_that_reads_no_other_one() -> None:
    """The second difference has nothing to do with the first, which is read again behind it."""
    text = """
    func @f(%a: float32[2, 144], %b: float32[2, 144])
        -> (float32[2, 144], float32[2, 144], float32[2, 144]) attrs(fused="tvm", in_place=0) {
      %c: float32[2, 144] = tvm.subtract(%a, %b)
      %d: float32[2, 144] = tvm.add(%b, %b)
      %e: float32[2, 144] = tvm.multiply(%c, %d)
      return (%c, %d, %e)
    }
    """
    run = fuse(parse(text).functions["f"], CPU).run
    a, b = torch.arange(288.0).reshape(2, 144), torch.full((2, 144), 3.0)
    c, d, e = torch.empty_like(a), torch.empty_like(a), a.clone()
    run(e, b, c, d, e)
    for found, expected in ((c, a - b), (d, b + b), (e, (a - b) * (b + b))):
        torch.testing.assert_close(found, expected)
