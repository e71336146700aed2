"""`Model.summary`: the models inside of a model, their arrays and numbers of parameters."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from meta.base.html import bytes_text, fragment, table, tag
from meta.runtime.ndarray import ndarray

if TYPE_CHECKING:
    from meta.model.model import Model


MAX_ARRAYS = 12
"""Arrays of one model that a notebook shows by name."""


@dataclass(frozen=True)
class Row:
    """A model at a dotted path ("" for the whole), of the class ``kind``.

    arrays: those of its own by name, each where it is met first. parameters: how many numbers in
    these require a gradient; other: how many do not.
    """

    path: str
    kind: str
    arrays: dict[str, ndarray]
    parameters: int
    other: int


@dataclass(frozen=True)
class Summary:
    """What `Model.summary` returns; its text is a table.

    rows: of the model and all inside, each model once. parameters: how many numbers require a
    gradient. other: how many numbers of the state do not. nbytes: what the state takes.
    """

    rows: tuple[Row, ...]
    parameters: int
    other: int
    nbytes: int

    def __str__(self) -> str:
        lines = [("path", "model", "arrays", "parameters")]
        for row in self.rows:
            arrays = ", ".join(f"{n} {list(a.shape)}" for n, a in row.arrays.items())
            count = f"{row.parameters:,}" if row.arrays else ""
            lines.append((row.path or "(whole)", row.kind, arrays, count))
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        shown = [
            "  ".join([*(c.ljust(w) for c, w in zip(cells[:3], widths, strict=False)), ""])
            + cells[3].rjust(widths[3])
            for cells in lines
        ]
        shown = [line.rstrip() for line in shown]
        rule = "-" * max(map(len, shown))
        total = f"{self.parameters:,} parameters, {self.other:,} other numbers, {self.nbytes:,} B"
        return "\n".join([shown[0], rule, *shown[1:], rule, total])

    def _repr_html_(self) -> str:
        rows = []
        for row in self.rows:
            named = [f"{n} {list(a.shape)}" for n, a in row.arrays.items()]
            left = len(named) - MAX_ARRAYS
            arrays = ", ".join([*named[:MAX_ARRAYS], *[f"… and {left:,} more"] * (left > 0)])
            indent = f"padding-left:{1.2 * (row.path.count('.') + 1) if row.path else 0:g}em"
            name = tag("span", row.path or "(whole)", style=indent)
            rows.append((name, row.kind, arrays, f"{row.parameters:,}" if row.arrays else ""))
        shown = table(("path", "model", "arrays", "parameters"), rows, numbers=(3,), code=(0, 2))
        total = (
            f"{self.parameters:,} parameters, {self.other:,} other numbers, "
            f"{bytes_text(self.nbytes)}"
        )
        return fragment(shown, tag("div", total, class_="dim"))


def summarize(model: Model) -> Summary:
    """Return the summary of a model; see `Model.summary`."""
    kinds: dict[str, str] = {}
    seen: set[int] = set()
    for path, value in model.paths():
        if not isinstance(value, ndarray) and id(value) not in seen:
            seen.add(id(value))
            kinds[path] = type(value).__name__
    arrays: dict[str, dict[str, ndarray]] = {path: {} for path in kinds}
    state = model.state()
    for name, array in state.items():
        path = name
        while path not in kinds:
            path = path.rpartition(".")[0]
        arrays[path][name[len(path) + 1 :] if path else name] = array
    rows = tuple(
        Row(path, kind, arrays[path], *_counts(list(arrays[path].values())))
        for path, kind in kinds.items()
    )
    every = list(state.values())
    return Summary(rows, *_counts(every), sum(a.nbytes for a in every))


def _counts(arrays: list[ndarray]) -> tuple[int, int]:
    trained = sum(a.size for a in arrays if a.requires_grad)
    return trained, sum(a.size for a in arrays) - trained
