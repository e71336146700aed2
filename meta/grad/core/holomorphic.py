"""Gradients by complex numbers.

The gradient of a real number by z = a + ib is that by a plus i times that by b, as torch has it.
So that of a holomorphic function y = f(z) is conj(f'(z)) dy; of a real function it is f'(x) dy.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from meta.base.dtype import COMPLEX
from meta.base.registry import OPERATORS


def conjugated(x: Any) -> Any:
    """Return the conjugate, by which a gradient is multiplied; of real numbers themselves."""
    return OPERATORS["conj"](x) if getattr(x, "dtype", None) in COMPLEX else x


def _conjugates(found: Any) -> Any:
    """Return the conjugates of gradients: one, or a tuple in which there may be None."""
    if isinstance(found, tuple):
        return tuple(_conjugates(f) for f in found)
    return None if found is None else conjugated(found)


def holomorphic(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a rule for complex numbers, too, of one that is right for real numbers.

    ``rule``: linear in the gradient of the result, its last parameter, with factors that are
    holomorphic functions of the others: conj(f') dy is the conjugate of f' conj(dy).
    """

    @wraps(rule)
    def of(*values: Any) -> Any:
        dy = values[-1]
        if dy.dtype not in COMPLEX:
            return rule(*values)
        return _conjugates(rule(*values[:-1], conjugated(dy)))

    return of
