"""Networks of checkpointed blocks, of every kind that is hard, and a loss of any of them."""

from __future__ import annotations

from typing import Any

import numpy as np

import meta
from meta import op
from meta.model import (
    BatchNorm,
    Dropout,
    Linear,
    Model,
    checkpoint,
    parameter,
    scan,
    trace,
)

WIDTH = 8


class Block(Model):
    """A residual block with everything that is hard: random numbers and running statistics."""

    def build(self) -> None:
        self.up, self.down = Linear(WIDTH, 2 * WIDTH), Linear(2 * WIDTH, WIDTH)
        self.norm, self.dropout = BatchNorm(WIDTH), Dropout(0.5)

    @trace
    def forward(self, x: Any) -> Any:
        return op.add(x, self.dropout(self.down(op.gelu(self.up(self.norm(x))))))


class Row(Model):
    """Blocks in a row."""

    def build(self, policy: str) -> None:
        self.blocks = [checkpoint(Block(), policy) for _ in range(2)]

    @trace
    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Nested(Model):
    """Blocks in a block."""

    def build(self, policy: str) -> None:
        self.first, self.rows = Block(), checkpoint(Row(policy), policy)
        checkpoint(self.first, policy)

    @trace
    def forward(self, x: Any) -> Any:
        return self.rows(self.rows(self.first(x)))


class Functions(Model):
    """Functions of nested containers, which close over parameters and computed values."""

    def build(self, policy: str) -> None:
        self.policy, self.w = policy, parameter(meta.random.normal((WIDTH,)))

    @trace
    def forward(self, x: Any) -> Any:
        outside = op.exp(op.multiply(x, 0.1))

        def inner(pair: dict[str, Any], factor: float, *, shift: Any) -> Any:
            a = op.tanh(op.multiply(op.multiply(pair["a"], self.w), factor))
            dropped = op.dropout(op.add(a, outside), 0.3)
            return {"sum": op.add(dropped, shift), "same": [pair["b"]]}

        found = checkpoint(inner, self.policy)({"a": x, "b": outside}, 0.7, shift=self.w)
        return op.multiply(found["sum"], found["same"][0])


class InLoop(Model):
    """A block in each step of a loop."""

    def build(self, policy: str) -> None:
        self.block = checkpoint(Block(), policy)

    @trace
    def forward(self, x: Any) -> Any:
        def step(state: Any, _: Any) -> Any:
            state = self.block(state)
            return state, op.sum(state)

        state, sums = scan(step, x, None, length=3)
        return op.add(state, op.mean(sums))


class Statistics(Model):
    """A block that writes to an array and reads it, again and again."""

    def build(self, policy: str) -> None:
        self.policy = policy
        self.w, self.v = parameter(meta.random.normal((WIDTH,))), meta.array(np.ones(WIDTH, "f"))
        self.mean = meta.array(np.zeros(WIDTH, "f"))

    @trace
    def forward(self, x: Any) -> Any:
        def block(x: Any) -> Any:
            before = op.multiply(self.mean, 1.0)
            op.sgd(self.mean, op.mean(x, 0), self.v, 0.5, 0.9)
            return op.multiply(op.add(x, before), op.add(self.w, op.multiply(self.mean, 2.0)))

        block = checkpoint(block, self.policy)
        return block(block(x))


class Mean(Model):
    """A loss of any of them."""

    def build(self, network: Model) -> None:
        self.network = network

    @trace
    def forward(self, x: Any) -> Any:
        y = self.network(x)
        return op.mean(op.multiply(y, y))
