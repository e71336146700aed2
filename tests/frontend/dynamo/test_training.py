"""Training graphs that are called without AOTAutograd's wrapper, and those that need it: at each
call, results, gradients, and what is refused, are as in eager PyTorch.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.autograd.graph import saved_tensors_hooks

from meta.base.errors import ArgumentError
from meta.vm.executable import Executable
from tests.frontend.dynamo.models import made

STEPS = 4
DERIVED = pytest.mark.filterwarnings("ignore:The .grad attribute")  # Dynamo looks at it


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="meta", fullgraph=True, **options)


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def is_direct(result: torch.Tensor) -> bool:
    return type(result.grad_fn).__name__ == "TrainingFunctionBackward"


class Several(nn.Module):
    """Returns what is differentiated, is not, is a view, and has a parameter that nobody uses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(4, 6), nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        y = torch.tanh(self.layer(x))
        return y.sum(), (y * 2).view(-1, 3), y.argmax(1), y.detach() + 1, torch.exp(y).t()


@pytest.mark.parametrize("name", ["mlp", "cnn", "transformer", "tied"])
def test_models(name: str) -> None:
    torch.manual_seed(0)
    model, inputs = made(name)
    other = copy.deepcopy(model)
    run = compiled(model)
    steps = [torch.optim.SGD(m.parameters(), lr=0.05) for m in (model, other)]
    for i in range(STEPS):
        results = []
        for f, step in zip((run, other), steps, strict=True):
            step.zero_grad(set_to_none=i % 2 == 0)
            results.append(f(*inputs))
            results[-1].square().mean().backward()
            step.step()
        same(*results)
        same(dict(model.state_dict()), dict(other.state_dict()))
        assert is_direct(results[0]) == (i > 0)


def test_the_first_call_is_the_wrappers() -> None:
    model, inputs = made("mlp")
    run = compiled(model)
    first, second = run(*inputs), run(*inputs)
    assert not is_direct(first) and not is_direct(second)
    first.sum().backward()
    assert is_direct(run(*inputs))
    second.sum().backward()  # is as good as before
    for p in model.parameters():
        assert p.grad is not None


@pytest.mark.parametrize("used", [(0,), (1,), (0, 4), (0, 1, 4)])
def test_several_outputs(used: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    model = Several()
    other = copy.deepcopy(model)
    run = compiled(model)
    for _ in range(STEPS):
        x, both = torch.randn(3, 4), []
        for f, m in ((run, model), (other, other)):
            m.zero_grad()
            found = f(x)
            sum(found[j].square().sum() for j in used).backward()
            assert [t.requires_grad for t in found] == [True, True, False, False, True]
            grads = [p.grad for p in m.parameters()]
            assert grads[2] is None and grads[3] is None
            both.append(([t.detach() for t in found], grads[:2], [t.stride() for t in found]))
        same(both[0][:2], both[1][:2])
        assert both[0][2] == both[1][2]
    assert is_direct(run(x)[0])


def test_a_result_may_be_written() -> None:
    """A view for PyTorch is none for autograd."""
    w = torch.randn(4, 4, requires_grad=True)
    run = compiled(lambda x: (torch.tanh(x) @ w).view(-1))
    for _ in range(STEPS):
        w.grad = None
        y = run(torch.ones(2, 4))
        y.mul_(2.0)
        y.sum().backward()
        found, w.grad = w.grad, None
        ((torch.tanh(torch.ones(2, 4)) @ w).view(-1) * 2.0).sum().backward()
        same(found, w.grad)
    assert is_direct(run(torch.ones(2, 4)))


def aliases(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (x * w).sum(), w.t()


def writes(x: torch.Tensor, w: torch.Tensor) -> Any:
    x.add_(1.0)
    return (x * w).sum(), (x * 2).sum()


def sorts(x: torch.Tensor, w: torch.Tensor) -> Any:
    return (w.sort().values * x).sum(), w.sum()


@pytest.mark.parametrize(("f", "direct"), [(aliases, False), (writes, True), (sorts, True)])
def test_graphs_that_need_the_wrapper(f: Callable[..., Any], direct: bool) -> None:
    torch.manual_seed(0)
    run = compiled(f)
    for _ in range(STEPS):
        start, w = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
        both = []
        for call in (run, f):
            x = start.clone()
            found = call(x, w)
            version = x._version
            (grad,) = torch.autograd.grad(found[0] + found[1].sum(), w)
            both.append((x, grad, [t.detach() for t in found], version))
            last = found[0]
            if call is run:
                is_ours = is_direct(last)
        same(both[0][:3], both[1][:3])
        assert (both[0][3] > 0) == (both[1][3] > 0)
    assert is_ours == direct


@DERIVED
def test_an_input_of_which_no_gradient_is_asked() -> None:
    """What is behind it is not differentiated, nor let go of."""
    w = torch.randn(3, requires_grad=True)
    run = compiled(lambda x, w: (x.detach() * w).sum())
    for _ in range(STEPS):
        x = w * 2
        same(torch.autograd.grad(run(x, w), w), torch.autograd.grad((x.detach() * w).sum(), w))


def test_gradients_of_other_layouts() -> None:
    w = torch.randn(4, 4, requires_grad=True)
    run, x = compiled(lambda x: torch.sin(x @ w)), torch.randn(3, 4)
    seeds = [torch.randn(4, 3).t(), torch.randn(1, 4).expand(3, 4), torch.randn(3, 8)[:, ::2]]
    for seed in (seeds[0], *seeds):
        (found,) = torch.autograd.grad(run(x), w, seed)
        same(found, torch.autograd.grad(torch.sin(x @ w), w, seed)[0])
    assert is_direct(run(x))


def warm(f: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Any:
    """Return a function, compiled, that is called directly from now on."""
    run = compiled(f)
    for _ in range(2):
        run(*inputs).backward()
    assert is_direct(run(*inputs))
    return run


def test_hooks_on_what_is_saved() -> None:
    w = torch.randn(4, requires_grad=True)
    run, packed = warm(lambda x: torch.exp(x * w).sum(), torch.ones(4)), []
    w.grad = None
    with saved_tensors_hooks(lambda t: packed.append(t) or t.clone(), lambda t: t):
        y = run(torch.ones(4))
    assert packed and not is_direct(y)
    y.backward()
    same(w.grad, torch.exp(w).detach())
    assert is_direct(run(torch.ones(4)))


def test_it_is_differentiated_once() -> None:
    w = torch.randn(4, requires_grad=True)
    run = warm(lambda x: torch.sin(x * w).sum(), torch.ones(4))
    y = run(torch.ones(4))
    same(torch.autograd.grad(y, w, retain_graph=True), torch.autograd.grad(y, w))
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(y, w)
    (grad,) = torch.autograd.grad(run(torch.ones(4)), w, create_graph=True)
    same(grad, torch.cos(w))
    with pytest.raises(RuntimeError, match="does not currently support double backward"):
        grad.sum().backward()


def test_not_even_the_first_time_twice() -> None:
    w = torch.randn(4, requires_grad=True)
    run = torch.compile(lambda x: torch.tanh(x * w).sum(), backend="meta", fullgraph=True)
    for _ in range(3):
        (grad,) = torch.autograd.grad(run(torch.ones(4)), w, create_graph=True)
        same(grad, 1 - torch.tanh(w) ** 2)
        with pytest.raises(RuntimeError, match="does not currently support double backward"):
            grad.sum().backward()


def test_what_is_written_in_between_is_seen() -> None:
    w = torch.randn(4, requires_grad=True)
    run = warm(lambda x: (x * w * w).sum(), torch.ones(4))
    y = run(torch.ones(4))
    with torch.no_grad():
        w.add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()


def test_an_error_half_way(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(4, requires_grad=True)
    run = warm(lambda x: torch.sin(x * w).sum(), torch.ones(4))
    launched, y = Executable.on_tensors, run(torch.ones(4))

    def fails(*_: Any) -> Any:
        raise ZeroDivisionError("half way")

    monkeypatch.setattr(Executable, "on_tensors", fails)
    with pytest.raises(ZeroDivisionError, match="half way"):
        run(torch.ones(4))
    with pytest.raises(ZeroDivisionError, match="half way"):
        torch.autograd.grad(y, w)
    monkeypatch.setattr(Executable, "on_tensors", launched)
    same(torch.autograd.grad(run(torch.ones(4)), w)[0], torch.cos(w))


def test_autocast_is_the_graphs() -> None:
    w = torch.randn(8, 8, requires_grad=True)
    run, x = compiled(lambda x: (x @ w).float().square().sum()), torch.randn(4, 8)
    for _ in range(STEPS):
        both = []
        for f in (run, lambda x: (x @ w).float().square().sum()):
            w.grad = None
            with torch.autocast("cpu", torch.bfloat16):
                y = f(x)
                y.backward()
            both.append((y.detach(), w.grad))
        torch.testing.assert_close(*both, rtol=0.05, atol=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        assert is_direct(run(x))


def test_algorithms_that_have_to_be_deterministic() -> None:
    w = torch.randn(4, requires_grad=True)
    run = warm(lambda x: torch.sin(x * w).sum(), torch.ones(4))
    y = run(torch.ones(4))
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(RuntimeError, match="use_deterministic_algorithms"):
            y.backward()
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.filterwarnings("ignore:Dynamo does not know")  # the frame that an error looks at
def test_compiled_autograd_that_comes_between_is_refused() -> None:
    w = torch.randn(4, requires_grad=True)
    run = warm(lambda x: torch.sin(x * w).sum(), torch.ones(4))
    y = run(torch.ones(4))
    later = torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager"))
    with later, pytest.raises(ArgumentError, match="only the backend 'meta' knows"):
        y.backward()


@DERIVED
def test_a_step_within_a_function_that_breaks() -> None:
    """Dynamo is at work while the gradient is computed, and does not look into it."""
    w = torch.randn(4, requires_grad=True)

    def f(x: torch.Tensor) -> torch.Tensor:
        y = torch.sin(x * w).sum()
        y.backward()
        return y * 2

    run = torch.compile(f, backend="meta")
    for _ in range(STEPS):
        w.grad = None
        same(run(torch.ones(4)), torch.sin(w).sum() * 2)
        same(w.grad, torch.cos(w).detach())


def test_threads() -> None:
    torch.manual_seed(0)
    weights = [torch.randn(6, 6, requires_grad=True) for _ in range(4)]

    def f(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.sin(x @ w).square().sum()

    x, failed = torch.randn(5, 6), []
    # With fullgraph=True in threads PyTorch 2.11 compiles nothing behind later graph breaks.
    run = torch.compile(f, backend="meta")
    for _ in range(2):
        run(x, weights[0]).backward()

    def work(w: torch.Tensor) -> None:
        try:
            (expected,) = torch.autograd.grad(f(x, w), w)
            for _ in range(30):
                y = run(x, w)
                assert is_direct(y)
                same(torch.autograd.grad(y, w)[0], expected)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=work, args=(w,)) for w in weights]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not failed
