"""If, Loop and Scan: base control flow (`meta.cond`, `meta.while_loop`, `meta.scan`).

A condition that is known chooses its branch while converting. A loop is unrolled only where a
program cannot have it: it carries sequences, or values whose shapes change from step to step; and
where it carries known integers alone, so that a shape stays known. Its trip count and conditions
have to be known then.
"""

from __future__ import annotations

from meta import op
from meta.base.errors import TypeInferError
from meta.frontend.core import Unconvertible, active_trace, known
from meta.frontend.core.arguments import WHOLE, constant, known_number, static_extent, vector
from meta.frontend.onnx.narrow import Narrow, held, named, names
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.text import has_text
from meta.ir.dims import UnknownDim
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
    chosen = known_number(condition)
    branches = then_branch, else_branch
    if chosen is not None:
        return branches[0 if chosen else 1]()
    flag, failures = _flag(condition), then_branch.walker.failures
    count = len(failures)
    try:
        return _either(flag, branches, lambda value: value)
    except (_Differ, TypeInferError) as error:
        del failures[count:]
        first = error
    found = [_outcome(b) for b in branches]
    del failures[count:]
    fitting = [f for f in found if not isinstance(f, TypeInferError)]
    if not fitting:
        raise found[0]
    if len(fitting) == 2:
        joined = _joined(*fitting)
        if joined is None:
            raise first
        return _either(flag, branches, lambda value: _forgotten(value, joined, call))
    places = [_place(f, i, fitting[0]) for i, f in enumerate(found)]
    chosen = [b if p is None else p for b, p in zip(branches, places, strict=True)]
    return _either(flag, chosen, lambda value: value)


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
            dtypes.append(names(found))
            types.append(_described(found))
            if types[0] != types[-1]:
                raise _Differ(
                    f"its branches return {types[0]} and {types[-1]}, and which one is run is not "
                    "known while converting",
                    hint="make the condition a constant: from_onnx(model, constants={...})",
                )
            return held(found)

        return run

    return named(cond(flag, *map(of, branches)), dtypes[0])


def _outcome(branch):
    """Return what a branch gives, traced in a block that is thrown away, or its error."""
    try:
        return _probed(branch)
    except TypeInferError as error:
        return error


def _place(error, place, other):
    """Return what stands for a branch that does not fit: it gives values of the types of the other,
    or would, if it did not fail; None for one that fits.
    """
    if not isinstance(error, TypeInferError):
        return None
    name = ("then_branch", "else_branch")[place]
    lines = [x.strip() for x in str(error).splitlines() if not x.startswith("  at:")]
    message = f"the {name} of an If is taken, and does not fit its inputs: {'; '.join(lines)}"

    def failing(value):
        if isinstance(value, tuple | list):
            return type(value)(map(failing, value))
        if isinstance(value, Narrow):
            return Narrow(failing(value.held), value.dtype)
        if value is None:
            return None
        type_ = TensorType(tuple(value.shape), value.dtype)
        return active_trace().emit(Primitive("fail", (), (message,), type_), type_)

    return lambda: failing(other)


def _joined(one, other):
    """Return where extents of two values differ, as nested lists of axes; None if they differ in
    more.
    """
    if isinstance(one, tuple | list) and isinstance(other, tuple | list):
        if len(one) != len(other):
            return None
        parts = list(map(_joined, one, other))
        return None if None in parts else parts
    if isinstance(one, tuple | list | None) or isinstance(other, tuple | list | None):
        return [] if one is None and other is None else None
    if names(one) != names(other) or held(one).dtype != held(other).dtype or one.ndim != other.ndim:
        return None
    return [a != b for a, b in zip(one.shape, other.shape, strict=True)]


def _forgotten(value, joined, call):
    """Return a value of whose extents those that differ are not known."""
    if isinstance(value, tuple | list):
        return type(value)(_forgotten(v, j, call) for v, j in zip(value, joined, strict=True))
    if not any(joined):
        return value
    bounds = (constant([b] * value.ndim, "int64", call) for b in (0, WHOLE, 1))
    found = op.dynamic_strided_slice(held(value), *bounds)
    return Narrow(found, value.dtype) if isinstance(value, Narrow) else found


def _described(value):
    """Return the type of a value as text."""
    if isinstance(value, tuple | list):
        return f"[{', '.join(map(_described, value))}]"
    return "nothing" if value is None else f"{value.dtype}[{', '.join(map(str, value.shape))}]"


def _is_array(value):
    return isinstance(value, Symbol | ndarray)


def _typed(value):
    return (value.dtype, tuple(value.shape)) if _is_array(value) else None


def _probed(step, *arguments):
    """Return what a step gives, traced in a block that is thrown away: of its results only types
    count, and which of them are known.
    """
    trace = active_trace()
    hidden = [trace.lift(a) if isinstance(a, ndarray) else a for a in arguments]
    return BlockTrace(trace).run(step, *hidden)


def _zeros(row, count, call):
    """Return ``count`` rows, an int or a scalar of the run time, like one."""
    if isinstance(count, int):
        return op.zeros((count, *row.shape), row.dtype, str(call.device))
    if any(isinstance(extent, UnknownDim) for extent in row.shape):
        raise Unconvertible("its steps return extents that depend on values")
    # A filled array has unknown extents only; broadcasting keeps those of the row.
    rows = op.dynamic_full(constant(False, "bool", call), vector([count], call), "bool")
    for axis in range(1, row.ndim + 1):
        rows = op.expand_dims(rows, axis)
    zero = op.zeros((1, *row.shape), row.dtype, str(call.device))
    return op.where(rows, zero, zero)


class _Loop:
    """A call of Loop.

    Attributes
    ----------
    trips: the trip count as a scalar, or None; limit: as an int if it is known. first: the first
    condition, or None if there is none, and then what the body says of it is not looked at;
    known_first: as a number if it is known.
    """

    def __init__(self, trips, condition, states, body, call):
        self.body, self.states, self.call = body, tuple(states), call
        if len(body.inputs) != len(states) + 2 or len(body.outputs) <= len(states):
            raise Unconvertible(
                f"its body takes {len(body.inputs)} values and returns {len(body.outputs)}, of "
                f"{len(states)} that are carried"
            )
        self.trips = None if trips is None else op.reshape(op.astype(trips, "int64"), ())
        self.limit = None if trips is None else known_number(trips)
        self.known_first = True if condition is None else known_number(condition)
        self.first = None if condition is None else _flag(condition)

    def step(self, i, *states):
        """Return (condition, states, rows) of a step. Where it is run its condition is true."""
        following, *found = self.body(i, self.constant(True, "bool"), *states)
        count = len(states)
        if self.first is None:
            following = self.constant(True, "bool")
        return following, tuple(found[:count]), tuple(found[count:])

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
        following, states, rows = _probed(self.step, self.constant(0, "int64"), *self.states)
        if first is False or (self.limit is not None and self.limit <= 0):
            return (*self.states, *(_zeros(r, 0, self.call) for r in rows))
        if list(map(_typed, states)) != list(map(_typed, self.states)):
            return self._unrolled(first)
        if not all(map(_is_array, rows)):
            raise Unconvertible("it collects what is no array")
        may_end = known_number(following) is not True
        if first and self.limit is not None and not may_end and (rows or self.limit <= MAX_ROWS):
            return self._counted()
        if not rows:
            return self._steps()[1]
        return self._collected(rows, may_end)

    def _is_small(self):
        """Whether all that is carried is known integers, and the loop is short."""
        if self.limit is None or self.limit > MAX_UNROLLED or not self.states:
            return False
        return all(known(s) is not None and s.dtype in ("int64", "int32") for s in self.states)

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
            goes_on, i = known_number(following), i + 1
        if goes_on is None:
            return None
        if not rows and len(self.body.outputs) > 1 + len(states):
            raise Unconvertible("it has no step, and results that are made of its steps")
        return (*states, *(op.stack(parts, 0) for parts in zip(*rows, strict=True)))

    def _counted(self):
        """A known number of steps."""

        def step(states, i):
            return self.step(i, *states)[1:]

        states, rows = scan(step, self.states, self.constant(range(self.limit), "int64"))
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
            count, results = self._steps([_zeros(r, self.limit, self.call) for r in rows])
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
        return self._steps([_zeros(r, count, self.call) for r in rows])[1]


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
    step = _step_of(body, len(states))
    extents = {s.shape[0] for s in sequences}
    if len(extents) != 1 or any(isinstance(e, UnknownDim) for e in extents):
        raise Unconvertible(f"sequences of {', '.join(map(str, extents))} elements")
    if extents == {0}:
        firsts = [op.zeros(s.shape[1:], s.dtype, str(call.device)) for s in sequences]
        _, rows = _probed(step, tuple(states), tuple(firsts))
        return tuple(states), tuple(_zeros(r, 0, call) for r in rows)
    return scan(step, tuple(states), tuple(sequences))


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
