"""The traversals that passes need. None recurses over program length, only over nesting.

A pass of its own rewrites bindings in a loop; these helpers know where atoms and blocks sit.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping

from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Construct,
    Expr,
    Fail,
    Function,
    GetField,
    GlobalVar,
    If,
    IsVariant,
    Literal,
    MakeRef,
    ReadRef,
    Tuple,
    TupleGetItem,
    Var,
    WriteRef,
)


def operands(expr: Expr) -> Iterator[Expr]:
    """Yield the atoms that an expression uses directly, tuples taken apart, in order.

    The callee of a call comes first. Literals are left out; so is what nested blocks use.
    """
    match expr:
        case Call():
            yield from operands(expr.callee)
            for arg in expr.args:
                if isinstance(arg, Expr):
                    yield from operands(arg)
        case Tuple() | Construct():
            for field in expr.fields:
                yield from operands(field)
        case TupleGetItem() | IsVariant() | GetField() | MakeRef():
            yield from operands(expr.value)
        case If():
            yield from operands(expr.condition)
        case ReadRef():
            yield from operands(expr.ref)
        case WriteRef():
            yield from operands(expr.ref)
            yield from operands(expr.value)
        case Function() | Fail():
            pass
        case _:
            yield expr


def inner_blocks(expr: Expr) -> tuple[Block, ...]:
    """Return the blocks of an `If` or of a closure; nothing for other expressions."""
    match expr:
        case If():
            return (expr.then_block, expr.else_block)
        case Function():
            return (expr.body,)
        case _:
            return ()


def bindings(root: Function | Block) -> Iterator[Binding]:
    """Yield all bindings in the order of the text, those of nested blocks after their owner."""
    stack = [iter((root.body if isinstance(root, Function) else root).bindings)]
    while stack:
        binding = next(stack[-1], None)
        if binding is None:
            stack.pop()
            continue
        yield binding
        stack.extend(iter(b.bindings) for b in reversed(inner_blocks(binding.value)))


def binders(root: Function | Block) -> Iterator[Var]:
    """Yield all variables that are bound, parameters included, in the order of the text."""
    if isinstance(root, Function):
        yield from root.params
    for binding in bindings(root):
        yield binding.var
        if isinstance(binding.value, Function):
            yield from binding.value.params


def free_vars(root: Function | Block) -> list[Var]:
    """Return the variables that are used and not bound, each once, in order of first use."""
    bound = set(binders(root))
    free: dict[Var, None] = {}

    def use(atoms: Iterable[Expr]) -> None:
        free.update((a, None) for a in atoms if isinstance(a, Var) and a not in bound)

    for binding in bindings(root):
        use(operands(binding.value))
        for block in inner_blocks(binding.value):
            use(operands(block.result))
    use(operands((root.body if isinstance(root, Function) else root).result))
    return list(free)


def map_atoms(expr: Expr, replace: Callable[[Expr], Expr]) -> Expr:
    """Return the expression with ``replace`` applied to each of its `operands`.

    What does not change is shared with the original; nested blocks are left as they are.
    """

    def each(items: tuple[Expr | Literal, ...]) -> tuple[Expr | Literal, ...]:
        new = tuple(map_atoms(i, replace) if isinstance(i, Expr) else i for i in items)
        return new if any(a is not b for a, b in zip(new, items, strict=True)) else items

    match expr:
        case Call():
            callee, args = map_atoms(expr.callee, replace), each(expr.args)
            same = callee is expr.callee and args is expr.args
            return expr if same else Call(callee, args)
        case Tuple():
            fields = each(expr.fields)
            return expr if fields is expr.fields else Tuple(fields)
        case Construct():
            fields = each(expr.fields)
            if fields is expr.fields:
                return expr
            return Construct(expr.type, expr.constructor, fields)
        case TupleGetItem() | IsVariant() | GetField() | MakeRef():
            value = map_atoms(expr.value, replace)
            return expr if value is expr.value else dataclasses.replace(expr, value=value)
        case ReadRef():
            ref = map_atoms(expr.ref, replace)
            return expr if ref is expr.ref else ReadRef(ref)
        case WriteRef():
            ref, value = map_atoms(expr.ref, replace), map_atoms(expr.value, replace)
            same = ref is expr.ref and value is expr.value
            return expr if same else WriteRef(ref, value)
        case If():
            condition = map_atoms(expr.condition, replace)
            if condition is expr.condition:
                return expr
            return If(condition, expr.then_block, expr.else_block)
        case Function() | Fail():
            return expr
        case _:
            return replace(expr)


class _Rewriter:
    """Replaces variables; with ``renew``, binders too, by new variables."""

    def __init__(self, mapping: Mapping[Var, Expr], renew: bool) -> None:
        self.mapping = dict(mapping)
        self.renew = renew

    def leaf(self, atom: Expr) -> Expr:
        return self.mapping.get(atom, atom) if isinstance(atom, Var) else atom

    def binder(self, var: Var) -> Var:
        if not self.renew:
            return var
        new = self.mapping[var] = Var(var.name, var.type)
        return new

    def block(self, block: Block) -> Block:
        new = tuple(map(self.binding, block.bindings))
        result = map_atoms(block.result, self.leaf)
        same = all(a is b for a, b in zip(new, block.bindings, strict=True))
        return block if same and result is block.result else Block(new, result)

    def binding(self, binding: Binding) -> Binding:
        # The variable comes after its value: a value does not see its own variable.
        value = self.value(binding.value)
        var = self.binder(binding.var)
        same = value is binding.value and var is binding.var
        return binding if same else Binding(var, value, binding.span)

    def value(self, value: Expr) -> Expr:
        value = map_atoms(value, self.leaf)
        match value:
            case If():
                then, other = self.block(value.then_block), self.block(value.else_block)
                same = then is value.then_block and other is value.else_block
                return value if same else If(value.condition, then, other)
            case Function():
                return self.function(value)
            case _:
                return value

    def function(self, function: Function) -> Function:
        params = tuple(map(self.binder, function.params))
        body = self.block(function.body)
        if body is function.body and not self.renew:
            return function
        return Function(params, body, function.result_type, dict(function.attrs))


def substitute(block: Block, mapping: Mapping[Var, Expr]) -> Block:
    """Return the block with every use of a variable replaced by the atom it maps to."""
    return _Rewriter(mapping, renew=False).block(block)


def with_fresh_vars(function: Function) -> Function:
    """Return a copy with new variables, so that it can stand beside the original (inlining)."""
    return _Rewriter({}, renew=True).function(function)


class _Everywhere(_Rewriter):
    def __init__(self, replace: Callable[[Expr], Expr]) -> None:
        super().__init__({}, renew=False)
        self.replace = replace

    def leaf(self, atom: Expr) -> Expr:
        return self.replace(atom)


def replace_atoms(function: Function, replace: Callable[[Expr], Expr]) -> Function:
    """Return the function with ``replace`` applied to every atom that is used, also in blocks."""
    return _Everywhere(replace).function(function)


def rename_globals(function: Function, names: Mapping[str, str]) -> Function:
    """Return the function with global functions called by their new names, also in its blocks."""

    def renamed(atom: Expr) -> Expr:
        if isinstance(atom, GlobalVar) and atom.name in names:
            return GlobalVar(names[atom.name], atom.type)
        return atom

    return replace_atoms(function, renamed)
