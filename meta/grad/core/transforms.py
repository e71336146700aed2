"""Derivatives of functions as people compose them: `vjp` and `jvp`, and what is made of the two.

All of it works eagerly, by the tape, and in code that is traced, by the passes `autodiff` and
`jvp`; so a transformed function can be transformed, traced and compiled in turn. Arguments and
results are arrays or nested tuples, lists and dicts of them.

Forward mode needs no rule of an operator: a gradient is linear in the direction that it is given,
and its own gradient by that is what goes forward.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from meta.base.call_context import current, override_context
from meta.base.errors import ArgumentError
from meta.base.registry import OPERATORS
from meta.grad.core.arguments import Arrays, is_leaf, with_aux, zeros_for
from meta.grad.core.functional import Linear, differentiate
from meta.op.core import tree
from meta.op.core.tracing import Trace

in_trace: list[Callable[..., tuple[Arrays, Arrays]]] = []
"""What `jvp` does where code is traced; set once by `meta.model.gradient`, which may use passes:
``(trace, run, given, tangents)``.
"""


def vjp(f: Callable[..., Any], *primals: Any, has_aux: bool = False) -> Any:
    """Return f's result and its pullback: from a gradient by the result to those by the arguments.

    f: a function of arrays or of nested containers of them, whose floating point results are
    differentiated; with ``has_aux`` it returns ``(result, aux)``, and aux is only handed on. The
    pullback takes ``dy``, arrays of the types and in the structure of the result, and returns a
    tuple with a gradient for each argument, in its structure; integers have None. It may be called
    any number of times. Returns ``(result, pullback)``, with aux ``(result, pullback, aux)``.

    Raises ArgumentError for a ``dy`` in another structure, and GradientError where an operator has
    no gradient.

    >>> import meta
    >>> x, a = meta.array([1.0, 2.0]), meta.array(3.0)
    >>> y, pull = meta.grad.vjp(lambda x, a: (a * x, meta.sum(x)), x, a)
    >>> [dx.tolist() for dx in pull((meta.array([1.0, 10.0]), meta.array(0.5)))]
    [[3.5, 30.5], 21.0]
    """
    call = Call(f, primals, has_aux)
    ys, pull = differentiate(call.run, call.leaves)

    def pullback(dy: Any) -> tuple[Any, ...]:
        given = call.same_structure(dy, call.out, "dy", "the result")
        gradients = pull([*given, *(None for _ in ys[len(given) :])])
        found: tuple[Any, ...] = call.like_arguments(gradients)
        return found

    return call.result(ys, pullback)


def jvp(
    f: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], has_aux: bool = False
) -> Any:
    """Return f's result and its derivative along a direction: ``(f(x), d/de f(x + e t))`` at 0.

    primals: f's arguments; tangents: for each one of the same structure, types and shapes, None
    for what does not move. Integers in the result have the tangent None. With ``has_aux``, f
    returns ``(result, aux)``, and so a third value is returned.

    Raises what `vjp` raises, and GradientError for an operator whose gradient has none.

    >>> import meta
    >>> x = meta.array([1.0, 2.0])
    >>> y, dy = meta.grad.jvp(lambda x: meta.sum(x * x), (x,), (meta.array([1.0, 0.5]),))
    >>> y.item(), dy.item()
    (5.0, 4.0)
    """
    call = Call(f, tuple(primals), has_aux)
    moves = call.same_structure(tuple(tangents), call.structure, "tangents", "the arguments")
    handler = current()
    if isinstance(handler, Trace):
        given = [handler.lift(leaf) for leaf in call.leaves]
        ys, dys = in_trace[0](handler, call.run, given, moves)
    else:
        ys, pull = differentiate(call.run, call.leaves)
        dys = transposed(pull, ys)(moves)
    return call.result(ys, call.like_result(dys))


def linearize(f: Callable[..., Any], *primals: Any) -> tuple[Any, Callable[..., Any]]:
    """Return f's result and its derivative there, a linear function of tangents like the arguments.

    Calls of it do not compute f again, and each may move in another direction.

    >>> import meta
    >>> y, push = meta.grad.linearize(meta.exp, meta.array(0.0))
    >>> push(meta.array(2.0)).item()
    2.0
    """
    call = Call(f, primals, False)
    ys, pull = differentiate(call.run, call.leaves)
    forward = transposed(pull, ys)

    def push(*tangents: Any) -> Any:
        moves = call.same_structure(tangents, call.structure, "tangents", "the arguments")
        return call.like_result(forward(moves))

    result: tuple[Any, Callable[..., Any]] = call.result(ys, push)
    return result


class Call:
    """A call of a function, its arguments and its results taken apart.

    Attributes
    ----------
    leaves, structure: of the arguments. out, aux: the structures of the result and of what is
    handed on beside it, which follows the ``count`` leaves of the result in flat lists; known once
    `run` was called.
    """

    def __init__(self, f: Callable[..., Any], primals: tuple[Any, ...], has_aux: bool) -> None:
        if not callable(f):
            raise ArgumentError("a function is differentiated", found=type(f).__name__)
        self.f, self.has_aux = f, has_aux
        self.name = getattr(f, "__name__", type(f).__name__)
        self.leaves, self.structure = tree.flatten(primals, is_leaf)
        self.out: Any = None
        self.aux: Any = None
        self.count = 0

    def run(self, leaves: Arrays) -> Arrays:
        """Return the flat results for flat arguments."""
        found, aux = self.f(*tree.unflatten(self.structure, leaves)), None
        if self.has_aux:
            found, aux = with_aux(found, self.name)
        (ys, self.out), (others, self.aux) = tree.flatten(found, is_leaf), tree.flatten(aux)
        self.count = len(ys)
        return [*ys, *others]

    def same_structure(self, given: Any, structure: Any, name: str, of: str) -> Arrays:
        """Return the leaves of what has a structure, None for some; ArgumentError if it has
        another.
        """
        leaves, found = tree.flatten(given, lambda value: value is None or is_leaf(value))
        if tree.fingerprint(found) != tree.fingerprint(structure):
            raise ArgumentError(
                f"{name} has another structure than {of}",
                expected=tree.text(structure),
                found=tree.text(found),
                hint="None stands for zeros",
            )
        return leaves

    def like_arguments(self, gradients: Arrays) -> Any:
        """Return gradients in the structure of the arguments, zeros for what has none."""
        pairs = zip(self.leaves, gradients, strict=True)
        return tree.unflatten(self.structure, [zeros_for(x, g) for x, g in pairs])

    def like_result(self, tangents: Arrays) -> Any:
        """Return tangents in the structure of the result."""
        return tree.unflatten(self.out, tangents)

    def result(self, ys: Arrays, *derived: Any) -> Any:
        """Return results in their structure, what was derived, and what is handed on."""
        value = tree.unflatten(self.out, ys[: self.count])
        beside = (tree.unflatten(self.aux, ys[self.count :]),) if self.has_aux else ()
        return (value, *derived, *beside) if derived or beside else value


def tangents_in_trace(call: Call, moves: Arrays) -> Arrays:
    """Return the tangents of a call's results where code is traced."""
    handler = current()
    assert isinstance(handler, Trace)
    given = [handler.lift(leaf) for leaf in call.leaves]
    return in_trace[0](handler, call.run, given, moves)[1]


def transposed(pull: Linear, ys: Arrays) -> Linear:
    """Return the tangents of results by those of arguments: a pullback's own gradient by what it
    takes.
    """
    reached = list[int]()

    def run(dys: Arrays) -> Arrays:
        with override_context(transposes=True):
            gradients = pull(dys)
        reached[:] = [i for i, g in enumerate(gradients) if g is not None]
        return [gradients[i] for i in reached]

    _, forward = differentiate(run, [OPERATORS["zeros_like"](y) for y in ys])

    def push(tangents: Arrays) -> Arrays:
        found = forward([tangents[i] for i in reached])
        return [zeros_for(y, t) for y, t in zip(ys, found, strict=True)]

    return push
