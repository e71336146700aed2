"""The memory of a program as a picture in SVG: how much is in use when, and who is where.

Time runs to the right, in bindings. Above is what is in use. Below, a result is a rectangle from
its first to its last binding: within the arena at its offset, and what is allocated beside the
arena on top of each other. The moment of the peak is marked, and what is in use then is drawn in
full colour. The rectangles say what they are when pointed at.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from meta.base.html import Html, bytes_text, join, tag
from meta.passes.plan_memory import Lifetime, plan

if TYPE_CHECKING:
    from meta.analysis.memory import MemoryReport, MemoryRow

WIDTH, LEFT = 960, 64
"""Of the picture, and what is kept free at its left for the numbers."""
CURVE, LANES = 90, 190
"""Heights of the curve, and of the places of results."""
MAX_RECTANGLES = 3000
"""Smaller results of larger programs are not drawn."""
_TITLE, _GAP = 16, 14
_COLOURS = ("#4c8bf5", "#2ca58d", "#d9822b", "#9a6fd1", "#d1557a", "#6b9a1f", "#3aa0c2", "#b08a2e")


def memory_svg(report: MemoryReport) -> Html:
    """Return the picture as an element ``svg``; a line of text for a program without results."""
    rows = [r for r in report.rows if r.bytes]
    if not rows:
        return tag("p", "The program computes nothing that takes memory.")
    drawn = sorted(rows, key=lambda r: -r.bytes)[:MAX_RECTANGLES]
    moments = max(r.last for r in rows) + 1
    picture = _Picture(moments, report.worst)
    picture.curve(rows)
    inside = [(r, r.offset) for r in drawn if r.offset is not None]
    if inside:
        picture.lanes(f"arena, {bytes_text(report.arena)}", report.arena, inside)
    beside = [r for r in drawn if r.offset is None and not r.shared]
    if beside:
        offsets, size = plan([Lifetime(r.bytes, r.first, r.last) for r in beside])
        title = f"allocated beside the arena, {bytes_text(size)} at most"
        picture.lanes(title, size, list(zip(beside, offsets, strict=True)))
    picture.axis()
    return picture.svg(f"memory of {len(rows)} results over {moments} bindings")


class _Picture:
    """Collects elements from top to bottom."""

    def __init__(self, moments: int, worst: int) -> None:
        self.moments, self.worst = moments, worst
        self.step = (WIDTH - LEFT - 1) / moments
        self.top = 0.0
        self.parts: list[Html] = []

    def x(self, moment: float) -> float:
        return LEFT + moment * self.step

    def text(self, x: float, y: float, text: object, anchor: str = "start") -> None:
        self.parts.append(tag("text", text, x=_n(x), y=_n(y), text_anchor=anchor))

    def panel(self, title: str, height: float) -> float:
        """Begin a panel with a title and a frame; return where it starts."""
        self.text(LEFT, self.top + _TITLE - 5, title)
        top = self.top + _TITLE
        x, y, w, h = map(_n, (LEFT, top, WIDTH - LEFT - 1, height))
        self.parts.append(tag("rect", x=x, y=y, width=w, height=h, class_="frame"))
        self.top = top + height + _GAP
        return top

    def scale(self, top: float, height: float, most: int) -> None:
        """Write the numbers at the left of a panel."""
        self.text(LEFT - 6, top + 10, bytes_text(most), "end")
        self.text(LEFT - 6, top + height, "0", "end")

    def peak(self, top: float, height: float) -> None:
        x = _n(self.x(self.worst + 0.5))
        line = tag("line", x1=x, x2=x, y1=_n(top), y2=_n(top + height), class_="peak")
        self.parts.append(line)

    def curve(self, rows: Sequence[MemoryRow]) -> None:
        """Draw how much is in use: steps, from binding to binding."""
        change = [0] * (self.moments + 1)
        for row in rows:
            if not row.shared:
                change[row.first] += row.bytes
                change[row.last + 1] -= row.bytes
        in_use = list(accumulate(change))[:-1]
        most = max(in_use)
        top = self.panel(f"in use, {bytes_text(most)} at most", CURVE)
        points = [f"M{LEFT} {_n(top + CURVE)}"]
        for moment, count in enumerate(in_use):
            y = _n(top + CURVE * (1 - count / most))
            points.append(f"V{y}H{_n(self.x(moment + 1))}")
        points.append(f"V{_n(top + CURVE)}Z")
        self.parts.append(tag("path", d="".join(points), class_="curve"))
        self.scale(top, CURVE, most)
        self.peak(top, CURVE)
        right = self.x(self.worst) > (WIDTH + LEFT) / 2
        x = self.x(self.worst + 0.5) + (-5 if right else 5)
        self.text(x, top + 12, f"peak at binding {self.worst}", "end" if right else "start")

    def lanes(self, title: str, size: int, places: Sequence[tuple[MemoryRow, int]]) -> None:
        """Draw results at their offsets; the first line of the memory is at the bottom."""
        top = self.panel(title, LANES)
        for row, offset in sorted(places, key=lambda p: p[0].shared):
            height = max(LANES * row.bytes / size, 0.8)
            y = top + LANES * (1 - offset / size) - height
            width = (row.last - row.first + 1) * self.step
            colour = _COLOURS[row.binding % len(_COLOURS)]
            kind = "over" if row.shared else "now" if row.at_peak else None
            about = f"{row.text}\n{bytes_text(row.bytes)}, bindings {row.first} to {row.last}"
            about += ", written over an operand" * row.shared + ", in use at the peak" * row.at_peak
            box = tag(
                "rect", tag("title", about), x=_n(self.x(row.first)), y=_n(y), width=_n(width),
                height=_n(height), fill=colour, class_=kind,
            )  # fmt: skip
            self.parts.append(box)
            name = _short(row.text)
            room = int(width / 6.2) - 1
            if height >= 13 and room >= 3 and not row.shared:
                shown = name if len(name) <= room else name[: room - 1] + "…"
                label = tag(
                    "text", shown, x=_n(self.x(row.first) + 4), y=_n(y + height / 2 + 4),
                    class_="in",
                )  # fmt: skip
                self.parts.append(label)
        self.scale(top, LANES, size)
        self.peak(top, LANES)

    def axis(self) -> None:
        """Write numbers of bindings below all."""
        every = max(-(-self.moments // 12), 1)
        for moment in range(0, self.moments, every):
            self.text(self.x(moment + 0.5), self.top - 1, moment, "middle")
        self.text(0, self.top - 1, "binding")
        self.top += 4

    def svg(self, label: str) -> Html:
        return join(
            (
                tag("style", Html(_STYLE)),
                tag(
                    "svg", *self.parts, viewBox=f"0 0 {WIDTH} {_n(self.top)}", role="img",
                    aria_label=label, class_="meta-memory",
                ),
            )
        )  # fmt: skip


_STYLE = (
    ".meta-memory{width:100%;max-width:1100px;display:block;font:11px system-ui,sans-serif;"
    "fill:currentColor}.meta-memory .frame{fill:none;stroke:currentColor;stroke-opacity:.25}"
    ".meta-memory .curve{fill:#4c8bf5;fill-opacity:.3;stroke:#4c8bf5}"
    ".meta-memory .peak{stroke:#d1342f;stroke-dasharray:3 3}"
    ".meta-memory rect{fill-opacity:.35;stroke:currentColor;stroke-opacity:.22;stroke-width:.5}"
    ".meta-memory .now{fill-opacity:.85}.meta-memory .over{fill-opacity:.1;stroke-opacity:.5}"
    ".meta-memory .in{pointer-events:none}"
)


def _n(number: float) -> str:
    """Return a coordinate, to a hundredth."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _short(text: str) -> str:
    """Return the operator of a binding, without its dialect and arguments."""
    value = text.partition(" = ")[2] or text
    return value.partition("(")[0].lstrip("@").rpartition(".")[2]
