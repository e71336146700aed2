"""Random programs in mixed precision mean the same but for rounding, whatever the rules are."""

from __future__ import annotations

from random import Random

import pytest
import torch

import meta
from meta.base.registry import OPERATORS
from meta.ir import Module, text, verify
from meta.passes import autocast, explain_autocast, infer_type
from meta.vm.run.interpreter import run_module
from tests.programs.operators import ROWS, SMOOTH_ROWS
from tests.programs.prefixes import outcome
from tests.programs.writer import CONTROL, HELD, write_module

NAMES = sorted(SMOOTH_ROWS) + list(CONTROL) * 5 + list(HELD) * 5 + ["write"] * 5 + ["matmul"] * 4
# Rounding moves nothing over a jump.
WRITTEN = {**ROWS, **SMOOTH_ROWS}
RULED = [name for name in sorted(SMOOTH_ROWS) if name in OPERATORS]
# Relative to 1 and the value; a few roundings to 11 bits, magnified by a few operators.
TOLERANCE = 0.03
LARGE = 3e4


@pytest.mark.parametrize("count", [100, pytest.param(2000, marks=pytest.mark.slow)])
def test_random_programs(count: int) -> None:
    random, cast = Random(0), 0
    with meta.dialect.only("torch"):
        for _ in range(count):
            steps = [
                (random.choice(NAMES), *(random.randrange(48) for _ in range(3)))
                for _ in range(random.randint(6, 26))
            ]
            wanted = [random.randrange(48) for _ in range(random.randint(0, 3))]
            rules = {
                name: meta.amp.generic_cast(random.random() < 0.7)
                for name in random.sample(RULED, 8)
            }
            module = infer_type(write_module(steps, wanted, WRITTEN))
            with meta.amp.custom_rules(rules):
                cast += check_cast(module)
    assert cast > count / 4


def check_cast(module: Module) -> bool:
    """Check what autocast makes of a program; return whether it has casts."""
    made = autocast(module)
    verify(made, typed=True)
    assert not len(explain_autocast(made)), f"casts are missing in\n{text(made)}"
    expected, found = (outcome(lambda *a, m=m: run_module(m, a), module) for m in (module, made))
    for a, b in zip(expected, found, strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if a.dtype.is_floating_point:
            near = torch.isfinite(a) & torch.isfinite(b) & (a.abs() < LARGE)
            wrong = ((a - b).abs() / (1 + a.abs()))[near] > TOLERANCE
            assert not wrong.any(), f"{text(module)}\nbecame\n{text(made)}\n{a}\n{b}"
    return bool(len(explain_autocast(module)))
