"""The derivative of one call that goes forward, from its gradient rule.

A rule is a linear function of ``dy``. The gradient of that function by ``dy`` is its transpose, and
takes tangents of the arguments to those of the result (J. Townsend, "A new trick for calculating
Jacobian vector products", 2017).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from meta.base.errors import MetaError
from meta.dialect.core.ir_calls import leaf_types
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    Function,
    Module,
    Tuple,
    Var,
    free_vars,
    type_of,
)
from meta.passes.autodiff.activity import (
    Activity,
    carries_gradient,
    known_type,
    target_leaves,
    target_of,
)
from meta.passes.autodiff.vjp import Differentiator
from meta.passes.dead_code import dead_code


@dataclass(frozen=True)
class TransposedRule:
    """``module``: its main takes the tangents of the floating point leaves of the ``moving``
    arguments, an array like each leaf of the result that ``seeds`` numbers, the arguments as
    `flat_args` has them, and the result; it returns the tangents of the leaves of the result that
    ``outputs`` numbers.
    """

    module: Module
    seeds: tuple[int, ...]
    outputs: tuple[int, ...]


def flat_args(args: Sequence[Any]) -> Iterator[Expr]:
    """Yield the atoms among the arguments of a call, those in tuples one by one."""
    for arg in args:
        if isinstance(arg, Tuple):
            yield from flat_args(arg.fields)
        elif isinstance(arg, Expr):
            yield arg


def transposed_rule(called: str, binding: Binding, moving: Sequence[int]) -> TransposedRule | None:
    """Return the derivative of a call by the arguments numbered ``moving``; None where it is zero.

    Raises GradientError where the rule, or a rule of what it computes, is missing.
    """
    call, result = binding.value, known_type(binding.var)
    assert isinstance(call, Call)
    params, wrt = list[Var](), list[int]()

    def parameter(arg: Any, moves: bool) -> Any:
        if isinstance(arg, Tuple):
            return Tuple(tuple(parameter(f, moves) for f in arg.fields))
        if not isinstance(arg, Expr):
            return arg
        type_ = known_type(arg)
        if moves and any(map(carries_gradient, leaf_types(type_))):
            wrt.append(len(params))
        params.append(Var(f"a{len(params)}", type_))
        return params[-1]

    args = tuple(parameter(arg, i in moving) for i, arg in enumerate(call.args))
    y = Var("y", result)
    body = Block((Binding(y, Call(call.callee, args), binding.span),), y)
    try:
        first = _gradients(Function(tuple(params), body, result), [params[i] for i in wrt])
        assert first is not None  # the caller knows that the result depends on them
        backward = _without_call(first, len(params))
        count = len(backward.params) - len(params) - 1
        main = _gradients(backward, backward.params[:count])
    except MetaError as error:
        error.note(f"in the tangent of {called}, called at {binding.span}")
        raise
    if main is None:
        return None
    # (tangents..., dys..., args..., y) -> (gradients, tangents of y); the gradients are dead.
    assert isinstance(main.body.result, Tuple)
    tangents = main.body.result.fields[1]
    forward = Function(main.params, Block(main.body.bindings, tangents), type_of(tangents))
    main = dead_code(Module({"main": forward})).main
    used = free_vars(Function((), main.body, main.result_type))
    first_dy = len(main.params) - len(params) - 1 - count
    outputs = tuple(i for i, t in enumerate(leaf_types(result)) if carries_gradient(t))
    dropped = [k for k in range(count) if main.params[first_dy + k] not in used]
    left = tuple(p for i, p in enumerate(main.params) if i - first_dy not in dropped)
    main = Function(left, main.body, main.result_type, main.attrs)
    seeds = tuple(i for k, i in enumerate(outputs) if k not in dropped)
    return TransposedRule(Module({"main": main}), seeds, outputs)


def _gradients(function: Function, wrt: Sequence[Var]) -> Function | None:
    """Return a function without calls of others as `autodiff` does main; None if its result does
    not depend on these parameters.
    """
    module = Module({"main": function})
    targets = [target_of(p) for p in wrt]
    activity = Activity(module, [leaf for t in targets for leaf in target_leaves(t)])
    if not activity.of(function.body.result):
        return None
    return Differentiator(module, activity).inlined_main(targets)


def _without_call(main: Function, args: int) -> Function:
    """Return ``(dys..., args...) -> (y, gradients)`` as ``(dys..., args..., y) -> gradients``, the
    floating point leaves in one tuple, without the call that computes y.
    """
    assert isinstance(main.body.result, Tuple)
    y, gradients = main.body.result.fields
    assert isinstance(y, Var)
    left = tuple(b for b in main.body.bindings if b.var is not y)
    found = Tuple(tuple(flat_args((gradients,))))
    return Function((*main.params, y), Block(left, found), type_of(found))
