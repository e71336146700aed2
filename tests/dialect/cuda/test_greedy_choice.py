"""The most probable token in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda import cuda
from meta.dialect.cuda.greedy_choice import launches
from meta.ir import TensorType, parse
from meta.passes import fuse_dialect, infer_type
from meta.runtime import gpu_properties

GPU = Device("cuda:0")


def made(rows: int, columns: int, dtype: str):
    types = TensorType((rows,), "int64"), TensorType((rows,), "float32")
    wide = None if dtype == "float32" else "float32"
    return launches(TensorType((rows, columns), dtype), (-1, -1, (1,)), types, GPU, wide)


@pytest.mark.usefixtures("emulated")
@pytest.mark.product
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("rows", "columns"), [(1, 5000), (3, 1024), (2, 1027), (5, 2051)])
def test_against_float64(rows: int, columns: int, dtype: str) -> None:
    generator = torch.Generator().manual_seed(columns)
    scores = (4 * torch.randn(rows, columns, generator=generator)).to(TO_TORCH[dtype])
    scores[0, [3, columns - 1]] = 30.0  # the first of equals
    scores[-1, : columns // 2] = float("-inf")
    tokens, logprobs = torch.full((rows,), -1), torch.full((rows,), float("nan"))
    made(rows, columns, dtype).run(scores, tokens, logprobs)
    expected = scores.double().log_softmax(-1)
    assert tokens.tolist() == expected.argmax(-1).tolist()
    torch.testing.assert_close(logprobs.double(), expected.amax(-1), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("emulated")
def test_scores_without_a_largest_one() -> None:
    scores = torch.full((3, 2048), float("-inf"))
    scores[1] = float("nan")
    scores[2, 70] = float("nan")
    tokens, logprobs = torch.full((3,), -1), torch.zeros(3)
    made(3, 2048, "float32").run(scores, tokens, logprobs)
    assert logprobs.isnan().all() and (tokens >= 0).all() and (tokens < 2048).all()


PROGRAM = """func @main(%x: bfloat16[2, 2048]) {{
  %w = astype(%x, "float32")
  %t = argmax(%w, -1)
  %m = max(%w, -1)
  %l = logsumexp(%w, axis={axis})
  %p = subtract(%m, %l)
  return (%t, %p)
}}"""


@pytest.mark.parametrize(("axis", "fused"), [(-1, True), ("(1,)", True), (0, False)])
def test_what_one_kernel_runs(axis: object, fused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cuda.__dict__, "unavailable", None)
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)
    text = PROGRAM.format(axis=axis)
    if axis == 0:
        text = text.replace("[2, 2048]", "[2048, 2048]")
    with meta.dialect.only("cuda"):
        found = fuse_dialect(infer_type(parse(text)), device=GPU)
    assert ("greedy_choice" in found.functions) == fused


def test_what_it_declines() -> None:
    for rows, columns, why in ((1, 100, "short"), (65, 2048, "65 rows")):
        with pytest.raises(Unsupported, match=why):
            made(rows, columns, "float32")
