"""Reductions of several results that share a kernel with what comes before them: on the CPU, and as
CUDA kernels, emulated.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU
from meta.dialect import only
from meta.dialect.tvm.fused import _lowered
from meta.ir import Function, Module, parse
from meta.passes import dispatch, fuse_operators, infer_type
from meta.testing.emulator.generated import TARGET, emulated


def fused(text: str) -> tuple[Module, Function]:
    """Return a program with its calls fused, and its one fused function."""
    with only("tvm"):
        module = fuse_operators(dispatch(infer_type(parse(text)), device=CPU), device=CPU)
    (name,) = module.functions.keys() - {"main"}
    return module, module.functions[name]


def loss(rows: int, columns: int, dtype: str, classes: int | None) -> str:
    given = "" if classes is None else f", classes={classes}"
    return f"""
    func @main(%x: {dtype}[{rows}, {columns}], %l: int64[{rows}]) -> (float32[], float32[{rows}]) {{
      %a = astype(%x, dtype="float32")
      %b = cross_entropy_train(%a, %l{given})
      %c = %b.0
      %d = %b.2
      return (%c, %d)
    }}"""


@pytest.mark.product
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float64"])
@pytest.mark.parametrize(
    ("rows", "columns", "classes"), [(5, 33, None), (1, 1, None), (8, 520, 517), (3, 5000, None)]
)
def test_a_loss_reads_scores_of_another_dtype(
    rows: int, columns: int, classes: int | None, dtype: str
) -> None:
    module, function = fused(loss(rows, columns, dtype, classes))
    assert len(function.body.bindings) == 2 and len(module.main.body.bindings) == 3
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows))
    x = x.to(getattr(torch, dtype))
    label = torch.arange(rows) % (classes or columns)
    seen = x.double()[:, :classes]
    expected = torch.nn.functional.cross_entropy(seen, label)
    total = (seen - seen.amax(1, keepdim=True)).exp().sum(1)
    outputs = [torch.empty(()), torch.empty(rows), torch.empty(rows)]
    emulated(_lowered(function), TARGET)(x, label, *outputs)
    with only("tvm"):
        run = meta.vm.compile(parse(loss(rows, columns, dtype, classes)))
        found: Any = run(meta.array(x), meta.array(label))
    for first, second in ((outputs[0], outputs[2]), (found[0].torch(), found[1].torch())):
        torch.testing.assert_close(first.double(), expected, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(second.double(), total, rtol=1e-5, atol=1e-6)


def test_nobody_in_a_group_reads_one_of_several_results() -> None:
    with only("tvm"):
        module = fuse_operators(
            dispatch(
                infer_type(
                    parse("""
                    func @main(%x: float32[8, 16], %l: int64[8]) -> float32[] {
                      %a = exp(%x)
                      %b = cross_entropy_train(%a, %l)
                      %c = %b.0
                      %d = exp(%c)
                      return %d
                    }""")
                ),
                device=CPU,
            ),
            device=CPU,
        )
    (function,) = (f for n, f in module.functions.items() if n != "main")
    assert [b.value.callee.base.name for b in function.body.bindings] == [
        "exp",
        "cross_entropy_train",
    ]
