"""`RelayEvaluator`: an abstract interpreter of Relay, whose operators are calls under a trace.

It goes through the steps of a scope in order and recurses into the scopes inside; each kind of
expression is a method. Functions are in `functions.py`, data, references and matches in `data.py`.
An operator's converter is called; at once, where all that it is given is known.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from meta.base.errors import MetaError
from meta.base.progress import bar
from meta.frontend.core import BAD_ATTRIBUTES, CallSite, Unconvertible, fold_constants, leaves
from meta.frontend.relay import ast
from meta.frontend.relay.convert.context import (
    Closure,
    Context,
    Env,
    KnownFunction,
    PartiallyTypedData,
    type_of,
)
from meta.frontend.relay.convert.data import Data, Matches
from meta.frontend.relay.convert.functions import Functions
from meta.frontend.relay.convert.program import Bind, RelayProgram, Scope, is_hint
from meta.frontend.relay.convert.types import Bindings, join_types, relay_text, tuple_type
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.registry import relay
from meta.ir import Call, Function, FuncType, GlobalVar, If, TensorType, Type, Var
from meta.ir.literals import MAX_NESTING
from meta.op.core.tracing import BlockTrace, FunctionTrace, Trace, Value
from meta.runtime.ndarray import ndarray

MAX_FOLDED_ELEMENTS = 1 << 16
"""What is computed of known arrays is known itself up to this many elements of each, and of all
results.
"""


def convert(program: RelayProgram, trace: Trace, args: tuple[Any, ...], training: bool) -> Any:
    """Return main's result for symbols and tuples of them; RelayError where that fails."""
    context = Context(program, trace, training)
    try:
        return RelayEvaluator(context).main(args)
    except RecursionError:
        raise context.error(
            "functions call one another, or branches are nested, too deep to be converted"
        ) from None


def _call_text(name: str, args: tuple[Any, ...]) -> str:
    return f"{name}({', '.join(str(type_of(a)) for a in args)})"


def _convert(
    context: Context, site: CallSite, args: tuple[Any, ...], fields: dict[str, Any]
) -> Any:
    convert = partial(relay.apply, site, args, fields)
    return _plain(fold_constants(convert, args, context.root.device, MAX_FOLDED_ELEMENTS))


def _plain(result: Any) -> Any:
    return tuple(map(_plain, result)) if isinstance(result, tuple | list) else result


_BOOL = TensorType((), "bool")
_LONG = 500
"""Scopes of more steps show their progress, after so many each."""
_MAX_BLOCKS = MAX_NESTING // 2
"""Branches that are nested deeper become functions: the IR's blocks may nest `MAX_NESTING` deep."""


class RelayEvaluator:
    """Evaluates the scopes of a program's functions."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self.functions = Functions(context, self)
        self.data = Data(context, self.functions)
        self.matches = Matches(context, self)

    def main(self, args: tuple[Any, ...]) -> Any:
        """Return the result of main for these values."""
        program = self.context.program
        closure = self.functions.global_function("main")
        env = Env(closure.env)
        for param, arg in zip(closure.node.params, args, strict=True):
            found = type_of(arg)
            assert found is not None
            self.functions.check(param.type, found, {}, f"the input %{param.name}")
            env.values[param] = arg
        with self.context.within(self.context.root):
            result = self.scope(closure.scope, env)
            return self.functions.fit(result, program.main.result_type, {}, "the result of @main")

    def scope(self, scope: Scope, env: Env) -> Any:
        """Evaluate the steps of a scope, and return its result."""
        if len(scope.steps) < _LONG:
            self._steps(scope.steps, env)
        else:
            with bar(len(scope.steps), "converting", delay=1.0) as progress:
                for start in range(0, len(scope.steps), _LONG):
                    part = scope.steps[start : start + _LONG]
                    self._steps(part, env)
                    progress.update(len(part))
        return self.value(scope.result, env)

    def _steps(self, steps: Sequence[ast.Expr | Bind], env: Env) -> None:
        for step in steps:
            if isinstance(step, Bind):
                self._bind(step.let, env)
                continue
            if step.place is not None:
                self.context.place = step.place
            env.values[step] = self._step(step, env)

    def _bind(self, let: ast.Let, env: Env) -> None:
        value = self.value(let.value, env)
        what = f"%{let.var.name}"
        if isinstance(value, Closure) and value.name == "fn":
            value.name = let.var.name
            value.types.append(let.var.type)
            once = env.order.uses
            value.inline |= once[let.value] == 1 and once[let.var] == 1
        found = type_of(value)
        if found is not None:
            self.functions.check(let.var.type, found, dict(env.types), what)
        elif isinstance(value, PartiallyTypedData) and let.var.type is not None:
            value = self.functions.fit(value, let.var.type, dict(env.types), what)
        env.values[let.var] = value

    def value(self, node: ast.Expr, env: Env) -> Any:
        """Return the value of an expression that is a leaf, or was a step before."""
        match node:
            case ast.Constant():
                return self.context.constant(node)
            case ast.GlobalVar():
                return self.functions.global_function(node.name)
            case ast.Op():
                return node
            case ast.Constructor():
                if self.context.types.fields(node):
                    return node
                return self.data.construct(node, (), node.checked_type, env.types)
        found = env.find(node)
        if found is None:
            name = f"%{node.name}" if isinstance(node, ast.Var) else "an expression"
            raise self.context.error(
                f"{name} is used where it has no value",
                hint="is it a variable of another function, or of a let that comes later?",
            )
        return found

    def _step(self, node: ast.Expr, env: Env) -> Any:
        match node:
            case ast.Call():
                args = tuple(self.value(a, env) for a in node.args)
                made = isinstance(node.op, ast.Constructor)
                callee = node.op if made else self.value(node.op, env)
                return self.functions.call(callee, args, node, env.types)
            case ast.Tuple():
                return self.context.bounded(tuple(self.value(f, env) for f in node.fields))
            case ast.TupleGetItem():
                value = self.value(node.value, env)
                if not isinstance(value, tuple) or not 0 <= node.index < len(value):
                    found = type_of(value) or type(value).__name__
                    raise self.context.error(f"there is no field {node.index}", found=found)
                return value[node.index]
            case ast.Let():
                return self.value(node.body, env)
            case ast.If():
                return self._if(node, env)
            case ast.Function():
                return self._function(node, env)
            case ast.Match():
                return self.matches.evaluate(node, env)
            case ast.RefCreate():
                return self.data.new_reference(node, self.value(node.value, env), env.types)
            case ast.RefRead():
                return self.data.read(self.value(node.ref, env))
            case ast.RefWrite():
                return self.data.write(self.value(node.ref, env), self.value(node.value, env))
        raise self.context.error(f"{type(node).__name__} is no expression that has a value")

    def operator(
        self, name: str, args: tuple[Any, ...], node: ast.Call | None, types: Bindings
    ) -> Any:
        """Return the value of an operator's call; RelayError if it has another type than stated."""
        context = self.context
        args = tuple(_lift(context.trace, a) for a in args)
        attrs = None if node is None else node.attrs
        stated = None if node is None else node.checked_type
        fields = {} if attrs is None else attrs.fields
        for leaf in leaves(args):
            if not isinstance(leaf, ndarray) and not isinstance(type_of(leaf), TensorType):
                raise context.error(
                    f"{name} is given a value that is no tensor",
                    found=type_of(leaf) or type(leaf).__name__,
                )
        site = CallSite(
            name,
            context.program.module.version,
            frozenset(fields),
            attrs is not None,
            context.training,
            context.root.device,
            stated,
        )
        try:
            result = _convert(context, site, args, fields)
        except Unconvertible as error:
            raise context.error(
                f"{name} cannot be converted: {error.why}",
                found=_call_text(name, args),
                hint=error.hint,
            ) from error
        except RelayError:
            raise
        except MetaError as error:
            error.note(f"in:       {_call_text(name, args)}, {context.place or 'of the program'}")
            raise
        except BAD_ATTRIBUTES as error:
            raise context.error(
                f"the attributes of {name} cannot be used: {error or type(error).__name__}",
                found=f"{_call_text(name, args)} with {fields}",
            ) from error
        type_ = type_of(result)
        if type_ is not None and not context.types.unify(stated, type_, dict(types)):
            raise context.error(
                f"the result of {name} has not the type that the program states",
                expected=relay_text(stated),
                found=f"{type_}, of {_call_text(name, args)}",
            )
        return result

    def _function(self, node: ast.Function, env: Env) -> Closure:
        (scope,) = env.order.scopes[node]
        # Used once, and that by a call: `_bind` looks after those that have a name.
        once = env.order.uses[node] == 1 and node in env.order.called
        inline = once or is_hint(node.attrs, scope)
        return Closure("fn", node, scope, env, inline, [node.checked_type])

    # Branches.

    def _if(self, node: ast.If, env: Env) -> Any:
        condition = self.value(node.condition, env)
        scopes = env.order.scopes[node]
        what = "the condition of an if is no boolean scalar"
        self.context.require_equal(what, _BOOL, type_of(condition))
        if isinstance(condition, ndarray):
            chosen = scopes[0] if condition.item() else scopes[1]
            return self.scope(chosen, Env(env))
        branches = [lambda s=s: self.scope(s, Env(env)) for s in scopes]
        return self.choose(condition, *branches)

    def _branch(self, evaluate: Callable[[], Any]) -> Any:
        """Evaluate a branch: in place, or as a function of the IR where blocks nest deep."""
        trace = self.context.trace
        if _block_depth(trace) <= _MAX_BLOCKS:
            return evaluate()
        inside = FunctionTrace(trace)
        with self.context.within(inside):
            value = self.functions.fit(evaluate(), None, {}, "a branch")
            body = inside.finish(value)
        result = type_of(value)
        assert result is not None
        name = self.context.root.global_names.unique("branch")
        params = tuple(v.atom for v in inside.captured.values() if isinstance(v.atom, Var))
        self.context.root.functions[name] = Function(params, body, result)
        types = tuple(v.type for v in inside.captured.values())
        callee = GlobalVar(name, FuncType(types, result))
        return trace.emit(Call(callee, tuple(inside.captured)), result)

    def choose(self, condition: Value, then: Any, otherwise: Any) -> Any:
        """Return the value of an `If`; ``then`` and ``otherwise`` evaluate its branches."""
        trace, place = self.context.trace, self.context.place
        blocks, values = [], []
        for evaluate in (then, otherwise):
            block = BlockTrace(trace)
            with self.context.within(block):
                values.append(self._branch(evaluate))
            blocks.append(block)
        self.context.place = place
        if values[0] is values[1] and isinstance(values[0], KnownFunction):
            return values[0]
        expected = self._common(*values)
        # One of two functions may be generic: the other says for which types.
        functions = all(isinstance(v, KnownFunction) for v in values)
        for i in (1, 0) if functions and self.functions.states_types(values[1]) else (0, 1):
            with self.context.within(blocks[i]):
                values[i] = self.functions.coerce(values[i], expected)
            expected = type_of(values[i]) if functions else expected
        types = [type_of(v) for v in values]
        type_ = join_types(*types)
        if type_ is None:
            raise self.context.error(
                "the branches have different types", expected=types[0], found=types[1]
            )
        bodies = [b.finish(v) for b, v in zip(blocks, values, strict=True)]
        return trace.emit(If(trace.atom(condition), *bodies), type_)

    def _common(self, a: Any, b: Any) -> Type | None:
        """Return the type that two values have in common, as far as either has one."""
        found, other = type_of(a), type_of(b)
        if found is not None and other is not None:
            return join_types(found, other)
        if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
            return tuple_type([self._common(x, y) for x, y in zip(a, b, strict=True)])
        return found if found is not None else other


def _block_depth(trace: Trace) -> int:
    depth = 0
    while isinstance(trace, BlockTrace) and not isinstance(trace, FunctionTrace):
        depth += 1
        trace = trace.outer
    return depth


def _lift(trace: Trace, value: Any) -> Any:
    """Return an operator's argument with its symbols as they are known in this trace."""
    if isinstance(value, tuple):
        return tuple(_lift(trace, v) for v in value)
    return trace.lift(value) if isinstance(value, Value) else value
