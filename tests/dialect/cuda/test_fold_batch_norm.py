"""Batch normalisation folded into weights in CUDA, run as C++ on the CPU, beside torch in
float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.utils.fusion import fuse_conv_bn_weights

from meta import op
from meta.base.device import Device
from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda import fold_batch_norm
from meta.ir import TensorType
from meta.runtime import cuda_driver as driver

CUDA = Device("cuda:0")
TOLERANCES = {"float16": 1e-3, "bfloat16": 8e-3, "float32": 1e-6, "float64": 1e-13}
# Several chunks, the last one short; one of many rows; rows that no vector divides; no rows.
SHAPES = [(40, 3, 3, 96), (8200, 1, 1, 1), (33, 7, 7, 3), (0, 3), (5, 1), (2, 8), (64, 1, 1, 40)]
Tensors = tuple[torch.Tensor, ...]


def drawn(shapes: list[tuple[int, ...]], dtype: str, seed: int, start: int = 0) -> Tensors:
    """Return random tensors whose memory begins ``start`` elements into an allocation."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for shape in shapes:
        size = torch.Size(shape).numel()
        flat = torch.randn(size + start, generator=generator).to(TO_TORCH[dtype])
        found.append(flat[start:].view(shape))
    return tuple(found)


def types(tensors: Tensors) -> tuple[TensorType, ...]:
    return tuple(TensorType(tuple(t.shape), FROM_TORCH[t.dtype]) for t in tensors)


def kernel(lists: list[Tensors], eps: float, dtype: str) -> Callable[..., Any]:
    call = op.multi_tensor_fold_batch_norm.call_values((*map(types, lists), eps, dtype), CUDA)
    return fold_batch_norm.multi_tensor_fold_batch_norm.make(call).run


def check(w: Tensors, statistics: str, has: str, dtype: str, start: int = 0) -> None:
    """Fold into these weights, and compare with torch."""
    vectors = [(len(t),) for t in w]
    given = {name: drawn(vectors, statistics, i) for i, name in enumerate(("b", "mean", "var"))}
    given |= {name: drawn(vectors, statistics, 9 + i) for i, name in enumerate(("scale", "shift"))}
    given["var"] = tuple(t.abs() + 0.5 for t in given["var"])
    names = ("mean", "var", "scale", "shift", "b")
    lists = [w, *(given[n] if n in ("mean", "var") or n in has else () for n in names)]
    shapes = [*(tuple(t.shape) for t in w), *vectors]
    out = drawn(shapes, dtype, 0, start)
    kernel(lists, 1e-3, dtype)(*(t for one in lists for t in one), *out)
    wide = [[t.double() for t in one] or [None] * len(w) for one in lists]
    for i, (weight, mean, var, scale, shift, b) in enumerate(zip(*wide, strict=True)):
        assert weight is not None
        if not weight.numel():
            continue
        expected = fuse_conv_bn_weights(weight, b, mean, var, 1e-3, scale, shift)
        for found, one in zip((out[i], out[len(w) + i]), expected, strict=True):
            bound = TOLERANCES[dtype] * max(1.0, one.abs().max().item())
            torch.testing.assert_close(found.double(), one.detach(), rtol=0, atol=bound)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("has", ["", "scale shift", "scale shift b", "b"])
@pytest.mark.parametrize(
    ("weights", "statistics", "results"),
    [
        ("float16", "float16", "float16"),
        ("bfloat16", "float32", "bfloat16"),
        ("float32", "float32", "float16"),
        ("float32", "float32", "float32"),
        ("float64", "float64", "float64"),
        ("float16", "bfloat16", "float32"),
    ],
)
def test_as_torch(weights: str, statistics: str, results: str, has: str) -> None:
    check(drawn(SHAPES, weights, 1), statistics, has, results)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(("start", "of_results"), [(0, 1), (1, 0), (3, 3)])
def test_at_any_address(start: int, of_results: int) -> None:
    check(drawn(SHAPES, "float16", 2, start), "float16", "scale shift", "float16", of_results)


@pytest.mark.usefixtures("emulated")
def test_more_layers_than_a_launch_takes() -> None:
    room = (driver.PARAMETERS - fold_batch_norm.HEAD_BYTES) // fold_batch_norm.LAYER_BYTES
    check(drawn([(4, 1 + i % 20) for i in range(2 * room + 3)], "float32", 3), "float32", "b",
          "float32")  # fmt: skip


@pytest.mark.usefixtures("emulated")
def test_what_it_leaves_to_others() -> None:
    w, o = drawn([(3, 0)], "float32", 0), drawn([(3,)], "float32", 1)
    with pytest.raises(Unsupported, match="channels without weights"):
        kernel([w, o, o, (), (), ()], 1e-5, "float32")
