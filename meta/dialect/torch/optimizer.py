"""Steps of optimizers on ATen, from their formulas: by operators on lists of tensors, in place.
Half precision is computed in float32.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import with_signature
from meta.op.core import Op
from meta.op.core.formula import Expr, Traced, evaluate
from meta.op.core.numbers import divide, pow
from meta.op.core.update import FORMULAS, NEUTRAL_VALUES, SINGLE_STEPS, ListCall

# A value is a tensor, or of several parameters a list of them; a number is a float, a 0-d tensor,
# or, if each parameter has its own, a list of 0-d tensors.
Value = Any
Operation = Callable[..., Value]


def number(value: Any) -> Any:
    """Return a number, or the only element of a tensor, as what does not change a dtype."""
    return value.reshape(()) if isinstance(value, torch.Tensor) else value


def _of_floats(plain: Operation, of_floats: Operation) -> Operation:
    """Return an operation that floats alone take with their poles and zeros."""

    def apply(a: Value, b: Value) -> Value:
        floats = not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor)
        return of_floats(a, b) if floats else plain(a, b)

    return apply


def _where(condition: Value, a: Value, b: Value) -> Value:
    if isinstance(condition, bool):
        chosen, other = (a, b) if condition else (b, a)
        plain = isinstance(other, torch.Tensor) and not isinstance(chosen, torch.Tensor)
        return torch.full_like(other, chosen) if plain else chosen
    if not isinstance(a, torch.Tensor) and not isinstance(b, torch.Tensor):
        a = torch.full_like(condition, a, dtype=torch.float64)
    return torch.where(condition, a, b)


PLAIN: dict[str, Operation] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _of_floats(operator.truediv, divide),
    "**": _of_floats(operator.pow, pow),
    ">": operator.gt,
    "==": operator.eq,
    "&": operator.and_,
    "sqrt": torch.sqrt,
    "where": _where,
    "clamp": lambda x, bound: x.clamp(-bound, bound),
    "total": lambda x: x.sum(dtype=torch.float64).to(x.dtype),
    "squares": lambda x: torch.linalg.vector_norm(x).square(),
}
"""Operations on tensors and numbers; "squares" is a total of squares, without a tensor of them."""


def _apply_to_members(function: Operation, *values: Value) -> Value:
    """Apply a function to the members of lists, beside numbers."""
    count = next((len(v) for v in values if isinstance(v, list)), None)
    if count is None:
        return function(*values)
    return [function(*(v[i] if isinstance(v, list) else v for v in values)) for i in range(count)]


def _foreach(kind: str, foreach: Operation) -> Operation:
    """Return an operation on two lists, or a list and a number, by one operator of ATen."""

    def apply(a: Value, b: Value) -> Value:
        if kind in "+*" and not isinstance(a, list):
            a, b = b, a
        if isinstance(a, list) and (isinstance(b, list) or kind != "-"):
            return list(foreach(a, b))
        return _apply_to_members(PLAIN[kind], a, b)

    return apply


LISTS: dict[str, Operation] = {
    **{kind: partial(_apply_to_members, function) for kind, function in PLAIN.items()},
    "+": _foreach("+", torch._foreach_add),
    "-": _foreach("-", torch._foreach_sub),
    "*": _foreach("*", torch._foreach_mul),
    "/": _foreach("/", torch._foreach_div),
    "sqrt": lambda x: list(torch._foreach_sqrt(x)),
    "clamp": lambda x, bound: list(
        torch._foreach_clamp_max(torch._foreach_clamp_min(x, -bound), bound)
    ),
}
"""The same on lists."""


@lru_cache(256)
def _steps(traced: Traced) -> list[tuple[Expr, str, tuple[Expr, ...], tuple[Expr, ...]]]:
    """Return a formula as steps: a node, its operation, the operands, and what nobody needs after
    it, so that its memory is free for the next ones.
    """
    found: dict[Expr, tuple[str, tuple[Expr, ...]]] = {}

    def visit(node: Expr) -> None:
        kind, operands = node.kind, () if node.kind == "derived" else node.operands
        if kind == "total" and operands[0].kind == "*" and len(set(operands[0].parts)) == 1:
            kind, operands = "squares", operands[0].operands[:1]
        for x in operands:
            if x not in found:
                visit(x)
        found[node] = kind, operands

    for x in traced.stores.values():
        visit(x)
    kept = set(traced.stores.values())
    steps = []
    for node, (kind, operands) in reversed(found.items()):
        done = tuple(set(operands) - kept)
        kept.update(done)
        steps.append((node, kind, operands, done))
    return steps[::-1]


def update(base: Op, given: dict[str, Any]) -> None:
    """Make a step, given the arguments by name."""
    call = ListCall.of(base, _without_neutral(given))
    first = call.lists["x" if call.formula.step else "y"]
    wide = torch.float64 if first[0].dtype == torch.float64 else torch.float32
    one = len(first) == 1
    operations = PLAIN if one else LISTS

    def leaf(node: Expr) -> Value:
        name = node.parts[0]
        if node.kind == "element":
            tensors = call.lists[name]
            return tensors[0].to(wide) if one else [t.to(wide) for t in tensors]
        if node.kind == "number":
            return _number(call.numbers[name])
        return evaluate(node.parts[1], in_double, PLAIN, {}) if node.kind == "derived" else name

    def in_double(node: Expr) -> Value:
        found = leaf(node)
        return found.double() if isinstance(found, torch.Tensor) else float(found)

    traced = call.trace()
    values: dict[Expr, Value] = {}
    for node, kind, operands, done in _steps(traced):
        operation = operations.get(kind)
        values[node] = operation(*map(values.get, operands)) if operation else leaf(node)
        for x in done:
            del values[x]
    skip = call.skip
    for name, node in traced.stores.items():
        new = [values[node]] if one else values[node]
        for old, x in zip(call.lists[name], new, strict=True):
            old.copy_(x if skip is None else torch.where(skip.reshape(()), old, x.to(old)))


def _without_neutral(given: dict[str, Any]) -> dict[str, Any]:
    """Leave out the numbers that are seen to change nothing, and so what is done with them."""
    return {
        n: v
        for n, v in given.items()
        if n not in NEUTRAL_VALUES or isinstance(v, torch.Tensor) or v != NEUTRAL_VALUES[n]
    }


def _number(value: Any) -> Value:
    """Return a number, or one for each parameter."""
    if isinstance(value, torch.Tensor) and value.numel() > 1:
        return list(value.unbind())
    return number(value)


def _kernel(base: Op) -> Callable[..., None]:
    """Return the kernel of a step, with the operator's parameters."""

    def kernel(*values: Any, **given: Any) -> None:
        update(base, dict(zip(base.schema.names, values, strict=False)) | given)

    return with_signature(kernel, base.schema.signature)


# By measurement: docs/measurements.md. ATen's fused step reads and writes everything once, and
# takes the elements in the order of memory, whatever the strides. On CUDA its 1 - beta2 is of a
# float32, wrong in the fifth digit.
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


for _base in (*FORMULAS, *SINGLE_STEPS):
    if _base.has_effect and _base is not op.adamw:
        dialect.kernel(_base)(_kernel(_base))


@dialect.kernel(op.multi_tensor_norm)
def multi_tensor_norm(x):
    squares = [torch.linalg.vector_norm(t, dtype=torch.float64).square() for t in x]
    return torch.stack(squares).sum().sqrt().float()


@dialect.kernel(op.multi_tensor_cast)
def multi_tensor_cast(x, out):
    torch._foreach_copy_(list(out), list(x))


@dialect.kernel(op.multi_tensor_increment)
def multi_tensor_increment(x, by):
    torch._foreach_add_(list(x), by)
