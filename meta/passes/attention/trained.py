"""What depends on the parameters that gradients are wanted of."""

from __future__ import annotations

from collections.abc import Iterable

from meta.base.dtype import is_float
from meta.ir import Call, Expr, Function, GlobalVar, Module, TensorType, Var, bindings, operands
from meta.ir.visit import inner_blocks


def dependent(module: Module, params: Iterable[int]) -> set[Expr]:
    """Return the variables that may depend on parameters of main by more than choices.

    Calls of functions are followed; whoever gets a closure may call it with anything.
    """
    found: set[Expr] = {module.main.params[i] for i in params}
    results: dict[str, bool] = {}
    size = -1
    while size != len(found) + sum(results.values()):
        size = len(found) + sum(results.values())
        for name, function in module.functions.items():
            _follow(module, function, found, results)
            results[name] = any(a in found for a in operands(function.body.result))
    return found


def _follow(module: Module, function: Function, found: set[Expr], results: dict[str, bool]) -> None:
    for binding in bindings(function):
        value = binding.value
        reads = set(operands(value))
        for block in inner_blocks(value):
            reads |= {a for b in bindings(block) for a in operands(b.value)}
            reads |= set(operands(block.result))
        reached = bool(reads & found)
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            callee = module.functions[value.callee.name]
            for param, argument in zip(callee.params, value.args, strict=True):
                if isinstance(argument, Expr) and set(operands(argument)) & found:
                    found.add(param)
            reached = results.get(value.callee.name, False)
        elif isinstance(value, Call) and isinstance(value.callee, Var):
            reached = True
        elif isinstance(value, Function):
            found.update(value.params)
        if reached and _has_gradient(binding.var):
            found.add(binding.var)


def _has_gradient(var: Var) -> bool:
    return not isinstance(var.type, TensorType) or is_float(var.type.dtype)
