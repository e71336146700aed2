"""Transposes for CUDA, emulated: of elements of every size, cut into vectors and not.

An ordinary run takes one case of each size; the others take three minutes.
"""

from __future__ import annotations

import re

import pytest
import torch
from tvm import te, topi

from meta.base.dtype import TO_TORCH
from meta.dialect.tvm.lower import prim_func
from meta.runtime.gpu_properties import SHARED_MEMORY
from meta.testing.emulator import generated
from tests.dialect.tvm.functions import empty_like, sample, tensor

SHAPES = {
    "even": ((36, 68), (1, 0)),  # both lines are cut into vectors
    "odd": ((133, 67), (1, 0)),  # no line is
    "rows": ((37, 64), (1, 0)),
    "columns": ((64, 34), (1, 0)),
    "batched": ((3, 64, 36), (0, 2, 1)),
    "odd batched": ((2, 35, 19), (0, 2, 1)),
    "all axes": ((17, 18, 19, 20), (3, 1, 0, 2)),
}
SAME = ("bool", "int8", "float16", "bfloat16", "int32", "float32", "int64", "float64")
DTYPES = (
    *((dtype, dtype) for dtype in SAME),
    ("bool", "float32"), ("float16", "float64"), ("float64", "float32"), ("float32", "bool"),
)  # fmt: skip
OFTEN = {
    ("odd", "bool", "bool"),  # four bytes go through shared memory together
    ("even", "bool", "bool"),
    ("odd batched", "float16", "float16"),  # two halves do
    ("columns", "float32", "float32"),
    ("even", "float64", "float64"),  # a vector is shorter than the side of a square
    ("odd", "int64", "int64"),
    ("batched", "float16", "float64"),
}


@pytest.mark.parametrize(
    ("shape", "axes", "dtype", "out"),
    [
        pytest.param(
            *SHAPES[name], dtype, out,
            id=f"{name}-{dtype}-{out}",
            marks=[] if (name, dtype, out) in OFTEN else pytest.mark.slow,
        )
        for name in SHAPES
        for dtype, out in DTYPES
    ],
)  # fmt: skip
def test_a_transpose_is_exact(
    shape: tuple[int, ...], axes: tuple[int, ...], dtype: str, out: str
) -> None:
    x = tensor(*shape, dtype=dtype)
    turned = topi.transpose(x, axes)
    made = te.compute(turned.shape, lambda *i: turned(*i).astype(out), name="made")
    given, result = sample(x), empty_like(made)
    function = prim_func([x], [made])
    assert "__shared__" in generated.sources(function)
    generated.emulated(function)(given, result)
    assert result.equal(given.permute(axes).to(TO_TORCH[out]))


@pytest.mark.parametrize("number,dtype", [(5, "float32"), (12, "float16"), (60, "float64")])
def test_many_arrays_share_the_memory_that_there_is(number: int, dtype: str) -> None:
    xs = [tensor(33, 70, dtype=dtype, name=f"x{i}") for i in range(number)]
    turned = [topi.transpose(x, (1, 0)) for x in xs]
    made = te.compute((70, 33), lambda *i: sum((t(*i) for t in turned[1:]), turned[0](*i)))
    given, result = [sample(x) for x in xs], empty_like(made)
    function = prim_func(xs, [made])
    declared = re.findall(r"__shared__ .*?(\w+) \w+\[(\d+)\];", generated.sources(function))
    size = {"half": 2, "half2": 4, "float": 4, "double": 8}
    assert declared and sum(size[kind] * int(n) for kind, n in declared) <= SHARED_MEMORY
    generated.emulated(function)(*given, result)
    expected = sum(x.T for x in given)
    torch.testing.assert_close(result, expected, rtol=1e-2 if dtype == "float16" else 1e-5, atol=0)
