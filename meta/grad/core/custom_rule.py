"""A call on the tape whose gradient is what a user's rule says; see `meta.custom_vjp`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextvars import copy_context
from typing import Any

from meta.base.call_context import context, override_context
from meta.base.dtype import has_gradient
from meta.base.errors import GradientError, MetaError
from meta.base.registry import OPERATORS
from meta.base.source import Span, user_line
from meta.grad.core.arguments import Arrays
from meta.grad.core.checkpoint import run_checkpointed
from meta.grad.core.functional import by_tape
from meta.grad.core.tape import Edge, next_order, source_id, source_of, version_of, zeros
from meta.op.core import tree
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.no_gradient import is_recording, set_recording


def run_with_rule(
    name: str,
    xs: Sequence[ndarray],
    run: Callable[[bool], tuple[Any, Any]],
    pull: Callable[[Any, Arrays], Arrays],
    require_linear: Callable[[Any, Arrays], None],
) -> Any:
    """Return what a function computes of ``xs``, a container of arrays that go back by its rule.

    run: returns the result, and what is kept for the rule where it is given True. The tape keeps
    that and ``xs``; it runs it again where what is kept is differentiated. pull: returns gradients
    of ``xs``, None for zeros, of what is kept and of gradients of the leaves of the result, which
    are None for integers. require_linear: of the same, raises where the rule has no transpose.
    """
    sources = [source_of(x) for x in xs]
    moves = any(s is not None for s in sources)
    if not is_recording():
        return _arrays(run(False)[0])
    since = next_order()
    result, kept = run_checkpointed(lambda: _arrays(run(moves)), xs)
    leaves, structure = tree.flatten(result)
    own = {source_id(s) for s in sources}
    made = {
        a.node.node for a in (*leaves, *tree.flatten(kept)[0])
        if isinstance(a, ndarray) and isinstance(a.node, Edge) and a.node.node.order > since
    }  # fmt: skip
    closed = [s for node in made for s in node.sources if source_id(s) not in own]
    if not moves and not closed:
        return result
    leaves = [ndarray(a.tensor, a.key) for a in leaves]
    given = {id(x.tensor) for x in xs}
    node = _Node(name, kept, pull, require_linear, sources, closed, leaves, given)
    for i, array in enumerate(leaves):
        if has_gradient(array.key.dtype):
            array.tracked = True
            array.node = Edge(node, i)
    return tree.unflatten(structure, leaves)


def _arrays(values: Any) -> Any:
    """Return containers of arrays of ours, in the place of torch's and NumPy's."""
    leaves, structure = tree.flatten(values)
    return tree.unflatten(structure, list(map(as_array, leaves)))


def transposed_gradients(
    along: Callable[[Arrays], Arrays], xs: Sequence[ndarray], dys: Arrays
) -> Arrays:
    """Return the gradients of ``xs`` by the transpose of a linear map of tangents.

    along: takes a tangent for each floating point array of ``xs``, and returns one for each
    floating point result. dys: the gradients of all results, None for integers.
    """
    floats = [has_gradient(x.dtype) for x in xs]
    starts = [OPERATORS["zeros_like"](x) for x in xs if has_gradient(x.dtype)]
    # The rule may call the function itself, through which nothing is to go: that would not end.
    _, back = by_tape(along, starts, prunes=True)
    found = iter(back([dy for dy in dys if dy is not None]))
    return [next(found) if is_float else None for is_float in floats]


class _Node:
    """One call of a function with a rule on the tape; see `tape.Node`, whose place it takes."""

    def __init__(
        self,
        name: str,
        kept: Any,
        pull: Callable[[Any, Arrays], Arrays],
        require_linear: Callable[[Any, Arrays], None],
        sources: list[Any],
        closed: list[Any],
        results: list[ndarray],
        given: set[int],
    ) -> None:
        self.name, self.pull, self.require_linear = name, pull, require_linear
        self.kept, self.structure = tree.flatten(kept)
        self.versions = version_of(tuple(self.kept))
        self.own, self.closed = sources, closed
        self.outputs = tuple(a.key for a in results)
        floats = (i for i, key in enumerate(self.outputs) if has_gradient(key.dtype))
        self.results = {p: i for i in floats if (p := id(results[i].tensor)) not in given}
        self.sources = [*sources, *closed]
        self.context = copy_context()  # mixed precision, which dialects are preferred, ...
        self.line = user_line()
        self.order = next_order()

    def gradients(self, dys: list[ndarray | None]) -> Iterator[tuple[Any, ndarray]]:
        """Yield (source, gradient) for what a gradient goes to."""
        span = None if self.line is None else Span(*self.line)
        if self.closed:
            raise GradientError(
                f"{self.name} would be differentiated by what it closes over, of which its rule "
                "knows nothing",
                hint="hand it in as an argument, or take meta.detach of it",
                span=span,
            )
        filled = [
            dy if dy is not None else zeros(key) if has_gradient(key.dtype) else None
            for dy, key in zip(dys, self.outputs, strict=True)
        ]
        if version_of(tuple(self.kept)) != self.versions:
            raise GradientError(
                f"what the rule of {self.name} needs was written in place after the call",
                hint="call backward before the write, or write to a copy (meta.copy)",
                span=span,
            )
        kept = tree.unflatten(self.structure, list(map(self._linked, self.kept)))
        check, recording = context.get().transposes, is_recording()

        def run() -> Arrays:
            with set_recording(recording), override_context(transposes=False):
                if check:
                    self.require_linear(kept, filled)
                return self.pull(kept, filled)

        try:
            found = self.context.copy().run(run)
        except MetaError as error:
            error.note(f"in the gradient of {self.name}, called at {span}")
            raise
        for source, gradient in zip(self.own, found, strict=True):
            if source is not None and gradient is not None:
                yield source, gradient

    def _linked(self, value: Any) -> Any:
        """Return what was kept; of what is a result, an alias that leads to this node, if recorded:
        the derivative of a result is the rule's.
        """
        if isinstance(value, ndarray) and id(value.tensor) in self.results and is_recording():
            value = ndarray(value.tensor, value.key)
            value.tracked, value.node = True, Edge(self, self.results[id(value.tensor)])
        return value
