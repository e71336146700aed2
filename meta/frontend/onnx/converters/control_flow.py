"""If, Loop and Scan: base control flow (`meta.cond`, `meta.while_loop`, `meta.scan`).

A condition that is known chooses its branch while converting. A loop is unrolled only where a
program cannot have it: it carries sequences, or values whose shapes change from step to step; and
where it carries known integers alone, so that a shape stays known. Its trip count and conditions
have to be known then.
"""

from __future__ import annotations

from functools import partial

from meta import op
from meta.base.errors import TypeInferError
from meta.frontend.core import Unconvertible, active_trace, constant_value
from meta.frontend.core.arguments import constant, constant_number, static_extent
from meta.frontend.onnx.loops import differing_axes, scan_rows, trace_probe, widen, zeros
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.text import has_text
from meta.frontend.onnx.values import (
    NarrowValue,
    carrier,
    narrow_dtypes,
    with_narrow_dtypes,
)
from meta.ir.primitives import Primitive
from meta.ir.types import TensorType
from meta.model.control_flow import cond, scan, while_loop
from meta.op.core.check import normalize_axis
from meta.op.core.tracing import BlockTrace, Symbol
from meta.runtime.ndarray import ndarray

MAX_UNROLLED = 256
"""Steps of a loop that is unrolled."""
MAX_ROWS = 1 << 16
"""Rows that are allocated for the results of a loop that may end before."""


def _flag(value):
    """Return a condition as a bool without axes."""
    value = op.reshape(value, ())
    return value if value.dtype == "bool" else op.not_equal(value, 0)


@onnx("If")
def if_(condition, *, then_branch, else_branch, call):
    """Where the branches differ in extents, the result's are those of the run time; a branch that
    does not fit the shapes of this call is an ExecutionError where it is taken.
    """
    chosen = constant_number(condition)
    branches = then_branch, else_branch
    if chosen is not None:
        return branches[0 if chosen else 1]()
    flag = _flag(condition)
    failures = then_branch.walker.failures
    listed = len(failures)
    try:
        return _either(flag, branches, lambda value: value)
    except (Unconvertible, TypeInferError) as error:
        first = error
    del failures[listed:]
    found, errors = [], []
    for branch in branches:
        try:
            found.append(trace_probe(branch))
        except (Unconvertible, TypeInferError) as error:
            reasons = [f"{f.operator}, {f.place}: {f.why}" for f in failures[listed:]]
            errors.append("; ".join(reasons) or _joined_lines(error))
            found.append(None)
    if len(errors) == 2 or has_text(found):
        raise first  # what is listed stays so
    del failures[listed:]
    if errors:
        absent = found.index(None)
        name = ("then_branch", "else_branch")[absent]
        why = f"the {name} of an If is taken, and does not fit its inputs: {errors[0]}"
        pair = list(branches)
        pair[absent] = partial(_failing, found[1 - absent], why)
        return _either(flag, pair, lambda value: value)
    joined = differing_axes(*found)
    if joined is None:
        raise first
    return _either(flag, branches, lambda value: widen(value, joined, call))


def _joined_lines(error):
    lines = [x.strip() for x in str(error).splitlines() if not x.startswith("  at:")]
    return "; ".join(lines)


class _Differ(Unconvertible):
    """Branches of different types."""


def _either(flag, branches, prepared):
    """Return what one of two functions returns, prepared."""
    dtypes, types = [], []

    def of(branch):
        def run():
            found = branch()
            if has_text(found):
                raise Unconvertible("its branches return text, and its condition is not known")
            found = prepared(found)
            dtypes.append(narrow_dtypes(found))
            types.append(_described(found))
            if types[0] != types[-1]:
                raise _Differ(
                    f"its branches return {types[0]} and {types[-1]}, and which one is run is not "
                    "known while converting",
                    hint="make the condition a constant: from_onnx(model, constants={...})",
                )
            return carrier(found)

        return run

    return with_narrow_dtypes(cond(flag, *map(of, branches)), dtypes[0])


def _failing(value, why):
    """Return what a branch gives that fails where it is taken: it would be of a value's types."""
    if isinstance(value, tuple | list):
        return type(value)(_failing(v, why) for v in value)
    if isinstance(value, NarrowValue):
        return NarrowValue(_failing(value.held, why), value.dtype)
    if value is None:
        return None
    type_ = TensorType(tuple(value.shape), value.dtype)
    return active_trace().emit(Primitive("fail", (), (why,), type_), type_)


def _described(value):
    """Return the type of a value as text."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_described, value))}]"
    return "nothing" if value is None else f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def _is_array(value):
    return isinstance(value, Symbol | ndarray)


def _typed(value):
    return (value.dtype, tuple(value.shape)) if _is_array(value) else None


class _Loop:
    """A call of Loop.

    Attributes
    ----------
    trips: the trip count as a scalar, or None; limit: as an int if it is known. first: the first
    condition, or None if there is none, and then what the body says of it is not looked at;
    known_first: as a number if it is known.
    """

    def __init__(self, trips, condition, states, body, call, joined=None):
        """joined: for states whose extents change, where they do, as of `differing_axes`."""
        self.body, self.call, self.joined = body, call, joined
        self.arguments = trips, condition
        self.states = self._carried(states)
        if len(body.inputs) != len(states) + 2 or len(body.outputs) <= len(states):
            raise Unconvertible(
                f"its body takes {len(body.inputs)} values and returns {len(body.outputs)}, of "
                f"{len(states)} that are carried"
            )
        self.trips = None if trips is None else op.reshape(op.astype(trips, "int64"), ())
        self.limit = None if trips is None else constant_number(trips)
        self.known_first = True if condition is None else constant_number(condition)
        self.first = None if condition is None else _flag(condition)

    def step(self, i, *states):
        """Return (condition, states, rows) of a step. Where it is run its condition is true."""
        following, *found = self.body(i, self.constant(True, "bool"), *states)
        count = len(states)
        if self.first is None:
            following = self.constant(True, "bool")
        return following, self._carried(found[:count]), tuple(found[count:])

    def _carried(self, states):
        if self.joined is None:
            return tuple(states)
        pairs = zip(states, self.joined, strict=True)
        return tuple(widen(state, joined, self.call) for state, joined in pairs)

    def constant(self, value, dtype):
        return constant(value, dtype, self.call)

    def results(self):
        first = self.known_first
        if not all(map(_is_array, self.states)):
            return self._unrolled(first)
        if first is not None and self._is_small():
            found = self._written_out(first)
            if found is not None:
                return found
        following, states, rows = trace_probe(self.step, self.constant(0, "int64"), *self.states)
        if first is False or (self.limit is not None and self.limit <= 0):
            return (*self.states, *(zeros(r, 0, self.call) for r in rows))
        if list(map(_typed, states)) != list(map(_typed, self.states)):
            try:
                return self._unrolled(first)
            except Unconvertible:
                joined = list(map(differing_axes, self.states, states))
                if self.joined is not None or None in joined:
                    raise
            return _Loop(*self.arguments, self.states, self.body, self.call, joined).results()
        if not all(map(_is_array, rows)):
            raise Unconvertible("it collects what is no array")
        may_end = constant_number(following) is not True
        if may_end and first and (count := self._foreseen()) is not None:
            self.limit, may_end = count, False
        if first and self.limit is not None and not may_end and (rows or self.limit <= MAX_ROWS):
            return self._counted()
        if not rows:
            return self._steps()[1]
        return self._collected(rows, may_end)

    def _foreseen(self):
        """Return how many steps there are, where that follows from what is known alone; None where
        it does not, or there are many.
        """
        if self.trips is not None and self.limit is None:
            return None
        trace, states, i, goes_on = active_trace(), self.states, 0, True
        while goes_on and (self.limit is None or i < self.limit):
            if i == MAX_UNROLLED or goes_on is None:
                return None
            following, found, _ = BlockTrace(trace).run(
                self.step, self.constant(i, "int64"), *states
            )
            goes_on, i = constant_number(following), i + 1
            # Of what is not known only the type counts, which is that of the start.
            pairs = zip(found, self.states, strict=True)
            states = tuple(
                new if constant_value(new) is not None else trace.lift(old) for new, old in pairs
            )
        return None if goes_on is None else i

    def _is_small(self):
        """Whether all that is carried is known integers, and the loop is short."""
        if self.limit is None or self.limit > MAX_UNROLLED or not self.states:
            return False
        return all(
            constant_value(s) is not None and s.dtype in ("int64", "int32") for s in self.states
        )

    def _unrolled(self, goes_on):
        """Convert the body once for each step."""
        why = "it carries sequences, or shapes that change, and "
        hint = "make the trip count a constant: from_onnx(model, constants={...})"
        if goes_on is None or (self.trips is not None and self.limit is None):
            raise Unconvertible(why + "its number of steps is not known while converting", hint)
        found = self._written_out(goes_on, why + f"has more than {MAX_UNROLLED} steps")
        if found is None:
            raise Unconvertible(why + "its condition is not known while converting")
        return found

    def _written_out(self, goes_on, too_long="it is too long"):
        """Return the results of all steps, one behind the other; None if a condition is not
        known.
        """
        states, rows, i = self.states, [], 0
        while goes_on and (self.limit is None or i < self.limit):
            if i == MAX_UNROLLED:
                raise Unconvertible(too_long)
            following, states, row = self.step(self.constant(i, "int64"), *states)
            rows.append(row)
            goes_on, i = constant_number(following), i + 1
        if goes_on is None:
            return None
        if not rows and len(self.body.outputs) > 1 + len(states):
            raise Unconvertible("it has no step, and results that are made of its steps")
        return (*states, *(op.stack(parts, 0) for parts in zip(*rows, strict=True)))

    def _counted(self):
        """A known number of steps."""

        def step(states, numbers):
            return self.step(*numbers, *states)[1:]

        numbers = (self.constant(range(self.limit), "int64"),)
        states, rows = scan_rows(step, self.states, numbers, self.call)
        return (*states, *rows)

    def _steps(self, stacks=()):
        """Steps until the trip count is reached or the condition false: (how many, the states and
        the stacks, with a row of each step).
        """

        def goes_on(state):
            i, going, *_ = state
            return going if self.trips is None else op.logical_and(going, op.less(i, self.trips))

        def step(state):
            i, _, states, stacks = state
            following, states, rows = self.step(i, *states)
            at = op.reshape(i, (1,))
            if stacks:
                written = zip(stacks, rows, strict=True)
                stacks = tuple(op.scatter_nd(stack, at, row) for stack, row in written)
            return op.add(i, 1), _flag(following), states, stacks

        first = self.constant(True, "bool") if self.first is None else self.first
        start = (self.constant(0, "int64"), first, self.states, tuple(stacks))
        count, _, states, stacks = while_loop(goes_on, step, start)
        return count, (*states, *stacks)

    def _collected(self, rows, may_end):
        """A number of steps that only the run time knows, with a row of each. Where nothing limits
        it the loop is run twice, at first to count.
        """
        if self.limit is not None and self.limit <= MAX_ROWS:
            count, results = self._steps([zeros(r, self.limit, self.call) for r in rows])
            bounds = (self.constant([0], "int64"), op.reshape(count, (1,)))
            step = self.constant([1], "int64")
            cut = (op.dynamic_strided_slice(s, *bounds, step) for s in results[len(self.states) :])
            return (*results[: len(self.states)], *cut)
        if may_end:
            if self.body.draws:
                raise Unconvertible("it draws random numbers, and is run twice to count its steps")
            count = self._steps()[0]
        elif self.trips is None:
            raise Unconvertible("it never ends")
        else:
            count = op.maximum(self.trips, 0)
            if self.first is not None:
                count = op.where(self.first, count, 0)
        return self._steps([zeros(r, count, self.call) for r in rows])[1]


@onnx("Loop")
def loop(trips=None, condition=None, *states, body, call):
    return _Loop(trips, condition, states, body, call).results()


def _numbers(given, count, what):
    """Return an attribute with a number for each of ``count`` values, 0 unless it is given."""
    numbers = tuple(given or (0,) * count)
    if len(numbers) != count:
        raise Unconvertible(f"{what} has {len(numbers)} numbers for {count} values")
    return numbers


def _to_front(x, axis):
    axis = normalize_axis(axis, x.ndim)
    order = (axis, *(i for i in range(x.ndim) if i != axis))
    return op.permute_dims(x, order) if axis else x


def _from_front(x, axis):
    axis = normalize_axis(axis, x.ndim)
    order = [*range(1, x.ndim)]
    order.insert(axis, 0)
    return op.permute_dims(x, tuple(order)) if axis else x


def _along(body, states, sequences, call):
    """Run a body along the first axes of sequences: (states, rows)."""
    extents = {s.shape[0] for s in sequences}
    if len(extents) != 1:
        raise Unconvertible(f"sequences of {', '.join(map(str, extents))} elements")
    return scan_rows(_step_of(body, len(states)), tuple(states), tuple(sequences), call)


def _step_of(body, count):
    if len(body.outputs) < count:
        raise Unconvertible(f"its body returns {len(body.outputs)} values, and carries {count}")

    def step(states, row):
        found = body(*states, *row)
        return tuple(found[:count]), tuple(found[count:])

    return step


@onnx("Scan", op.flip, op.permute_dims)
def scan_(
    *values,
    body,
    num_scan_inputs,
    scan_input_axes,
    scan_output_axes,
    scan_input_directions,
    scan_output_directions,
    directions,
    call,
):
    """The first version runs a batch: its first input are lengths, and axis 0 of the others is the
    batch, axis 1 the sequence.
    """
    if call.opset < 9:
        return _batched_scan(body, values, num_scan_inputs, directions, call)
    count = len(values) - num_scan_inputs
    states, sequences = values[:count], values[count:]
    axes = _numbers(scan_input_axes, num_scan_inputs, "scan_input_axes")
    reverses = _numbers(scan_input_directions, num_scan_inputs, "scan_input_directions")
    sequences = [_to_front(s, axis) for s, axis in zip(sequences, axes, strict=True)]
    sequences = [op.flip(s, 0) if r else s for s, r in zip(sequences, reverses, strict=True)]
    states, rows = _along(body, states, sequences, call)
    axes = _numbers(scan_output_axes, len(rows), "scan_output_axes")
    reverses = _numbers(scan_output_directions, len(rows), "scan_output_directions")
    rows = [op.flip(r, 0) if reverse else r for r, reverse in zip(rows, reverses, strict=True)]
    return (*states, *(_from_front(r, axis) for r, axis in zip(rows, axes, strict=True)))


def _batched_scan(body, values, num_scan_inputs, directions, call):
    """What is behind a sequence's length does not change the states, and gives rows of zeros."""
    lengths, *values = values
    count = len(values) - num_scan_inputs
    states, sequences = values[:count], values[count:]
    reverses = _numbers(directions, num_scan_inputs, "directions")
    steps = static_extent(sequences[0].shape[1], "a sequence of Scan")
    if lengths is None:
        lengths = op.full((sequences[0].shape[0],), steps, "int64", str(call.device))
    sequences = [
        op.reverse_sequence(s, lengths, 1, 0) if reverse else s
        for s, reverse in zip(sequences, reverses, strict=True)
    ]
    step = _step_of(body, count)
    places = constant(range(steps), lengths.dtype, call)

    def counted(length):
        def one(states, row):
            place, *row = row
            counts = op.less(place, length)
            new, rows = step(states, row)
            kept = tuple(op.where(counts, a, b) for a, b in zip(new, states, strict=True))
            return kept, tuple(op.where(counts, r, op.zeros_like(r)) for r in rows)

        return one

    def sample(_, row):
        length, states, sequences = row
        found, rows = scan(counted(length), tuple(states), (places, *sequences))
        return (), (found, rows)

    _, (states, rows) = scan(sample, (), (lengths, tuple(states), tuple(sequences)))
    return (*states, *rows)
