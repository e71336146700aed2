"""Truth values in loops over vectors: CUDA has no vectors of them, TVM's rules make such loops."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from tvm import s_tir, te, tirx

from meta.base.dtype import TO_TORCH
from meta.dialect.tvm.lower import SCHEDULED, prim_func
from meta.dialect.tvm.schedule_cuda.default import without_bool
from meta.testing.emulator import compiler, generated
from tests.dialect.tvm.functions import sample, tensor

SIZE = 256
DTYPES = (
    *("int8", "uint8", "int16", "int32", "int64", "uint16", "uint32"),
    *("float16", "bfloat16", "float32", "float64"),
)


def _vectorized(inputs: list[Any], outputs: list[Any], lanes: int) -> tirx.PrimFunc:
    """Return a function each of whose stages has a loop over ``lanes`` lanes inside of threads."""
    sch = s_tir.Schedule(prim_func(inputs, outputs))
    for block in sch.get_child_blocks(sch.get_sblock("root")):
        outer, lane = sch.split(sch.get_loops(block)[0], [None, lanes])
        place, thread = sch.split(outer, [None, 32])
        sch.bind(place, "blockIdx.x")
        sch.bind(thread, "threadIdx.x")
        sch.vectorize(lane)
    return sch.mod["main"].with_attr(SCHEDULED, True)


def _stages(dtype: str) -> tuple[list[Any], list[Any]]:
    """All ways between truth values and a dtype: casts, selections, comparisons."""
    p = tensor(SIZE, dtype="bool", name="p")
    x, y = (tensor(SIZE, dtype=dtype, name=name) for name in "xy")

    def stage(name: str, value: Any) -> Any:
        return te.compute((SIZE,), value, name=name)

    return [p, x, y], [
        stage("cast", lambda i: p[i].astype(dtype)),
        stage("chosen", lambda i: tirx.Select(p[i], x[i], y[i])),
        stage("truth", lambda i: x[i].astype("bool")),
        stage("less", lambda i: x[i] < y[i]),
        stage("both", lambda i: tirx.And(p[i], tirx.Not(x[i] < y[i])).astype(dtype)),
        stage("smaller", lambda i: tirx.Select(x[i] < y[i], x[i], y[i])),
    ]


def _expected(p: Any, x: Any, y: Any) -> list[Any]:
    dtype = x.dtype
    if dtype in (torch.uint16, torch.uint32):  # torch compares none of these on the CPU
        x, y = x.long(), y.long()
    less = x < y
    values = torch.where(p, x, y), torch.where(less, x, y)
    chosen, smaller = (v.to(dtype) for v in values)
    return [p.to(dtype), chosen, x != 0, less, (p & ~less).to(dtype), smaller]


@pytest.mark.parametrize("lanes", [2, 4, 8])
@pytest.mark.parametrize(
    "dtype", [d if d == "float32" else pytest.param(d, marks=pytest.mark.slow) for d in DTYPES]
)
def test_every_way_between_truth_values_and_a_dtype(dtype: str, lanes: int) -> None:
    compiler.compiler()
    if TO_TORCH[dtype].itemsize * lanes > 32:
        pytest.skip("no schedule makes vectors of so many bytes")
    inputs, outputs = _stages(dtype)
    function = without_bool(_vectorized(inputs, outputs, lanes))
    arrays = [sample(placeholder, seed) for seed, placeholder in enumerate(inputs)]
    assert len(set(arrays[0].tolist())) == 2
    expected = _expected(*arrays)
    results = [torch.empty_like(e) for e in expected]
    generated.emulated(function)(*arrays, *results)
    for output, result, want in zip(outputs, results, expected, strict=True):
        assert torch.equal(result, want), output.op.name


def test_a_product_of_which_some_elements_are_kept() -> None:
    """A matrix product that TVM's rules schedule, in vectors, and a mask that follows it."""
    compiler.compiler()
    a, b, p = tensor(20, 16), tensor(24, 16), tensor(20, 24, dtype="bool", name="p")
    k = te.reduce_axis((0, 16))
    product = te.compute((20, 24), lambda i, j: te.sum(a[i, k] * b[j, k], axis=k))
    kept = te.compute((20, 24), lambda i, j: tirx.Select(p[i, j], product[i, j] * 2.0, 0.0))
    function = prim_func([a, b, p], [kept])
    assert not re.search(r"\*\(ushort\d\*\)\(p_ptr", generated.sources(function))
    arrays = [sample(placeholder, seed) for seed, placeholder in enumerate((a, b, p))]
    result = torch.empty(20, 24)
    generated.emulated(function)(*arrays, result)
    x, w, mask = arrays
    torch.testing.assert_close(result, torch.where(mask, x @ w.T * 2, torch.zeros(())))
