"""What is done with matches: other code in their place, or a function of their own."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from meta.base.errors import ArgumentError, IRError
from meta.base.registry import nearest
from meta.ir import (
    Binding,
    Block,
    DefUse,
    Expr,
    Function,
    Literal,
    Module,
    Tuple,
    Var,
    compatible,
    operands,
    substitute,
    type_of,
)
from meta.op.core.tracing import Trace
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.outline import OutlinedFunctions
from meta.passes.pattern.build import Pattern, of_names
from meta.passes.pattern.matches import Match, captured_atoms, match
from meta.passes.rewrite import bound_to, with_inner_blocks

Replacement = Callable[..., Any]


def rewrite(
    module: Module, pattern: Pattern, replacement: Replacement, *, shared: bool = False
) -> Module:
    """Replace what a pattern matches by what a function computes.

    ``replacement`` is written in operator call syntax. Its parameters are captures by their names
    (and ``match``, the `Match`); it returns the new result, of the old one's type. One sweep: what
    the result matches anew is left for another call. A match stays where its replacement would
    share memory that is written in place, or returned, and the old value does not.

    ``shared`` also takes matches whose inner values are used outside; these stay.

    Raises IRError for a replacement of another type, ArgumentError for an unknown parameter and for
    a pattern of several results, which `partition` takes.

    >>> from meta import op
    >>> from meta.ir import parse
    >>> from meta.passes.pattern import pattern
    >>> @pattern
    ... def exp_of_log(x):
    ...     return op.exp(op.log(x) * 2.0)
    >>> print(rewrite(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %a: float32[2] = log(%x)
    ...   %b: float32[2] = multiply(2.0, %a)
    ...   %c: float32[2] = exp(%b)
    ...   return %c
    ... }'''), exp_of_log, lambda x: x * x))
    func @main(%x: float32[2]) -> float32[2] {
      %c: float32[2] = multiply(%x, %x)
      return %c
    }
    """
    if len(pattern.results) > 1:
        raise ArgumentError(
            f"the pattern {pattern.name} has {len(pattern.results)} results",
            expected="a pattern of one result",
            hint="rewrite each by a pattern of its own, or use partition",
        )
    known = (*pattern.captures, "match")
    for name in inspect.signature(replacement).parameters:
        if name not in known:
            raise ArgumentError(
                f"the pattern {pattern.name} captures no {name!r}",
                expected=", ".join(known),
                hint=nearest(name, known),
            )
    functions = {}
    for name, function in module.functions.items():
        found = match(pattern, function, module=module, shared=shared)
        if found:
            function = _MatchRewriter(
                function, AliasSets(function, AliasSummaries(module)), found, replacement
            ).function()
        functions[name] = function
    return module.with_functions(functions)


def traced(one: Match, replacement: Replacement) -> Block:
    """Return what a replacement computes of the captures of a match."""
    trace = Trace()
    trace.site = lambda: one.root.span
    values = {
        name: trace.symbols(value) if isinstance(value, Expr) else value
        for name, value in one.captures.items()
    }
    return trace.finish(trace.run(of_names(replacement), {**values, "match": one}))


class _MatchRewriter:
    """Rewrites one function."""

    def __init__(
        self, function: Function, buffers: AliasSets, found: list[Match], replacement: Replacement
    ) -> None:
        self.old, self.replacement = function, replacement
        self.buffers, self.uses = buffers, DefUse(function)
        self.by_root = {one.root: one for one in found}
        self.dropped: set[Binding] = set()
        self.mapping: dict[Var, Expr] = {}

    def function(self) -> Function:
        body = self.block(self.old.body)
        return replace(self.old, body=substitute(body, self.mapping) if self.mapping else body)

    def block(self, block: Block) -> Block:
        kept: list[Binding] = []
        for binding in block.bindings:
            one = self.by_root.get(binding)
            new = None if one is None else self.replaced(one)
            kept += [with_inner_blocks(binding, self.block)] if new is None else new
        return Block(tuple(b for b in kept if b not in self.dropped), block.result)

    def replaced(self, one: Match) -> list[Binding] | None:
        """Return the bindings that take a match's place, or None if it has to stay."""
        block = traced(one, self.replacement)
        var = one.root.var
        found = type_of(block.result)
        if not compatible(found, var.type):
            raise IRError(
                f"the replacement of {one.pattern.name} has another type",
                expected=var.type,
                found=found,
                span=one.root.span,
            )
        if not self.may_share(var, block):
            return None
        self.drop(one, block)
        own = {b.var for b in block.bindings}
        if isinstance(block.result, Var) and block.result in own:
            # The result keeps its old variable, and with it its name.
            return bound_to(var, block)
        if isinstance(block.result, Tuple):
            return [*block.bindings, Binding(var, block.result, one.root.span)]
        result = block.result
        # What a match captures may itself have been replaced, further up.
        self.mapping[var] = self.mapping.get(result, result) if isinstance(result, Var) else result
        return list(block.bindings)

    def may_share(self, var: Var, block: Block) -> bool:
        """Whether memory may be shared as it is after the replacement."""
        buffers = self.buffers
        inner = AliasSets(Function((), block))
        own = {b.var for b in block.bindings}
        shares = {buffers.of(inner.of(a)) for a in operands(block.result)} - own
        before = buffers.of(var)
        if before is not var and shares != {before}:
            return before not in buffers.written and before not in buffers.leaving
        return before is not var or all(buffers.replaceable(var, by) for by in shares)

    def drop(self, one: Match, block: Block) -> None:
        """Note which members nothing uses any more."""
        members = set(one.members)
        needed = set(operands(block.result))
        for binding in block.bindings:
            needed.update(operands(binding.value))
        for member in reversed(one.members[:-1]):
            users = self.uses.users(member.var)
            if member.var in needed or any(u not in members for u in users):
                needed.update(operands(member.value))
            else:
                self.dropped.add(member)


def partition(
    module: Module, pattern: Pattern, name: str = "", attrs: Mapping[str, Literal] | None = None
) -> Module:
    """Move what a pattern matches into global functions, one call of which takes its place.

    The functions are named ``name`` (by default as the pattern is), numbered where they differ, and
    have ``attrs``. Their parameters are the captures, in the order of the pattern and with their
    names, then whatever else the match uses. A function that has one of the attributes was made
    earlier and is left alone.

    >>> from meta import op
    >>> from meta.ir import parse
    >>> from meta.passes.pattern import pattern
    >>> @pattern
    ... def linear_relu(x, w, b):
    ...     return op.relu(op.matmul(x, w) + b)
    >>> print(partition(parse('''
    ... func @main(%p: float32[2, 3], %q: float32[3, 4], %r: float32[4]) -> float32[2, 4] {
    ...   %0: float32[2, 4] = matmul(%p, %q)
    ...   %1: float32[2, 4] = add(%r, %0)
    ...   %2: float32[2, 4] = relu(%1)
    ...   return %2
    ... }'''), linear_relu, attrs={"fused": "torch"}))
    func @main(%p: float32[2, 3], %q: float32[3, 4], %r: float32[4]) -> float32[2, 4] {
      %0: float32[2, 4] = @linear_relu(%p, %q, %r)
      return %0
    }
    <BLANKLINE>
    func @linear_relu(%x: float32[2, 3], %w: float32[3, 4], %b: float32[4]) -> float32[2, 4] \
attrs(fused="torch") {
      %0: float32[2, 4] = matmul(%x, %w)
      %1: float32[2, 4] = add(%b, %0)
      %2: float32[2, 4] = relu(%1)
      return %2
    }
    """
    attrs = dict(attrs or {})

    def find(_: str, function: Function) -> list[Match]:
        made_earlier = attrs.keys() & function.attrs.keys()
        return [] if made_earlier else match(pattern, function, module=module)

    return outlined(module, find, name or pattern.name, lambda one: attrs)


def outlined(
    module: Module,
    find: Callable[[str, Function], list[Match]],
    stem: str,
    attrs: Callable[[Match], Mapping[str, Literal]],
) -> Module:
    """Move the matches that are found in the functions into functions with these attributes."""
    made = OutlinedFunctions(module)
    functions = {}
    for name, function in module.functions.items():
        calls = {
            one: made.call(one.members, stem, attrs(one), captured_atoms(one), one.results)
            for one in find(name, function)
        }
        if calls:
            members = {m: one for one in calls for m in one.replaced}
            function = replace(function, body=_exchanged(function.body, calls, members))
        functions[name] = function
    return module.with_functions({**functions, **made.functions})


def _exchanged(
    block: Block, calls: Mapping[Match, Sequence[Binding]], replaced: Mapping[Binding, Match]
) -> Block:
    made = {replaced[b]: None for b in block.bindings if b in replaced}
    waiting = sorted(made, key=lambda one: one.place, reverse=True)
    kept: list[Binding] = []
    for position, binding in enumerate(block.bindings):
        while waiting and waiting[-1].place <= position:
            kept += calls[waiting.pop()]
        if binding in replaced:
            continue
        kept.append(with_inner_blocks(binding, lambda b: _exchanged(b, calls, replaced)))
    return Block(tuple(kept), block.result)
