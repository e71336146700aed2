"""Which indices of a program are known to be in range, so that nobody has to look at them.

Known are constants, and what operators make whose result is bounded: positions of the largest
element, of an order, of a cut; and such numbers moved, cast or compared with others. To add an
operator, add it to a table here.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import prod
from typing import Any

import torch

from meta import op
from meta.dialect.core import FUSED
from meta.dialect.core.ir_calls import (
    arg_types,
    atom_type,
    base_op,
    flat_atoms,
    named_args,
    tensor_type,
)
from meta.ir import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    bindings,
)
from meta.op.core import Op
from meta.op.core.call import runtime_args
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.indices import IndexRange
from meta.op.creation import bounds
from meta.passes.alias_analysis import AliasSets

Range = tuple[int, int]
"""The least and the largest value that there may be."""

MOVES = frozenset(
    [
        *(op.reshape, op.permute_dims, op.batch_flatten, op.expand_dims, op.squeeze, op.swapaxes),
        *(op.split, op.strided_slice, op.broadcast_to, op.repeat, op.tile, op.diagonal),
        *(op.triu, op.tril, op.flip, op.roll, op.sort, op.copy),
        *(op.take, op.take_along_axis, op.gather_nd, op.index_select, op.embedding, op.adv_index),
    ]
)
"""Operators whose results hold elements of their first argument only (or zeros: `triu`, `tril`)."""
ZEROS = frozenset([op.triu, op.tril])


class IndexRanges:
    """What is known of the integers of one function.

    Parameters
    ----------
    functions: those of the module, by name. given: what is known of parameters.
    """

    def __init__(
        self,
        function: Function,
        buffers: AliasSets | None,
        functions: Mapping[str, Function],
        given: Mapping[Expr, Range] | None = None,
    ) -> None:
        self._values = {binding.var: binding.value for binding in bindings(function)}
        self._buffers, self._functions = buffers, functions
        self._known: dict[Expr, Range | None] = dict(given or {})

    def open(self, call: Call) -> Iterator[tuple[int, Any, IndexRange]]:
        """Yield the indices of a call, of known extents, that are not known to be in range: their
        position among `runtime_args`, the atom (None if it is a part of one) and the range.

        Constants are among them: what they hold is known, but whether it is right is not.
        """
        for place, atom, wanted in index_atoms(call):
            if not isinstance(wanted.extent, int):
                continue
            found = None if isinstance(atom, Constant) else self.of(atom)
            if found is None or not _is_within(found, wanted):
                yield place, atom, wanted

    def of(self, atom: Any) -> Range | None:
        """Return what is known of the elements of an atom, or of a number."""
        if isinstance(atom, bool | int):
            return int(atom), int(atom)
        if isinstance(atom, Constant):
            return _of_tensor(atom.data)
        if not isinstance(atom, Var):
            return None
        if atom not in self._known:
            self._known[atom] = None  # while it is looked for
            written = self._buffers is not None and self._buffers.of(atom) in self._buffers.written
            self._known[atom] = None if written else self._look(atom)
        return self._known[atom]

    def _look(self, atom: Var) -> Range | None:
        value, part = self._values.get(atom), 0
        if isinstance(value, TupleGetItem) and isinstance(value.value, Var):
            part, value = value.index, self._values.get(value.value)
        if isinstance(value, Var | Constant):
            return self.of(value)
        if not isinstance(value, Call):
            return None
        if isinstance(value.callee, GlobalVar):
            return self._of_function(value, part)
        called = base_op(value.callee)
        found = None if called is None else self._of_call(called, value, part)
        type_ = atom.type
        if found is None or not isinstance(type_, TensorType) or "int" not in type_.dtype:
            return None
        from_type = _of_dtype(type_.dtype)
        return found if from_type[0] <= found[0] and found[1] <= from_type[1] else None

    def _of_function(self, call: Call, part: int) -> Range | None:
        """Return what is known of a result of a fused function."""
        assert isinstance(call.callee, GlobalVar)
        function = self._functions.get(call.callee.name)
        if function is None or FUSED not in function.attrs:
            return None
        found = {p: self.of(a) for p, a in zip(function.params, call.args, strict=True)}
        given: dict[Expr, Range] = {p: r for p, r in found.items() if r is not None}
        result = function.body.result
        atom = result.fields[part] if isinstance(result, Tuple) else result
        return IndexRanges(function, None, self._functions, given).of(atom)

    def _of_call(self, called: Op, call: Call, part: int) -> Range | None:
        args = named_args(called, call)
        if called in MOVES:
            found = self.of(flat_atoms(call.args[0])[0])
            if found is not None and called in ZEROS:
                return min(found[0], 0), max(found[1], 0)
            return found
        if called in (op.concat, op.stack):
            return _union([self.of(a) for a in flat_atoms(args["arrays"])])
        rule = _RULES.get(called)
        return None if rule is None else rule(self, args, part)


def index_atoms(call: Call) -> Iterator[tuple[int, Any, IndexRange]]:
    """Yield the place in `runtime_args`, the atom (None: part of one) and the range of indices."""
    called = base_op(call.callee)
    if called is not None and called.indices is not None:
        atoms = runtime_args(called, tuple(map(_atoms, call.args)))
        for place, wanted in called.index_ranges(arg_types(called, call)):
            yield place, atoms[place], wanted


def _atoms(argument: Any) -> Any:
    """Return the atoms of a tuple, None for each part of one that is a value; else the argument."""
    if isinstance(argument, Tuple):
        return argument.fields
    type_ = atom_type(argument)
    return (None,) * len(type_.fields) if isinstance(type_, TupleType) else argument


def _is_within(found: Range, wanted: IndexRange) -> bool:
    assert isinstance(wanted.extent, int)
    if wanted.nonzero:
        return found[0] > 0 or found[1] < 0
    if wanted.ordered:
        return False  # of which the ends of a range say nothing
    low = -wanted.extent if wanted.from_end else 0
    return (wanted.any_below or low <= found[0]) and found[1] < wanted.extent


def _of_tensor(data: torch.Tensor) -> Range | None:
    if data.dtype.is_floating_point or data.dtype in (torch.bool, torch.uint64) or not data.numel():
        return None
    without_order = data.dtype in (torch.uint16, torch.uint32)  # in ATen
    least, most = torch.aminmax(data.long() if without_order else data)
    return int(least), int(most)


def _of_dtype(dtype: str) -> Range:
    bits = int(dtype.rpartition("int")[2])
    return (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _union(found: Sequence[Range | None]) -> Range | None:
    ranges = [r for r in found if r is not None]
    if len(ranges) != len(found) or not ranges:
        return None
    return min(r[0] for r in ranges), max(r[1] for r in ranges)


Args = dict[str, Any]
Rule = Callable[[IndexRanges, Args, int], "Range | None"]


def _shape(atom: Any) -> tuple[Any, ...]:
    type_ = tensor_type(atom)
    return () if type_ is None else type_.shape


def _positions(extents: Sequence[Any]) -> Range | None:
    """Return the range of positions among so many; None if the number is not known."""
    return (0, prod(extents) - 1) if all(isinstance(d, int) for d in extents) else None


def _extremum(ranges: IndexRanges, args: Args, part: int) -> Range | None:
    shape = _shape(args["x"])
    axes = normalize_axes(args["axis"], len(shape))
    return _positions([shape[a] for a in axes])


def _sort(ranges: IndexRanges, args: Args, part: int) -> Range | None:
    shape = _shape(args["x"])
    both = args.get("ret_type", "indices") == "both"
    if args.get("ret_type") == "values" or (both and part == 0):
        return ranges.of(args["x"])
    return _positions([shape[normalize_axis(args["axis"], len(shape))]])


def _searchsorted(ranges: IndexRanges, args: Args, part: int) -> Range | None:
    found = _positions(_shape(args["x1"])[-1:])
    return None if found is None else (0, found[1] + 1)


def _arange(ranges: IndexRanges, args: Args, part: int) -> Range | None:
    (start, stop), step = bounds(args["start"], args["stop"]), args["step"]
    if not (isinstance(start, int) and isinstance(stop, int) and isinstance(step, int) and step):
        return None
    count = len(range(start, stop, step))
    ends = start, start + max(count - 1, 0) * step
    return min(ends), max(ends)


def _clip(ranges: IndexRanges, args: Args, part: int) -> Range | None:
    low, high = args["min"], args["max"]
    if not (isinstance(low, int) and isinstance(high, int)) or low > high:
        return None
    return low, high


def _remainder(ranges: IndexRanges, args: Args, part: int) -> Range | None:
    by = ranges.of(args["x2"])
    return None if by is None or by[0] < 1 else (0, by[1] - 1)


def _endpoint_rule(combined: Callable[[int, int], int]) -> Rule:
    def rule(ranges: IndexRanges, args: Args, part: int) -> Range | None:
        x1, x2 = ranges.of(args["x1"]), ranges.of(args["x2"])
        if x1 is None or x2 is None or args.get("where"):
            return None
        ends = [combined(a, b) for a in x1 for b in x2]
        return min(ends), max(ends)

    return rule


def _union_rule(*names: str) -> Rule:
    def rule(ranges: IndexRanges, args: Args, part: int) -> Range | None:
        return _union([ranges.of(args[n]) for n in names])

    return rule


_RULES: dict[Op, Rule] = {
    op.argmax: _extremum,
    op.argmin: _extremum,
    op.argsort: _sort,
    op.topk: _sort,
    op.searchsorted: _searchsorted,
    op.arange: _arange,
    op.clip: _clip,
    op.remainder: _remainder,
    op.add: _endpoint_rule(operator.add),
    op.multiply: _endpoint_rule(operator.mul),
    op.where: _union_rule("x", "y"),
    op.maximum: _union_rule("x1", "x2"),
    op.minimum: _union_rule("x1", "x2"),
    op.astype: _union_rule("x"),
}
"""By operator, what is known of its result; what does not fit its dtype is not."""
