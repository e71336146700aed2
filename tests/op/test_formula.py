"""Formulas of updates: cut into sweeps that read no more than they have to."""

from __future__ import annotations

import pytest

from meta import op
from meta.base.errors import RegistrationError
from meta.dialect.cuda.optimizer import code, derived
from meta.op.core.formula import Formula, Traced, total
from meta.op.core.update import FORMULAS

STATE = ("x", "dx", "m", "v")


def traced(operator: op.core.Op, **attributes: bool) -> Traced:
    return FORMULAS[operator].trace((*STATE, "copies"), attributes, {})


def sweeps(found: Traced) -> list[tuple[list[str], list[str]]]:
    """Return what each sweep reads and what it writes."""
    return [(sorted(s.loads), sorted(s.stores)) for s in found.sweeps]


def test_adam_takes_one_sweep() -> None:
    found = sweeps(traced(op.multi_tensor_adam))
    assert found == [(sorted(STATE), ["copies", "m", "v", "x"])]


def test_a_sum_over_a_parameter_is_known_in_the_next_sweep() -> None:
    found = traced(op.multi_tensor_lamb)
    assert sweeps(found) == [(sorted(STATE), ["m", "v"]), (["m", "v", "x"], ["copies", "x"])]
    assert found.totals == 2


def test_what_is_added_up_waits_for_the_sweep_that_reads_it_anyway() -> None:
    """The norm of x is not taken beside that of the gradient."""
    found = sweeps(traced(op.multi_tensor_lans))
    assert found[0] == (["dx"], [])
    assert found[1:] == [(sorted(STATE), ["m", "v"]), (sorted(STATE), ["copies", "x"])]
    assert len(traced(op.multi_tensor_lans, normalize_grad=False).sweeps) == 2


def test_numbers_that_change_nothing_leave_nothing_behind() -> None:
    formula = FORMULAS[op.multi_tensor_sgd]
    constants = {"factor": 1.0, "clip_value": float("inf"), "weight_decay": 0.0}
    (sweep,) = formula.trace(("x", "dx", "v"), {}, constants).sweeps
    assert code(sweep).splitlines() == [
        "W new_v = (k.momentum * v) + dx;",
        "W new_x = x - (k.learning_rate * new_v);",
        "x = new_x;",
        "v = new_v;",
    ]


def test_numbers_of_cuda_are_named() -> None:
    assert derived(FORMULAS[op.multi_tensor_adam])["unbias1"] == (
        "(1.0 / (1.0 - pow(beta1, step)))"
    )


def test_an_overwritten_value_cannot_be_read() -> None:
    def wrong(k, x, m):
        return {"m": m + x, "x": x - m * total(x * x)}

    with pytest.raises(RegistrationError, match="reads 'm' after a sum"):
        Formula(wrong, ("x", "m")).trace(("x", "m"), {}, {})
