"""Images that a forward graph keeps for its gradient lie with the channels last, as the programs of
both compute them.

AOTAutograd says of a tensor of the usual strides that it lies so, and what a forward program keeps
would be transposed to that, and again by the backward program. Here the graph of both says of
convolutions' results, and of what is made of them element by element, that the channels lie last.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from meta.base.dtype import FROM_TORCH
from meta.frontend.core.memory_order import is_contiguous_order, order_of
from meta.ir import TensorType
from meta.passes.channels_last_rules import layout_pays

_aten = torch.ops.aten
_NORMS = (
    _aten._native_batch_norm_legit_functional.default,
    _aten.native_batch_norm.default,
    _aten.max_pool2d_with_indices.default,
)
_WINDOWS = (_aten.avg_pool2d.default, _aten.constant_pad_nd.default)
TRACED = "traced"
"""Beside what a node is said to be: what it was when the graph was traced."""


def lay_out_images(joint: fx.GraphModule) -> None:
    """Let images in the graph of a result and its gradient lie with the channels last. What the
    graph returns stays as it is, and what is read by its place in memory.
    """
    returned = set(next(n for n in joint.graph.nodes if n.op == "output").all_input_nodes)
    last: set[fx.Node] = set()
    for node in joint.graph.nodes:
        said = node.meta.get("val")
        if node.op != "call_function" or not _is_image(said) or not _is_channels_last(node, last):
            continue
        last.add(node)
        if node in returned or any("as_strided" in str(user.target) for user in node.users):
            continue
        node.meta[TRACED] = said
        node.meta["val"] = said.contiguous(memory_format=torch.channels_last)


def traced_value(node: fx.Node) -> Any:
    """Return what a node was when the graph was traced."""
    return node.meta.get(TRACED, node.meta.get("val"))


def _type(node: Any) -> TensorType:
    said = node.meta["val"]
    return TensorType(tuple(said.shape), FROM_TORCH[said.dtype])


def _is_image(said: Any) -> bool:
    if not isinstance(said, Tensor) or said.ndim != 4 or said.layout != torch.strided:
        return False
    if said.dtype not in FROM_TORCH or has_free_symbols(said):
        return False
    order = order_of(said)
    return order is not None and is_contiguous_order(order) and not said.storage_offset()


def _is_channels_last(node: fx.Node, last: set[fx.Node]) -> bool:
    """Whether a program computes an image with the channels last."""
    target = node.target
    if target is _aten.convolution.default:
        given: tuple[Any, ...] = node.args
        x, w, _, stride, padding, _, backwards, _, groups = given
        kernel, *images = (_type(n) for n in (w, x, node))
        on, window = node.meta["val"].device.type, (tuple(stride), tuple(padding), groups)
        return not backwards and layout_pays(on, kernel, images, window)
    if target is operator.getitem:
        made: Any = node.args[0]
        return made.target in _NORMS and not node.args[1] and made.args[0] in last
    if target in _WINDOWS:
        return node.args[0] in last
    if isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags:
        read = [n for n in node.all_input_nodes if _is_image(traced_value(n))]
        return 2 * sum(n in last for n in read) > len(read)
    return False
