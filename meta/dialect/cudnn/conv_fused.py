"""Convolution over two axes with what follows it in one graph: bias, a tensor added, relu."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Any

import torch

from meta import op
from meta.base.dtype import FROM_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.conv import Geometry, geometry, unsuited
from meta.dialect.cudnn.graph import Graph, Operand
from meta.dialect.cudnn.levels import FUSED_CONVOLUTION
from meta.dialect.cudnn.plans import LIMIT, plan
from meta.ir.types import TensorType
from meta.op.conv import TYPES


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


@lru_cache(maxsize=LIMIT)
def _plan(adds: bool, relu: bool, dtype: str, device: int, shapes: Any, *how: Any) -> Any:
    """Return the plan for x, w and y of these shapes; ``how``: see `geometry`."""
    return plan(_describe, geometry(dtype, shapes, *how), adds, relu, dtype=dtype, device=device)


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


def _without_z(relu: bool) -> Callable[..., str | None]:
    """Return the check of a pattern that adds a bias only."""

    def refusal(
        x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, axis
    ) -> str | None:
        how = stride, padding, dilation, groups, layout, kernel_layout, out_layout
        return _refusal(x, w, None, relu, how, axis)

    return refusal


def _with_z(relu: bool) -> Callable[..., str | None]:
    """Return the check of a pattern that adds a tensor, too."""

    def refusal(
        x, w, z, stride, padding, dilation, groups, layout, kernel_layout, out_layout, axis
    ) -> str | None:
        how = stride, padding, dilation, groups, layout, kernel_layout, out_layout
        return _refusal(x, w, z, relu, how, axis)

    return refusal


def _refusal(
    x: TensorType, w: TensorType, z: Any, relu: bool, how: tuple[Any, ...], axis: int
) -> str | None:
    """Return why no plan runs a match, or None. A plan that is found is kept for the kernel."""
    if reason := unsuited(x, w):
        return reason
    y = TYPES.forward(x, w, *how)
    if axis % y.ndim != how[-1].index("C"):
        return "the bias is not added to the channels"
    if z is not None and z != y:
        return f"what is added is not of the convolution's type {y}"
    stride, padding, dilation, _, *layouts = how
    shapes = x.static_shape, w.static_shape, y.static_shape
    device = torch.cuda.current_device()
    window = stride, padding, dilation, tuple(layouts)
    try:
        _plan(z is not None, relu, x.dtype, device, shapes, *window)
    except Unsupported as refused:
        return str(refused)
    return None


def _run(relu: bool, tensors: tuple[torch.Tensor, ...], out: torch.Tensor, *how: Any) -> None:
    """Run a match; ``tensors``: x, w, b and what is added, if anything is."""
    x, w = tensors[:2]
    shapes, dtype = (x.shape, w.shape, out.shape), FROM_TORCH[x.dtype]
    found = _plan(len(tensors) > 3, relu, dtype, x.get_device(), shapes, *how)
    found(*tensors, out)


@dialect.pattern(_biased, plevel=FUSED_CONVOLUTION, when=_without_z(relu=False))
def conv2d_bias(x, w, b, stride, padding, dilation, layout, kernel_layout, out_layout, out):
    layouts = layout, kernel_layout, out_layout
    _run(False, (x, w, b), out, stride, padding, dilation, layouts)


@dialect.pattern(_rectified(_biased), plevel=FUSED_CONVOLUTION, when=_without_z(relu=True))
def conv2d_bias_relu(x, w, b, stride, padding, dilation, layout, kernel_layout, out_layout, out):
    layouts = layout, kernel_layout, out_layout
    _run(True, (x, w, b), out, stride, padding, dilation, layouts)


@dialect.pattern(_added, plevel=FUSED_CONVOLUTION, when=_with_z(relu=False))
def conv2d_bias_add(x, w, b, z, stride, padding, dilation, layout, kernel_layout, out_layout, out):
    layouts = layout, kernel_layout, out_layout
    _run(False, (x, w, b, z), out, stride, padding, dilation, layouts)


@dialect.pattern(_rectified(_added), plevel=FUSED_CONVOLUTION, when=_with_z(relu=True))
def conv2d_bias_add_relu(
    x, w, b, z, stride, padding, dilation, layout, kernel_layout, out_layout, out
):
    layouts = layout, kernel_layout, out_layout
    _run(True, (x, w, b, z), out, stride, padding, dilation, layouts)
