"""Sizes that vary under torch.compile(backend="meta"), without compiling anew for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import meta
from meta.frontend.dynamo.compiler import GraphCompiler, record_compiled_graphs
from tests.frontend.dynamo.models import Block, cnn, mlp


@pytest.fixture
def graphs(monkeypatch) -> list[GraphCompiler]:
    """Collect what is compiled."""
    found: list[GraphCompiler] = []
    made = GraphCompiler.__init__

    def init(self, *args: Any, **kwargs: Any) -> None:
        found.append(self)
        made(self, *args, **kwargs)

    monkeypatch.setattr(GraphCompiler, "__init__", init)
    return found


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_one_program_for_all_batches(graphs: list[GraphCompiler]) -> None:
    model = mlp()
    run = torch.compile(model, backend="meta", dynamic=True, fullgraph=True)
    with torch.no_grad():
        for n in (2, 5, 7, 64, 3):
            x = torch.randn(n, 8)
            same(run(x), model(x))
    assert len(graphs) == 1
    assert graphs[0].for_all is not None


def test_a_batch_of_one_has_a_program_of_its_own(graphs: list[GraphCompiler]) -> None:
    model = mlp()
    run = torch.compile(model, backend="meta", fullgraph=True)
    with torch.no_grad():
        for n in (4, 1, 6, 9, 1):
            x = torch.randn(n, 8)
            same(run(x), model(x))
    assert len(graphs) <= 3


def test_an_argument_that_is_only_written(graphs: list[GraphCompiler]) -> None:
    """AOTAutograd passes None in its place; the program is one of the sizes of each call."""

    def function(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        y.fill_(2.0)
        return torch.linalg.solve(x, x)

    run = torch.compile(function, backend="meta")
    for n in (3, 5, 6):
        x, y = torch.rand(n, n) + torch.eye(n), torch.rand(n + 2, n + 1)
        same(run(x, y), torch.eye(n))
        assert bool((y == 2.0).all())
    assert graphs[-1].for_all is None


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], torch.Tensor]]] = {
    "mlp": (mlp, lambda n: torch.randn(n, 8)),
    "batch of a cnn": (cnn, lambda n: torch.randn(n, 3, 12, 12)),
    "batch of a transformer": (Block, lambda n: torch.randn(n, 7, 16)),
    "length of a transformer": (Block, lambda n: torch.randn(2, n, 16)),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.long
def test_models_of_several_sizes_train(name: str, graphs: list[GraphCompiler]) -> None:
    make, data = MODELS[name]
    torch.manual_seed(0)
    model = make()
    run = torch.compile(model, backend="meta", dynamic=True, fullgraph=True)
    for n in (4, 6, 5):
        x = data(n)
        model.zero_grad()
        run(x).square().mean().backward()
        found = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().mean().backward()
        for a, p in zip(found, model.parameters(), strict=True):
            same(a, p.grad)
    assert len(graphs) == 2  # forward and backward


def written_gelu(x: torch.Tensor) -> torch.Tensor:
    """A composite, for which the graph is searched before AOTAutograd."""
    return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: x.reshape(x.shape[0] * x.shape[1]),
        lambda x: x[: x.shape[0] // 2] + 1,
        lambda x: torch.arange(x.shape[0]) * 2,
        lambda x: torch.arange(x.shape[0], -x.shape[1], -1.0, dtype=torch.int64) * 2,
        lambda x: torch.arange(1.0, x.shape[0], 2.0) * 2,
        lambda x: torch.cat([x, x]).shape[0] * torch.ones(()),
        lambda x: (x + 1, x.shape[0]),
        lambda x: torch.zeros(x.shape[0], x.shape[0] + 3) + x.sum(),
        lambda x: x.expand(2, *x.shape).clone(),
        lambda x: x.t() * 2,
        lambda x: torch.nn.functional.pad(x, (0, x.shape[0])),
        lambda x: x * x.shape[0] / (x.shape[1] + 1),
        lambda x: x * torch.div(x.shape[0], 2, rounding_mode="trunc"),
        lambda x: x.unfold(0, 2, 1) + 0,
        lambda x: x.sort(0).values,
        lambda x: torch.rand_like(x) * 0,
        lambda x: torch.arange(8).roll(-x.shape[0], 0),
        lambda x: written_gelu(x.view(x.size()[:1] + x.size()[1:])),
    ],
)
def test_arithmetic_of_sizes(f: Callable[..., Any], graphs: list[GraphCompiler]) -> None:
    run = torch.compile(f, backend="meta", dynamic=True, fullgraph=True)
    for n, m in ((4, 3), (6, 5), (9, 3)):
        x = torch.randn(n, m)
        same(run(x), f(x))
    assert len(graphs) == 1  # Dynamo recorded one graph: no size of the first call is guarded


def test_operators_of_numbers_alone() -> None:
    """torch takes a number for a tensor, also where no argument is one."""

    def f(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        n, m = x.shape
        return x + torch.div(n, 2, rounding_mode="trunc"), torch.add(n, m) - x, x / torch.mul(2, n)

    run = torch.compile(f, backend="meta", fullgraph=True, options={"fallback": "error"})
    x = torch.randn(5, 3)
    same(run(x), f(x))


def test_numbers_that_a_module_keeps() -> None:
    """In a graph of `dynamic=True` they are tensors of float64, cast by an operator of prims'."""

    class Scaled(nn.Module):
        scale = 0.37

        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return x * self.weight * self.scale + self.scale, torch.polar(x, x) * self.scale

    model = Scaled()
    settings = {"dynamic": True, "fullgraph": True, "options": {"fallback": "error"}}
    run = torch.compile(model, backend="meta", **settings)
    for n in (4, 5):
        x = torch.randn(n, 3)
        found, expected = run(x), model(x)
        same(found, expected)
        same(*(torch.autograd.grad(y.sum(), model.weight) for y, _ in (found, expected)))


def test_values_for_the_places_of_a_mask(graphs: list[GraphCompiler]) -> None:
    """Dynamo splits the function where their number is known; no program is made for each."""

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.zeros_like(x)
        y[x > 0] = x[x > 0] * 2 + 1
        return y

    run = torch.compile(f, backend="meta")
    for many in (2, 5, 3, 4, 6, 7):
        x = torch.where(torch.arange(10) < many, 1.0, -1.0).reshape(2, 5)
        same(run(x), f(x))
    assert [len(g.programs()) for g in graphs] == [1] * len(graphs)


def test_a_number_that_a_program_is_made_for_has_a_program_each() -> None:
    """The order of a polynomial, which Dynamo takes for an extent at its second value."""
    polynomial = torch.special.chebyshev_polynomial_t
    run = torch.compile(lambda x, n: polynomial(x, n), backend="meta")
    x = torch.linspace(-1, 1, 5)
    for n in (1, 3, 4):
        same(run(x, n), polynomial(x, n))


def test_a_size_alone() -> None:
    run = torch.compile(lambda n: torch.arange(n), backend="meta", dynamic=True, fullgraph=True)
    for n in (5, 8, 3):
        assert run(n).tolist() == list(range(n))


BY_DATA = torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)


def by_data(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    kept = x[x > 0] * 2
    return kept.exp().sum(), kept


@pytest.mark.parametrize("dynamic", [None, True])
def test_a_graph_with_sizes_that_depend_on_data_runs_in_pytorch(dynamic: bool | None) -> None:
    run = torch.compile(by_data, backend="meta", fullgraph=True, dynamic=dynamic)
    with BY_DATA, record_compiled_graphs() as graphs:
        for n in (4, 6, 7):
            x = torch.randn(n, requires_grad=True)
            (total, kept), expected = run(x), by_data(x)
            same((total, kept), expected)
            (found,) = torch.autograd.grad(total + kept.sum(), x)
            (wanted,) = torch.autograd.grad(expected[0] + expected[1].sum(), x)
            same(found, wanted)
    back = {(c.operator, c.why) for g in graphs for p in g.programs() for c in p.calls_back}
    assert back == {("the whole graph", "a size depends on data, which is known at run time only")}


def test_sizes_that_depend_on_data_are_an_error_if_wished() -> None:
    run = torch.compile(by_data, backend="meta", fullgraph=True, options={"fallback": "error"})
    refused = pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="depends on data")
    with BY_DATA, refused:
        run(torch.tensor([0.0, 1.0, 2.0]))


def test_such_sizes_break_the_graph_where_dynamo_is_told_to() -> None:
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=False):
        report = meta.explain_compile(by_data, torch.tensor([0.0, 1.0]))
    assert report.breaks and not report.calls_back
