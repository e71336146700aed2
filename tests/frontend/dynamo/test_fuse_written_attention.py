"""Attention in half precision that a model writes out is one operator of the program, and its
gradient others; what means something else stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from meta.frontend.dynamo import attention_operators, compiler, fuse_attention

B, H, Q, K, D = 6, 2, 5, 7, 8
SHAPES = {"q": (B, H, Q, D), "k": (B, H, K, D), "v": (B, H, K, D), "bias": (H, Q, K)}
Form = Callable[..., Any]


@pytest.fixture(autouse=True)
def _as_on_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuse_attention, "ATTENTION_ON", ("cpu",))


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


WINDOWS = torch.where(numbers(3, Q, K, seed=7) > 0.5, -100.0, 0.0)
CONSTANT = numbers(Q, K, seed=8)
BATCHES = numbers(B, 1, 1, K, seed=9)
EMPTY = torch.zeros(Q, K).index_fill(0, torch.tensor(2), -torch.inf)
PARTLY = torch.where(numbers(Q, K, seed=10) > 0.8, -torch.inf, 0.0).index_fill(
    1, torch.tensor(0), 0.0
)
HUGE = torch.where(numbers(Q, K, seed=11) > 0, torch.finfo(torch.float32).min, 0.0)


def windows(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Shifted windows of 2 images, 3 of each."""
    scores = (q * D**-0.5) @ k.transpose(-2, -1) + bias.unsqueeze(0)
    scores = scores.view(-1, 3, H, Q, K) + WINDOWS.to(v.dtype).unsqueeze(1).unsqueeze(0)
    return F.dropout(scores.view(-1, H, Q, K).softmax(-1), 0.0) @ v


def in_place(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.matmul(q, k.mT) / 3
    scores += bias
    return torch.softmax(scores, dim=-1) @ v


def with_views(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """A product whose result is viewed as it lies in memory."""
    y = F.softmax(bias + q @ k.transpose(2, 3) * 0.3, dim=3) @ v
    return y.view(B * H, Q, D)


def used_twice(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    y = F.softmax(q @ k.transpose(2, 3) + bias, dim=-1) @ v
    again = F.softmax(y @ k.transpose(2, 3) + bias, dim=-1) @ v
    return y.transpose(1, 2).reshape(B, Q, H * D) * again.permute(0, 2, 1, 3).flatten(2)


def masked(mask: Tensor) -> Form:
    return lambda q, k, v, bias: (q @ k.transpose(-2, -1) * 0.4 + mask.to(v.dtype)).softmax(-1) @ v


def unbound(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Key and value are fields of one tensor."""
    key, value = torch.stack([k, v]).unbind(0)
    return torch.softmax(q @ key.transpose(-2, -1) + bias, dim=-1) @ value


def scaled_with_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return ((q @ k.transpose(-2, -1) + bias) * 0.3).softmax(-1) @ v


def two_masks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = torch.add(q @ k.transpose(-2, -1), BATCHES.to(v.dtype))
    return (scores + bias).softmax(-1).to(v.dtype) @ v


SEEN = numbers(Q, K, seed=12) > -0.5
BEFORE = torch.ones(Q, K, dtype=torch.bool).tril()
LEAST = torch.finfo(torch.bfloat16).min


def hidden(fill: float, seen: Tensor = SEEN) -> Form:
    """Scores that a query may not look at are replaced."""

    def form(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        scores = torch.where(seen, q @ k.transpose(-2, -1) * 0.4, fill)
        return scores.softmax(-1, dtype=torch.float32).to(v.dtype) @ v

    return form


def of_stacks(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """By products of stacks of matrices, one of which adds something."""
    q, k, v = (t.flatten(0, 1) for t in (q, k, v))
    slopes = torch.arange(K, device=q.device).to(q.dtype).mul(0.1).expand(B * H, 1, K)
    scores = torch.baddbmm(slopes, q, k.mT, alpha=0.4).view(B, H, Q, K).float() + bias
    weights = scores.softmax(-1).to(v.dtype).view(B * H, Q, K)
    return torch.bmm(weights, v).view(B, H, Q, D)


class Sine(torch.autograd.Function):
    """A function with a gradient of its own, which writes to nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.sin(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return torch.cos(x) * dy


def around_functions(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """The mask of the second one is made before a function with a gradient of its own."""
    mask = bias.to(v.dtype) * 0.5
    y = (q @ k.transpose(-2, -1) + mask).softmax(-1) @ v
    y = Sine.apply(y)
    return (y @ k.transpose(-2, -1) + mask).softmax(-1) @ v


def of_parts(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Key and value are slices of one array."""
    joined = torch.stack([k, v], 2)
    key, value = joined[..., 0, :, :], joined[..., 1, :, :]
    return (q @ key.transpose(-2, -1) + bias).softmax(-1) @ value


FORMS: dict[str, Form] = {
    "learned": lambda q, k, v, bias: (q @ k.transpose(-2, -1) * 0.4 + bias).softmax(-1) @ v,
    "windows": windows,
    "in place": in_place,
    "viewed": with_views,
    "used twice": used_twice,
    "a constant": masked(CONSTANT),
    "of batches": masked(BATCHES),
    "with minus infinities": masked(PARTLY),
    "of the least number": masked(HUGE),
    "two masks": two_masks,
    "unbound": unbound,
    "without a mask": lambda q, k, v, bias: (q @ k.transpose(-2, -1) * 0.4).softmax(-1) @ v,
    "a mask is scaled": scaled_with_mask,
    "hidden by minus infinity": hidden(-torch.inf),
    "hidden by the least number": hidden(LEAST),
    "hidden from a query": hidden(LEAST, SEEN.index_fill(0, torch.tensor(2), False)),
    "causal": hidden(-torch.inf, BEFORE),
    "of stacks": of_stacks,
    "around functions": around_functions,
    "of parts": of_parts,
}


def run(form: Form, dtype: torch.dtype, autocast: bool) -> list[Tensor]:
    """Return the result and the gradients: of halves, of float32 under autocast, or in float64."""
    parts = [numbers(*s, seed=i) for i, s in enumerate(SHAPES.values())]
    rounded = [p.to(torch.bfloat16).to(dtype).requires_grad_() for p in parts]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = form(*rounded)
    y = y if isinstance(y, Tensor) else torch.cat([t.flatten() for t in y])
    y.backward(torch.linspace(-1, 1, y.numel()).to(torch.bfloat16).view(y.shape).to(y.dtype))
    found = [torch.zeros_like(p) if p.grad is None else p.grad for p in rounded]
    return [y.detach(), *found]


def programs(form: Form, dtype: torch.dtype, autocast: bool) -> tuple[str, list[Tensor]]:
    with compiler.record_compiled_graphs() as graphs:
        found = run(torch.compile(form, backend="meta", fullgraph=True), dtype, autocast)
    modules = [str(p.executable.module) for g in graphs for p in g.programs()]
    lines = [line.split("  # ")[0] for text in modules for line in text.splitlines()]
    return "\n".join(lines), found


def check(form: Form, found: list[Tensor], dtype: torch.dtype, autocast: bool) -> None:
    """Beside float64: not further from it than PyTorch is."""
    plain, exact = run(form, dtype, autocast), run(form, torch.float64, False)
    for one, other, right in zip(found, plain, exact, strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        assert torch.equal(one.isnan(), other.isnan())
        here = right.isfinite()
        assert torch.equal(here, ~one.isnan())
        distance = [(t.double() - right)[here].norm() for t in (one, other)]
        assert distance[0] <= 1.5 * distance[1] + 4e-3 * right[here].norm()


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # by Dynamo
@pytest.mark.parametrize("autocast", [True, False], ids=["autocast", "bfloat16"])
@pytest.mark.parametrize("name", FORMS)
@pytest.mark.long
def test_it_is_what_is_written(name: str, autocast: bool) -> None:
    dtype = torch.float32 if autocast else torch.bfloat16
    text, found = programs(FORMS[name], dtype, autocast)
    times = 2 if name in ("used twice", "around functions") else 1
    assert [len(re.findall(rf"\bfused_attention{s}\(", text)) for s in ("", "_dx")] == [times] * 2
    assert "softmax" not in text
    check(FORMS[name], found, dtype, autocast)


@pytest.mark.parametrize("shifted", [False, True])
def test_parts_of_a_projection_are_read_where_they_lie(shifted: bool) -> None:
    """As windows of images have them: nothing is transposed or copied around the call."""

    def form(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        parts = torch.stack([q, k, v], 2).reshape(B, 7, 3, H, D).permute(2, 0, 3, 1, 4)
        query, key, value = parts.unbind(0)
        scores = query * 0.5 @ key.transpose(-2, -1) + bias
        if shifted:
            scores = scores.view(-1, 3, H, 7, 7) + mask.to(v.dtype)[:, None][None]
        y = scores.view(-1, H, 7, 7).softmax(-1) @ value
        return y.transpose(1, 2).reshape(B, 7, H * D)

    mask = torch.where(numbers(3, 7, 7, seed=7) > 0.5, -100.0, 0.0)
    given = [numbers(B, 7, H * D, seed=i).bfloat16().requires_grad_() for i in range(3)]
    bias = numbers(H, 7, 7, seed=4).bfloat16().requires_grad_()
    with compiler.record_compiled_graphs() as graphs:
        y = torch.compile(form, backend="meta", fullgraph=True)(*given, bias)
        y.sum().backward()
    text = "\n".join(str(p.executable.module) for g in graphs for p in g.programs())
    for call in ("fused_attention", "fused_attention_dx"):
        (line,) = re.findall(rf"\b{call}\(.*", text)
        assert 'layout="BSHD"' in line
    assert "permute_dims(" not in text and "copy(" not in text
    exact = form(*(t.detach().double() for t in given), bias.detach().double())
    assert (y.double() - exact).norm() <= 2e-2 * exact.norm()


@pytest.mark.parametrize("trained", [False, True])
def test_long_sequences(trained: bool) -> None:
    given = [numbers(2, 2, 80, 16, seed=i).bfloat16().requires_grad_() for i in range(3)]
    mask = numbers(80, 80, seed=4).bfloat16().requires_grad_(trained)

    def form(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (q @ k.mT * 0.25 + mask).softmax(-1) @ v

    with compiler.record_compiled_graphs() as graphs:
        y = torch.compile(form, backend="meta", fullgraph=True)(*given, mask)
        y.square().sum().backward()
    text = "\n".join(str(p.executable.module) for g in graphs for p in g.programs())
    assert "softmax" not in text and ("fused_attention_dmask(" in text) == trained
    leaves = [t.detach().double().requires_grad_() for t in (*given, mask)]
    exact = form(*leaves)
    exact.square().sum().backward()
    assert (y.double() - exact).norm() <= 2e-2 * exact.norm()
    for one, right in zip((*given, *[mask] * trained), leaves, strict=False):
        assert (one.grad.double() - right.grad).norm() <= 3e-2 * right.grad.norm()


def test_a_query_that_sees_nothing_is_nan() -> None:
    """As it is in PyTorch."""
    form = masked(EMPTY)
    _, found = programs(form, torch.bfloat16, False)
    assert found[0][:, :, 2].isnan().all() and found[0][:, :, :2].isfinite().all()
    for one, other in zip(found, run(form, torch.bfloat16, False), strict=True):
        assert torch.equal(one.isnan(), other.isnan())


def test_float16() -> None:
    def halved(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return FORMS["learned"](q.half(), k.half(), v.half(), bias.half()).float()

    text, found = programs(halved, torch.float32, False)
    assert text.count("fused_attention(") == 1
    check(halved, found, torch.float32, False)


def weights_returned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    weights = (q @ k.transpose(-2, -1) + bias).softmax(-1)
    return weights @ v, weights


def scores_returned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    scores = q @ k.transpose(-2, -1) + bias
    return scores.softmax(-1) @ v, scores


def product_returned(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Any:
    product = q @ k.transpose(-2, -1)
    return (product + bias).softmax(-1) @ v, product


def written_between(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    q, k = (q * 1.5).detach(), k.detach()
    scores = q @ k.transpose(-2, -1) + bias
    q += 1.0
    return scores.softmax(-1) @ v + q.sum()


def written_after_scaling(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    q = q + 0.5
    scaled = q * 0.5
    q.add_(1.0)
    return (scaled @ k.transpose(-2, -1) + bias).softmax(-1) @ v + q.sum()


def written_by_relu(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    q, k = (q * 1.5).detach(), k.detach()
    scores = q @ k.transpose(-2, -1) + bias
    F.relu(q, True)
    return scores.softmax(-1) @ v + q.sum()


def written_mask(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    added = bias * 1.0
    scores = q @ k.transpose(-2, -1) + added
    added[0] = 3.0
    return scores.softmax(-1) @ v + added.sum()


def without_gradient(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    with torch.no_grad():
        scores = q @ k.transpose(-2, -1)
    return (scores + bias).softmax(-1) @ v


def over_queries(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) + bias).softmax(-2) @ v


def wide_scores(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    scores = q.float() @ k.float().transpose(-2, -1) + bias
    return scores.softmax(-1).to(v.dtype) @ v


OTHERS: dict[str, Form] = {
    "weights are returned": weights_returned,
    "scores are returned": scores_returned,
    "a product is returned": product_returned,
    "query is written": written_between,
    "query is written after it is scaled": written_after_scaling,
    "query is written by relu": written_by_relu,
    "a mask is written": written_mask,
    "scores without a gradient": without_gradient,
    "over queries": over_queries,
    "in float32": wide_scores,
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_means_something_else_stays(name: str) -> None:
    text, found = programs(OTHERS[name], torch.bfloat16, False)
    assert "attention" not in text
    check(OTHERS[name], found, torch.bfloat16, False)


@pytest.mark.parametrize("name", ["over queries", "weights are returned"])
def test_under_autocast_too(name: str) -> None:
    _, found = programs(OTHERS[name], torch.float32, True)
    check(OTHERS[name], found, torch.float32, True)


def test_dropout_stays() -> None:
    def form(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
        return F.dropout((q @ k.transpose(-2, -1) + bias).softmax(-1), 0.5) @ v

    text, found = programs(form, torch.bfloat16, False)
    assert "attention" not in text
    assert not torch.allclose(found[0], run(FORMS["learned"], torch.bfloat16, False)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_precision_stays(dtype: torch.dtype) -> None:
    text, found = programs(FORMS["learned"], dtype, False)
    assert "attention" not in text
    check(FORMS["learned"], found, dtype, False)


def test_without_gradients_it_is_the_pass_that_finds_attention() -> None:
    parts = [numbers(*s, seed=i).bfloat16() for i, s in enumerate(SHAPES.values())]
    with torch.no_grad():
        found = torch.compile(windows, backend="meta", fullgraph=True)(*parts)
        right = windows(*(p.double() for p in parts))
    torch.testing.assert_close(found.double(), right, rtol=2e-2, atol=2e-2)


def test_the_operators_are_those_of_torchs_checks() -> None:
    """What they return matches what is said of it, and the gradient is the numeric one."""
    parts = [numbers(*s, seed=i).bfloat16() for i, s in enumerate(SHAPES.values())]
    mask = parts.pop()[None].requires_grad_()
    for part in parts:
        part.requires_grad_()
    checks = ("test_schema", "test_faketensor", "test_autograd_registration")
    torch.library.opcheck(
        attention_operators.fused_attention,
        (*parts, mask, False, 0.4, True),
        test_utils=checks,
    )


@pytest.mark.parametrize("shape", [(2, 4, 3, 3), (1, 4, 3, 3), (2, 4, 1, 3), (4, 1, 3, 3), (3, 3)])
@pytest.mark.long
def test_gradients_are_the_numeric_ones(shape: tuple[int, ...]) -> None:
    """Of shared heads, by masks of a part of the batch, too."""
    sizes = [(4, 4, 3, 5), (4, 2, 3, 5), (4, 2, 3, 5), shape]
    given = [numbers(*s, seed=i).double().requires_grad_() for i, s in enumerate(sizes)]
    for later in (False, True):
        assert torch.autograd.gradcheck(
            lambda *t, later=later: attention_operators.fused_attention(*t, False, 0.4, later)[0],
            given,
        )
