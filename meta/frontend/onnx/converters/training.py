"""Converters of the optimizers of the domain ai.onnx.preview.training.

Inputs are the rate, the number of the step, then all parameters, all gradients and all states;
results the new parameters and states in the same order.
"""

from __future__ import annotations

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx

DOMAIN = "ai.onnx.preview.training"


def _grouped(tensors, kinds):
    """Rows (parameter, gradient, states ...) of the inputs, which are grouped by kind."""
    count, rest = divmod(len(tensors), kinds)
    if rest:
        raise Unconvertible(f"{len(tensors)} tensors are no {kinds} of each parameter")
    return [tensors[i::count] for i in range(count)]


def _by_kind(rows):
    return tuple(value for kind in zip(*rows, strict=True) for value in kind)


def _regularized(x, gradient, coefficient):
    return op.add(op.multiply(x, coefficient), gradient)


@onnx(f"{DOMAIN}.Adagrad", op.sqrt, op.divide)
def adagrad(rate, step, *tensors, decay_factor, epsilon, norm_coefficient):
    rows = []
    for x, gradient, state in _grouped(tensors, 3):
        count = cast_to(step, x.dtype)
        now = op.divide(rate, op.add(op.multiply(count, decay_factor), 1.0))
        change = _regularized(x, gradient, norm_coefficient)
        state = op.add(state, op.square(change))
        scaled = op.divide(op.multiply(now, change), op.add(op.sqrt(state), epsilon))
        rows.append((op.subtract(x, scaled), state))
    return _by_kind(rows)


@onnx(f"{DOMAIN}.Adam", op.sqrt, op.divide, op.pow, op.where)
def adam(rate, step, *tensors, alpha, beta, epsilon, norm_coefficient, norm_coefficient_post):
    rows = []
    for x, gradient, first, second in _grouped(tensors, 4):
        change = _regularized(x, gradient, norm_coefficient)
        first = _mixed(first, change, alpha)
        second = _mixed(second, op.square(change), beta)
        count = cast_to(step, x.dtype)
        # The bias of the averages is corrected in all steps but the one of number 0.
        spread = op.sqrt(op.subtract(1.0, op.pow(beta, count)))
        bias = op.subtract(1.0, op.pow(alpha, count))
        started = op.greater(step, 0)
        bias = op.where(started, bias, op.ones_like(bias))
        now = op.where(started, op.multiply(rate, op.divide(spread, bias)), rate)
        scaled = op.divide(first, op.add(op.sqrt(second), epsilon))
        x = op.subtract(x, op.multiply(now, scaled))
        rows.append((op.multiply(x, 1.0 - norm_coefficient_post), first, second))
    return _by_kind(rows)


def _mixed(old, new, share):
    return op.add(op.multiply(old, share), op.multiply(new, 1.0 - share))


@onnx(f"{DOMAIN}.Momentum", op.multiply, op.add, op.where)
def momentum(rate, step, *tensors, alpha, beta, mode, norm_coefficient):
    if mode not in ("standard", "nesterov"):
        raise Unconvertible(f"mode={mode!r} is unknown", hint="standard or nesterov")
    rows = []
    for x, gradient, state in _grouped(tensors, 3):
        change = _regularized(x, gradient, norm_coefficient)
        started = op.greater(step, 0)
        first = op.where(started, op.multiply(change, beta), change)
        state = op.add(op.multiply(state, alpha), first)
        ahead = state if mode == "standard" else op.add(change, op.multiply(state, alpha))
        rows.append((op.subtract(x, op.multiply(rate, ahead)), state))
    return _by_kind(rows)


onnx.refuse(
    f"{DOMAIN}.Gradient",
    why="gradients are taken of the imported model itself",
)
