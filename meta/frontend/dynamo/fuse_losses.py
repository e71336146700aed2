"""`fuse_losses`: the cross entropy of labels in a graph of Dynamo's becomes one operator, before
AOTAutograd takes it apart (`meta.frontend.aten.cross_entropy`).

The operator is given the scores as they were computed, before casts, such as those to float32,
views, and slices that leave a few rows out, the labels of which do not count then. So these scores
are saved for the gradient, and nothing else of their size is. A log_softmax that something else
reads, too, stays as it is.
"""

from __future__ import annotations

import inspect
import operator
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy

from meta.base.dtype import FROM_TORCH
from meta.frontend.aten.cross_entropy import CROSS_ENTROPY, CROSS_ENTROPY_BACKWARD, REDUCTIONS
from meta.frontend.dynamo.fx_nodes import erase, fake_value, insert_call, is_tensor, storage_of
from meta.frontend.dynamo.graph_program import disturbs, target_name
from meta.passes.pad_products import LEAST_WORK, is_on_tensor_cores, missing

_ATEN = torch.ops.aten
LOSSES = (functional.cross_entropy, functional.nll_loss)
SAME_ELEMENTS = frozenset(
    ["clone", "contiguous", "flatten", "float", "reshape", "squeeze", "to", "unsqueeze", "view"]
)
"""Functions and methods whose result has the elements of their argument, in its order."""
LEAST_SHARE = 0.75
"""The part of the rows that is enough to compute with all of them."""


def fuse_losses(graph: fx.GraphModule) -> None:
    """Write one call in the place of each cross entropy in a graph, and in graphs within."""
    for part in graph.modules():
        if isinstance(part, fx.GraphModule):
            losses = [n for n in part.graph.nodes if n.target in LOSSES]
            for node in losses:
                _fuse(node)
            if losses:
                part.recompile()


def _fuse(node: fx.Node) -> None:
    """Write one call in the place of a loss, if it is one of labels, by all of its options."""
    target: Any = node.target
    bound = inspect.signature(target).bind(*node.args, **node.kwargs)
    bound.apply_defaults()
    given = bound.arguments
    x, labels, reduction = given["input"], given["target"], given["reduction"]
    if not (is_tensor(x) and is_tensor(labels)):
        return
    rows, kind = fake_value(x), fake_value(labels).dtype
    deprecated = given["size_average"] is not None or given["reduce"] is not None
    if deprecated or given.get("label_smoothing") or kind.is_floating_point:
        return
    if not rows.is_floating_point() or not rows.ndim or (reduction == "none" and rows.ndim < 2):
        return
    before = set(_undisturbed(node))
    scores: _Scores | None = _Scores(x, min(rows.ndim - 1, 1))
    if target is functional.nll_loss:
        scores = _before_log_softmax(scores, before)
    if scores is None:
        return
    ignored = given["ignore_index"]
    # No loss of a row is left out of the result, and no label of bytes is left out.
    sliced = reduction != "none" and kind == torch.int64 and isinstance(ignored, int)
    with node.graph.inserting_before(node):
        while (source := scores.source(before, sliced)) is not None:
            if source.widths:
                labels = insert_call(node, torch.reshape, labels, source.label_shape)
                padding = source.widths, "constant", ignored
                labels = insert_call(node, functional.pad, labels, *padding)
            scores = source
        weight, dtype = given["weight"], fake_value(node).dtype
        if weight is not None:
            weight = insert_call(node, torch.Tensor.to, weight, dtype)
        options = scores.dim, REDUCTIONS.index(reduction), ignored, dtype
        call = insert_call(node, CROSS_ENTROPY, scores.node, labels, weight, *options)
        node.replace_all_uses_with(insert_call(node, operator.getitem, call, 0))
    erase(node)


def _undisturbed(node: fx.Node) -> Iterator[fx.Node]:
    """Iterate backwards over what is before a node, as long as nothing may write a tensor, or
    switches how PyTorch computes.
    """
    while (node := node.prev).op != "root" and not disturbs(node):
        yield node


@dataclass(frozen=True)
class _Scores:
    """A node whose elements are scores of classes on the axis ``dim``.

    ``label_shape``, ``widths``: how labels of the scores that were made of these are shaped, and
    padded to be labels of these; none where there are as many.
    """

    node: fx.Node
    dim: int
    label_shape: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()

    def source(self, before: set[fx.Node], sliced: bool) -> _Scores | None:
        """Return what the scores are made of, by a call of ``before``, without a change of their
        values: None if they are not. sliced: whether they may be a part of some.
        """
        node, args = self.node, self.node.args
        if node not in before or not args or not is_tensor(args[0]):
            return None
        source: Any = args[0]
        said, whole = fake_value(node), fake_value(source)
        if target_name(node) in ("getitem", "narrow"):
            return self._whole(source, said, whole) if sliced else None
        if target_name(node) not in SAME_ELEMENTS or said.device != whole.device:
            return None
        # Gradients add up in the dtype of what is read several times.
        widens = torch.promote_types(whole.dtype, said.dtype) == said.dtype and len(node.users) == 1
        if not whole.is_floating_point() or not (widens or whole.dtype == said.dtype):
            return None
        own = _axes(said, self.dim)
        for dim in range(whole.ndim):
            pairs = zip(own, _axes(whole, dim), strict=True)
            if all(statically_known_true(a == b) for a, b in pairs):
                return _Scores(source, dim)
        return None

    def _whole(self, source: fx.Node, said: torch.Tensor, whole: torch.Tensor) -> _Scores | None:
        """Return scores that these are most rows of."""
        begin = said.storage_offset() - whole.storage_offset()
        extents = (*said.shape, *whole.shape, *said.stride(), begin)
        if not all(type(n) is int for n in extents) or not whole.is_contiguous():
            return None
        alike = storage_of(self.node) == storage_of(source) and said.stride() == whole.stride()
        classes = alike and said.shape[self.dim] == whole.shape[self.dim]
        if not classes or said.numel() <= LEAST_SHARE * whole.numel():
            return None
        widths: list[int] = []
        for axis in range(whole.ndim):
            start = begin // max(whole.stride(axis), 1) % whole.shape[axis]
            if axis != self.dim:
                widths = [start, whole.shape[axis] - start - said.shape[axis], *widths]
        shape = (*said.shape[: self.dim], *said.shape[self.dim + 1 :])
        return _Scores(source, self.dim, shape, tuple(widths))


def _axes(said: torch.Tensor, dim: int) -> tuple[Any, ...]:
    """Return how many elements there are before, along and behind an axis."""
    return prod(said.shape[:dim]), said.shape[dim], prod(said.shape[dim + 1 :])


def _before_log_softmax(logs: _Scores | None, before: set[fx.Node]) -> _Scores | None:
    """Return the scores that a log_softmax is of whose result, and nothing else, becomes these."""
    while logs is not None and len(logs.node.users) == 1:
        node = logs.node
        if target_name(node) == "log_softmax" and node in before and node.args:
            args: Any = node.args
            axis = args[1] if len(args) > 1 else node.kwargs.get("dim")
            own = isinstance(axis, int) and axis % fake_value(node).ndim == logs.dim
            known = own and is_tensor(args[0]) and fake_value(args[0]).is_floating_point()
            return _Scores(args[0], logs.dim) if known else None
        logs = logs.source(before, sliced=False)
    return None


PADDED_ON = ("cuda",)
"""Kinds of device on which rows of products are padded to where libraries are fast."""
_VIEWS = (_ATEN.view.default, _ATEN._unsafe_view.default)


def pad_scores(joint: fx.GraphModule) -> None:
    """Save scores for their gradient with the columns that a product has in a program.

    Of scores that only a loss and its gradient read, and whose rows begin anywhere, both programs
    pad what is read and written (`meta.passes.align_products`), as long as what goes from one to
    the other is padded, too.
    """
    for loss in joint.graph.find_nodes(op="call_function", target=CROSS_ENTROPY):
        product = scores = loss.args[0]
        gradients = [n for n in scores.users if n.target is CROSS_ENTROPY_BACKWARD]
        last = loss.args[3] == fake_value(scores).ndim - 1
        if not last or len(gradients) != 1 or {*scores.users} != {loss, *gradients}:
            continue
        while product.target in _VIEWS and len(product.args[0].users) == 1:
            product = product.args[0]
        more = _missing_columns(product, fake_value(scores).shape[-1])
        if more:
            _pad(product, more, loss, gradients[0])


def _missing_columns(product: fx.Node, columns: Any) -> int:
    """Return how many columns the scores of a product lack to be multiplied fast."""
    if product.target not in (_ATEN.mm.default, _ATEN.addmm.default):
        return 0
    said, inner = fake_value(product), fake_value(product.all_input_nodes[-1]).shape[0]
    known = all(type(d) is int for d in (*said.shape, inner)) and said.shape[1] == columns
    if not known or said.device.type not in PADDED_ON or said.numel() * inner < LEAST_WORK:
        return 0
    return missing(columns) if is_on_tensor_cores(FROM_TORCH[said.dtype]) else 0


def _pad(product: fx.Node, more: int, loss: fx.Node, gradient: fx.Node) -> None:
    """Let a loss and its gradient read a product with more columns."""
    columns = fake_value(product).shape[1]
    with product.graph.inserting_after(product):
        wide = insert_call(product, _ATEN.constant_pad_nd.default, product, [0, more], 0.0)
    wide.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # not what it is made of
    for call, x, dim in ((loss, 0, 3), (gradient, 1, 6)):
        args = [*call.args, columns]
        args[x], args[dim] = wide, 1
        call.args = tuple(args)
    said = gradient.meta["val"]
    gradient.meta["val"] = said.new_empty(fake_value(product).shape)
    with product.graph.inserting_after(gradient):
        shaped = insert_call(gradient, _ATEN.view.default, gradient, list(said.shape))
    gradient.replace_all_uses_with(shaped, delete_user_cb=lambda user: user is not shaped)
