"""Which extents the inputs of an exported program may have: numbers, names with a range, and what
is computed of names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from meta.base.errors import ArgumentError
from meta.ir.dims import SymbolicDim


class Extents:
    """The extents that a call's inputs have, by the names that torch.export gave them.

    ranges: the least and the largest of each, as torch states them.
    """

    def __init__(self, ranges: Mapping[Any, Any]) -> None:
        self.ranges = ranges
        self.values: dict[Any, Any] = {}
        self._places: dict[Any, str] = {}
        self._computed: list[tuple[str, Any, Any]] = []

    def meet(self, place: str, wanted: int | torch.SymInt, found: Any) -> bool:
        """Take an extent of an input, or a number that is one; return whether it may be."""
        if isinstance(wanted, int):
            return isinstance(found, int) and found == wanted
        expression = wanted.node.expr
        if not expression.is_Symbol:  # of sympy
            self._computed.append((place, expression, found))
            return True
        if self.values.setdefault(expression, found) != found:
            raise ArgumentError(
                f"{place} and {self._places[expression]} are one extent",
                expected=self.values[expression],
                found=found,
            )
        self._places.setdefault(expression, place)
        return True

    def check(self) -> None:
        """Raise ArgumentError for extents that the program was not exported for."""
        for place, expression, found in self._computed:
            known = [self.values.get(s) for s in expression.free_symbols]
            if not all(isinstance(v, int) for v in (*known, found)):
                raise ArgumentError(
                    f"{place} is computed of others, {expression}",
                    expected="inputs whose extents are numbers",
                    found=found,
                )
            wanted = int(expression.xreplace(self.values))
            if wanted != found:
                raise ArgumentError(f"{place} is {expression}", expected=wanted, found=found)
        for name, value in self.values.items():
            range_ = self.ranges.get(name)
            if range_ is None or isinstance(value, SymbolicDim):
                continue
            # As torch does: 0 and 1 are left out of ranges to keep programs general, not as wrong.
            small = value < range_.lower and range_.lower > 2
            if small or value > range_.upper:
                raise ArgumentError(
                    f"{self._places[name]} is out of the range that the program is exported for",
                    expected=f"{range_.lower} to {range_.upper}",
                    found=value,
                    hint="state a wider range in dynamic_shapes",
                )

    def wrong(self, name: str, wanted: Sequence[Any], found: Sequence[Any]) -> ArgumentError:
        """Return the error for an input of another shape."""
        return ArgumentError(
            f"the input {name!r} has the shape {list(found)}, which the program is not for",
            expected=str(list(wanted)),
            hint="say by dynamic_shapes which extents may vary",
        )
