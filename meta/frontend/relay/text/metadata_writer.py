"""Collects what a program text refers to by ``meta[relay.Constant][0]``, and writes the section."""

from __future__ import annotations

import re
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.text.graph_writer import GraphWriter
from meta.frontend.relay.text.metadata import CONSTANT, MODULE_ATTRIBUTES

# What else may be in a key would end the reference, or begin a comment.
_KEY = re.compile(r"[\w.]{1,200}", re.ASCII)
_REFERENCE = re.compile(rf"meta\[({_KEY.pattern})\]\[([0-9]{{1,9}})\]", re.ASCII)


class MetadataWriter:
    """The items of the section, by type key.

    References that were read without an item keep their numbers: no item gets them.
    """

    def __init__(self) -> None:
        self._graph = GraphWriter()
        self._items: dict[str, dict[int, int]] = {}
        self._next: dict[str, int] = {}
        self._reserved: set[tuple[str, int]] = set()
        self._known: dict[Any, str] = {}

    def reserve(self, text: str | None) -> None:
        """Keep the number of a reference that has no item."""
        match = _REFERENCE.fullmatch(text or "")
        if match is not None:
            self._reserved.add((match[1], int(match[2])))

    def missing(self, text: str | None) -> str:
        """Return the reference to what the program does not hold."""
        if text is not None and _REFERENCE.fullmatch(text):
            return text
        return f"meta[{CONSTANT}][{self._free(CONSTANT)}]"

    def constant(self, constant: ast.Constant) -> str:
        """Return the reference to a constant."""
        if constant.value is None:
            return self.missing(constant.missing)
        return self._reference(constant, CONSTANT)

    def dim(self, dim: ast.SymbolDim) -> str:
        """Return the reference to a symbolic dimension."""
        return dim.name if _REFERENCE.fullmatch(dim.name) else self._reference(dim, "tir.Var")

    def value(self, value: Any) -> str:
        """Return the reference to the value of an attribute."""
        if isinstance(value, ast.Opaque):
            stated = dict(value.fields).get("missing")
            if isinstance(stated, str) and _REFERENCE.fullmatch(stated):
                return stated
        return self._add(value, _type_key(value))

    def _reference(self, value: Any, type_key: str) -> str:
        if value not in self._known:
            self._known[value] = self._add(value, type_key)
        return self._known[value]

    def _add(self, value: Any, type_key: str) -> str:
        index = self._free(type_key)
        self._items.setdefault(type_key, {})[index] = self._graph.value(value)
        return f"meta[{type_key}][{index}]"

    def _free(self, type_key: str) -> int:
        index = self._next.get(type_key, 0)
        while (type_key, index) in self._reserved:
            index += 1
        self._next[type_key] = index + 1
        return index

    def section(self, module: ast.Module) -> str:
        """Return the section with what stands before it, empty if nothing is to be said there."""
        if module.attrs:
            self._add(module.attrs, MODULE_ATTRIBUTES)
        if not self._items and module.version is None:
            return ""
        arrays = {
            key: self._graph.array([items.get(i, 0) for i in range(max(items) + 1)])
            for key, items in self._items.items()
        }
        root = self._graph.map(arrays)
        return f"\n#[metadata]\n{self._graph.text(root, module.version)}\n"


def _type_key(value: Any) -> str:
    match value:
        case ast.Attrs(type_key=str() as key):
            return key
        case ast.Opaque(type_key=key):
            return key if _KEY.fullmatch(key) else "Object"
        case ast.Constant():
            return CONSTANT
        case ast.AnyDim():
            return "tir.Any"
        case ast.SymbolDim():
            return "tir.Var"
        case dict():
            return "Map"
    return type(value).__name__
