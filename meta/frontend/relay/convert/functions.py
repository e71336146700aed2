"""Calls of functions: inlined, or functions of the IR, one for each choice of argument types.

What a function takes of the code around it becomes further parameters (lambda lifting), so a
let-bound function may call itself. As a value, a function is a closure of the IR around such a
call. Where a type is expected, data of an open type get one, and what the program declares is
checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from meta.frontend.relay import ast
from meta.frontend.relay.convert.context import (
    Closure,
    Context,
    Env,
    Instance,
    KnownFunction,
    PartiallyTypedData,
    type_of,
)
from meta.frontend.relay.convert.types import Bindings, all_or_none, join_types, relay_text
from meta.ir import Call, Function, FuncType, GlobalVar, Type, Var, compatible
from meta.op.core.tracing import BlockTrace, FunctionTrace, Value

if TYPE_CHECKING:
    from meta.frontend.relay.convert.evaluate import RelayEvaluator


class Functions:
    """The functions of a conversion, and what gives values types."""

    def __init__(self, context: Context, evaluator: RelayEvaluator) -> None:
        self.context, self.evaluator = context, evaluator
        self._globals: dict[str, Closure] = {}

    def global_function(self, name: str) -> Closure:
        """Return a function of the module; RelayError if there is none."""
        found = self._globals.get(name)
        if found is None:
            program = self.context.program
            function = program.function(name)
            env = Env(program.order(name))
            inline, types = program.inlines(name), [function.checked_type]
            found = Closure(name, function, env.order.root, env, inline, types)
            self._globals[name] = found
        return found

    # Calls.

    def call(
        self, callee: Any, args: tuple[Any, ...], node: ast.Call | None, types: Bindings
    ) -> Any:
        """Return a call's result; ``types``: the type parameters where ``node`` stands."""
        match callee:
            case Closure():
                return self._call_closure(callee, args, node, types)
            case ast.Op():
                return self.evaluator.operator(callee.name, args, node, types)
            case ast.Constructor():
                stated = None if node is None else node.checked_type
                return self.evaluator.data.construct(callee, args, stated, types)
            case Value() if isinstance(callee.type, FuncType):
                wanted: FuncType = callee.type
                self._check_count("the function", len(wanted.params), len(args))
                given = tuple(self.coerce(a, p) for a, p in zip(args, wanted.params, strict=True))
                trace = self.context.trace
                atoms = tuple(trace.atom(a) for a in given)
                return trace.emit(Call(trace.atom(callee), atoms), wanted.result)
            case _:
                raise self.context.error(
                    "what is called is no function", found=type_of(callee) or type(callee).__name__
                )

    def _call_closure(
        self, closure: Closure, args: tuple[Any, ...], node: ast.Call | None, outer: Bindings
    ) -> Any:
        self._check_count(f"{closure.name}", len(closure.node.params), len(args))
        types = dict(closure.env.types)
        for name in closure.node.type_params:
            types.pop(name, None)
        if node is not None and len(node.type_args) == len(closure.node.type_params):
            for name, arg in zip(closure.node.type_params, node.type_args, strict=True):
                known = self.context.types.to_ir(arg, outer)
                if known is not None and not isinstance(arg, ast.TensorType):
                    types[name] = known
        args = self._fit(closure, args, types)
        if closure.inline:
            return self._inlined(closure, args, types)
        return self._call_instance(closure, args, types, node, outer)

    def _fit(self, closure: Closure, args: tuple[Any, ...], types: Bindings) -> tuple[Any, ...]:
        """Check arguments, binding type parameters; functions and open data come last."""
        fitted = list(args)
        for param, arg in zip(closure.node.params, args, strict=True):
            if (found := type_of(arg)) is not None:
                self.check(param.type, found, types, f"%{param.name} of {closure.name}")
        for i, (param, arg) in enumerate(zip(closure.node.params, args, strict=True)):
            if type_of(arg) is not None:
                continue
            generic = bool(closure.node.type_params)
            if not closure.inline or (generic and self._binds(arg, param.type, types)):
                fitted[i] = self.fit(arg, param.type, types, f"%{param.name} of {closure.name}")
        return tuple(fitted)

    def _binds(self, arg: Any, declared: ast.Type | None, types: Bindings) -> bool:
        """Whether a type parameter is known by a function's result: an inlined body may name it."""
        if not self.states_types(arg) or not isinstance(declared, ast.FuncType):
            return False
        return self.context.types.to_ir(declared.result, types) is None

    def states_types(self, value: Any) -> bool:
        """Whether a value is a known function that declares the types of all of its parameters."""
        return isinstance(value, Closure) and None not in self._declared(value)

    def _declared(self, closure: Closure) -> list[Type | None]:
        """Return the declared types of a function's parameters."""
        types = closure.env.types
        return [self.context.types.to_ir(p.type, types) for p in closure.node.params]

    # Inlining.

    def _inlined(self, closure: Closure, args: tuple[Any, ...], types: Bindings) -> Any:
        self.context.inlined(closure.name)
        env = Env(closure.env, types)
        env.values.update(zip(closure.node.params, args, strict=True))
        value = self.evaluator.scope(closure.scope, env)
        declared = closure.node.result_type
        if (found := type_of(value)) is not None:
            self.check(declared, found, types, f"the result of {closure.name}")
        elif isinstance(value, PartiallyTypedData) and declared is not None:
            value = self.fit(value, declared, types, f"the result of {closure.name}")
        return value

    # Functions of the IR.

    def _call_instance(
        self,
        closure: Closure,
        args: tuple[Any, ...],
        types: Bindings,
        node: ast.Call | None,
        outer: Bindings,
    ) -> Any:
        found = all_or_none([type_of(a) for a in args])
        assert found is not None
        instance = self._instance(closure, found, types)
        if instance.result is None:
            stated = None if node is None else node.checked_type
            instance.result = self.context.types.to_ir(stated, outer)
        if instance.result is None:
            raise self.context.error(
                f"{closure.name} calls itself, and the type of its result is not declared",
                hint="declare it: fn (...) -> Tensor[(...), float32] { ... }",
            )
        trace = self.context.trace
        atoms = [trace.atom(a) for a in args]
        extra = [trace.lift(c) for c in instance.captured]
        types_ = (*instance.params, *(c.type for c in extra))
        callee = GlobalVar(instance.name, FuncType(types_, instance.result))
        return trace.emit(Call(callee, (*atoms, *(c.atom for c in extra))), instance.result)

    def _instance(self, closure: Closure, params: tuple[Type, ...], types: Bindings) -> Instance:
        """Return the function for arguments of these types. One that is under way is used again
        where dimensions differ, with those unknown: else a recursion that changes them has no end.
        """
        own = tuple(types.get(name) for name in closure.node.type_params)
        for other in closure.instances.values():
            if not other.done and len(other.params) == len(params):
                wider = [join_types(a, b) for a, b in zip(other.params, params, strict=True)]
                params = all_or_none(wider) or params
        found = closure.instances.get((params, own))
        if found is not None:
            return found
        name = self.context.root.global_names.unique(closure.name)
        stated = [t.result for t in closure.types if isinstance(t, ast.FuncType)]
        results = (closure.node.result_type, *stated)
        declared = [self.context.types.to_ir(t, types) for t in results]
        result = next((t for t in declared if t is not None), None)
        made = closure.instances[params, own] = Instance(name, params, result)
        self._trace(closure, made, types)
        return made

    def _trace(self, closure: Closure, instance: Instance, types: Bindings) -> None:
        context = self.context
        scope = FunctionTrace(context.trace)
        for value in self._captured(closure):
            before = len(scope.captured)
            scope.lift(value)
            if len(scope.captured) > before:
                instance.captured.append(value)
        env = Env(closure.env, types)
        variables = []
        with context.within(scope):
            for param, type_ in zip(closure.node.params, instance.params, strict=True):
                var, env.values[param] = scope.parameter(type_, param.name)
                variables.append(var)
            value = self.evaluator.scope(closure.scope, env)
            declared = closure.node.result_type
            value = self.fit(value, declared, types, f"the result of {closure.name}")
            found = type_of(value)
            block = scope.finish(value)
        assert len(scope.captured) == len(instance.captured)
        inside = [v.atom for v in scope.captured.values() if isinstance(v.atom, Var)]
        instance.result, instance.done = found, True
        context.root.functions[instance.name] = Function((*variables, *inside), block, found)

    def _captured(self, closure: Closure) -> list[Value]:
        """Return what a function takes of the code around it, functions taken apart."""
        found: dict[Any, Value] = {}
        seen: set[Closure] = set()
        stack: list[Any] = [closure]
        while stack:
            value = stack.pop()
            if isinstance(value, Closure):
                if value not in seen:
                    seen.add(value)
                    free = value.env.order.free(value.scope)
                    stack += reversed([value.env.find(node) for node in free])
            elif isinstance(value, PartiallyTypedData):
                stack += reversed(value.fields)
            elif isinstance(value, tuple):
                stack += reversed(value)
            elif isinstance(value, Value) and isinstance(value.atom, Var):
                found.setdefault(value.atom, value)
        return list(found.values())

    # Types of values.

    def _check_count(self, name: str, expected: int, found: int) -> None:
        what = f"{name} is called with another number of arguments"
        self.context.require_equal(what, expected, found)

    def fit(self, value: Any, declared: ast.Type | None, types: Bindings, what: str) -> Any:
        """Return a value that has a type, which is checked against the declared one."""
        if type_of(value) is None:
            value = self._typed(value, declared, types)
        found = type_of(value)
        assert found is not None
        self.check(declared, found, types, what)
        return value

    def _typed(self, value: Any, declared: ast.Type | None, types: Bindings) -> Any:
        to_ir = self.context.types.to_ir
        known = to_ir(declared, types)
        if known is not None:
            return self.coerce(value, known)
        if isinstance(value, tuple):
            fields: tuple[ast.Type | None, ...] = (None,) * len(value)
            if isinstance(declared, ast.TupleType) and len(declared.fields) == len(value):
                fields = declared.fields
            return tuple(
                v if type_of(v) is not None else self._typed(v, f, types)
                for v, f in zip(value, fields, strict=True)
            )
        if isinstance(value, KnownFunction) and isinstance(declared, ast.FuncType):
            return self.as_value(value, [to_ir(p, types) for p in declared.params])
        return self.coerce(value, None)

    def check(self, declared: ast.Type | None, found: Type, types: Bindings, what: str) -> None:
        """Raise RelayError for a type that the declared one does not allow."""
        if not self.context.types.unify(declared, found, types):
            raise self.context.error(
                f"{what} has another type than the program declares",
                expected=relay_text(declared),
                found=found,
            )

    def coerce(self, value: Any, expected: Type | None) -> Any:
        """Return a value that has a type: the expected one, if it is known."""
        found = type_of(value)
        if found is None and isinstance(value, tuple):
            fields = getattr(expected, "fields", (None,) * len(value))
            value = tuple(self.coerce(v, f) for v, f in zip(value, fields, strict=True))
        elif isinstance(value, PartiallyTypedData):
            value = self.evaluator.data.close(value, expected)
        elif isinstance(value, KnownFunction):
            params = expected.params if isinstance(expected, FuncType) else None
            value = self.as_value(value, params)
        found = type_of(value)
        if found is None or not compatible(found, expected):
            raise self.context.error(
                "a value has another type than it should have here", expected=expected, found=found
            )
        return value

    def as_value(self, function: KnownFunction, params: Sequence[Type | None] | None) -> Value:
        """Return a known function as a closure of the IR, with parameters of these types."""
        wanted = params
        if isinstance(function, Closure):
            own = self._declared(function)
            given = params or [None] * len(own)
            self._check_count(function.name, len(own), len(given))
            wanted = [g if g is not None else o for g, o in zip(given, own, strict=True)]
        known = None if wanted is None else all_or_none(wanted)
        if known is None:
            raise self.context.error(
                "the types of the parameters of a function that is used as a value are not known",
                hint="declare them: fn (%x: Tensor[(...), float32]) { ... }",
            )
        trace = self.context.trace
        block = BlockTrace(trace)
        variables, values = [], []
        with self.context.within(block):
            for i, type_ in enumerate(known):
                var, value = block.parameter(type_, f"x{i}")
                variables.append(var)
                values.append(value)
            result = self.coerce(self.call(function, tuple(values), None, {}), None)
            body = block.finish(result)
        made = Function(tuple(variables), body, type_of(result))
        returned = made.result_type or type_of(result)
        assert returned is not None
        type_ = FuncType(known, returned)
        found: Value = trace.emit(made, type_)
        return found
