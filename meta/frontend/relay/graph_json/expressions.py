"""Nodes that are expressions and patterns. To read a further one, add a function and a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.frontend.relay import ast
from meta.frontend.relay.graph_json.fields import BOOL, INT, NDARRAY, OBJECT, STRING
from meta.frontend.relay.graph_json.resolve import Kind, Resolver
from meta.frontend.relay.graph_json.types import inner_types, known_type, type_names

Fields = dict[str, Any]


def _expression(resolver: Resolver, index: int, value: Any, what: str) -> ast.Expr:
    return resolver.expect(index, value, ast.Expr, what)


def _constant(resolver: Resolver, index: int, fields: Fields) -> ast.Constant:
    if fields["data"] is None:
        resolver.fail(index, "a constant without data")
    return resolver.constant(index, resolver.array(index, fields["data"]))


def _name(resolver: Resolver, index: int, fields: Fields) -> str:
    return resolver.expect(index, fields["name_hint"], str, "its name")


def _var(resolver: Resolver, index: int, fields: Fields) -> ast.Var:
    name = resolver.expect(index, fields["vid"], str, "its name")
    return ast.Var(name, known_type(resolver, index, fields["type_annotation"]))


def _global_var(resolver: Resolver, index: int, fields: Fields) -> ast.GlobalVar:
    return ast.GlobalVar(_name(resolver, index, fields))


def _op(resolver: Resolver, index: int, _: Fields) -> ast.Op:
    name = resolver.text(index)
    if not name:
        resolver.fail(index, "an operator without a name")
    return ast.Op(name)


def _constructor(resolver: Resolver, index: int, fields: Fields) -> ast.Constructor:
    owner = resolver.expect(index, fields["belong_to"], ast.DataType, "its data type")
    constructor = ast.Constructor(_name(resolver, index, fields), owner.name)
    types = resolver.each(index, fields["inputs"], ast.Type, "field's type")
    resolver.constructor_fields[constructor] = types
    return constructor


def _call(resolver: Resolver, index: int, fields: Fields) -> ast.Call:
    attrs = fields["attrs"]
    if isinstance(attrs, dict):
        attrs = ast.Attrs(attrs, "DictAttrs", whole=True)
    if attrs is not None:
        resolver.expect(index, attrs, ast.Attrs, "what stands for its attributes")
    return ast.Call(
        _expression(resolver, index, fields["op"], "what it calls"),
        resolver.each(index, fields["args"], ast.Expr, "argument"),
        attrs,
        inner_types(resolver, index, fields["type_args"], "type argument"),
    )


def _tuple(resolver: Resolver, index: int, fields: Fields) -> ast.Tuple:
    return ast.Tuple(resolver.each(index, fields["fields"], ast.Expr, "field"))


def _field(resolver: Resolver, index: int, fields: Fields) -> ast.TupleGetItem:
    position = fields["index"]
    if position is None or position < 0:
        resolver.fail(index, f"field {position} of a tuple")
    value = _expression(resolver, index, fields["tuple_value"], "the tuple")
    return ast.TupleGetItem(value, position)


def _let(resolver: Resolver, index: int, fields: Fields) -> ast.Let:
    return ast.Let(
        resolver.expect(index, fields["var"], ast.Var, "its variable"),
        _expression(resolver, index, fields["value"], "its value"),
        _expression(resolver, index, fields["body"], "its body"),
    )


def _if(resolver: Resolver, index: int, fields: Fields) -> ast.If:
    return ast.If(
        _expression(resolver, index, fields["cond"], "its condition"),
        _expression(resolver, index, fields["true_branch"], "its first branch"),
        _expression(resolver, index, fields["false_branch"], "its second branch"),
    )


def _function(resolver: Resolver, index: int, fields: Fields) -> ast.Function:
    attrs = {} if fields["attrs"] is None else fields["attrs"]
    params = resolver.each(index, fields["params"], ast.Var, "parameter")
    if len(set(params)) != len(params):
        resolver.fail(index, "one variable is two of its parameters")
    return ast.Function(
        params,
        _expression(resolver, index, fields["body"], "its body"),
        known_type(resolver, index, fields["ret_type"]),
        type_names(resolver, index, fields["type_params"]),
        dict(resolver.expect(index, attrs, dict, "its attributes")),
    )


def _ref_create(resolver: Resolver, index: int, fields: Fields) -> ast.RefCreate:
    return ast.RefCreate(_expression(resolver, index, fields["value"], "its value"))


def _ref_read(resolver: Resolver, index: int, fields: Fields) -> ast.RefRead:
    return ast.RefRead(_expression(resolver, index, fields["ref"], "the reference"))


def _ref_write(resolver: Resolver, index: int, fields: Fields) -> ast.RefWrite:
    ref = _expression(resolver, index, fields["ref"], "the reference")
    return ast.RefWrite(ref, _expression(resolver, index, fields["value"], "the value"))


def _match(resolver: Resolver, index: int, fields: Fields) -> ast.Match:
    return ast.Match(
        _expression(resolver, index, fields["data"], "what it looks at"),
        resolver.each(index, fields["clauses"], ast.Clause, "clause"),
        fields["complete"] is not False,
    )


def _clause(resolver: Resolver, index: int, fields: Fields) -> ast.Clause:
    pattern = resolver.expect(index, fields["lhs"], ast.Pattern, "its pattern")
    return ast.Clause(pattern, _expression(resolver, index, fields["rhs"], "its body"))


def _wildcard(_: Resolver, __: int, ___: Fields) -> ast.PatternWildcard:
    return ast.PatternWildcard()


def _pattern_var(resolver: Resolver, index: int, fields: Fields) -> ast.PatternVar:
    return ast.PatternVar(resolver.expect(index, fields["var"], ast.Var, "its variable"))


def _pattern_constructor(resolver: Resolver, index: int, fields: Fields) -> ast.PatternConstructor:
    return ast.PatternConstructor(
        resolver.expect(index, fields["constructor"], ast.Constructor, "its constructor"),
        resolver.each(index, fields["patterns"], ast.Pattern, "pattern"),
    )


def _pattern_tuple(resolver: Resolver, index: int, fields: Fields) -> ast.PatternTuple:
    return ast.PatternTuple(resolver.each(index, fields["patterns"], ast.Pattern, "pattern"))


def _typed(build: Callable[[Resolver, int, Fields], ast.Expr], **fields: str) -> Kind:
    """Return the kind of an expression, whose type the file may state."""

    def typed(resolver: Resolver, index: int, found: Fields) -> ast.Expr:
        expression = build(resolver, index, found)
        expression.checked_type = known_type(resolver, index, found["_checked_type_"])
        expression.place = resolver.place(index)
        return expression

    nests = build in (_function, _if, _match)
    return Kind(typed, {**fields, "_checked_type_": OBJECT}, nests=nests)


def _placed(build: Callable[[Resolver, int, Fields], ast.Expr], **fields: str) -> Kind:
    """Return the kind of an expression whose type, that of a definition, is not read."""

    def placed(resolver: Resolver, index: int, found: Fields) -> ast.Expr:
        expression = build(resolver, index, found)
        expression.place = resolver.place(index)
        return expression

    return Kind(placed, fields)


def _vid(resolver: Resolver, index: int, fields: Fields) -> str:
    return _name(resolver, index, fields)


KINDS: dict[str, Kind] = {
    "relay.Id": Kind(_vid, {"name_hint": STRING}),
    "relay.Constant": _typed(_constant, data=NDARRAY),
    "relay.Var": _typed(_var, vid=OBJECT, type_annotation=OBJECT),
    "GlobalVar": _placed(_global_var, name_hint=STRING),
    "Op": _placed(_op),
    "relay.Constructor": _placed(_constructor, name_hint=STRING, inputs=OBJECT, belong_to=OBJECT),
    "relay.Call": _typed(_call, op=OBJECT, args=OBJECT, attrs=OBJECT, type_args=OBJECT),
    "relay.Tuple": _typed(_tuple, fields=OBJECT),
    "relay.TupleGetItem": _typed(_field, tuple_value=OBJECT, index=INT),
    "relay.Let": _typed(_let, var=OBJECT, value=OBJECT, body=OBJECT),
    "relay.If": _typed(_if, cond=OBJECT, true_branch=OBJECT, false_branch=OBJECT),
    "relay.Function": _typed(
        _function, params=OBJECT, body=OBJECT, ret_type=OBJECT, type_params=OBJECT, attrs=OBJECT
    ),
    "relay.RefCreate": _typed(_ref_create, value=OBJECT),
    "relay.RefRead": _typed(_ref_read, ref=OBJECT),
    "relay.RefWrite": _typed(_ref_write, ref=OBJECT, value=OBJECT),
    "relay.Match": _typed(_match, data=OBJECT, clauses=OBJECT, complete=BOOL),
    "relay.Clause": Kind(_clause, {"lhs": OBJECT, "rhs": OBJECT}),
    "relay.PatternWildcard": Kind(_wildcard),
    "relay.PatternVar": Kind(_pattern_var, {"var": OBJECT}),
    "relay.PatternConstructor": Kind(
        _pattern_constructor, {"constructor": OBJECT, "patterns": OBJECT}, nests=True
    ),
    "relay.PatternTuple": Kind(_pattern_tuple, {"patterns": OBJECT}, nests=True),
}
