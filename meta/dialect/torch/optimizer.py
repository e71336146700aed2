"""Steps of optimizers on ATen, from their formulas: by operators on lists of tensors, in place.
Half precision is computed in float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.op.core import Op
from meta.op.core.formula import Expr, evaluate
from meta.op.core.numbers import divide, power
from meta.op.core.update import FORMULAS, NEUTRAL, SINGLES, ListCall

# A value is a list of tensors, a list of 0-d tensors (one for each parameter), or a number: a float
# or a 0-d tensor.
Value = Any


def number(value):
    """Return a number, or the only element of a tensor, as what does not change a dtype."""
    return value.reshape(()) if isinstance(value, torch.Tensor) else value


def _binary(foreach: Callable, plain: Callable, commutes: bool = False) -> Callable[..., Value]:
    """Return an operation on values: of lists by one operator of ATen, if it has one."""

    def apply(a: Value, b: Value) -> Value:
        if commutes and not isinstance(a, list):
            a, b = b, a
        if isinstance(a, list) and (foreach is not torch._foreach_sub or isinstance(b, list)):
            return list(foreach(a, b))
        return _each(plain, a, b)

    return apply


def _each(function: Callable, *values: Value) -> Value:
    """Apply a function to the members of lists, beside numbers; to numbers if there is no list."""
    count = next((len(v) for v in values if isinstance(v, list)), None)
    if count is None:
        return function(*values)
    return [function(*(v[i] if isinstance(v, list) else v for v in values)) for i in range(count)]


def _where(condition: Value, a: Value, b: Value) -> Value:
    if not isinstance(condition, bool):
        return _each(_select, condition, a, b)
    chosen, other = (a, b) if condition else (b, a)
    if isinstance(other, list) and not isinstance(chosen, list):
        return [torch.full_like(t, chosen) for t in other]
    return chosen


def _select(condition: torch.Tensor, a: Value, b: Value) -> torch.Tensor:
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        a = torch.full_like(condition, a, dtype=torch.float64)
    return torch.where(condition, a, b)


def _plain(function: Callable, of_floats: Callable) -> Callable:
    """Return an operation on tensors and floats, where floats alone have a zero and a pole."""

    def apply(a: Value, b: Value) -> Value:
        floats = not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor)
        return of_floats(a, b) if floats else function(a, b)

    return apply


OPERATIONS = {
    "+": _binary(torch._foreach_add, operator.add, commutes=True),
    "-": _binary(torch._foreach_sub, operator.sub),
    "*": _binary(torch._foreach_mul, operator.mul, commutes=True),
    "/": _binary(torch._foreach_div, _plain(operator.truediv, divide)),
    "**": _plain(operator.pow, power),
    ">": lambda a, b: _each(operator.gt, a, b),
    "==": lambda a, b: _each(operator.eq, a, b),
    "&": lambda a, b: _each(operator.and_, a, b),
    "sqrt": lambda x: list(torch._foreach_sqrt(x)),
    "where": _where,
    "clamp": lambda x, bound: list(
        torch._foreach_clamp_max(torch._foreach_clamp_min(x, -bound), bound)
    ),
}


def update(base: Op, given: dict[str, Any]) -> None:
    """Make a step, given the arguments by name."""
    call = ListCall.of(base, _without_neutral(given))
    like = call.lists["x" if call.formula.step else "y"][0].dtype
    wide = torch.float64 if like == torch.float64 else torch.float32
    known: dict[Expr, Value] = {}

    def value(node: Expr) -> Value:
        return evaluate(node, leaf, OPERATIONS, known)

    def leaf(node: Expr) -> Value:
        first = node.parts[0]
        if node.kind == "element":
            return [t.to(wide) for t in call.lists[first]]
        if node.kind == "number":
            return _number(call.numbers[first])
        if node.kind == "derived":
            return evaluate(node.parts[1], in_double, OPERATIONS, {})
        return _total(first, value) if node.kind == "total" else first

    def in_double(node: Expr) -> Value:
        found = leaf(node)
        return found.double() if isinstance(found, torch.Tensor) else float(found)

    new = {name: value(x) for name, x in call.trace().stores.items()}
    for name, values in new.items():
        for old, x in zip(call.lists[name], values, strict=True):
            skip = call.skip
            old.copy_(x if skip is None else torch.where(skip.reshape(()), old, x.to(old)))


def _without_neutral(given: dict[str, Any]) -> dict[str, Any]:
    """Leave out the numbers that are seen to change nothing, and so what is done with them."""
    return {
        n: v
        for n, v in given.items()
        if n not in NEUTRAL or isinstance(v, torch.Tensor) or v != NEUTRAL[n]
    }


def _number(value: Any) -> Value:
    """Return a number, or one for each parameter."""
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return list(value.unbind())
    return number(value)


def _total(summand: Expr, value: Callable[[Expr], Value]) -> list[torch.Tensor]:
    """Return the sums over each tensor; those of squares without a tensor for these."""
    double = torch.float64
    if summand.kind == "*" and summand.parts[0] is summand.parts[1]:
        norms = [(torch.linalg.vector_norm(t, dtype=double), t) for t in value(summand.parts[0])]
        return [n.square().to(t.dtype) for n, t in norms]
    return [t.sum(dtype=double).to(t.dtype) for t in value(summand)]


def _kernel(base: Op) -> Callable[..., None]:
    """Return the kernel of a step, with the operator's parameters."""

    def kernel(*values, **given):
        update(base, dict(zip(base.schema.names, values, strict=False)) | given)

    kernel.__signature__ = base.schema.signature
    return kernel


# By measurement: docs/performance.md. ATen's fused step reads and writes everything once, and takes
# the elements in the order of memory, whatever the strides. On CUDA its 1 - beta2 is of a float32,
# wrong in the fifth digit.
@dialect.kernel(op.adamw, plevel={"cpu": LIBRARY}, strided=False)
def adamw(x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay):
    numbers = {"beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "eps": eps}
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        count = torch.as_tensor(step, dtype=torch.float32, device=x.device).reshape(())
        rate = number(learning_rate)
        torch._fused_adamw_(
            [x], [dx], [m], [v], [], [count], lr=rate, amsgrad=False, maximize=False, **numbers
        )
        return
    tensors = {"x": x, "dx": dx, "m": m, "v": v, "step": step, "learning_rate": learning_rate}
    update(op.adamw, tensors | numbers)


for _base in (*FORMULAS, *SINGLES):
    if _base.has_effect and _base is not op.adamw:
        dialect.kernel(_base)(_kernel(_base))


@dialect.kernel(op.multi_tensor_norm)
def multi_tensor_norm(x):
    squares = [torch.linalg.vector_norm(t, dtype=torch.float64).square() for t in x]
    return torch.stack(squares).sum().sqrt().float()


@dialect.kernel(op.multi_tensor_cast)
def multi_tensor_cast(x, out):
    torch._foreach_copy_(list(out), list(x))
