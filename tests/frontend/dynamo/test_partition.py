"""Graphs that are rewritten before they are divided: views as PyTorch's partitioner knows them, and
equal calls.
"""

from __future__ import annotations

from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.testing import assert_close

from meta.frontend.dynamo import compiler, partition
from tests.conftest import run_python

B, S, H, D = 3, 5, 2, 4


def _split(rows: Tensor) -> list[Tensor]:
    return [p.view(B, S, H, D).transpose(1, 2) for p in rows.split(H * D, -1)]


def _split_with_sizes(rows: Tensor) -> list[Tensor]:
    sizes = [H * D, H * D, H * D]
    return [p.view(B, S, H, D).transpose(1, 2) for p in rows.split(sizes, -1)]


def _unbound(rows: Tensor) -> list[Tensor]:
    return list(rows.view(B, S, 3, H, D).permute(2, 0, 3, 1, 4).unbind(0))


def _unbound_without_a_permutation(rows: Tensor) -> list[Tensor]:
    return [p.transpose(1, 2) for p in rows.view(B, S, 3, H, D).unbind(-3)]


def _some(rows: Tensor) -> list[Tensor]:
    """One part is not read."""
    q, _, v = rows.view(B, S, 3, H, D).permute(2, 0, 3, 1, 4).unbind()
    return [q, v, v]


def _within_heads(rows: Tensor) -> list[Tensor]:
    return list(rows.view(B, S, H, 3 * D).transpose(1, 2).chunk(3, -1))


def _within_heads_by_sizes(rows: Tensor) -> list[Tensor]:
    return list(rows.view(B, S, H, 3 * D).permute(0, 2, 1, 3).split([D, D, D], 3))


PARTS = [
    _within_heads,
    _within_heads_by_sizes,
    _split,
    _split_with_sizes,
    _unbound,
    _unbound_without_a_permutation,
    _some,
]


@pytest.mark.parametrize("parts", PARTS)
def test_a_joint_projection_is_saved_once(parts: object) -> None:
    torch.manual_seed(0)
    project = nn.Linear(8, 3 * H * D)

    def attend(x: Tensor) -> Tensor:
        q, k, v = parts(project(x))  # type: ignore[operator]
        return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

    x = torch.randn(B, S, 8, requires_grad=True)
    with compiler.record_compiled_graphs() as graphs:
        y = torch.compile(attend, backend="meta", fullgraph=True)(x)
        found = torch.autograd.grad(y, (x, *project.parameters()), y)
    expected = attend(x)
    assert_close(y, expected)
    gradients = torch.autograd.grad(expected, (x, *project.parameters()), expected)
    assert_close(found, gradients, rtol=1e-4, atol=1e-5)
    (backward,) = (g for g in graphs if g.role == "backward")
    shapes = [tuple(s.shape) for s in backward.said if isinstance(s, Tensor)]
    assert shapes.count((B, H, S, D)) == 1  # the result of the attention
    whole = (B * S, 3 * H * D) in shapes or (B, S, 3 * H * D) in shapes
    assert whole == (parts is not _some)  # two parts are less


@pytest.mark.parametrize("trains", [True, False])
def test_outputs_that_are_views_of_others(trains: bool) -> None:
    """What only forwards is left out; what the user gets is what torch gives."""

    def outputs(x: Tensor) -> tuple[Tensor, ...]:
        y = torch.sin(x)
        return y, y.detach(), y.transpose(0, 1), *y.unbind(1), y.split([1, 2], 1)[1]

    x = torch.randn(2, 3, requires_grad=trains)
    found = torch.compile(outputs, backend="meta", fullgraph=True)(x)
    expected = outputs(x)
    for a, b in zip(found, expected, strict=True):
        assert_close(a, b)
        assert (a.requires_grad, a.stride()) == (b.requires_grad, b.stride())
    if trains:
        sums = (sum(v.sum() for v in values if v.requires_grad) for values in (found, expected))
        first, second = (torch.autograd.grad(s, x)[0] for s in sums)
        assert_close(first, second)


def test_equal_calls_are_one() -> None:
    aten = torch.ops.aten

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, b = aten.exp(x), aten.exp(x)  # the same
        c, d = aten.sum(x, [0]), aten.sum(x, [1])
        e, f = aten.mul(x, 1), aten.mul(x, 1.0)
        noise = aten.rand_like(x) + aten.rand_like(x)
        aten.copy_(y, x)  # what is read of y before is not what is read behind it
        return a + b, c + d, e + f, noise, aten.exp(x), aten.sin(x), aten.sin(x)

    x = torch.rand(3, 3)
    traced = make_fx(run, tracing_mode="fake")(x, torch.zeros(3, 3))
    partition.merge_equal_calls(traced.graph)
    traced.recompile()
    calls = Counter(str(n.target) for n in traced.graph.nodes if n.op == "call_function")
    assert calls["aten.exp.default"] == 2 and calls["aten.sin.default"] == 2
    assert calls["aten.sum.dim_IntList"] == calls["aten.mul.Tensor"] == 2
    assert calls["aten.rand_like.default"] == 2
    torch.manual_seed(0)
    found = traced(x, torch.zeros(3, 3))
    torch.manual_seed(0)
    assert_close(found, run(x, torch.zeros(3, 3)))


def test_clones_of_what_nobody_writes_are_dropped() -> None:
    aten = torch.ops.aten

    def run(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        a, c, d, e, f = (aten.exp(x * n) for n in range(5))
        inner = aten.sin(aten.clone(a))  # the only one that goes
        before = aten.clone(y)
        aten.copy_(y, x)
        returned, source = aten.clone(c), aten.cos(aten.clone(d))
        turned = aten.clone(aten.t(e), memory_format=torch.contiguous_format)
        view = aten.view(aten.clone(f), [9])
        return inner, before + x, returned, c + 1, d, source, turned * 2, view

    inputs = torch.rand(3, 3), torch.zeros(3, 3)
    traced = make_fx(run, tracing_mode="fake")(*inputs)
    partition.drop_clones(traced.graph)
    traced.recompile()
    assert len(traced.graph.find_nodes(op="call_function", target=aten.clone.default)) == 5
    assert_close(traced(*(t.clone() for t in inputs)), run(*inputs))


def test_dropout_of_nothing_saves_nothing_more() -> None:
    """Probabilities are saved once, and a user may write what is a copy of what is saved."""

    def attend(x: Tensor) -> tuple[Tensor, ...]:
        p = torch.softmax(x @ x.mT, -1)
        copied = torch.exp(x)
        return F.dropout(p, 0.0) @ x, copied.clone(), copied

    x = torch.rand(3, 5, 4, requires_grad=True)
    with compiler.record_compiled_graphs() as graphs:
        y, written, other = torch.compile(attend, backend="meta", fullgraph=True)(x)
        written.detach().zero_()
        found = torch.autograd.grad((y, other), x, (y, y))
    (backward,) = (g for g in graphs if g.role == "backward")
    shapes = [tuple(s.shape) for s in backward.said if isinstance(s, Tensor)]
    assert shapes.count((3, 5, 5)) == 1
    expected, _, copied = attend(x)
    assert_close(found, torch.autograd.grad((expected, copied), x, (expected, expected)))


def test_inductor_is_not_imported() -> None:
    lines = (
        "import sys, torch, meta",
        "f = torch.compile(lambda x: (x.exp() * x.exp()).sum(), backend='meta')",
        "f(torch.ones(3, requires_grad=True)).backward()",
        "print([m for m in sys.modules if m == 'torch._inductor.lowering'])",
    )
    assert run_python("-c", "\n".join(lines), tvm=True).strip() == "[]"
