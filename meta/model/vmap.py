"""`vmap`: a function of one example as a function of many."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from meta import op
from meta.base.call_context import current
from meta.base.errors import ArgumentError
from meta.grad.core import jacobians
from meta.model.gradient import subprogram
from meta.model.trace import trace
from meta.op.core import tree
from meta.op.core.check import normalize_axis
from meta.op.core.tracing import Trace
from meta.passes.batching import RANDOMNESS, batch
from meta.runtime.no_gradient import is_recording

Axes = Any
"""An axis, None for what is the same for all examples, or containers of these."""


def vmap(
    f: Callable[..., Any],
    in_axes: Axes = 0,
    out_axes: Axes = 0,
    *,
    axis_size: int | None = None,
    chunk_size: int | None = None,
    randomness: str = "error",
) -> Callable[..., Any]:
    """Return a function that applies f to each example of its arguments, in one pass.

    f: a function of arrays, or nested containers of them, and of Python values. in_axes: along
    which axis of the arguments the examples lie, None for what all share: one for all, or a tuple
    with one for each argument, in which containers have one for all or one for each of their parts.
    Arguments by name are taken along axis 0. out_axes: likewise, where the examples lie in the
    result; None for what does not depend on the example. axis_size: the number of examples, if no
    argument has any. chunk_size: at most so many at a time. randomness: what a random draw in f is:
    "different" for each example, the "same" (not in chunks), or an "error".

    f is traced: it must not decide in Python by values, and what it closes over is a constant. It
    may be differentiated, contain ``meta.grad`` transforms and other ``vmap``, and be compiled. An
    operator without a rule runs example by example; ``loops`` of the returned function names those
    of the last call.

    Raises ArgumentError for axes that do not fit, and what tracing f and `batch` raise.

    >>> import meta
    >>> x, w = meta.array([[1.0, 2.0], [3.0, 4.0]]), meta.array([1.0, 10.0])
    >>> meta.model.vmap(lambda x, w: meta.sum(x * w), (0, None))(x, w).tolist()
    [21.0, 43.0]
    """
    if not callable(f):
        raise ArgumentError("vmap is given a function", found=type(f).__name__)
    if randomness not in RANDOMNESS:
        raise ArgumentError(
            "unknown randomness", expected=" or ".join(map(repr, RANDOMNESS)), found=randomness
        )
    if chunk_size is not None and (type(chunk_size) is not int or chunk_size < 1):
        raise ArgumentError("chunk_size is a number of examples", found=repr(chunk_size))

    @functools.wraps(f, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        leaves, structure = tree.flatten((args, kwargs))
        for_args = in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args)
        along = [
            *_axes_of_leaves(for_args, args, "in_axes"),
            *_axes_of_leaves(0, kwargs, "in_axes"),
        ]
        size = _size(leaves, along, axis_size)
        moved = [x if a is None else _moved(x, a, 0) for x, a in zip(leaves, along, strict=True)]
        starts = range(0, size, chunk_size) if chunk_size is not None else range(1)
        if len(starts) <= 1:
            return _applied(run, f, moved, along, structure, size, size, out_axes, randomness)
        parts = []
        for start in starts:
            stop = min(start + chunk_size, size)  # type: ignore[operator]
            some = [x if a is None else x[start:stop] for x, a in zip(moved, along, strict=True)]
            parts.append(
                _applied(run, f, some, along, structure, stop - start, size, out_axes, randomness)
            )
        flat = [tree.flatten(part) for part in parts]
        ends = _axes_of_leaves(out_axes, parts[0], "out_axes")
        found = [
            column[0] if a is None else op.concat(column, a)
            for a, *column in zip(ends, *(some for some, _ in flat), strict=True)
        ]
        return tree.unflatten(flat[0][1], found)

    run.loops = ()  # type: ignore[attr-defined]
    return run


jacobians.in_trace.append(lambda f, rows: vmap(f)(rows))


def _applied(
    run: Any,
    f: Callable[..., Any],
    leaves: list[Any],
    axes: list[int | None],
    structure: Any,
    size: Any,
    total: Any,
    out_axes: Axes,
    randomness: str,
) -> Any:
    """Return f of ``size`` examples of a ``total``, which lie along the first axis of the leaves
    that have an axis.
    """
    out: Any = None
    handler: Any = None
    trained: list[Any] = []

    def of_example(new: list[Any]) -> list[Any]:
        nonlocal out
        args, kwargs = tree.unflatten(structure, new)
        found, out = tree.flatten(f(*args, **kwargs))
        return found

    def in_trace(given: Sequence[Any], closed: Sequence[Any] = ()) -> list[Any]:
        nonlocal handler
        handler = current()
        assert isinstance(handler, Trace)
        values = [handler.lift(x) for x in given]
        for array, x in zip(trained, closed, strict=True):
            handler.bind(array, handler.lift_tensor(x))
        types = [
            v.type if a is None else v.type.with_shape(v.type.shape[1:])
            for v, a in zip(values, axes, strict=True)
        ]
        module, captured = subprogram(handler, of_example, types)
        batched = [a is not None for a in axes] + [False] * len(captured)
        made = batch(module, batched, size, randomness=randomness, device=handler.device)
        run.loops = made.loops
        if made.random and randomness == "same" and size != total:
            raise ArgumentError(
                "examples of several chunks do not draw the same numbers",
                hint="vmap without chunk_size; or draw outside of f, and hand the numbers in",
            )
        results = handler.inline(made.module, [*(v.atom for v in values), *captured])
        ends = _axes_of_leaves(out_axes, tree.unflatten(out, list(results)), "out_axes")
        return [
            _result(y, is_batched, axis, size)
            for y, is_batched, axis in zip(results, made.batched, ends, strict=True)
        ]

    if isinstance(current(), Trace):
        found = in_trace(leaves)
        return tree.unflatten(out, found)  # which was not known before
    found = trace(in_trace)(leaves)
    assert isinstance(handler, Trace)
    trained = handler.constants_with_gradient() if is_recording() else []
    if trained:  # what f closes over has a gradient: it is an argument, too
        found = trace(in_trace)(leaves, trained)
    return tree.unflatten(out, found)


def _result(y: Any, is_batched: bool, axis: int | None, size: Any) -> Any:
    if axis is None:
        if is_batched:
            raise ArgumentError(
                "out_axes is None for a result that depends on the example", found=repr(y)
            )
        return y
    full = y if is_batched else op.broadcast_to(y, (size, *y.shape))
    return _moved(full, 0, normalize_axis(axis, full.ndim))


def _moved(x: Any, source: int, target: int) -> Any:
    """Return an array, one axis of which has another place."""
    source = normalize_axis(source, x.ndim)
    if source == target:
        return x
    order = [i for i in range(x.ndim) if i != source]
    order.insert(target, source)
    return op.permute_dims(x, tuple(order))


def _axes_of_leaves(axes: Axes, values: Any, name: str) -> list[int | None]:
    """Return an axis for each array in values, of a tree of axes that may end before theirs."""
    if axes is None or type(axes) is int:
        return [axes for _ in tree.flatten(values)[0]]
    fits = type(axes) is type(values) and len(axes) == len(values)
    if isinstance(axes, dict) and fits and axes.keys() == values.keys():
        return [a for key in values for a in _axes_of_leaves(axes[key], values[key], name)]
    if isinstance(axes, tuple | list) and fits:
        pairs = zip(axes, values, strict=True)
        return [a for part, value in pairs for a in _axes_of_leaves(part, value, name)]
    raise ArgumentError(
        f"{name} does not have the structure of what it is for",
        expected=tree.text(tree.flatten(values)[1]),
        found=repr(axes),
        hint="an axis, None, or containers of these like the arguments (or the result)",
    )


def _size(leaves: list[Any], axes: list[int | None], axis_size: int | None) -> Any:
    """Return the number of examples; ArgumentError if it is not one number."""
    found = []
    for leaf, axis in zip(leaves, axes, strict=True):
        if axis is None:
            continue
        shape = leaf.shape
        if not -len(shape) <= axis < len(shape):
            raise ArgumentError(
                "an argument has no such axis of examples", expected=f"axis {axis}", found=shape
            )
        found.append(shape[axis])
    if axis_size is not None:
        found.append(axis_size)
    if not found:
        raise ArgumentError(
            "no argument has an axis of examples", hint="say how many there are: axis_size="
        )
    if any(n != found[0] for n in found):
        raise ArgumentError("arguments have different numbers of examples", found=found)
    return found[0]
