"""The eager tape: one node per recorded call, linked from results to arguments.

A node keeps what the operator's rule asks for and nothing else. `backward` visits nodes in reverse
order of creation, so the depth of the program does not matter, and adds to the ``grad`` of every
leaf; `grad` returns the gradients of chosen arrays instead. Nodes live as long as a result that
leads to them, so both may be called again; in a leaf's ``grad`` the gradients then accumulate. A
torch tensor that requires a gradient is a leaf, too, whose gradient goes on through torch
(`meta.runtime.torch_leaf`).

A rule is made of operators, which are run as they are written also in a block that gives calls
another meaning (`meta.amp.autocast_scope`): the precision of a gradient is that of its call. With
``create_graph`` they are recorded like any others, so that a gradient can be differentiated in
turn.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, Protocol

import torch

from meta.base.call_context import use
from meta.base.device import Device
from meta.base.dtype import FROM_TORCH, TO_TORCH, has_gradient
from meta.base.errors import GradientError, MetaError
from meta.base.registry import OPERATORS
from meta.base.source import Span, user_line
from meta.grad.core.rule import Rule, rule_of
from meta.op.core.call import array_type
from meta.op.core.op import Op
from meta.runtime import view_copies
from meta.runtime.array_key import ArrayKey, array_key
from meta.runtime.ndarray import gradient_lock, ndarray
from meta.runtime.no_gradient import ClosureConstant, NoGradient, is_recording, set_recording
from meta.runtime.torch_leaf import TorchLeaf, backward_to_torch

_order = itertools.count()


def next_order() -> int:
    """Return a number for a node: larger than that of all before."""
    return next(_order)


class Node(Protocol):
    """What an `Edge` leads to: something that was computed, and knows its gradients.

    order: larger than that of all nodes that were made before. outputs: what was computed.
    sources: what it was computed from, as in `TapeNode`.
    """

    order: int
    outputs: tuple[ArrayKey, ...]
    sources: list[Any]

    def gradients(self, dys: list[ndarray | None]) -> Iterator[tuple[Any, ndarray]]:
        """Yield (source, gradient) for every argument that leads to a leaf, of the gradients of
        the outputs.
        """


class TapeNode:
    """One recorded call.

    ``sources`` has an entry per tensor slot: where the gradient of that argument goes, an `Edge` to
    an earlier node, a leaf array, a `TorchLeaf` tensor, None, or a tuple of these. ``saved`` are
    the rule's values by name, without ``dy``; ``versions`` say how often each had been written in
    place by then.
    """

    __slots__ = ("line", "op", "order", "outputs", "rule", "saved", "sources", "versions")

    def __init__(
        self,
        op: Op,
        rule: Rule,
        sources: list[Any],
        saved: dict[str, Any],
        outputs: tuple[ArrayKey, ...],
    ) -> None:
        self.op, self.rule = op, rule
        self.sources, self.saved, self.outputs = sources, saved, outputs
        self.versions = [version_of(v) for v in saved.values()]
        self.line = user_line()
        self.order = next_order()

    @property
    def span(self) -> Span | None:
        """The user's line of the call."""
        return None if self.line is None else Span(*self.line)

    def gradients(self, dys: list[ndarray | None]) -> Iterator[tuple[Any, ndarray]]:
        """Yield (source, gradient) for every argument that leads to a leaf."""
        self.check_versions()
        filled = tuple(zeros(k) if d is None else d for d, k in zip(dys, self.outputs, strict=True))
        try:
            dy = filled[0] if len(filled) == 1 else filled
            results = self.rule({**self.saved, **self.results(), self.rule.dy: dy})
        except MetaError as error:
            error.note(f"in the gradient of {self.op.name}, called at {self.span}")
            raise
        for slot, source, gradient in zip(
            self.op.schema.tensor_slots, self.sources, results, strict=True
        ):
            pairs: Any = ((source, gradient),)
            if isinstance(source, tuple):
                given = self.rule.several(slot, gradient, len(source))
                pairs = zip(source, given, strict=True)
            for s, g in pairs:
                if s is not None:
                    wanted = _key_of(s)
                    if g.__class__ is ndarray and (g.key is wanted or wanted is None):
                        yield s, g
                        continue
                    if g is None:
                        name = self.op.schema.names[slot]
                        raise GradientError(
                            f"there is no gradient for argument {name!r}",
                            op=self.op.name,
                            span=self.span,
                        )
                    found = array_type(g.key) if isinstance(g, ndarray) else g
                    if wanted is not None:
                        self.rule.require(slot, found, array_type(wanted), self.span)
                    yield s, g

    def results(self) -> dict[str, Any]:
        """Return what the rule needs of the results, linked to this node, if it is recorded."""
        if not is_recording():
            return {}
        return {
            name: self.linked(self.saved[name])
            for name, index, type_only in self.rule.kept
            if index < 0 and not type_only
        }

    def linked(self, value: Any) -> Any:
        """Return an alias of the result, or of the tuple of them, that leads to this node."""
        aliases = tuple(map(detach_result, value if isinstance(value, tuple) else (value,)))
        for i, alias in enumerate(aliases):
            if has_gradient(alias.key.dtype):
                alias.tracked = True
                alias.node = Edge(self, i)
        return aliases if isinstance(value, tuple) else aliases[0]

    def check_versions(self) -> None:
        """Raise GradientError if a value that the rule needs was written since the call."""
        for (name, value), version in zip(self.saved.items(), self.versions, strict=True):
            if version_of(value) != version:
                raise GradientError(
                    f"{name!r}, which the gradient needs, was written in place after the call",
                    op=self.op.name,
                    hint="call backward before the write, or write to a copy (meta.copy)",
                    span=self.span,
                )


class Edge:
    """Result ``index`` of a node; an array that was computed holds one as its ``node``."""

    __slots__ = ("index", "node")

    def __init__(self, node: Node, index: int) -> None:
        self.node, self.index = node, index

    def backward(self, seed: ndarray, create_graph: bool) -> None:
        """Propagate ``seed`` from this result to all leaves."""
        given: set[int] = set()
        entered: list[tuple[torch.Tensor, ndarray]] = []

        def accumulate(leaf: Any, gradient: ndarray) -> None:
            if isinstance(leaf, TorchLeaf):
                entered.append((leaf.tensor, own_memory(gradient, given)))
            else:
                accumulate_grad(leaf, gradient, given)

        with set_recording(create_graph), use(None):
            propagate([(self, seed)], accumulate)
            backward_to_torch(entered, create_graph)


def accumulate_grad(leaf: ndarray | ClosureConstant, gradient: ndarray, given: set[int]) -> None:
    """Add a gradient to a leaf's; ``given``: as in `own_memory`."""
    if isinstance(leaf, ClosureConstant):
        raise leaf.error()
    with gradient_lock:
        if leaf.grad is None:
            leaf.grad = own_memory(gradient, given)
        else:
            leaf.grad = OPERATORS["add"](leaf.grad, gradient)


def own_memory(gradient: ndarray, given: set[int]) -> ndarray:
    """Return a gradient, or a copy if its memory was given to another leaf: `add` hands one array
    to both operands, and a leaf's gradient is its own to change. ``given``: memory by address.
    """
    place = gradient.tensor.data_ptr()
    found = _copy(gradient) if place in given else gradient
    given.add(place)
    return found


def source_id(source: Any) -> Any:
    """Return what tells sources apart: a tensor that entered twice is one."""
    if isinstance(source, Edge):
        return source.node, source.index
    return id(source.tensor if isinstance(source, TorchLeaf) else source)


def sources_of(start: Any, since: int = -1) -> Iterator[Any]:
    """Yield what was recorded for a source, which comes first, leads to: edges, leaf arrays and
    tensors that entered, some of them several times; not what lies behind nodes of an order less
    than ``since``.
    """
    stack, seen = [start], set()
    while stack:
        source = stack.pop()
        if isinstance(source, tuple):
            stack.extend(source)
        elif source is not None:
            yield source
            if not isinstance(source, Edge) or source.node.order < since:
                continue
            if id(source.node) not in seen:
                seen.add(id(source.node))
                stack.extend(source.node.sources)


def propagate(
    starts: Iterable[tuple[Any, ndarray]],
    accumulate: Callable[[ndarray, ndarray], None],
    wanted: Iterable[tuple[Node, int]] = (),
    since: int = -1,
    only: Collection[Node] | None = None,
) -> dict[tuple[Node, int], ndarray | None]:
    """Give every leaf that the sources in ``starts`` lead to its gradients.

    Returns the gradients of the ``wanted`` results of nodes, as far as the sweep reached them. An
    edge to a node of an order less than ``since`` counts as a leaf. only: the nodes to go through,
    if not all.
    """
    add = OPERATORS["add"]
    pending: dict[Node, list[ndarray | None]] = {}
    queue: list[tuple[int, Node]] = []
    found: dict[tuple[Node, int], ndarray | None] = {}
    watched: dict[Node, list[int]] = {}
    for node, index in wanted:
        watched.setdefault(node, []).append(index)

    def reach(source: Any, gradient: ndarray) -> None:
        if not isinstance(source, Edge) or source.node.order < since:
            if isinstance(source, NoGradient):
                raise source.error()
            accumulate(source, _without_copy_mark(gradient))
            return
        if only is not None and source.node not in only:
            return
        if source.node not in pending:
            pending[source.node] = [None] * len(source.node.outputs)
            heapq.heappush(queue, (-source.node.order, source.node))
        slots = pending[source.node]
        old = slots[source.index]
        slots[source.index] = gradient if old is None else add(old, gradient)

    for source, seed in starts:
        reach(source, seed)
    while queue:
        _, node = heapq.heappop(queue)
        dys = pending.pop(node)
        for index in watched.get(node, ()):
            reached = dys[index]
            found[node, index] = reached if reached is None else _without_copy_mark(reached)
        for source, gradient in node.gradients(dys):
            reach(source, gradient)
    return found


def _without_copy_mark(gradient: ndarray) -> ndarray:
    """Return a gradient for a user, whom it does not matter which operator computed it last."""
    if view_copies.is_marked(gradient.tensor):
        gradient.tensor = view_copies.without_mark(gradient.tensor)
    return gradient


def _copy(value: ndarray) -> ndarray:
    """Return the values in memory of their own; recorded if the gradient itself is."""
    if value.tracked and is_recording():
        copied: ndarray = OPERATORS["copy"](value)
        return copied
    return ndarray(value.tensor.clone())


def zeros(key: ArrayKey) -> ndarray:
    """Return zeros of a type."""
    return ndarray(torch.zeros(key.shape, dtype=TO_TORCH[key.dtype], device=str(key.device)))


def version_of(value: Any) -> Any:
    """Return torch's counter of in-place writes to an array; all views of a buffer share it."""
    if isinstance(value, ndarray):
        # Inference tensors have no counter.
        return None if value.tensor.is_inference() else value.tensor._version
    return tuple(version_of(v) for v in value) if isinstance(value, tuple) else None


def source_of(value: Any) -> Any:
    """Return where the gradient of an argument goes: an edge, a leaf array, a tensor that entered,
    what says that it is missing, None, or a tuple of these.
    """
    if value.__class__ is ndarray:
        if not value.tracked or not has_gradient(value.key.dtype):
            return None
        node = value.node
        if node is None:
            return value
        return None if isinstance(node, NoGradient) and not node.missing else node
    return tuple(map(source_of, value)) if value.__class__ is tuple else None


def _key_of(source: Any) -> ArrayKey | None:
    """Return what is known of the argument that a gradient goes to; None where it ends."""
    if source.__class__ is Edge:
        outputs: tuple[ArrayKey, ...] = source.node.outputs
        return outputs[source.index]
    if source.__class__ is TorchLeaf:
        tensor = source.tensor
        return array_key(tuple(tensor.shape), FROM_TORCH[tensor.dtype], Device(tensor.device))
    return source.key if source.__class__ is ndarray else None


def detach_result(value: Any) -> Any:
    """Alias of a result that does not hold the node which is about to hold it (no reference
    cycle).
    """
    if isinstance(value, tuple):
        return tuple(detach_result(v) for v in value)
    return ndarray(value.tensor, value.key)


def record(op: Op, args: tuple[Any, ...], result: Any) -> None:
    """Link ``result`` (an ndarray or a tuple of them) to the arrays in ``args`` (canonical, in slot
    order).

    The result of an operator stated `not_differentiable` requires no gradient, and neither does
    what is computed of it alone; such arrays know the operator, for the error of `backward`. Where
    the gradient is missing, what is computed of it is recorded, and `backward` is that error.
    """
    rule = rule_of(op)
    results = result if isinstance(result, tuple) else (result,)
    sources = [source_of(args[i]) for i in op.schema.tensor_slots]
    if not any(map(_needs_gradient, sources)):
        _mark_non_differentiable(
            results, _non_differentiable_source(args[i] for i in op.schema.tensor_slots)
        )
        return
    if rule.function is None:
        _mark_non_differentiable(
            results, NoGradient(op.name, rule.reason, user_line(), rule.missing)
        )
        return
    saved: dict[str, Any] = {}
    for name, index, type_only in rule.kept:
        value = result if index < 0 else args[index]
        saved[name] = _type_of(value) if type_only else detach_result(value) if index < 0 else value
    node = TapeNode(op, rule, sources, saved, tuple([r.key for r in results]))
    for i, r in enumerate(results):
        if has_gradient(r.key.dtype):
            r.tracked = True
            r.node = Edge(node, i)
        else:
            _mark_non_differentiable(
                (r,), NoGradient(op.name, f"result {i} is of dtype {r.key.dtype}", node.line)
            )


def _needs_gradient(source: Any) -> bool:
    """Whether the gradient of an argument goes anywhere."""
    return any(map(_needs_gradient, source)) if isinstance(source, tuple) else source is not None


def _non_differentiable_source(args: Iterable[Any]) -> NoGradient | None:
    """Return where the gradient of one of the arguments ends."""
    arrays = (a for arg in args for a in (arg if isinstance(arg, tuple) else (arg,)))
    nodes = (a.node for a in arrays if isinstance(a, ndarray))
    return next((n for n in nodes if n.__class__ is NoGradient), None)


def _mark_non_differentiable(results: Iterable[ndarray], node: NoGradient | None) -> None:
    """Note that no gradient goes through results."""
    for r in results:
        if node is not None:
            r.tracked, r.node = True, node


def _type_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_type_of(v) for v in value)
    return array_type(value.key) if isinstance(value, ndarray) else value
