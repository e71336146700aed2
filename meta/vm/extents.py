"""The extents of a call: what the symbolic dimensions of a program's inputs are this time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.ir import Function, SymbolicDim, TensorType, Type

DIMS = "dims"
"""The attribute of main that declares the ranges of its symbolic dimensions: (name, least, largest)
for each; no largest is None."""


@dataclass(frozen=True, slots=True)
class Range:
    """The extents that a symbolic dimension may have, both ends included."""

    least: int = 1
    largest: int | None = None

    def __contains__(self, extent: int) -> bool:
        return self.least <= extent and (self.largest is None or extent <= self.largest)

    def __str__(self) -> str:
        return (
            f"{self.least} or more" if self.largest is None else f"{self.least} to {self.largest}"
        )


def declared(main: Function, dims: Mapping[str, tuple[int, int | None]]) -> Function:
    """Return main with the ranges of its symbolic dimensions as an attribute.

    ``dims`` maps names to (least, largest); a dimension that is not in it is 1 or more. What main
    declares already stays. Raises ArgumentError for an unknown name or an empty range.
    """
    known = {name: (r.least, r.largest) for name, r in ranges_of(main).items()}
    for name, pair in dims.items():
        if name not in known:
            raise ArgumentError(
                f"no argument has a dimension {name!r}",
                expected=", ".join(known) or "none: all dimensions are numbers",
                hint=nearest(name, known) if known else None,
            )
        least, largest = pair
        if least < 1 or (largest is not None and largest < least):
            raise ArgumentError(
                f"the range of dimension {name!r} is not one",
                expected="(least, largest) with 1 <= least <= largest, or None for no largest",
                found=pair,
            )
        known[name] = (least, largest)
    if not known:
        return main
    entries = tuple((name, *pair) for name, pair in known.items())
    attrs = {**main.attrs, DIMS: entries}
    return Function(main.params, main.body, main.result_type, attrs)


def ranges_of(main: Function) -> dict[str, Range]:
    """Return the range of every symbolic dimension of main's parameters."""
    stated = {name: Range(*pair) for name, *pair in main.attrs.get(DIMS, ())}
    names: set[str] = set()
    for param in main.params:
        for dim in param.type.shape if isinstance(param.type, TensorType) else ():
            if isinstance(dim, SymbolicDim):
                names |= dim.symbols()
    return {name: stated.get(name, Range()) for name in sorted(names)}


class Extents:
    """Reads the extents of a call out of the shapes of main's inputs.

    Raises ArgumentError at once for a name that no parameter has as a dimension by itself: then
    nothing says what it is.
    """

    def __init__(self, main: Function) -> None:
        self.ranges = ranges_of(main)
        self._names = [p.name for p in main.params]
        self._types = [_tensor(p.type) for p in main.params]
        # Where each name is read: (parameter, axis).
        self._places: dict[str, tuple[int, int]] = {}
        for i, type_ in enumerate(self._types):
            for axis, dim in enumerate(type_.shape):
                if isinstance(dim, SymbolicDim) and dim.name is not None:
                    self._places.setdefault(dim.name, (i, axis))
        missing = [name for name in self.ranges if name not in self._places]
        if missing:
            raise ArgumentError(
                f"nothing says what the dimension {missing[0]!r} is",
                expected="an argument that has it as a dimension by itself",
                found=", ".join(map(str, self._types)),
            )

    def of(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """Return the extent of every name for the shapes of a call.

        Raises ArgumentError, naming dimension, range and value, for one out of range, and for
        shapes that are not those of the parameters for any extents.
        """
        for i, (shape, type_) in enumerate(zip(shapes, self._types, strict=True)):
            if len(shape) != type_.ndim:
                self._refuse(i, shape)
        extents = {name: shapes[i][axis] for name, (i, axis) in self._places.items()}
        for name, extent in extents.items():
            if extent not in self.ranges[name]:
                i, axis = self._places[name]
                raise ArgumentError(
                    f"dimension {name!r} is out of range: axis {axis} of %{self._names[i]}",
                    expected=self.ranges[name],
                    found=extent,
                    hint="compile with a wider range: compile(..., dims={name: (least, largest)})",
                )
        for i, (shape, type_) in enumerate(zip(shapes, self._types, strict=True)):
            for found, dim in zip(shape, type_.shape, strict=True):
                wanted = dim.evaluate(extents) if isinstance(dim, SymbolicDim) else dim
                if found != wanted:
                    self._refuse(i, shape, extents)
        return extents

    def _refuse(
        self, i: int, shape: tuple[int, ...], extents: Mapping[str, int] | None = None
    ) -> NoReturn:
        where = ", ".join(f"{name} = {extent}" for name, extent in (extents or {}).items())
        raise ArgumentError(
            f"argument %{self._names[i]} is not of the shape compiled for",
            expected=f"{list(self._types[i].shape)}" + (f" with {where}" if where else ""),
            found=list(shape),
        )


def _tensor(type_: Type | None) -> TensorType:
    if not isinstance(type_, TensorType):
        raise ArgumentError("a parameter of main must be a tensor", found=type_)
    return type_
