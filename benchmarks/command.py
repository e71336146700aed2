"""Command lines of the benchmarks: options that several have, with one meaning."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser that shows a file's docstring as it is written."""
    return argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )


def add_names(
    parser: argparse.ArgumentParser,
    option: str,
    known: Collection[str],
    words: Mapping[str, Collection[str]] | None = None,
) -> None:
    """Add an option that takes some of the known names, with commas in between; by default all.
    words: what stands for several names.
    """

    def read(text: str) -> list[str]:
        found: list[str] = []
        for name in text.split(","):
            if name not in known and name not in (words or {}):
                raise argparse.ArgumentTypeError(f"{name!r} is none of {', '.join(known)}")
            found += (words or {}).get(name, [name])
        return list(dict.fromkeys(found))

    parser.add_argument(option, type=read, default=list(known), help="comma-separated names")


def add_outputs(parser: argparse.ArgumentParser, page: bool = True) -> None:
    """Add what is done with the figures. page: whether a page of docs/ has a table of them."""
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    if page:
        parser.add_argument(
            "--markdown", action="store_true", help="also rewrite the table in docs/"
        )
    parser.add_argument("--check", action="store_true", help="exit 1 if a goal is missed")
