"""`fuse_losses`: the cross entropy of labels in a graph of AOTAutograd's becomes one call, and its
gradient another.

In a joint graph it is a log_softmax, the likelihood of labels, and the gradients of both. Between
them are casts, such as autocast's, views, and arrays of the size of the scores; the logarithms are
saved for the gradient. The two calls read the scores, and nothing else of that size is saved. A
log_softmax that something else reads, too, stays as it is.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils.checkpoint import CheckpointPolicy

from meta.base.dtype import FROM_TORCH
from meta.frontend.aten.cross_entropy import (
    CROSS_ENTROPY,
    CROSS_ENTROPY_BACKWARD,
    REDUCTIONS,
    of_rows,
)
from meta.frontend.aten.registry import bind_arguments
from meta.frontend.dynamo.fx_nodes import erase, fake_value, insert_call, replace_call
from meta.passes.pad_products import LEAST_WORK, is_on_tensor_cores, missing

_aten = torch.ops.aten
VIEWS = {
    _aten.view.default,
    _aten._unsafe_view.default,
    _aten.reshape.default,
    _aten.unsqueeze.default,
    _aten.squeeze.dim,
    _aten.squeeze.dims,
    _aten.detach.default,
    _aten.alias.default,
    _aten.clone.default,
}
"""Overloads whose result has the elements of their argument, in its order."""
LEAST_SHARE = 0.75
"""The part of the rows that is enough to compute with all of them."""
LOSSES = {_aten.nll_loss_forward.default, _aten.nll_loss2d_forward.default}
GRADIENTS = {_aten.nll_loss_backward.default, _aten.nll_loss2d_backward.default}


def fuse_losses(graph: fx.GraphModule) -> None:
    """Write one call in the place of each cross entropy, and of its gradient."""
    for node in graph.graph.find_nodes(op="call_function", target=_aten._log_softmax.default):
        found = _Loss.of(node)
        if found is not None:
            found.replace()
    graph.recompile()


def passed(node: fx.Node) -> bool:
    """Whether a call gives the elements of its argument, in its order, or casts them."""
    if node.op != "call_function" or node.target not in (*VIEWS, _aten._to_copy.default):
        return False
    source = node.args[0]
    assert isinstance(source, fx.Node)
    before, said = fake_value(source), fake_value(node)
    cast = before.dtype.is_floating_point and said.dtype.is_floating_point
    found: bool = said.device == before.device and (cast or said.dtype == before.dtype)
    return found


def _reads(node: fx.Node) -> Iterator[tuple[fx.Node, fx.Node]]:
    """Yield what reads the elements of a node, and as which node."""
    for user in node.users:
        if passed(user):
            yield from _reads(user)
        else:
            yield user, node


def _same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether two shapes are known to be one."""
    pairs = zip(one, other, strict=False)
    return len(one) == len(other) and all(statically_known_true(a == b) for a, b in pairs)


def _axes(said: torch.Tensor, dim: int) -> tuple[Any, Any]:
    """Return how many classes there are, and how many elements of each follow each other."""
    return said.shape[dim], prod(said.shape[dim + 1 :])


@dataclass(frozen=True)
class _ScoreSlice:
    """A slice of scores: along which axis of them, from where, and of how many.

    ``labels`` is the shape of the labels of the part, and ``axis`` that axis of theirs.
    """

    dim: int
    start: int
    extent: int
    labels: tuple[int, ...]
    axis: int

    @classmethod
    def of(cls, node: fx.Node, dim: int) -> _ScoreSlice | None:
        """Return what a call takes of scores with classes on the axis ``dim``: None unless it is
        most of some rows.
        """
        if node.op != "call_function" or node.target is not _aten.slice.Tensor:
            return None
        args: Any = (*node.args, *(None, 0, 0, None, 1)[len(node.args) :])
        source, at, start, _end, step = args
        said, whole = fake_value(node), fake_value(source)
        shapes = (*said.shape, *whole.shape)
        if not isinstance(at, int) or any(type(d) is not int for d in (*shapes, start or 0, step)):
            return None
        at, start = at % said.ndim, start or 0
        start = min(max(start + whole.shape[at] if start < 0 else start, 0), whole.shape[at])
        if at == dim or step != 1 or said.shape[at] <= LEAST_SHARE * whole.shape[at]:
            return None
        labels = (*said.shape[:dim], *said.shape[dim + 1 :])
        return cls(at, start, whole.shape[at], labels, at - (at > dim))

    def undone_by(self, node: fx.Node) -> bool:
        """Whether a call puts the gradient of the part among zeros."""
        if node.op != "call_function" or node.target is not _aten.slice_backward.default:
            return False
        args: Any = node.args
        _, sizes, dim, start, _end, step = args
        known = type(start) is int and sizes[self.dim] == self.extent
        begins = start in (self.start, self.start - self.extent)  # from the front or the end
        return known and begins and (dim % len(sizes), step) == (self.dim, 1)

    def widths(self) -> list[int]:
        """Return how the labels of the part are padded to those of the whole."""
        length = self.labels[self.axis]
        found = [0] * (2 * (len(self.labels) - 1 - self.axis))
        return [*found, self.start, self.extent - self.start - length]


@dataclass(frozen=True)
class _Scores:
    """A node whose elements, but for rows that ``parts`` leave out, are scores of classes on the
    axis ``dim``.
    """

    node: fx.Node
    dim: int
    parts: tuple[_ScoreSlice, ...] = ()

    def source(self) -> _Scores | None:
        """Return what the scores are made of without a change of their values, if they are."""
        if passed(self.node):
            node: Any = self.node.args[0]
            before, said = fake_value(node), fake_value(self.node)
            if torch.promote_types(before.dtype, said.dtype) != said.dtype:
                return None
            wanted = _axes(said, self.dim)
            dims = (d for d in range(before.ndim) if _same(_axes(before, d), wanted))
            dim = next(dims, None)
            return None if dim is None else replace(self, node=node, dim=dim)
        part = _ScoreSlice.of(self.node, self.dim)
        if part is None:
            return None
        (source,) = self.node.all_input_nodes
        return replace(self, node=source, parts=(*self.parts, part))


def _sources(scores: _Scores) -> Iterator[_Scores]:
    found: _Scores | None = scores
    while found is not None:
        yield found
        found = found.source()


def _flow(gradient: fx.Node, parts: Sequence[_ScoreSlice]) -> Iterator[tuple[fx.Node, int]]:
    """Yield the nodes that have the elements of a gradient, and of how many parts that is the
    gradient, as long as nothing else reads them.
    """
    undone, node = 0, gradient
    while True:
        yield node, undone
        if len(node.users) != 1:
            return
        (user,) = node.users
        if undone < len(parts) and parts[undone].undone_by(user):
            undone += 1
        elif not passed(user):
            return
        node = user


@dataclass
class _Loss:
    """A cross entropy: the nodes that it is made of.

    Attributes
    ----------
    scores: what the log_softmax is of. loss: the node of the loss. target, weight, reduction,
    ignore_index: those of the likelihood. dy, gradient: the nodes of the gradients of the loss and
    of the scores; None where there are none.
    """

    scores: _Scores
    loss: fx.Node
    target: fx.Node
    weight: fx.Node | None
    reduction: int
    ignore_index: int
    dy: fx.Node | None = None
    gradient: fx.Node | None = None

    @classmethod
    def of(cls, softmax: fx.Node) -> _Loss | None:
        """Return the cross entropy that a log_softmax is of, if all that reads it is part of it."""
        reads = list(_reads(softmax))
        by_target = {user.target: (user, read) for user, read in reads}
        losses = [pair for target, pair in by_target.items() if target in LOSSES]
        known = {*LOSSES, *GRADIENTS, _aten._log_softmax_backward_data.default}
        if len(losses) != 1 or len(by_target) != len(reads) or not known >= set(by_target):
            return None
        likelihood, read = losses[0]
        found = cls._of_likelihood(softmax, likelihood, read)
        if found is None:
            return None
        rest = [user for user, _ in reads if user is not likelihood]
        return found if not rest or found._is_gradient(likelihood, rest) else None

    @classmethod
    def _of_likelihood(cls, softmax: fx.Node, likelihood: fx.Node, read: fx.Node) -> _Loss | None:
        """Return the loss, without its gradient."""
        said, dim = fake_value(softmax), softmax.args[1]
        assert isinstance(dim, int) and isinstance(likelihood.target, torch._ops.OpOverload)
        operands, options = bind_arguments(likelihood.target, likelihood.args, likelihood.kwargs)
        results = [u for u in likelihood.users if u.target is operator.getitem and u.args[1] == 0]
        plain = said.ndim > 0 and fake_value(read).ndim > 0
        if not plain or operands[0] is not read or len(results) != 1:
            return None
        classes = fake_value(read)
        dim, axis = dim % said.ndim, 1 if classes.ndim > 1 else 0
        if not _same(_axes(said, dim), _axes(classes, axis)) or (
            REDUCTIONS[options["reduction"]] == "none" and classes.ndim < 2
        ):
            return None
        (source,) = softmax.all_input_nodes
        return cls(_Scores(source, dim), results[0], *operands[1:], **options)

    def _is_gradient(self, likelihood: fx.Node, rest: list[fx.Node]) -> bool:
        """Whether other readers are the gradient of the loss, which is kept then."""
        by = {user.target in GRADIENTS: user for user in rest}
        if len(rest) != 2 or len(by) != 2:
            return False
        backward, softmax_dx = by[True], by[False]
        assert isinstance(backward.target, torch._ops.OpOverload)
        operands, options = bind_arguments(backward.target, backward.args, backward.kwargs)
        total, own = operands[4], {"reduction": self.reduction, "ignore_index": self.ignore_index}
        same = operands[2:4] == (self.target, self.weight) and options == own
        if not same or total.target is not operator.getitem or total.args[0] is not likelihood:
            return False
        flow = list(_reads(backward))
        scores = fake_value(self.scores.node)
        dim, dtype = softmax_dx.args[2:4]
        assert isinstance(dim, int)
        alone = [user for user, _ in flow] == [softmax_dx] and flow[0][1] is softmax_dx.args[0]
        if not alone or dim % scores.ndim != self.scores.dim or dtype != scores.dtype:
            return False
        self.dy, self.gradient = operands[0], softmax_dx
        return True

    def replace(self) -> None:
        """Write the calls in the place of the nodes, and take those away that nothing reads."""
        scores, gradient = self._from()
        target = self._labels(scores.parts)
        options = (
            self.weight,
            scores.dim,
            self.reduction,
            self.ignore_index,
            fake_value(self.loss).dtype,
        )
        call, results = self._call(scores, target, *options)
        if gradient is not None:
            given = self.dy, scores.node, target, *results[1:], *options
            sources = gradient.all_input_nodes
            backward = replace_call(gradient, CROSS_ENTROPY_BACKWARD, *given)
            erase(*sources)
            _pad(scores, [call, backward])

    def _call(self, scores: _Scores, *args: Any) -> tuple[fx.Node, list[fx.Node]]:
        """Write the call of the loss in its place; return it, and its results."""
        graph, said = self.loss.graph, fake_value(scores.node)
        shape, dtype = of_rows(said, scores.dim, fake_value(self.loss).dtype)
        types = [fake_value(self.loss), *(said.new_empty(shape, dtype=dtype) for _ in range(2))]
        with graph.inserting_before(self.loss):
            call = graph.call_function(CROSS_ENTROPY, (scores.node, *args))
            results = [graph.call_function(operator.getitem, (call, i)) for i in range(3)]
        for node, value in zip((call, *results), (tuple(types), *types), strict=True):
            node.meta = {**self.loss.meta, "val": value}
        self.loss.replace_all_uses_with(results[0])
        erase(self.loss)
        return call, results

    def _from(self) -> tuple[_Scores, fx.Node | None]:
        """Return the scores as they were made, before casts, views and slices, as far as their
        gradient is there, and this.
        """
        found, gradient = self.scores, self.gradient
        for scores in _sources(self.scores):
            # No loss of a row is left out of the result, and no label of bytes is left out.
            whole = (
                REDUCTIONS[self.reduction] == "none" or fake_value(self.target).dtype != torch.int64
            )
            if scores.parts and whole:
                break
            if self.gradient is None:
                found = scores
                continue
            said, count = fake_value(scores.node), len(scores.parts)
            for node, undone in _flow(self.gradient, scores.parts):
                own = fake_value(node)
                if undone == count and own.dtype == said.dtype and _same(own.shape, said.shape):
                    found, gradient = scores, node
        return found, gradient

    def _labels(self, parts: Sequence[_ScoreSlice]) -> fx.Node:
        """Return the labels of all rows: those that parts leave out do not count."""
        target, graph = self.target, self.loss.graph
        (likelihood,) = self.loss.all_input_nodes
        with graph.inserting_before(likelihood):
            for part in parts:
                target = insert_call(likelihood, _aten.reshape.default, target, list(part.labels))
                padding = part.widths(), self.ignore_index
                target = insert_call(likelihood, _aten.constant_pad_nd.default, target, *padding)
        return target


PADDED_ON = ("cuda",)
"""Kinds of device on which rows of products are padded to where libraries are fast."""


def _pad(scores: _Scores, calls: list[fx.Node]) -> None:
    """Save scores for their gradient with the columns that a product has in a program.

    Of scores that only these calls read, and whose rows begin anywhere, both programs pad what is
    read and written (`meta.passes.align_products`), as long as what goes from one to the other is
    padded, too.
    """
    node = scores.node
    if node.target not in (_aten.mm.default, _aten.addmm.default) or scores.dim != 1:
        return
    said = fake_value(node)
    rows, columns = said.shape
    inner = fake_value(node.all_input_nodes[-1]).shape[0]
    if any(type(d) is not int for d in (rows, columns, inner)) or said.device.type not in PADDED_ON:
        return
    more, large = missing(columns), rows * columns * inner >= LEAST_WORK
    if not more or not large or not is_on_tensor_cores(FROM_TORCH[said.dtype]):
        return
    if set(node.users) != set(calls):
        return
    with node.graph.inserting_after(node):
        wide = insert_call(node, _aten.constant_pad_nd.default, node, [0, more], 0.0)
    wide.meta["recompute"] = CheckpointPolicy.MUST_SAVE  # not what it is made of
    for call in calls:
        call.replace_input_with(node, wide)
        call.args = (*call.args, columns)
