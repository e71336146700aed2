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

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.batch_norm import backward, env, forward
from meta.ir.types import TensorType


def _sum(x, running_mean, running_var, w, b, momentum, eps, axis, z):
    return op.add(op.batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis), z)


def _relu(x, running_mean, running_var, w, b, momentum, eps, axis, z):
    y = op.batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis)
    return op.relu(op.add(y, z) | y)


def _define_forward(name: str, describes: Callable[..., Any], *flags: str) -> None:
    """Register the launches of y + z, or of what else the flags say."""

    def make(
        x: TensorType, running_mean: Any, running_var: Any, w: Any, b: Any, momentum: float,
        eps: float, axis: int, z: TensorType | None, device: Device,
    ) -> OpEnv:  # fmt: skip
        values = x, running_mean, running_var, w, b, momentum, eps, axis, z
        args = dict(zip((*op.batch_norm_train.schema.names, "z"), values, strict=True))
        adds = () if z is None else ("ADDS",)
        _require_like(x, z=z)
        kernels = forward(args, device, *flags, *adds)
        names = "x", "running_mean", "running_var", "w", "b", "z"
        return env(kernels, args, *names, results=("out",))

    dialect.pattern_op(describes, name=name)(make)


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


def _define_backward(name: str, describes: Callable[..., Any], *results: str) -> None:
    """Register the launches of the gradients; "masked" is what comes out of the relu."""

    def make(
        dy: TensorType, z: TensorType | None, y: TensorType, x: TensorType, w: Any, b: Any,
        eps: float, axis: int, result: tuple[TensorType, ...], device: Device,
    ) -> OpEnv:  # fmt: skip
        _require_like(x, dy=dy, z=z, y=y)
        flags = ["MASK"] if z is None else ["MASK", "ADDS"]
        if z is not None or "masked" in results:
            flags.append("KEEPS")
        args = {"dy": dy, "z": z, "y": y, "x": x, "w": w, "b": b, "eps": eps, "axis": axis}
        kernels = backward(args, result, device, *flags)
        return env(kernels, args, "dy", "z", "y", "x", "w", "b", results=results)

    dialect.pattern_op(describes, name=name)(make)


def _require_like(x: TensorType, **others: TensorType | None) -> None:
    for name, type_ in others.items():
        if type_ not in (None, x):
            raise Unsupported(f"{name} is of {type_}, not of x's type {x}")


_define_forward("batch_norm_add", _sum)
_define_forward("batch_norm_relu", _relu, "RELU")
_define_backward("batch_norm_relu_dxwb", _gradients, "out", "dw", "db")
_define_backward("batch_norm_add_relu_dxwb", _all_gradients, "out", "dw", "db", "masked")
