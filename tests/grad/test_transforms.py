"""Transforms of functions in `meta.grad`, eager, traced and compiled, beside torch.func."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils import _pytree as pytree

import meta
from meta.base.errors import ArgumentError, GradientError
from meta.grad import (
    gauss_newton_product,
    grad,
    hessian,
    hvp,
    jacfwd,
    jacobian,
    jacrev,
    jvp,
    linearize,
    value_and_grad,
    vjp,
)
from tests.grad.test_value_and_grad import MODES, run


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ours(tree: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, meta.array, tree)


def close(found: Any, wanted: Any) -> None:
    found, shape = pytree.tree_flatten(found)
    wanted, expected = pytree.tree_flatten(wanted)
    assert shape == expected
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a.torch().detach(), b.detach(), rtol=1e-9, atol=1e-10)


def softmax_of_product(m: Any, x: Any, w: Any) -> Any:
    return m.softmax(m.matmul(x, w), -1)


def written_out_norm(m: Any, x: Any, w: Any) -> Any:
    centred = x - m.mean(x, 1, True)
    return {"y": centred / m.sqrt(m.mean(centred * centred, 1, True) + 1e-5), "w": m.tanh(w)}


def several(m: Any, x: Any, w: Any) -> Any:
    return m.sin(x), (m.exp(x) * 2.0, m.sum(w * w))


def selected(m: Any, x: Any, w: Any) -> Any:
    return m.where(x > 0, x * x, m.sin(x)), m.maximum(w, 0.5 * w)


def indexed(m: Any, x: Any, w: Any) -> Any:
    return x[1:, 0] * w[0, 0], m.concat((x, x * x), 0)


def reduced(m: Any, x: Any, w: Any) -> Any:
    return m.logsumexp(x, 1), m.prod(w, 0), m.cumsum(x, 0)


def linear(m: Any, x: Any, w: Any) -> Any:
    return m.matmul(x, w) + 3.0


def independent(m: Any, x: Any, w: Any) -> Any:
    return m.exp(w)


def powers(m: Any, x: Any, w: Any) -> Any:
    return (m.abs(x) + 0.5) ** 2.5 / (1.0 + m.exp(-x))


def identity(m: Any, x: Any, w: Any) -> Any:
    return x, w


FUNCTIONS = [
    softmax_of_product,
    written_out_norm,
    several,
    selected,
    indexed,
    reduced,
    linear,
    independent,
    powers,
    identity,
]
ARGS = (randn(2, 3), randn(3, 2, seed=1))
TANGENTS = (randn(2, 3, seed=2), randn(3, 2, seed=3))


@pytest.fixture(params=FUNCTIONS, ids=lambda f: f.__name__)
def both(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """A function of ours and the same of torch."""
    return lambda x, w: request.param(meta, x, w), lambda x, w: request.param(torch, x, w)


@pytest.mark.parametrize("mode", MODES)
def test_jvp(mode: str, both: Any) -> None:
    f, g = both
    found = run(mode, lambda *args: jvp(f, args[:2], args[2:]), *ours(ARGS), *ours(TANGENTS))
    close(found, torch.func.jvp(g, ARGS, TANGENTS))


@pytest.mark.parametrize("mode", MODES)
def test_linearize_at_two_directions(mode: str, both: Any) -> None:
    f, g = both

    def call(x: Any, w: Any, dx: Any, dw: Any) -> Any:
        y, push = linearize(f, x, w)
        return y, push(dx, dw), push(dx * 2.0, None)

    dx, dw = TANGENTS
    y, along = torch.func.jvp(g, ARGS, TANGENTS)
    _, by_x = torch.func.jvp(g, ARGS, (dx * 2, torch.zeros_like(dw)))
    expected = y, along, by_x
    close(run(mode, call, *ours(ARGS), *ours(TANGENTS)), expected)


@pytest.mark.parametrize("mode", MODES)
def test_vjp_called_twice(mode: str, both: Any) -> None:
    f, g = both
    y, pull = torch.func.vjp(g, *ARGS)
    dy = pytree.tree_map(lambda t: randn(*t.shape, seed=4), y)

    def call(x: Any, w: Any, dy: Any) -> Any:
        y, pull = vjp(f, x, w)
        return y, pull(dy), pull(pytree.tree_map(lambda d: d * 3.0, dy))

    expected = y, pull(dy), pull(pytree.tree_map(lambda d: d * 3, dy))
    close(run(mode, call, *ours(ARGS), ours(dy)), expected)


@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("transform", ["jacrev", "jacfwd", "jacobian", "hessian"])
def test_matrices(mode: str, transform: str, both: Any) -> None:
    f, g = both
    made = getattr(meta.grad, transform)(f, (0, 1))
    expected = getattr(torch.func, transform.replace("jacobian", "jacrev"))(g, (0, 1))(*ARGS)
    close(run(mode, made, *ours(ARGS)), expected)


def cross_entropy_of(m: Any, y: Any) -> Any:
    return -m.sum(m.softmax(y[0], -1)[..., 0] ** 2) + m.sum(m.exp(y[1]))


@pytest.mark.parametrize("mode", MODES)
def test_gauss_newton_products(mode: str) -> None:
    def f(m: Any, x: Any, w: Any) -> Any:
        return m.tanh(m.matmul(x, w)), m.sin(x)

    flat = torch.cat([v.reshape(-1) for v in ARGS])

    def of_flat(z: torch.Tensor) -> torch.Tensor:
        ys = f(torch, z[:6].reshape(2, 3), z[6:].reshape(3, 2))
        return torch.cat([y.reshape(-1) for y in ys])

    def loss(y: torch.Tensor) -> torch.Tensor:
        return cross_entropy_of(torch, (y[:4].reshape(2, 2), y[4:].reshape(2, 3)))

    J, H = torch.func.jacrev(of_flat)(flat), torch.func.hessian(loss)(of_flat(flat))
    wanted = J.T @ H @ J @ torch.cat([v.reshape(-1) for v in TANGENTS])

    def product(*given: Any) -> Any:
        mine = lambda x, w: f(meta, x, w)  # noqa: E731
        return gauss_newton_product(mine, lambda y: cross_entropy_of(meta, y), given[:2], given[2:])

    found = run(mode, product, *ours((*ARGS, *TANGENTS)))
    close(found, (wanted[:6].reshape(2, 3), wanted[6:].reshape(3, 2)))


def energy(m: Any, x: Any, w: Any) -> Any:
    return m.sum(m.tanh(m.matmul(x, w)) ** 3)


COMPOSITIONS = {
    "hvp": (
        lambda x, w, dx, dw: hvp(lambda x, w: energy(meta, x, w), (x, w), (dx, dw)),
        lambda x, w, dx, dw: torch.func.jvp(
            torch.func.grad(lambda x, w: energy(torch, x, w), (0, 1)), (x, w), (dx, dw)
        )[1],
    ),
    "reverse over forward": (
        lambda x, w, dx, dw: grad(lambda x: jvp(lambda x: energy(meta, x, w), (x,), (dx,))[1])(x),
        lambda x, w, dx, dw: torch.func.grad(
            lambda x: torch.func.jvp(lambda x: energy(torch, x, w), (x,), (dx,))[1]
        )(x),
    ),
    "forward over forward": (
        lambda x, w, dx, dw: jvp(
            lambda x: jvp(lambda x: energy(meta, x, w), (x,), (dx,))[1], (x,), (dx,)
        ),
        lambda x, w, dx, dw: torch.func.jvp(
            lambda x: torch.func.jvp(lambda x: energy(torch, x, w), (x,), (dx,))[1], (x,), (dx,)
        ),
    ),
    "third derivative along a line": (
        lambda x, w, dx, dw: hessian(lambda s: grad(lambda s: energy(meta, x + s * dx, w))(s))(
            meta.array(0.1, "float64")
        ),
        lambda x, w, dx, dw: torch.func.hessian(
            lambda s: torch.func.grad(lambda s: energy(torch, x + s * dx, w))(s)
        )(torch.tensor(0.1, dtype=torch.float64)),
    ),
    "gradient penalty": (
        lambda x, w, dx, dw: grad(lambda w: meta.sum(grad(lambda x: energy(meta, x, w))(x) ** 2))(
            w
        ),
        lambda x, w, dx, dw: torch.func.grad(
            lambda w: (torch.func.grad(lambda x: energy(torch, x, w))(x) ** 2).sum()
        )(w),
    ),
    "a step inside": (
        lambda x, w, dx, dw: grad(
            lambda w: energy(meta, x, w - 0.1 * grad(lambda v: energy(meta, dx, v))(w))
        )(w),
        lambda x, w, dx, dw: torch.func.grad(
            lambda w: energy(torch, x, w - 0.1 * torch.func.grad(lambda v: energy(torch, dx, v))(w))
        )(w),
    ),
    "Gauss-Newton product": (
        lambda x, w, dx, dw: vjp(lambda w: meta.sin(meta.matmul(x, w)), w)[1](
            jvp(lambda w: meta.sin(meta.matmul(x, w)), (w,), (dw,))[1]
        ),
        lambda x, w, dx, dw: torch.func.vjp(lambda w: torch.sin(x @ w), w)[1](
            torch.func.jvp(lambda w: torch.sin(x @ w), (w,), (dw,))[1]
        ),
    ),
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("f", "g"), COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_compositions(mode: str, f: Any, g: Any) -> None:
    close(run(mode, f, *ours(ARGS), *ours(TANGENTS)), g(*ARGS, *TANGENTS))


@pytest.mark.parametrize("mode", MODES)
def test_aux_is_handed_on(mode: str) -> None:
    def f(x: Any) -> Any:
        return meta.sum(x * x), {"doubled": x * 2.0, "name": "x"}

    def call(x: Any) -> Any:
        (value, aux), slope = value_and_grad(f, has_aux=True)(x)
        again, more = grad(f, has_aux=True)(x)
        y, pull, third = vjp(f, x, has_aux=True)
        _, dy, fourth = jvp(f, (x,), (x,), has_aux=True)
        rows, fifth = jacrev(f, has_aux=True)(x)
        auxes = [one["doubled"] for one in (aux, more, third, fourth, fifth)]
        return value, slope, again, y, pull(meta.array(1.0, "float64")), dy, rows, auxes

    x = ARGS[0]
    square = (x * x).sum()
    expected = square, 2 * x, 2 * x, square, (2 * x,), 2 * square, 2 * x, [2 * x] * 5
    close(run(mode, call, *ours((x,))), expected)


@pytest.mark.parametrize("mode", MODES)
def test_trees_and_what_does_not_move(mode: str) -> None:
    def f(tree: Any, n: Any) -> Any:
        return {"s": meta.sum(tree["a"] * tree["b"][0]), "n": n + 1}

    x = randn(4)
    tree = {"a": x, "b": [x * 2]}
    args = ours(tree), meta.array([1, 2])

    def forwards(tree: Any, n: Any) -> Any:
        y, dy = jvp(f, (tree, n), ({"a": tree["a"], "b": [None]}, None))
        assert dy["n"] is None
        return y["s"], dy["s"]

    close(run(mode, forwards, *args), (2 * (x * x).sum(), 2 * (x * x).sum()))

    def backwards(tree: Any, n: Any) -> Any:
        _, pull = vjp(f, tree, n)
        by_tree, by_n = pull({"s": meta.array(1.0, "float64"), "n": None})
        assert by_n is None
        return by_tree

    close(run(mode, backwards, *args), {"a": 2 * x, "b": [x]})


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers_are_drawn_once(mode: str) -> None:
    def call(x: Any) -> Any:
        y, push = linearize(lambda x: x * meta.random.normal(x.shape, dtype="float64"), x)
        z, dz = jvp(lambda x: x * meta.random.normal(x.shape, dtype="float64"), (x,), (x,))
        return y, push(x), z, dz

    y, dy, z, dz = run(mode, call, meta.array(ARGS[0]))
    close((dy, dz), (y.torch(), z.torch()))


@pytest.mark.parametrize("mode", MODES)
def test_loops_and_conditionals_go_forwards(mode: str) -> None:
    def f(x: Any) -> Any:
        def body(state: Any) -> Any:
            i, y = state
            return i + 1, meta.model.cond(i < 2, lambda: meta.sin(y), lambda: y * x)

        return meta.model.while_loop(lambda s: s[0] < 5, body, (meta.array(0), x))[1]

    def g(x: torch.Tensor) -> torch.Tensor:
        y = x
        for i in range(5):
            y = y.sin() if i < 2 else y * x
        return y

    found = run(mode, lambda x, dx: jvp(f, (x,), (dx,)), *ours((ARGS[0], TANGENTS[0])))
    close(found, torch.func.jvp(g, ARGS[:1], TANGENTS[:1]))


@pytest.mark.parametrize("mode", MODES)
def test_second_derivatives_of_a_loop(mode: str) -> None:
    def f(x: Any) -> Any:
        step = lambda s: (s[0] + 1, meta.sin(s[1]) * x)  # noqa: E731
        return meta.sum(meta.while_loop(lambda s: s[0] < 4, step, (meta.array(0), x))[1])

    def g(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(4):
            y = y.sin() * x
        return y.sum()

    x, v = ARGS[0], TANGENTS[0]
    expected = torch.func.jvp(torch.func.grad(g), (x,), (v,))[1]
    by_gradients = lambda x, v: grad(lambda x: meta.sum(grad(f)(x) * v))(x)  # noqa: E731
    for call in (by_gradients, lambda x, v: hvp(f, (x,), (v,))[0]):
        close(run(mode, call, *ours((x, v))), expected)


@pytest.mark.parametrize("mode", MODES)
def test_matrices_of_a_loop(mode: str) -> None:
    """Rows, columns, and second derivatives, also of each example."""

    def f(x: Any) -> Any:
        step = lambda s: (s[0] + 1, meta.sin(s[1]) * x[0])  # noqa: E731
        return meta.while_loop(lambda s: s[0] < 3, step, (meta.array(0), x))[1]

    def g(x: torch.Tensor) -> torch.Tensor:
        y = x
        for _ in range(3):
            y = y.sin() * x[0]
        return y

    x = ARGS[0].flatten()[:3]
    for ours_of, theirs in (
        (jacrev(f), torch.func.jacrev(g)),
        (jacfwd(f), torch.func.jacfwd(g)),
        (hessian(lambda x: meta.sum(f(x))), torch.func.hessian(lambda x: g(x).sum())),
    ):
        close(run(mode, ours_of, meta.array(x)), theirs(x))
        rows = torch.stack([x, x * 2])
        found = run(mode, meta.vmap(ours_of), meta.array(rows))
        close(found, torch.stack([theirs(row) for row in rows]))


def test_matrices_of_what_draws_are_of_one_draw() -> None:
    for matrix in (jacrev, jacfwd):
        f = meta.model.trace(matrix(lambda x: meta.dropout(x * x, 0.5)))
        found = f(meta.ones(64)).torch()
        assert set(found.diagonal().tolist()) == {0.0, 4.0}
        assert not (found - found.diagonal().diag()).any()


def test_what_is_outside_is_followed() -> None:
    w = meta.array(ARGS[1])
    w.requires_grad = True
    _, dy = jvp(lambda x: energy(meta, x, w), (meta.array(ARGS[0]),), (meta.array(TANGENTS[0]),))
    dy.backward()
    v = ARGS[1].clone().requires_grad_()
    torch.func.jvp(lambda x: energy(torch, x, v), ARGS[:1], TANGENTS[:1])[1].backward()
    close(w.grad, v.grad)


def test_nothing_is_recorded_where_it_is_not_wanted() -> None:
    x, w = ours(ARGS)
    y, pull = vjp(lambda x: energy(meta, x, w), x)
    assert not any(a.requires_grad for a in (y, *pull(meta.array(1.0)), jacrev(meta.sin)(x)))


@pytest.mark.parametrize("shape", [(0,), (2, 0), (1,), ()], ids=str)
def test_matrices_of_few_elements(shape: tuple[int, ...]) -> None:
    x = randn(*shape)
    for transform in (jacrev, jacfwd, jacobian):
        found = transform(lambda x: meta.sin(x))(meta.array(x))
        assert found.dtype == "float64"
        close(found, torch.diag(x.cos().flatten()).reshape(shape * 2))


@pytest.mark.parametrize("mode", MODES)
def test_directions_have_the_dtype_and_the_shape_of_what_moves(mode: str) -> None:
    x, t = meta.ones(3), meta.array(TANGENTS[0][0])
    _, dy = run(mode, lambda x, t: jvp(meta.sin, (x,), (t,)), x, t)
    (dx,) = run(mode, lambda x, t: vjp(meta.sin, x)[1](t), x, t)
    assert dy.dtype == dx.dtype == "float32"
    for call in (lambda x, t: jvp(meta.sin, (x,), (t,)), lambda x, t: vjp(meta.sin, x)[1](t)):
        with pytest.raises(GradientError, match="another shape"):
            run(mode, call, x, meta.ones(2))


def test_numbers_are_arguments() -> None:
    assert jvp(lambda x: x * x, (3.0,), (2.0,))[1].item() == 12.0
    assert grad(lambda x: x * x)(3.0).item() == 6.0 == meta.grad(lambda x: x * x)(3.0).item()


X = meta.array([1.0, 2.0])


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: vjp(3, X), ArgumentError, "a function is differentiated"),
        (lambda: vjp(meta.sin, X)[1]((X, X)), ArgumentError, "dy has another structure"),
        (lambda: vjp(meta.sin, X)[1](meta.ones(3)), GradientError, "another shape"),
        (lambda: jvp(meta.sin, (X,), (X, X)), ArgumentError, "tangents has another structure"),
        (lambda: jvp(meta.sin, (X,), (meta.ones(3),)), GradientError, "another shape"),
        (lambda: jacrev(lambda x: meta.argmax(x))(X), GradientError, "not floating point"),
        (lambda: jacrev(lambda x: x)(meta.array([1, 2])), GradientError, "no gradient by"),
        (lambda: jacrev(meta.sin)(X.astype("complex64")), GradientError, "not floating point"),
        (lambda: grad(lambda x: x, has_aux=True)(X), ArgumentError, r"\(result, aux\)"),
        (lambda: grad(X), ArgumentError, r"grad\(f\) of a function"),
        (lambda: hessian(3), ArgumentError, "is given a function"),
        (lambda: meta.grad.hesian, AttributeError, "meta.grad has no 'hesian'(.|\n)*hessian"),
    ],
)
def test_errors(make: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()
