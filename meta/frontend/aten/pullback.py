"""The gradient of what is composed of operators, for backward overloads that no operator is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meta import op
from meta.grad.core.functions import value_and_grad


def pullback(function: Callable[..., Any], inputs: Sequence[Any], dy: Any) -> tuple[Any, ...]:
    """Return the gradients of ``sum(function(*inputs) * dy)`` by floating point inputs.

    It works eagerly and under a trace, where the forward result is dead code. dy: an array of the
    result's type; for a function of several results, a tuple of them, None for one without.
    """

    def total(*given: Any) -> Any:
        found = function(*given)
        pairs = zip(found, dy, strict=True) if isinstance(dy, tuple) else [(found, dy)]
        sums = [op.sum(op.multiply(y, d)) for y, d in pairs if d is not None]
        result = sums[0]
        for term in sums[1:]:
            result = op.add(result, term)
        return result

    wanted = tuple(range(len(inputs)))
    gradients: tuple[Any, ...] = value_and_grad(total, wanted)(*inputs)[1]
    return gradients
