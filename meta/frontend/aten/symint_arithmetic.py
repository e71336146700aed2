"""Arithmetic of SymInt: extents, on which a graph calls functions of Python and torch.

What is computed of an extent that only the run time knows is no more known than that; so is what a
comparison says that depends on the extents. Such answers go to assertions, which are not converted;
whatever else asks for one says that it is not known.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from typing import Any

import torch

from meta.base.errors import TypeInferError
from meta.ir.dims import UNKNOWN, SymbolicDim, UnknownDim


def _power(base: Any, exponent: Any) -> Any:
    if not isinstance(exponent, int) or exponent < 0:
        raise TypeError
    return math.prod([base] * exponent)


SYMINT_FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    torch.sym_min: min,
    torch.sym_max: max,
    torch.sym_int: lambda a: a,
    math.trunc: lambda a: a,
    math.floor: lambda a: a,
    math.ceil: lambda a: a,
    operator.pow: _power,
}
"""What functions do to extents that are known by name."""
COMPARISONS = (operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge)


def evaluate(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Return what a function gives for numbers, extents and tuples.

    Raises TypeInferError for what cannot be said of an extent for all numbers that it can be.
    """
    if any(isinstance(a, UnknownDim) for a in args):
        return UNKNOWN
    if not any(isinstance(a, SymbolicDim) for a in args):
        return function(*args, **kwargs)
    try:
        return SYMINT_FUNCTIONS.get(function, function)(*args, **kwargs)
    except TypeInferError:
        if function in COMPARISONS:
            return UNKNOWN
        raise
    except (TypeError, AssertionError) as error:  # of Python and torch: not for such operands
        name = getattr(function, "__name__", str(function))
        raise TypeInferError(
            f"{name} of an extent that is no number",
            found=", ".join(map(str, args)),
            hint="compile it for each size, from arguments with numbers for their extents",
        ) from error
