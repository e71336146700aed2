"""Reverse-mode automatic differentiation of a program: calls, loops, conditionals, closures.

What main does in a straight line is swept backwards in place. A function that it calls, and each
block of an `If`, yields its result together with a *pullback*: a closure from the gradients of the
result to those of what it was computed from. A block of an `If` yields zeros for what only the
other block uses. A loop is a function that calls itself, and so are its gradients: what a step
needs later is what its closure captured. Closures of the program become functions first
(`lambda_lift`); those that are not known where they are called, data values (`defunctionalize`).
Such are the pullbacks of conditionals and loops, so that a gradient has a gradient. The gradient of
a data value is a data value, too (``data``).

A function with ``attrs(checkpoint=True)``, made by `meta.model.checkpoint`, is computed again in
the backward pass. Its companion ``f_backward(dys..., params...)`` computes it on arguments that
pass an ``optimization_barrier``: views that count as known only when the gradients are, so that no
pass merges the second computation with the first or moves it forward. The random keys of the block
are drawn outside of it (`random_key`) and are arguments. What it writes in place is copied before
the call, and the second call writes to the copy. Afterwards such functions are inlined like others.

A function with a derivative of its own says in its attributes which: see ``custom_rule``.

The files, in the order of use: ``activity`` says what depends on the wanted parameters, and has the
vocabulary for tuples; ``data`` says what gradients of data values are; ``vjp`` writes the
differentiated functions, ``sweep`` the backward computation of one block.
"""

from __future__ import annotations

from collections.abc import Sequence

from meta.base.errors import ArgumentError, GradientError, UnknownName
from meta.base.registry import nearest
from meta.base.source import Span
from meta.dialect.core.ir_calls import called_op, leaf_types
from meta.ir import BWD, Expr, Function, Module, TensorType, Var, operands, with_fresh_vars
from meta.ir.names import Names
from meta.ir.visit import rename_globals
from meta.passes.autodiff.activity import (
    Activity,
    Leaf,
    Target,
    known_type,
    leaves,
    target_leaves,
    target_of,
)
from meta.passes.autodiff.custom_rule import transposed, with_transposed
from meta.passes.autodiff.pushforward import Pushforward
from meta.passes.autodiff.vjp import Differentiator
from meta.passes.call_graph import callees, remove_unreachable
from meta.passes.closure_flow import calls_unknown
from meta.passes.defunctionalize import defunctionalize
from meta.passes.lambda_lift import lambda_lift
from meta.passes.promote_refs import promote_refs


def autodiff(module: Module, *, wrt: Sequence[int | str], result: str = "inline") -> Module:
    """Make main return its result and its gradients.

    wrt: the parameters of main that gradients are wanted of, by index or by name. result:
    ``"inline"``: the new main takes ``(dy, *params)`` and returns ``(y, (gradients...))``;
    ``"closure"``: it takes ``params`` and returns ``(y, pullback)``, a closure from ``dy`` to
    ``(gradients...)``.

    There is one gradient per entry of ``wrt``, of the parameter's type; of a tuple, a tuple with
    the gradients of its floating point tensors, nested tuples flattened. If the result is a tuple
    there is one ``dy`` per floating point tensor in it. A parameter that does not influence the
    result gets zeros.

    A function ``f`` that a gradient flows through gets a companion ``f_vjp``, which returns the
    result and its pullback, as does each block of an `If`. First, references that one function
    keeps to itself become values (`promote_refs`), and closures become functions (`lambda_lift`) or
    data values (`defunctionalize`). What main no longer reaches is dropped.

    Raises GradientError for a parameter or a result without floating point numbers, a result that
    is not computed from ``wrt`` by differentiable operators, a closure that is given to main, and a
    gradient that would flow through a reference; IRError for a program without types.

    >>> from meta.ir import parse
    >>> print(meta.passes.autodiff(parse('''
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = relu(%x)
    ...   return %y
    ... }'''), wrt=[0]))
    func @main(%dy: float32[2], %x: float32[2]) -> (float32[2], (float32[2],)) {
      %y: float32[2] = relu(%x)
      %0: float32[2] = relu_dx(x=None, y=%y, dy=%dy)
      return (%y, (%0,))
    }
    >>> print(meta.passes.autodiff(parse('''
    ... func @f(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = tanh(%x)
    ...   return %y
    ... }
    ... func @main(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = @f(%x)
    ...   return %y
    ... }'''), wrt=["x"]))
    func @main(%dy: float32[2], %x: float32[2]) -> (float32[2], (float32[2],)) {
      %0: (float32[2], fn(float32[2]) -> (float32[2],)) = @f_vjp(%x)
      %y: float32[2] = %0.0
      %y_pullback: fn(float32[2]) -> (float32[2],) = %0.1
      %1: (float32[2],) = %y_pullback(%dy)
      %2: float32[2] = %1.0
      return (%y, (%2,))
    }
    <BLANKLINE>
    func @f_vjp(%x: float32[2]) -> (float32[2], fn(float32[2]) -> (float32[2],)) {
      %y: float32[2] = tanh(%x)
      %pullback: fn(float32[2]) -> (float32[2],) = fn(%dy: float32[2]) -> (float32[2],) {
        %0: float32[2] = tanh_dx(x=None, y=%y, dy=%dy)
        return (%0,)
      }
      return (%y, %pullback)
    }
    """
    if result not in ("inline", "closure"):
        raise ArgumentError(
            "unknown form of the result", expected="'inline' or 'closure'", found=repr(result)
        )
    module, wanted, activity = _prepared(module, wrt)
    _require_active_result(module.main, activity, wanted)
    module, rules = with_transposed(module, activity.ruled.values(), False, _differentiated)
    made = Differentiator(module, activity, rules)
    main = made.inlined_main(wanted) if result == "inline" else made.main_with_pullback(wanted)
    functions = {**module.functions, **made.functions(), "main": main}
    return remove_unreachable(module.with_functions(functions, made.types()))


def jvp(module: Module, *, wrt: Sequence[int | str]) -> Module:
    """Let main take tangents behind its parameters, and return ``(y, (tangents of y...))``.

    wrt: the parameters of main that move, by index or by name. There is one tangent for each of
    their floating point tensors, of its type, and one for each of the result, nested tuples
    flattened; zeros where it does not depend on ``wrt``. Functions, loops and conditionals have
    tangents beside their results. What it costs is in the order of the program, and memory at most
    twice the program's.

    Raises GradientError for a parameter without floating point numbers, an operator without a
    gradient of its gradient, a reference that would hold a tangent; IRError for a
    program without types.

    >>> from meta.ir import parse
    >>> print(meta.passes.jvp(parse('''
    ... func @main(%x: float32[2], %w: float32[2]) -> float32[2] {
    ...   %y: float32[2] = multiply(%x, %w)
    ...   return %y
    ... }'''), wrt=["x"]))
    func @main(%x: float32[2], %w: float32[2], %dx: float32[2]) -> (float32[2], (float32[2],)) {
      %y: float32[2] = multiply(%x, %w)
      %0: float32[2] = multiply(%dx, %w)
      return (%y, (%0,))
    }
    """
    module, wanted, activity = _prepared(module, wrt)
    module, rules = with_transposed(module, activity.ruled.values(), True, _differentiated)
    made = Pushforward(module, activity, rules)
    main = made.main(wanted)
    functions = {**module.functions, **made.functions(), "main": main}
    return remove_unreachable(module.with_functions(functions, made.types()))


def _first_order(module: Module) -> Module:
    """Return a module whose calls are of functions by their names, none of which is main."""
    module = lambda_lift(promote_refs(module))
    if calls_unknown(module):
        module = defunctionalize(module)
    return _without_calls_of_main(module)


def _parameter(main: Function, key: int | str) -> Var:
    """Return the parameter of an index or a name."""
    if isinstance(key, str):
        found = [p for p in main.params if p.name == key]
        if not found:
            names = [p.name for p in main.params]
            raise UnknownName(f"main has no parameter {key!r}", hint=nearest(key, names))
        return found[0]
    return main.params[key]


def depends(module: Module, wrt: Sequence[int | str]) -> bool:
    """Whether the result of main depends differentiably on parameters of it."""
    module, _, activity = _prepared(module, wrt)
    return bool(activity.of(module.main.body.result))


def _prepared(module: Module, wrt: Sequence[int | str]) -> tuple[Module, list[Target], Activity]:
    """Return a module without closures, what derivatives are wanted of, and what depends on it."""
    module = _first_order(module)
    wanted = [target_of(_parameter(module.main, p)) for p in wrt]
    return module, wanted, Activity(module, [leaf for w in wanted for leaf in target_leaves(w)])


def require_forward_mode(module: Module, wrt: Sequence[int | str]) -> None:
    """Raise GradientError if a function that has a rule to go backwards has none to go forwards."""
    if any(BWD in function.attrs for function in module.functions.values()):
        module, _, activity = _prepared(module, wrt)
        with_transposed(module, activity.ruled.values(), True, _differentiated)


def require_linear(name: str, module: Module, function: Function, count: int) -> None:
    """Raise GradientError unless a function is linear in its first parameters, so many. name: of
    what it is the rule of; module: of what it calls.
    """
    transposed(module, name, function, range(count), slice(None), _differentiated)


def _differentiated(module: Module, wrt: Sequence[int]) -> Module | None:
    return autodiff(module, wrt=wrt) if depends(module, wrt) else None


def _require_active_result(main: Function, activity: Activity, wanted: list[Target]) -> None:
    result = main.body.result
    for leaf, type_ in zip(leaves(result), leaf_types(known_type(result)), strict=True):
        if not isinstance(type_, TensorType):
            raise GradientError(
                "the result must be a tensor or a (nested) tuple of tensors",
                found=type_,
                span=_line(main, leaf),
            )
    if not activity.of(result):
        raise GradientError(
            "the result does not depend on anything that requires a gradient",
            found=_gradient_barriers(main, {leaf[0] for w in wanted for leaf in target_leaves(w)}),
            hint="check requires_grad of the parameters, and what leads to the result",
            span=next((s for s in (_line(main, leaf) for leaf in leaves(result)) if s), None),
        )


def _gradient_barriers(main: Function, reached: set[Expr]) -> str | None:
    """Return the operators of main's block that end what leads from parameters to the result."""
    found = []
    for binding in main.body.bindings:
        if not reached.isdisjoint(operands(binding.value)):
            reached.add(binding.var)
            op = called_op(binding.value)
            rule = None if op is None else op.aspects.gradient
            if op is not None and rule is not None and rule.function is None:
                found.append(f"{op.name} has no gradient ({rule.reason}), at {binding.span}")
    return "; ".join(found) or None


def _line(main: Function, leaf: Leaf | None) -> Span | None:
    """Return the user's line that binds a leaf's variable."""
    return next((b.span for b in main.body.bindings if leaf is not None and b.var is leaf[0]), None)


def _without_calls_of_main(module: Module) -> Module:
    """Give main a twin that is called in its place: main's parameters and result will change."""
    if not any("main" in callees(f) for f in module.functions.values()):
        return module
    twin = Names(module.functions).unique("main")
    functions = {n: rename_globals(f, {"main": twin}) for n, f in module.functions.items()}
    return module.with_functions({**functions, twin: with_fresh_vars(functions["main"])})
