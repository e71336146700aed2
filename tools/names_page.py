"""Write the last section of docs/coming_from_torch.md: every name that is answered from habit.

    python -m tools.names_page

The tables are those of `meta.base.aliases` and `meta.optim.options`, so that the page and the error
messages say the same. A test compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from meta.base import aliases, methods
from meta.optim import options

PAGE = Path(__file__).parents[1] / "docs" / "coming_from_torch.md"
HEADING = "## Names that are answered"
INTRODUCTION = """\
Names typed from habit are errors that say what to write. These are all of them, besides methods of
torch that end in "_", and functions that are no methods."""

ARGUMENTS = {name: " or ".join(f"`{n}`" for n in here) for name, here in aliases.ARGUMENT.items()}
TABLES: dict[str, tuple[str, Mapping[str, str]]] = {
    **{f"`{module}`": (f"{module}.", names) for module, names in aliases.BY_MODULE.items()},
    "An array `x`": ("x.", methods.ARRAY_ALIASES),
    "A model": ("model.", aliases.MODEL),
    "Arguments": ("", ARGUMENTS),
    "Arguments that there are not": ("", aliases.NO_ARGUMENT),
    "Options of optimizers": ("", options.ABSENT),
}


def section() -> str:
    """Return the section as it is to be."""
    parts = [f"{HEADING}\n\n{INTRODUCTION}\n"]
    for title, (prefix, names) in TABLES.items():
        rows = "\n".join(_rows(prefix, names))
        parts.append(f"### {title}\n\n| typed | answer |\n| --- | --- |\n{rows}\n")
    return "\n".join(parts)


def _rows(prefix: str, names: Mapping[str, str]) -> Iterator[str]:
    for name, answer in sorted(names.items(), key=lambda row: row[0].lower()):
        yield f"| `{prefix}{name}` | {answer.replace('|', chr(92) + '|')} |"


def main() -> None:
    """Write it into the page."""
    before = PAGE.read_text("utf-8").partition(HEADING)[0]
    PAGE.write_text(before + section(), "utf-8")


if __name__ == "__main__":
    main()
