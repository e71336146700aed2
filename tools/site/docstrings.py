"""Docstrings as Markdown: sessions of Python are code, names of the reference are links."""

from __future__ import annotations

import inspect
import re
from typing import Any

import griffe

TARGETS: dict[str, str] = {}
"""By name, as docstrings write it, the anchor of its text (`tools.site.reference` fills it)."""
SESSION = re.compile(r"^>>> .*?(?=^\s*$|\Z)", re.MULTILINE | re.DOTALL)
SECTION = re.compile(r"^(\w[\w ]*)\n-{3,}\n((?:.+\n?)*)", re.MULTILINE)
ITEM = re.compile(r"^([a-z_]\w*(?:, \w+)*): ", re.MULTILINE)
BLOCK = re.compile(r"::(?=\n\n    )")
CODE = re.compile(r"(?<![`\[])(`([\w.]+)`)(?!`)")


def markdown(text: str) -> str:
    """Return a docstring as Markdown."""
    text = BLOCK.sub(":", SECTION.sub(section, inspect.cleandoc(text)))
    text = SESSION.sub(lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", text)
    return CODE.sub(link, text)


def section(found: re.Match[str]) -> str:
    """Return a section of parameters or attributes as a list."""
    return f"**{found[1]}**\n\n" + ITEM.sub(r"- `\1`: ", found[2])


def link(found: re.Match[str]) -> str:
    """Return code as a link, if it is a name of the reference; group 1 is the code, 2 the name."""
    target = TARGETS.get(found[2])
    return f"[{found[1]}][{target}]" if target else found[1]


class Markdown(griffe.Extension):
    """Has mkdocstrings show every docstring so, and read sources, not their stubs."""

    def on_module_members(self, *, mod: griffe.Module, **_: Any) -> None:
        """Forget what a stub says: in one, `meta.grad` is an attribute that can be called."""
        if str(mod.filepath).endswith(".pyi"):
            mod.members.clear()

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)
