"""`meta.vmap` beside torch.func.vmap in float64: axes, trees, transforms within and around it,
control flow, random numbers; eager, traced and compiled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.base.errors import ArgumentError, TraceError
from meta.grad import grad, hessian, jacfwd, jacrev, jvp, value_and_grad
from meta.ir import parse_type
from tests.grad.test_transforms import close, ours, randn
from tests.grad.test_value_and_grad import MODES, run

X, W, V = randn(4, 3, seed=1), randn(3, 2, seed=2), randn(5, 3, 2, seed=3)
vmap, func = meta.vmap, torch.func


def layer(m: Any, w: Any, x: Any) -> Any:
    return m.tanh(m.matmul(x, w))


def loss(m: Any, w: Any, x: Any) -> Any:
    return m.sum(m.sin(m.matmul(w.T if m is torch else m.permute_dims(w), x)) ** 2)


COMPOSITIONS: dict[str, tuple[Any, Any, tuple[torch.Tensor, ...]]] = {
    "gradients of each example": (
        lambda w, x: vmap(grad(lambda w, x: loss(meta, w, x)), (None, 0))(w, x),
        lambda w, x: func.vmap(func.grad(lambda w, x: loss(torch, w, x)), (None, 0))(w, x),
        (W, X),
    ),
    "an ensemble": (
        lambda v, x: vmap(lambda w: layer(meta, w, x))(v),
        lambda v, x: func.vmap(lambda w: layer(torch, w, x))(v),
        (V, X),
    ),
    "an ensemble of each example": (
        lambda v, x: vmap(vmap(lambda w, x: loss(meta, w, x), (0, None)), (None, 0), 1)(v, x),
        lambda v, x: func.vmap(func.vmap(lambda w, x: loss(torch, w, x), (0, None)), (None, 0), 1)(
            v, x
        ),
        (V, X),
    ),
    "Hessians of each example": (
        lambda w, x: vmap(hessian(lambda x: loss(meta, w, x)))(x),
        lambda w, x: func.vmap(func.hessian(lambda x: loss(torch, w, x)))(x),
        (W, X),
    ),
    "forward over reverse over examples": (
        lambda w, x: vmap(jacfwd(jacrev(lambda x: meta.sin(x) * meta.sum(x))))(x),
        lambda w, x: func.vmap(func.jacfwd(func.jacrev(lambda x: x.sin() * x.sum())))(x),
        (W, X),
    ),
    "gradient of a batch": (
        lambda w, x: grad(lambda w: meta.sum(vmap(lambda x: loss(meta, w, x))(x) ** 2))(w),
        lambda w, x: func.grad(lambda w: (func.vmap(lambda x: loss(torch, w, x))(x) ** 2).sum())(w),
        (W, X),
    ),
    "tangent of a batch": (
        lambda w, x: jvp(lambda w: vmap(lambda x: loss(meta, w, x))(x), (w,), (w,)),
        lambda w, x: func.jvp(lambda w: func.vmap(lambda x: loss(torch, w, x))(x), (w,), (w,)),
        (W, X),
    ),
    "norms of clipped gradients": (
        lambda w, x: meta.sum(vmap(lambda x: _clipped(meta, grad, w, x))(x), 0),
        lambda w, x: func.vmap(lambda x: _clipped(torch, func.grad, w, x))(x).sum(0),
        (W, X),
    ),
    "kernel of the tangents": (
        lambda w, x: vmap(lambda a: vmap(lambda b: _kernel(meta, grad, w, a, b))(x))(x),
        lambda w, x: func.vmap(
            lambda a: func.vmap(lambda b: _kernel(torch, func.grad, w, a, b))(x)
        )(x),
        (W, X),
    ),
}


def _clipped(m: Any, grad: Any, w: Any, x: Any) -> Any:
    g = grad(lambda w: loss(m, w, x))(w)
    return g / m.sqrt(m.sum(g * g)).clip(1.0)


def _kernel(m: Any, grad: Any, w: Any, a: Any, b: Any) -> Any:
    return m.sum(grad(lambda w: loss(m, w, a))(w) * grad(lambda w: loss(m, w, b))(w))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("f", "g", "args"), COMPOSITIONS.values(), ids=COMPOSITIONS)
def test_compositions(mode: str, f: Any, g: Any, args: Any) -> None:
    close(run(mode, f, *ours(args)), g(*args))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("in_axes", "out_axes", "shapes"),
    [
        (0, 0, [(4, 3), (4, 3)]),
        ((1, 0), 1, [(3, 4), (4, 3)]),
        ((None, 1), 0, [(3,), (3, 4)]),
        ((-1, None), -1, [(3, 4), (3,)]),
        ((0, 2), 2, [(4, 5, 3), (5, 3, 4)]),
    ],
)
def test_axes(mode: str, in_axes: Any, out_axes: Any, shapes: Any) -> None:
    args = [randn(*shape, seed=i) for i, shape in enumerate(shapes)]
    for chunk in (None, 1, 3, 9):
        found = run(
            mode,
            vmap(lambda a, b: meta.sin(a) * b, in_axes, out_axes, chunk_size=chunk),
            *ours(args),
        )
        close(found, func.vmap(lambda a, b: a.sin() * b, in_axes, out_axes)(*args))


@pytest.mark.parametrize("mode", MODES)
def test_trees_names_and_what_is_no_array(mode: str) -> None:
    def f(tree: Any, scale: float, *, b: Any) -> Any:
        return {"y": tree["x"] * scale + b, "z": (tree["w"], None, 3)}

    def call(x: Any, w: Any, b: Any) -> Any:
        made = vmap(f, ({"x": 0, "w": None}, None), {"y": 1, "z": 0})
        found = made({"x": x, "w": w}, 2.0, b=b)
        assert found["z"][1:] == (None, 3)
        return found["y"], found["z"][0]

    w = randn(2)
    found = run(mode, call, *ours((X, w, X)))
    close(found, (X.T * 3, w.expand(4, 2)))


@pytest.mark.parametrize("mode", MODES)
def test_control_flow(mode: str) -> None:
    def f(x: Any, n: Any) -> Any:
        y = meta.model.cond(meta.sum(x) > 0, lambda: meta.sin(x), lambda: x * 2.0)
        _, z = meta.while_loop(
            lambda s: s[0] < n, lambda s: (s[0] + 1, s[1] * y), (meta.array(0), x)
        )
        _, rows = meta.scan(lambda s, r: (s + r, s * r), meta.array(0.0, "float64"), z)
        return rows

    def g(x: torch.Tensor) -> torch.Tensor:
        y = x.sin() if x.sum() > 0 else x * 2
        z = x * y * y * y
        return (z.cumsum(0) - z) * z

    found = run(mode, lambda x, n: vmap(f, (0, None))(x, n), *ours((X,)), meta.array(3))
    close(found, torch.stack([g(x) for x in X]))


def recurrent(m: Any, w: Any, x: Any) -> Any:
    """A loop over the rows of x, whose state is what w makes of it."""
    if m is torch:
        c, rows = torch.zeros(3, dtype=torch.float64), []
        for row in x:
            c = torch.tanh(torch.mv(w, c) + row)
            rows.append(c * row)
        return c.sum() + (torch.stack(rows) ** 2).sum()

    def step(c: Any, row: Any) -> Any:
        c = m.tanh(m.matmul(w, c) + row)
        return c, c * row

    c, rows = m.scan(step, m.zeros((3,), "float64"), x)
    return m.sum(c) + m.sum(rows**2)


def lone(m: Any, w: Any, x: Any) -> Any:
    """A loop of a number of steps that is known when it runs, and a branch that all take."""
    if m is torch:
        return ((w @ (w @ (w @ x.T))) ** 2).sum()

    def step(s: Any) -> Any:
        y = m.cond(s[0] >= 0, lambda y: m.matmul(w, y), lambda y: y, s[1])
        return s[0] + 1, y

    return m.sum(m.while_loop(lambda s: s[0] < 3, step, (m.array(0), m.permute_dims(x)))[1] ** 2)


S, R = randn(3, 3, seed=8) * 0.5, randn(4, 5, 3, seed=9)


@pytest.mark.product
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", [recurrent, lone])
def test_gradients_of_a_loop_of_each_example(f: Any, mode: str) -> None:
    ws = torch.stack([S, S * 2, S - 0.1, S * 0.5])
    for axes, w in (((None, 0), S), ((0, 0), ws)):
        made = vmap(value_and_grad(lambda w, x: f(meta, w, x), (0, 1)), axes)
        found = run(mode, made, *ours((w, R)))
        both = func.grad_and_value(lambda w, x: f(torch, w, x), (0, 1))
        rows = [both(w if w.ndim == 2 else w[i], x)[::-1] for i, x in enumerate(R)]
        wanted = [torch.stack(column) for column in zip(*(r[1] for r in rows), strict=True)]
        close(found, (torch.stack([r[0] for r in rows]), tuple(wanted)))
        assert not made.loops


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("f", [recurrent, lone])
def test_gradients_of_a_loop_go_forwards_for_each_example(f: Any, mode: str) -> None:
    def along(m: Any, jvp: Any, grad: Any, x: Any) -> Any:
        return jvp(lambda w: grad(lambda w: f(m, w, x))(w), (_of(m, S),), (_of(m, S * S),))[1]

    found = run(mode, vmap(lambda x: along(meta, jvp, grad, x)), meta.array(R))
    close(found, torch.stack([along(torch, func.jvp, func.grad, x) for x in R]))


def _of(m: Any, x: torch.Tensor) -> Any:
    return x if m is torch else meta.array(x)


def test_a_data_value_that_depends_on_the_example() -> None:
    def f(x: Any) -> Any:
        return meta.model.cond(meta.sum(x) > 0, lambda: meta.sum(x * x), lambda: meta.sum(x))

    with pytest.raises(TraceError, match=r"which data value.* depends on the example"):
        vmap(grad(f))(meta.array(X))


@pytest.mark.parametrize("mode", MODES)
def test_within_a_scan(mode: str) -> None:
    def f(x: Any, v: Any) -> Any:
        return meta.scan(lambda s, w: (vmap(lambda a: layer(meta, w, a))(s), s), x, v)[0]

    v = randn(5, 3, 3, seed=7)
    x = X
    for w in v:
        x = layer(torch, w, x)
    close(run(mode, f, *ours((X, v))), x)


def test_a_loop_that_depends_on_the_example_says_so() -> None:
    f = vmap(lambda n: meta.while_loop(lambda i: i < n, lambda i: i + 1, meta.array(0)))
    with pytest.raises(TraceError, match="how often a loop runs depends on the example"):
        f(meta.array([1, 2]))


@pytest.mark.parametrize("mode", MODES)
def test_random_numbers(mode: str) -> None:
    def draws(randomness: str) -> Callable[..., Any]:
        f = lambda x: x + meta.random.uniform((50,))  # noqa: E731
        return vmap(f, randomness=randomness)

    x = meta.zeros((3, 50))
    one = run(mode, draws("same"), x).torch()
    assert (one == one[:1]).all() and one.std() > 0.1
    three = run(mode, draws("different"), x).torch()
    assert all((three[i] != three[j]).any() for i, j in ((0, 1), (1, 2), (0, 2)))
    with pytest.raises(TraceError, match='randomness="different" or "same"'):
        run(mode, draws("error"), x)


@pytest.mark.parametrize("mode", MODES)
def test_draws_by_keys_are_one_draw(mode: str) -> None:
    keys = meta.array([[3], [-1], [2**40]])
    scale = meta.array([1.0, 2.0, 3.0])
    for draw in (op.random_uniform, op.random_normal):
        f = vmap(lambda key, s: draw(key, (2, 5)) * s)  # noqa: B023
        found = run(mode, f, keys, scale).torch()
        of = [draw(k, (2, 5)).torch() * s for k, s in zip(keys, (1, 2, 3), strict=True)]
        assert torch.equal(found, torch.stack(of)) and not f.loops
    f = vmap(lambda keys: op.random_integers(keys, (2, 3), 0, 9))
    pairs = meta.array([[1, 2], [3, 4]])
    found = run(mode, f, pairs).torch()
    of = [op.random_integers(meta.array([k]), (3,), 0, 9).torch() for k in (1, 2, 3, 4)]
    assert torch.equal(found.view(4, 3), torch.stack(of)) and not f.loops


@pytest.mark.parametrize("mode", MODES)
def test_dropout(mode: str) -> None:
    x = meta.ones((3, 64))
    for randomness, alike in (("same", True), ("different", False)):
        made = vmap(lambda x: meta.dropout(x, 0.5), randomness=randomness)
        y = run(mode, made, x).torch()
        assert ((y == 0) | (y == 2)).all() and 0 < int((y == 0).sum()) < y.numel()
        assert [bool((y[i] == y[0]).all()) for i in (1, 2)] == [alike, alike]
        assert not made.loops


@pytest.mark.parametrize("randomness", ["same", "different"])
def test_gradients_of_dropout_have_its_mask(randomness: str) -> None:
    x = meta.ones((3, 64))
    f = vmap(value_and_grad(lambda x: meta.sum(meta.dropout(x, 0.5))), randomness=randomness)
    value, gradient = f(x)
    torch.testing.assert_close(gradient.torch().sum(1), value.torch())


def test_models_have_gradients_of_each_example() -> None:
    conv = meta.model.Conv2d(2, 3, 3)
    head = meta.model.Linear(12, 4)

    def scores(x: Any, label: Any) -> Any:
        y = meta.relu(conv(meta.expand_dims(x, 0)))
        return meta.cross_entropy(head(meta.reshape(y, (1, -1))), meta.reshape(label, (1,)))

    x, labels = randn(5, 2, 4, 4).float(), torch.tensor([0, 3, 1, 2, 0])
    made = vmap(grad(scores))
    found = made(meta.array(x), meta.array(labels))
    assert not made.loops
    w, b, v, c = (torch.tensor(p.numpy()) for p in (*conv.parameters(), *head.parameters()))

    def by_torch(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        y = torch.conv2d(x[None], w, b).relu().reshape(1, -1)
        return torch.nn.functional.cross_entropy(y @ v.T + c, label[None])

    wanted = torch.stack([func.grad(by_torch)(a, n) for a, n in zip(x, labels, strict=True)])
    torch.testing.assert_close(found.torch(), wanted, rtol=1e-4, atol=1e-5)


def test_what_is_closed_over_has_a_gradient() -> None:
    w = meta.array(W)
    w.requires_grad = True
    meta.sum(vmap(lambda x: loss(meta, w, x))(meta.array(X))).backward()
    expected = func.grad(lambda w: func.vmap(lambda x: loss(torch, w, x))(X).sum())(W)
    close(w.grad, expected)


def test_symbolic_batches_in_a_compiled_program() -> None:
    f = meta.model.trace(lambda x, w: vmap(lambda a: layer(meta, w, a))(x))
    types = parse_type("float64[b, 3]"), parse_type("float64[3, 2]")
    executable = meta.vm.compile(f, *types, dims={"b": (1, 8)})
    for rows in (1, 4, 6):
        x = randn(rows, 3)
        close(executable(meta.array(x), meta.array(W)), layer(torch, W, x))


@pytest.mark.parametrize("size", [0, 1])
def test_few_examples(size: int) -> None:
    x = meta.zeros((size, 3))
    assert vmap(lambda a: meta.sum(meta.softmax(a)))(x).shape == (size,)


def test_operators_without_a_rule_are_named() -> None:
    ends = meta.array([1, 3])
    made = vmap(lambda x, w: meta.grouped_matmul(x, w, ends))
    made(meta.zeros((2, 3, 4)), meta.zeros((2, 2, 4, 5)))
    assert made.loops == ("grouped_matmul",)


XS = meta.zeros((2, 3))


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: vmap(3), ArgumentError, "vmap is given a function"),
        (lambda: vmap(meta.sin)(3.0), ArgumentError, "no argument has an axis"),
        (lambda: vmap(meta.sin, 2)(XS), ArgumentError, "no such axis"),
        (lambda: vmap(meta.add)(XS, meta.zeros(3)), ArgumentError, "different numbers"),
        (lambda: vmap(meta.add, (0,))(XS, XS), ArgumentError, "in_axes does not have"),
        (lambda: vmap(meta.sin, out_axes=None)(XS), ArgumentError, "out_axes is None"),
        (lambda: vmap(meta.sin, out_axes=5)(XS), Exception, "axis"),
        (lambda: vmap(meta.sin, randomness="some"), ArgumentError, "unknown randomness"),
        (lambda: vmap(meta.sin, chunk_size=0), ArgumentError, "chunk_size is a number"),
        (
            lambda: vmap(meta.dropout, randomness="same", chunk_size=1)(XS),
            ArgumentError,
            "several chunks",
        ),
        (lambda: vmap(lambda x: 1 if x[0] > 0 else 2)(XS), TraceError, "Python decides"),
    ],
)
def test_errors(make: Callable[[], Any], error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make()


def test_a_function_that_a_rule_calls_stays_what_it_is_where_nothing_is_batched() -> None:
    @meta.custom_vjp
    def cosine(x: Any) -> Any:
        return meta.cos(x)

    @meta.custom_vjp
    def sine(x: Any) -> Any:
        return meta.sin(x)

    cosine.defvjp(lambda x: (cosine(x), x), lambda x, dy: (-dy * meta.sin(x),))
    sine.defvjp(lambda x: (sine(x), x), lambda x, dy: (dy * cosine(x),))

    def curvature(x: Any) -> Any:
        return meta.grad.hessian(lambda x: meta.sum(sine(x) * sine(x)))(x)

    x = meta.array([1.0, 2.0], "float64")
    with config.override(META_VERIFY=True):
        found = meta.vm.compile(meta.model.trace(curvature), x)(x)
    close(found, torch.diag(2 * torch.cos(2 * x.torch())))
