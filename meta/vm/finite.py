"""META_CHECK_FINITE: finds the first operator that makes a NaN or an infinity.

An operator is told of if its result has a NaN and its arguments have none, or an infinity and its
arguments have neither: what is handed on, such as the infinities of a mask, is not of its making.
Eager calls, and so the interpreter, check every operator; a compiled program checks every kernel,
and looks for the operator inside of a fused one (`finite_program.py`). Checking waits for the
device at each step.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

import torch

from meta.base.errors import NonFiniteError
from meta.base.source import Span
from meta.op.core.call import CallValues, written_places

Kernel = Callable[..., Any]


def checked_call(run: Kernel, call: CallValues, allocates: bool) -> Kernel:
    """Return an eager call's kernel, checked. It takes what `OpEnv.run` takes."""
    written = written_places(call)
    constants = [a for a in call.args if isinstance(a, float)]
    fresh = 0 if allocates else len(call.outputs)

    def checked(*values: Any) -> Any:
        inputs = values[: len(values) - fresh]
        before = kinds_of((*inputs, *constants))
        result = run(*values)
        outs = _results(result) if allocates else values[len(inputs) :]
        require_finite(
            before, (*outs, *(values[i] for i in written)), call.op.name, str(call), None
        )
        return result

    return checked


def kinds_of(values: Iterable[Any]) -> tuple[bool, bool]:
    """Return whether there is a NaN, and whether there is an infinity, among values."""
    nan = infinite = False
    for value in values:
        if isinstance(value, torch.Tensor):
            if value.is_floating_point() or value.is_complex():
                own = _readable(value)
                nan = nan or bool(own.isnan().any())
                infinite = infinite or bool(own.isinf().any())
        elif isinstance(value, float):
            nan, infinite = nan or math.isnan(value), infinite or math.isinf(value)
    return nan, infinite


def require_finite(
    before: tuple[bool, bool], outs: Iterable[Any], op: str, call: str, span: Span | None
) -> None:
    """Raise NonFiniteError if one of ``outs`` is not finite and the arguments, of which `kinds_of`
    said ``before``, do not explain it. ``call``: the call with the types of its arguments.
    """
    had_nan, had_infinity = before
    for i, out in enumerate(outs):
        if not isinstance(out, torch.Tensor) or not out.is_floating_point():
            continue
        nan, infinite = kinds_of((out,))
        if not ((nan and not had_nan) or (infinite and not (had_nan or had_infinity))):
            continue
        wrong = _readable(out).isfinite().logical_not()
        place = tuple(wrong.nonzero()[0].tolist())
        raise NonFiniteError(
            "this operator made a value that is not finite",
            op=op,
            expected="finite results of finite arguments",
            found=f"{out[place].item()} at {list(place)} of result {i}, "
            f"{int(wrong.sum())} of {out.numel()} elements are not finite, in {call}",
            hint="look at the values that it was given: the argument of a logarithm or a root, a "
            "divisor, numbers too large for the dtype",
            span=span,
        )


def _readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that torch can examine: it cannot do so with 8-bit floats."""
    return tensor.float() if tensor.is_floating_point() and tensor.itemsize == 1 else tensor


def _results(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else () if result is None else (result,)
