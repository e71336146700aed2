"""Random programs with branches and loops inside one another: the gradients of several results are
the tape's.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import meta
from meta import op
from meta.base import config
from meta.model import Model, cond, trace, value_and_grad, while_loop
from meta.testing import check

SHAPE = (2, 3)
STEPS = {
    "tanh": lambda a, b: op.tanh(a),
    "add": op.add,
    "multiply": op.multiply,
    "broadcast": lambda a, b: op.multiply(a, op.sum(b, 0, True)),
    "integer": lambda a, b: op.astype(op.astype(a, "int32"), "float32"),
    "split": lambda a, b: op.concat((op.split(a, 3, 1)[1],) * 3, 1),
    "constant": lambda a, b: op.full(SHAPE, 0.5, "float32"),
    "swap": lambda a, b: b,
    "exp": lambda a, b: op.sigmoid(a),
    "number": lambda a, b: op.subtract(1.0, a),
    "view": lambda a, b: op.reshape(op.reshape(a, (3, 2)), SHAPE),
    "transpose": lambda a, b: op.reshape(op.permute_dims(op.reshape(a, (3, 2))), SHAPE),
    "stack": lambda a, b: op.split(op.concat((a, b, a), 0), 3, 0)[1],
    "choose": lambda a, b: op.where(op.less(a, b), a, 0.5),
    "dead": lambda a, b: [op.exp(a), b][1],
}

index = st.integers(0, 9)
simple = st.tuples(st.sampled_from(sorted(STEPS)), index, index)


def nested(inner: Any) -> Any:
    body = st.lists(inner, max_size=3)
    return st.one_of(
        st.tuples(st.just("cond"), index, body, body),
        st.tuples(st.just("loop"), st.integers(0, 3), body),
    )


programs = st.lists(st.one_of(simple, st.recursive(simple, nested, max_leaves=8)), max_size=6)


def execute(program: list[Any], values: list[Any]) -> Any:
    """Run a program on values, to which each step adds one; return the last."""
    return all_values(program, values)[-1]


def all_values(program: list[Any], values: list[Any]) -> list[Any]:
    values = list(values)
    for name, *arguments in program:
        if name == "cond":
            i, then, other = arguments
            chosen = op.sum(values[i % len(values)]) > 0.3
            blocks = (lambda p=then: execute(p, values), lambda p=other: execute(p, values))
            values.append(cond(chosen, *blocks))
        elif name == "loop":
            count, body = arguments

            def step(state: Any, body: Any = body) -> Any:
                i, old, new = state
                return i + 1, new, execute(body, [*values, old, new])

            start = (0, values[0], values[-1])
            values.append(while_loop(lambda s, n=count: s[0] < n, step, start)[2])
        else:
            i, j = arguments
            values.append(STEPS[name](values[i % len(values)], values[j % len(values)]))
    return values


class Random(Model):
    """What a program makes of an input and two parameters: its last value, and others."""

    def build(self, program: list[Any], wanted: list[int]) -> None:
        self.a, self.b = (meta.array(torch.linspace(-1, s, 6).reshape(SHAPE)) for s in (1, 2))
        self.a.requires_grad = self.b.requires_grad = True
        self.program_, self.wanted = program, wanted

    @trace
    def forward(self, x: Any) -> Any:
        given = [x, self.a, op.tanh(self.b), op.multiply(self.a, x)]
        values = all_values(self.program_, given)
        return tuple(values[i % len(values)] for i in (3, -1, *self.wanted))


@settings(max_examples=80)
@given(programs, st.lists(index, max_size=2))
@pytest.mark.long
def test_random_programs(program: list[Any], wanted: list[int]) -> None:
    model = Random(program, wanted)
    x = meta.array(torch.linspace(-0.5, 1, 6).reshape(SHAPE))
    expected = model.forward.function(model, x)  # eagerly, with a tape
    dy = tuple(meta.array(torch.linspace(1, 2 + i, 6).reshape(SHAPE)) for i in range(len(expected)))
    for y, of in zip(expected, dy, strict=True):
        if y.requires_grad:
            y.backward(of)
    differentiated = value_and_grad(model)
    with config.override(META_VERIFY=True):
        for run in (differentiated, meta.vm.compile(differentiated, dy, x)):
            found, gradients = run(dy, x)
            check(found, expected, 1e-5, 1e-5)
            for name, gradient in gradients.items():
                tape = dict(model.named_parameters())[name].grad
                if tape is None:
                    assert not gradient.torch().any(), name
                else:
                    check(gradient, tape, 1e-4, 1e-4, what=name)
