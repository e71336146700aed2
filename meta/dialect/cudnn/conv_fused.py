"""Convolution over two axes with what follows it in one graph: bias, a tensor added, relu."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.conv import Geometry, geometry, strange, unsuited
from meta.dialect.cudnn.graph import Graph, Operand
from meta.dialect.cudnn.plans import planned
from meta.ir.types import TensorType
from meta.op.core.schema import Ints


def _describe(graph: Graph, g: Geometry, adds: bool, relu: bool) -> None:
    """Describe y = relu(convolution + z + b), of the tensors x, w, b, z if ``adds``, and y.

    In this order of sums cuDNN has kernels that it need not compile.
    """
    x, w = graph.argument(g.x), graph.argument(g.w)
    b = graph.argument(Operand.compact((1, g.y.dims[1], 1, 1), g.y.dtype))
    y = graph.node.conv_fprop(x, w, **g.window)
    if adds:
        y = graph.node.add(y, graph.argument(g.y))
    y = graph.node.bias(y, b)
    graph.result(graph.node.relu(y) if relu else y, g.y)


def _biased(x, w, b, stride, padding, dilation, groups, layout, kernel_layout, out_layout, axis):
    y = op.conv2d(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return op.bias_add(y, b, axis)


def _added(x, w, b, z, stride, padding, dilation, groups, layout, kernel_layout, out_layout, axis):
    options = stride, padding, dilation, groups, layout, kernel_layout, out_layout
    return op.add(_biased(x, w, b, *options, axis), z)


def _rectified(describes: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pattern with relu behind it, which captures the same."""

    @wraps(describes)
    def described(**captured: Any) -> Any:
        return op.relu(describes(**captured))

    return described


def _define(name: str, describes: Callable[..., Any], relu: bool) -> None:
    """Register the graph of a pattern with a bias, perhaps a sum, and relu behind it or not."""

    def make(
        x: TensorType, w: TensorType, stride: Ints, padding: Ints, dilation: Ints, layout: str,
        kernel_layout: str, out_layout: str, axis: int, result: TensorType, device: Device,
        z: TensorType | None = None,
    ) -> OpEnv:  # fmt: skip
        layouts = layout, kernel_layout, out_layout
        if reason := unsuited(x, w) or strange(*layouts):
            raise Unsupported(reason)
        if axis % result.ndim != out_layout.index("C"):
            raise Unsupported("the bias is not added to the channels")
        if z is not None and z != result:
            raise Unsupported(f"what is added is not of the convolution's type {result}")
        shapes = x.static_shape, w.static_shape, result.static_shape
        found = geometry(x.dtype, shapes, stride, padding, dilation, layouts)
        return planned(_describe, found, z is not None, relu, dtype=x.dtype, device=device.ordinal)

    dialect.pattern_op(describes, name=name)(make)


_define("conv2d_bias", _biased, relu=False)
_define("conv2d_bias_relu", _rectified(_biased), relu=True)
_define("conv2d_bias_add", _added, relu=False)
_define("conv2d_bias_add_relu", _rectified(_added), relu=True)
