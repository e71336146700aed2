"""The metadata section at the end of a text, and references to it, ``meta[relay.Constant][0]``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.text.lexer import Lexer, skip_comment
from meta.frontend.relay.text.literals import STRING

CONSTANT = "relay.Constant"
MODULE_ATTRIBUTES = "meta.module_attributes"
"""Where `tools/relay_text` puts the attributes of the module, for which Relay text has no place."""

_EDGE = re.compile(r'"|/\*|//|#\[\s*metadata\s*\]|^METADATA:', re.MULTILINE)
_STRING = re.compile(STRING)
_REFERENCE = re.compile(r"meta\s*\[([^\]\n]{0,200})\]\s*\[\s*([0-9]{1,9})\s*\]")
_VERSION = re.compile(r'"tvm_version"\s*:\s*"([0-9]{1,4})\.([0-9]{1,4})')
_HINT = (
    "save the program with mod.astext(), which writes the metadata section, or as JSON with"
    " tvm.ir.save_json"
)


@dataclass(frozen=True, slots=True)
class Missing:
    """What a reference stands for whose item the file does not hold."""

    type_key: str
    text: str


@dataclass(slots=True)
class Metadata:
    """The items of the section by type key. ``missing``: constants that it does not hold."""

    items: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    missing: dict[str, ast.Constant] = field(default_factory=dict)

    def at(self, lex: Lexer) -> tuple[Any, int]:
        """Return the item that the current token, ``meta``, begins a reference to, and where the
        reference ends; `Missing` where the file does not hold it.
        """
        match = _REFERENCE.match(lex.source, lex.start)
        if match is None:
            lex.fail("a reference into the metadata section, meta[relay.Constant][0]")
        key, index = match[1].strip(), int(match[2])
        items = self.items.get(key, ())
        item = items[index] if index < len(items) else None
        if item is None:
            item = Missing(key, f"meta[{key}][{index}]")
        return item, match.end()

    def take(self, lex: Lexer) -> Any:
        """Return the item of the reference at the current token, and step over it."""
        item, end = self.at(lex)
        lex.end = end
        lex.advance()
        return item

    def constant(self, missing: Missing) -> ast.Constant:
        """Return the constant that the file does not hold, the same for the same reference."""
        return self.missing.setdefault(missing.text, ast.Constant(None, missing.text))


def unavailable(lex: Lexer, missing: Missing, at: int) -> RelayError:
    """Return the error of a reference that nothing can be read without."""
    return lex.error(
        "the file does not hold what this refers to in its metadata section",
        at,
        found=missing.text,
        hint=_HINT,
    )


def split(text: str) -> tuple[str, str | None]:
    """Return the program and the JSON of the metadata section, None without one."""
    if "metadata" not in text and "METADATA:" not in text:
        return text, None
    at = 0
    while (edge := _EDGE.search(text, at)) is not None:
        if edge[0] == '"':
            string = _STRING.match(text, edge.start())
            at = len(text) if string is None else string.end()
        elif edge[0] in ("/*", "//"):
            end = skip_comment(text, edge.start())
            at = len(text) if end is None else end
        else:
            return text[: edge.start()], text[edge.end() :]
    return text, None


def version(section: str) -> tuple[int, int] | None:
    """Return the version of TVM that wrote the section, (0, 15)."""
    match = _VERSION.search(section, max(0, section.rfind('"tvm_version"')))
    return (int(match[1]), int(match[2])) if match is not None else None
