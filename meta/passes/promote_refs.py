"""Promotion of references to values: what a reference holds becomes a variable where nobody but
the code around can reach the reference.

This is the promotion of memory to registers of compilers with a static single assignment form
(R. Cytron et al., "Efficiently computing static single assignment form", TOPLAS 1991); since
control flow nests, what an `If` yields stands in the place of a phi function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from meta.ir import (
    Binding,
    Block,
    Effect,
    Expr,
    Function,
    If,
    Module,
    Primitive,
    RefType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    operands,
    type_of,
    with_operands,
)
from meta.ir.visit import inner_blocks, nested_bindings
from meta.passes.rewrite import with_value


def promote_refs(module: Module) -> Module:
    """Replace references that are made, read and written in one function by values.

    Such a reference is in no tuple, data value, reference or result, is no argument of a call, and
    no closure captures it; all that it holds has exactly the type that it was made for. An `If`
    that writes to one that is read later yields what it then holds, too. A module without
    references is returned as it is.

    >>> from meta.ir import parse
    >>> print(meta.passes.promote_refs(parse('''
    ... func @main(%x: float32[2], %p: bool[]) -> float32[2] {
    ...   %r: ref(float32[2]) = make_ref(%x)
    ...   %u: () = if %p {
    ...     %a: float32[2] = read_ref(%r)
    ...     %b: float32[2] = exp(%a)
    ...     %w: () = write_ref(%r, %b)
    ...     yield %w
    ...   } else {
    ...     yield (,)
    ...   }
    ...   %y: float32[2] = read_ref(%r)
    ...   return %y
    ... }''')))
    func @main(%x: float32[2], %p: bool[]) -> float32[2] {
      %0: ((), float32[2]) = if %p {
        %b: float32[2] = exp(%x)
        yield ((,), %b)
      } else {
        yield ((,), %x)
      }
      %u: () = %0.0
      %r: float32[2] = %0.1
      return %r
    }
    """
    functions = {name: _promote(function) for name, function in module.functions.items()}
    if all(functions[name] is function for name, function in module.functions.items()):
        return module
    return module.with_functions(functions)


def _promote(function: Function) -> Function:
    # A reference that was held by one that is gone may be the next.
    while found := _candidates(function):
        body = _Promoter(found).block(function.body, {}, frozenset())
        function = replace(function, body=body)
    return function


def _candidates(function: Function) -> dict[Var, Type]:
    """Return the references that can be promoted, in closures too, with the types they hold."""
    owned = list(_with_owners(function, function.body))
    found: dict[Expr, Type] = {}
    owners: dict[Expr, Function] = {}
    for owner, binding in owned:
        if binding.value.effect is Effect.NEW and isinstance(binding.var.type, RefType):
            found[binding.var], owners[binding.var] = binding.var.type.value, owner
    kept: set[Expr] = set(operands(function.body.result))

    def require(ref: Expr, owner: Function, held: Expr | None = None) -> None:
        """Keep a reference of another function, or one that holds values of another type."""
        if owners.get(ref) is not owner or (held is not None and type_of(held) != found[ref]):
            kept.add(ref)

    for owner, binding in owned if found else ():
        match binding.value:
            case Primitive("make_ref", (value,)):
                kept.update(operands(value))
                require(binding.var, owner, value)
            case Primitive("read_ref", (ref,)):
                require(ref, owner)
            case Primitive("write_ref", (ref, value)):
                kept.update(operands(value))
                require(ref, owner, value)
            case other:
                kept.update(operands(other))
        for block in inner_blocks(binding.value):
            kept.update(operands(block.result))
    return {ref: t for ref, t in found.items() if ref not in kept and isinstance(ref, Var)}


def _with_owners(owner: Function, block: Block) -> Iterator[tuple[Function, Binding]]:
    """Yield the bindings of a block, and of those in it, each with the function whose it is."""
    for binding in block.bindings:
        yield owner, binding
        inner = binding.value if isinstance(binding.value, Function) else owner
        for nested in inner_blocks(binding.value):
            yield from _with_owners(inner, nested)


class _Promoter:
    """Rewrites the blocks of one function; ``held`` is what each reference holds at a point."""

    def __init__(self, promoted: dict[Var, Type]) -> None:
        self.promoted = promoted
        self.mapping: dict[Expr, Expr] = {}

    def block(self, block: Block, held: dict[Var, Expr], read_later: frozenset[Expr]) -> Block:
        """Return the block with values; updates ``held``. ``read_later``: read behind the block."""
        later: dict[Binding, frozenset[Expr]] = {}
        reads: set[Expr] = set(read_later)
        for binding in reversed(block.bindings):
            if isinstance(binding.value, If):
                later[binding] = frozenset(reads)
            reads.update(_refs(binding, Effect.READ))
        kept = [
            new
            for binding in block.bindings
            for new in self.binding(binding, held, later.get(binding, frozenset()))
        ]
        return Block(tuple(kept), with_operands(block.result, self.mapping))

    def binding(
        self, binding: Binding, held: dict[Var, Expr], read_later: frozenset[Expr]
    ) -> list[Binding]:
        """Return what becomes of a binding."""
        var, value = binding.var, with_operands(binding.value, self.mapping)
        match value:
            case Primitive("make_ref", (first,)) if var in self.promoted:
                held[var] = first
                return []
            case Primitive("read_ref", (Var() as ref,)) if ref in self.promoted:
                self.mapping[var] = held[ref]
                return []
            case Primitive("write_ref", (Var() as ref, written)) if ref in self.promoted:
                held[ref] = written
                self.mapping[var] = Tuple(())
                return []
            case If():
                return self.conditional(with_value(binding, value), held, read_later)
            case Function():
                value = replace(value, body=self.block(value.body, {}, frozenset()))
        return [with_value(binding, value)]

    def conditional(
        self, binding: Binding, held: dict[Var, Expr], read_later: frozenset[Expr]
    ) -> list[Binding]:
        """Return an `If`, which yields what it wrote to references besides its value."""
        value, var, span = binding.value, binding.var, binding.span
        assert isinstance(value, If)
        refs = dict.fromkeys(_refs(binding, Effect.WRITE))
        written = [r for r in refs if isinstance(r, Var) and r in held and r in read_later]
        blocks = []
        for block in (value.then_block, value.else_block):
            inside = dict(held)
            new = self.block(block, inside, read_later)
            if written:
                new = Block(new.bindings, Tuple((new.result, *(inside[r] for r in written))))
            blocks.append(new)
        if not written:
            return [Binding(var, If(value.condition, *blocks), span)]
        own = var.type or type_of(value)
        types = (own, *(self.promoted[r] for r in written))
        whole = Var("", None if own is None else TupleType(types))  # type: ignore[arg-type]
        after = {ref: Var(ref.name, self.promoted[ref]) for ref in written}
        held.update(after)
        fields = [
            Binding(field, TupleGetItem(whole, i), span)
            for i, field in enumerate((var, *after.values()))
        ]
        return [Binding(whole, If(value.condition, *blocks), span), *fields]


def _refs(binding: Binding, effect: Effect) -> Iterator[Expr]:
    """Yield the references on which a binding, or one inside it, has this effect."""
    for one in (binding, *nested_bindings(binding.value)):
        if one.value.effect is effect:
            yield next(operands(one.value))
