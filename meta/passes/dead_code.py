"""Dead code elimination."""

from __future__ import annotations

from dataclasses import replace

from meta.ir import Binding, Block, Expr, Function, If, Module, Var, bindings, operands
from meta.ir.visit import inner_blocks
from meta.passes.call_graph import reached_from_main
from meta.passes.calls import has_effect


def dead_code(module: Module) -> Module:
    """Remove bindings whose variable is not used and whose value has no effect, and functions that
    main does not call.

    Calls that write an argument stay, and so do calls of functions, which may. In a module without
    main every function stays.

    >>> from meta.ir import parse
    >>> print(dead_code(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = exp(%x)
    ...   %z: float32[2] = relu(%x)
    ...   return %z
    ... }''')))
    func @main(%x: float32[2]) -> float32[2] {
      %z: float32[2] = relu(%x)
      return %z
    }
    """
    functions = {n: replace(f, body=_block(f.body, set())) for n, f in module.functions.items()}
    return reached_from_main(module.with_functions(functions))


def _block(block: Block, used: set[Expr]) -> Block:
    """Return the live part; adds what it uses to ``used``."""
    used.update(operands(block.result))
    kept: list[Binding] = []
    for binding in reversed(block.bindings):
        value = binding.value
        nested = (b for i in inner_blocks(value) for b in bindings(i) if isinstance(value, If))
        if binding.var not in used and not any(map(has_effect, (binding, *nested))):
            continue
        if isinstance(value, If):
            value = If(
                value.condition, _block(value.then_block, used), _block(value.else_block, used)
            )
        elif isinstance(value, Function):
            value = replace(value, body=_block(value.body, used))
        used.update(a for a in operands(value) if isinstance(a, Var))
        kept.append(
            binding if value is binding.value else Binding(binding.var, value, binding.span)
        )
    return Block(tuple(reversed(kept)), block.result)
