"""The activations that kernels of this folder compute beside something else, in patterns and in
source, where ``activation.cuh`` has them by the same names.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter, signature
from math import isfinite
from typing import Any

from meta import op
from meta.dialect.core import decline_if

NUMBERS = {"first": "FIRST", "second": "SECOND"}
"""What patterns capture of an activation's numbers, and their names in the source."""


@dataclass(frozen=True, slots=True)
class Activation:
    """One of them in patterns: of x, its gradient by x and dy, and the numbers behind these."""

    value: Callable[..., Any]
    gradient: Callable[..., Any]
    numbers: tuple[str, ...] = ()


def _between(x: Any, dy: Any, first: Any, second: Any) -> Any:
    outside = op.logical_or(op.less_equal(x, first), op.greater_equal(x, second))
    return op.where(op.logical_not(outside), dy, 0.0)


ACTIVATIONS = {
    "relu": Activation(op.relu, lambda x, dy: op.relu_dx(None, x, dy) | op.relu_dx(x, None, dy)),
    "silu": Activation(op.silu, op.silu_dx),
    "hardswish": Activation(op.hardswish, op.hardswish_dx),
    "gelu": Activation(op.gelu, lambda x, dy: op.gelu_dx(x, None, dy)),
    "gelu_tanh": Activation(
        lambda x: op.gelu(x, "tanh"), lambda x, dy: op.gelu_dx(x, None, dy, "tanh")
    ),
    "leaky_relu": Activation(op.leaky_relu, op.leaky_relu_dx, ("first",)),
    "clip": Activation(op.clip, _between, ("first", "second")),
}


def macros(name: str, **numbers: float | None) -> dict[str, str]:
    """Return the macros of an activation in source; Unsupported for numbers that are not finite."""
    found = {"ACTIVATION": name}
    for capture, number in numbers.items():
        if number is not None:
            decline_if(not isfinite(number), f"{name} has the number {number}")
            found[NUMBERS[capture]] = f"{float(number)!r}f"
    return found


def with_numbers(numbers: tuple[str, ...], describes: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pattern that captures an activation's numbers, too, of one that takes them as its
    first argument.
    """

    def described(**captured: Any) -> Any:
        return describes([captured.pop(n) for n in numbers], **captured)

    own = list(signature(describes).parameters.values())[1:]
    extra = [Parameter(n, Parameter.POSITIONAL_OR_KEYWORD) for n in numbers]
    captures = signature(describes).replace(parameters=[*own, *extra])
    described.__signature__ = captures  # type: ignore[attr-defined]
    return described
