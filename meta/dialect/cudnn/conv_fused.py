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


def _made(
    x: TensorType, w: TensorType, z: Any, how: tuple[Any, ...], y: TensorType, device: Device
) -> OpEnv:
    """Return the kernel of a match.

    how: stride, padding, dilation, the three layouts, the axis of the bias, and whether relu
    follows. z: what is added, None if nothing is.
    """
    *window, layout, kernel_layout, out_layout, axis, relu = how
    if reason := unsuited(x, w) or strange(layout, kernel_layout, out_layout):
        raise Unsupported(reason)
    if axis % y.ndim != out_layout.index("C"):
        raise Unsupported("the bias is not added to the channels")
    if z is not None and z != y:
        raise Unsupported(f"what is added is not of the convolution's type {y}")
    shapes = x.static_shape, w.static_shape, y.static_shape
    found = geometry(x.dtype, shapes, *window, (layout, kernel_layout, out_layout))
    return planned(_describe, found, z is not None, relu, dtype=x.dtype, device=device.ordinal)


@dialect.pattern_op(_biased)
def conv2d_bias(
    x, w, stride, padding, dilation, layout, kernel_layout, out_layout, axis, result, device
):
    how = stride, padding, dilation, layout, kernel_layout, out_layout, axis, False
    return _made(x, w, None, how, result, device)


@dialect.pattern_op(_rectified(_biased))
def conv2d_bias_relu(
    x, w, stride, padding, dilation, layout, kernel_layout, out_layout, axis, result, device
):
    how = stride, padding, dilation, layout, kernel_layout, out_layout, axis, True
    return _made(x, w, None, how, result, device)


@dialect.pattern_op(_added)
def conv2d_bias_add(
    x, w, z, stride, padding, dilation, layout, kernel_layout, out_layout, axis, result, device
):
    how = stride, padding, dilation, layout, kernel_layout, out_layout, axis, False
    return _made(x, w, z, how, result, device)


@dialect.pattern_op(_rectified(_added))
def conv2d_bias_add_relu(
    x, w, z, stride, padding, dilation, layout, kernel_layout, out_layout, axis, result, device
):
    how = stride, padding, dilation, layout, kernel_layout, out_layout, axis, True
    return _made(x, w, z, how, result, device)
