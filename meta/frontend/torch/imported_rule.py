"""The converter of `RULE`: a call of a `torch.autograd.Function` keeps its backward."""

from __future__ import annotations

from typing import Any

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.base.errors import MetaError
from meta.frontend.aten.registry import AtenError, aten
from meta.frontend.core import active_trace
from meta.frontend.torch.autograd_function import Backward
from meta.frontend.torch.model import from_torch
from meta.ir import BWD, Block, Call, Function, GlobalVar, Var
from meta.model.loop import pack, packed_type, unpack
from meta.model.traced_rule import RuleScope
from meta.op.core.tracing import Trace, Value


@aten("meta.autograd_function", op.zeros, op.astype)
def _convert(xs: Any, ys: Any, kept: Any, *, number: int) -> Any:
    trace = active_trace()
    xs, ys, kept = ([trace.lift(v) for v in values] for values in (xs, ys, kept))
    backward = Backward(number)
    name = backward.called.function.__name__
    attrs: dict[str, Any]
    try:
        attrs = {BWD: _rule(trace, backward, name, xs, [*ys, *kept])}
    except MetaError as error:  # inference does without
        attrs, kept = {BWD: f"its backward is not imported: {error}"}, []
    given = [*xs, *ys, *kept]
    params = [Var(f"x{i}", v.type) for i, v in enumerate(given)]
    result, type_ = pack(params[len(xs) :][: len(ys)]), packed_type([y.type for y in ys])
    function = Function(tuple(params), Block((), result), type_, attrs)
    tied = trace.global_names.unique(name)
    trace.functions[tied] = function
    call = Call(GlobalVar(tied, function.type), tuple(v.atom for v in given))
    return tuple(unpack(trace.emit(call, type_)))


def _rule(trace: Trace, backward: Backward, name: str, xs: Any, given: Any) -> GlobalVar:
    """Add the function that goes back, of gradients like results and of what was saved."""
    scope = RuleScope(trace, [v.type for v in given])
    models, key = backward.called.models, tuple(v.type for v in given)
    if key not in models:
        models[key] = from_torch(backward, [_example(v, trace) for v in scope.given])
    found = zip(xs, scope.run(models[key], *scope.given), strict=True)
    scope.returns(scope.run(lambda: [_gradient(x, g, trace) for x, g in found]))
    made, rule = scope.function(()), trace.global_names.unique(f"{name}_bwd")
    trace.functions[rule] = made
    return GlobalVar(rule, made.type)


def _example(value: Value, trace: Trace) -> torch.Tensor:
    shape = value.type.shape
    if not all(isinstance(n, int) for n in shape):
        raise AtenError("it is exported for shapes that are known", hint="leave out dynamic_shapes")
    return torch.zeros(shape, dtype=TO_TORCH[value.type.dtype], device=str(trace.device))


def _gradient(x: Any, found: Any, trace: Trace) -> Any:
    """Return the gradient of an argument, in its dtype."""
    if found is None:
        return op.zeros(x.type.shape, x.type.dtype, str(trace.device))
    if found.shape != x.type.shape:
        raise AtenError(
            "a gradient has another shape than the argument",
            expected=x.type.shape,
            found=found.shape,
        )
    return found if found.dtype == x.type.dtype else op.astype(found, x.type.dtype)
