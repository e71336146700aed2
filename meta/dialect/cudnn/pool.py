"""Pooling over two axes through libcudnn, which pads both sides alike and has no dilation."""

from __future__ import annotations

from meta import op
from meta.dialect.core import OpEnv, Unsupported, decline_if
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.graph import Operand
from meta.dialect.cudnn.launch import (
    PROPAGATE_NAN,
    Descriptor,
    Tensor,
    ints,
    launched,
    require_elements,
)
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.window import DATA, layout_permutation, window

MAX, MEAN_WITH_PADDING, MEAN, MAX_TO_ONE = range(4)
"""How the library pools; the last gives a gradient to one of equal elements."""


def _window(call: CallValues, layout: str) -> Descriptor:
    """Return the descriptor of the window; Unsupported for one that the library has not."""
    a = call.args
    require_elements(a.x)
    sizes = [a.x.static_shape[i] for i in layout_permutation(layout, DATA[2], "layout")[2:]]
    axes = window(tuple(sizes), a.kernel, a.stride, a.padding, a.dilation, a.ceil_mode)
    for size, axis in zip(sizes, axes, strict=True):
        decline_if(axis.before != axis.after, "cuDNN pads both sides of a pooled axis alike")
        decline_if(axis.dilation != 1 and axis.kernel != 1, "cuDNN has no dilated pooling")
        if axis.out != (size + 2 * axis.before - axis.kernel) // axis.stride + 1:
            raise Unsupported("cuDNN pools whole windows only")
    if call.op in (op.avg_pool2d, op.avg_pool2d_dx):
        mode = MEAN_WITH_PADDING if a.include_pad else MEAN
    else:
        mode = MAX if call.op is op.max_pool2d else MAX_TO_ONE
    arrays = [ints(tuple(getattr(a, n) for a in axes)) for n in ("kernel", "before", "stride")]
    setter = "cudnnSetPoolingNdDescriptor"
    return Descriptor("Pooling", setter, mode, PROPAGATE_NAN, len(axes), *arrays)


def _tensor(x: TensorType, layout: str, place: int) -> Tensor:
    return Tensor.of(Operand.compact(x.static_shape, x.dtype, layout, DATA[2]), place)


def forward(call: CallValues) -> OpEnv:
    layout = call.args.layout
    how = _window(call, layout)
    x, y = _tensor(call.args.x, layout, 0), _tensor(call.out, layout, 1)
    return launched("cudnnPoolingForward", call, (how,), x, y)


def backward(call: CallValues) -> OpEnv:
    layout = call.args.layout
    how = _window(call, layout)
    x, y = _tensor(call.args.x, layout, 0), _tensor(call.args.y, layout, 1)
    return launched("cudnnPoolingBackward", call, (how,), y, y.at(2), x, x.at(3))


for _name in ("max_pool2d", "avg_pool2d"):
    dialect.op(getattr(op, _name))(forward)
    dialect.op(getattr(op, f"{_name}_dx"))(backward)
