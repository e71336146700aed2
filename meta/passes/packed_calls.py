"""Products and convolutions by packed weights as calls of a program: what comes before and behind
them, and whether they pay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta import op
from meta.base.device import Device
from meta.base.source import Span
from meta.dialect.core import LIBRARY
from meta.dialect.core.dispatch import candidates
from meta.dialect.core.ir_calls import declared_call, new_call, tensor_of
from meta.dialect.core.preference import current
from meta.ir import Binding, Call, Expr, TensorType, Var
from meta.op.core import Op

PRODUCTS = {op.matmul: (1, 0), op.matmul_nt: (0, 1), op.dense: (0, 1)}
"""Products of rows and a matrix, and the axes that make rows of outputs of it."""
Step = tuple[Op, tuple[Any, ...]]
"""An operator, and what comes behind its first argument, the result of the step before."""


def typed(x: TensorType, steps: Sequence[Step]) -> TensorType:
    """Return the type of what steps make of x."""
    for operator, args in steps:
        given = (tensor_of(a) if isinstance(a, Expr) else a for a in args)
        x = operator.infer((x, *given))
    return x


def bindings(x: Expr, steps: Sequence[Step], var: Var, span: Span | None) -> list[Binding]:
    """Return the bindings of what steps make of x, of which the last binds ``var``."""
    made = []
    for step in steps[:-1]:
        operator, args = step
        result = Var(var.name, typed(tensor_of(x), [step]))
        made.append(Binding(result, new_call(operator, x, *args), span))
        x = result
    operator, args = steps[-1]
    return [*made, Binding(var, new_call(operator, x, *args), span)]


def cut_off(more: int, outputs: int, ndim: int) -> tuple[Step, ...]:
    """Return the step that cuts off ``more`` outputs that fill a block, if there are any."""
    end = (*(2**63 - 1 for _ in range(ndim - 1)), outputs)
    return ((op.strided_slice, ((0,) * ndim, end)),) if more else ()


def pays(x: TensorType, step: Step, device: Device) -> bool:
    """Whether the best kernel of a packed call of x is better than a library's."""
    operator, args = step
    value, preference = Call(operator, (Var("x", x), *args)), current()
    call = declared_call(operator, value, device)
    able = (
        one
        for one in candidates(call.op, preference, device, call=call)
        if preference.refusal(one.dialect.name) is None
    )
    first = next(able, None)
    return first is not None and first.plevel(device, call) > LIBRARY
