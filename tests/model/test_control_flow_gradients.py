"""value_and_grad and with_sgd of models with control flow, under both executors; torch's autograd
and the eager tape are the oracles.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base import config
from meta.model import BatchNorm, Model, trace, value_and_grad
from meta.optim import SGD, with_sgd
from meta.testing import check

STEPS, BATCH, SIZE = 5, 2, 3
TORCH_NAMES = {"w": "weight_ih_l0", "u": "weight_hh_l0", "b": "bias_ih_l0"}


class LSTM(Model):
    """A long short-term memory (Hochreiter and Schmidhuber 1997) along the rows of its input."""

    def build(self) -> None:
        generator = torch.Generator().manual_seed(1)

        def parameter(*shape: int) -> meta.ndarray:
            made = meta.array(torch.randn(shape, generator=generator) * 0.5)
            made.requires_grad = True
            return made

        self.w, self.u = parameter(4 * SIZE, SIZE), parameter(4 * SIZE, SIZE)
        self.b, self.frozen = parameter(4 * SIZE), parameter(SIZE)
        self.frozen.requires_grad = False

    @trace
    def forward(self, x: Any) -> Any:
        def cell(state: Any, row: Any) -> Any:
            h, c = state
            gates = op.matmul_nt(row, self.w) + op.matmul_nt(h, self.u) + self.b
            i, f, g, o = op.split(gates, 4, 1)
            c = op.sigmoid(f) * c + op.sigmoid(i) * op.tanh(g)
            h = op.sigmoid(o) * op.tanh(c)
            return (h, c), h * self.frozen

        zero = meta.zeros((BATCH, SIZE), "float32")
        (_, c), hs = meta.model.scan(cell, (zero, zero), x)
        return c, hs


class Halving(Model):
    """Divides by a parameter until the sum is small; counts; then one of two branches."""

    def build(self, sign: float) -> None:
        self.d, self.w = meta.array([2.0, 3.0]), meta.array([sign, 0.5])
        self.d.requires_grad = self.w.requires_grad = True

    @trace
    def forward(self, x: Any) -> Any:
        def body(state: Any) -> Any:
            return {"x": state["x"] / self.d, "count": state["count"] + 1}

        start = {"x": x, "count": 0}
        end = meta.model.while_loop(lambda s: op.sum(s["x"]) > 0.1, body, start)
        y = meta.model.cond(op.sum(self.w) > 0.0, lambda: end["x"] * self.w, lambda: op.exp(self.w))
        return y, end["count"]


def compiled(function: Any, *args: Any) -> Any:
    return meta.vm.compile(function, *args)(*args)


def interpreted(function: Any, *args: Any) -> Any:
    return function(*args)


executed = pytest.mark.parametrize("execute", [interpreted, compiled])


def by_tape(model: Model, *inputs: Any) -> tuple[Any, Any, dict[str, meta.ndarray]]:
    """Return the results, a dy for each floating point one, and the gradients by name."""
    results = model.forward.function(model, *inputs)
    floats = [r for r in results if r.dtype == "float32"]
    dys = tuple(meta.array(torch.linspace(1, 2, r.size).reshape(r.shape)) for r in floats)
    for y, dy in zip(floats, dys, strict=True):
        if y.requires_grad:
            y.backward(dy)
    return results, dys, {n: p.grad for n, p in model.named_parameters()}


@executed
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_while_loop_and_cond(execute: Any, sign: float) -> None:
    x, model = meta.array([3.0, 5.0]), Halving(sign)
    expected, dys, grads = by_tape(model, x)
    with config.override(META_VERIFY=True):
        found, gradients = execute(value_and_grad(model), dys, x)
    check(found, expected, 1e-6, 1e-6)
    assert found[1].item() == 6
    assert set(gradients) == {"d", "w"}
    for name, gradient in gradients.items():
        wanted = meta.zeros_like(gradient) if grads[name] is None else grads[name]
        check(gradient, wanted, 1e-5, 1e-5, what=name)


@executed
def test_a_scanned_lstm(execute: Any) -> None:
    model = LSTM()
    x = torch.randn(STEPS, BATCH, SIZE, generator=torch.Generator().manual_seed(2))
    cell = torch.nn.LSTM(SIZE, SIZE)
    with torch.no_grad():
        for ours, theirs in (
            (model.w, "weight_ih_l0"),
            (model.u, "weight_hh_l0"),
            (model.b, "bias_ih_l0"),
        ):
            getattr(cell, theirs).copy_(ours.torch())
        cell.bias_hh_l0.zero_()
    hs, (_, c) = cell(x)
    dc, dhs = torch.randn(BATCH, SIZE), torch.randn(STEPS, BATCH, SIZE)
    ((c[0] * dc).sum() + (hs * model.frozen.torch() * dhs).sum()).backward()
    dys = (meta.array(dc), meta.array(dhs))
    (found, _), gradients = execute(value_and_grad(model), dys, meta.array(x))
    check(found, meta.array(c[0].detach()), 1e-5, 1e-5)
    assert set(gradients) == {"w", "u", "b"}
    for name, theirs in TORCH_NAMES.items():
        check(gradients[name], meta.array(getattr(cell, theirs).grad), 1e-4, 1e-4, what=name)


@executed
def test_a_training_step(execute: Any) -> None:
    x = meta.array(torch.randn(STEPS, BATCH, SIZE, generator=torch.Generator().manual_seed(2)))
    eager, model = LSTM(), LSTM()
    step = with_sgd(0.1, 0.9)(model)
    optimizer = SGD(eager.parameters(), 0.1, 0.9)
    for _ in range(3):
        _, dys, _ = by_tape(eager, x)
        optimizer.step()
        optimizer.zero_grad()
        execute(step, dys, x)
    for name, parameter in model.state().items():
        check(parameter, eager.state()[name], 1e-5, 1e-5, what=name)


@executed
def test_a_loop_of_ten_thousand_steps(execute: Any) -> None:
    class Long(Model):
        def build(self) -> None:
            self.w = meta.array(0.9999)
            self.w.requires_grad = True

        @trace
        def forward(self, x: Any) -> Any:
            return meta.model.scan(lambda s, _: (s * self.w, ()), x, None, length=10_000)[0]

    y, gradients = execute(value_and_grad(Long()), meta.array(1.0), meta.array(2.0))
    w = torch.tensor(0.9999, dtype=torch.float32).double()
    check(y, meta.array((2 * w**10_000).float()), 1e-3, 1e-3)
    check(gradients["w"], meta.array((20_000 * w**9_999).float()), 1e-3, 1e-3)


class Normalised(Model):
    """A layer with running statistics, which every step of a loop writes."""

    def build(self) -> None:
        self.norm = BatchNorm(SIZE)

    @trace
    def forward(self, x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            return op.tanh(self.norm(h + row)), ()

        return meta.model.scan(step, meta.zeros((BATCH, SIZE), "float32"), x)[0]


@executed
def test_running_statistics_are_written_once_per_step(execute: Any) -> None:
    x = meta.array(torch.randn(STEPS, BATCH, SIZE, generator=torch.Generator().manual_seed(2)))
    eager, model = Normalised(), Normalised()
    dy = meta.array(torch.linspace(1, 2, BATCH * SIZE).reshape(BATCH, SIZE))
    expected = eager.forward.function(eager, x)
    expected.backward(dy)
    found, gradients = execute(value_and_grad(model), dy, x)
    check(found, expected, 1e-5, 1e-5)
    for name, array in eager.state().items():
        check(model.state()[name], array, 1e-5, 1e-5, what=name)
        if array.requires_grad:
            check(gradients[name], array.grad, 1e-4, 1e-4, what=name)
