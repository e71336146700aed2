"""Nodes that are types, expressions or patterns. To read a further one, add a row to `KINDS`.

Most are built of their fields alone: `_kind` takes the class and, in the order of its arguments,
the fields with what reads them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.graph_json.document import (
    BOOL,
    COMPUTED,
    DTYPE,
    INT,
    NDARRAY,
    OBJECT,
    STRING,
)
from meta.frontend.relay.graph_json.resolve import Kind, Resolver

Fields = dict[str, Any]
FieldReader = tuple[Callable[[Resolver, int, Any], Any], str]
"""Makes an argument of the resolver, the node's index and a decoded field; and its encoding."""


def _of_kind(kind: type, what: str, encoding: str = OBJECT) -> FieldReader:
    return lambda r, index, value: r.expect(index, value, kind, what), encoding


def _list_of_kind(kind: type, what: str) -> FieldReader:
    return lambda r, index, value: r.each(index, value, kind, what), OBJECT


def _value(what: str) -> FieldReader:
    return _of_kind(ast.Expr, what)


def _or_unknown_type(value: Any) -> Any:
    """A type inside of another one is there, known or not."""
    return ast.UnknownType() if value is None else value


def _type(what: str) -> FieldReader:
    return lambda r, index, value: r.expect(index, _or_unknown_type(value), ast.Type, what), OBJECT


def _types(what: str) -> FieldReader:
    """A list of types, in which null stands for one that is not known."""

    def read(r: Resolver, index: int, value: Any) -> tuple[ast.Type, ...]:
        found = r.expect(index, value, tuple, f"the list of {what}s", ())
        return r.each(index, tuple(map(_or_unknown_type, found)), ast.Type, what)

    return read, OBJECT


def _known_type(resolver: Resolver, index: int, value: Any) -> ast.Type | None:
    """Return a type that need not be known: None where it is absent or left open."""
    if value is None:
        return None
    found = resolver.expect(index, value, ast.Type, "its type")
    return None if isinstance(found, ast.UnknownType) else found


def type_names(resolver: Resolver, index: int, value: Any) -> tuple[str, ...]:
    """Return the names of type parameters."""
    return tuple(v.name for v in resolver.each(index, value, ast.TypeVar, "type parameter"))


def _kind(
    make: Callable[..., Any],
    *,
    nests: bool = False,
    placed: bool = False,
    typed: bool = False,
    **parts: FieldReader,
) -> Kind:
    """Return the kind of a node that is made of its fields.

    placed: it is an expression. typed: it is one whose type the file may state, no definition's.
    """
    reads = [(name, read) for name, (read, _) in parts.items()]

    def build(resolver: Resolver, index: int, fields: Fields) -> Any:
        value = make(*[read(resolver, index, fields[name]) for name, read in reads])
        if placed or typed:
            value.place = resolver.place(index)
        if typed:
            value.checked_type = _known_type(resolver, index, fields["_checked_type_"])
        return value

    encodings = {name: encoding for name, (_, encoding) in parts.items()}
    return Kind(build, {**encodings, **({"_checked_type_": OBJECT} if typed else {})}, nests=nests)


_typed_kind = partial(_kind, typed=True)


# Types, and what stands in shapes.


def _tensor(resolver: Resolver, index: int, fields: Fields) -> ast.TensorType:
    shape = resolver.expect(index, fields["shape"], tuple, "shape", ())
    for dim in shape:
        is_dim = isinstance(dim, int | ast.AnyDim | ast.SymbolDim) and not isinstance(dim, bool)
        if not is_dim:
            resolver.fail(index, f"a dimension is a {type(dim).__name__}")
        if isinstance(dim, int) and not 0 <= dim < 2**63:
            resolver.fail(index, f"a dimension of {dim}")
    if not fields["dtype"]:
        resolver.fail(index, "a tensor type without a dtype")
    return ast.TensorType(shape, fields["dtype"])


def _name_of_type(fields: Fields) -> str | None:
    """Until v0.6 the name was that of a variable of TVM's tensor expressions."""
    former = fields["var"]
    return former.name if isinstance(former, ast.SymbolDim) else fields["name_hint"]


def _type_variable(resolver: Resolver, index: int, fields: Fields) -> ast.TypeVar:
    return ast.TypeVar(resolver.type_variable_name(_name_of_type(fields) or "T"))


def _data_type(resolver: Resolver, index: int, fields: Fields) -> ast.DataType:
    name = _name_of_type(fields)
    if not name:
        resolver.fail(index, "a data type without a name")
    return ast.DataType(name)


def _computed(resolver: Resolver, index: int, _: Fields) -> ast.AnyDim:
    key = resolver.document.nodes[index].type_key
    resolver.warn(f"a dimension that is computed ({key}) is read as an unknown one")
    return ast.AnyDim()


_NAME = {"name_hint": STRING, "var": OBJECT}
_SYMBOL = _kind(ast.SymbolDim, name=_of_kind(str, "its name", STRING))

_TYPES: dict[str, Kind] = {
    "relay.TensorType": Kind(_tensor, {"shape": OBJECT, "dtype": DTYPE}),
    "TupleType": _kind(ast.TupleType, nests=True, fields=_types("field")),
    "FuncType": _kind(
        ast.FuncType,
        nests=True,
        arg_types=_types("parameter's type"),
        ret_type=_type("the result's type"),
        type_params=(type_names, OBJECT),
    ),
    "TypeVar": Kind(_type_variable, _NAME),
    "GlobalTypeVar": Kind(_data_type, _NAME),
    "TypeCall": _kind(
        lambda head, args: ast.DataType(head.name, args),
        nests=True,
        func=_of_kind(ast.DataType, "what is applied to types"),
        args=_types("type"),
    ),
    "relay.RefType": _kind(ast.RefType, nests=True, value=_type("its type")),
    "IncompleteType": Kind(lambda *_: ast.UnknownType(), {"kind": INT}),
    "tir.Any": _kind(ast.AnyDim),
    "tir.Var": _SYMBOL,
    "tir.SizeVar": _SYMBOL,
    **dict.fromkeys(COMPUTED, Kind(_computed)),
}


# Expressions and patterns.


def _array(resolver: Resolver, index: int, number: int | None) -> ast.Constant:
    if number is None:
        resolver.fail(index, "a constant without data")
    return resolver.constant(index, resolver.array(index, number))


def _constant(constant: ast.Constant) -> ast.Constant:
    return constant


def _op(resolver: Resolver, index: int, _: Fields) -> ast.Op:
    name = resolver.text(index)
    if not name:
        resolver.fail(index, "an operator without a name")
    return ast.Op(name, place=resolver.place(index))


def _constructor(resolver: Resolver, index: int, fields: Fields) -> ast.Constructor:
    owner = resolver.expect(index, fields["belong_to"], ast.DataType, "its data type")
    name = resolver.expect(index, fields["name_hint"], str, "its name")
    constructor = ast.Constructor(name, owner.name, place=resolver.place(index))
    types = resolver.each(index, fields["inputs"], ast.Type, "field's type")
    resolver.constructor_fields[constructor] = types
    return constructor


def _attributes(resolver: Resolver, index: int, attrs: Any) -> ast.Attrs | None:
    if isinstance(attrs, dict):
        return ast.Attrs(attrs, "DictAttrs")
    if attrs is None:
        return None
    return resolver.expect(index, attrs, ast.Attrs, "what stands for its attributes")


def _position(resolver: Resolver, index: int, position: int | None) -> int:
    if position is None or position < 0:
        resolver.fail(index, f"field {position} of a tuple")
    return position


def _params(resolver: Resolver, index: int, value: Any) -> tuple[ast.Var, ...]:
    params = resolver.each(index, value, ast.Var, "parameter")
    if len(set(params)) != len(params):
        resolver.fail(index, "one variable is two of its parameters")
    return params


def _function_attributes(resolver: Resolver, index: int, attrs: Any) -> Fields:
    return dict(resolver.expect(index, attrs, dict, "its attributes", {}))


_NAME_HINT = _of_kind(str, "its name", STRING)
_PATTERNS = _list_of_kind(ast.Pattern, "pattern")
_CONSTRUCTOR = {"name_hint": STRING, "inputs": OBJECT, "belong_to": OBJECT}

KINDS: dict[str, Kind] = {
    **_TYPES,
    "relay.Id": _kind(str, name_hint=_NAME_HINT),
    "relay.Constant": _typed_kind(_constant, data=(_array, NDARRAY)),
    "relay.Var": _typed_kind(
        ast.Var, vid=_of_kind(str, "its name"), type_annotation=(_known_type, OBJECT)
    ),
    "GlobalVar": _kind(ast.GlobalVar, placed=True, name_hint=_NAME_HINT),
    "Op": Kind(_op),
    "relay.Constructor": Kind(_constructor, _CONSTRUCTOR),
    "relay.Call": _typed_kind(
        ast.Call,
        op=_value("what it calls"),
        args=_list_of_kind(ast.Expr, "argument"),
        attrs=(_attributes, OBJECT),
        type_args=_types("type argument"),
    ),
    "relay.Tuple": _typed_kind(ast.Tuple, fields=_list_of_kind(ast.Expr, "field")),
    "relay.TupleGetItem": _typed_kind(
        ast.TupleGetItem, tuple_value=_value("the tuple"), index=(_position, INT)
    ),
    "relay.Let": _typed_kind(
        ast.Let,
        var=_of_kind(ast.Var, "its variable"),
        value=_value("its value"),
        body=_value("its body"),
    ),
    "relay.If": _typed_kind(
        ast.If,
        nests=True,
        cond=_value("its condition"),
        true_branch=_value("its first branch"),
        false_branch=_value("its second branch"),
    ),
    "relay.Function": _typed_kind(
        ast.Function,
        nests=True,
        params=(_params, OBJECT),
        body=_value("its body"),
        ret_type=(_known_type, OBJECT),
        type_params=(type_names, OBJECT),
        attrs=(_function_attributes, OBJECT),
    ),
    "relay.RefCreate": _typed_kind(ast.RefCreate, value=_value("its value")),
    "relay.RefRead": _typed_kind(ast.RefRead, ref=_value("the reference")),
    "relay.RefWrite": _typed_kind(
        ast.RefWrite, ref=_value("the reference"), value=_value("the value")
    ),
    "relay.Match": _typed_kind(
        ast.Match,
        nests=True,
        data=_value("what it looks at"),
        clauses=_list_of_kind(ast.Clause, "clause"),
        complete=(lambda _, __, complete: complete is not False, BOOL),
    ),
    "relay.Clause": _kind(
        ast.Clause, lhs=_of_kind(ast.Pattern, "its pattern"), rhs=_value("its body")
    ),
    "relay.PatternWildcard": _kind(ast.PatternWildcard),
    "relay.PatternVar": _kind(ast.PatternVar, var=_of_kind(ast.Var, "its variable")),
    "relay.PatternConstructor": _kind(
        ast.PatternConstructor,
        nests=True,
        constructor=_of_kind(ast.Constructor, "its constructor"),
        patterns=_PATTERNS,
    ),
    "relay.PatternTuple": _kind(ast.PatternTuple, nests=True, patterns=_PATTERNS),
}
