"""Results that share memory with what is kept for the gradient, and are written before that is
computed: as in eager PyTorch, the gradient is right, or it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from inspect import signature
from itertools import product
from typing import Any

import pytest
import torch

import meta
from meta.frontend.dynamo import compiler
from meta.frontend.dynamo.conversion import NoProgram
from tests.vm.recorder import standing_in

STEPS = 4  # the first is AOTAutograd's wrapper's
Function = Callable[[torch.Tensor, torch.Tensor], Any]


@pytest.fixture(params=["program", "sizes", "graphs", "torch"], autouse=True)
def way(request: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """How a graph is run: by a program, by one of all sizes, by CUDA graphs (a stand-in), by
    PyTorch.
    """

    def refuses(*_: Any, **__: Any) -> Any:
        raise NoProgram("this is not wanted")

    if request.param == "torch":
        monkeypatch.setattr(compiler, "convert_graph", refuses)
    if request.param != "graphs":
        yield request.param
        return
    with meta.dialect.exclude("tvm"):  # of which the stand-in records nothing
        standing_in(monkeypatch)
        yield request.param


def compiled(f: Function, way: str) -> Function:
    dynamic = True if way == "sizes" else None
    return torch.compile(f, backend="meta", fullgraph=True, dynamic=dynamic)


def of(make: Callable[[torch.Tensor], Any], before: Any = torch.tanh) -> Function:
    """Return a function whose results are made of a value, which tanh keeps."""

    def f(x: torch.Tensor, w: torch.Tensor, apart: bool = False) -> Any:
        value = before(x @ w)
        return make(value.clone() if apart else value)

    return f


def entropy(x: torch.Tensor, w: torch.Tensor) -> Any:
    scores = x @ w
    return torch.nn.functional.cross_entropy(scores, torch.tensor([1, 2])), scores.view(1, 2, 4)


def entropy_of_rows(x: torch.Tensor, w: torch.Tensor) -> Any:
    scores = x.view(1, 2, 4) @ w
    rows = scores.view(2, 4)
    return torch.nn.functional.cross_entropy(rows, torch.tensor([1, 2])), scores


CASES: dict[str, Function] = {
    "the kept value": of(lambda h: h),
    "flat": of(lambda h: h.view(-1)),
    "transposed": of(lambda h: h.t()),
    "a part": of(lambda h: h[:, 1:]),
    "a part with gaps": of(lambda h: h[:, ::2]),
    "a row": of(lambda h: h[0]),
    "a row of a softmax": of(lambda h: h[0], lambda x: torch.softmax(x, -1)),
    "of a layer before": lambda x, w: (torch.tanh(torch.tanh(x @ w) @ w).view(-1), (x @ w).sum()),
    "kept otherwise": of(lambda h: (h.view(-1), (h * h).sum()), torch.exp),
    "a view is kept": of(lambda h: (h, (h.view(4, 2) * h.view(4, 2).exp()).sum()), torch.relu),
    "a part is kept": of(lambda h: (h, (h[:, 1:] * h[:, :3]).sum()), torch.sin),
    "two": of(lambda h: (h, h.view(-1))),
    "two views": of(lambda h: (h.view(-1), h.t())),
    "two rows": of(lambda h: (h[0], h[1])),
    "two that overlap": of(lambda h: (h[:, :3], h[:, 1:])),
    "parts": of(lambda h: h.chunk(2, 1)),
    "one is not differentiated": of(lambda h: (h.sum(), h.detach().view(-1))),
    "no floats": of(lambda h: (lambda best: (best[0].sum(), best[1].view(-1)))(h.topk(2))),
    "numbers with real parts": of(lambda h: torch.view_as_real(torch.complex(h, h) * h).view(-1)),
    "an input": lambda x, w: (x.view(-1), (x * w[:2] * x).sum()),
    "an input, kept": lambda x, w: (x.t(), (x.t() @ w[:2]).sum()),
    "an input that is written": lambda x, w: (torch.tanh(x.mul_(2.0) @ w).view(-1), x.sum()),
    "nothing is kept": of(lambda h: h.view(-1), lambda x: x),
}


def with_copies(f: Function, *args: Any) -> Any:
    """Return the outcome if results are in memory that nothing is kept in."""
    found = None
    if "apart" in signature(f).parameters:  # the results may share memory with each other
        found = outcome(partial(f, apart=True), *args)
    return found or outcome(lambda x, w: tuple(t.clone() for t in several(f(x, w))), *args)


def several(results: Any) -> tuple[torch.Tensor, ...]:
    return (results,) if isinstance(results, torch.Tensor) else tuple(results)


def outcome(f: Function, written: int | None, unseen: bool) -> Any:
    """Return results and gradient after a result was written; None for autograd's error."""
    w = torch.randn(4, 4, generator=torch.Generator().manual_seed(0)).requires_grad_()
    x = torch.arange(8.0).view(2, 4) / 8
    try:
        results = several(f(x, w))
        if written is not None and written < len(results):
            with torch.no_grad() if unseen else nullcontext():
                results[written].copy_(results[written] * 3)
        sum(t.mul(1.5).sum() for t in results if t.requires_grad).backward()
    except RuntimeError as error:
        assert "inplace" in str(error)
        return None
    return [t.detach() for t in results], w.grad, x


@pytest.mark.parametrize("name", list(CASES))
@pytest.mark.long
def test_a_result_is_written_before_the_gradient(name: str, way: str) -> None:
    f = CASES[name]
    run = compiled(f, way)
    for which, unseen in ((0, False), (None, False), *product((0, 1), (False, True))):
        found, expected = outcome(run, which, unseen), outcome(f, which, unseen)
        if expected is None and found is not None:  # what is kept is computed again, or a copy
            expected = with_copies(f, which, unseen)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["flat", "transposed", "a part", "a row", "kept otherwise"])
def test_nothing_is_copied(name: str, way: str) -> None:
    """The result is in the memory of what is kept, so to write it is an error."""
    run = compiled(CASES[name], way)
    for _ in range(STEPS):
        w = torch.ones(4, 4, requires_grad=True)
        result = several(run(torch.ones(2, 4), w))[0]
        place = result.untyped_storage().data_ptr()
        kept = [t.untyped_storage().data_ptr() for t in result.grad_fn.saved_tensors]
        assert place in kept
        result.sum().backward()
        assert outcome(run, 0, unseen=False) is None


@pytest.mark.parametrize("f", [entropy, entropy_of_rows])
def test_scores_are_kept_for_a_loss(f: Function, way: str) -> None:
    """Where eager PyTorch keeps another value, it is an error."""
    run = compiled(f, way)
    for _ in range(STEPS):
        torch.testing.assert_close(outcome(run, None, unseen=False), outcome(f, None, unseen=False))
        assert outcome(run, 1, unseen=True) is None


def test_a_graph_that_is_not_dynamos() -> None:
    graph = torch.fx.symbolic_trace(lambda x, w: (torch.tanh(x @ w).view(-1),))
    run = compiler.backend(graph, [torch.ones(2, 4), torch.ones(4, 4, requires_grad=True)])
    for _ in range(STEPS):
        torch.testing.assert_close(outcome(run, None, False), outcome(CASES["flat"], None, False))
        assert outcome(run, 0, unseen=False) is None
