"""Match: a chain of tests and branches, in the order of the clauses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meta import op
from meta.frontend.relay import ast
from meta.frontend.relay.convert.context import Context
from meta.frontend.relay.convert.values import Closure, Env, OpenData, type_of
from meta.ir import TensorType, Type
from meta.ir.expr import Fail, GetField, IsVariant
from meta.ir.types import DataType
from meta.op.core.tracing import Value

if TYPE_CHECKING:
    from meta.frontend.relay.convert.evaluate import Evaluator

_BOOL = TensorType((), "bool")


class Matches:
    """The matches of a conversion."""

    def __init__(self, context: Context, evaluator: Evaluator) -> None:
        self.context, self.evaluator = context, evaluator

    def evaluate(self, node: ast.Match, closure: Closure, env: Env) -> Any:
        """Return the value of a match."""
        value = self.evaluator.value(node.value, env)
        return self._clauses(node, 0, value, self._all(value), closure, env, None)

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
        closure: Closure,
        env: Env,
        expected: Type | None,
    ) -> Any:
        """Evaluate from clause ``first`` on; ``left`` are the constructors that no clause before
        takes whole.
        """
        if first == len(node.clauses):
            return self._fail(node, expected)
        clause = node.clauses[first]
        scope = closure.order.scopes[node][first]
        inside = Env(env)

        def body() -> Any:
            self._bind(clause.pattern, value, inside)
            return self.evaluator.scope(scope, closure, inside)

        test = self._test(clause.pattern, value, left)
        if test is True:
            return body()
        if isinstance(clause.pattern, ast.PatternConstructor) and all(
            _takes_all(p) for p in clause.pattern.patterns
        ):
            left = left - {clause.pattern.constructor.name}
        if test is False:
            return self._clauses(node, first + 1, value, left, closure, env, expected)
        found: list[Type | None] = []

        def then() -> Any:
            result = body()
            found.append(type_of(result))
            return result

        def otherwise() -> Any:
            known = expected if expected is not None else found[0]
            return self._clauses(node, first + 1, value, left, closure, env, known)

        return self.evaluator.choose(test, then, otherwise)

    def _fail(self, node: ast.Match, expected: Type | None) -> Any:
        type_ = expected or self.context.types.to_ir(node.checked_type, {})
        if type_ is None:
            raise self.context.error("the type of a match is not known: it has no clause")
        where = "" if node.place is None else f" at {node.place}"
        trace = self.context.trace
        return trace.emit(Fail(f"no clause of the match{where} fits the value", type_), type_)

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
        if isinstance(value, OpenData):
            made: Any = value.constructor.name == name
        else:
            constructors = self._all(value)
            self._check(pattern, value, constructors)
            made = len(constructors) == 1 or left == {name}
            if not made:
                trace = self.context.trace
                made = trace.emit(IsVariant(trace.atom(value), name), _BOOL)
        if all(_takes_all(p) for p in pattern.patterns):
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
        if len(fields) != len(pattern.patterns):
            raise self.context.error(
                f"a pattern of {pattern.constructor.name} has another number of fields",
                expected=len(fields),
                found=len(pattern.patterns),
            )

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
        return op.full(value, (), "bool", str(self.context.root.device))

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
        if isinstance(value, OpenData):
            return value.fields[index]
        name = pattern.constructor.name
        trace = self.context.trace
        assert isinstance(value, Value)
        definition = trace.types[value.type.name].constructor(name)
        assert definition is not None
        type_ = definition.fields[index]
        return trace.emit(GetField(trace.atom(value), name, index, type_), type_)


def _takes_all(pattern: ast.Pattern) -> bool:
    """Whether a pattern fits every value."""
    if isinstance(pattern, ast.PatternTuple):
        return all(_takes_all(p) for p in pattern.patterns)
    return not isinstance(pattern, ast.PatternConstructor)
