"""Branches and loops on CUDA give what they give on the CPU, by each executor and backwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.dialect import only
from meta.model import Model, parameter, trace, value_and_grad
from meta.op.core import tree
from meta.testing.compare import check

pytestmark = pytest.mark.cuda


class Flow(Model):
    """Numbers in the state, a branch in a loop, and scans in one block and in several."""

    def build(self) -> None:
        self.w = parameter(meta.array([0.5, 0.75]))

    @trace
    def forward(self, xs: Any) -> Any:
        def body(state: Any) -> Any:
            i, y = state
            return i + 1, meta.cond(i % 2 == 0, lambda: y * self.w, lambda: y + 1.0)

        _, y = meta.while_loop(lambda s: s[0] < 5, body, (0, xs[0]))
        step = lambda s, x: (s * self.w + x, (s, 1.5))  # noqa: E731
        y, (rows, halves) = meta.scan(step, y, xs[:3], reverse=True)
        return meta.scan(step, y, xs)[1][0], rows, halves


@pytest.mark.parametrize("dialects", [("tvm", "torch"), ("torch",)])
def test_as_on_the_cpu(dialects: tuple[str, ...]) -> None:
    xs = torch.randn(100, 2, generator=torch.Generator().manual_seed(0))
    with only(*dialects):
        expected, model = _results(Flow(), meta.array(xs)), Flow().to(device="cuda")
        found = _results(model, meta.array(xs, device="cuda"))
    for name, values in found.items():
        arrays = tree.flatten(values)[0]
        assert all(a.device == model.w.device for a in arrays)
        on_cpu = [a.to(device="cpu") for a in arrays]
        check(on_cpu, tree.flatten(expected[name])[0], 1e-4, 1e-4)


def _results(model: Any, xs: meta.ndarray) -> dict[str, Any]:
    step = value_and_grad(model)
    y = model(xs)
    dy = tuple(op.ones_like(a) for a in y)
    return {
        "eager": model.forward.function(model, xs),
        "interpreted": y,
        "compiled": meta.vm.compile(model, xs)(xs),
        "gradients": step(dy, xs),
        "compiled gradients": meta.vm.compile(step, dy, xs)(dy, xs),
    }
