"""The interpreter: runs a program binding by binding, each operator call eagerly.

Gradients are recorded as for any eager call, so `backward` works on what a traced model returns.
"""

from __future__ import annotations

from typing import Any

from meta.base.errors import IRError, MetaError
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Module,
    Op,
    Tuple,
    TupleGetItem,
    Var,
)
from meta.ir.types import TensorType
from meta.passes.call_of import base_op
from meta.runtime.ndarray import ndarray
from meta.vm.program import Program


def interpret(program: Program, *args: Any, **kwargs: Any) -> Any:
    """Run a program on the user's arguments and return what the user's function returned."""
    inputs = program.flatten(*args, **kwargs)
    return program.unflatten(run_module(program.module, [*inputs, *program.arrays]))


def run_module(module: Module, args: list[Any]) -> Any:
    """Run a module's main; returns an ndarray or a nested tuple of them.

    Raises IRError for a recursion deeper than Python's own (some 200 calls).
    """
    try:
        result = _Frame(module, {}).apply(module.main, args)
    except RecursionError:
        raise IRError("the program recurses deeper than the interpreter can") from None
    return _without_constants(module.main.body.result, result)


def _without_constants(atom: Expr, value: Any) -> Any:
    """Return a result with the program's constants replaced by copies, for the user to write to."""
    if isinstance(atom, Tuple):
        return tuple(_without_constants(a, v) for a, v in zip(atom.fields, value, strict=True))
    return ndarray(value.torch().clone()) if isinstance(atom, Constant) else value


class _Closure:
    """A function value with the variables that were in scope."""

    def __init__(self, frame: _Frame, function: Function) -> None:
        self.frame, self.function = frame, function

    def __call__(self, *args: Any) -> Any:
        return self.frame.apply(self.function, list(args))


class _Frame:
    def __init__(self, module: Module, env: dict[Var, Any]) -> None:
        self.module, self.env = module, env

    def apply(self, function: Function, args: list[Any]) -> Any:
        env = {**self.env, **dict(zip(function.params, args, strict=True))}
        return _Frame(self.module, env).block(function.body)

    def block(self, block: Block) -> Any:
        for binding in block.bindings:
            try:
                self.env[binding.var] = self.value(binding.value, binding)
            except MetaError as error:
                error.span = binding.span or error.span
                raise
        return self.atom(block.result)

    def value(self, value: Expr, binding: Binding) -> Any:
        if isinstance(value, Call):
            callee = self.atom(value.callee)
            result = callee(*[self.atom(a) if isinstance(a, Expr) else a for a in value.args])
            op = base_op(value.callee)
            if op is not None and op.has_effect:
                return own_results(result, binding)
            return result
        if isinstance(value, TupleGetItem):
            return self.atom(value.value)[value.index]
        if isinstance(value, If):
            chosen = value.then_block if bool(self.atom(value.condition)) else value.else_block
            return _Frame(self.module, dict(self.env)).block(chosen)
        if isinstance(value, Function):
            return _Closure(self, value)
        return self.atom(value)

    def atom(self, atom: Expr) -> Any:
        if isinstance(atom, Var):
            return self.env[atom]
        if isinstance(atom, Constant):
            return ndarray(atom.data)
        if isinstance(atom, Tuple):
            return tuple(self.atom(f) for f in atom.fields)
        if isinstance(atom, GlobalVar):
            return _Closure(_Frame(self.module, {}), self.module.functions[atom.name])
        if isinstance(atom, Op):
            return atom
        raise IRError("this is no atom", found=type(atom).__name__)


def own_results(result: tuple[Any, ...], binding: Binding) -> Any:
    """Return an in-place operator's own results, without the written arguments that the caller gets
    as well.
    """
    type_ = binding.var.type
    if isinstance(type_, TensorType):
        return result[0]
    return result[: len(type_.fields)]  # type: ignore[union-attr]
