"""Questions about floating point elements, answered in bool, and the replacement of those that are
not finite. Integers are always finite.

Add one here. A Python number is accepted as well and gives a Python bool at once.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import Any

from meta.op.core import Scalar, Tensor, TensorType, op
from meta.op.unary import same


def _answer(on_number: Callable[[Any], bool], x: Any) -> TensorType:
    if not isinstance(x, TensorType):
        return on_number(x)  # type: ignore[return-value]
    return x.with_dtype("bool")


@op
def isnan(x: Scalar | Tensor) -> Tensor:
    """Whether x is NaN. ``x``: any shape and dtype; the result is bool."""
    return _answer(math.isnan, x)


@op
def isinf(x: Scalar | Tensor) -> Tensor:
    """Whether x is infinite, of either sign. ``x``: any shape and dtype; the result is bool."""
    return _answer(math.isinf, x)


@op
def isfinite(x: Scalar | Tensor) -> Tensor:
    """Whether x is neither infinite nor NaN. ``x``: any shape and dtype; the result is bool."""
    return _answer(math.isfinite, x)


@op
def isposinf(x: Scalar | Tensor) -> Tensor:
    """Whether x is +infinity. ``x``: any shape and dtype; the result is bool."""
    return _answer(lambda n: n == math.inf, x)


@op
def isneginf(x: Scalar | Tensor) -> Tensor:
    """Whether x is -infinity. ``x``: any shape and dtype; the result is bool."""
    return _answer(lambda n: n == -math.inf, x)


@op
def signbit(x: Scalar | Tensor) -> Tensor:
    """Whether x has the sign of a negative number, as -0.0 has. ``x``: any shape and dtype; the
    result is bool.
    """
    return _answer(lambda n: math.copysign(1, n) < 0, x)


def replacements(
    nan: float, posinf: float | None, neginf: float | None, largest: float
) -> tuple[float, float, float]:
    """Return what `nan_to_num` puts in place of NaN and of the two infinities."""
    return nan, largest if posinf is None else posinf, -largest if neginf is None else neginf


def _finite(n: Any, nan: float, posinf: float | None, neginf: float | None) -> Any:
    if math.isfinite(n):
        return n
    instead = replacements(nan, posinf, neginf, sys.float_info.max)
    return instead[0 if math.isnan(n) else 1 if n > 0 else 2]


@op
def nan_to_num(
    x: Scalar | Tensor,
    nan: float = 0.0,
    posinf: float | None = None,
    neginf: float | None = None,
) -> Tensor:
    """x with ``nan`` in place of NaN, ``posinf`` and ``neginf`` in place of the infinities.

    ``x``: any shape and dtype; the result has its type. ``posinf``, ``neginf``: None stands for the
    dtype's largest number and its negative.
    """
    return same(lambda n: _finite(n, nan, posinf, neginf), x)
