"""Pooling over two axes through libcudnn, which pads both sides alike and has no dilation."""

from __future__ import annotations

from meta import op
from meta.base.source import definition_span
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.descriptors import (
    Descriptor,
    factors,
    pooling,
    require_elements,
    tensor,
)
from meta.dialect.cudnn.graph import Operand
from meta.dialect.cudnn.launch import Launch, Place
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.window import DATA, permutation, window

MAX, MEAN_WITH_PADDING, MEAN, MAX_TO_ONE = range(4)
"""How the library pools; the last gives a gradient to one of equal elements."""


def _window(call: CallValues, x: TensorType, layout: str, mode: int) -> Descriptor:
    """Return the descriptor of the window; Unsupported for one that the library has not."""
    a = call.args
    require_elements(x)
    sizes = tuple(x.static_shape[i] for i in permutation(layout, DATA[2], "layout"))[2:]
    axes = window(sizes, a.kernel, a.stride, a.padding, a.dilation, a.ceil_mode)
    for axis in axes:
        if axis.before != axis.after:
            raise Unsupported("cuDNN pads both sides of a pooled axis alike")
        if axis.dilation != 1 and axis.kernel != 1:
            raise Unsupported("cuDNN has no dilated pooling")
        if axis.out != (axis.size + 2 * axis.before - axis.kernel) // axis.stride + 1:
            raise Unsupported("cuDNN pools whole windows only")
    return pooling(
        mode,
        tuple(axis.kernel for axis in axes),
        tuple(axis.before for axis in axes),
        tuple(axis.stride for axis in axes),
    )


def _mean(call: CallValues) -> int:
    return MEAN_WITH_PADDING if call.args.include_pad else MEAN


def _forward(call: CallValues, mode: int) -> OpEnv:
    layout = call.args.layout
    described = _window(call, call.args.x, layout, mode)
    x, y = (
        tensor(Operand.compact(t.static_shape, t.dtype, layout, DATA[2]))
        for t in (call.args.x, call.out)
    )
    one, zero = factors(call.args.x.dtype)
    arguments = described, one, x, Place(0), zero, y, Place(1)
    return OpEnv(Launch("cudnnPoolingForward", call.device.ordinal, *arguments), allocates=False)


def _backward(call: CallValues, mode: int) -> OpEnv:
    layout = call.args.layout or DATA[2]
    described = _window(call, call.args.x, layout, mode)
    x, y = (
        tensor(Operand.compact(t.static_shape, t.dtype, layout, DATA[2]))
        for t in (call.args.x, call.args.y)
    )
    one, zero = factors(call.args.x.dtype)
    arguments = one, y, Place(1), y, Place(2), x, Place(0), zero, x, Place(3)
    run = Launch("cudnnPoolingBackward", call.device.ordinal, described, *arguments)
    return OpEnv(run, allocates=False)


def max_pool(call: CallValues) -> OpEnv:
    return _forward(call, MAX)


def avg_pool(call: CallValues) -> OpEnv:
    return _forward(call, _mean(call))


def max_pool_dx(call: CallValues) -> OpEnv:
    return _backward(call, MAX_TO_ONE)


def avg_pool_dx(call: CallValues) -> OpEnv:
    return _backward(call, _mean(call))


for operator, make in (
    (op.max_pool2d, max_pool),
    (op.avg_pool2d, avg_pool),
    (op.max_pool2d_dx, max_pool_dx),
    (op.avg_pool2d_dx, avg_pool_dx),
):
    dialect.register(operator, make, definition_span(make))
