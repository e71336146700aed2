"""JSON records of programs, for tools: what each binding is, computes and uses.

It is a view for people and tools; `text` and `parse` are what keeps a program.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from meta.ir.expr import Binding, Block, Call, Function, GlobalVar, Module, Var
from meta.ir.literals import is_literal, literal_text
from meta.ir.node import Expr
from meta.ir.operators import slots_of
from meta.ir.printer import variable_names
from meta.ir.visit import inner_blocks, operands

Names = Mapping[Var, str]


def _text_names(_: str, function: Function) -> Names:
    return variable_names(function)


def module_record(
    module: Module, names_of: Callable[[str, Function], Names] = _text_names
) -> dict[str, Any]:
    """Return a module as values that JSON has: its functions, each with parameters, attributes and
    bindings. A binding has the operator or function that it calls, the variables that it uses, its
    literal arguments by name, the user's line, and the blocks in it.

    ``names_of`` returns the names of the variables of a function; by default those in `text`.
    """
    functions = module.functions.items()
    return {name: _function(function, names_of(name, function)) for name, function in functions}


def _function(function: Function, names: Names) -> dict[str, Any]:
    return {
        "params": [
            {"name": names[p], "type": None if p.type is None else str(p.type)}
            for p in function.params
        ],
        "result_type": None if function.result_type is None else str(function.result_type),
        "attrs": {name: _literal(value) for name, value in function.attrs.items()},
        **_block(function.body, names),
    }


def _block(block: Block, names: Names) -> dict[str, Any]:
    return {
        "bindings": [_binding(b, names) for b in block.bindings],
        "result": [names[a] for a in operands(block.result) if isinstance(a, Var)],
    }


def _binding(binding: Binding, names: Names) -> dict[str, Any]:
    var, value = binding.var, binding.value
    found: dict[str, Any] = {
        "name": names[var],
        "type": None if var.type is None else str(var.type),
        "kind": type(value).__name__,
        "uses": [names[a] for a in operands(value) if isinstance(a, Var)],
        "line": None if binding.span is None else str(binding.span),
    }
    if isinstance(value, Call):
        found["callee"] = _callee(value, names)
        found["arguments"] = _literals(value)
    blocks = [_block(block, names) for block in inner_blocks(value)]
    return {**found, "blocks": blocks} if blocks else found


def _callee(call: Call, names: Names) -> str:
    callee = call.callee
    if isinstance(callee, Var):
        return names[callee]
    if isinstance(callee, GlobalVar):
        return f"@{callee.name}"
    return str(getattr(callee, "name", type(callee).__name__))


def _literals(call: Call) -> dict[str, Any]:
    """Return the arguments of a call that are no values of the program, by name."""
    slots = slots_of(call.callee)
    names = [str(i) for i in range(len(call.args))] if slots is None else [s.name for s in slots]
    pairs = zip(names, call.args, strict=False)
    return {name: _literal(a) for name, a in pairs if not isinstance(a, Expr)}


def _literal(value: Any) -> Any:
    """Return a literal: as it is where JSON has it, else as program text."""
    if value is None or isinstance(value, bool | int | str):
        return value
    return literal_text(value) if is_literal(value) else str(value)
