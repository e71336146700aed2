"""Programs in a notebook: the program text in colours, types on hover, links to the user's lines.

`show_with` makes this what ``node._repr_html_()`` returns. The fragment stands alone: its style is
in it, and everything that comes from the program is escaped.
"""

from __future__ import annotations

import re
from html import escape
from urllib.parse import quote

from meta.base.dtype import DTYPES
from meta.ir.expr import Block, Function, Module, Node, show_with
from meta.ir.lexer import SPAN, TOKEN
from meta.ir.printer import text, variable_names
from meta.ir.quoting import unquote

MAX_LINES = 2000
"""Longer programs are cut, lest the notebook stands still."""
_MAX_STRING = 60
_KEYWORDS = {"attrs", "const", "data", "else", "fn", "func", "if", "return", "yield"}
_STYLE = (
    "<style>"
    ".meta-ir{font-family:monospace;white-space:pre;overflow-x:auto;line-height:1.4}"
    ".meta-ir .var{color:#1a73b8}.meta-ir .global,.meta-ir .data{color:#8a4fbf}"
    ".meta-ir .keyword{color:#b3367a;font-weight:bold}.meta-ir .dtype{color:#1d8a6b}"
    ".meta-ir .op{color:#b8621a}.meta-ir .number,.meta-ir .string{color:#5a8a1d}"
    ".meta-ir a{color:#8a8a8a;text-decoration:none}.meta-ir a:hover{text-decoration:underline}"
    ".meta-ir .comment{color:#8a8a8a}"
    "</style>"
)


def to_html(node: Node) -> str:
    """Return a fragment of HTML that shows a module, a function or any part of one.

    It is cut after `MAX_LINES` lines, and a long string (the bytes of a constant) in the middle of
    its line; `text` has all.
    """
    lines = text(node).split("\n")
    roots = iter(node.functions.values() if isinstance(node, Module) else ())
    types = _types(node) if isinstance(node, Function | Block) else {}
    shown = []
    for line in lines[:MAX_LINES]:
        if line.startswith("func "):
            types = _types(next(roots))
        shown.append(_line(line, types))
    if len(lines) > MAX_LINES:
        shown.append(f'<span class="comment"># {len(lines) - MAX_LINES} more lines</span>')
    return f'{_STYLE}<div class="meta-ir">' + "\n".join(shown) + "</div>"


def _types(root: Function | Block) -> dict[str, str]:
    """Return the type of each variable by its name in the text."""
    return {n: str(v.type) for v, n in variable_names(root).items() if v.type is not None}


def _line(line: str, types: dict[str, str]) -> str:
    parts, position = [], 0
    while position < len(line):
        match = TOKEN.match(line, position)
        if match is None or match.lastgroup == "end":
            # What a broken program shows of itself is no token.
            parts.append(escape(line[position]))
            position += 1
            continue
        kind = match.lastgroup or ""
        parts.append(escape(line[position : match.start(kind)]))
        parts.append(_token(kind, match[kind], line[match.end() :], types))
        position = match.end()
    return "".join(parts)


def _token(kind: str, token: str, rest: str, types: dict[str, str]) -> str:
    title = ""
    match kind:
        case "punctuation":
            return escape(token)
        case "comment":
            return _comment(token)
        case "name":
            kind = _kind_of_name(token, rest)
        case "var" if token in types:
            title = f' title="{escape(types[token])}"'
        case "string" if len(token) > _MAX_STRING:
            title = f' title="{len(token) - 2} characters"'
            token = token[: _MAX_STRING - 1] + "…"
    return f'<span class="{kind}"{title}>{escape(token)}</span>' if kind else escape(token)


def _kind_of_name(name: str, rest: str) -> str:
    if name in _KEYWORDS and not rest.startswith("="):
        return "keyword"
    if name in DTYPES:
        return "dtype"
    return "op" if rest.startswith("(") else ""


def _comment(comment: str) -> str:
    """Return a span comment as a link to the user's file, anything else as it is."""
    match = SPAN.fullmatch(comment)
    if match is None:
        return f'<span class="comment">{escape(comment)}</span>'
    file = match[2] if match[1] is None else unquote(match[1])
    place = escape(f"{file}:{match[3]}")
    if not re.match(r"/|[A-Za-z]:[/\\]", file):  # "<stdin>" and notebook cells are no files
        return f'<span class="comment" title="{place}">{escape(comment)}</span>'
    address = escape(f"file://{quote(file, errors='replace')}#L{match[3]}")
    last = re.split(r"[/\\]", file)[-1]
    return f'<a href="{address}" title="{place}">{escape(f"# {last}:{match[3]}")}</a>'


show_with(to_html)
