"""relu, sigmoid, tanh and softmax through libcudnn."""

from __future__ import annotations

from math import prod

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.graph import Operand
from meta.dialect.cudnn.launch import PROPAGATE_NAN, Descriptor, Tensor, launched, require_elements
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis

MODES = {op.sigmoid: 0, op.relu: 1, op.tanh: 2}
GRADIENTS = {op.sigmoid_dx: 0, op.tanh_dx: 2}  # that of relu is another one where x is NaN
ACCURATE, LOG = 1, 2
SOFTMAXES = {op.softmax: ACCURATE, op.log_softmax: LOG}
SOFTMAX_GRADIENTS = {op.softmax_dx: ACCURATE, op.log_softmax_dx: LOG}
INSTANCE, CHANNEL = 0, 1
"""Softmax over all but axis 0 of [N, C, H, W], and along axis 1. Where both are the same, the
second has a gradient that takes hundreds of times as long.
"""


def _row(call: CallValues, mode: int) -> tuple[Tensor, tuple[Descriptor]]:
    """Return the last argument as one row of an image, and the function."""
    *_, x = call.tensors()
    require_elements(x)
    if x.dtype not in ("float16", "bfloat16", "float32", "float64"):
        raise Unsupported(f"cuDNN has no activation of {x.dtype}")
    setter = "cudnnSetActivationDescriptor"
    how = Descriptor("Activation", setter, mode, PROPAGATE_NAN, 0.0)
    return Tensor.of(Operand.compact((1, 1, 1, x.size), x.dtype), 0), (how,)


def forward(call: CallValues) -> OpEnv:
    x, how = _row(call, MODES[call.op])
    return launched("cudnnActivationForward", call, how, x, x.at(1))


def backward(call: CallValues) -> OpEnv:
    """The library wants x as well as y, but computes from one of them."""
    x, y, _ = call.args
    if y is None:
        raise Unsupported("cuDNN computes the gradient from the result")
    first, how = _row(call, GRADIENTS[call.op])
    given = 1 if x is not None and y is not None else 0
    known, dy, dx = (first.at(given + i) for i in range(3))
    return launched("cudnnActivationBackward", call, how, known, dy, known, dx)


def _along(call: CallValues, algorithm: int) -> tuple[Tensor, tuple[int, int]]:
    """Return the first argument, its axis the second of four, and how softmax is computed."""
    x = next(call.tensors())
    require_elements(x)
    shape, at = x.static_shape, normalize_axis(call.args.axis, x.ndim)
    behind = prod(shape[at + 1 :])
    operand = Operand.compact((prod(shape[:at]), shape[at], 1, behind), x.dtype)
    return Tensor.of(operand, 0), (algorithm, INSTANCE if behind == 1 else CHANNEL)


def softmax(call: CallValues) -> OpEnv:
    x, how = _along(call, SOFTMAXES[call.op])
    return launched("cudnnSoftmaxForward", call, how, x, x.at(1))


def softmax_dx(call: CallValues) -> OpEnv:
    y, how = _along(call, SOFTMAX_GRADIENTS[call.op])
    return launched("cudnnSoftmaxBackward", call, how, y, y.at(1), y.at(2))


for _operators, _make in (
    (MODES, forward),
    (GRADIENTS, backward),
    (SOFTMAXES, softmax),
    (SOFTMAX_GRADIENTS, softmax_dx),
):
    for _operator in _operators:
        dialect.op(_operator)(_make)
