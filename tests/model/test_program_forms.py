"""The programs of whole networks as text and as pictures: forward and with gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from meta.base.device import CPU
from meta.ir import Module, parse, structural_equal, text, to_dot, to_html
from tests.model.test_networks import KINDS, make


def programs(kind: str) -> list[Module]:
    """Return a network's program, and that of its value and gradients."""
    pair = make(kind)
    inputs = pair.inputs()
    both: Any = meta.model.value_and_grad(pair.ours)
    return [
        pair.ours.forward.program(*inputs).module,
        both.program(meta.array(1.0), *inputs).module,
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_networks_round_trip(kind: str) -> None:
    for module in programs(kind):
        assert len(module.main.body.bindings) > 10
        again = parse(text(module))
        assert structural_equal(again, module)
        assert text(again) == text(module)
        tensors: dict[str, torch.Tensor] = {}
        written = text(module, tensors)
        assert structural_equal(parse(written, constants=tensors), module)
        assert to_dot(module).count(" -> ") > len(module.main.body.bindings)
        assert to_html(module).count("<a href=") > 10  # lines of this folder's networks


def test_dispatched_programs_round_trip() -> None:
    """Dialect operators are named; the reader asks their dialect."""
    with meta.dialect.only("torch"):
        module = meta.passes.dispatch(programs("lenet")[1], device=CPU)
    assert "torch.conv2d" in text(module)
    assert structural_equal(parse(text(module)), module)


def test_programs_with_control_flow_round_trip() -> None:
    @meta.model.trace
    def halved(x: Any) -> Any:
        x = meta.cond(meta.op.sum(x) > 0.0, lambda a: a * 2.0, lambda a: a - 1.0, x)
        return meta.while_loop(lambda a: meta.op.sum(a) > 1.0, lambda a: a / 2.0, x)

    module = halved.program(meta.array([1.0, 2.0])).module
    assert len(module.functions) > 1
    again = parse(text(module))
    assert structural_equal(again, module)
    assert text(again) == text(module)
