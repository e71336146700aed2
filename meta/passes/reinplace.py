"""Functional updates, written in place: a few elements instead of a copy of all.

A graph of PyTorch's comes functionalised: ``cache.index_copy_(...)`` is a copy of the cache with
some rows replaced, and at the end of the graph an `assign` of that copy to the cache.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import cast

import torch

from meta import op
from meta.dialect.core.ir_calls import (
    OpCall,
    called_op,
    full_view_source,
    new_call,
    op_call,
    tensor_of,
)
from meta.ir import (
    Binding,
    Call,
    Constant,
    Expr,
    Function,
    Module,
    TupleGetItem,
    TupleType,
    Var,
    with_operands,
)
from meta.ir.dims import UnknownDim, product
from meta.ir.visit import uses
from meta.op.core import Op
from meta.op.core.check import normalize_axis
from meta.op.core.slicing import slice_ranges
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple
from meta.passes.dead_code import dead_code
from meta.passes.rewrite import rewrite_function


def reinplace(module: Module) -> Module:
    """Let main write updates of a part of an array to its memory, where nobody needs the old
    values.

    An update is a `scatter` of slices, a `scatter_nd` that adds nothing, or a `strided_set` along
    one axis. It becomes `assign_at`, and its result the array that is written: an argument to which
    the result is assigned later, if nothing reads or writes the argument in between, or what a call
    in main made and nobody reads any more. The `assign` is gone then. What main returns stays apart
    from its arguments. (A `strided_set` of what main made may be a part of the kernel around it.)

    >>> from meta.ir import parse
    >>> print(meta.passes.reinplace(parse('''
    ... func @main(%cache: int8[8, 4], %at: int64[1, 2], %rows: int8[2, 4]) -> int8[4] {
    ...   %new: int8[8, 4] = scatter_nd(%cache, %at, %rows)
    ...   %most: int8[4] = max(%new, axis=(0,))
    ...   %u: () = assign(%cache, %new)
    ...   return %most
    ... }''')))
    func @main(%cache: int8[8, 4], %at: int64[1, 2], %rows: int8[2, 4]) -> int8[4] {
      %new: () = assign_at(%cache, %at, %rows)
      %most: int8[4] = max(%cache, axis=(0,))
      return %most
    }
    """
    main = module.main
    if not any(called_op(b.value) in _SLICES for b in main.body.bindings):
        return module
    if any(isinstance(b.value, Function) for b in main.body.bindings):
        return module  # a closure reads later than it is written down
    found = _Updates(main, AliasSets(main, AliasSummaries(module)))
    found.search()
    if not found.of:
        return module
    return dead_code(module.with_functions({**module.functions, "main": found.rewritten()}))


@dataclass(frozen=True, slots=True)
class _Slices:
    """What an update writes, as the arguments of `assign_at`; ``column``: indices that are yet to
    be reshaped to a row.
    """

    axis: int
    indices: Expr
    value: Expr
    column: bool = False


class _Updates:
    """The updates of main that may write in place, with the uses and the writes of each buffer by
    position. The last update is looked at first: what it writes is known to be one array then.
    """

    def __init__(self, main: Function, buffers: AliasSets) -> None:
        self.main, self.buffers = main, buffers
        self.position = {b.var: i for i, b in enumerate(main.body.bindings)}
        self.values: dict[Expr, Expr] = {b.var: b.value for b in main.body.bindings}
        self.of: dict[Var, _Slices] = {}
        # By the variable of an update, the buffer that it is then; the `assign` that go.
        self._merged: dict[Expr, Expr] = {}
        self._dropped: set[Var] = set()
        self._uses: defaultdict[Expr, list[int]] = defaultdict(list)
        self._writes: defaultdict[Expr, list[int]] = defaultdict(list)
        # Buffers that are results, or in a tuple, or what an `If` yields.
        self._leaving = {owning_tuple(b) for b in buffers.leaving}
        for i, binding in enumerate(main.body.bindings):
            for atom in uses(binding.value):
                root = owning_tuple(buffers.of(atom))
                self._uses[root].append(i)
                if not isinstance(binding.value, Call | TupleGetItem | Var):
                    self._leaving.add(root)
            for buffer in buffers.written_by(binding):
                self._writes[owning_tuple(buffer)].append(i)

    def _root(self, atom: Expr) -> Expr:
        root = owning_tuple(self.buffers.of(atom))
        while root in self._merged:
            root = self._merged[root]
        return root

    def search(self) -> None:
        """Find the updates that may write in place."""
        for binding in reversed(self.main.body.bindings):
            call = op_call(binding.value)
            if call is None or call.op not in _SLICES or not self._is_apart(binding.var):
                continue
            target, var, i = call.args[0], binding.var, self.position[binding.var]
            if any(isinstance(n, UnknownDim) for n in tensor_of(target).shape):
                continue  # kernels of `assign_at` are made for extents that have names
            memory = self._root(target)
            if self._uses[memory].count(i) != 1 or not self._is_all_of(target, memory):
                continue
            assigned = self._assign_of(var, memory)
            if assigned is None and not (call.op is not op.strided_set and self._dies(i, memory)):
                continue
            slices = _SLICES[call.op](self, i, call)
            if slices is not None:
                self.of[var] = slices
                self._merge(var, memory, assigned)

    def _merge(self, var: Var, memory: Expr, assigned: int | None) -> None:
        """Note that an update is a buffer from now on, and that it is assigned to it no more."""
        self._merged[var] = memory
        if assigned is not None:
            self._dropped.add(self.main.body.bindings[assigned].var)
            self._writes[memory].remove(assigned)
        for positions in (self._uses, self._writes):
            positions[memory] += positions[var]
        self._writes[memory].append(self.position[var])
        if var in self._leaving:
            self._leaving.add(memory)

    def _is_apart(self, atom: Expr) -> bool:
        """Whether nothing else may be the memory of a variable, or of a parameter."""
        own = self.buffers.of(atom)
        return owning_tuple(own) is own and self.buffers.sharing({own}) == {own}

    def _is_all_of(self, atom: Expr, memory: Expr) -> bool:
        """Whether an atom is a buffer, or all its elements in another shape."""
        while atom is not memory and self._merged.get(atom) is not memory:
            value = self.values.get(atom)
            source = full_view_source(value) if isinstance(value, Call) else value
            if not isinstance(source, Var):
                return False
            atom = source
        return True

    def _assign_of(self, var: Var, memory: Expr) -> int | None:
        """Return where an update is assigned to the parameter that it is of, if it may be that."""
        if memory not in self.main.params or not self._is_apart(memory) or var in self._leaving:
            return None
        i, (at, *others) = self.position[var], self._writes[memory] or (-1,)
        if others or at <= i or any(write > at for write in self._writes[var]):
            return None
        call = op_call(self.main.body.bindings[at].value)
        if call is None or call.op is not op.assign or call.args[0] is not memory:
            return None
        if any(i < use < at for use in self._uses[memory]):
            return None
        value = call.args[1]
        return at if self._root(value) is var and self._is_all_of(value, var) else None

    def _dies(self, i: int, memory: Expr) -> bool:
        """Whether memory is that of a call in main, and nothing needs it behind a binding."""
        own = self.buffers.is_own(memory) and self._is_apart(memory)
        return own and memory not in self._leaving and max(self._uses[memory]) == i

    def stays(self, atom: Expr, i: int) -> bool:
        """Whether an atom has at a position the elements that it had where it was bound."""
        first = self.position.get(atom, -1) if isinstance(atom, Var) else -1
        return not any(first < at < i for at in self._writes[self._root(atom)])

    def rewritten(self) -> Function:
        """Return main, whose updates write in place."""
        mapping: dict[Var, Expr] = {}
        for var in sorted(self.of, key=self.position.__getitem__):
            update = self.values[var]
            assert isinstance(update, Call)
            target = update.args[0]
            mapping[var] = with_operands(target, mapping)
        rows: dict[Expr, Var] = {}
        return rewrite_function(self.main, lambda b: self._binding(b, mapping, rows), mapping)

    def _binding(
        self, binding: Binding, mapping: dict[Var, Expr], rows: dict[Expr, Var]
    ) -> Iterable[Binding]:
        if binding.var in self._dropped:
            return []
        slices = self.of.get(binding.var)
        if slices is None:
            return [binding]
        made = list[Binding]()
        indices, value = (with_operands(a, mapping) for a in (slices.indices, slices.value))
        if slices.column and indices not in rows:
            type_ = tensor_of(indices)
            row = rows[indices] = Var("", type_.with_shape((1, product(type_.shape))))
            made.append(Binding(row, new_call(op.reshape, indices, (1, -1)), binding.span))
        indices = rows[indices] if slices.column else indices
        call = new_call(op.assign_at, mapping[binding.var], indices, value, slices.axis)
        written = Var(binding.var.name, TupleType(()))
        return [*made, Binding(written, call, binding.span)]


def _scattered(updates: _Updates, i: int, call: OpCall) -> _Slices | None:
    """Slices: the indices are those of one axis, repeated along the others."""
    x, axis, index, src = call.args
    shape, extents = tensor_of(index).shape, tensor_of(x).shape
    at = normalize_axis(axis, len(shape))
    if tensor_of(src).shape != shape or any(isinstance(n, UnknownDim) for n in shape):
        return None
    if any(n != extents[k] for k, n in enumerate(shape) if k != at):
        return None
    made = op_call(updates.values.get(index))
    source = made.args[0] if made is not None and made.op is op.broadcast_to else index
    own = tensor_of(source).shape
    own = (*(1,) * (len(shape) - len(own)), *own)
    is_column = own[at] == shape[at] and all(n == 1 for k, n in enumerate(own) if k != at)
    return _Slices(at, source, src, True) if is_column and updates.stays(source, i) else None


def _scattered_nd(_: _Updates, __: int, call: OpCall) -> _Slices | None:
    """Slices at coordinates of the leading axes."""
    _, indices, value, mode = call.args
    return _Slices(0, indices, value) if mode == "update" else None


def _strided(_: _Updates, __: int, call: OpCall) -> _Slices | None:
    """A slice along one axis, whose bounds are known."""
    x, value, begin, end, strides = call.args
    if not tensor_of(x).is_static:
        return None
    extents = tensor_of(x).static_shape
    ranges = cast(tuple[range, ...], slice_ranges(extents, begin, end, strides, "end"))
    cut = [i for i, picked in enumerate(ranges) if picked != range(extents[i])]
    if len(cut) != 1 or not ranges[cut[0]]:
        return None
    return _Slices(cut[0], Constant(torch.tensor([list(ranges[cut[0]])])), value)


_SLICES: dict[Op, Callable[[_Updates, int, OpCall], _Slices | None]] = {
    op.scatter: _scattered,
    op.scatter_nd: _scattered_nd,
    op.strided_set: _strided,
}
"""By update, what says which slices it writes; None for what are no slices."""
