"""The gradient of layer normalisation with what follows it in a network's backward pass.

Where a block normalises first, what went around it is added to the gradient; and a layer with a
bias before it wants the sum of the rows. Both are at hand while a row is in registers: a pass over
three arrays, and one over one array, less.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.layer_norm import backward
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axes


def _made(
    x: TensorType, scale: Any, dy: TensorType, axis: int, eps: float, result: Any, device: Device,
    addend: TensorType | None = None, over: Any = None, gradient: Any = op.layer_norm_dx,
) -> OpEnv:  # fmt: skip
    """Return the kernels; ``over``: the axes of the sum, which is the last of the results."""
    if scale is None:
        raise Unsupported("made for a normalisation with a scale")
    if addend is not None and addend != x:
        raise Unsupported(f"what is added, {addend}, is not of the type of x, {x}")
    if over is not None:
        if normalize_axes(over, x.ndim) != tuple(range(x.ndim - 1)) or x.ndim < 2:
            raise Unsupported("the sum is not that of the rows")
        if result[-1].dtype != "float32":
            raise Unsupported("the sum of the rows is made in float32")
    call = gradient.call_values((x, scale, dy, axis, eps), device)
    return backward(call, addend is not None, over is not None)


def _added(x, scale, dy, axis, eps, addend):
    found = op.layer_norm_dx(x, scale, dy, axis, eps)
    return op.add(found[0], addend), found[1], found[2]


def _summed(x, scale, dy, axis, eps, over, keepdims):
    found = op.layer_norm_dx(x, scale, dy, axis, eps)
    return found[0], found[1], found[2], _rows(found[0], over, keepdims)


def _added_and_summed(x, scale, dy, axis, eps, addend, over, keepdims):
    dx, dscale, dbias = _added(x, scale, dy, axis, eps, addend)
    return dx, dscale, dbias, _rows(dx, over, keepdims)


def _rows(dx, over, keepdims):
    return op.sum(dx | op.cast(dx, "float32"), over, keepdims)


def _rms_added(x, scale, dy, axis, eps, addend):
    found = op.rms_norm_dx(x, scale, dy, axis, eps)
    return op.add(found[0], addend), found[1]


dialect.pattern_op(_added, name="layer_norm_dx_add")(_made)
dialect.pattern_op(_summed, name="layer_norm_dx_sum")(_made)
dialect.pattern_op(_added_and_summed, name="layer_norm_dx_add_sum")(_made)


@dialect.pattern_op(_rms_added)
def rms_norm_dx_add(
    x: TensorType, scale: Any, dy: TensorType, axis: int, eps: float, result: Any, device: Device,
    addend: TensorType,
) -> OpEnv:  # fmt: skip
    return _made(x, scale, dy, axis, eps, result, device, addend, gradient=op.rms_norm_dx)
