"""Loops along the rows of sequences, also of those whose number only the run time knows."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible, active_trace
from meta.frontend.core.arguments import SLICE_END, constant, extent_of, vector
from meta.frontend.onnx.values import NarrowValue, carrier, narrow_dtypes
from meta.ir.dims import UnknownDim
from meta.model.control_flow import scan, while_loop
from meta.op.core.tracing import BlockTrace
from meta.runtime.ndarray import ndarray


def trace_probe(step: Any, *arguments: Any) -> Any:
    """Return what a step gives, traced in a block that is thrown away: of its results only types
    count, and which of them are known.
    """
    trace = active_trace()
    hidden = [trace.lift(a) if isinstance(a, ndarray) else a for a in arguments]
    return BlockTrace(trace).run(step, *hidden)


def zeros(row: Any, count: Any, call: CallSite) -> Any:
    """Return ``count`` rows, an int or a scalar of the run time, like one."""
    if _has_unknown(row):
        raise Unconvertible("its steps return rows with extents that depend on values")
    if isinstance(count, int):
        return op.zeros((count, *row.shape), row.dtype, str(call.device))
    # A filled array has unknown extents only; broadcasting keeps those of the row.
    rows = op.dynamic_full(constant(False, "bool", call), vector([count], call), "bool")
    for axis in range(1, row.ndim + 1):
        rows = op.expand_dims(rows, axis)
    zero = op.zeros((1, *row.shape), row.dtype, str(call.device))
    return op.where(rows, zero, zero)


def differing_axes(one: Any, other: Any) -> Any:
    """Return where extents of two values differ, as nested lists of axes; None if they differ in
    more.
    """
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        if len(one) != len(other):
            return None
        parts = list(map(differing_axes, one, other))
        return None if None in parts else parts
    if isinstance(one, tuple | list | None) or isinstance(other, tuple | list | None):
        return [] if one is None and other is None else None
    if (
        narrow_dtypes(one) != narrow_dtypes(other)
        or carrier(one).dtype != carrier(other).dtype
        or one.ndim != other.ndim
    ):
        return None
    return [a != b for a, b in zip(one.shape, other.shape, strict=True)]


def widen(value: Any, joined: Any, call: CallSite) -> Any:
    """Return a value of whose extents those that differ are not known."""
    if isinstance(value, tuple | list):
        return type(value)(widen(v, j, call) for v, j in zip(value, joined, strict=True))
    if not any(joined):
        return value
    bounds = (constant([b] * value.ndim, "int64", call) for b in (0, SLICE_END, 1))
    found = op.dynamic_strided_slice(carrier(value), *bounds)
    return NarrowValue(found, value.dtype) if isinstance(value, NarrowValue) else found


def scan_rows(step: Any, states: Any, xs: Any, call: CallSite, reverse: bool = False) -> Any:
    """Return (the last states, the rows) of ``states, row = step(states, x)`` for each row x of the
    tuple ``xs``, whose first axes have one extent: a number, a name, or one of the run time.
    """
    extent = xs[0].shape[0]

    def first(states: Any) -> Any:
        firsts = (op.zeros(x.shape[1:], x.dtype, str(call.device)) if extent == 0
                  else op.take(x, 0, 0, "fast") for x in xs)  # fmt: skip
        return step(states, tuple(firsts))

    found, rows = trace_probe(first, states)
    is_known = extent != 0 and not isinstance(extent, UnknownDim)
    if is_known and not any(map(_has_unknown, (*states, *xs, *rows))):
        return scan(step, states, xs, reverse=reverse)
    joined = differing_axes(states, found)
    if joined is not None and any(map(any, joined)):
        # What a step gives has extents that are not known before the run.
        return scan_rows(
            lambda states, row: _widen_states(step(states, row), joined, call),
            widen(states, joined, call), xs, call, reverse,
        )  # fmt: skip
    if extent == 0:
        return states, tuple(zeros(r, 0, call) for r in rows)
    count = extent_of(xs[0], 0)
    if isinstance(extent, int) and any(map(_has_unknown, rows)):
        # The first row is computed for its shape.
        stacks = tuple(_repeat_zero_row(r, extent, call) for r in first(states)[1])
    else:
        stacks = tuple(zeros(r, count, call) for r in rows)

    def goes_on(state: Any) -> Any:
        return op.less(state[0], count)

    def one(state: Any) -> Any:
        i, states, stacks = state
        at = op.subtract(op.subtract(count, 1), i) if reverse else i
        new, rows = step(states, tuple(op.take(x, at, 0, "fast") for x in xs))
        place = op.reshape(at, (1,))
        written = zip(stacks, rows, strict=True)
        return op.add(i, 1), new, tuple(op.scatter_nd(s, place, r) for s, r in written)

    _, states, stacks = while_loop(goes_on, one, (constant(0, "int64", call), states, stacks))
    return states, stacks


def _widen_states(result: Any, joined: Any, call: CallSite) -> Any:
    states, rows = result
    return widen(states, joined, call), rows


def _has_unknown(x: Any) -> bool:
    return any(isinstance(extent, UnknownDim) for extent in x.shape)


def _repeat_zero_row(row: Any, count: int, call: CallSite) -> Any:
    """Return ``count`` rows of zeros like a row, of whose extents some are not known."""
    zero = op.expand_dims(op.zeros_like(row), 0)
    never = op.full((count, *(1,) * row.ndim), False, "bool", str(call.device))
    return op.where(never, zero, zero)
