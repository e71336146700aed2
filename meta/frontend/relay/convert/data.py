"""Data values and references: constructors, values whose type is still open, cells; and matches, a
chain of tests and branches in the order of the clauses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meta import op
from meta.frontend.relay import ast
from meta.frontend.relay.convert.context import Context, Env, PartiallyTypedData, type_of
from meta.frontend.relay.convert.types import Bindings, join_types, relay_text
from meta.ir import Primitive, TensorType, TupleType, Type
from meta.ir.types import DataType, RefType
from meta.op.core.tracing import Value

if TYPE_CHECKING:
    from meta.frontend.relay.convert.evaluate import RelayEvaluator
    from meta.frontend.relay.convert.functions import Functions

_BOOL = TensorType((), "bool")


class Data:
    """The data values and references of a conversion."""

    def __init__(self, context: Context, functions: Functions) -> None:
        self.context, self.functions = context, functions

    def construct(
        self,
        constructor: ast.Constructor,
        args: tuple[Any, ...],
        declared: ast.Type | None,
        outer: Bindings,
    ) -> Any:
        """Return a data value, an open one where its type does not follow from its fields."""
        types = self.context.types
        fields = types.fields(constructor)
        what = f"{constructor.name} has another number of fields"
        self.context.require_equal(what, len(fields), len(args))
        bindings: Bindings = {}
        for i, (field, arg) in enumerate(zip(fields, args, strict=True)):
            if (found := type_of(arg)) is not None:
                what = f"field {i} of {constructor.name}"
                self.functions.check(field, found, bindings, what)
        params = types.definition(constructor.data_type).type_params
        if not all(p in bindings for p in params):
            return self.context.bounded(PartiallyTypedData(constructor, args, declared, outer))
        type_ = types.instance(constructor.data_type, tuple(bindings[p] for p in params))
        return self._emit(constructor, args, type_)

    def close(self, value: PartiallyTypedData, expected: Type | None) -> Value:
        """Return a data value of the expected type; of the declared one, if none is expected."""
        types = self.context.types
        wanted = expected or types.to_ir(value.declared, value.types)
        if wanted is None:
            raise self.context.error(
                f"the type arguments of {value.constructor.name} are not known",
                found=relay_text(value.declared),
                hint="declare the type where it is bound: let %x: List[float32] = Nil;",
            )
        if not isinstance(wanted, DataType):
            raise self.context.error(
                f"{value.constructor.name} stands where there is no data value", expected=wanted
            )
        return self._emit(value.constructor, value.fields, wanted)

    def _emit(self, constructor: ast.Constructor, args: tuple[Any, ...], type_: DataType) -> Value:
        types, trace = self.context.types, self.context.trace
        name, arguments = types.arguments(type_.name)
        if name != constructor.data_type:
            raise self.context.error(f"{constructor.name} makes no {type_}")
        bindings = dict(zip(types.definition(name).type_params, arguments, strict=True))
        given = tuple(
            self.functions.coerce(arg, types.to_ir(field, bindings))
            for field, arg in zip(types.fields(constructor), args, strict=True)
        )
        atoms = tuple(trace.atom(v) for v in given)
        found: Value = trace.emit(Primitive("construct", atoms, (constructor.name,), type_), type_)
        return found

    def new_reference(self, node: ast.RefCreate, value: Any, types: Bindings) -> Any:
        """Return a reference, whose declared type may leave dimensions open for other sizes."""
        declared = node.checked_type
        inner = declared.value if isinstance(declared, ast.RefType) else None
        value = self.functions.fit(value, inner, dict(types), "what a reference holds")
        found, type_ = type_of(value), self.context.types.to_ir(inner, types)
        held = found if type_ is None else join_types(type_, found)
        assert held is not None
        atom = self.context.trace.atom(value)
        return self.context.trace.emit(Primitive("make_ref", (atom,)), RefType(held))

    def read(self, ref: Any) -> Any:
        """Return what a reference holds now."""
        cell, type_ = self._reference(ref)
        return self.context.trace.emit(Primitive("read_ref", (cell.atom,)), type_.value)

    def write(self, ref: Any, value: Any) -> tuple[()]:
        """Let a reference hold another value."""
        cell, type_ = self._reference(ref)
        trace = self.context.trace
        atom = trace.atom(self.functions.coerce(value, type_.value))
        written = Primitive("write_ref", (cell.atom, atom))
        trace.builder.emit(written, type=TupleType(()), span=trace.site())
        return ()

    def _reference(self, value: Any) -> tuple[Value, RefType]:
        type_ = type_of(value)
        if not isinstance(type_, RefType):
            raise self.context.error("this is no reference", found=type_)
        return self.context.trace.lift(value), type_


class Matches:
    """The matches of a conversion."""

    def __init__(self, context: Context, evaluator: RelayEvaluator) -> None:
        self.context, self.evaluator = context, evaluator

    def evaluate(self, node: ast.Match, env: Env) -> Any:
        """Return the value of a match."""
        value = self.evaluator.value(node.value, env)
        return self._clauses(node, 0, value, self._all(value), env, None)

    def _all(self, value: Any) -> frozenset[str]:
        """Return the constructors that may have made a value."""
        type_ = type_of(value)
        if not isinstance(type_, DataType):
            return frozenset()
        return frozenset(c.name for c in self.context.root.types[type_.name].constructors)

    def _clauses(
        self,
        node: ast.Match,
        first: int,
        value: Any,
        left: frozenset[str],
        env: Env,
        expected: Type | None,
    ) -> Any:
        """Evaluate from clause ``first`` on; no clause before takes the constructors ``left``."""
        if first == len(node.clauses):
            return self._fail(node, expected)
        clause = node.clauses[first]
        scope = env.order.scopes[node][first]
        inside = Env(env)

        def body() -> Any:
            self._bind(clause.pattern, value, inside)
            return self.evaluator.scope(scope, inside)

        test = self._test(clause.pattern, value, left)
        if test is True:
            return body()
        if isinstance(clause.pattern, ast.PatternConstructor) and all(
            _is_irrefutable(p) for p in clause.pattern.patterns
        ):
            left = left - {clause.pattern.constructor.name}
        if test is False:
            return self._clauses(node, first + 1, value, left, env, expected)
        found: list[Type | None] = []

        def then() -> Any:
            result = body()
            found.append(type_of(result))
            return result

        def otherwise() -> Any:
            known = expected if expected is not None else found[0]
            return self._clauses(node, first + 1, value, left, env, known)

        return self.evaluator.choose(test, then, otherwise)

    def _fail(self, node: ast.Match, expected: Type | None) -> Any:
        type_ = expected or self.context.types.to_ir(node.checked_type, {})
        if type_ is None:
            raise self.context.error("the type of a match is not known: it has no clause")
        where = "" if node.place is None else f" at {node.place}"
        trace = self.context.trace
        message = f"no clause of the match{where} fits the value"
        return trace.emit(Primitive("fail", (), (message,), type_), type_)

    # Patterns.

    def _test(self, pattern: ast.Pattern, value: Any, left: frozenset[str]) -> Any:
        """Return whether a pattern fits: True or False where it is known, else a boolean symbol."""
        match pattern:
            case ast.PatternTuple():
                items = self._items(pattern, value)
                return self._all_of(
                    [lambda p=p, v=v: self._test(p, v, frozenset()) for p, v in items]
                )
            case ast.PatternConstructor():
                return self._test_constructor(pattern, value, left)
            case _:
                return True

    def _test_constructor(
        self, pattern: ast.PatternConstructor, value: Any, left: frozenset[str]
    ) -> Any:
        name = pattern.constructor.name
        if isinstance(value, PartiallyTypedData):
            made: Any = value.constructor.name == name
        else:
            constructors = self._all(value)
            self._check(pattern, value, constructors)
            made = len(constructors) == 1 or left == {name}
            if not made:
                trace = self.context.trace
                made = trace.emit(Primitive("is_variant", (trace.atom(value),), (name,)), _BOOL)
        if all(_is_irrefutable(p) for p in pattern.patterns):
            return made
        tests = [
            lambda i=i, p=p: self._test(p, self._field(pattern, value, i), frozenset())
            for i, p in enumerate(pattern.patterns)
        ]
        return self._all_of([lambda: made, *tests])

    def _check(self, pattern: ast.PatternConstructor, value: Any, known: frozenset[str]) -> None:
        fields = self.context.types.fields(pattern.constructor)
        if pattern.constructor.name not in known:
            raise self.context.error(
                f"{pattern.constructor.name} is matched with a value of another type",
                found=type_of(value) or type(value).__name__,
            )
        what = f"a pattern of {pattern.constructor.name} has another number of fields"
        self.context.require_equal(what, len(fields), len(pattern.patterns))

    def _all_of(self, tests: list[Any]) -> Any:
        """Return whether all tests hold; one is made only where those before it do."""
        if not tests:
            return True
        found = tests[0]()
        if isinstance(found, bool):
            return self._all_of(tests[1:]) if found else False
        if len(tests) == 1:
            return found

        def rest() -> Any:
            value = self._all_of(tests[1:])
            return self._constant(value) if isinstance(value, bool) else value

        return self.evaluator.choose(found, rest, lambda: self._constant(False))

    def _constant(self, value: bool) -> Any:
        return op.full((), value, "bool", str(self.context.root.device))

    def _bind(self, pattern: ast.Pattern, value: Any, env: Env) -> None:
        match pattern:
            case ast.PatternVar():
                if (found := type_of(value)) is not None:
                    self.evaluator.functions.check(
                        pattern.var.type, found, dict(env.types), f"%{pattern.var.name}"
                    )
                env.values[pattern.var] = value
            case ast.PatternTuple():
                for inner, item in self._items(pattern, value):
                    self._bind(inner, item, env)
            case ast.PatternConstructor():
                for i, inner in enumerate(pattern.patterns):
                    if not isinstance(inner, ast.PatternWildcard):
                        self._bind(inner, self._field(pattern, value, i), env)

    def _items(self, pattern: ast.PatternTuple, value: Any) -> list[tuple[ast.Pattern, Any]]:
        if not isinstance(value, tuple) or len(value) != len(pattern.patterns):
            raise self.context.error(
                f"a pattern of {len(pattern.patterns)} fields is matched with another value",
                found=type_of(value) or type(value).__name__,
            )
        return list(zip(pattern.patterns, value, strict=True))

    def _field(self, pattern: ast.PatternConstructor, value: Any, index: int) -> Any:
        if isinstance(value, PartiallyTypedData):
            return value.fields[index]
        name = pattern.constructor.name
        trace = self.context.trace
        assert isinstance(value, Value)
        definition = trace.types[value.type.name].constructor(name)
        assert definition is not None
        type_ = definition.fields[index]
        field = Primitive("get_field", (trace.atom(value),), (name, index), type_)
        return trace.emit(field, type_)


def _is_irrefutable(pattern: ast.Pattern) -> bool:
    """Whether a pattern fits every value."""
    if isinstance(pattern, ast.PatternTuple):
        return all(_is_irrefutable(p) for p in pattern.patterns)
    return not isinstance(pattern, ast.PatternConstructor)
