"""The interpreter: runs a program binding by binding, each operator call eagerly.

Gradients are recorded as for any eager call, so `backward` works on what a traced model returns.

The calls and branches under way are frames on a list, not calls of Python, so a program recurses
as deep as META_MAX_DEPTH says. A call or a branch whose value is the value of its block takes the
place of the block's frame: a loop, which is such a recursion, runs in constant space.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from meta.base import config
from meta.base.dtype import has_gradient
from meta.base.errors import ArgumentError, IRError, MetaError
from meta.cost.flops import is_product
from meta.dialect.core.ir_calls import base_op
from meta.grad.core import run_checkpointed, run_with_rule
from meta.grad.core.custom_rule import transposed_gradients
from meta.ir import (
    CHECKPOINT,
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Module,
    OpNode,
    Primitive,
    Tuple,
    TupleGetItem,
    Var,
    free_vars,
)
from meta.ir.types import TensorType, TupleType
from meta.op.core import tree
from meta.op.core.op import by_schema
from meta.passes.autodiff import require_linear
from meta.passes.autodiff.custom_rule import custom_rule, missing_error
from meta.runtime import view_copies
from meta.runtime.allocate import storage_address
from meta.runtime.master_weights import master_pairs, synchronize_masters
from meta.runtime.ndarray import ndarray
from meta.runtime.no_gradient import ClosureConstant, is_recording
from meta.vm.compiler.calling_convention import Program
from meta.vm.eager.nan_checks import with_arguments_named


def interpret(program: Program, *args: Any, **kwargs: Any) -> Any:
    """Run a program on the user's arguments and return what the user's function returned.

    It may have what requires a gradient as a constant; to ask for the gradient is an error.
    IRError for a program that would make too many calls, ArgumentError for what is no program.

    >>> program = meta.model.trace(lambda x: x * 2.0).program(meta.ones(2))
    >>> meta.vm.interpret(program, meta.ones(2)).tolist()
    [2.0, 2.0]
    """
    if not isinstance(program, Program):
        raise ArgumentError(
            "there is no program to interpret",
            expected="what model.program(*args) returns",
            found=type(program).__name__,
            hint="meta.vm.compile(module) takes a module",
        )
    program.require_end()
    given = [*program.convention.flatten(*args, **kwargs), *program.arrays]

    def run() -> Any:
        return run_module(program.module, given, program.closed_over)

    names = [p.name for p in program.module.main.params]
    with synchronize_masters(master_pairs(program.arrays)):
        looks = config.get("META_DEBUG_NANS")
        result = with_arguments_named(names, given, run) if looks else run()
    return program.convention.unflatten(result)


def run_module(
    module: Module,
    args: Sequence[Any],
    closed_over: Mapping[Constant, ClosureConstant] | None = None,
) -> Any:
    """Run a module's main; returns an ndarray or a nested tuple of them. closed_over: of `Program`.

    Raises IRError if more than META_MAX_DEPTH calls and branches wait for one another.
    """
    with view_copies.no_marking():
        return _Machine(module, closed_over or {}).run(args)


class _Closure:
    """A function value: a function and the values of the variables that it captured."""

    __slots__ = ("env", "function")

    def __init__(self, function: Function, env: dict[Var, Any]) -> None:
        self.function, self.env = function, env


class _Frame:
    """A block under way; the blocks of an `If` share the variables of the block around them."""

    __slots__ = ("block", "env", "position")

    def __init__(self, block: Block, env: dict[Var, Any]) -> None:
        self.block, self.env, self.position = block, env, 0

    @property
    def binding(self) -> Binding:
        """The binding whose value is being computed."""
        return self.block.bindings[self.position]

    def bind(self, value: Any) -> None:
        """Give the current binding its value."""
        self.env[self.binding.var] = value
        self.position += 1

    def is_last(self) -> bool:
        """Whether the value of the current binding is that of the block."""
        return (
            self.position == len(self.block.bindings) - 1 and self.block.result is self.binding.var
        )


class _Machine:
    def __init__(self, module: Module, closed_over: Mapping[Constant, ClosureConstant]) -> None:
        self.module, self.closed_over = module, closed_over
        self.stack: list[_Frame] = []
        self.max_depth: int = config.get("META_MAX_DEPTH")
        self.captured: dict[Function, list[Var]] = {}
        # Where the arguments are, and so what is made.
        self.device = "cpu"
        # The buffers of the constants met.
        self.constants: set[int] = set()

    def run(self, args: Sequence[Any]) -> Any:
        return self.apply(_Closure(self.module.main, {}), args)

    def apply(self, closure: _Closure, args: Sequence[Any]) -> Any:
        self.device = next((str(a.device) for a in args if isinstance(a, ndarray)), "cpu")
        self.call(closure, args)
        while True:
            frame = self.stack[-1]
            try:
                if frame.position < len(frame.block.bindings):
                    self.step(frame)
                    continue
                value = self.atom(frame.block.result, frame.env)
            except MetaError as error:
                error.span = self.span() or error.span
                raise
            self.stack.pop()
            if not self.stack:
                return self.without_constants(value)
            self.stack[-1].bind(value)

    def step(self, frame: _Frame) -> None:
        """Bind the value of the current binding, or push the frame that computes it."""
        value, env = frame.binding.value, frame.env
        if isinstance(value, Call):
            callee = self.atom(value.callee, env)
            args = [self.atom(a, env) if isinstance(a, Expr) else a for a in value.args]
            if isinstance(callee, _Closure) and CHECKPOINT in callee.function.attrs:
                frame.bind(self.checkpointed(callee, args))
            elif isinstance(value.callee, GlobalVar) and custom_rule(
                self.module, value.callee.name
            ):
                frame.bind(self.ruled(value.callee.name, value, args))
            elif isinstance(callee, _Closure):
                self.replace_last(frame)
                self.call(callee, args)
            else:
                frame.bind(_call_operator(callee, args, frame.binding))
        elif isinstance(value, TupleGetItem):
            frame.bind(self.atom(value.value, env)[value.index])
        elif isinstance(value, If):
            chosen = value.then_block if self.atom(value.condition, env) else value.else_block
            self.replace_last(frame)
            self.push(_Frame(chosen, env))
        elif isinstance(value, Function):
            frame.bind(self.closure(value, env))
        elif isinstance(value, Primitive):
            rule = value.rule
            result = rule.run(*value.details, *[self.atom(a, env) for a in value.operands])
            if rule.predicate:
                result = ndarray(torch.tensor(result, device=self.device))
            frame.bind(result)
        else:
            frame.bind(self.atom(value, env))

    def replace_last(self, frame: _Frame) -> None:
        """Drop a frame that would do nothing but hand on the value that is to be computed."""
        if frame.is_last():
            self.stack.pop()

    def call(self, closure: _Closure, args: Sequence[Any]) -> None:
        params = closure.function.params
        env = {**closure.env, **dict(zip(params, args, strict=True))}
        self.push(_Frame(closure.function.body, env))

    def checkpointed(self, closure: _Closure, args: Sequence[Any]) -> Any:
        """Call a function of which the tape keeps nothing."""
        held = [a for a in tree.flatten(args)[0] if isinstance(a, ndarray)]
        keeps = is_product if closure.function.attrs[CHECKPOINT] == "products" else None
        return run_checkpointed(
            lambda: _Machine(self.module, self.closed_over).apply(closure, args), held, keeps
        )

    def ruled(self, name: str, call: Call, args: Sequence[Any]) -> Any:
        """Call a function with a derivative of its own."""
        rule = custom_rule(self.module, name)
        assert rule is not None
        given = replace(call, args=tuple(args))
        own, closed = rule.own_args(given), rule.closed_args(given)

        def apply(function: Function, *args: Any) -> Any:
            return _Machine(self.module, self.closed_over).apply(_Closure(function, {}), args)

        def run(keeps: bool) -> tuple[Any, Any]:
            if not keeps or rule.fwd is None:
                kept = own if rule.bwd is None else rule.kept_args(given)
                return apply(rule.function, *args), kept if keeps else ()
            found = apply(rule.fwd, *args)
            ys = found[: rule.results]
            whole = isinstance(rule.function.result_type, TupleType)
            return (ys if whole else ys[0]), found[rule.results :]

        def pull(kept: Any, dys: list[Any]) -> list[Any]:
            if rule.missing is not None:
                raise missing_error(rule, self.span())
            moving = [dy for dy in dys if dy is not None]
            if (jvp := rule.jvp) is not None:
                return transposed_gradients(
                    lambda dxs: apply(jvp, *args, *dxs)[rule.results :], own, moving
                )
            held = kept if rule.fwd is None else (*kept, *closed)
            assert rule.bwd is not None
            found = iter(apply(rule.bwd, *moving, *held))
            return [next(found) if has_gradient(x.dtype) else None for x in own]

        def check(_: Any, dys: list[Any]) -> None:
            moving = sum(dy is not None for dy in dys)
            if rule.bwd is not None:
                require_linear(name, self.module, rule.bwd, moving)

        return run_with_rule(name, own, run, pull, check)

    def push(self, frame: _Frame) -> None:
        if len(self.stack) >= self.max_depth:
            raise IRError(
                f"the program recurses more than {self.max_depth} frames deep",
                hint="does the recursion end? META_MAX_DEPTH is the limit; a call whose result is "
                "the function's own result takes no frame",
            )
        self.stack.append(frame)

    def closure(self, function: Function, env: dict[Var, Any]) -> _Closure:
        captured = self.captured.get(function)
        if captured is None:
            captured = self.captured[function] = free_vars(function)
        return _Closure(function, {v: env[v] for v in captured})

    def atom(self, atom: Expr, env: dict[Var, Any]) -> Any:
        if isinstance(atom, Var):
            return env[atom]
        if isinstance(atom, Constant):
            self.constants.add(storage_address(atom.data))
            array = ndarray(atom.data)
            if atom in self.closed_over:
                array.tracked, array.node = True, self.closed_over[atom]
            return array
        if isinstance(atom, Tuple):
            return tuple(self.atom(f, env) for f in atom.fields)
        if isinstance(atom, GlobalVar):
            return _Closure(self.module.functions[atom.name], {})
        if isinstance(atom, OpNode):
            return atom
        raise IRError("this is no atom", found=type(atom).__name__)

    def without_constants(self, value: Any) -> Any:
        """Return a result with what is in a constant's memory copied, for the user to write to."""
        if isinstance(value, tuple):
            return tuple(map(self.without_constants, value))
        if isinstance(value, ndarray) and storage_address(value.tensor) in self.constants:
            copied = ndarray(value.tensor.clone())
            if is_recording():
                copied.tracked, copied.node = value.tracked, value.node
            return copied
        return value

    def span(self) -> Any:
        """Return the user's line of the innermost binding under way that has one."""
        waiting = (f for f in reversed(self.stack) if f.position < len(f.block.bindings))
        return next((f.binding.span for f in waiting if f.binding.span is not None), None)


def _call_operator(op: Any, args: list[Any], binding: Binding) -> Any:
    """Return an operator's own results, without the arguments that it wrote."""
    result = by_schema(op)(*args)
    base = base_op(op)
    if base is None or not base.has_effect:
        return result
    type_ = binding.var.type
    if isinstance(type_, TensorType):
        return result[0]
    return result[: len(type_.fields)]  # type: ignore[union-attr]
