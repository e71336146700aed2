"""`RelaxCase`: what one call of a Relax operator has to give, as data.

The families are in `converters/`, one list ``CASES`` per file, as the converters themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np


def data(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float32") -> Any:
    """Return numbers of a shape, always the same."""
    values = np.random.default_rng(sum(shape) + len(shape)).uniform(low, high, shape)
    return values.astype(dtype)


@dataclass(frozen=True)
class RelaxCase:
    """One call and its result.

    Attributes
    ----------
    name: the operator, without "relax.". build: makes the call of the variables.
    inputs: numpy arrays, of whose types the variables are.
    expected: a function of torch tensors that computes the result independently, or the result; a
        tuple for several results.
    training: run the model in train mode. tolerance: relative and absolute; integers are always
        compared exactly.
    refused: instead of a result, a pattern that the error matches.
    label: added to the test's name.
    """

    name: str
    build: Callable[..., Any]
    inputs: tuple[Any, ...] = ()
    expected: Any = None
    training: bool = False
    tolerance: float = 1e-5
    refused: str | None = None
    label: str = ""

    @property
    def id(self) -> str:
        """The name of its test."""
        return "-".join(p for p in (self.name, self.label) if p)
