"""HTML as text: elements, tables and the one style of what notebooks show.

Whatever an element is given is escaped, unless it is `Html` already. A fragment refers to no file
outside and takes the colours of the page around it, so that it is readable on light and on dark.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape
from itertools import islice


class Html(str):
    """Text that is HTML already: it is not escaped once more."""

    __slots__ = ()


MAX_ROWS = 60
"""Rows of a table, unless it is told otherwise: a notebook stays quick."""
STYLE = (
    ".meta-view{font:13px/1.45 system-ui,sans-serif;color:inherit;max-width:100%;overflow-x:auto}"
    ".meta-view table{border-collapse:collapse;border:0;margin:.3em 0 .5em;font-size:1em}"
    ".meta-view tr,.meta-view th,.meta-view td{background:none!important;color:inherit}"
    ".meta-view th,.meta-view td{border:0;border-bottom:1px solid rgba(128,128,128,.28);"
    "padding:.16em .8em .16em 0;text-align:left!important;vertical-align:top}"
    ".meta-view th{font-weight:600;opacity:.75}"
    ".meta-view .number{text-align:right!important;font-variant-numeric:tabular-nums;"
    "white-space:nowrap}"
    ".meta-view .code,.meta-view pre{font-family:ui-monospace,monospace;font-size:.95em;margin:0}"
    ".meta-view .dim{opacity:.65}.meta-view .title{font-weight:600}"
    ".meta-view summary{cursor:pointer}"
)


def join(parts: Iterable[object], between: str = "") -> Html:
    """Return parts one after the other; what is not `Html` is escaped."""
    shown = (p if isinstance(p, Html) else escape(str(p)) for p in parts)
    return Html(escape(between).join(shown))


def tag(name: str, /, *content: object, **attributes: object) -> Html:
    """Return an element. Attributes that are None or False are left out, and True has no value;
    an underscore at the end of a name is dropped, and others are hyphens: ``class_="dim"``.
    """
    written = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            written.append(f" {key}")
        elif value is not None and value is not False:
            written.append(f' {key}="{escape(str(value))}"')
    opening = f"<{name}{''.join(written)}>"
    return Html(opening if name in _VOID else f"{opening}{join(content)}</{name}>")


_VOID = frozenset(("br", "meta"))


def table(
    head: Sequence[object],
    rows: Collection[Sequence[object]],
    *,
    numbers: Collection[int] = (),
    code: Collection[int] = (),
    most: int | None = MAX_ROWS,
) -> Html:
    """Return a table, or nothing if there are no rows.

    ``head``: of the columns; empty for a table without. ``numbers``, ``code``: the columns that are
    set flush right, and in a font of one width. Behind ``most`` rows (None: all), the last row says
    how many are left out.
    """
    if not rows:
        return Html("")

    def cell(kind: str, column: int, value: object) -> Html:
        styles = ["number"] * (column in numbers) + ["code"] * (column in code and kind == "td")
        return tag(kind, value, class_=" ".join(styles) or None)

    def line(kind: str, values: Sequence[object]) -> Html:
        return tag("tr", *(cell(kind, i, v) for i, v in enumerate(values)))

    lines = [line("td", row) for row in islice(rows, most)]
    if most is not None and len(rows) > most:
        width = max(len(row) for row in islice(rows, most))
        more = tag("td", f"… and {len(rows) - most:,} more", class_="dim", colspan=width)
        lines.append(tag("tr", more))
    top = [tag("thead", line("th", head))] if head else []
    return tag("table", *top, tag("tbody", *lines))


def details(summary: object, *content: object, open_: bool = False) -> Html:
    """Return what is seen when somebody clicks on its summary; it needs no script."""
    return tag("details", tag("summary", summary), *content, open=open_)


def fragment(*content: object) -> Html:
    """Return what a notebook shows: the content with its style."""
    return join((tag("style", Html(STYLE)), tag("div", *content, class_="meta-view")))


def bytes_text(count: float) -> str:
    """Return a number of bytes for people: ``640 B``, ``1.5 KiB``, ``12 MiB``."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.4g} {unit}" if unit != "B" else f"{count:.0f} B"
        count /= 1024
    return f"{count:,.1f} TiB"


def time_text(seconds: float) -> str:
    """Return a duration for people: ``12.5 µs``, ``3.1 ms``, ``2 s``."""
    for unit, least in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= least:
            return f"{seconds / least:.4g} {unit}"
    return f"{seconds * 1e6:.4g} µs"
