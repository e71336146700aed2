"""What holds of real numbers and not of floating point: x + 0, x * 0, x - x, x / x and such, in
compiled programs, of signed zeros, infinities and NaN. The oracle is torch, operator by operator.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from math import inf, nan
from typing import Any

import pytest
import torch

import meta
from meta.base.dtype import TO_TORCH
from meta.passes.simplify import RULES, Rules, RuleSite, arithmetic

VALUES = [0.0, -0.0, inf, -inf, nan, 1.0, -1.0, 2.5, -2.5, 0.5, -0.5]
NUMBERS = (0.0, -0.0, 1.0, -1.0, inf, nan, 0, 2)
Program = Callable[[Any, Any, Any], Any]
"""Of a namespace, torch or that of the operators, and two tensors."""

OPERATORS: dict[str, tuple[Callable[[Any, Any], Any], tuple[float, ...]]] = {
    "+": (operator.add, NUMBERS),
    "-": (operator.sub, NUMBERS),
    "*": (operator.mul, NUMBERS),
    "/": (operator.truediv, NUMBERS),
    "%": (operator.mod, (0.0, 1.0, nan)),
    "//": (operator.floordiv, (0.0, inf)),
    "**": (operator.pow, (0.0, -1.0)),
}
"""And numbers beside them: what is long to compile has few."""


def _of_numbers(f: Callable[[Any, Any], Any], number: float, first: bool) -> Program:
    return lambda t, x, y: f(number, x) if first else f(x, number)


def _of_tensors(f: Callable[[Any, Any], Any]) -> dict[str, Program]:
    return {
        "x, x": lambda t, x, y: f(x, x),
        "x, -x": lambda t, x, y: f(x, -x),
        "x, y": lambda t, x, y: f(x, y),
        "-x, -y": lambda t, x, y: f(-x, -y),
        "x, zeros": lambda t, x, y: f(x, t.zeros_like(x)),
        "zeros, x": lambda t, x, y: f(t.zeros_like(x), x),
        "x, -zeros": lambda t, x, y: f(x, -t.zeros_like(x)),
        "x, full": lambda t, x, y: f(x, t.full_like(x, -0.0)),
        "x, ones": lambda t, x, y: f(x, t.ones_like(x)),
    }


def _twice(name: str) -> dict[str, Program]:
    def of(t: Any, x: Any) -> Any:
        return getattr(t, name)(x)

    return {
        f"{name} twice": lambda t, x, y: of(t, of(t, x)),
        f"{name} + 0": lambda t, x, y: of(t, x) + 0.0,
        f"0 + {name}": lambda t, x, y: 0.0 + of(t, x),
        f"{name} of -x": lambda t, x, y: of(t, -x),
        f"1 / ({name} + 0)": lambda t, x, y: t.reciprocal(of(t, x) + 0.0),
    }


def _with_numbers(name: str, of: Callable[[Any, Any, Any, float], Any]) -> dict[str, Program]:
    def program(number: float) -> Program:
        return lambda t, x, y: of(t, x, y, number)

    return {f"{name} {number}": program(number) for number in NUMBERS}


GROUPS: dict[str, dict[str, Program]] = {
    "numbers": {
        f"{sign} {number!r} {side}": _of_numbers(f, number, side == "before")
        for sign, (f, numbers) in OPERATORS.items()
        for number in numbers
        for side in ("before", "behind")
    },
    "tensors": {
        f"{sign} of {form}": program
        for sign, (f, _) in OPERATORS.items()
        if sign not in ("//", "**")
        for form, program in _of_tensors(f).items()
    },
    "twice": {
        name: program
        for function in ("abs", "floor", "ceil", "trunc", "round", "relu")
        for name, program in _twice(function).items()
    },
    "arguments": {
        **_with_numbers("lerp", lambda t, x, y, n: t.lerp(x, y, float(n)) + 0.0),
        **_with_numbers("addcmul", lambda t, x, y, n: t.addcmul(x, x, y, value=n)),
        **_with_numbers("addcdiv", lambda t, x, y, n: t.addcdiv(x, x, y, value=n)),
        **_with_numbers("clip from", lambda t, x, y, n: t.clip(x, float(n), inf)),
        **_with_numbers("clip to", lambda t, x, y, n: t.clip(x, -inf, float(n))),
        **_with_numbers("where", lambda t, x, y, n: t.where(x < y, x, float(n)) + y),
        **_with_numbers("nan_to_num", lambda t, x, y, n: t.nan_to_num(x, float(n)) + 0.0),
        **_with_numbers("fmod", lambda t, x, y, n: t.fmod(x, float(n))),
    },
    "compositions": {
        "(x + y) - y": lambda t, x, y: (x + y) - y,
        "(x * y) / y": lambda t, x, y: (x * y) / y,
        "x + inf - inf": lambda t, x, y: (x + inf) - inf,
        "x * 0 + y": lambda t, x, y: x * 0.0 + y,
        "x * y - x * y": lambda t, x, y: x * y - x * y,
        "x + y + 0": lambda t, x, y: (x * 0.0) + (y * 0.0) + 0.0,
        "negated twice": lambda t, x, y: t.negative(-x),
        "-(x - y)": lambda t, x, y: -(x - y),
        "0 - (x - y)": lambda t, x, y: 0.0 - (x - y),
        "(x - 0) + 0": lambda t, x, y: (x - 0.0) + 0.0,
        "x - -0": lambda t, x, y: (x - (-0.0)) * y,
        "x + -y": lambda t, x, y: x + (-y),
        "-x + y": lambda t, x, y: (-x) + y,
        "x - -y": lambda t, x, y: x - (-y),
        "-x + 0": lambda t, x, y: -x + 0.0,
        "-x * -y": lambda t, x, y: (-x) * (-y),
        "-x / -y": lambda t, x, y: (-x) / (-y),
        "x / 4": lambda t, x, y: x / 4.0,
        "x * -1": lambda t, x, y: x * -1.0,
        "x ** 0": lambda t, x, y: x**0,
        "x ** 1": lambda t, x, y: x**1,
        "x ** 2": lambda t, x, y: x**2,
        "abs of -x": lambda t, x, y: t.abs(-x),
        "max of x, x": lambda t, x, y: t.maximum(x, x) + t.minimum(y, y),
        "where c x x": lambda t, x, y: t.where(x < y, x, x),
        "where c 0 -0": lambda t, x, y: t.where(x < y, 0.0 * x, -0.0 * x),
        "exp of log": lambda t, x, y: t.exp(t.log(x)),
        "square of root": lambda t, x, y: t.sqrt(x) ** 2,
        "root of square": lambda t, x, y: t.sqrt(x * x),
    },
}


def _special(x: torch.Tensor) -> list[str]:
    """What is not approximate: zeros with their signs, infinities, NaN."""
    plain = x.isfinite() & (x != 0)
    return [str(v) for v in x.double().masked_fill(plain, 1.0).tolist()]


SLOW = [pytest.param(d, marks=pytest.mark.slow) for d in ("float64", "float16", "bfloat16")]


@pytest.mark.parametrize("dtype", ["float32", *SLOW])
@pytest.mark.parametrize("group", GROUPS)
def test_compiled_is_torch(group: str, dtype: str) -> None:
    programs = GROUPS[group]

    def all_of(t: Any, x: Any, y: Any) -> list[Any]:
        x, y = -x, -y  # of intermediates: nothing is a kernel of its own
        return [program(t, x, y) for program in programs.values()]

    x = torch.tensor([a for a in VALUES for _ in VALUES], dtype=TO_TORCH[dtype])
    y = torch.tensor([b for _ in VALUES for b in VALUES], dtype=TO_TORCH[dtype])
    traced = meta.model.trace(lambda x, y: tuple(all_of(meta.op, x, y)))
    with meta.dialect.prefer("tvm"):
        found = meta.vm.compile(traced, meta.array(x), meta.array(y))(meta.array(x), meta.array(y))
    for name, one, wanted in zip(programs, found, all_of(torch, x, y), strict=True):
        pairs = zip(_special(one.torch()), _special(wanted), strict=True)
        differing = [i for i, (p, q) in enumerate(pairs) if p != q]
        if differing:
            i = differing[0]
            where = f"{name} of x = {-x[i]}, y = {-y[i]}"
            raise AssertionError(f"{where}: expected {wanted[i]}, found {one.torch()[i]}")
        torch.testing.assert_close(one.torch(), wanted, equal_nan=True, msg=name)


def test_all_rules_of_arithmetic_take_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule of elementwise arithmetic rewrites something in the programs above."""
    answered: set[str] = set()

    def apply(self: Rules, site: RuleSite) -> Any:
        for rule in self._rules.get(site.op, ()):
            result = rule(site)
            if result is not None:
                answered.add(rule.__name__)
                return result
        return None

    monkeypatch.setattr(Rules, "apply", apply)
    x = meta.array([1.0, 2.0])
    for programs in GROUPS.values():
        traced = meta.model.trace(
            lambda x, y, programs=programs: tuple(p(meta.op, x, y) for p in programs.values())
        )
        with meta.dialect.only("torch"):
            meta.vm.compile(traced, x, x)
    rules = {r for found in RULES._rules.values() for r in found}
    assert answered >= {r.__name__ for r in rules if r.__module__ == arithmetic.__name__}
