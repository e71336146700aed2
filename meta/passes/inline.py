"""Inlining: calls of known functions are replaced by what these compute."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from meta.ir import (
    DERIVATIVE_ATTRS,
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Module,
    OpNode,
    Tuple,
    Var,
    bindings,
    type_of,
    with_fresh_vars,
    with_operands,
)
from meta.ir.literals import MAX_NESTING
from meta.ir.visit import inner_blocks, used_atoms
from meta.passes.call_graph import callees_first, recursive
from meta.passes.rewrite import with_blocks, with_value

# A function that is an argument becomes known where the call that it is given to is inlined. Where
# such calls lead to one another, this many are followed.
_MAX_CHAIN = 8


def inline(module: Module, *, max_bindings: int = 16, to_differentiate: bool = False) -> Module:
    """Inline calls of closures and global functions that are used once or have at most
    ``max_bindings`` bindings; and variables that are bound to variables, constants and functions.

    Recursive functions, main, and functions with attributes (fused ones) stay calls; so does a call
    whose arguments have not exactly the types of the parameters. A checkpointed function, or one
    with a derivative of its own, is inlined whatever its size, but ``to_differentiate`` not at all.
    A function that is not called any more is left to `dead_code`.

    >>> from meta.ir import parse
    >>> from meta.passes import dead_code
    >>> print(dead_code(meta.passes.inline(parse('''
    ... func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
    ...   %f: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    ...     %b: float32[2] = multiply(%a, %y)
    ...     return %b
    ...   }
    ...   %u: float32[2] = %f(%x)
    ...   %v: float32[2] = @twice(%u)
    ...   return %v
    ... }
    ...
    ... func @twice(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = add(%x, %x)
    ...   return %y
    ... }'''))))
    func @main(%x: float32[2], %y: float32[2]) -> float32[2] {
      %b: float32[2] = multiply(%x, %y)
      %y_1: float32[2] = add(%b, %b)
      return %y_1
    }
    """
    atoms = (a for function in module.functions.values() for a in used_atoms(function))
    count = Counter(a.name for a in atoms if isinstance(a, GlobalVar))
    stay = {"main", *recursive(module)}
    done: dict[str, Function] = {}
    callees: dict[str, Function] = {}
    for name in callees_first(module):
        function = _Inliner(module.functions[name], callees, max_bindings).function()
        done[name] = function
        small = count[name] == 1 or _size(function) <= max_bindings
        if not DERIVATIVE_ATTRS.isdisjoint(function.attrs):
            small = not to_differentiate
        if name not in stay and small:
            callees[name] = function
    return module.with_functions({name: done[name] for name in module.functions})


class _Inliner:
    def __init__(self, root: Function, callees: dict[str, Function], max_bindings: int) -> None:
        self.root, self.callees, self.max_bindings = root, callees, max_bindings
        self.count = Counter(a for a in used_atoms(root) if isinstance(a, Var))
        # Closures that may be inlined, and what else a variable stands for.
        self.closures: dict[Expr, Function] = {}
        self.mapping: dict[Expr, Expr] = {}

    def function(self) -> Function:
        return replace(self.root, body=self.block(self.root.body, 0))

    def block(self, block: Block, depth: int) -> Block:
        kept: list[Binding] = []
        for binding in block.bindings:
            self.binding(binding, kept, depth, 0)
        return Block(tuple(kept), with_operands(block.result, self.mapping))

    def binding(self, binding: Binding, kept: list[Binding], depth: int, chain: int) -> None:
        """Add what becomes of a binding in a block ``depth`` deep, after ``chain`` calls."""
        value = with_operands(binding.value, self.mapping)
        if isinstance(value, Var | Constant | GlobalVar):
            self.mapping[binding.var] = value
            return
        value = with_blocks(value, lambda inner: self.block(inner, depth + 1))
        if isinstance(value, Function):
            if self.count[binding.var] == 1 or _size(value) <= self.max_bindings:
                self.closures[binding.var] = value
        elif isinstance(value, Call) and chain < _MAX_CHAIN:
            callee = self.callee(value, depth)
            if callee is not None:
                self.mapping.update(zip(callee.params, value.args, strict=True))
                for inner in callee.body.bindings:
                    self.binding(inner, kept, depth, chain + 1)
                value = with_operands(callee.body.result, self.mapping)
                if not isinstance(value, Tuple):  # tuples do not nest deeper than they were written
                    self.mapping[binding.var] = value
                    return
        kept.append(with_value(binding, value))

    def callee(self, call: Call, depth: int) -> Function | None:
        """Return a copy of the function that a call is to be replaced by, if it is."""
        if isinstance(call.callee, GlobalVar):
            function = self.callees.get(call.callee.name)
        else:
            function = self.closures.get(call.callee)
        if function is None or set(function.attrs) - DERIVATIVE_ATTRS:
            return None
        if depth + _nesting(function) > MAX_NESTING:
            return None
        if len(function.params) != len(call.args):
            return None
        fits = all(map(_is_substitutable, function.params, call.args))
        return with_fresh_vars(function) if fits else None


def _is_substitutable(param: Var, argument: object) -> bool:
    """Whether an argument may stand where the parameter stands.

    A symbolic dimension of the function must be the same one outside. A call that names an operator
    gives it all its arguments; that of a parameter need not.
    """
    if not isinstance(argument, Expr) or isinstance(argument, OpNode):
        return False
    found = type_of(argument)
    return param.type is None or found is None or found == param.type


def _size(function: Function) -> int:
    return sum(1 for _ in bindings(function))


def _nesting(root: Function | Block) -> int:
    """Return how deep the blocks in a body are nested."""
    body = root.body if isinstance(root, Function) else root
    inner = (b for binding in body.bindings for b in inner_blocks(binding.value))
    return max((1 + _nesting(b) for b in inner), default=0)
