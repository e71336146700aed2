"""The loop that most passes share: rebuild every function binding by binding, replacing variables
on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from meta.ir import Binding, Block, Expr, Function, If, Module, Var, map_atoms

Rule = Callable[[Binding], Binding | Expr | None]


def rewrite(module: Module, rule: Rule) -> Module:
    """Return the module with ``rule`` applied to every binding, operands replaced by what earlier
    bindings became.

    The rule returns a binding to keep in its place, an atom that replaces the variable (the binding
    disappears), or None to drop a binding that nothing uses. Nested blocks are rewritten before the
    binding that holds them.
    """
    functions = {name: rewrite_function(f, rule) for name, f in module.functions.items()}
    return module.with_functions(functions)


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
    def leaf(atom: Expr) -> Expr:
        return mapping.get(atom, atom) if isinstance(atom, Var) else atom

    kept = []
    for binding in block.bindings:
        value = map_atoms(binding.value, leaf)
        if isinstance(value, If):
            value = If(
                value.condition,
                _block(value.then_block, rule, mapping, result_rule),
                _block(value.else_block, rule, mapping, result_rule),
            )
        elif isinstance(value, Function):
            value = replace(value, body=_block(value.body, rule, mapping, result_rule))
        if value is not binding.value:
            binding = Binding(binding.var, value, binding.span)
        result = rule(binding)
        if isinstance(result, Binding):
            if result.var is not binding.var:
                mapping[binding.var] = result.var
            kept.append(result)
        elif result is not None:
            mapping[binding.var] = result
    return Block(tuple(kept), result_rule(map_atoms(block.result, leaf)))
