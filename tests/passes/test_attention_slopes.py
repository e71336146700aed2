"""Numbers that fall with the distance of query and key become slopes of the attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU, Device
from meta.passes import fuse_attention, infer_type
from meta.passes.attention import _sloped_on

B, H, S, D = 2, 3, 10, 8
INF = float("inf")
SLOPES = torch.tensor([0.5, 0.3, 0.0625])
ALWAYS: dict[str, Any] = {"least_keys": {"cpu": (0, 0)}, "sloped": ("float32", "float16")}
PLACES = torch.arange(float(S))
DISTANCE = PLACES - PLACES.unsqueeze(-1)
CAUSAL = DISTANCE <= 0
FORMS: dict[str, tuple[torch.Tensor, torch.Tensor | None, float, str]] = {
    # Numbers, what is seen, a factor of both, what the call says.
    "places (Bloom)": (SLOPES.view(H, 1, 1) * PLACES, CAUSAL, 1.0, "causal=True"),
    "places from the end (MPT)": (
        SLOPES.view(1, H, 1, 1) * torch.arange(1.0 - S, 1.0), CAUSAL, 1.0, "causal=True"
    ),
    "scaled together (Falcon)": (SLOPES.view(H, 1, 1) * PLACES, CAUSAL, 0.25, "causal=True"),
    "distances": (SLOPES.view(H, 1, 1) * DISTANCE, CAUSAL, 1.0, "causal=True"),
    "both sides": (-SLOPES.view(H, 1, 1) * DISTANCE.abs(), None, 1.0, ""),
    "a window": (
        SLOPES.view(H, 1, 1) * DISTANCE, CAUSAL & (DISTANCE > -4), 1.0, "window=(3, -1)"
    ),
    "looking ahead": (SLOPES.view(H, 1, 1) * PLACES, DISTANCE >= 0, 1.0, "window=(0, -1)"),
    "each batch": (
        (SLOPES * torch.tensor([[1.0], [2.0]])).view(B, H, 1, 1) * PLACES, CAUSAL, 1.0, "causal"
    ),
    "rising": (-SLOPES.view(H, 1, 1) * PLACES, CAUSAL, 1.0, "causal=True"),
}  # fmt: skip


def written(numbers: Any, seen: Any, factor: float, merged: bool = False) -> Any:
    """Return attention that is written out: with numbers, then what hides scores."""
    numbers = meta.array(numbers)
    hidden = None if seen is None else meta.array(~seen)

    @meta.model.trace
    def attention(query, key, value):
        if merged:  # as Bloom's: batch and heads are one axis
            query, key, value = (op.reshape(x, (B * H, S, D)) for x in (query, key, value))
            bias = op.reshape(op.broadcast_to(numbers, (B, H, 1, S)), (B * H, 1, S))
        else:
            bias = numbers
        axes = (0, 2, 1) if merged else (0, 1, 3, 2)
        scores = (query @ op.permute_dims(key, axes) + bias) * factor
        if hidden is not None:
            scores = op.where(hidden, -1e9, scores)
        return op.reshape(op.softmax(scores) @ value, (B, H, S, D))

    return attention


def expected(tensors: list[torch.Tensor], numbers: Any, seen: Any, factor: float) -> torch.Tensor:
    query, key, value = (t.double() for t in tensors)
    scores = (query @ key.mT + numbers.double()) * factor
    return (scores if seen is None else scores.masked_fill(~seen, -INF)).softmax(-1) @ value


def line_of(function: Any, arrays: list[Any], **how: Any) -> str:
    found = infer_type(fuse_attention(function.program(*arrays).module, device=CPU, **how))
    lines = [x for x in str(found).splitlines() if "fused_attention" in x]
    assert len(lines) == 1, found
    return lines[0]


@pytest.mark.parametrize("form", FORMS)
def test_numbers_that_fall_evenly_are_slopes(form: str) -> None:
    numbers, seen, factor, says = FORMS[form]
    tensors = [torch.randn(B, H, S, D) for _ in range(3)]
    arrays = [*map(meta.array, tensors)]
    wanted = expected(tensors, numbers, seen, factor)
    for merged in (False, True):
        if merged and numbers.shape[-2] != 1:
            continue
        attention = written(numbers, seen, factor, merged)
        line = line_of(attention, arrays, **ALWAYS)
        assert "slopes=" in line and says in line and f"scale={factor}" in line, line
        with meta.PassContext(config={"fuse_attention": ALWAYS}):
            run = meta.vm.compile(attention, *arrays)
        assert run.kernels()["torch.fused_attention"] == 1
        torch.testing.assert_close(run(*arrays).torch().double(), wanted, rtol=1e-4, atol=1e-5)


def test_gradients_with_slopes() -> None:
    numbers, seen, factor, _ = FORMS["places (Bloom)"]
    tensors = [torch.randn(B, H, S, D) for _ in range(3)]

    class Net(meta.Model):
        def build(self) -> None:
            self.query, self.key, self.value = map(meta.array, tensors)
            for array in self.state().values():
                array.requires_grad = True

        @meta.model.trace
        def forward(self):
            return written(numbers, seen, factor)(self.query, self.key, self.value)

    dy = torch.randn(B, H, S, D)
    with meta.PassContext(config={"fuse_attention": ALWAYS}):
        run = meta.vm.compile(meta.model.value_and_grad(Net()), meta.array(dy))
    assert "slopes" in str(run.module) and run.kernels()["torch.fused_attention_dx"] == 1
    _, gradients = run(meta.array(dy))
    precise = [t.double().requires_grad_() for t in tensors]
    expected(precise, numbers, seen, factor).backward(dy.double())
    for name, tensor in zip(("query", "key", "value"), precise, strict=True):
        torch.testing.assert_close(
            gradients[name].torch().double(), tensor.grad, rtol=1e-4, atol=1e-5
        )


@pytest.mark.parametrize("batches", [1, B])
def test_one_mask_with_both_and_masks_of_batches(batches: int) -> None:
    """As Falcon's; and masks that are written for each batch, as Mistral's, are windows."""
    numbers, seen, factor, _ = FORMS["a window"]
    assert seen is not None
    tensors = [torch.randn(B, H, S, D) for _ in range(3)]
    arrays = [*map(meta.array, tensors)]
    hidden = torch.where(seen, 0.0, torch.finfo(torch.float32).min).expand(batches, 1, S, S)
    for mask, sloped in ((hidden + numbers, True), (hidden, False)):
        line = line_of(written(mask, None, factor), arrays, **ALWAYS)
        assert "causal=True" in line and "window=(3, -1)" in line, line
        assert ("slopes=" in line) == sloped
        with meta.PassContext(config={"fuse_attention": ALWAYS}):
            run = meta.vm.compile(written(mask, None, factor), *arrays)
        wanted = expected(tensors, mask, None, factor)
        torch.testing.assert_close(run(*arrays).torch().double(), wanted, rtol=1e-4, atol=1e-5)


def test_one_query_of_many_keys() -> None:
    tensors = [torch.randn(B, H, 1, D), torch.randn(B, H, S, D), torch.randn(B, H, S, D)]
    arrays, numbers = [*map(meta.array, tensors)], SLOPES.view(H, 1, 1) * PLACES

    @meta.model.trace
    def attention(query, key, value):
        scores = query @ op.permute_dims(key, (0, 1, 3, 2)) + meta.array(numbers)
        return op.softmax(scores) @ value

    assert "slopes=" in line_of(attention, arrays, **ALWAYS)
    with meta.PassContext(config={"fuse_attention": ALWAYS}):
        run = meta.vm.compile(attention, *arrays)
    wanted = expected(tensors, numbers, None, 1.0)
    torch.testing.assert_close(run(*arrays).torch().double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("why", "numbers", "seen"),
    [
        ("both sides are seen", SLOPES.view(H, 1, 1) * PLACES, None),
        ("they are not even", SLOPES.view(H, 1, 1) * PLACES**2, CAUSAL),
        ("they are rounded", (SLOPES.view(H, 1, 1) * PLACES * 101).bfloat16().float(), CAUSAL),
        ("they are not even along rows", SLOPES.view(H, 1, 1) * DISTANCE**3, CAUSAL),
        ("they are equal", SLOPES.view(H, 1, 1) * torch.ones(S), CAUSAL),
        ("what is seen is no band", SLOPES.view(H, 1, 1) * PLACES, DISTANCE % 2 == 0),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_numbers_stay_a_mask(why: str, numbers: torch.Tensor, seen: Any) -> None:
    tensors = [torch.randn(B, H, S, D) for _ in range(3)]
    arrays = [*map(meta.array, tensors)]
    attention = written(numbers, seen, 1.0)
    assert "slopes=" not in line_of(attention, arrays, **ALWAYS)
    with meta.PassContext(config={"fuse_attention": ALWAYS}):
        run = meta.vm.compile(attention, *arrays)
    wanted = expected(tensors, numbers, seen, 1.0)
    torch.testing.assert_close(run(*arrays).torch().double(), wanted, rtol=1e-3, atol=1e-4)


def test_only_where_a_kernel_has_slopes(monkeypatch: pytest.MonkeyPatch) -> None:
    numbers, seen, factor, _ = FORMS["places (Bloom)"]
    arrays = [meta.array(torch.randn(B, H, S, D)) for _ in range(3)]
    line = line_of(written(numbers, seen, factor), arrays, least_keys={"cpu": (0, 0)})
    assert "slopes=" not in line
    triton = next((d for d in meta.dialect.core.dialects() if d.name == "triton"), None)
    assert triton is not None
    cuda = Device("cuda")
    monkeypatch.setattr(type(triton), "refusal", lambda self, device: None)
    with meta.dialect.only("torch", "triton"):
        assert _sloped_on(cuda) == ("bfloat16", "float16") and _sloped_on(CPU) == ()
    assert _sloped_on(cuda) == ()  # tests of this folder allow torch alone
    monkeypatch.setattr(type(triton), "refusal", lambda self, device: "no Triton")
    with meta.dialect.only("torch", "triton"):
        assert _sloped_on(cuda) == ()
