"""Attention in float32 on tensor cores, and its gradients, run as C++ on the CPU, beside torch in
float64.
"""

from __future__ import annotations

import pytest
import torch

import meta
from meta.base import config
from meta.base.device import Device
from meta.dialect.core import Unsupported
from meta.dialect.cuda import attention
from meta.ir import TensorType
from meta.runtime import gpu_properties

CUDA = Device("cuda:0")
FORWARD = meta.op.fused_attention
BACKWARD = meta.op.fused_attention_dx


@pytest.fixture(autouse=True)
def default_chip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_properties, "query", lambda device: gpu_properties.DEFAULT)


def of_type(tensor: torch.Tensor) -> TensorType:
    return TensorType(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))


def made(
    kind: str | None, shape: tuple[int, ...], generator: torch.Generator
) -> list[torch.Tensor]:
    """Return no mask, or one."""
    batch, heads, queries, keys = shape
    if kind is None:
        return []
    if kind == "added":
        return [torch.randn(heads, queries, keys, generator=generator)]
    if kind == "keys":
        return [torch.rand(batch, 1, 1, keys, generator=generator) > 0.3]
    mask = torch.rand(queries, keys, generator=generator) > 0.3
    mask[1] = False  # a query that may look nowhere
    return [mask]


def expected(tensors, mask, causal, scale):
    """Return y, logsumexp and the gradients of query, key and value, in float64."""
    query, key, value, dy = (t.double() for t in tensors)
    given = [t.requires_grad_() for t in (query, key, value)]
    keys, values = (t.repeat_interleave(query.shape[1] // key.shape[1], 1) for t in given[1:])
    scores = query @ keys.mT * (query.shape[-1] ** -0.5 if scale is None else scale)
    for m in mask:
        scores = scores.masked_fill(~m, -torch.inf) if m.dtype == torch.bool else scores + m
    if causal:
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    blind = (scores == -torch.inf).all(-1, keepdim=True)
    scores = scores.masked_fill(blind, 0.0)
    y = scores.softmax(-1).masked_fill(blind, 0.0) @ values
    logsumexp = scores.logsumexp(-1).masked_fill(blind[..., 0], 0.0)
    return y, logsumexp, *torch.autograd.grad(y, given, dy)


@pytest.mark.usefixtures("emulated")
@pytest.mark.product
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize(
    ("sizes", "mask", "causal", "scale", "layout"),
    [
        # Batch, heads, those of key, queries, keys, width: two tiles of keys, a part of a row.
        ((1, 2, 1, 24, 70, 12), "keys", False, None, "BSHD"),
        pytest.param((1, 2, 2, 70, 70, 20), None, True, 0.3, "BHSD", marks=pytest.mark.slow),
        pytest.param((2, 2, 1, 9, 40, 8), "added", False, None, "BHSD", marks=pytest.mark.slow),
        pytest.param((2, 2, 2, 9, 40, 8), "blind", True, None, "BSHD", marks=pytest.mark.slow),
        pytest.param((1, 1, 1, 70, 40, 64), None, False, None, "BHSD", marks=pytest.mark.slow),
    ],
)
def test_results_and_gradients(
    sizes: tuple[int, ...],
    mask: str | None,
    causal: bool,
    scale: float | None,
    layout: str,
    tf32: bool,
) -> None:
    batch, heads, groups, queries, keys, width = sizes
    generator = torch.Generator().manual_seed(0)
    shapes = [(batch, h, n, width) for h, n in ((heads, queries), (groups, keys))]
    query, key, value, dy = (torch.randn(shapes[i], generator=generator) for i in (0, 1, 1, 0))
    value = value + 2.0  # which all values have in common
    given = made(mask, (batch, heads, queries, keys), generator)
    correct = expected((query, key, value, dy), given, causal, scale)

    def placed(t: torch.Tensor) -> torch.Tensor:
        return t if layout == "BHSD" else t.transpose(1, 2).contiguous()

    query, key, value, dy = map(placed, (query, key, value, dy))
    types = [of_type(t) for t in (query, key, value)]
    masks = of_type(given[0]) if given else None
    out, dx = torch.full_like(query, float("nan")), [torch.full_like(query, float("nan"))]
    dx += [torch.full_like(t, float("nan")) for t in (key, value)]
    logsumexp = torch.full((batch, heads, queries), float("nan"))
    rest = (of_type(out), of_type(logsumexp), of_type(dy))
    with config.override(META_TF32=True):  # gradients are not dispatched without
        call = FORWARD.call_values((*types, masks, causal, scale, layout), CUDA)
        forward = attention.fused_attention.make(call).run
        call = BACKWARD.call_values((*types, masks, *rest, causal, scale, layout), CUDA)
        backward = attention.fused_attention_dx.make(call).run
    with config.override(META_TF32=tf32):
        forward(query, key, value, *given, out, logsumexp)
        backward(query, key, value, *given, out, logsumexp, dy, *dx)
    bounds = [4e-3, 2e-3, 4e-3, 4e-3, 4e-3] if tf32 else [3e-6] * 5
    found = placed(out), logsumexp, *map(placed, dx)
    for one, reference, bound in zip(found, correct, bounds, strict=True):
        torch.testing.assert_close(one.double(), reference, rtol=bound, atol=bound)


@pytest.mark.usefixtures("emulated")
def test_gradients_are_written_as_parts_of_one_array() -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = [torch.randn(2, 9, 3, 8, generator=generator) for _ in range(4)]
    query, key, value, dy = tensors
    first = [t.transpose(1, 2) for t in tensors]
    y, logsumexp, *correct = expected(first, [], False, None)
    y, logsumexp = y.transpose(1, 2).float().contiguous(), logsumexp.float()
    given = (query, key, value, y, logsumexp, dy)
    types = [of_type(t) for t in given]
    arguments = (*types[:3], None, *types[3:], False, None, "BSHD")
    out = torch.full((2, 9, 72), float("nan"))
    with config.override(META_TF32=True):
        result = of_type(out)
        pattern = attention.dialect.patterns["fused_attention_dx_joined"]
        captures = dict(zip(pattern.captures, (*arguments, 2), strict=True))
        pattern.prepare(captures, result, CUDA).run(*given, out)
    for part, reference in zip(out.chunk(3, -1), correct, strict=True):
        found = part.reshape(2, 9, 3, 8).transpose(1, 2).double()
        torch.testing.assert_close(found, reference, rtol=4e-3, atol=4e-3)


def test_gradients_in_full_precision_are_left_to_others() -> None:
    t, s = meta.ir.parse_type("float32[1, 2, 8, 8]"), meta.ir.parse_type("float32[1, 2, 8]")
    call = BACKWARD.call_values((t, t, t, None, t, s, t, False, None, "BHSD"), CUDA)
    with pytest.raises(Unsupported, match="META_TF32 is off"):
        attention.fused_attention_dx.make(call)


def case(query: str, key: str, value: str, layout: str = "BHSD") -> tuple[object, ...]:
    types = [meta.ir.parse_type(t) for t in (query, key, value)]
    return (*types, None, False, None, layout)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (case(*["float64[1, 2, 8, 64]"] * 3), "made for float32"),
        (case(*["float16[1, 2, 8, 12]"] * 3), "multiples of 8 elements"),
        (case(*["float16[1, 2, 8, 72]"] * 3), "up to 64"),
        (case(*["float16[1, 2, 65, 64]"] * 3), "65 queries or keys"),
        (case(*["float32[1, 2, 8, 6]"] * 3), "multiples of 4 elements"),
        (case(*["float32[1, 2, 8, 132]"] * 3), "up to 128"),
        (case(*["float32[1, 2, 8, 8]"] * 2, "float32[1, 2, 8, 4]"), "one width"),
        (case("float32[1, 2, 0, 8]", *["float32[1, 2, 8, 8]"] * 2), "empty"),
    ],
)
def test_what_is_left_to_others(arguments: tuple[object, ...], reason: str) -> None:
    with pytest.raises(Unsupported, match=reason):
        attention.fused_attention.make(FORWARD.call_values(arguments, CUDA))
