"""The registry of ONNX's converters, which the families in `converters/` fill, and the error of
models that cannot be converted.

An operator of the default domain has its ONNX name, "Conv"; of another domain the domain before
it, "com.microsoft.Gelu". Rules for converters, besides those of `meta.frontend.core.converter`:

- Positional parameters are the inputs of the node, None for one that is left out; a trailing one
  that is left out is not given, so an optional input has the default None. Their names are free.
- Keyword-only parameters are attributes by ONNX's names. Their defaults are those of the schema of
  the node's opset (`onnx.defs`); one that this opset does not have, has the value of the newest
  schema that has it. Text is str, lists are tuples; tensors, sparse tensors and types are the
  protobufs (see `values.py`), a graph is a `Subgraph` that is called with its inputs and returns a
  tuple of its outputs.
- One function serves all versions of an operator and decides by ``call.opset`` where their meaning
  differs. ``call.results`` says how many results the node names.
- ``consumed_inputs``, which was for memory in opset 1, and ``seed`` are ignored everywhere.
- A tuple that is returned is several results, in order; anything else is the first. A list is a
  value: ONNX's sequence.
- NotImplemented, returned, leaves a call to the function that ONNX defines the operator by.
- Values that are known while converting are arrays (`known`); shapes, axes and the like mostly are.

An operator without converter is expanded, if its schema defines it by others. To convert one, write
a function in the family file of `converters/` that fits.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from onnx import AttributeProto, defs, helper

from meta.base.errors import FormatError
from meta.frontend.core import Converters

DEFAULT_DOMAINS = ("", "ai.onnx")


class OnnxError(FormatError):
    """An ONNX model that is no valid one, or cannot be converted."""


def full_name(domain: str, operator: str) -> str:
    """Return the name of an operator here."""
    return operator if domain in DEFAULT_DOMAINS else f"{domain}.{operator}"


def attribute_value(attribute: Any) -> Any:
    """Return the value of an `onnx.AttributeProto` as described above; graphs stay as they are."""
    value = helper.get_attribute_value(attribute)
    if isinstance(value, bytes):
        return value.decode(errors="surrogateescape")
    if isinstance(value, str | int | float) or not hasattr(value, "__iter__"):
        return value
    return tuple(v.decode(errors="surrogateescape") if isinstance(v, bytes) else v for v in value)


@cache
def _histories() -> dict[str, list[Any]]:
    """Return the schemas of every operator that onnx defines, the oldest first."""
    found: dict[str, list[Any]] = {}
    schemas: Any = defs.get_all_schemas_with_history()
    for schema in sorted(schemas, key=lambda s: int(s.since_version)):
        found.setdefault(full_name(schema.domain, schema.name), []).append(schema)
    return found


def schema_of(name: str, opset: int) -> Any:
    """Return the schema of an operator in an opset, by its name here; None if there is none."""
    fitting = [s for s in _histories().get(name, ()) if s.since_version <= opset]
    return fitting[-1] if fitting and not fitting[-1].deprecated else None


def _defaults(schema: Any) -> dict[str, Any]:
    undefined = AttributeProto.UNDEFINED
    return {
        name: None if a.default_value.type == undefined else attribute_value(a.default_value)
        for name, a in schema.attributes.items()
    }


@cache
def defaults_of(name: str, opset: int) -> Mapping[str, Any]:
    """Return the attributes of an operator in an opset with their defaults, None for none."""
    schema = schema_of(name, opset)
    return {} if schema is None else _defaults(schema)


@cache
def attributes_of(name: str) -> Mapping[str, Any] | None:
    """Return the attributes of all versions of an operator; None for one that onnx has not."""
    history = _histories().get(name)
    if history is None:
        return None
    return {key: value for schema in history for key, value in _defaults(schema).items()}


onnx = Converters("onnx", attributes=attributes_of, meaningless=("consumed_inputs", "seed"))
