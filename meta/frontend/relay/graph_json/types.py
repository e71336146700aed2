"""Nodes that are types, and what stands in shapes."""

from __future__ import annotations

from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.graph_json.fields import COMPUTED, DTYPE, INT, OBJECT, STRING
from meta.frontend.relay.graph_json.resolve import Kind, Resolver

Fields = dict[str, Any]


def known_type(resolver: Resolver, index: int, value: Any) -> ast.Type | None:
    """Return a type that need not be known: None where it is absent or left open."""
    if value is None:
        return None
    found = resolver.expect(index, value, ast.Type, "its type")
    return None if isinstance(found, ast.UnknownType) else found


def _inner(value: Any) -> Any:
    """A type inside of another one is there, known or not."""
    return ast.UnknownType() if value is None else value


def inner_types(resolver: Resolver, index: int, value: Any, what: str) -> tuple[ast.Type, ...]:
    """Return a list of types, in which null stands for one that is not known."""
    items = () if value is None else resolver.expect(index, value, tuple, f"the list of {what}s")
    return resolver.each(index, tuple(map(_inner, items)), ast.Type, what)


def type_names(resolver: Resolver, index: int, value: Any) -> tuple[str, ...]:
    """Return the names of type parameters."""
    return tuple(v.name for v in resolver.each(index, value, ast.TypeVar, "type parameter"))


def _tensor(resolver: Resolver, index: int, fields: Fields) -> ast.TensorType:
    shape = resolver.expect(
        index, () if fields["shape"] is None else fields["shape"], tuple, "shape"
    )
    for dim in shape:
        is_dim = isinstance(dim, int | ast.AnyDim | ast.SymbolDim) and not isinstance(dim, bool)
        if not is_dim:
            resolver.fail(index, f"a dimension is a {type(dim).__name__}")
        if isinstance(dim, int) and not 0 <= dim < 2**63:
            resolver.fail(index, f"a dimension of {dim}")
    if not fields["dtype"]:
        resolver.fail(index, "a tensor type without a dtype")
    return ast.TensorType(shape, fields["dtype"])


def _tuple(resolver: Resolver, index: int, fields: Fields) -> ast.TupleType:
    return ast.TupleType(inner_types(resolver, index, fields["fields"], "field"))


def _function(resolver: Resolver, index: int, fields: Fields) -> ast.FuncType:
    params = inner_types(resolver, index, fields["arg_types"], "parameter's type")
    result = resolver.expect(index, _inner(fields["ret_type"]), ast.Type, "the result's type")
    return ast.FuncType(params, result, type_names(resolver, index, fields["type_params"]))


def _variable(resolver: Resolver, index: int, fields: Fields) -> ast.TypeVar:
    """Until v0.6 the name was that of a variable of TVM's tensor expressions."""
    former = fields["var"]
    name = former.name if isinstance(former, ast.SymbolDim) else fields["name_hint"]
    return ast.TypeVar(resolver.type_variable_name(name or "T"))


def _global_variable(resolver: Resolver, index: int, fields: Fields) -> ast.DataType:
    former = fields["var"]
    name = former.name if isinstance(former, ast.SymbolDim) else fields["name_hint"]
    if not name:
        resolver.fail(index, "a data type without a name")
    return ast.DataType(name)


def _call(resolver: Resolver, index: int, fields: Fields) -> ast.DataType:
    head = resolver.expect(index, fields["func"], ast.DataType, "what is applied to types")
    return ast.DataType(head.name, inner_types(resolver, index, fields["args"], "type"))


def _reference(resolver: Resolver, index: int, fields: Fields) -> ast.RefType:
    return ast.RefType(resolver.expect(index, _inner(fields["value"]), ast.Type, "its type"))


def _unknown(_: Resolver, __: int, ___: Fields) -> ast.UnknownType:
    return ast.UnknownType()


def _any(_: Resolver, __: int, ___: Fields) -> ast.AnyDim:
    return ast.AnyDim()


def _symbol(resolver: Resolver, index: int, fields: Fields) -> ast.SymbolDim:
    return ast.SymbolDim(resolver.expect(index, fields["name"], str, "its name"))


def _computed(resolver: Resolver, index: int, _: Fields) -> ast.AnyDim:
    key = resolver.document.nodes[index].type_key
    resolver.warn(f"a dimension that is computed ({key}) is read as an unknown one")
    return ast.AnyDim()


_NAME = {"name_hint": STRING, "var": OBJECT}
_TUPLE = Kind(_tuple, {"fields": OBJECT}, nests=True)
_FUNCTION = Kind(
    _function, {"arg_types": OBJECT, "ret_type": OBJECT, "type_params": OBJECT}, nests=True
)

KINDS: dict[str, Kind] = {
    "relay.TensorType": Kind(_tensor, {"shape": OBJECT, "dtype": DTYPE}),
    "TupleType": _TUPLE,
    "FuncType": _FUNCTION,
    "TypeVar": Kind(_variable, _NAME),
    "GlobalTypeVar": Kind(_global_variable, _NAME),
    "TypeCall": Kind(_call, {"func": OBJECT, "args": OBJECT}, nests=True),
    "relay.RefType": Kind(_reference, {"value": OBJECT}, nests=True),
    "IncompleteType": Kind(_unknown, {"kind": INT}),
    "tir.Any": Kind(_any),
    "tir.Var": Kind(_symbol, {"name": STRING}),
    "tir.SizeVar": Kind(_symbol, {"name": STRING}),
    **dict.fromkeys(COMPUTED, Kind(_computed)),
}
