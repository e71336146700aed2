"""Derivatives as people compose them, beside JAX in float64: eager, traced and compiled.

Each composition is written once, in names that both libraries have; JAX's own is given where it
goes another way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import meta
from tests.grad.test_value_and_grad import MODES, run

jax = pytest.importorskip("jax", reason="JAX is not installed (the extra `test` has it)")

TRANSFORMS = ("grad", "value_and_grad", "vjp", "jvp", "linearize", "jacfwd", "jacrev", "hessian")
OURS = SimpleNamespace(
    np=meta,
    **{name: getattr(meta.grad, name) for name in TRANSFORMS},
    **{name: getattr(meta, name) for name in ("vmap", "scan", "cond", "while_loop")},
)
JAX = SimpleNamespace(
    np=jax.numpy,
    **{name: getattr(jax, name) for name in (*TRANSFORMS, "vmap")},
    **{name: getattr(jax.lax, name) for name in ("scan", "cond", "while_loop")},
)


@pytest.fixture(autouse=True)
def in_float64_on_the_cpu() -> Iterator[None]:
    """JAX computes as NumPy does, and leaves a GPU alone."""
    with jax.enable_x64(True), jax.default_device(jax.devices("cpu")[0]):
        yield


def randn(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).normal(size=shape)


X, LABELS = randn(6, 3), randn(6, 2, seed=1)
PARAMS = {
    "w": randn(3, 4, seed=2) * 0.7,
    "b": randn(4, seed=3),
    "head": (randn(4, 2, seed=4), randn(2, seed=5)),
}
STATES = {
    "w": randn(5, 3, 4, seed=2),
    "b": randn(5, 4, seed=3),
    "head": (randn(5, 4, 2, seed=4), randn(5, 2, seed=5)),
}
SQUARE = randn(4, 4, seed=6) * 0.2
POINT, DIRECTION = randn(4, seed=7), randn(4, seed=8)


def network(m: Any, p: Any, x: Any) -> Any:
    hidden = m.np.tanh(m.np.matmul(x, p["w"]) + p["b"])
    return m.np.matmul(hidden, p["head"][0]) + p["head"][1]


def loss(m: Any, p: Any, x: Any, label: Any) -> Any:
    return m.np.sum((network(m, p, x) - label) ** 2)


def leaves(tree: Any) -> list[Any]:
    if isinstance(tree, dict):
        return [leaf for key in sorted(tree) for leaf in leaves(tree[key])]
    return [leaf for part in tree for leaf in leaves(part)] if isinstance(tree, tuple) else [tree]


def mapped(f: Callable[..., Any], *trees: Any) -> Any:
    """Apply a function to the arrays of trees of one structure."""
    first = trees[0]
    if isinstance(first, dict):
        return {k: mapped(f, *(t[k] for t in trees)) for k in first}
    if isinstance(first, tuple):
        return tuple(mapped(f, *parts) for parts in zip(*trees, strict=True))
    return f(*trees)


def of_each_example(m: Any, p: Any, x: Any, label: Any) -> Any:
    return m.vmap(m.value_and_grad(lambda p, x, y: loss(m, p, x, y)), (None, 0, 0))(p, x, label)


def forward_over_reverse(m: Any, x: Any, w: Any) -> Any:
    f = lambda x: m.np.sin(m.np.matmul(w, x)) * m.np.sum(x * x)  # noqa: E731
    return m.jacfwd(m.jacrev(f))(x), m.jacrev(m.jacfwd(f))(x), m.hessian(f)(x)


def of_a_batch(m: Any, p: Any, x: Any, label: Any) -> Any:
    each = m.vmap(lambda p, x, y: loss(m, p, x, y), (None, 0, 0))
    return m.grad(lambda p: m.np.sum(m.np.sqrt(each(p, x, label))))(p)


def clipped(m: Any, p: Any, x: Any, label: Any) -> Any:
    def one(p: Any, x: Any, y: Any) -> Any:
        slopes = m.grad(lambda p: loss(m, p, x, y))(p)
        norm = m.np.sqrt(sum(m.np.sum(g * g) for g in leaves(slopes)))
        return mapped(lambda g: g / m.np.maximum(norm / 2.0, 1.0), slopes)

    each = m.vmap(one, (None, 0, 0))(p, x, label)
    return mapped(lambda g: m.np.mean(g, 0), each)


def maml(m: Any, p: Any, x: Any, label: Any) -> Any:
    """Two steps of descent for each of two tasks, whose loss is differentiated through them."""

    def of_task(p: Any, x: Any, y: Any) -> Any:
        own = p
        for _ in range(2):
            slopes = m.grad(lambda q: loss(m, q, x[:2], y[:2]))(own)
            own = mapped(lambda q, g: q - 0.05 * g, own, slopes)
        return loss(m, own, x[2:], y[2:])

    x, label = m.np.reshape(x, (2, 3, 3)), m.np.reshape(label, (2, 3, 2))
    return m.value_and_grad(
        lambda p: m.np.mean(m.vmap(of_task, (None, 0, 0))(p, x, label)),
    )(p)


def tangent_kernel(m: Any, p: Any, x: Any, others: Any, basis: Any) -> Any:
    """A row of the Jacobian backwards, then forwards at the other point."""

    def kernel(a: Any, b: Any) -> Any:
        def column(v: Any) -> Any:
            (direction,) = m.vjp(lambda p: network(m, p, b), p)[1](v)
            return m.jvp(lambda p: network(m, p, a), (p,), (direction,))[1]

        return m.vmap(column, 0, 1)(basis)

    return m.vmap(m.vmap(kernel, (None, 0)), (0, None))(x, others)


def kernel_by_jacobians(m: Any, p: Any, x: Any, others: Any, basis: Any) -> Any:
    one, other = (m.vmap(lambda x: m.jacrev(lambda p: network(m, p, x))(p))(a) for a in (x, others))
    flat = lambda j: j.reshape(*j.shape[:2], -1)  # noqa: E731
    pairs = zip(leaves(one), leaves(other), strict=True)
    return sum(m.np.einsum("nip,mjp->nmij", flat(a), flat(b)) for a, b in pairs)


def laplacian(m: Any, p: Any, x: Any, basis: Any) -> Any:
    """Of each output at each point, and its gradient by the parameters, as for an equation."""

    def at(p: Any, x: Any) -> Any:
        slope = m.grad(lambda x: m.np.sum(m.np.sin(network(m, p, x))))
        return m.np.sum(m.vmap(lambda e: m.np.sum(e * m.jvp(slope, (x,), (e,))[1]))(basis))

    residual = lambda p: m.np.mean(m.vmap(at, (None, 0))(p, x) ** 2)  # noqa: E731
    return m.vmap(at, (None, 0))(p, x), m.grad(residual)(p)


def equilibrium(m: Any, w: Any, x: Any) -> Any:
    """The gradient of a layer that is a fixed point, by a solve with its Jacobian there."""
    layer = lambda z, w, x: m.np.tanh(m.np.matmul(w, z) + x)  # noqa: E731

    def moved(state: Any) -> Any:
        z, before = state
        return m.np.sum(m.np.abs(z - before)) > 1e-14

    start = m.np.zeros_like(x), m.np.ones_like(x)
    z, _ = m.while_loop(moved, lambda s: (layer(s[0], w, x), s[0]), start)
    slope = m.grad(lambda z: m.np.sum(z * z * z))(z)
    matrix = m.jacrev(lambda z: z - layer(z, w, x))(z)
    u = m.np.linalg.solve(m.np.matrix_transpose(matrix), slope)
    return z, m.vjp(lambda w, x: layer(z, w, x), w, x)[1](u)


def equilibrium_unrolled(m: Any, w: Any, x: Any) -> Any:
    def solve(w: Any, x: Any) -> Any:
        def step(z: Any, _: Any) -> Any:
            return m.np.tanh(m.np.matmul(w, z) + x), None

        return m.scan(step, m.np.zeros_like(x), None, 200)[0]

    return solve(w, x), m.grad(lambda w, x: m.np.sum(solve(w, x) ** 3), (0, 1))(w, x)


def power_iteration(m: Any, x: Any, v: Any, w: Any) -> Any:
    """Products of a Hessian with vectors in a scan."""
    slope = m.grad(lambda x: m.np.sum(m.np.sin(m.np.matmul(w, x)) ** 2))

    def step(v: Any, _: Any) -> Any:
        product = m.jvp(slope, (x,), (v,))[1]
        norm = m.np.sqrt(m.np.sum(product * product))
        return product / norm, norm

    return m.scan(step, v, None, 5)


def recurrent(m: Any, w: Any, u: Any, x: Any) -> Any:
    """Gradients and changes of a scan of each row, and the gradient of all."""

    def total(w: Any, u: Any, row: Any) -> Any:
        def step(h: Any, a: Any) -> Any:
            h = m.np.tanh(m.np.matmul(w, h) + u * a)
            return h, m.np.sum(h)

        h, sums = m.scan(step, m.np.zeros_like(u), row)
        return m.np.sum(h * h) + m.np.sum(sums[1:] * sums[:-1])

    each = m.vmap(m.value_and_grad(total, (0, 1, 2)), (None, None, 0))
    changes = m.vmap(lambda w, u, row: m.jvp(total, (w, u, row), (w, u, row)), (None, None, 0))
    mean = lambda w: m.np.mean(m.vmap(total, (None, None, 0))(w, u, x) ** 2)  # noqa: E731
    along = m.jvp(m.grad(mean), (w,), (m.np.sin(w),))  # forward mode through a loop's gradient
    return each(w, u, x), changes(w, u, x), m.value_and_grad(mean)(w), along


def branches(m: Any, x: Any, w: Any) -> Any:
    """Each way of a condition, one decided for all, and one decided by the example."""

    def f(x: Any) -> Any:
        y = m.np.matmul(w, x)
        return m.cond(m.np.sum(y) > 0, lambda: m.np.sum(y**3), lambda: m.np.sum(m.np.exp(y) * x))

    both, slope = m.np.stack([x, -x]), m.grad(f)
    return slope(x), slope(-x), m.vmap(f)(both), m.grad(lambda x: m.np.sum(slope(x) * w))(x)


def newton(m: Any, x: Any, v: Any) -> Any:
    """Forward mode of a loop whose length depends on its values, once and twice."""

    def root(x: Any) -> Any:
        a = 1.0 + x * x
        far = lambda y: m.np.max(m.np.abs(y * y - a)) > 1e-3  # noqa: E731
        return m.while_loop(far, lambda y: 0.5 * (y + a / y), a)

    along = lambda x: m.jvp(root, (x,), (v,))  # noqa: E731
    return along(x), m.jvp(along, (x,), (v * v,))


def taylor(m: Any, x: Any, v: Any, w: Any) -> Any:
    """The first three derivatives along a direction."""
    f = lambda x: m.np.exp(m.np.sin(m.np.matmul(w, x))) / (1.0 + x * x)  # noqa: E731
    once = lambda x: m.jvp(f, (x,), (v,))[1]  # noqa: E731
    twice = lambda x: m.jvp(once, (x,), (v,))[1]  # noqa: E731
    return f(x), once(x), m.jvp(twice, (x,), (v,))


def ensemble(m: Any, states: Any, x: Any, label: Any) -> Any:
    """A step of each member, and their Jacobians by one example."""

    def step(p: Any) -> Any:
        value, slopes = m.value_and_grad(lambda p: loss(m, p, x, label))(p)
        return value, mapped(lambda q, g: q - 0.1 * g, p, slopes)

    jacobians = m.vmap(lambda p: m.jacfwd(lambda x: network(m, p, x))(x[0]))(states)
    return m.vmap(step)(states), jacobians


def gauss_newton(m: Any, p: Any, x: Any, v: Any) -> Any:
    """Steps of conjugate gradient, of products that are linearised once."""
    f = lambda w: m.np.tanh(m.np.matmul(x, w)) + p["b"]  # noqa: E731
    y, push = m.linearize(f, p["w"])
    _, pull = m.vjp(f, p["w"])
    dot = lambda a, b: m.np.sum(a * b)  # noqa: E731

    def step(state: Any, _: Any) -> Any:
        solution, rest, direction = state
        product = pull(push(direction))[0] + 0.1 * direction
        size = dot(rest, rest) / dot(direction, product)
        left = rest - size * product
        turned = left + dot(left, left) / dot(rest, rest) * direction
        return (solution + size * direction, left, turned), dot(left, left)

    return y, m.scan(step, (m.np.zeros_like(v), v, v), None, 4)


def spectrum(m: Any, x: Any) -> Any:
    """By way of complex numbers."""
    power = lambda x: m.np.abs(m.np.fft.fft(x)) ** 2  # noqa: E731
    return m.jacfwd(power)(x), m.vmap(m.hessian(lambda x: m.np.sum(power(x) ** 2)))(x[None])


@dataclass(frozen=True)
class Composition:
    """``theirs`` is what JAX computes: the same, or the same number on another way."""

    ours: Callable[..., Any]
    args: tuple[Any, ...]
    theirs: Callable[..., Any] | None = None


COMPOSITIONS = [
    Composition(of_each_example, (PARAMS, X, LABELS)),
    Composition(forward_over_reverse, (POINT, SQUARE)),
    Composition(of_a_batch, (PARAMS, X, LABELS)),
    Composition(clipped, (PARAMS, X, LABELS)),
    Composition(maml, (PARAMS, X, LABELS)),
    Composition(tangent_kernel, (PARAMS, X, X[:2] * 0.5, np.eye(2)), kernel_by_jacobians),
    Composition(laplacian, (PARAMS, X, np.eye(3))),
    Composition(equilibrium, (SQUARE, POINT), equilibrium_unrolled),
    Composition(power_iteration, (POINT, DIRECTION, SQUARE)),
    Composition(recurrent, (SQUARE, POINT, X)),
    Composition(branches, (POINT, SQUARE)),
    Composition(newton, (POINT, DIRECTION)),
    Composition(taylor, (POINT, DIRECTION, SQUARE)),
    Composition(ensemble, (STATES, X, LABELS)),
    Composition(gauss_newton, (PARAMS, X, randn(3, 4, seed=9))),
    Composition(spectrum, (POINT,)),
]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("composition", COMPOSITIONS, ids=lambda c: c.ours.__name__)
@pytest.mark.long
def test_compositions(composition: Composition, mode: str) -> None:
    theirs = composition.theirs or composition.ours
    expected = jax.jit(lambda *args: theirs(JAX, *args))(
        *mapped(jax.numpy.asarray, composition.args)
    )
    arrays = mapped(meta.array, composition.args)
    close(run(mode, lambda *args: composition.ours(OURS, *args), *arrays), expected)


def close(found: Any, expected: Any) -> None:
    """Raise AssertionError unless two trees are alike in structure, shapes, dtypes and values."""
    if isinstance(expected, dict):
        assert isinstance(found, dict) and found.keys() == expected.keys()
        for key, value in expected.items():
            close(found[key], value)
    elif isinstance(expected, tuple | list):
        assert isinstance(found, tuple | list) and len(found) == len(expected)
        for f, e in zip(found, expected, strict=True):
            close(f, e)
    else:
        ours, theirs = found.numpy(), np.asarray(expected)
        assert ours.dtype == theirs.dtype == np.float64 and np.abs(theirs).max() > 1e-3
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-10)
