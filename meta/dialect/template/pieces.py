"""The four pieces of a kernel's source: function, signature, declaration and call.

The author writes device code and the body of the launch; the pieces follow from them and from the
operator's slots. Each can be written by the author instead, as a template or as a Python function
of the names that templates see.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meta.dialect.template.language import Text
from meta.dialect.template.names import NumberName, TensorName

PIECES = ("signature", "function", "declaration", "call")
"""In the order in which they are made: a template of one may use those before it."""
Written = Text | Callable[[Mapping[str, Any]], str]
"""A piece as an author writes it."""
WIDTH = 96
"""Columns of a derived line."""
CEIL_DIV = """template <class A, class B>
constexpr auto ceil_div(A a, B b) { return (a + b - 1) / b; }

"""
_TRIPLE = re.compile(r"<<<(.*?)>>>", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """The source of one kernel for one call.

    Attributes
    ----------
    target: the name of the target. title: what errors call it. function, signature, declaration,
    call: the pieces. config: the names and values of its configuration. values: what the call gives
    (see `given`): for each run-time value, in order, its C name, its type and its axes, -1 for a
    number; results: how many of the last ones the kernel makes; written: the places of those that
    it writes.
    """

    target: str
    title: str
    function: str
    signature: str
    declaration: str
    call: str
    config: Mapping[str, int | str]
    values: tuple[tuple[str, str, int], ...]
    written: tuple[int, ...]

    def __str__(self) -> str:
        others = f"{self.declaration}\n{self.call}".splitlines()
        return "\n".join([self.function, "", *(f"// {line}" for line in others), ""])


def values_of(values: tuple[TensorName | NumberName, ...]) -> tuple[tuple[str, str, int], ...]:
    """Return run-time values as plain data; see `Source`."""
    return tuple(
        (v.name, v.pointer, v.ndim) if isinstance(v, TensorName) else (v.name, v.type, -1)
        for v in values
    )


def completed(launch: str) -> str:
    """Return host code whose launches name the stream, which they are always made on."""

    def whole(match: re.Match[str]) -> str:
        depth, commas = 0, 0
        for letter in match[1]:
            depth += (letter in "([{") - (letter in ")]}")
            commas += letter == "," and depth == 0
        return f"<<<{match[1]}{', 0, stream' if commas == 1 else ', stream' * (commas == 2)}>>>"

    return _TRIPLE.sub(whole, launch)


def listed(head: str, parts: list[str], tail: str) -> str:
    """Return ``head(part, part)tail``, in several lines where it is long."""
    line = f"{head}({', '.join(parts)}){tail}"
    if len(line) <= WIDTH:
        return line
    inner = textwrap.fill(
        ", ".join(p.replace(" ", "\0") for p in parts),
        WIDTH,
        initial_indent="    ",
        subsequent_indent="    ",
        break_long_words=False,
        break_on_hyphens=False,
    )
    return f"{head}(\n{inner}){tail}".replace("\0", " ")


def with_helpers(body: str, launch: str) -> str:
    """Return device code behind what the launch uses and C++ has not."""
    wanted = "ceil_div" in launch and "ceil_div" not in body
    return CEIL_DIV + body.lstrip("\n") if wanted else body


def indented(text: str) -> str:
    """Return lines two spaces further right."""
    return "\n".join(f"  {line}" if line else "" for line in text.strip("\n").splitlines())


def function_piece(headers: str, body: str, signature: str, launch: str) -> str:
    """Return the whole source: headers, device code, and the function of the host."""
    parts = [headers, body.strip("\n"), f"{signature.strip()} {{\n{indented(launch)}\n}}"]
    return "\n\n".join(part for part in parts if part)


def rendered(written: Written, names: Mapping[str, Any]) -> str:
    """Return a piece that an author wrote, for the names of a call."""
    return written.render(names) if isinstance(written, Text) else written(names)
