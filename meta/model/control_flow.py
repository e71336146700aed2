"""`cond`, `while_loop` and `scan`: control flow by the values of arrays.

While tracing, `cond` becomes an `If`, and a loop a global function that calls itself in tail
position, which the executors run in constant space. Elsewhere they are Python's `if` and `while`,
so that the eager tape records what was run.

The functions given take and return nested tuples, lists and dicts of arrays; in which order a dict
has its keys does not matter. They may use arrays,
parameters of a model and traced values of the code around. A Python number among what is carried or
returned is an array as `meta.array` makes it.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isqrt
from typing import Any

from meta import op
from meta.base.call_context import current
from meta.base.errors import TraceError, TypeInferError
from meta.ir import Block, If
from meta.ir.dims import SymbolicDim
from meta.model.loop import (
    HINT,
    Carry,
    Loop,
    function_name,
    next_carry,
    pack,
    packed_type,
    predicate,
    require_functions,
    truth,
    unpack,
)
from meta.op.core.tracing import BlockTrace, Symbol, Trace
from meta.runtime.ndarray import array


def cond(
    pred: Any, then_fn: Callable[..., Any], else_fn: Callable[..., Any], *operands: Any
) -> Any:
    """Return ``then_fn(*operands)`` if ``pred`` is true, else ``else_fn(*operands)``.

    pred: a bool array without axes; a Python bool chooses at once, also while tracing. Both
    functions must return the same structure of the same types. Traced, both are traced and one is
    run.

    Raises TypeInferError for another ``pred``, and TraceError, while tracing, for branches that
    differ.

    >>> import meta
    >>> x = meta.array(-3.0)
    >>> meta.model.cond(x < 0.0, lambda: -x, lambda: x).item()
    3.0
    """
    require_functions(then_fn, else_fn)
    trace = current()
    if isinstance(pred, bool) or not isinstance(trace, Trace):
        chosen = then_fn if truth(pred, "pred") else else_fn
        return Carry(chosen(*operands)).tree()
    condition = predicate(trace.lift(pred), "pred")
    blocks: list[Block] = []
    states: list[Carry] = []
    for function in (then_fn, else_fn):
        block = BlockTrace(trace)
        first = states[0] if states else None
        state = Carry(block.run(function, *operands), block, first)
        blocks.append(block.builder.finish(pack([s.atom for s in state.leaves])))
        states.append(state)
    then, other = states
    if then.key != other.key:
        raise TraceError(
            "the branches of cond return different types",
            expected=f"{then}, as {function_name(then_fn)} returns",
            found=f"{other}, from {function_name(else_fn)}",
            hint=HINT,
        )
    result = trace.emit(If(condition.atom, *blocks), packed_type(then.types))
    return then.tree(unpack(result))


def while_loop(cond_fn: Callable[[Any], Any], body_fn: Callable[[Any], Any], init: Any) -> Any:
    """Return the first of ``init, body_fn(init), body_fn(body_fn(init)), ...`` for which
    ``cond_fn`` is false.

    ``cond_fn(state)`` returns a bool array without axes; ``body_fn(state)`` a state of the same
    structure and types. Raises TypeInferError or TraceError if they do not.

    >>> import meta
    >>> a, b = meta.model.while_loop(lambda s: s[1] > 0, lambda s: (s[1], s[0] % s[1]), (12, 18))
    >>> a.item()
    6
    """
    require_functions(cond_fn, body_fn)
    trace = current()
    if not isinstance(trace, Trace):
        state = Carry(init)
        while truth(cond_fn(state.tree()), "cond_fn's result", cond_fn):
            state = next_carry(state, body_fn(state.tree()), "while_loop", body_fn)
        return state.tree()
    start = Carry(init, trace)
    loop = Loop(trace, "while_loop")
    state = Carry(start.tree(loop.carry(start, "state")), loop.scope)
    found = loop.scope.run(cond_fn, state.tree())
    loop.enter(predicate(loop.scope.lift(found), "cond_fn's result", cond_fn))
    new = next_carry(state, loop.body.run(body_fn, state.tree()), "while_loop", body_fn, loop.body)
    return start.tree(loop.finish(new.leaves))


def scan(
    f: Callable[[Any, Any], tuple[Any, Any]],
    init: Any,
    xs: Any,
    length: int | None = None,
    reverse: bool = False,
) -> tuple[Any, Any]:
    """Carry a state along the rows of ``xs``: ``state, y = f(state, x)`` for each row ``x``.

    xs: arrays with a first axis of one extent, at least 1, which is a number or, traced, has a
    name; None, with ``length``, where ``f`` needs none (its ``x`` is then None). reverse: from the
    last row to the first; a ``y`` has the place of its ``x`` all the same.

    Returns (the last state, the ``y`` stacked along a new first axis). ``f`` returns a state of the
    structure and types that it is given; else TraceError. Raises TypeInferError for ``xs`` that
    have no such axis.

    Cost: eagerly the rows are stacked once, at the end. Traced, a step writes its row with
    `scatter_nd`, which copies the array that it writes to; so more than 64 rows, if their number is
    known, are run along in blocks, and a step copies some 2 sqrt(n) rows of ``ys``. In the gradient
    it does the same with the rows of ``xs``.

    >>> import meta
    >>> total, sums = meta.model.scan(lambda s, x: (s + x, s + x), 0.0, meta.array([1.0, 2.0, 3.0]))
    >>> sums.numpy().tolist()
    [1.0, 3.0, 6.0]
    """
    require_functions(f)
    trace = current()
    if isinstance(trace, Trace):
        return _traced_scan(trace, f, Carry(init, trace), _Rows(xs, length, trace), reverse)
    return _eager_scan(f, Carry(init), _Rows(xs, length, None), reverse)


# Up to this many rows are one block.
_BLOCK = 64


def _traced_scan(
    trace: Trace, f: Callable[[Any, Any], Any], start: Carry, rows: _Rows, reverse: bool
) -> tuple[Any, Any]:
    """Run along the rows in one loop, or in a loop over blocks of rows."""
    if isinstance(rows.count, SymbolicDim):
        return _row_loop(trace, f, start, rows, rows.extent(), reverse)
    if rows.count <= _BLOCK:
        return _row_loop(trace, f, start, rows, rows.count, reverse)
    size = isqrt(rows.count - 1) + 1
    blocks, last = (rows.count - 1) // size + 1, (rows.count - 1) % size + 1
    counts = array([size] * (blocks - 1) + [last], device=trace.device)

    def run_block(state: Any, block: Any) -> tuple[Any, Any]:
        inner, (count, xs) = current(), block
        assert isinstance(inner, Trace)
        return _row_loop(inner, f, Carry(state, inner), _Rows(xs, size, inner), count, reverse)

    outer = _Rows((counts, rows.in_blocks(blocks, size)), None, trace)
    state, stacked = _row_loop(trace, run_block, start, outer, blocks, reverse)
    ys = Carry(stacked, trace)
    flat = [op.reshape(y, (blocks * size, *y.shape[2:]))[: rows.count] for y in ys.leaves]
    return state, ys.tree(flat)


def _row_loop(
    trace: Trace,
    f: Callable[[Any, Any], Any],
    start: Carry,
    rows: _Rows,
    count: int | Symbol,
    reverse: bool,
) -> tuple[Any, Any]:
    """Run along the first ``count`` rows in one loop; what is behind them in the result is zero."""
    loop = Loop(trace, "scan")
    where = str(trace.device)
    first = op.full((), 0, "int64", where)
    if reverse:
        first = first + (count - 1)
    (i,) = loop.carry(Carry(first, trace), "i")
    state = Carry(start.tree(loop.carry(start, "state")), loop.scope)
    more = loop.scope.run(lambda: i >= 0 if reverse else i < count)
    loop.enter(loop.scope.lift(more))
    x = loop.body.run(rows.row, i)
    new, y = _carry_and_output(f, loop.body.run(f, state.tree(), x))
    new = next_carry(state, new, "scan", f, loop.body)
    y = Carry(y, loop.body)
    buffers = [op.zeros((rows.count, *r.shape), r.dtype, where) for r in y.leaves]
    stacks = loop.carry(Carry(buffers, trace), "ys")
    at = loop.body.run(op.reshape, i, (1,))
    written = [
        loop.body.run(op.scatter_nd, s, at, r) for s, r in zip(stacks, y.leaves, strict=True)
    ]
    following = loop.body.run(lambda: i + (-1 if reverse else 1))
    results = loop.finish([following, *new.leaves, *written])
    carried = len(start.leaves)
    return start.tree(results[1 : 1 + carried]), y.tree(results[1 + carried :])


def _eager_scan(
    f: Callable[[Any, Any], Any], state: Carry, rows: _Rows, reverse: bool
) -> tuple[Any, Any]:
    ys: list[Carry] = []
    for i in reversed(range(rows.count)) if reverse else range(rows.count):
        new, y = _carry_and_output(f, f(state.tree(), rows.row(i)))
        state = next_carry(state, new, "scan", f)
        ys.append(Carry(y, like=ys[0] if ys else None))
        if ys[-1].key != ys[0].key:
            raise TraceError(
                f"the rows that {function_name(f)} returns differ",
                expected=ys[0],
                found=f"{ys[-1]}, in row {i}",
            )
    ordered = reversed(ys) if reverse else ys
    stacked = [op.stack(leaves, 0) for leaves in zip(*(y.leaves for y in ordered), strict=True)]
    return state.tree(), ys[0].tree(stacked)


class _Rows:
    """What `scan` runs along: arrays of ``count`` rows, a number or a named extent."""

    def __init__(self, xs: Any, length: int | None, trace: Trace | None) -> None:
        self.state = Carry(xs, trace)
        counts: set[Any] = {x.shape[0] if x.ndim else None for x in self.state.leaves}
        if length is not None:
            counts.add(length)
        count = counts.pop() if len(counts) == 1 else None
        named_extent = trace is not None and isinstance(count, SymbolicDim)
        if not named_extent and (type(count) is not int or count < 1):
            raise TypeInferError(
                "scan needs rows",
                expected="arrays whose first axes have one extent, which is known and at least 1, "
                "or no arrays and length=",
                found=f"xs of type {self.state}, length={length}",
            )
        self.count: Any = count

    def extent(self) -> Any:
        """Return how many rows there are as a traced scalar."""
        extents = op.shape_as_tensor(self.state.leaves[0])
        return op.reshape(op.strided_slice(extents, (0,), (1,)), ())

    def row(self, i: Any) -> Any:
        """Return row ``i``, an int or a traced index."""
        if isinstance(i, int):
            return self.state.tree([x[i] for x in self.state.leaves])
        return self.state.tree([op.take(x, i, 0, "fast") for x in self.state.leaves])

    def in_blocks(self, blocks: int, size: int) -> Any:
        """Return the arrays with their rows as ``blocks`` of ``size``, zeros at the end."""
        missing = blocks * size - self.count
        leaves = []
        for x in self.state.leaves:
            if missing:
                x = op.concat((x, op.zeros_like(x[:missing])), 0)
            leaves.append(op.reshape(x, (blocks, size, *x.shape[1:])))
        return self.state.tree(leaves)


def _carry_and_output(f: Callable[..., Any], result: Any) -> tuple[Any, Any]:
    if not isinstance(result, tuple) or len(result) != 2:
        raise TraceError(
            f"{function_name(f)} does not return what scan needs",
            expected="a tuple (state, y)",
            found=f"{type(result).__name__}",
        )
    return result
