"""`Costs`: what `meta.measure` returns, a list of `Cost` that prints as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meta.base.html import Html, bytes_text, fragment, table, tag
from meta.cost.record import Cost, Timing

HEAD = ("", "forward us", "spread", "gradient us", "host us", "compile ms", "workspace")


class Costs(list[Cost]):
    """The costs of the contenders of one call, in the order in which dispatch asks them.

    Attributes
    ----------
    title: the call with its types.
    """

    def __init__(self, title: str, costs: Iterable[Cost] = ()) -> None:
        super().__init__(costs)
        self.title = title

    def records(self) -> list[dict[str, Any]]:
        """Return one record per contender, as values that JSON has."""
        return [cost.record() for cost in self]

    def __str__(self) -> str:
        if not self:
            return f"{self.title}\n    no kernel runs"
        rows = [HEAD, *map(_row, self)]
        widths = [max(len(row[i]) for row in rows if len(row) > 2) for i in range(len(HEAD))]
        widths[0] = max(len(row[0]) for row in rows)
        lines = [self.title]
        for row in rows:
            cells = [row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]
            lines.append("    " + "  ".join(cells if len(row) > 2 else (cells[0], row[1])).rstrip())
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [(*row, *[""] * (len(HEAD) - len(row))) for row in map(_row, self)]
        numbers = tuple(range(1, len(HEAD)))
        found: Html | str = table(HEAD, rows, numbers=numbers) if rows else "no kernel runs"
        return fragment(tag("div", self.title, class_="code"), found)


def _row(cost: Cost) -> tuple[str, ...]:
    """Return the cells of a contender; of one that was refused its name and the reason."""
    if cost.refused:
        return cost.name, f"refused: {cost.refused}"
    return (
        cost.name,
        *_timing(cost.forward),
        _timing(cost.backward)[0],
        _number(cost.host),
        _number(cost.compile),
        bytes_text(cost.bytes.get("workspace", 0)),
    )


def _timing(timing: Timing | None) -> tuple[str, str]:
    if timing is None:
        return "", ""
    return _number(timing.median), f"{timing.p20:.2f} to {timing.p80:.2f}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"
