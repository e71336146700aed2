"""`meta.grad.value_and_grad`: gradients by arguments, eager, traced and compiled, against torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.errors import ArgumentError, GradientError
from meta.grad import grad, value_and_grad
from meta.grad.core import pullback
from meta.model import Linear
from meta.op.core import tree

MODES = ("eager", "traced", "compiled")


def run(mode: str, f: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function eagerly, as a traced program, or as a compiled one."""
    if mode == "eager":
        return f(*args, **kwargs)
    traced = meta.model.trace(f)
    if mode == "traced":
        return traced(*args, **kwargs)
    with meta.dialect.prefer("torch"):
        return meta.vm.compile(traced, *args, **kwargs)(*args, **kwargs)


def randn(*shape: int, seed: int = 0, dtype: str = "float32") -> meta.ndarray:
    return meta.array(torch.randn(shape, generator=torch.Generator().manual_seed(seed)), dtype)


def f(x: Any, y: Any, scale: Any = 2.0) -> Any:
    return op.sum(op.tanh(x * y) * scale, axis=(0, 1))


def expected(function: Any, *given: meta.ndarray) -> tuple[torch.Tensor, tuple[torch.Tensor, ...]]:
    leaves = [a.torch().detach().clone().requires_grad_() for a in given]
    value = function(*leaves)
    return value.detach(), torch.autograd.grad(value, leaves, allow_unused=True)


def torch_f(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x * y).tanh() * 2.0).sum()


def close(found: Any, wanted: torch.Tensor) -> None:
    assert found.shape == tuple(wanted.shape)
    torch.testing.assert_close(found.torch(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wrt", [0, 1, "x", "y", (0, 1), ("y", "x"), (1, "x"), ["y"]], ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (1, 1), (0, 2)], ids=str)
def test_by_position_and_name(mode: str, wrt: Any, shape: tuple[int, ...]) -> None:
    x, y = randn(*shape), randn(*shape, seed=1)
    value, found = run(mode, value_and_grad(f, wrt), x, y)
    wanted, gradients = expected(torch_f, x, y)
    close(value, wanted)
    by_name = dict(zip((0, 1, "x", "y"), gradients * 2, strict=True))
    if isinstance(wrt, int | str):
        close(found, by_name[wrt])
    else:
        assert isinstance(found, tuple) and len(found) == len(wrt)
        for name, array in zip(wrt, found, strict=True):
            close(array, by_name[name])
    assert not value.requires_grad and x.grad is None and not x.requires_grad


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float64", "float16", "bfloat16"])
def test_dtypes(mode: str, dtype: str) -> None:
    x = randn(3, 4, dtype=dtype)
    value, found = run(mode, value_and_grad(lambda x: op.sum(x * x, axis=(0, 1))), x)
    assert value.dtype == found.dtype == dtype
    assert torch.equal(found.torch(), 2 * x.torch())


@pytest.mark.parametrize("mode", MODES)
def test_containers_have_gradients_of_their_structure(mode: str) -> None:
    def loss(p: Any, x: Any) -> Any:
        return op.mean((p["w"] * x + p["b"][0]) * p["b"][1])

    p = {"w": randn(3), "b": (randn(3, seed=1), randn(3, seed=2))}
    x = randn(3, seed=3)
    _, (dp, dx) = run(mode, value_and_grad(loss, (0, "x")), p, x)
    leaves = tree.flatten((p, x))[0]
    _, wanted = expected(lambda w, b, c, x: ((w * x + b) * c).mean(), *leaves)
    found, structure = tree.flatten((dp, dx))
    assert structure == tree.flatten((p, x))[1]
    for ours, theirs in zip(found, wanted, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_not_used_has_zeros(mode: str) -> None:
    x, y = randn(3), randn(2, 2)
    _, (dx, dy) = run(mode, value_and_grad(lambda x, y: op.sum(x), (0, 1)), x, y)
    close(dx, torch.ones(3))
    close(dy, torch.zeros(2, 2))


@pytest.mark.parametrize("mode", MODES)
def test_a_second_derivative(mode: str) -> None:
    def penalty(x: Any, y: Any) -> Any:
        value, dx = value_and_grad(f)(x, y)
        return value + op.sum(dx * dx, axis=(0, 1))

    def torch_penalty(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        value = torch_f(x, y)
        (dx,) = torch.autograd.grad(value, x, create_graph=True)
        return value + (dx * dx).sum()

    x, y = randn(3, 4), randn(3, 4, seed=1)
    value, found = run(mode, value_and_grad(penalty, ("x", "y")), x, y)
    wanted, gradients = expected(torch_penalty, x, y)
    close(value, wanted)
    for ours, theirs in zip(found, gradients, strict=True):
        close(ours, theirs)


@pytest.mark.parametrize("mode", MODES)
def test_a_third_derivative(mode: str) -> None:
    def derivative(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: value_and_grad(f)(x)[1]

    third = derivative(derivative(derivative(lambda x: op.exp(x * 2.0) * x)))
    x = meta.array(0.5)
    # (x e^2x)''' = (12 + 8 x) e^2x
    assert run(mode, third, x).item() == pytest.approx(16 * np.exp(1.0), rel=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_used_from_outside_is_followed(mode: str) -> None:
    """A closure's values, and only the gradient by the argument itself."""

    def outer(x: Any) -> Any:
        other = op.exp(x)

        def inner(x: Any) -> Any:
            return op.sum(x * other)

        return value_and_grad(inner)(x)

    x = randn(3)
    value, dx = run(mode, outer, x)
    close(value, (x.torch() * x.torch().exp()).sum())
    close(dx, x.torch().exp())


@pytest.mark.parametrize("mode", MODES)
def test_a_model_by_its_input(mode: str) -> None:
    """The input's gradient; new weights are seen without a new program."""

    class Energy(meta.Model):
        def build(self) -> None:
            self.linear = Linear(4, 1)

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return op.sum(op.tanh(self.linear(x)), axis=(0, 1))

    class Force(meta.Model):
        def build(self) -> None:
            self.energy = Energy()

        @meta.model.trace
        def forward(self, x: Any) -> Any:
            return value_and_grad(self.energy, "x")(x)

    force, x = Force(), randn(5, 4)
    call: Any = force
    if mode == "eager":
        call = value_and_grad(force.energy, "x")
    elif mode == "compiled":
        with meta.dialect.prefer("torch"):
            call = meta.vm.compile(force, x)
    for seed in range(2):
        force.energy.linear.weight.update(randn(1, 4, seed=seed))
        w, b = force.energy.linear.weight.torch(), force.energy.linear.bias.torch()
        value, dx = call(x)
        wanted, (theirs,) = expected(lambda x, w=w, b=b: (x @ w.T + b).tanh().sum(), x)
        close(value.detach(), wanted)
        close(dx.detach(), theirs)


def test_a_gradient_penalty_trains_parameters() -> None:
    """Eagerly, results stay linked to the parameters that they depend on."""
    model, x = Linear(3, 1), randn(4, 3)
    _, dx = value_and_grad(lambda x: op.sum(op.tanh(model(x)), axis=(0, 1)))(x)
    assert dx.requires_grad
    op.sum(dx * dx, axis=(0, 1)).backward()
    w = model.weight.torch().detach().clone().requires_grad_()
    b = model.bias.torch().detach().clone().requires_grad_()
    tx = x.detach().torch().clone().requires_grad_()
    (tdx,) = torch.autograd.grad((tx @ w.T + b).tanh().sum(), tx, create_graph=True)
    (tdx * tdx).sum().backward()
    close(model.weight.grad, w.grad)
    close(model.bias.grad, b.grad)


def test_what_leads_to_an_argument_is_followed() -> None:
    x = randn(3)
    x.requires_grad = True
    _, slope = value_and_grad(lambda a: op.sum(a * a * a))(op.exp(x))
    found = grad(op.sum(slope), x)
    close(found, 6 * x.torch().detach().exp() ** 2)


def test_nothing_is_recorded_where_it_is_not_wanted() -> None:
    model, x = Linear(3, 1), randn(4, 3)
    with meta.no_grad():
        value, dx = value_and_grad(lambda x: op.sum(model(x), axis=(0, 1)))(x)
    assert not value.requires_grad and not dx.requires_grad
    close(dx, model.weight.torch().detach().expand(4, 3))


@pytest.mark.parametrize("mode", MODES)
def test_control_flow(mode: str) -> None:
    def steps(x: Any) -> Any:
        result, _ = meta.scan(lambda s, row: (op.tanh(s * row), s), op.ones_like(x[0]), x)
        return op.sum(meta.cond(result[0] > 5.0, lambda: result, lambda: result * 2.0), axis=0)

    x = randn(4, 3)

    def theirs(x: torch.Tensor) -> torch.Tensor:
        s = torch.ones_like(x[0])
        for row in x:
            s = (s * row).tanh()
        return (s * 2).sum()

    value, dx = run(mode, value_and_grad(steps), x)
    wanted, (gradient,) = expected(theirs, x)
    close(value, wanted)
    close(dx, gradient)


def test_arguments_of_all_kinds() -> None:
    def g(a: Any, *rest: Any, k: Any = 3.0, **more: Any) -> Any:
        return op.sum(a * rest[0] * rest[1] * k * more["m"])

    a, b, c, m = (randn(3, seed=i) for i in range(4))
    _, (db, dm, dk) = value_and_grad(g, (1, "m", "k"))(a, b, c, m=m)
    ta, tb, tc, tm = (x.torch() for x in (a, b, c, m))
    close(db, ta * tc * tm * 3)
    close(dm, ta * tb * tc * 3)
    close(dk, (ta * tb * tc * tm).sum())


class Inner(meta.Model):
    """A network that draws numbers, writes statistics and is computed again for its gradients."""

    def build(self, checkpointed: bool) -> None:
        layer = meta.model.Sequential(Linear(4, 4), meta.model.BatchNorm(4))
        self.layer = meta.model.checkpoint(layer) if checkpointed else layer

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        """Return the energy and its gradient by x."""
        return value_and_grad(lambda x: op.sum(op.tanh(self.layer(x)), axis=(0, 1)))(x)


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize("mode", MODES)
def test_what_is_written_inside(mode: str, checkpointed: bool) -> None:
    meta.random.seed(3)
    model, x = Inner(checkpointed), randn(6, 4)
    linear, norm = model.layer[0], model.layer[1]
    theirs = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    state = {f"0.{n}": a.torch().detach().clone() for n, a in linear.state().items()}
    theirs.load_state_dict(state, strict=False)
    call: Any = model
    if mode == "eager":
        call = lambda x: model.forward.function(model, x)  # noqa: E731
    elif mode == "compiled":
        with meta.dialect.prefer("torch"):
            call = meta.vm.compile(model, x)
    for _ in range(2):
        value, dx = call(x)
        wanted, (gradient,) = expected(lambda x: theirs(x).tanh().sum(), x)
        close(value.detach(), wanted)
        torch.testing.assert_close(dx.detach().torch(), gradient, rtol=1e-4, atol=1e-4)
    close(norm.running_mean, theirs[1].running_mean)


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_inside(mode: str) -> None:
    """The gradient is that of the numbers that were drawn."""

    def loss(x: Any) -> Any:
        return op.sum(x * meta.random.normal((5,)), axis=0)

    meta.random.seed(1)
    x = op.ones((5,), "float32")
    found = [run(mode, value_and_grad(loss), x) for _ in range(2)]
    for value, dx in found:
        assert value.item() == pytest.approx(dx.numpy().sum(), rel=1e-5)
    assert found[0][0].item() != found[1][0].item()


def test_it_keeps_name_and_signature() -> None:
    made = value_and_grad(f)
    assert made.__name__ == "f"  # type: ignore[attr-defined]
    assert str(meta.model.trace(made).signature).startswith("(x: ")


X = meta.array([1.0, 2.0])
REFUSED: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: value_and_grad(3), ArgumentError, "is given a function"),  # type: ignore[arg-type]
    (lambda: value_and_grad(f, ()), ArgumentError, "by which arguments"),
    (lambda: value_and_grad(f, 1.0), ArgumentError, "by which arguments"),  # type: ignore[arg-type]
    (lambda: value_and_grad(f, 5)(X, X), ArgumentError, "f has no argument 5"),
    (lambda: value_and_grad(f, -1)(X, X), ArgumentError, "f has no argument -1"),
    (lambda: value_and_grad(f, "scalee")(X, X), ArgumentError, r"no argument[^$]*'scale'"),
    (lambda: value_and_grad(f, (0, "x"))(X, X), ArgumentError, "named twice"),
    (lambda: value_and_grad(f)(X), ArgumentError, "missing a required argument: 'y'"),
]


@pytest.mark.parametrize(("make", "error", "message"), REFUSED)
def test_errors(make: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()


IN_EVERY_MODE: list[tuple[Callable[..., Any], meta.ndarray, str]] = [
    (lambda x: x * 2.0, X, "is not one floating point number"),
    (lambda x: op.sum(op.astype(x, "int32")), X, "is not one floating point number"),
    (lambda x: op.sum(x * 1.0), meta.array([1, 2]), "no gradient by the arguments"),
    (lambda x: op.sum(meta.array([1.0])), X, "does not depend on"),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("function", "x", "message"), IN_EVERY_MODE)
def test_errors_in_every_mode(mode: str, function: Any, x: Any, message: str) -> None:
    with pytest.raises(GradientError, match=message):
        run(mode, value_and_grad(function), x)


def test_a_result_that_is_no_array() -> None:
    with pytest.raises(GradientError, match="is no array"):
        value_and_grad(lambda x: (op.sum(x), 1))(X)


@pytest.mark.parametrize("mode", MODES)
def test_pullback_of_several_results(mode: str) -> None:
    def both(x: Any, y: Any, d: Any) -> Any:
        return pullback(lambda a, b: (op.sin(a * b), b, op.exp(a)), (x, y), (d, None, d))

    x, y, d = (torch.rand(2, 3, dtype=torch.float64, requires_grad=i < 2) for i in range(3))
    expected = torch.autograd.grad((torch.sin(x * y), torch.exp(x)), (x, y), (d, d))
    arrays = [meta.array(t.detach()) for t in (x, y, d)]
    for found, wanted in zip(run(mode, both, *arrays), expected, strict=True):
        torch.testing.assert_close(found.torch(), wanted)
