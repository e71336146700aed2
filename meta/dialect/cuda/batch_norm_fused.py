"""Batch normalisation with what stands beside it in a network, in the same two launches.

Forward, a sum and relu are done where the result is written. Backward, relu's mask is applied where
its gradient is read: by itself, a bit per element goes from the first launch to the second; where
the masked gradient is used elsewhere too, as that of the sum's other part, or is made of two
gradients, the first launch writes it and the second reads it. In arrays of x's size that are read
or written, beside one generated kernel for what is not the normalisation:

==================================================  =====  =====
normalisation and                                   fused  apart
==================================================  =====  =====
relu                                                3      5
sum, relu                                           4      6
gradient of relu                                    6.1    8
gradient of relu, used elsewhere                    7      8
gradient of relu, of two gradients, used elsewhere  8      9
==================================================  =====  =====
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.batch_norm import backward, env, forward
from meta.ir.types import TensorType

ARGUMENTS = "x", "running_mean", "running_var", "w", "b", "momentum", "eps", "axis"
"""Of `batch_norm_train`."""


def _sum(x, running_mean, running_var, w, b, momentum, eps, axis, z):
    return op.add(op.batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis), z)


def _relu(x, running_mean, running_var, w, b, momentum, eps, axis, z):
    y = op.batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis)
    return op.relu(op.add(y, z) | y)


@dialect.pattern_op(_sum)
def batch_norm_add(
    x, running_mean, running_var, w, b, momentum, eps, axis, z, device: Device
) -> OpEnv:
    """Return the launches of y + z."""
    given = x, running_mean, running_var, w, b, momentum, eps, axis
    return _forward(dict(zip(ARGUMENTS, given, strict=True)), z, device)


@dialect.pattern_op(_relu)
def batch_norm_relu(
    x, running_mean, running_var, w, b, momentum, eps, axis, z, device: Device
) -> OpEnv:
    """Return the launches of relu(y), or of relu(y + z)."""
    given = x, running_mean, running_var, w, b, momentum, eps, axis
    return _forward(dict(zip(ARGUMENTS, given, strict=True)), z, device, "RELU")


def _forward(args: dict[str, Any], z: TensorType | None, device: Device, *flags: str) -> OpEnv:
    if z is not None:
        _require_like(args["x"], z=z)
        flags = *flags, "ADDS"
    kernels = forward(args, device, *flags)
    names = "x", "running_mean", "running_var", "w", "b", "z"
    return env(kernels, {**args, "z": z}, *names, results=("out",))


def _masked(dy: Any, z: Any, y: Any) -> Any:
    """The gradient of relu, which was of y or gave it, for dy or dy + z."""
    total = op.add(dy, z) | dy
    return op.relu_dx(None, y, total) | op.relu_dx(y, None, total)


def _gradients(dy, z, y, x, w, b, eps, axis):
    found = op.batch_norm_train_dxwb(_masked(dy, z, y), x, w, b, eps, axis)
    return found[0], found[1], found[2]


def _all_gradients(dy, z, y, x, w, b, eps, axis):
    masked = _masked(dy, z, y)
    found = op.batch_norm_train_dxwb(masked, x, w, b, eps, axis)
    return found[0], found[1], found[2], masked


@dialect.pattern_op(_gradients)
def batch_norm_relu_dxwb(
    dy, z, y, x, w, b, eps, axis, result: tuple[TensorType, ...], device: Device
) -> OpEnv:
    """Return the launches of the gradients by x, w and b."""
    flags = ("MASK",) if z is None else ("MASK", "ADDS", "KEEPS")
    args = {"dy": dy, "z": z, "y": y, "x": x, "w": w, "b": b, "eps": eps, "axis": axis}
    return _backward(args, result, device, *flags)


@dialect.pattern_op(_all_gradients)
def batch_norm_add_relu_dxwb(
    dy, z, y, x, w, b, eps, axis, result: tuple[TensorType, ...], device: Device
) -> OpEnv:
    """Return the launches of the gradients by x, w and b, and of what comes out of the relu."""
    flags = ("MASK", "KEEPS") if z is None else ("MASK", "ADDS", "KEEPS")
    args = {"dy": dy, "z": z, "y": y, "x": x, "w": w, "b": b, "eps": eps, "axis": axis}
    return _backward(args, result, device, *flags)


def _backward(
    args: dict[str, Any], results: tuple[TensorType, ...], device: Device, *flags: str
) -> OpEnv:
    others = {n: args[n] for n in ("dy", "z", "y") if args[n] is not None}
    _require_like(args["x"], **others)
    kernels = backward(args, results, device, *flags)
    filled = ("out", "dw", "db", "masked")[: len(results)]
    return env(kernels, args, "dy", "z", "y", "x", "w", "b", results=filled)


def _require_like(x: TensorType, **others: TensorType) -> None:
    for name, type_ in others.items():
        if type_ != x:
            raise Unsupported(f"{name} is of {type_}, not of x's type {x}")
