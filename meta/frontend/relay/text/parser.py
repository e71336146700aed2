"""From Relay text to the tree: all versions of the text, and what TVM's printer writes though its
parser refuses it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.progress import bar
from meta.frontend.relay import ast
from meta.frontend.relay.graph_json import read_table
from meta.frontend.relay.text import metadata
from meta.frontend.relay.text.definitions import read_header, read_module
from meta.frontend.relay.text.lexer import Lexer
from meta.frontend.relay.text.metadata import MODULE_ATTRIBUTES, Metadata
from meta.frontend.relay.text.reader import Reader

_REPORT = 1 << 16
"""Characters between two reports of progress."""


def parse_text(text: str, source: str = "<text>") -> ast.Module:
    """Read a Relay program.

    Parameters
    ----------
    text: of version 0.0.1 to 0.0.5 or without a version (``print(mod)``); a module, a function or
        an expression, which becomes ``main``, a function of its free variables.
    source: the file's name, for errors and for the places of expressions.

    Raises RelayError with the place, the line and what was expected there.
    """
    program, section = metadata.split(text.removeprefix("\ufeff"))
    table, warnings = Metadata(), list[str]()
    if section is not None:
        items, warnings = read_table(section, source)
        table = Metadata(items)
    module = ast.Module({}, source=source)
    with bar(len(program), "reading Relay", delay=1.0) as progress:
        r = Reader(Lexer(program, source), table, progress=_reports(progress))
        module.text_version = read_header(r)
        read_module(r, module)
    module.version = _version(r, section)
    module.attrs = _module_attributes(table)
    module.warnings = [*warnings, *r.warnings, *_rebound(r)]
    return module


def _reports(progress: Any) -> Callable[[int], None]:
    last = 0

    def report(offset: int) -> None:
        nonlocal last
        if offset - last >= _REPORT:
            progress.update(offset - last)
            last = offset

    return report


def _version(r: Reader, section: str | None) -> tuple[int, int] | None:
    stated = metadata.version(section) if section is not None else None
    return (0, 6) if stated is None and r.old else stated


def _module_attributes(table: Metadata) -> dict[str, Any]:
    items = table.items.get(MODULE_ATTRIBUTES, ())
    return dict(items[0]) if items and isinstance(items[0], dict) else {}


def _rebound(r: Reader) -> list[str]:
    if not r.rebound:
        return []
    more = f" and at {len(r.rebound) - 1} more places" if len(r.rebound) > 1 else ""
    return [
        f"{r.rebound[0]}: a number of a graph binding is bound again, here{more}; it means the"
        " latest expression in its scope, TVM takes the first of the file"
    ]
