"""Softmax through libcudnn, over any axis."""

from __future__ import annotations

from math import prod

from meta import op
from meta.dialect.core import OpEnv
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.descriptors import factors, require_elements, tensor
from meta.dialect.cudnn.graph import Operand
from meta.dialect.cudnn.launch import Launch, Place
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis

ACCURATE, LOG = 1, 2
INSTANCE, CHANNEL = 0, 1
"""Softmax over all but axis 0 of [N, C, H, W], and along axis 1. Where both are the same, the
second has a gradient that takes hundreds of times as long.
"""


def along(x: TensorType, axis: int) -> Operand:
    """Return x with ``axis`` as the second of four axes; Unsupported if it has no descriptor."""
    require_elements(x)
    shape, at = x.static_shape, normalize_axis(axis, x.ndim)
    return Operand.compact((prod(shape[:at]), shape[at], 1, prod(shape[at + 1 :])), x.dtype)


def _mode(operand: Operand) -> int:
    return INSTANCE if operand.dims[3] == 1 else CHANNEL


def _forward(call: CallValues, algorithm: int) -> OpEnv:
    described = along(call.args.x, call.args.axis)
    x, (one, zero) = tensor(described), factors(described.dtype)
    arguments = algorithm, _mode(described), one, x, Place(0), zero, x, Place(1)
    run = Launch("cudnnSoftmaxForward", call.device.ordinal, *arguments)
    return OpEnv(run, allocates=False)


def _backward(call: CallValues, algorithm: int) -> OpEnv:
    described = along(call.args.y, call.args.axis)
    y, (one, zero) = tensor(described), factors(described.dtype)
    arguments = algorithm, _mode(described), one, y, Place(0), y, Place(1), zero, y, Place(2)
    run = Launch("cudnnSoftmaxBackward", call.device.ordinal, *arguments)
    return OpEnv(run, allocates=False)


@dialect.op(op.softmax)
def softmax(call: CallValues) -> OpEnv:
    return _forward(call, ACCURATE)


@dialect.op(op.log_softmax)
def log_softmax(call: CallValues) -> OpEnv:
    return _forward(call, LOG)


@dialect.op(op.softmax_dx)
def softmax_dx(call: CallValues) -> OpEnv:
    return _backward(call, ACCURATE)


@dialect.op(op.log_softmax_dx)
def log_softmax_dx(call: CallValues) -> OpEnv:
    return _backward(call, LOG)
