"""The values that a random program has so far, and how a step picks its operands among them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from meta.base.dtype import TO_TORCH
from meta.ir import Constant, DataType, RefType
from meta.op.core.tracing import Symbol, Trace, Value


class Missing(Exception):
    """There is no value of the kind that a step needs: it is left out."""


class Pool:
    """Values in scope, newest last.

    Attributes
    ----------
    dtype: that of the program's floating point inputs. LIMIT: most elements of a value.
    picked: what the current step has picked.
    """

    LIMIT = 96

    def __init__(self, trace: Trace, dtype: str) -> None:
        self.trace, self.dtype = trace, dtype
        self.values: list[Any] = []
        # Values that are constants, or may be views of one: nobody may write to them.
        self._fixed: set[int] = set()
        self.picked: list[Symbol] = []

    def of(self, index: int, fits: Callable[[Symbol], Any]) -> Symbol:
        """Return one of the values that fit; 0 is the newest."""
        return self._pick(index, lambda v: isinstance(v, Symbol) and fits(v))

    def reference(self, index: int) -> Value:
        """Return a reference to a tensor."""
        return self._pick(index, lambda v: isinstance(v.type, RefType))

    def data(self, index: int) -> Value:
        """Return a value of a data type."""
        return self._pick(index, lambda v: isinstance(v.type, DataType))

    def _pick(self, index: int, fits: Callable[[Any], Any]) -> Any:
        found = [v for v in self.values if fits(v)]
        if not found:
            raise Missing
        self.picked.append(found[-1 - index % len(found)])
        return self.picked[-1]

    def add(self, values: list[Any]) -> None:
        """Take in what a step computed from what it picked, but for values that grew too large."""
        fixed = any(id(v) in self._fixed for v in self.picked)
        self._fixed |= {id(v) for v in values if fixed or isinstance(v.atom, Constant)}
        self.values += [v for v in values if not isinstance(v, Symbol) or 0 < v.size <= self.LIMIT]

    def is_float(self, value: Symbol) -> bool:
        """Whether a value has the program's floating point dtype."""
        return value.dtype == self.dtype

    def any(self, index: int) -> Symbol:
        """Return any value."""
        return self.of(index, lambda v: True)

    def float(self, index: int) -> Symbol:
        """Return a floating point value."""
        return self.of(index, self.is_float)

    def like(self, index: int, value: Symbol) -> Symbol:
        """Return a value of the same type."""
        return self.of(index, lambda v: v.type == value.type)

    def rank(self, ndim: int, index: int) -> Symbol:
        """Return a floating point value with so many axes, and few elements."""
        return self.of(index, lambda v: self.is_float(v) and v.ndim == ndim and v.size <= 16)

    def is_writable(self, value: Symbol) -> bool:
        """Whether a program may write to a value."""
        return id(value) not in self._fixed

    def writable(self, index: int) -> Symbol:
        """Return a floating point value that a program may write."""
        return self.of(index, lambda v: self.is_float(v) and self.is_writable(v))

    def constant(self, shape: tuple[int, ...], seed: int) -> Symbol:
        """Return a new constant of random numbers."""
        generator = torch.Generator().manual_seed(seed)
        data = torch.randn(shape, generator=generator, dtype=torch.float64)
        data = data.to(TO_TORCH[self.dtype])
        return Symbol(self.trace, Constant(data), Constant(data).type)
