"""Counts of operations, against torch's own counter and by hand."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import meta
from meta import op
from meta.analysis import flops
from meta.ir import parse
from meta.model import trace, value_and_grad
from meta.model.layers import Conv2d
from meta.passes import infer_type


def count(function: Any, *shapes: tuple[int, ...]) -> int:
    arrays = [meta.array(torch.zeros(s)) for s in shapes]
    return flops(infer_type(trace(function).program(*arrays).module)).total


def by_torch(function: Any, *shapes: tuple[int, ...]) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*(torch.zeros(s) for s in shapes))
    return counter.get_total_flops()


PRODUCTS = [
    (op.matmul, torch.mm, (3, 5), (5, 7)),
    (op.matmul_tn, lambda a, b: torch.mm(a.T, b), (5, 3), (5, 7)),
    (op.dense, torch.nn.functional.linear, (3, 5), (7, 5)),
    (op.batch_matmul_nt, lambda a, b: torch.bmm(a, b.mT), (2, 3, 5), (2, 7, 5)),
    (
        lambda x, w: op.conv2d(x, w, None, 2, 1, 1, 2),
        lambda x, w: torch.conv2d(x, w, None, 2, 1, 1, 2),
        (2, 4, 9, 9), (6, 2, 3, 3),
    ),
    (
        lambda x, w: op.conv1d(x, w, None, 1, 1),
        lambda x, w: torch.conv1d(x, w, None, 1, 1),
        (2, 4, 9), (6, 4, 3),
    ),
    (
        lambda x, w: op.conv_transpose2d(x, w, None, 2),
        lambda x, w: torch.nn.functional.conv_transpose2d(x, w, None, 2),
        (2, 4, 5, 5), (4, 6, 3, 3),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("ours", "torchs", "a", "b"), PRODUCTS)
def test_products_as_torch_counts_them(ours: Any, torchs: Any, a: Any, b: Any) -> None:
    assert count(lambda x, y: ours(x, y), a, b) == by_torch(torchs, a, b) > 0


def test_gradients_of_a_convolution_cost_as_much_each() -> None:
    model = Conv2d(3, 8, 3, bias=False)
    x, dy = meta.array(torch.zeros(2, 3, 9, 9)), meta.array(torch.zeros(2, 8, 7, 7))
    forward = 2 * (2 * 8 * 7 * 7) * (3 * 3 * 3)
    module = infer_type(value_and_grad(model).program(dy, x).module)
    # The gradient of x is not asked for.
    assert flops(module).by_operator() == {"conv2d": forward, "conv2d_dw": forward}


def test_attention() -> None:
    b, h, length, keys, width = 2, 3, 5, 7, 4
    shapes = ((b, h, length, width), (b, h, keys, width), (b, h, keys, width))
    scores = b * h * length * keys
    found = count(lambda q, k, v: op.fused_attention(q, k, v)[0], *shapes)
    assert found == scores * (4 * width + 5)


def test_elementwise_reductions_and_what_moves() -> None:
    module = infer_type(
        parse("""
    func @main(%x: float32[4, 8], %y: float32[8]) -> float32[8] {
      %a = add(%x, %y)
      %b = permute_dims(%a)
      %c = reshape(%b, shape=(32,))
      %d = sum(%a, axis=0)
      %e = softmax(%a)
      %f = multiply(%d, %y)
      return %f
    }""")
    )
    report = flops(module)
    assert report.by_operator() == {
        "softmax": 160,
        "add": 32,
        "sum": 32,
        "multiply": 8,
        "permute_dims": 0,
    }
    assert [r["binding"] for r in report.records()] == [0, 1, 3, 4, 5]
    assert report.records()[0]["bytes"] == 4 * (32 + 8 + 32)
    assert "softmax" in str(report)
    json.dumps(report.records())


def test_functions_and_conditionals() -> None:
    module = parse("""
    func @main(%p: bool[], %x: float32[8]) -> float32[8] {
      %a: float32[8] = @twice(%x)
      %b: float32[8] = @twice(%a)
      %c: float32[8] = if %p {
        %d: float32[8] = exp(%b)
        yield %d
      } else {
        %e: float32[8] = exp(%b)
        %f: float32[8] = add(%e, %e)
        yield %f
      }
      %g: float32[8] = @loop(%c)
      return %g
    }
    func @twice(%x: float32[8]) -> float32[8] {
      %y: float32[8] = exp(%x)
      %z: float32[8] = exp(%y)
      return %z
    }
    func @loop(%x: float32[8]) -> float32[8] {
      %y: float32[8] = exp(%x)
      %z: float32[8] = @loop(%y)
      return %z
    }""")
    assert flops(module).total == 8 * (2 + 2 + 2 + 1)


def test_a_fused_kernel_moves_its_arguments_and_results() -> None:
    module = parse("""
    func @main(%x: float32[4, 8]) -> float32[4, 8] {
      %y: float32[4, 8] = @fused(%x)
      return %y
    }

    func @fused(%x: float32[4, 8]) -> float32[4, 8] attrs(fused="tvm") {
      %a: float32[4, 8] = exp(%x)
      %b: float32[4, 8] = add(%a, %x)
      return %b
    }
    """)
    report = flops(module)
    assert (report.total, report.bytes) == (2 * 32, 2 * 4 * 32)
