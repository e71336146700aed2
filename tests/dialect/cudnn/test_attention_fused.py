"""The gradient of an attention written where it belongs: what is fused, and where the parts go."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.base.device import Device
from meta.dialect.core import Unsupported, only
from meta.dialect.cudnn import attention, cudnn, plans
from meta.dialect.cudnn.attention import Attention
from meta.dialect.cudnn.graph import Graph, Operand
from meta.ir import TensorType, parse
from meta.passes import explain_fusion, fuse_dialect, infer_type
from tests.dialect.cudnn.test_graph import Node, Tensor, frontend

__all__ = ["frontend"]
CUDA = Device("cuda:0")
SHAPE = 2, 6, 3, 8


def typed(array: Any) -> TensorType:
    return TensorType(array.shape, array.dtype)


@pytest.fixture(autouse=True)
def gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the described graph return three gradients."""

    def sdpa_backward(self: Node, **options: Any) -> list[Tensor]:
        found = [Tensor() for _ in range(3)]
        self.tensors += found
        return found

    monkeypatch.setattr(Node, "sdpa_backward", sdpa_backward, raising=False)


def program(axis: int = 2, layout: str = "BSHD", mask: str = "None", keys: int = 3) -> Any:
    q = "float16[2, 6, 3, 8]" if layout == "BSHD" else "float16[2, 3, 6, 8]"
    k = q.replace("6, 3", f"6, {keys}")
    rows = "float16[2, 6, 24]", f"float16[2, 6, {8 * keys}]"
    head = f"%q: {q}, %k: {k}, %v: {k}, %m: bool[6, 6], %y: {q}, %l: float32[2, 3, 6], %d: {q}"
    return infer_type(
        parse(f"""
    func @main({head}) {{
      %g = fused_attention_dx(%q, %k, %v, {mask}, %y, %l, %d, True, 0.5, "{layout}")
      %a = %g.0
      %b = %g.1
      %c = %g.2
      %0: {rows[0]} = reshape(%a, {(2, 6, 24)})
      %1: {rows[1]} = reshape(%b, {(2, 6, 8 * keys)})
      %2: {rows[1]} = reshape(%c, {(2, 6, 8 * keys)})
      %3 = concat((%0, %1, %2), {axis})
      return %3
    }}""")
    )


@pytest.mark.usefixtures("frontend")
def test_parts_that_are_joined_are_written_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cudnn.__dict__, "unavailable", None)
    with only("cudnn"):
        found = fuse_dialect(program(), device=CUDA)
    (made,) = [f for f in found.functions.values() if f.attrs]
    assert made.attrs["kernel"] == "fused_attention_dx_joined"
    assert made.result_type.shape == (2, 6, 72) and len(found.main.body.bindings) == 1


@pytest.mark.usefixtures("frontend")
@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"axis": 1}, "not joined row by row"),
        ({"layout": "BHSD"}, "heads behind the steps"),
        ({"keys": 1}, "as many of keys as of queries"),
        ({"mask": "%m"}, "without a mask"),
    ],
)
def test_refusals_say_why(monkeypatch: Any, changed: dict[str, Any], reason: str) -> None:
    monkeypatch.setitem(cudnn.__dict__, "unavailable", None)
    with only("cudnn"):
        assert reason in explain_fusion(program(**changed), device=CUDA)


def test_each_part_lies_in_rows_of_all(frontend: list[Node]) -> None:
    one = Operand.compact(SHAPE, "float16", "BSHD", "BHSD")
    described = Attention(one, one, one, None, one, True, 0.5)
    attention._sdpa_in_rows(Graph("float16", 7), described)
    (node,) = frontend
    parts = [t.details for t in node.tensors if t.details.get("output")]
    whole = torch.arange(2 * 6 * 72).view(2, 6, 72)
    for i, part in enumerate(parts):
        seen = torch.as_strided(whole, part["dim"], part["stride"], i * 24)
        expected = whole[:, :, i * 24 : (i + 1) * 24].view(SHAPE).transpose(1, 2)
        assert torch.equal(seen, expected) and part["uid"] == 7 + i


def test_the_kernel_fills_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(SHAPE, generator=generator).half() for _ in range(4))

    def planned(*_: Any, **__: Any) -> Any:
        return computed

    def computed(*tensors: torch.Tensor) -> None:
        *given, _y, _statistics, dy, a, b, c = tensors
        leaves = [t.transpose(1, 2).double().requires_grad_() for t in given]
        y = F.scaled_dot_product_attention(*leaves, is_causal=True, scale=0.5)
        found = torch.autograd.grad(y, leaves, dy.transpose(1, 2).double())
        for out, gradient in zip((a, b, c), found, strict=True):
            out.copy_(gradient.transpose(1, 2).flatten(2))

    monkeypatch.setattr(plans, "_run", planned)
    arrays = [meta.array(t) for t in (q, k, v)]
    with only("torch"):
        y, logsumexp = op.fused_attention(*arrays, causal=True, scale=0.5, layout="BSHD")
        arguments = (*arrays, None, y, logsumexp, meta.array(dy), True, 0.5, "BSHD")
        parts = op.fused_attention_dx(*arguments)
        expected = op.concat([op.reshape(p, (2, 6, 24)) for p in parts], 2)
    types = [typed(t) if isinstance(t, meta.ndarray) else t for t in arguments]
    pattern = cudnn.patterns["fused_attention_dx_joined"]
    captures = dict(zip(pattern.captures, (*types, 2), strict=True))
    env = pattern.prepare(captures, typed(expected), CUDA)
    out = torch.full((2, 6, 72), float("nan"), dtype=torch.float16)
    env.run(q, k, v, y.torch(), logsumexp.torch(), dy, out)
    torch.testing.assert_close(out, expected.torch(), rtol=5e-3, atol=5e-3)


@pytest.mark.parametrize("shape", [(4, 3, 6, 6), (2, 1, 6, 6), (6, 6), (4, 1, 1, 6), (3, 1, 1)])
def test_masks_have_gradients_of_their_shape(
    monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]
) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v, dy = (torch.randn(4, 3, 6, 8, generator=generator).half() for _ in range(4))
    mask = torch.randn(shape, generator=generator).half()

    def computed(*tensors: torch.Tensor) -> None:
        """What cuDNN's graph does: the mask is there in full but for batches and heads."""
        *given, mask, _y, _statistics, dy, dmask, dq, dk, dv = tensors
        leaves = [t.double().requires_grad_() for t in (*given, mask)]
        y = F.scaled_dot_product_attention(*leaves[:3], leaves[3], scale=0.5)
        found = torch.autograd.grad(y, leaves, dy.double())
        for out, gradient in zip((dq, dk, dv, dmask), found, strict=True):
            out.view(gradient.shape).copy_(gradient)

    monkeypatch.setattr(plans, "_run", lambda *_, **__: computed)
    with only("torch"):
        arrays = [meta.array(t) for t in (q, k, v, mask)]
        y, logsumexp = op.fused_attention(*arrays, scale=0.5)
        arguments = (*arrays, y, logsumexp, meta.array(dy), False, 0.5, "BHSD")
        expected = *op.fused_attention_dx(*arguments), op.fused_attention_dmask(*arguments)
    types = [typed(t) if isinstance(t, meta.ndarray) else t for t in arguments]
    pattern = cudnn.patterns["fused_attention_dx_dmask"]
    captures = dict(zip(pattern.captures, types, strict=True))
    env = pattern.prepare(captures, tuple(map(typed, expected)), CUDA)
    outs = [torch.full(t.shape, float("nan")).half() for t in expected]
    env.run(q, k, v, mask, y.torch(), logsumexp.torch(), dy, *outs)
    for out, right in zip(outs, expected, strict=True):
        torch.testing.assert_close(out, right.torch(), rtol=5e-3, atol=2e-2)


@pytest.mark.parametrize(
    ("causal", "window", "expected"),
    [
        (True, None, (True, None)),
        (True, (2, -1), (True, 2)),
        (False, (0, 0), (True, 0)),
        (True, (-1, 3), (True, None)),
        (False, None, (False, None)),
        (False, (2, -1), None),
        (False, (2, 1), None),
    ],
)
def test_windows_behind_a_place_are_cudnns(
    causal: bool, window: tuple[int, int] | None, expected: tuple[bool, int | None] | None
) -> None:
    x = TensorType((2, 3, 6, 8), "float16")
    args = (x, x, x, None, causal, 0.5, "BHSD", window)
    call = op.fused_attention.call_values(args, CUDA)
    if expected is None:
        with pytest.raises(Unsupported, match="looks ahead"):
            attention.described_by(call)
        return
    found = attention.described_by(call)
    assert (found.causal, found.back) == expected
    graph: Any = _NoGraph()
    named = attention.arguments(graph, found)
    assert named.get("diagonal_band_left_bound") == (
        None if found.back is None else found.back + 1  # keys nearer than so many
    )


class _NoGraph:
    """Stands for a graph whose arguments nobody reads."""

    def argument(self, operand: Operand) -> Operand:
        return operand
