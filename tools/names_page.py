"""Write the last sections of docs/coming_from_torch.md: spellings that mean something else, and
every name that is answered from habit.

    python -m tools.names_page

The tables are those of `tools.spellings`, `meta.base.aliases` and `meta.optim.options`, so that the
page and the error messages say the same. A test compares them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from meta.base import aliases, argument_aliases, methods
from meta.optim import options
from tools.spellings import DIFFERENT, rows

PAGE = Path(__file__).parents[1] / "docs" / "coming_from_torch.md"
HEADING = "## Spellings that were tried"
NAMES = "## Names that are answered"
SPELLINGS = """\
{count} spellings of NumPy's and torch's manuals are in `tests/data/spellings`; a test runs each on
both sides. A spelling gives the same here, or is an error that says what to write, but for these:

| typed | here |
| --- | --- |
{rows}
"""
INTRODUCTION = """\
Names typed from habit are errors that say what to write. These are all of them, besides methods of
torch that end in "_", and functions that are no methods."""

ARGUMENTS = {
    name: " or ".join(f"`{n}`" for n in here) for name, here in argument_aliases.ARGUMENT.items()
}
TABLES: dict[str, tuple[str, Mapping[str, str]]] = {
    **{f"`{module}`": (f"{module}.", names) for module, names in aliases.BY_MODULE.items()},
    "An array `x`": ("x.", methods.ARRAY_ALIASES),
    "A model": ("model.", aliases.MODEL),
    "Arguments": ("", ARGUMENTS),
    "Arguments that there are not": ("", argument_aliases.NO_ARGUMENT),
    "Options of optimizers": ("", options.ABSENT),
}


def section() -> str:
    """Return the sections as they are to be."""
    different = "\n".join(f"| `{code}` | {why} |" for code, why in DIFFERENT.items())
    tried = SPELLINGS.format(count=len(list(rows())), rows=different)
    parts = [f"{HEADING}\n\n{tried}", f"{NAMES}\n\n{INTRODUCTION}\n"]
    for title, (prefix, names) in TABLES.items():
        answers = "\n".join(_rows(prefix, names))
        parts.append(f"### {title}\n\n| typed | answer |\n| --- | --- |\n{answers}\n")
    return "\n".join(parts)


def _rows(prefix: str, names: Mapping[str, str]) -> Iterator[str]:
    for name, answer in sorted(names.items(), key=lambda row: row[0].lower()):
        text = answer.replace("|", r"\|").replace("][", r"]\[")  # no column, no link
        yield f"| `{prefix}{name}` | {text} |"


def main() -> None:
    """Write it into the page."""
    before = re.split(f"{HEADING}|{NAMES}", PAGE.read_text("utf-8"))[0]
    PAGE.write_text(before + section(), "utf-8")


if __name__ == "__main__":
    main()
