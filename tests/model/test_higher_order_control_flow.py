"""Gradients of gradients through `cond`, `while_loop` and `scan`: those of torch, in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base import config
from meta.grad import value_and_grad
from meta.ir import parse_type


class Ours:
    """What the functions below are made of, in meta."""

    sin, tanh = meta.sin, meta.tanh
    cond, while_loop = staticmethod(meta.cond), staticmethod(meta.while_loop)
    scan = staticmethod(meta.scan)

    @staticmethod
    def grad(f: Callable[..., Any]) -> Callable[..., Any]:
        return lambda x: value_and_grad(f)(x)[1]


class Theirs:
    """The same on torch tensors."""

    sin, tanh = torch.sin, torch.tanh

    @staticmethod
    def cond(p: Any, then: Any, other: Any, *operands: Any) -> Any:
        return then(*operands) if p else other(*operands)

    @staticmethod
    def while_loop(cond: Any, body: Any, state: Any) -> Any:
        while cond(state):
            state = body(state)
        return state

    @staticmethod
    def scan(f: Any, state: Any, xs: Any, reverse: bool = False) -> Any:
        ys = []
        for x in xs.flip(0) if reverse else xs:
            state, y = f(state, x)
            ys.append(y)
        return state, torch.stack(ys[::-1] if reverse else ys)

    @staticmethod
    def grad(f: Callable[..., Any]) -> Callable[..., Any]:
        def slope(x: torch.Tensor) -> torch.Tensor:
            # Added zeros: for what the branch that is taken does not depend on.
            y = f(x) + 0 * (x * x).sum()
            return torch.autograd.grad(y, x, create_graph=True)[0]

        return slope


def chosen(m: Any, x: Any) -> Any:
    return m.cond(x.sum() > 0, lambda u: (u**3).sum(), lambda u: (m.sin(u) * u).sum(), x)


def chosen_of_outside(m: Any, x: Any) -> Any:
    """Branches that use different values of the code around."""
    a, b = m.sin(x), x * x
    y = m.cond(x.sum() > 0, lambda: (a * x).sum(), lambda: (b * b * a).sum())
    return y * (b * a).sum()


def nested(m: Any, x: Any) -> Any:
    def inner() -> Any:
        return m.cond(x.sum() > 9, lambda: (x**2).sum(), lambda: (x**4).sum())

    return m.cond(x.sum() > 0, inner, lambda: m.tanh(x * x).sum())


def counted(m: Any, x: Any) -> Any:
    """A state with an integer, and one that is handed on as it is."""

    def body(s: Any) -> Any:
        return s[0] + 1, m.sin(s[1] * s[2]), s[2]

    return (m.while_loop(lambda s: s[0] < 3, body, ((x > 9).sum(), x, x * x))[1] ** 2).sum()


def until(m: Any, x: Any) -> Any:
    """As many steps as the values say."""
    return m.while_loop(lambda s: (s * s).sum() < 50, lambda s: s * s + x, x).sum()


def no_step(m: Any, x: Any) -> Any:
    return m.while_loop(lambda s: (s * s).sum() < 0, lambda s: s + x, x**3).sum()


def summed(m: Any, x: Any) -> Any:
    s, ys = m.scan(lambda s, v: (m.sin(s * v) + x, (s * v).sum()), x * 1.0, x)
    return s.sum() * (ys * ys).sum()


def backwards(m: Any, x: Any) -> Any:
    s, ys = m.scan(lambda s, v: (m.tanh(s * v), s * v), x.sum(), x, reverse=True)
    return s + (ys * ys).sum()


def chosen_in_scan(m: Any, x: Any) -> Any:
    def step(s: Any, v: Any) -> Any:
        return m.cond(v > 0.8, lambda: s * v * v, lambda: m.sin(s) + x), s.sum() * v

    s, ys = m.scan(step, x * 1.0, x)
    return s.sum() * ys.sum()


def scan_in_chosen(m: Any, x: Any) -> Any:
    def scanned() -> Any:
        s, ys = m.scan(lambda s, v: (s * v, s + v * v), x.sum(), x)
        return s * (ys * ys).sum()

    return m.cond(x.sum() > 0, scanned, lambda: (x**3).sum())


def scan_in_scan(m: Any, x: Any) -> Any:
    def outer(s: Any, v: Any) -> Any:
        s, ys = m.scan(lambda t, w: (m.sin(t * w) + v, t * w), s, x)
        return s, ys.sum() * v

    s, ys = m.scan(outer, x.sum(), x)
    return s * ys.sum()


def slope_in_chosen(m: Any, x: Any) -> Any:
    slope = m.grad(lambda z: (z**3).sum() * m.sin(z).sum())
    return m.cond(x.sum() > 0, lambda u: (slope(u) ** 2).sum(), lambda u: (u * u).sum(), x)


def slope_of_chosen_in_scan(m: Any, x: Any) -> Any:
    def step(s: Any, v: Any) -> Any:
        def f(z: Any) -> Any:
            return m.cond(v > 0.8, lambda: (m.sin(z) * z).sum(), lambda: (z * z * v).sum())

        slope = m.grad(f)(s)
        return slope, (slope * v).sum()

    s, ys = m.scan(step, x * 1.0, x)
    return s.sum() * ys.sum()


FUNCTIONS = [
    chosen, chosen_of_outside, nested, counted, until, no_step, summed, backwards, chosen_in_scan,
    scan_in_chosen, scan_in_scan, slope_in_chosen, slope_of_chosen_in_scan,
]  # fmt: skip
POINTS = ([0.5, 1.0, 2.0], [-0.5, -1.0, 0.3])


def gradient(m: Any, f: Callable[..., Any], order: int) -> Callable[..., Any]:
    """Return the gradient of the sum of squares of the gradient of that order below."""
    if order == 1:
        return m.grad(lambda x: f(m, x))
    below = gradient(m, f, order - 1)
    return m.grad(lambda x: (below(x) ** 2).sum())


def expected(f: Callable[..., Any], order: int, point: Any) -> torch.Tensor:
    x = torch.tensor(point, dtype=torch.float64, requires_grad=True)
    return gradient(Theirs, f, order)(x).detach()


def close(found: meta.ndarray, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.torch(), wanted, rtol=1e-9, atol=1e-11)


def traced(f: Callable[..., Any], order: int) -> Any:
    return meta.model.trace(lambda x: gradient(Ours, f, order)(x))


@pytest.mark.product
@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("f", FUNCTIONS, ids=lambda f: f.__name__)
def test_as_traced_and_compiled(f: Callable[..., Any], order: int) -> None:
    program, level = traced(f, order), 2 if f in (chosen, counted) and order == 2 else 0
    arrays = [meta.array(p, "float64") for p in POINTS]
    compiled = meta.vm.compile(program, arrays[0], opt_level=level)
    for point, x in zip(POINTS, arrays, strict=True):
        wanted = expected(f, order, point)
        close(program(x), wanted)
        close(compiled(x), wanted)


@pytest.mark.parametrize("f", [chosen, until, summed, slope_of_chosen_in_scan])
@pytest.mark.parametrize("order", [1, 2])
def test_of_any_extent(f: Callable[..., Any], order: int) -> None:
    with config.override(META_VERIFY=True):
        compiled = meta.vm.compile(traced(f, order), parse_type("float64[n]"), opt_level=0)
    for point in ([0.5, 1.0, 2.0], [0.7, -1.2], [0.9]):
        close(compiled(meta.array(point, "float64")), expected(f, order, point))


def test_an_extent_that_only_attributes_name() -> None:
    """The gradient of a sum is its dy, repeated: the pullback captures nothing of that extent."""
    f = meta.model.trace(
        lambda x: Ours.grad(lambda u: meta.cond(u.sum() > 0, u.sum, (2.0 * u).sum))(x)
    )
    compiled = meta.vm.compile(f, parse_type("float32[n]"))
    for point, slope in (([1.0, 2.0, 3.0], 1.0), ([-1.0, 0.5], 2.0)):
        assert compiled(meta.array(point)).tolist() == [slope] * len(point)


class Penalised(meta.Model):
    """An energy of an input by parameters, and the square of its gradient."""

    def build(self, checkpointed: bool = False) -> None:
        self.w = meta.model.parameter(meta.array(np.linspace(-0.7, 0.7, 9).reshape(3, 3)))
        self.b = meta.model.parameter(meta.array(np.linspace(0.1, 0.5, 3)))
        self.kept = meta.model.checkpoint if checkpointed else lambda f: f

    def energy(self, x: Any) -> Any:
        def step(s: Any, v: Any) -> Any:
            s = self.kept(lambda s, v: self.moved(s, v))(s, v)
            return s, (s * s).sum()

        s, ys = meta.scan(step, self.b * 1.0, x)
        return s.sum() + ys.sum()

    def moved(self, s: Any, v: Any) -> Any:
        return meta.cond(s.sum() > 0.2, lambda: meta.tanh(s @ self.w + v), lambda: s * self.b * v)

    @meta.model.trace
    def forward(self, x: Any) -> Any:
        energy, slope = value_and_grad(self.energy)(x)
        return energy + (slope * slope).sum()


X = np.linspace(-1, 1, 12).reshape(4, 3)


def penalised(model: Penalised) -> tuple[float, torch.Tensor, torch.Tensor]:
    """Return the value, and the gradients of w and b, of torch."""
    w, b, x = (torch.tensor(a, requires_grad=True) for a in (model.w.numpy(), model.b.numpy(), X))
    s, total = b * 1.0, torch.zeros((), dtype=torch.float64)
    for v in x:
        s = torch.tanh(s @ w + v) if s.sum() > 0.2 else s * b * v
        total = total + (s * s).sum()
    energy = s.sum() + total
    (slope,) = torch.autograd.grad(energy, x, create_graph=True)
    loss = energy + (slope * slope).sum()
    loss.backward()
    assert w.grad is not None and b.grad is not None
    return loss.item(), w.grad, b.grad


@pytest.mark.parametrize("checkpointed", [False, True])
def test_parameters_of_a_model(checkpointed: bool, tmp_path: Path) -> None:
    model = Penalised(checkpointed)
    step = meta.model.value_and_grad(model)
    dy, x = meta.array(1.0, "float64"), meta.array(X)
    compiled = meta.vm.compile(step, dy, x, opt_level=1)
    compiled.save(tmp_path / "program")
    loaded = meta.vm.load(tmp_path / "program")
    value, *wanted = penalised(model)
    for run in (step, compiled, loaded):
        y, gradients = run(dy, x)
        assert y.item() == pytest.approx(value, rel=1e-12)
        close(gradients["w"], wanted[0])
        close(gradients["b"], wanted[1])


def test_in_mixed_precision() -> None:
    """Products of half precision: the gradient of the penalty is near that of float32."""
    w = meta.array(np.linspace(-0.7, 0.7, 9).reshape(3, 3), "float32")
    x = meta.array(X, "float32")

    def loss(w: Any, half: bool) -> Any:
        def energy(x: Any) -> Any:
            def step(s: Any, v: Any) -> Any:
                s = meta.cond(s.sum() > 0.2, lambda: meta.tanh(s @ w + v), lambda: s * v)
                return s, (s * s).sum()

            s, ys = meta.scan(step, x[0] * 1.0, x)
            return s.sum() + ys.sum()

        with meta.amp.autocast_scope("bfloat16", enabled=half):
            value, slope = value_and_grad(energy)(x)
        return value + (slope * slope).sum()

    found = []
    for half in (False, True):
        step = meta.model.trace(lambda w, half=half: Ours.grad(lambda w: loss(w, half))(w))
        found += [step(w), meta.vm.compile(step, w, opt_level=0)(w)]
    scale = found[0].torch().abs().max()
    for one, margin in zip(found, (1e-6, 1e-5, 0.05, 0.05), strict=True):
        assert (one.torch() - found[0].torch()).abs().max() <= margin * scale
    assert (found[2].torch() != found[0].torch()).any()
