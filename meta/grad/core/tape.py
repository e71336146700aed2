"""The eager tape: one node per recorded call, linked from results to arguments.

A node keeps what the operator's rule asks for and nothing else. `backward` visits nodes in reverse
order of creation, so the depth of the program does not matter, and adds to the ``grad`` of every
leaf. Nodes live as long as a result that leads to them, so `backward` may be called again; the
gradients then accumulate.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch

from meta.base.dtype import FLOATS, TO_TORCH
from meta.base.errors import GradientError, MetaError
from meta.base.registry import OPERATORS
from meta.base.source import Span, user_line
from meta.grad.core.rule import Rule, rule_of
from meta.op.core.array_type import array_type
from meta.op.core.op import Op
from meta.runtime.ndarray import ArrayKey, ndarray

recording: ContextVar[bool] = ContextVar("meta_recording", default=True)
_order = itertools.count()


@contextmanager
def no_grad() -> Iterator[None]:
    """Record nothing for `backward` in this block."""
    token = recording.set(False)
    try:
        yield
    finally:
        recording.reset(token)


class Node:
    """One recorded call.

    ``sources`` has an entry per tensor slot: where the gradient of that argument goes, an `Edge` to
    an earlier node, a leaf array, None, or a tuple of these. ``saved`` are the rule's values by
    name, without ``dy``; ``versions`` say how often each had been written in place by then.
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
        self.versions = [_version(v) for v in saved.values()]
        self.line = user_line()
        self.order = next(_order)

    @property
    def span(self) -> Span | None:
        """The user's line of the call."""
        return None if self.line is None else Span(*self.line)

    def gradients(self, dys: list[ndarray | None]) -> Iterator[tuple[Any, ndarray]]:
        """Yield (source, gradient) for every argument that leads to a leaf."""
        self.check_versions()
        filled = tuple(
            _zeros(k) if d is None else d for d, k in zip(dys, self.outputs, strict=True)
        )
        try:
            dy = filled[0] if len(filled) == 1 else filled
            results = self.rule({**self.saved, self.rule.dy: dy})
        except MetaError as error:
            error.note(f"in the gradient of {self.op.name}, called at {self.span}")
            raise
        for slot, source, gradient in zip(
            self.op.schema.tensor_slots, self.sources, results, strict=True
        ):
            pairs: Any = ((source, gradient),)
            if isinstance(source, tuple):
                pairs = zip(source, gradient or (None,) * len(source), strict=True)
            for s, g in pairs:
                if s is not None:
                    if g is None:
                        name = self.op.schema.names[slot]
                        raise GradientError(
                            f"there is no gradient for argument {name!r}",
                            op=self.op.name,
                            span=self.span,
                        )
                    yield s, g

    def check_versions(self) -> None:
        """Raise GradientError if a value that the rule needs was written since the call."""
        for (name, value), version in zip(self.saved.items(), self.versions, strict=True):
            if _version(value) != version:
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

    def backward(self, _array: ndarray, seed: ndarray) -> None:
        """Propagate ``seed`` from this result to all leaves."""
        with no_grad():
            _propagate(self, seed)


def _propagate(start: Edge, seed: ndarray) -> None:
    add = OPERATORS["add"]
    pending: dict[Node, list[ndarray | None]] = {}
    given: set[int] = set()
    queue: list[tuple[int, Node]] = []

    def reach(edge: Edge, gradient: ndarray) -> None:
        if edge.node not in pending:
            pending[edge.node] = [None] * len(edge.node.outputs)
            heapq.heappush(queue, (-edge.node.order, edge.node))
        slots = pending[edge.node]
        old = slots[edge.index]
        slots[edge.index] = gradient if old is None else add(old, gradient)

    reach(start, seed)
    while queue:
        _, node = heapq.heappop(queue)
        for source, gradient in node.gradients(pending.pop(node)):
            if isinstance(source, Edge):
                reach(source, gradient)
            elif source.grad is not None:
                source.grad = add(source.grad, gradient)
            else:
                # `add` hands one array to both operands: a leaf's gradient is its own to change.
                place = gradient._tensor.data_ptr()
                source.grad = ndarray(gradient._tensor.clone()) if place in given else gradient
                given.add(place)


def _zeros(key: ArrayKey) -> ndarray:
    return ndarray(torch.zeros(key.shape, dtype=TO_TORCH[key.dtype], device=str(key.device)))


def _version(value: Any) -> Any:
    """Return torch's counter of in-place writes to an array; all views of a buffer share it."""
    if isinstance(value, ndarray):
        # Inference tensors have no counter.
        return None if value._tensor.is_inference() else value._tensor._version
    return tuple(_version(v) for v in value) if isinstance(value, tuple) else None


def _source(value: Any) -> Any:
    """Return where the gradient of an argument goes: an edge, a leaf, None, or a tuple of these."""
    if value.__class__ is ndarray:
        if not value._requires_grad or value.key.dtype not in FLOATS:
            return None
        return value if value.node is None else value.node
    return tuple(map(_source, value)) if value.__class__ is tuple else None


def _detached(value: Any) -> Any:
    """Alias of a result that does not hold the node which is about to hold it (no reference
    cycle).
    """
    if isinstance(value, tuple):
        return tuple(_detached(v) for v in value)
    return ndarray(value.torch(), value.key)


def record(op: Op, args: tuple[Any, ...], result: Any) -> None:
    """Link ``result`` (an ndarray or a tuple of them) to the arrays in ``args`` (canonical, in slot
    order).

    Does nothing for an operator stated `not_differentiable`; the result then requires no gradient.
    """
    rule = rule_of(op)
    if rule.function is None:
        return
    results = result if isinstance(result, tuple) else (result,)
    sources = [_source(args[i]) for i in op.schema.tensor_slots]
    saved: dict[str, Any] = {}
    for name, index, type_only in rule.kept:
        value = result if index < 0 else args[index]
        saved[name] = _type_of(value) if type_only else _detached(value) if index < 0 else value
    node = Node(op, rule, sources, saved, tuple([r.key for r in results]))
    for i, r in enumerate(results):
        if r.key.dtype in FLOATS:
            r._requires_grad = True
            r.node = Edge(node, i)


def _type_of(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_type_of(v) for v in value)
    return array_type(value.key) if isinstance(value, ndarray) else value
