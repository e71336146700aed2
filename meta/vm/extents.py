"""Which extents the symbolic dimensions of a program's inputs may have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meta.base.errors import ArgumentError
from meta.base.registry import nearest
from meta.ir import Dim, Function, SymbolicDim, TensorType

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
    declares already stays. Raises ArgumentError for an unknown name, an empty range, and a name
    that no parameter has as a dimension by itself, so that nothing says what it is.
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
    dims_of = {d for p in main.params if isinstance(p.type, TensorType) for d in p.type.shape}
    missing = [name for name in known if SymbolicDim(name) not in dims_of]
    if missing:
        raise ArgumentError(
            f"nothing says what the dimension {missing[0]!r} is",
            expected="an argument that has it as a dimension by itself",
            found=", ".join(str(p.type) for p in main.params),
        )
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


def require_in_range(
    extents: Mapping[str, Dim], ranges: Mapping[str, Range], main: Sequence[tuple[str, TensorType]]
) -> None:
    """Raise ArgumentError, naming dimension, range and value, for an extent that is out of range.

    ``main``: names and types of the parameters, to say where it was met.
    """
    for name, range_ in ranges.items():
        extent = extents[name]
        if not isinstance(extent, int) or extent in range_:
            continue
        param, axis = next(
            (param, type_.shape.index(SymbolicDim(name)))
            for param, type_ in main
            if SymbolicDim(name) in type_.shape
        )
        raise ArgumentError(
            f"dimension {name!r} is out of range: axis {axis} of %{param}",
            expected=str(range_),
            found=extent,
            hint=f"compile with a wider range: dims={{{name!r}: (least, largest)}}",
        )
