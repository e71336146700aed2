"""Writes types and the values of attributes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.text.lexer import DTYPE, SHORT_DTYPES
from tools.relay_text.literals import bare_name, float_literal, quote
from tools.relay_text.metadata import MetadataWriter

_CUSTOM = re.compile(r"custom\[[A-Za-z_]\w*\][0-9]+", re.ASCII)
_PLAIN_DTYPE = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class TypeWriter:
    """Writes types; what they need of the metadata section is collected."""

    def __init__(self, metadata: MetadataWriter) -> None:
        self._metadata = metadata
        self._known: dict[ast.Type, str] = {}

    def text(self, value: ast.Type) -> str:
        """Return a type as text."""
        if value not in self._known:
            self._known[value] = self._written(value)
        return self._known[value]

    def comment(self, value: ast.Type | None) -> str:
        """Return the comment that states a type, empty without one or if it cannot be read back."""
        if value is None:
            return ""
        text = self.text(value)
        inside = "*/" in text or "/*" in text or " span=" in text
        return "" if inside else f" /* ty={text} */"

    def declared(self, value: ast.Type | None) -> str:
        """Return a type behind its colon, empty without one."""
        return "" if value is None else f": {self.text(value)}"

    def _written(self, value: ast.Type) -> str:
        match value:
            case ast.TensorType(shape=(), dtype=dtype) if _stands_alone(dtype):
                return dtype
            case ast.TensorType(shape=shape, dtype=dtype):
                dims = [self._dim(d) for d in shape]
                return f"Tensor[({', '.join(dims)}), {_dtype(dtype)}]"
            case ast.TupleType(fields=fields):
                inner = list(map(self.text, fields))
                return f"({inner[0]},)" if len(inner) == 1 else f"({', '.join(inner)})"
            case ast.FuncType(params=params, result=result, type_params=names):
                inner = list(map(self.text, params))
                return f"fn {type_params(names)}({', '.join(inner)}) -> {self.text(result)}"
            case ast.TypeVar(name=name):
                return bare_name(name)
            case ast.DataType(name=name, args=args):
                inner = list(map(self.text, args))
                return f"{bare_name(name)}[{', '.join(inner)}]"
            case ast.RefType(value=inner_type):
                return f"ref({self.text(inner_type)})"
        return "_"

    def _dim(self, dim: ast.Dim) -> str:
        if isinstance(dim, ast.SymbolDim):
            return self._metadata.dim(dim)
        return "?" if isinstance(dim, ast.AnyDim) else str(dim)


def _stands_alone(dtype: str) -> bool:
    return DTYPE.fullmatch(dtype) is not None and dtype not in SHORT_DTYPES


def type_params(names: tuple[str, ...]) -> str:
    """Return ``[A, B]``, empty without names."""
    return f"[{', '.join(map(bare_name, names))}]" if names else ""


def _dtype(dtype: str) -> str:
    plain = _CUSTOM.fullmatch(dtype) or (
        _PLAIN_DTYPE.fullmatch(dtype) and dtype not in SHORT_DTYPES
    )
    return dtype if plain else f"${quote(dtype)}"


def attribute_value(
    value: Any, metadata: MetadataWriter, expression: Callable[[ast.Expr], str]
) -> str:
    """Return the value of an attribute as text; ``expression`` writes one that is an expression."""
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return float_literal(value)
    if isinstance(value, str):
        return quote(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join([attribute_value(v, metadata, expression) for v in value])}]"
    if isinstance(value, ast.Constant):
        return metadata.constant(value)
    if isinstance(value, ast.Expr):
        return expression(value)
    if isinstance(value, ast.SymbolDim):
        return metadata.dim(value)
    return metadata.value(value)
