"""Random graphs: autodiff's program, compiled, gives the gradients of the eager tape."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta import op
from meta.base import config
from meta.model import Model, trace, value_and_grad
from meta.testing import check

SHAPE = (2, 3)
STEPS = {
    "tanh": lambda v, i, j: [op.tanh(v[i])],
    "exp": lambda v, i, j: [op.sigmoid(v[i])],
    "add": lambda v, i, j: [op.add(v[i], v[j])],
    "multiply": lambda v, i, j: [op.multiply(v[i], v[j])],
    "number": lambda v, i, j: [op.subtract(1.0, v[i])],
    "broadcast": lambda v, i, j: [op.multiply(v[i], op.sum(v[j], 0, True))],
    "view": lambda v, i, j: [op.reshape(op.reshape(v[i], (3, 2)), SHAPE)],
    "split": lambda v, i, j: [op.concat((op.split(v[i], 3, 1)[j % 3],) * 3, 1)],
    "stack": lambda v, i, j: list(op.split(op.concat((v[i], v[j], v[i]), 0), 3, 0)),
    "integer": lambda v, i, j: [op.astype(op.astype(v[i], "int32"), "float32")],
    "choose": lambda v, i, j: [op.where(op.less(v[i], v[j]), v[i], 0.5)],
    "transpose": lambda v, i, j: [op.permute_dims(op.reshape(v[i], (3, 2)))],
    "dead": lambda v, i, j: [op.exp(v[i]), v[j]][1:],
}

steps = st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 99), st.integers(0, 99))


class Random(Model):
    """The graph that a list of steps makes of two parameters and an input."""

    def build(self, program: list[tuple[str, int, int]], wanted: list[int]) -> None:
        generator = torch.Generator().manual_seed(len(program))
        self.a, self.b = (meta.array(torch.randn(SHAPE, generator=generator)) for _ in range(2))
        self.a.requires_grad = self.b.requires_grad = True
        self.program_, self.wanted = program, wanted

    @trace
    def forward(self, x: Any) -> Any:
        values = [op.tanh(self.a), self.b, op.multiply(self.a, x)]
        for name, i, j in self.program_:
            values += STEPS[name](values, i % len(values), j % len(values))
        return tuple(values[i % len(values)] for i in (2, len(values) - 1, *self.wanted))


@settings(max_examples=60)
@given(st.lists(steps, max_size=10), st.lists(st.integers(0, 99), max_size=2))
def test_random_graphs(program: list[tuple[str, int, int]], wanted: list[int]) -> None:
    model = Random(program, wanted)
    x = meta.array(torch.linspace(-1, 1, 6).reshape(SHAPE))
    results = model.forward.function(model, x)  # eagerly, with a tape
    dys = tuple(meta.array(torch.full(SHAPE, 1.0 + i)) for i in range(len(results)))
    for y, dy in zip(results, dys, strict=True):
        if y.requires_grad:
            y.backward(dy)
    with config.override(META_VERIFY=True):
        found, gradients = meta.vm.compile(value_and_grad(model), dys, x)(dys, x)
    check(found, results, 1e-5, 1e-5)
    for name, parameter in model.named_parameters():
        if name not in gradients:
            assert parameter.grad is None
        elif parameter.grad is None:
            assert not gradients[name].torch().any()
        else:
            check(gradients[name], parameter.grad, 1e-4, 1e-4, what=name)
