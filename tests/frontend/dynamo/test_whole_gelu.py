"""A GELU that a model writes out is one operator of the program, and its gradient another."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, fx

from meta.frontend.dynamo import compiler, composites

ROOT = math.sqrt(2 / math.pi)
Form = Callable[[Tensor], Tensor]
FORMS: dict[str, tuple[str, Form]] = {
    "gpt2": (
        "tanh",
        lambda x: 0.5 * x * (1.0 + torch.tanh(ROOT * (x + 0.044715 * torch.pow(x, 3.0)))),
    ),
    "a common factor": (
        "tanh",
        lambda x: 0.5 * x * (1.0 + torch.tanh(x * 0.7978845608 * (1.0 + 0.044715 * x * x))),
    ),
    "methods": ("tanh", lambda x: x.mul(0.5) * (x + 0.044715 * x**3).mul(ROOT).tanh().add(1)),
    "products": (
        "tanh",
        lambda x: (torch.tanh((0.044715 * x * x * x + x) * ROOT) + 1) * x / 2,
    ),
    "squares": (
        "tanh",
        lambda x: x * (torch.tanh(x * (1 + 0.044715 * x.square()) * ROOT) + 1) * 0.5,
    ),
    "erf": ("none", lambda x: x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))),
    "erf of a product": ("none", lambda x: 0.5 * (1 + (x * math.sqrt(0.5)).erf()) * x),
}


def after_a_product(form: Form) -> Form:
    """Return a network with a form in it."""
    return lambda x: form(x @ torch.eye(x.shape[1], dtype=x.dtype))


def run(network: Form, x: Tensor, half: torch.dtype | None = None) -> list[Tensor]:
    """Return results and gradients."""
    x = x.clone().requires_grad_()
    with torch.autocast("cpu", half or torch.bfloat16, enabled=half is not None):
        y = network(x)
    y.backward(torch.linspace(0, 1, y.numel(), dtype=y.dtype).view(y.shape))
    assert x.grad is not None
    return [y.detach(), x.grad]


def written(form: Form, x: Tensor, half: torch.dtype | None = None) -> list[Tensor]:
    return run(after_a_product(form), x, half)


def programs(form: Form, x: Tensor, half: torch.dtype | None = None) -> tuple[str, list[Tensor]]:
    """Return the programs of a form, and what they give."""
    with compiler.record_compiled_graphs() as graphs:
        compiled = torch.compile(after_a_product(form), backend="meta", fullgraph=True)
        found = run(compiled, x, half)
    text = "\n".join(str(p.executable.module) for g in graphs for p in g.programs())
    return re.sub("  # .*", "", text), found  # without the lines of this file


X = torch.linspace(-6, 6, 600).view(30, 20)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16])
@pytest.mark.parametrize("name", FORMS)
def test_it_is_what_is_written(name: str, dtype: torch.dtype) -> None:
    approximate, form = FORMS[name]
    x = X.to(dtype)
    text, found = programs(form, x)
    expected, exact = written(form, x), written(form, x.double())
    # 0.7978845608 is not the root for float64.
    kept = not (dtype == torch.float64 and name == "a common factor")
    assert bool(re.search(r"gelu\(", text)) == bool(re.search(r"gelu_dx\(", text)) == kept
    assert ('approximate="tanh"' in text) == (kept and approximate == "tanh")
    for one, other, right in zip(found, expected, exact, strict=True):
        assert one.dtype == other.dtype
        close = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-3}[dtype]
        torch.testing.assert_close(one.double(), right, rtol=close, atol=close)


@pytest.mark.parametrize("name", ["gpt2", "erf"])
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_in_mixed_precision(name: str, half: torch.dtype) -> None:
    """The dtype of the result is torch's, and it is nearer to the exact one."""
    _, form = FORMS[name]
    text, found = programs(form, X, half)
    assert "gelu_dx(" in text and "tanh(" not in text and "erf(" not in text
    rounded = X.to(half).double()  # what the product gives
    for one, other, right in zip(
        found, written(form, X, half), written(form, rounded), strict=True
    ):
        assert one.dtype == other.dtype
        assert (one - right).norm() <= 1.1 * (other - right).norm() + 1e-6


def test_what_the_steps_promote_is_promoted() -> None:
    """Autocast on CUDA takes the power to float32, and what follows is of that dtype."""
    form = FORMS["gpt2"][1]
    graph = fx.symbolic_trace(form)
    halves = X.bfloat16()
    for node in graph.graph.nodes:
        node.meta["example_value"] = halves if node.op == "placeholder" else X
    composites.fuse_composites(graph)
    called = [n.target for n in graph.graph.nodes if n.op.startswith("call")]
    assert called == [composites.to_dtype, composites.gelu]
    found = graph(halves)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, form(halves.float()), rtol=1e-5, atol=1e-5)


OTHERS: dict[str, Form] = {
    "another factor": lambda x: 0.4 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3))),
    "another root": lambda x: 0.5 * x * (1 + torch.tanh(0.8 * (x + 0.044715 * x**3))),
    "another cubic": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.0447 * x**3))),
    "another power": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * x**2))),
    "another sum": lambda x: 0.5 * x * (2 + torch.tanh(ROOT * (x + 0.044715 * x**3))),
    "another argument": lambda x: 0.5 * x * (1 + torch.tanh(ROOT * (x + 0.044715 * (x + 1) ** 3))),
    "another x": lambda x: 0.5 * (x + 1) * (1 + torch.tanh(ROOT * (x + 0.044715 * x**3))),
    "another normal": lambda x: 0.5 * x * (1 + torch.erf(x / 2)),
    "once more": lambda x: 0.5 * x * x * (1 + torch.erf(x / math.sqrt(2))),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    text, found = programs(OTHERS[name], X)
    assert "gelu" not in text
    for one, other in zip(found, written(OTHERS[name], X), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_what_writes_to_x_in_between() -> None:
    def form(x: Tensor) -> Tensor:
        x = x + 0.0
        half = 0.5 * x
        x.add_(1.0)
        return half * (1 + torch.erf(x / math.sqrt(2)))

    text, found = programs(form, X)
    assert "gelu" not in text
    for one, other in zip(found, written(form, X), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


def test_steps_that_are_read_are_there_too() -> None:
    def form(x: Tensor) -> Tensor:
        inner = torch.tanh(ROOT * (x + 0.044715 * x**3))
        return 0.5 * x * (1 + inner) + inner

    _, found = programs(form, X)
    for one, other in zip(found, written(form, X), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
