"""L-BFGS and conjugate gradients, beside torch's, SciPy's and LAPACK's results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.optimize
import torch

import meta
from meta.base.errors import ArgumentError
from meta.model import Linear, functional_call, trace
from meta.optim import conjugate_gradient, lbfgs

MODES = ("eager", "interpreter", "vm")


def run(mode: str, function: Callable[..., Any], *args: Any) -> Any:
    if mode == "eager":
        return function(*args)
    traced = trace(function)
    return (traced if mode == "interpreter" else meta.vm.compile(traced, *args))(*args)


def drawn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


def rosenbrock(x: Any) -> Any:
    return meta.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


@pytest.mark.parametrize("count", [2, 10, 30])
def test_rosenbrock_takes_as_many_evaluations_as_scipy(count: int) -> None:
    x0 = np.tile([-1.2, 1.0], count // 2)
    found = lbfgs(rosenbrock, meta.array(x0), gtol=1e-8, ftol=0.0)
    wanted = scipy.optimize.minimize(
        scipy.optimize.rosen,
        x0,
        jac=scipy.optimize.rosen_der,
        method="L-BFGS-B",
        options={"gtol": 1e-8, "ftol": 0.0},
    )
    assert found.converged.item()
    np.testing.assert_allclose(found.x.numpy(), 1.0, atol=1e-7)
    assert np.abs(found.gradient.numpy()).max() <= 1e-8
    assert found.evaluations.item() <= 1.3 * wanted.nfev


@pytest.mark.parametrize("mode", MODES[1:])
def test_a_program_takes_the_same_steps(mode: str) -> None:
    def of_tree(x: Any) -> Any:
        return lbfgs(lambda tree: rosenbrock(tree["x"]), {"x": x}, history=3, gtol=1e-8)

    x = meta.array([-1.2, 1.0, -1.2, 1.0], "float64")
    wanted, found = of_tree(x), run(mode, of_tree, x)
    assert found.iterations.item() == wanted.iterations.item()
    assert found.evaluations.item() == wanted.evaluations.item()
    np.testing.assert_allclose(found.x["x"].numpy(), wanted.x["x"].numpy(), rtol=1e-9)


def test_logistic_regression() -> None:
    x, labels = drawn(60, 5), (drawn(60, seed=1) > 0).astype("float64")

    def loss(m: Any, data: Any, y: Any, state: Any) -> Any:
        score = m.matmul(data, state["w"]) + state["b"]
        rest = 0.05 * m.sum(state["w"] ** 2)
        return (
            m.mean(m.maximum(score, 0.0 * score) - score * y + m.log1p(m.exp(-abs(score)))) + rest
        )

    a, b = meta.array(x), meta.array(labels)
    start = {"w": meta.zeros(5, "float64"), "b": meta.array(0.0, "float64")}
    found = lbfgs(lambda s: loss(meta, a, b, s), start, gtol=1e-9, ftol=0.0)
    theirs = {"w": torch.zeros(5).double(), "b": torch.tensor(0.0).double()}
    for leaf in theirs.values():
        leaf.requires_grad_()
    optimizer = torch.optim.LBFGS(
        theirs.values(),
        max_iter=100,
        tolerance_grad=1e-9,
        tolerance_change=0.0,
        line_search_fn="strong_wolfe",
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value: torch.Tensor = loss(torch, torch.tensor(x), torch.tensor(labels), theirs)
        value.backward()
        return value

    optimizer.step(closure)
    assert found.converged.item()
    for name, leaf in theirs.items():
        np.testing.assert_allclose(found.x[name].numpy(), leaf.detach(), atol=1e-7)


class Net(meta.Model):
    def build(self) -> None:
        self.hidden, self.head = Linear(4, 6), Linear(6, 1)

    @trace
    def forward(self, x: Any) -> Any:
        return self.head(meta.tanh(self.hidden(x)))


def test_a_network_with_a_compiled_gradient() -> None:
    model = Net()
    x, y = meta.array(drawn(40, 4), "float32"), meta.array(drawn(40, 1, seed=1), "float32")
    state = {
        name: meta.array(0.3 * drawn(*a.shape, seed=i), "float32")
        for i, (name, a) in enumerate(model.state().items())
    }

    def loss(state: Any) -> Any:
        return meta.mean((functional_call(model, state, x) - y) ** 2)

    both = meta.vm.compile(trace(meta.grad.value_and_grad(loss)), state)
    found = lbfgs(both, state, max_evaluations=120, has_gradient=True)
    module = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))
    names = {"0": "hidden", "2": "head"}
    renamed = {n: n.replace(n[0], names[n[0]]) for n in module.state_dict()}
    module.load_state_dict({n: state[renamed[n]].torch() for n in renamed})
    optimizer = torch.optim.LBFGS(
        module.parameters(), max_iter=120, max_eval=120, line_search_fn="strong_wolfe"
    )

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        value = torch.nn.functional.mse_loss(module(x.torch()), y.torch())
        value.backward()
        return value

    optimizer.step(closure)
    theirs = torch.nn.functional.mse_loss(module(x.torch()), y.torch()).item()
    assert found.evaluations.item() <= 120
    assert found.value.item() < 1.15 * theirs < 0.5 * loss(state).item()
    model.load_state_dict(found.x)
    np.testing.assert_allclose(meta.mean((model(x) - y) ** 2).item(), found.value.item(), rtol=1e-5)


def test_parameters_that_require_gradients_stay_as_they_are() -> None:
    model, x = Linear(3, 1), meta.array(drawn(5, 3), "float32")
    before = model.weight.numpy().copy()
    found = lbfgs(
        lambda s: meta.mean((functional_call(model, s, x) - 1.0) ** 2),
        dict(model.named_parameters()),
    )
    assert found.value.item() < 1e-6 and not found.x["weight"].requires_grad
    assert np.array_equal(before, model.weight.numpy()) and model.weight.grad is None


WALLS: dict[str, Any] = {
    "a logarithm": (lambda x: meta.sum(x - meta.log(x)), [0.01, 30.0], 1.0),
    "an overflow": (lambda x: meta.sum(meta.exp(x) - x), [-90.0, 5.0], 0.0),
    "far away": (lambda x: meta.sum(meta.sqrt(1.0 + x * x)), [1e4, -3.0], 0.0),
    "flat": (lambda x: meta.sum(x**4), [1.0, 2.0], 0.0),
}


@pytest.mark.parametrize("name", WALLS)
def test_hard_shapes(name: str) -> None:
    f, start, wanted = WALLS[name]
    found = lbfgs(f, meta.array(start, "float64"), ftol=0.0, gtol=1e-7)
    assert found.converged.item()
    np.testing.assert_allclose(found.x.numpy(), wanted, atol=1e-2 if name == "flat" else 1e-5)


def test_how_it_ends() -> None:
    x = meta.array([-1.2, 1.0])
    few = lbfgs(rosenbrock, x, max_evaluations=7)
    assert few.evaluations.item() == 7 and not few.converged.item()
    few = lbfgs(rosenbrock, x, max_iter=3)
    assert few.iterations.item() == 3 and not few.converged.item()
    there = lbfgs(rosenbrock, meta.ones(3))
    assert there.evaluations.item() == 1 and there.converged.item()
    down = lbfgs(lambda x: meta.sum(x), x, max_evaluations=40)  # no minimum
    assert not down.converged.item() and down.evaluations.item() == 40
    nothing = lbfgs(lambda x: meta.sum(meta.log(x)), x)
    assert not nothing.converged.item() and nothing.evaluations.item() == 1
    wrong = lbfgs(lambda x: (meta.sum(x), -meta.ones(2)), x, has_gradient=True)
    assert not wrong.converged.item() and wrong.x.tolist() == x.tolist()
    with meta.debug_nans(infinities=True):
        assert lbfgs(rosenbrock, x).converged.item()


ERRORS: dict[str, tuple[Callable[[], Any], str]] = {
    "half precision": (lambda: lbfgs(meta.sum, meta.ones(2, "float16")), "float32 or float64"),
    "dtypes": (
        lambda: lbfgs(lambda s: s[0], (meta.ones(2), meta.ones(2, "float64"))),
        "one dtype",
    ),
    "nothing": (lambda: lbfgs(meta.sum, ()), "one vector"),
    "no function": (lambda: lbfgs(3, meta.ones(2)), "functions"),  # type: ignore[arg-type]
    "history": (lambda: lbfgs(meta.sum, meta.ones(2), history=0), "history of at least 1"),
    "another structure": (
        lambda: conjugate_gradient(lambda v: {"x": v}, meta.ones(2)),
        "the structure and types of b",
    ),
    "another shape": (
        lambda: conjugate_gradient(lambda v: v, meta.ones(2), meta.ones(3)),
        "the structure and types of b",
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors(name: str) -> None:
    make, match = ERRORS[name]
    with pytest.raises(ArgumentError, match=match):
        make()


def spd(count: int, seed: int = 0) -> np.ndarray[Any, Any]:
    a = drawn(count, count, seed=seed)
    return a @ a.T + np.diag(np.logspace(0, 3, count))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("preconditioned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_conjugate_gradients(mode: str, preconditioned: bool, dtype: str) -> None:
    matrix, right = spd(12), drawn(12, seed=1)
    limit = 1e-10 if dtype == "float64" else 1e-5

    def solved(A: Any, b: Any, d: Any) -> Any:
        def product(v: Any) -> Any:
            y = A @ meta.concat((meta.reshape(v["m"], (8,)), v["v"]), 0)
            return {"v": y[8:], "m": meta.reshape(y[:8], (2, 4))}

        def scaled(v: Any) -> Any:
            return {"m": v["m"] / meta.reshape(d[:8], (2, 4)), "v": v["v"] / d[8:]}

        tree = {"m": meta.reshape(b[:8], (2, 4)), "v": b[8:]}
        return conjugate_gradient(
            product,
            tree,
            preconditioner=scaled if preconditioned else None,
            rtol=limit,
            max_iter=60,
        )

    given = (meta.array(a, dtype) for a in (matrix, right, np.diag(matrix)))
    found = run(mode, solved, *given)
    assert found.converged.item()
    x = np.concatenate([found.x["m"].numpy().ravel(), found.x["v"].numpy()])
    left = np.linalg.norm(matrix @ x - right)
    assert left <= 3 * limit * np.linalg.norm(right)
    if dtype == "float64":
        np.testing.assert_allclose(left, found.residual.item(), rtol=1e-2, atol=1e-12)
        assert found.iterations.item() <= (14 if preconditioned else 30)


def test_how_conjugate_gradients_end() -> None:
    b = meta.array(drawn(6))
    zero = conjugate_gradient(lambda v: v, b * 0.0)
    assert zero.converged.item() and zero.iterations.item() == 0 and not zero.x.numpy().any()
    negative = conjugate_gradient(lambda v: -v, b)
    assert not negative.converged.item() and negative.iterations.item() == 1
    matrix = meta.array(spd(6))
    few = conjugate_gradient(lambda v: matrix @ v, b, max_iter=2)
    assert not few.converged.item() and few.iterations.item() == 2
    wanted = np.linalg.solve(spd(6), b.numpy())
    again = conjugate_gradient(lambda v: matrix @ v, b, meta.array(wanted), atol=1e-9)
    assert again.iterations.item() == 0
    broken = conjugate_gradient(lambda v: matrix @ v, b, preconditioner=lambda v: v * float("nan"))
    assert not broken.converged.item()


def test_a_newton_step_of_products() -> None:
    """A Gauss-Newton step by conjugate gradients is that of the dense matrices."""
    x, y = meta.array(drawn(20, 3)), meta.array(drawn(20, seed=1))
    w = meta.array(drawn(3, seed=2))

    def f(w: Any) -> Any:
        return meta.tanh(x @ w)

    def loss(z: Any) -> Any:
        return meta.sum((z - y) ** 2)

    def step(w: Any) -> Any:
        slope = meta.grad(lambda w: loss(f(w)))(w)
        return conjugate_gradient(
            lambda v: meta.grad.gauss_newton_product(f, loss, (w,), (v,))[0], slope, rtol=1e-12
        ).x

    J = meta.grad.jacobian(f)(w).numpy()
    wanted = np.linalg.solve(2 * J.T @ J, 2 * J.T @ (f(w) - y).numpy())
    for mode in MODES:
        np.testing.assert_allclose(run(mode, step, w).numpy(), wanted, rtol=1e-8)
