"""The walks that passes share: rebuild every function binding by binding, replacing variables on
the way; or change the blocks inside a binding, for passes with a walk of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from meta.ir import Binding, Block, Expr, Function, Module, Var, substitute, with_operands
from meta.ir.visit import inner_blocks

Rule = Callable[[Binding], Binding | Expr | Iterable[Binding] | None]


def rewrite(module: Module, rule: Rule) -> Module:
    """Return the module with ``rule`` applied to every binding, operands replaced by what earlier
    bindings became.

    The rule returns a binding to keep in its place, several that take its place, an atom that
    replaces the variable (the binding disappears), or None to drop a binding that nothing uses.
    Nested blocks are rewritten before the binding that holds them.
    """
    return map_functions(module, lambda function: rewrite_function(function, rule))


def rewrite_function(
    function: Function,
    rule: Rule,
    mapping: Mapping[Var, Expr] | None = None,
    result: Callable[[Expr], Expr] = lambda atom: atom,
) -> Function:
    """Apply ``rule`` to one function, and ``result`` to the results of its blocks."""
    return replace(function, body=_block(function.body, rule, dict(mapping or {}), result))


def _block(
    block: Block, rule: Rule, mapping: dict[Var, Expr], result_rule: Callable[[Expr], Expr]
) -> Block:
    kept: list[Binding] = []
    for binding in block.bindings:
        value = with_operands(binding.value, mapping)
        value = with_blocks(value, lambda inner: _block(inner, rule, mapping, result_rule))
        result = rule(with_value(binding, value))
        if isinstance(result, Binding):
            if result.var is not binding.var:
                mapping[binding.var] = result.var
            kept.append(result)
        elif isinstance(result, Expr):
            mapping[binding.var] = result
        elif result is not None:
            kept += result
    return Block(tuple(kept), result_rule(with_operands(block.result, mapping)))


def with_blocks(value: Expr, change: Callable[[Block], Block]) -> Expr:
    """Return a value with its blocks changed; one without any as it is."""
    blocks = value.spec.blocks
    node: Any = value
    return replace(node, **{n: change(getattr(node, n)) for n in blocks}) if blocks else value


def with_value(binding: Binding, value: Expr) -> Binding:
    """Return a binding of the same variable to another value."""
    return binding if value is binding.value else Binding(binding.var, value, binding.span)


def with_inner_blocks(binding: Binding, change: Callable[[Block], Block]) -> Binding:
    """Return a binding with the blocks of its value changed."""
    return with_value(binding, with_blocks(binding.value, change))


def map_functions(module: Module, change: Callable[[Function], Function]) -> Module:
    """Return the module with every function changed."""
    return module.with_functions({name: change(f) for name, f in module.functions.items()})


def postorder_bindings(block: Block) -> Iterator[Binding]:
    """Yield bindings as `rewrite` visits them: those of nested blocks before their owner."""
    for binding in block.bindings:
        for inner in inner_blocks(binding.value):
            yield from postorder_bindings(inner)
        yield binding


def bound_to(var: Var, block: Block) -> list[Binding]:
    """Return the bindings of a block, its result, which is one of them, under another variable."""
    assert isinstance(block.result, Var)
    renamed = substitute(block, {block.result: var}).bindings
    return [Binding(var, b.value, b.span) if b.var is block.result else b for b in renamed]


def with_main(
    module: Module, bindings: Iterable[Binding], same: Mapping[Expr, Expr] = MappingProxyType({})
) -> Module:
    """Return the module with other bindings in the outermost block of main. same: what variables
    that are bound no longer are replaced by, known once all bindings are.
    """
    main = module.main
    body = Block(tuple(bindings), main.body.result)
    if same:
        body = substitute(body, same)
    return module.with_functions({**module.functions, "main": replace(main, body=body)})
