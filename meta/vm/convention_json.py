"""`Convention` as JSON and back. Python values in it have to be literals."""

from __future__ import annotations

import inspect
from typing import Any

from meta.base.errors import ArgumentError, FormatError, IRError
from meta.ir import parse_literal
from meta.ir.literals import is_literal, literal_text
from meta.op.core import tree
from meta.vm.convention import Convention

_KINDS = {kind.name: kind for kind in type(inspect.Parameter.POSITIONAL_ONLY)}
_MAX_NESTING = 64


def convention_to_json(convention: Convention) -> dict[str, Any]:
    """Return a convention as plain data; a named tuple is written as a plain one.

    Raises ArgumentError for a Python value that is no literal: an object of a class.
    """
    parameters = []
    for parameter in convention.signature.parameters.values():
        entry: dict[str, Any] = {"name": parameter.name, "kind": parameter.kind.name}
        if parameter.default is not parameter.empty:
            entry["default"] = _written(parameter.default, parameter.name)
        parameters.append(entry)
    return {
        "name": convention.name,
        "parameters": parameters,
        "arguments": _written(convention.arguments, "the arguments"),
        "result": _written(convention.result, "the result"),
    }


def _written(structure: Any, where: str) -> Any:
    if structure is tree.LEAF:
        return {"array": True}
    if isinstance(structure, dict):
        return {"dict": [[_literal(k, where), _written(v, where)] for k, v in structure.items()]}
    if isinstance(structure, list | tuple):
        kind = "list" if isinstance(structure, list) else "tuple"
        return {kind: [_written(v, where) for v in structure]}
    return {"literal": _literal(structure, where)}


def _literal(value: Any, where: str) -> str:
    if not is_literal(value):
        raise ArgumentError(
            f"{where} cannot be saved: it has a {type(value).__name__} in it",
            expected="arrays, Python numbers, strings and containers of them",
            found=repr(value),
            hint="make it an attribute of the model, or a number",
        )
    return literal_text(value)


def convention_from_json(document: Any) -> Convention:
    """Return the convention that `convention_to_json` wrote; FormatError for anything else."""
    match document:
        case {
            "name": str(name),
            "parameters": list(parameters),
            "arguments": {"dict": list()} as arguments,
            "result": result,
        }:
            try:
                signature = inspect.Signature([_parameter(p) for p in parameters])
            except ValueError as error:
                raise FormatError(f"the parameters are not in order: {error}") from None
            return Convention(name, signature, _read(arguments), _read(result))
    raise _damaged(document)


def _parameter(entry: Any) -> inspect.Parameter:
    match entry:
        case {"name": str(name), "kind": str(kind)} if kind in _KINDS and name.isidentifier():
            default = _read(entry["default"]) if "default" in entry else inspect.Parameter.empty
            return inspect.Parameter(name, _KINDS[kind], default=default)
    raise _damaged(entry)


def _read(value: Any, depth: int = 0) -> Any:
    if depth > _MAX_NESTING:
        raise FormatError(f"structures are nested more than {_MAX_NESTING} deep")
    match value:
        case {"array": True}:
            return tree.LEAF
        case {"list": list(items)}:
            return [_read(v, depth + 1) for v in items]
        case {"tuple": list(items)}:
            return tuple(_read(v, depth + 1) for v in items)
        case {"dict": list(items)} if all(isinstance(i, list) and len(i) == 2 for i in items):
            return {_read_literal(k): _read(v, depth + 1) for k, v in items}
        case {"literal": str(text)}:
            return _read_literal(text)
    raise _damaged(value)


def _read_literal(text: Any) -> Any:
    try:
        return parse_literal(text) if isinstance(text, str) else None
    except IRError:
        raise _damaged(text) from None


def _damaged(found: Any) -> FormatError:
    shown = repr(found)
    return FormatError(
        "the convention of calling is not as it was saved",
        found=shown if len(shown) < 80 else f"{shown[:80]}...",
    )
