"""Questions about floating point elements, answered in bool. Integers are always finite.

Add one here. A Python number is accepted as well and gives a Python bool at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meta.op.core import Scalar, Tensor, TensorType, op


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
