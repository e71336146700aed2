"""`grad`: gradients of chosen arrays, of what the tape recorded; `GradientAccumulator`, which
collects them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from meta.base.call_context import use
from meta.base.errors import ArgumentError, GradientError
from meta.base.registry import OPERATORS
from meta.grad.core.tape import Edge, propagate, source_id, source_of, sources_of, zeros
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.no_gradient import NoGradient, set_recording
from meta.runtime.torch_leaf import TorchLeaf


def grad(
    y: ndarray | Sequence[ndarray],
    x: ndarray | Sequence[ndarray] | None = None,
    dy: Any = None,
    *,
    create_graph: bool = False,
) -> ndarray | tuple[ndarray, ...]:
    """Return the gradient of ``sum(y * dy)`` by ``x``; nobody's ``grad`` attribute changes.

    y: an array that was computed, or several, whose gradients are then summed. dy: for each, an
    array of its shape; None stands for 1 where y has one element. x: an array that requires a
    gradient, or that was computed from one; or several; torch's tensors are taken, too.
    create_graph: record the computation of the gradient, so that it can itself be differentiated,
    by x and by dy.

    Result: an array of x's type, or a tuple with one per array; zeros where y does not depend on
    it. Raises ArgumentError without x, and for a function: `value_and_grad` differentiates those;
    GradientError if nothing was recorded for y or x, if y was computed by an operator whose
    gradient was not stated, and if what led from x to y went through torch in between.

    >>> import meta
    >>> x = meta.array(3.0)
    >>> x.requires_grad = True
    >>> slope = grad(x * x * x, x, create_graph=True)
    >>> grad(slope, x).item()
    18.0
    """
    if callable(y) or x is None:
        raise ArgumentError(
            "grad is given what was computed, and by what it is differentiated",
            op="grad",
            expected="grad(y, x) of arrays",
            found=f"{type(y).__name__} and {'no x' if x is None else type(x).__name__}",
            hint="of a function: meta.grad.value_and_grad(f)(x) returns its result and gradient",
        )
    one_y, one_x = (isinstance(given, ndarray | torch.Tensor) for given in (y, x))
    ys = tuple(map(as_array, (y,) if one_y else y))
    xs = tuple(map(as_array, (x,) if one_x else x))
    dys = (dy,) if one_y else (None,) * len(ys) if dy is None else tuple(dy)
    for array in (*ys, *xs):
        if array.node.__class__ is NoGradient:
            raise array.node.error()
        if not array.tracked:
            raise GradientError(
                "this array has no gradient: it neither requires one, nor was it computed from one "
                "that does",
                found=f"shape {array.shape}, dtype {array.dtype}",
                hint="set requires_grad = True on the inputs before the computation",
            )
    sources = [source_of(a) for a in xs]
    leaves = GradientAccumulator(sources)
    with set_recording(create_graph), use(None):
        starts = [(source_of(a), a.seed(d, create_graph)) for a, d in zip(ys, dys, strict=True)]
        edges = {(s.node, s.index) for s in sources if isinstance(s, Edge)}
        computed = propagate(starts, leaves.add, edges)
        leaves.through_torch(create_graph)
        found = tuple(
            computed.get((s.node, s.index)) if isinstance(s, Edge) else leaves.gradient(s)
            for s in sources
        )
        results = tuple(zeros(a.key) if g is None else g for a, g in zip(xs, found, strict=True))
    return results[0] if one_x else results


class GradientAccumulator:
    """The gradients of the leaves among wanted sources, each the sum of what reached it.

    What reaches a tensor that entered may go on, through torch, to a wanted tensor.
    """

    def __init__(self, wanted: Sequence[Any]) -> None:
        self.wanted = {source_id(s) for s in wanted}
        self.tensors = [s.tensor for s in wanted if isinstance(s, TorchLeaf)]
        self.found: dict[Any, tuple[Any, ndarray]] = {}

    def add(self, source: Any, gradient: ndarray) -> None:
        """Add what reached a source, if that is wanted or torch goes on from it."""
        place = source_id(source)
        if place in self.wanted or (isinstance(source, TorchLeaf) and source.tensor.grad_fn):
            old = self.found.get(place)
            total = gradient if old is None else OPERATORS["add"](old[1], gradient)
            self.found[place] = source, total

    def gradient(self, source: Any) -> ndarray | None:
        """Return what reached a wanted leaf; None if nothing did."""
        found = self.found.get(source_id(source))
        return None if found is None else found[1]

    def through_torch(self, create_graph: bool) -> None:
        """Let torch go on from tensors that it has computed; GradientError if it leads back to a
        wanted array, of which its engine knows nothing.
        """
        pairs = [(s, g) for s, g in self.found.values() if isinstance(s, TorchLeaf)]
        if not any(s.tensor.grad_fn for s, _ in pairs):
            return
        if any(source_id(s) in self.wanted for s in _ancestors([s.tensor for s, _ in pairs])):
            raise GradientError(
                "what is differentiated went from meta through torch and back, which is not "
                "followed from array to array",
                hint="y.backward() goes through both; or torch.autograd.grad, by a torch tensor; "
                "or compute all of it with operators of meta",
            )
        if not self.tensors:
            return
        gradients = torch.autograd.grad(
            [s.tensor for s, _ in pairs],
            self.tensors,
            [g.torch() for _, g in pairs],
            retain_graph=True,
            create_graph=create_graph,
            allow_unused=True,
        )
        for tensor, gradient in zip(self.tensors, gradients, strict=True):
            self.found.pop(id(tensor), None)  # which torch has counted
            if gradient is not None:
                self.found[id(tensor)] = TorchLeaf(tensor), as_array(gradient)


def _ancestors(tensors: Iterable[torch.Tensor]) -> Iterator[Any]:
    """Yield the sources of `meta`, tensors that entered left out, that tensors were computed from,
    through torch and back as often as it went.
    """
    stack, seen = [t.grad_fn for t in tensors], set()
    while stack:
        step = stack.pop()
        if step is None or step in seen:
            continue
        seen.add(step)
        for source in sources_of(getattr(step, "left_at", None)):
            if not isinstance(source, TorchLeaf):
                yield source
        stack.extend(before for before, _ in step.next_functions)
