"""Implicit differentiation: gradients of roots and fixed points beside closed forms, differences of
values and torch's, backwards and forwards, eager, traced and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, GradientError
from meta.optim import conjugate_gradient, custom_root, fixed_point, lbfgs
from meta.testing import check_grads
from tests.optim.test_solvers import MODES, drawn, run, spd


def bisection(f: Callable[[Any], Any], low: float, high: float) -> Any:
    """Return the root of an increasing function of each element, without a gradient of its own."""

    def halved(state: Any) -> Any:
        a, b, count = state
        middle = (a + b) / 2
        below = f(middle) < 0
        return meta.where(below, middle, a), meta.where(below, b, middle), count + 1

    ends = meta.array(low, "float64"), meta.array(high, "float64"), 0
    return meta.while_loop(lambda state: state[2] < 60, halved, ends)[0]


def cubic(x: Any, a: Any) -> Any:
    return x**3 + x - a


cube_root = custom_root(cubic, lambda a: bisection(lambda x: cubic(x, a), -10.0, 10.0))


def of_cubic(a: float) -> list[float]:
    """Return the root of x**3 + x = a, and its first and second derivative by a."""
    x = next(r.real for r in np.roots([1, 0, 1, -a]) if abs(r.imag) < 1e-12)
    return [x, 1 / (3 * x**2 + 1), -6 * x / (3 * x**2 + 1) ** 3]


DERIVATIVES: dict[str, Callable[[Any], Any]] = {
    "grad": lambda a: meta.grad(cube_root)(a),
    "jvp": lambda a: meta.grad.jvp(cube_root, (a,), (meta.ones_like(a),))[1],
    "linearize": lambda a: meta.grad.linearize(cube_root, a)[1](meta.ones_like(a)),
    "grad of grad": lambda a: meta.grad(meta.grad(cube_root))(a),
    "hessian": lambda a: meta.grad.hessian(cube_root)(a),
    "jacrev of jacfwd": lambda a: meta.grad.jacrev(meta.grad.jacfwd(cube_root))(a),
    "hvp": lambda a: meta.grad.hvp(cube_root, (a,), (meta.ones_like(a),))[0],
}


@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", DERIVATIVES)
def test_a_root_has_the_derivatives_of_the_theorem(mode: str, name: str) -> None:
    a = meta.array(3.7, "float64")
    order = 1 if name in ("grad", "jvp", "linearize") else 2
    found = run(mode, DERIVATIVES[name], a).item()
    np.testing.assert_allclose(found, of_cubic(3.7)[order], rtol=1e-9)


def test_differences_agree_to_the_third_order() -> None:
    given = [meta.array(3.7, "float64")]
    check_grads(cube_root, given, order=3, modes=["rev"], rtol=1e-4, atol=1e-5)


def of_matrix(matrix: Any, right: Any) -> Any:
    """Return a root of two parts, of which neither is symmetric in the other."""

    def f(x: Any, args: Any) -> Any:
        y, z = x["y"], x["z"]
        return {
            "y": args["m"] @ y + 0.1 * meta.sin(z[:3]) - args["b"],
            "z": 2.0 * z + 0.3 * meta.tanh(meta.concat((y, y[:1]), 0)) + 0.1 * z**3,
        }

    def solve(args: Any) -> Any:
        x = {"y": meta.zeros(3, "float64"), "z": meta.zeros(4, "float64")}
        for _ in range(40):  # Gauss-Seidel
            y = meta.linalg.solve(args["m"], args["b"] - 0.1 * meta.sin(x["z"][:3]))
            z = x["z"]
            wanted = 0.3 * meta.tanh(meta.concat((y, y[:1]), 0))
            x = {"y": y, "z": z - (2.0 * z + wanted + 0.1 * z**3) / (2.0 + 0.3 * z**2)}
        return x

    found = custom_root(f, solve)({"m": matrix, "b": right})
    return meta.sum(found["y"] ** 2) + meta.sum(meta.exp(found["z"]))


@pytest.mark.parametrize("order", [1, 2])
def test_trees(order: int) -> None:
    m = meta.array(drawn(3, 3) + 4 * np.eye(3))
    check_grads(of_matrix, [m, meta.array(drawn(3, seed=1))], order=order, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_a_minimum_by_conjugate_gradients(mode: str) -> None:
    """Weights of ridge regression by its penalties, which torch has through a dense solve."""
    x, y = drawn(15, 4), drawn(15, seed=1)
    a, b, penalty = meta.array(x), meta.array(y), meta.array([0.3, 1.0, 0.5, 2.0], "float64")

    def loss(w: Any, penalty: Any, a: Any, b: Any) -> Any:
        return meta.sum((a @ w - b) ** 2) + meta.sum(penalty * w * w)

    def minimum(penalty: Any, a: Any, b: Any) -> Any:
        start = meta.zeros(4, "float64")
        return lbfgs(lambda w: loss(w, penalty, a, b), start, gtol=1e-11, ftol=0.0, history=3).x

    weights = custom_root(
        meta.grad(loss), minimum, lambda A, b: conjugate_gradient(A, b, rtol=1e-13).x
    )

    def slope(penalty: Any, a: Any, b: Any) -> Any:
        return meta.grad(lambda p: meta.sum(weights(p, a, b) ** 3))(penalty)

    def theirs(p: torch.Tensor) -> torch.Tensor:
        t = torch.tensor(x)
        return (torch.linalg.solve(t.T @ t + torch.diag(p), t.T @ torch.tensor(y)) ** 3).sum()

    wanted = torch.func.grad(theirs)(penalty.torch().detach())
    np.testing.assert_allclose(run(mode, slope, penalty, a, b).numpy(), wanted, rtol=1e-7)


def layer(x: Any, w: Any, b: Any) -> Any:
    return meta.tanh(w @ x + b)


def equilibrium(w: Any, b: Any, **options: Any) -> Any:
    return fixed_point(layer, meta.zeros(5, "float64"), w, b, rtol=1e-13, **options)


@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("forwards", [False, True])
def test_an_implicit_layer(mode: str, forwards: bool) -> None:
    """Beside torch's gradient through the steps."""
    w, b, c = 0.15 * drawn(5, 5), drawn(5, seed=1), drawn(5, seed=2)
    tangents = drawn(5, 5, seed=3), drawn(5, seed=4)

    def theirs(w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = torch.zeros(5).double()
        for _ in range(80):
            x = torch.tanh(w @ x + b)
        return (torch.tensor(c) * x).sum()

    def ours(w: Any, b: Any) -> Any:
        return meta.sum(meta.array(c) * equilibrium(w, b).x)

    given = tuple(map(torch.tensor, (w, b)))
    if forwards:
        directions = tuple(map(torch.tensor, tangents))
        wanted: Any = torch.func.jvp(theirs, given, directions)
        moves = tuple(map(meta.array, tangents))
        found = run(mode, lambda w, b: meta.grad.jvp(ours, (w, b), moves), *map(meta.array, given))
    else:
        wanted = torch.func.grad(theirs, (0, 1))(*given)
        found = run(mode, meta.grad(ours, wrt=(0, 1)), *map(meta.array, given))
    for mine, one in zip(found, wanted, strict=True):
        np.testing.assert_allclose(mine.numpy(), one, rtol=1e-9, atol=1e-11)


def test_a_fixed_point_says_how_it_ended() -> None:
    w, b = meta.array(0.15 * drawn(5, 5)), meta.array(drawn(5, seed=1))
    found = equilibrium(w, b)
    assert found.converged.item() and 5 < found.iterations.item() < 80
    np.testing.assert_allclose(found.x.numpy(), layer(found.x, w, b).numpy(), atol=1e-12)
    few = equilibrium(w, b, max_iter=3)
    assert not few.converged.item() and few.iterations.item() == 3
    start = meta.array(drawn(5, seed=7))
    slope = meta.grad(lambda x0: meta.sum(fixed_point(layer, x0, w, b).x))(start)
    assert not slope.numpy().any()


def test_a_gradient_that_does_not_converge_is_nan() -> None:
    """Here the steps lead on at once, but no power of the derivative, 3, becomes small."""
    a = meta.array(2.0, "float64")
    slope = meta.grad(lambda a: fixed_point(lambda x, a: a + 3.0 * (x - a), a, a, max_iter=50).x)
    assert np.isnan(slope(a).item())
    exact = meta.grad(
        lambda a: (
            fixed_point(lambda x, a: a + 3.0 * (x - a), a, a, linear_solve=meta.optim.dense_solve).x
        )
    )
    np.testing.assert_allclose(exact(a).item(), 1.0)


@pytest.mark.parametrize("mode", MODES)
def test_vmap(mode: str) -> None:
    a = meta.array([0.5, 3.7, -2.0], "float64")
    found = run(mode, lambda a: meta.vmap(meta.grad(cube_root))(a), a)
    np.testing.assert_allclose(found.numpy(), [of_cubic(v)[1] for v in (0.5, 3.7, -2.0)], rtol=1e-9)


@pytest.mark.parametrize("mode", MODES)
def test_what_is_closed_over_is_an_error(mode: str) -> None:
    def closes(a: Any, b: Any) -> Any:
        return custom_root(lambda x, b: x * x - a * b, lambda b: meta.sqrt(a * b))(b)

    a, b = meta.array(4.0), meta.array(1.0)
    assert run(mode, meta.grad(closes, 1), a, b).item() == 1.0
    with pytest.raises(GradientError, match="closes over"):
        run(mode, meta.grad(closes), a, b)
    with pytest.raises(ArgumentError, match="functions"):
        custom_root(3, lambda a: a)  # type: ignore[arg-type]


def test_dense_systems() -> None:
    matrix, right = spd(4), drawn(4, seed=1)
    m = meta.array(matrix + drawn(4, 4, seed=2))
    found = meta.optim.dense_solve(lambda v: m @ v, meta.array(right))
    np.testing.assert_allclose(m.numpy() @ found.numpy(), right, rtol=1e-9)
