"""The registry of Relay's converters, and the facts about its operators, `operators.json` as
objects.

To convert a further operator, write a function in the family file of `converters/` that fits (see
`meta.frontend.core.converter`).

Facts hold for TVM 0.6 to 0.19. A field's type is that of TVM's attribute class. It decides how the
JSON form is read ("0" of an object field is null, of a number zero).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from meta.frontend.core import CallSite, Converters
from meta.frontend.relay import ast


@dataclass(frozen=True, slots=True)
class AttributeFacts:
    """An attribute: its C++ type and default (a plain value; lists as tuples)."""

    type: str
    default: Any


@dataclass(frozen=True, slots=True)
class OperatorFacts:
    """An operator of Relay.

    Attributes
    ----------
    attrs_type: type key of its attributes, None where it has none. since, until: the first and the
    last version of TVM that has it, "0.6.0". former: type keys of attributes in earlier versions.
    """

    attrs_type: str | None
    since: str
    until: str
    former: tuple[str, ...] = ()

    @property
    def fields(self) -> dict[str, AttributeFacts]:
        """Its attributes by name, those of earlier versions included (with the default None)."""
        types = attribute_types()
        own = types[self.attrs_type] if self.attrs_type is not None else {}
        return {**{n: f for key in self.former for n, f in types[key].items()}, **own}


def _value(v: Any) -> Any:
    return tuple(map(_value, v)) if isinstance(v, list) else v


@cache
def _table() -> dict[str, Any]:
    text = files("meta.frontend.relay").joinpath("operators.json").read_text(encoding="utf-8")
    table: dict[str, Any] = json.loads(text)
    return table


@cache
def attribute_types() -> dict[str, dict[str, AttributeFacts]]:
    """Return the fields by name of every attribute type ("relay.attrs.Conv2DAttrs")."""
    return {
        key: {n: AttributeFacts(kind, _value(default)) for n, (kind, default) in fields.items()}
        for key, fields in _table()["attrs"].items()
    }


@cache
def operators() -> dict[str, OperatorFacts]:
    """Return every operator that some version had, by name."""
    found = _table()["operators"].items()
    return {n: OperatorFacts(**{k: _value(v) for k, v in o.items()}) for n, o in found}


@cache
def _defaults(name: str) -> dict[str, Any] | None:
    facts = operators().get(name)
    return None if facts is None else {n: f.default for n, f in facts.fields.items()}


_INTEGERS = ("Array<Integer>", "Array<IndexExpr>", "Array<PrimExpr>")
_LISTS = frozenset((*_INTEGERS, *(f"Optional<{t}>" for t in _INTEGERS)))


@cache
def _types(name: str) -> dict[str, str]:
    facts = operators().get(name)
    return {} if facts is None else {n: f.type for n, f in facts.fields.items()}


def _read(operator: str, attribute: str, value: Any) -> Any:
    """Return flags as bools and lists of integers as tuples, pairs in a list one after the other;
    files also state both as integers. Of operators that are not TVM's own, values are as stated.
    """
    kind = _types(operator).get(attribute, "")
    if kind == "bool" and value is not None:
        return bool(value)
    if kind.startswith("Array<Array<") and isinstance(value, tuple | list):
        return tuple(n for part in value for n in part)
    if kind in _LISTS and isinstance(value, int | list):
        return (value,) if isinstance(value, int) else tuple(value)
    return value


relay = Converters("relay", _defaults, _read)


def result_dtype(call: CallSite, default: str, index: int | None = None) -> str:
    """Return the dtype that the file states for the result, or a field of it, or a default."""
    stated = call.result_type
    if isinstance(stated, ast.TupleType) and index is not None and index < len(stated.fields):
        stated = stated.fields[index]
    return stated.dtype if isinstance(stated, ast.TensorType) else default
