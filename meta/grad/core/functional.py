"""Gradients of a function by its arguments, of the tape or of a trace: `value_and_grad` of one
number, `pullback` of any results, given the gradient by them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch

from meta.base.call_context import current, use
from meta.base.dtype import COMPLEX, has_gradient
from meta.base.errors import ArgumentError, GradientError
from meta.base.registry import OPERATORS
from meta.grad.core.arguments import Argument, Arrays, ByArguments, with_aux, zeros_for
from meta.grad.core.checkpoint import Recorder
from meta.grad.core.tape import (
    Edge,
    Node,
    next_order,
    propagate,
    source_id,
    source_of,
    sources_of,
    zeros,
)
from meta.op.core import tree
from meta.op.core.tracing import Trace
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.no_gradient import NoGradient, is_recording, set_recording
from meta.runtime.torch_leaf import TorchLeaf

Linear = Callable[[Arrays], Arrays]
"""A linear map of flat lists of arrays, in which None stands for zeros."""

in_trace: list[Callable[[Trace, Callable[[Arrays], Arrays], Arrays], tuple[Arrays, Linear]]] = []
"""What `differentiate` does where code is traced; set once by `meta.model.gradient`, which may use
the passes: ``(trace, run, given)``, where ``run`` takes symbols for ``given``.
"""
gradient_in_trace: list[Callable[[Trace, Callable[[Arrays], Arrays], Arrays, str], Any]] = []
"""What `value_and_grad` does there: it gives the results, and the gradient of the first of them."""


def value_and_grad(
    f: Callable[..., Any], wrt: Argument | Sequence[Argument] = 0, *, has_aux: bool = False
) -> Callable[..., tuple[Any, Any]]:
    """Return a function of f's arguments that returns f's result and its gradient.

    f: a function of arrays, or a model, whose result is one real floating point number, an array
    with one element. wrt: by which arguments, each by position or by name. An argument may be an
    array, a Python float, or a nested tuple, list or dict of these; its gradient has the same
    structure, shapes and dtypes. Of several arguments there is a tuple of gradients. What the
    result does not depend on has zeros. has_aux: f returns ``(result, aux)``, and what is made of
    it ``((result, aux), gradient)``; aux, arrays in containers, is only handed on.

    It works eagerly, in code that is traced and so in compiled programs, and may be applied to
    itself for higher derivatives, as far as the operators' gradients have gradients. Results are
    tracked only where they depend on arrays outside that require a gradient, such as parameters.
    Nobody's ``grad`` attribute changes. The gradients of a model's parameters are
    `meta.model.value_and_grad`'s.

    Raises ArgumentError for a ``wrt`` that is no argument, and GradientError for an argument that
    is not floating point, for a result that is not one number, and for one that does not depend on
    any of the arguments.

    >>> import meta
    >>> slope = meta.grad.value_and_grad(lambda x, a: meta.sum(a * x * x))
    >>> y, dx = slope(meta.array([1.0, 2.0]), 3.0)
    >>> y.item(), dx.tolist()
    (15.0, [6.0, 12.0])
    """
    by = ByArguments(f, wrt, "value_and_grad")

    def run(*args: Any, **kwargs: Any) -> tuple[Any, Any]:
        call = by.bound(args, kwargs)
        aux: Any = None

        def of_leaves(new: Arrays) -> Arrays:
            nonlocal aux
            value = call.run(new)
            if has_aux:
                value, aux = with_aux(value, by.name)
            if not tree.is_array(value):
                raise GradientError(
                    f"the result of {by.name} is no array", found=type(value).__name__,
                    hint="return one array with one element",
                )  # fmt: skip
            others, aux = tree.flatten(aux)
            return [value, *others]

        handler = current()
        if isinstance(handler, Trace):
            given = [handler.lift(leaf) for leaf in call.leaves]
            (value, *others), gradients = gradient_in_trace[0](handler, of_leaves, given, by.name)
        else:
            (value, *others), pull = by_tape(of_leaves, list(map(as_array, call.leaves)))
            require_number(value.shape, value.dtype, by.name)
            gradients = pull([OPERATORS["ones_like"](value), *(None for _ in others)])
        if all(g is None for g in gradients):
            raise unused_arguments_error(by.name)
        filled = [zeros_for(x, g) for x, g in zip(call.leaves, gradients, strict=True)]
        return (value, tree.unflatten(aux, others)) if has_aux else value, call.like(filled)

    return by.wrapped(run)


def pullback(f: Callable[..., Any], inputs: Sequence[Any], dy: Any) -> tuple[Any, ...]:
    """Return the gradients of ``sum(f(*inputs) * dy)`` by floating point inputs.

    It works eagerly and under a trace, where the forward result is dead code. dy: an array of the
    result's type; for a function of several results, a tuple of them, None for one without.

    Raises GradientError if the results depend on none of the inputs.

    >>> import meta
    >>> x = meta.array([1.0, 2.0])
    >>> [dx.tolist() for dx in pullback(meta.square, (x,), meta.array([1.0, 10.0]))]
    [[2.0, 40.0]]
    """

    several = isinstance(dy, tuple)
    _, pull = differentiate(lambda xs: list(f(*xs)) if several else [f(*xs)], list(inputs))
    gradients = pull([*dy] if several else [dy])
    if all(g is None for g in gradients):
        raise unused_arguments_error("a function")
    return tuple(zeros_for(x, g) for x, g in zip(inputs, gradients, strict=True))


def require_number(shape: Any, dtype: str, name: str) -> None:
    """Raise GradientError unless a result is one real floating point number."""
    ones = all(extent == 1 for extent in shape)
    if not ones or not has_gradient(dtype) or dtype in COMPLEX:
        raise GradientError(
            f"the result of {name} is not one floating point number",
            expected="an array with one element",
            found=f"{dtype}{list(shape)}",
            hint="reduce it, for example with meta.sum or meta.mean",
        )


def unused_arguments_error(name: str) -> GradientError:
    """Return the error for a result that has nothing to do with the arguments."""
    return GradientError(
        f"the result of {name} does not depend on the arguments that it is differentiated by",
        hint="compute it from the arguments with operators of meta, and name others in wrt=",
    )


def differentiate(run: Callable[[Arrays], Arrays], given: Arrays) -> tuple[Arrays, Linear]:
    """Return ``run(given)`` and its pullback, both of flat lists: of the trace that is current, or
    of the tape.

    The pullback takes a gradient for each result, None for zeros, and returns one for each of
    ``given``: None where nothing was reached, and for integers. It may be called again, also where
    it is itself recorded or traced.
    """
    handler = current()
    if isinstance(handler, Trace):
        return in_trace[0](handler, run, [handler.lift(value) for value in given])
    return by_tape(run, list(map(as_array, given)))


def by_tape(
    run: Callable[[Arrays], Arrays], given: Arrays, prunes: bool = False
) -> tuple[Arrays, Linear]:
    """Return what `differentiate` does, of the tape. prunes: whether the pullback leaves out nodes
    that do not lead to ``given``, whose gradients nobody asks for.
    """
    records, since = is_recording(), next_order()
    with set_recording(True):
        xs = [_alias(a, records) if has_gradient(a.dtype) else a for a in given]
        ys = [as_array(y) for y in run(list(xs))]
    sources = [source_of(x) for x in xs]
    edges = {(s.node, s.index) for s in sources if isinstance(s, Edge)}
    own = {source_id(s) for s in sources}
    starting = [source_of(y) for y in ys if y.tracked]
    useful = _nodes_leading_to(own, starting, since) if prunes else None
    linked = records and any(_leads_elsewhere(source_of(y), own, since) for y in ys if y.tracked)

    def pull(dys: Arrays) -> Arrays:
        moved = any(isinstance(dy, ndarray) and dy.tracked for dy in dys)
        again = is_recording() and (linked or moved)
        leaves, starts = GradientAccumulator(sources), []
        for y, dy in zip(ys, dys, strict=True):
            if y.node.__class__ is NoGradient and y.node.missing:
                raise y.node.error()
            if dy is not None and source_of(y) is not None:
                starts.append((source_of(y), y.seed(dy, again)))
        with set_recording(again), use(None):
            ends = propagate(starts, leaves.add, edges, since, useful)
            leaves.through_torch(again)
        found = [
            None
            if source is None
            else ends.get((source.node, source.index))
            if isinstance(source, Edge)
            else leaves.gradient(source)
            for source in sources
        ]
        return found if again else [g if g is None else g.detach() for g in found]

    return (ys if linked else [y.detach() for y in ys]), pull


def _alias(array: ndarray, records: bool) -> ndarray:
    """Return an array of the same values that gradients are taken by: one that is recorded outside
    stays linked to where it came from.
    """
    if records and array.tracked and array.node.__class__ is not NoGradient:
        copied: ndarray = OPERATORS["copy"](array)
        return copied
    alias = ndarray(array.tensor, array.key)
    alias.requires_grad = True
    handler = current()
    if isinstance(handler, Recorder):
        handler.alias(alias, array)
    return alias


def _nodes_leading_to(own: set[Any], starts: Arrays, since: int) -> set[Node]:
    """Return the nodes from ``since`` on through which gradients of ``starts`` go to the sources of
    ``own``, which are known by their places.
    """
    edges = (s for s in sources_of(tuple(starts), since) if isinstance(s, Edge))
    found = set[Node]()
    for node in sorted({e.node for e in edges if e.node.order >= since}, key=lambda n: n.order):
        direct = sources_of(tuple(node.sources), node.order)
        if any(source_id(s) in own or (isinstance(s, Edge) and s.node in found) for s in direct):
            found.add(node)
    return found


def _leads_elsewhere(start: Any, own: set[Any], since: int) -> bool:
    """Whether what was recorded leads to anything but the arrays of ``own``, which are known by
    their places.
    """
    return any(
        source_id(source) not in own
        for source in sources_of(start, since)
        if not isinstance(source, Edge) or source.node.order < since
    )


# `grad`: gradients of chosen arrays, of what the tape recorded; `GradientAccumulator`, which
# collects them.


def grad(
    y: Any,
    x: Any = None,
    dy: Any = None,
    *,
    create_graph: bool = False,
    wrt: Argument | Sequence[Argument] = 0,
    has_aux: bool = False,
) -> Any:
    """Return the gradient of ``sum(y * dy)`` by ``x``; nobody's ``grad`` attribute changes.

    Of a function, ``grad(f, wrt=0, has_aux=False)`` is the function of its gradient by arguments,
    the second of what `value_and_grad` returns; with ``has_aux`` it returns ``(gradient, aux)``.

    y: an array that was computed, or several, whose gradients are then summed. dy: for each, an
    array of its shape; None stands for 1 where y has one element. x: an array that requires a
    gradient, or that was computed from one; or several; torch's tensors are taken, too.
    create_graph: record the computation of the gradient, so that it can itself be differentiated,
    by x and by dy.

    Result: an array of x's type, or a tuple with one per array; zeros where y does not depend on
    it. Raises ArgumentError without x, GradientError if nothing was recorded for y or x, if y was
    computed by an operator whose gradient was not stated, and if what led from x to y went through
    torch in between.

    >>> import meta
    >>> x = meta.array(3.0)
    >>> x.requires_grad = True
    >>> slope = meta.grad.grad(x * x * x, x, create_graph=True)
    >>> meta.grad.grad(slope, x).item()
    18.0
    >>> meta.grad.grad(lambda x: x * x * x)(x).item()
    27.0
    """
    if callable(y):
        return _of_function(y, wrt if x is None else x, has_aux)
    if x is None:
        raise ArgumentError(
            "grad is given what was computed, and by what it is differentiated",
            op="grad",
            expected="grad(y, x) of arrays, or grad(f) of a function",
            found=f"{type(y).__name__} and no x",
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


def _of_function(
    f: Callable[..., Any], wrt: Argument | Sequence[Argument], has_aux: bool
) -> Callable[..., Any]:
    both = value_and_grad(f, wrt, has_aux=has_aux)

    @functools.wraps(both)
    def run(*args: Any, **kwargs: Any) -> Any:
        value, gradient = both(*args, **kwargs)
        return (gradient, value[1]) if has_aux else gradient

    return run


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
