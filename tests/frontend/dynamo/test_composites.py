"""Activations and normalisations that a model writes out are operators of the program under
torch.compile, and their gradients others.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.testing import assert_close

from meta import op
from meta.frontend.dynamo import compiler, composites
from tests.passes.composite_forms import FORMS, OTHERS, ROOT, Form

META = torch.ops.meta
X = torch.linspace(-6, 6, 600).view(30, 20)
W, B = torch.linspace(0.5, 2.0, 20), torch.linspace(-1.0, 1.0, 20)
CALLS = {
    "exact_gelu": r"gelu\(",
    "tanh_gelu": r"gelu\(.*approximate=\"tanh\"",
    "rms_norm": r"rms_norm\(",
    "layer_norm": r"layer_norm\w*\(",
}


def methods(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """GELU by methods of tensors."""
    return x.mul(0.5) * (x + 0.044715 * x**3).mul(ROOT).tanh().add(1)


WRITTEN = {**FORMS, "methods": ("tanh_gelu", methods)}
CLOSE = {torch.float64: 1e-11, torch.float32: 5e-6, torch.float16: 4e-3}


def network(form: Form) -> Callable[..., Tensor]:
    """Return a network with a form in it, after a product."""
    return lambda x, w, b: form(torch, x @ torch.eye(x.shape[1], dtype=x.dtype), w, b)


def run(function: Any, dtype: torch.dtype, half: torch.dtype | None = None) -> list[Tensor]:
    """Return the result and the gradients of x, a scale and a bias."""
    given = [t.to(dtype, copy=True).requires_grad_() for t in (X, W, B)]
    with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
        y = function(*given)
    y.backward(torch.linspace(0, 1, y.numel(), dtype=y.dtype).view(y.shape))
    return [y.detach(), *(torch.zeros_like(t) if t.grad is None else t.grad for t in given)]


def programs(
    form: Form, dtype: torch.dtype, half: torch.dtype | None = None
) -> tuple[str, list[Tensor]]:
    """Return the programs of a form, and what they give."""
    with compiler.record_compiled_graphs() as graphs:
        compiled = torch.compile(network(form), backend="meta", fullgraph=True)
        found = run(compiled, dtype, half)
    text = "\n".join(str(p.executable.module) for g in graphs for p in g.programs())
    return re.sub("  # .*", "", text), found  # without the lines of this file


HALF = pytest.param(torch.float16, marks=pytest.mark.slow)


@pytest.mark.product
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, HALF])
@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_what_is_written(name: str, dtype: torch.dtype) -> None:
    what, form = WRITTEN[name]
    text, found = programs(form, dtype)
    # 0.7978845608 is not the root for float64.
    whole = not (dtype == torch.float64 and name == "ten digits")
    operator = CALLS[what].split("\\")[0]
    assert bool(re.search(CALLS[what], text)) == whole
    assert bool(re.search(rf"{operator}\w*_dx\(", text)) == whole
    assert ('approximate="tanh"' in text) == (whole and what == "tanh_gelu")
    expected, exact = run(network(form), dtype), run(network(form), torch.float64)
    for one, other, right in zip(found, expected, exact, strict=True):
        assert one.dtype == other.dtype
        bound = CLOSE[dtype] * max(1.0, float(right.abs().max()))
        bound += 4 * float((other.double() - right).abs().max())  # as far as PyTorch is
        assert_close(one.double(), right, rtol=CLOSE[dtype], atol=bound)


@pytest.mark.product
@pytest.mark.parametrize("name", ["gpt2", "erf"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_in_mixed_precision(name: str, half: torch.dtype) -> None:
    """The dtype of the result is torch's, and it is nearer to the exact one."""
    _, form = FORMS[name]
    text, found = programs(form, torch.float32, half)
    assert "gelu_dx(" in text and "tanh(" not in text and "erf(" not in text

    def rounded(x: Tensor, w: Tensor, b: Tensor) -> Tensor:  # what the product gives
        return form(torch, x + (x.detach().to(half) - x.detach()), w, b)

    plain, exact = run(network(form), torch.float32, half), run(rounded, torch.float64)
    for one, other, right in zip(found[:2], plain, exact, strict=False):
        assert one.dtype == other.dtype
        assert (one - right).norm() <= 1.1 * (other - right).norm() + 1e-6


def test_what_autocast_casts_behind_it_is_of_half_precision() -> None:
    """The power is of float32, as of autocast on CUDA, and a product reads the result."""

    def form(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        inner = ROOT * (x + 0.044715 * torch.pow(x.float(), 3.0))
        return (0.5 * x * (1.0 + torch.tanh(inner))) @ torch.eye(20)

    text, found = programs(form, torch.float32, torch.bfloat16)
    assert re.search(r"bfloat16\[30, 20\] = \S*gelu\(", text) and "gelu_dx(" in text
    assert "tanh(" not in text and "pow(" not in text
    plain = run(network(form), torch.float32, torch.bfloat16)
    exact = run(network(FORMS["gpt2"][1]), torch.float64)
    for one, other, right in zip(found[:2], plain, exact, strict=False):
        assert one.dtype == other.dtype
        assert (one - right).norm() <= 1.1 * (other - right).norm() + 1e-6


def test_products_that_share_a_norm_under_autocast_share_its_call() -> None:
    """Autocast casts the result for each product, and gradients add up before these casts."""

    def form(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        y = w * (x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6))
        square = w.detach().diag()
        return (y @ square) * (y @ square.exp()) + y @ square.cos()

    text, found = programs(form, torch.float32, torch.bfloat16)
    forward, backward = re.split("(?=func @main)", text)[1:]
    assert forward.count("rms_norm(") == 1 and "mean(" not in text and "pow(" not in text
    assert backward.count("rms_norm_dx(") == 1
    plain = run(network(form), torch.float32, torch.bfloat16)
    exact = run(network(form), torch.float64)
    for one, other, right in zip(found[:2], plain, exact, strict=False):
        assert one.dtype == other.dtype
        assert (one - right).norm() <= 1.1 * (other - right).norm() + 1e-6


def test_a_norm_that_is_rounded_before_a_sum_of_float32() -> None:
    """What a sum promotes is a reader of the norm like others."""

    def form(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        wide = x.float()
        y = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        rounded = (y * (1.0 + w.float())).type_as(x)
        return b + rounded

    text, found = programs(form, torch.float32, torch.bfloat16)
    forward, backward = re.split("(?=func @main)", text)[1:]
    assert forward.count("rms_norm(") == 1 and "mean(" not in text and "square(" not in text
    assert backward.count("rms_norm_dx(") == 1
    plain = run(network(form), torch.float32, torch.bfloat16)
    exact = run(network(form), torch.float64)
    for one, other, right in zip(found, plain, exact, strict=True):
        assert one.dtype == other.dtype
        assert (one - right).norm() <= 1.1 * (other - right).norm() + 1e-6


def test_what_the_steps_promote_is_promoted() -> None:
    """Autocast on CUDA takes the power to float32, and what follows is of that dtype."""
    form = FORMS["gpt2"][1]
    graph = fx.symbolic_trace(lambda x: form(torch, x, None, None))
    halves = X.bfloat16()
    for node in graph.graph.nodes:
        node.meta["example_value"] = halves if node.op == "placeholder" else X
    composites.fuse_composites(graph)
    called = [n.target for n in graph.graph.nodes if n.op.startswith("call")]
    assert called == [composites.TORCH_CALLS[o] for o in (op.astype, op.gelu)]
    found = graph(halves)
    assert found.dtype == torch.float32
    assert_close(found, form(torch, halves.float(), None, None), rtol=1e-5, atol=1e-5)


def in_between(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x is written between two steps."""
    x = x + 0.0
    half = 0.5 * x
    x.add_(1.0)
    return half * (1 + torch.erf(x / math.sqrt(2)))


def before_the_product(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """x is written between the factor and the product."""
    x = x * 1.0
    factor = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)
    x.add_(1.0)
    return x * factor * w


def detached(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """The factor is a constant to the gradient."""
    return x * torch.rsqrt(x.detach().pow(2).mean(-1, keepdim=True) + 1e-5) * w


STAY = {**OTHERS, "written": in_between, "detached": detached}


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name: str) -> None:
    text, found = programs(STAY[name], torch.float32)
    assert not re.search(r"\bgelu|\brms_norm|\blayer_norm", text) or name == "another axis"
    for one, other in zip(found, run(network(STAY[name]), torch.float32), strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-4 * max(1.0, float(other.abs().max())))


def test_a_norm_whose_x_is_written_stays() -> None:
    """It has no gradient in PyTorch."""
    function = network(before_the_product)
    with torch.no_grad(), compiler.record_compiled_graphs() as graphs:
        found = torch.compile(function, backend="meta", fullgraph=True)(X, W, B)
        assert_close(found, function(X, W, B))
    assert "meta.rms_norm.default" not in [str(n.target) for n in graphs[0].graph.graph.nodes]


def tanh_too(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    inner = torch.tanh(ROOT * (x + 0.044715 * x**3))
    return 0.5 * x * (1 + inner) + inner


def variance_too(lib: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    variance = x.pow(2).mean(-1, keepdim=True)
    return w * (x * torch.rsqrt(variance + 1e-5)) + variance


@pytest.mark.parametrize("form", [tanh_too, variance_too])
def test_steps_that_are_read_are_there_too(form: Form) -> None:
    _, found = programs(form, torch.float32)
    for one, other in zip(found, run(network(form), torch.float32), strict=True):
        assert_close(one, other, rtol=1e-4, atol=1e-4 * max(1.0, float(other.abs().max())))


class Norm(nn.Module):
    """A form with casts, and a weight that is not 1."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(0.5, 2.0, width))
        self.eps = 1e-5


class Llama(Norm):
    def forward(self, x: Tensor) -> Tensor:
        dtype = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(dtype)


class T5(Norm):
    def forward(self, x: Tensor) -> Tensor:
        variance = x.to(torch.float32).pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x


class Square(Norm):
    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        return torch.rsqrt((wide * wide).mean(dim=-1, keepdim=True) + self.eps) * wide * self.weight


class OnePlus(Norm):
    """As Gemma has it."""

    def forward(self, x: Tensor) -> Tensor:
        wide = x.float()
        normal = wide * torch.rsqrt(torch.square(wide).mean([-1], keepdim=True) + self.eps)
        return (normal * (1.0 + self.weight.float())).to(x.dtype)


class Image(Norm):
    """A weight that is no vector of the last axis."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weight[:, None]


class Channels(Norm):
    """Along another axis than the last."""

    def forward(self, x: Tensor) -> Tensor:
        x = x.movedim(-1, 0)
        root = (x.float().pow(2).mean(0, keepdim=True) + self.eps).rsqrt()
        weight = self.weight.reshape(-1, *(1,) * (x.ndim - 1))
        return (x.float() * root * weight).movedim(0, -1)


NORMS = [Llama, T5, Square, OnePlus, Channels]


def step(model: nn.Module, call: Any, x: Tensor) -> list[Tensor]:
    x = x.detach().requires_grad_()
    y = call(x)
    (y.float() * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    found = [y.detach(), x.grad, model.weight.grad]
    model.weight.grad = None  # type: ignore[assignment]
    return found


@pytest.mark.product
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(3, 5, 8), (8,), (0, 8)], ids=str)
@pytest.mark.parametrize("norm", NORMS)
def test_norms_with_casts(norm: type[Norm], shape: tuple[int, ...], dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model = norm()
    model = model.to(torch.bfloat16) if dtype == torch.bfloat16 and norm is not Llama else model
    x = torch.randn(shape).to(dtype)
    exact = copy.deepcopy(model).double()
    found = step(model, torch.compile(model, backend="meta", fullgraph=True), x)
    said = step(model, model, x)
    expected = step(exact, lambda x: _in_float64(exact, x), x.double())
    tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-5
    for a, b, c in zip(found, said, expected, strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert_close(a.double(), c, rtol=tolerance, atol=tolerance)


def _in_float64(model: Norm, x: Tensor) -> Tensor:
    scale = 1.0 + model.weight if isinstance(model, OnePlus) else model.weight
    return x * (x.pow(2).mean(-1, keepdim=True) + model.eps).rsqrt() * scale


def targets(model: nn.Module, *inputs: Tensor) -> dict[str, list[str]]:
    with compiler.record_compiled_graphs() as graphs:
        torch.compile(model, backend="meta", fullgraph=True)(*inputs).sum().backward()
    return {g.role: [str(n.target) for n in g.graph.graph.nodes] for g in graphs}


@pytest.mark.parametrize("norm", NORMS)
def test_a_norm_is_one_operator_each_way(norm: type[Norm]) -> None:
    found = targets(norm(), torch.randn(3, 8, requires_grad=True))
    assert found["forward"].count("meta.rms_norm.default") == 1
    assert found["backward"].count("meta.rms_norm_dx.default") == 1
    assert not any("rsqrt" in t for t in (*found["forward"], *found["backward"]))


def test_in_a_transform_of_functorchs() -> None:
    """It has rules for PyTorch's operators alone."""
    model = Square()

    def loss(x: Tensor, times: int) -> Tensor:
        if times:
            return torch.func.grad(loss)(x, times - 1).square().sum()
        return model(x).pow(3).sum()

    torch.manual_seed(0)
    x = torch.randn(3, 8)
    for times in (1, 2):
        found = torch.compile(loss, backend="meta", fullgraph=True)(x, times)
        assert_close(found, loss(x, times), rtol=1e-4, atol=1e-4)


def test_a_weight_of_another_axis_is_no_scale() -> None:
    torch.manual_seed(0)
    x, model = torch.rand(8, 8, requires_grad=True), Image()
    with compiler.record_compiled_graphs() as graphs:
        found = torch.compile(model, backend="meta", fullgraph=True)(x)
    (norm,) = (n for n in graphs[0].graph.graph.nodes if n.target is META.rms_norm.default)
    assert norm.args[1] is None
    assert_close(found, model(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_operator_runs_in_pytorch(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(4, 8).to(dtype).requires_grad_(), torch.rand(8, requires_grad=True)
    y = META.rms_norm(x, w, -1, 1e-6)
    wide = x.detach().double().requires_grad_()
    expected = wide * (wide.pow(2).mean(-1, keepdim=True) + 1e-6).rsqrt() * w.double()
    assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)
    dy = torch.randn(4, 8)
    dx, dw = torch.autograd.grad(y, (x, w), dy)
    gx, gw = torch.autograd.grad(expected, (wide, w), dy.double())
    tolerance = 1e-2 if dtype == torch.bfloat16 else 1e-5
    assert_close(dx.double(), gx, rtol=tolerance, atol=tolerance)
    assert_close(dw, gw, rtol=1e-4, atol=1e-4)
