"""Lambda lifting: closures become functions of the module that take what they captured.

After T. Johnsson, "Lambda lifting: transforming programs to recursive equations", 1985; a function
that is given a closure is copied for that closure.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from meta.ir import (
    Binding,
    Block,
    Call,
    Function,
    GlobalVar,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    bindings,
    free_vars,
    type_of,
    with_fresh_vars,
)
from meta.ir.names import Names
from meta.passes.call_graph import used_as_values
from meta.passes.dead_code import dead_code
from meta.passes.rewrite import with_blocks
from meta.passes.symbolic_extents import captured_vars


def lambda_lift(module: Module) -> Module:
    """Turn closures that are known where they are called into functions of the module.

    A closure is known through other names, fields of tuples, captures and arguments of functions of
    the module; one that an `If` chooses, or that a function returns, is not, and stays. Then dead
    code is removed, and functions that main does not reach. A module without closures is returned
    as it is.

    >>> from meta.ir import parse
    >>> print(meta.passes.lambda_lift(parse('''
    ... func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
    ...   %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    ...     %b: float32[2] = multiply(%a, %w)
    ...     return %b
    ...   }
    ...   %y: float32[2] = %f(%x)
    ...   return %y
    ... }''')))
    func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
      %y: float32[2] = @f(%x, %w)
      return %y
    }
    <BLANKLINE>
    func @f(%a: float32[2], %w: float32[2]) -> float32[2] {
      %b: float32[2] = multiply(%a, %w)
      return %b
    }
    """
    values = (b.value for f in module.functions.values() for b in bindings(f))
    if not any(isinstance(v, Function) for v in values) and not used_as_values(module):
        return module
    lift = _LambdaLifter(module)
    for name, function in module.functions.items():
        lift.functions[name] = replace(function, body=lift.body(function))
    return dead_code(module.with_functions(lift.functions))


@dataclass(frozen=True, slots=True)
class _KnownClosure:
    """A function value that is known: a function of the module, whose last arguments are given."""

    name: str
    captures: tuple[Var, ...] = ()


class _LambdaLifter:
    """Rewrites blocks from the top down, so that a closure is known before it is called."""

    def __init__(self, module: Module) -> None:
        self.functions = dict(module.functions)
        self._names = Names(module.functions)
        self._known: dict[Var, _KnownClosure] = {}
        self._tuples: dict[Var, Tuple] = {}
        # By function and what is known of its arguments: the copy made for them.
        self._copies: dict[tuple[str, tuple[tuple[int, str], ...]], str] = {}
        self._copied: list[str] = []
        # The variables that may be used where the walk is, outermost first.
        self._scope: list[Var] = []

    def body(self, function: Function) -> Block:
        """Rewrite the body of a function of the module."""
        around, self._scope = self._scope, list(function.params)
        body = self._block(function.body)
        self._scope = around
        return body

    def _block(self, block: Block) -> Block:
        """Rewrite a block, the blocks inside it included."""
        outside = len(self._scope)
        new = tuple(map(self._binding, block.bindings))
        del self._scope[outside:]
        return Block(new, block.result)

    def _binding(self, binding: Binding) -> Binding:
        new = self._rewritten(binding)
        self._scope.append(binding.var)
        return new

    def _rewritten(self, binding: Binding) -> Binding:
        var, value = binding.var, binding.value
        if isinstance(value, Function):
            self._scope += value.params
        value = with_blocks(value, self._block)
        match value:
            case Function():
                del self._scope[len(self._scope) - len(value.params) :]
                self._known[var] = self._lifted(var.name or "closure", value)
            case Call():
                value = self._call(value)
            case Tuple():
                self._tuples[var] = value
            case _:
                known = self._resolved(value)
                if known is not None:
                    self._known[var] = known
        return Binding(var, value, binding.span)

    def _lifted(self, name: str, closure: Function) -> _KnownClosure:
        """Make a function of a closure whose body is rewritten."""
        captured = captured_vars(closure, self._scope)
        result_type = closure.result_type or type_of(closure.body.result)
        params = (*closure.params, *captured)
        known = _KnownClosure(self._names.unique(name), captured)
        self.functions[known.name] = with_fresh_vars(
            Function(params, closure.body, result_type, dict(closure.attrs))
        )
        return known

    def _resolved(self, value: object) -> _KnownClosure | None:
        match value:
            case GlobalVar():
                return _KnownClosure(value.name)
            case Var():
                return self._known.get(value)
            case TupleGetItem():
                owner = value.value
                fields = self._tuples.get(owner) if isinstance(owner, Var) else owner
                if isinstance(fields, Tuple):
                    return self._resolved(fields.fields[value.index])
                return None
            case _:
                return None

    def _call(self, call: Call) -> Call:
        callee = self._resolved(call.callee)
        if callee is None:
            return call
        args = (*call.args, *callee.captures)
        given = {i: k for i, a in enumerate(args) if (k := self._resolved(a)) is not None}
        copy = self._copy(callee.name, given) if given else callee.name
        if copy is None:
            copy = callee.name
        elif given:
            args = tuple(a for i, a in enumerate(args) if i not in given)
            args += tuple(v for k in given.values() for v in k.captures)
        return Call(GlobalVar(copy, self.functions[copy].type), args)

    def _copy(self, name: str, given: dict[int, _KnownClosure]) -> str | None:
        """Return the copy of a function for known arguments, which takes their captures instead.

        None if the function is already being copied for others: a recursion that makes new closures
        at each step would never end.
        """
        key = (name, tuple((i, k.name) for i, k in given.items()))
        if key in self._copies:
            return self._copies[key]
        if name in self._copied:
            return None
        copy = self._copies[key] = self._names.unique(name)
        source = with_fresh_vars(self.functions[name])
        params = [p for i, p in enumerate(source.params) if i not in given]
        for i, known in given.items():
            captures = tuple(Var(v.name, v.type) for v in known.captures)
            self._known[source.params[i]] = _KnownClosure(known.name, captures)
            params += captures
        # The signature is there before the body, which may call the copy.
        self.functions[copy] = replace(source, params=tuple(params))
        self._copied.append(name)
        body = self.body(self.functions[copy])
        self._copied.pop()
        free = set(free_vars(body))
        made = [self._closure(p, self._known[p]) for p in source.params if p in free - set(params)]
        body = Block((*made, *body.bindings), body.result)
        self.functions[copy] = replace(source, params=tuple(params), body=body)
        return copy

    def _closure(self, var: Var, known: _KnownClosure) -> Binding:
        """Bind a function that is known, for uses other than calls (handed on, chosen by an If)."""
        function = self.functions[known.name]
        own = function.params[: len(function.params) - len(known.captures)]
        params = tuple(Var(p.name, p.type) for p in own)
        result = Var("", function.result_type)
        call = Call(GlobalVar(known.name, function.type), (*params, *known.captures))
        body = Block((Binding(result, call),), result)
        return Binding(var, Function(params, body, function.result_type))
