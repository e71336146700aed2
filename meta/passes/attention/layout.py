"""Which axis of attention's operands the heads are: as projections leave them, where these do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from meta import op
from meta.base.device import Device
from meta.dialect.core.ir_calls import OpCall, leaf_types, new_call, op_call, tensor_of
from meta.ir import (
    Binding,
    Call,
    DefUse,
    Expr,
    Function,
    Module,
    TensorType,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    type_of,
)
from meta.ir.visit import User
from meta.op.attention import HEADS_FIRST, HEADS_LATER
from meta.op.core.check import inverse_permutation, normalize_axis, permutation
from meta.passes.alias_analysis import AliasSets, Definitions, map_functions_with_aliases
from meta.passes.rewrite import rewrite_function

SWAPPED = (0, 2, 1, 3)
"""From [b, h, s, d] to [b, s, h, d], and back."""
_OF_GRADIENT = (0, 1, 2, 4, 6)
_OPERANDS = {
    op.fused_attention: (0, 1, 2),
    op.fused_attention_dx: _OF_GRADIENT,
    op.fused_attention_dmask: _OF_GRADIENT,
    op.fused_attention_dslopes: _OF_GRADIENT,
}
"""By operator, its arguments of this layout: query, key, value; with y and dy."""
_RESULTS = {op.fused_attention: (0,), op.fused_attention_dx: (0, 1, 2)}
"""By operator, which of its results are of this layout, too."""
_WRITTEN_ANYWHERE = (op.add, op.subtract, op.multiply, op.astype, op.concat)
"""What rotary embeddings of positions and casts end with: a transposition is part of the kernel."""
_LAYOUT = {one: one.schema.names.index("layout") for one in _OPERANDS}


def attention_layout(
    module: Module, *, device: Device, devices: tuple[str, ...] = ("cpu", "cuda")
) -> Module:
    """Let attention read [b, s, h, d] where most of its operands are transposes of that, but for
    those that kernels can write as well so.

    A projection of [b, s, h * d] is a view of it; the transpose to [b, h, s, d] is a copy, which
    kernels on ``devices`` do not need. Results are transposed in their place, which later passes
    cancel against transposes that follow. Where a joint projection is transposed before it is split
    into query, key and value, it is split first.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.attention_layout(parse('''
    ... func @main(%q: float32[2, 8, 4, 16], %k: float32[2, 4, 8, 16]) -> float32[2, 4, 8, 16] {
    ...   %0: float32[2, 4, 8, 16] = permute_dims(%q, axes=(0, 2, 1, 3))
    ...   %1: (float32[2, 4, 8, 16], float32[2, 4, 8]) = fused_attention(%0, %k, %0)
    ...   %2: float32[2, 4, 8, 16] = %1.0
    ...   return %2
    ... }'''), device=CPU))
    func @main(%q: float32[2, 8, 4, 16], %k: float32[2, 4, 8, 16]) -> float32[2, 4, 8, 16] {
      %0: float32[2, 4, 8, 16] = permute_dims(%q, axes=(0, 2, 1, 3))
      %k_1: float32[2, 8, 4, 16] = permute_dims(%k, axes=(0, 2, 1, 3))
      %1: (float32[2, 8, 4, 16], float32[2, 4, 8]) = fused_attention(%q, %k_1, %q, layout="BSHD")
      %2: float32[2, 8, 4, 16] = %1.0
      %3: float32[2, 4, 8, 16] = permute_dims(%2, axes=(0, 2, 1, 3))
      return %3
    }
    """
    if device.kind not in devices:
        return module
    return map_functions_with_aliases(module, _function)


def _function(function: Function, buffers: AliasSets) -> Function:
    rewriting = _Rewriting(DefUse(function), Definitions(function, buffers))
    return rewrite_function(function, rewriting.step)


@dataclass(frozen=True, slots=True)
class _Rewriting:
    """A function on its way.

    changed: by the tuple of a call, the numbers of its fields in the other layout. wholes: what
    this tuple became. splits, parts: by a split of a transposed projection, and by a part of it,
    the same of the projection, and how the other axes of a part are transposed.
    """

    uses: DefUse
    known: Definitions
    changed: dict[Expr, tuple[int, ...]] = field(default_factory=dict)
    wholes: dict[Expr, Var] = field(default_factory=dict)
    splits: dict[Expr, tuple[Var, tuple[int, ...]]] = field(default_factory=dict)
    parts: dict[Expr, tuple[Var, tuple[int, ...]]] = field(default_factory=dict)

    def step(self, binding: Binding) -> list[Binding]:
        """Return what takes the place of a binding."""
        value, made = binding.value, [binding]
        if isinstance(value, TupleGetItem) and value.index in self.changed.get(value.value, ()):
            one = Var(binding.var.name, _swapped(binding.var.type))
            get = TupleGetItem(self.wholes[value.value], value.index)
            back = new_call(op.permute_dims, one, SWAPPED)
            made = [Binding(one, get, binding.span), Binding(binding.var, back, binding.span)]
        elif isinstance(value, TupleGetItem) and value.value in self.wholes:
            get = TupleGetItem(self.wholes[value.value], value.index)
            made = [Binding(binding.var, get, binding.span)]
        elif isinstance(value, TupleGetItem) and value.value in self.splits:
            split, order = self.splits[value.value]
            assert isinstance(split.type, TupleType)
            part = Var(binding.var.name, split.type.fields[value.index])
            self.parts[binding.var] = part, order
            made = [Binding(part, TupleGetItem(split, value.index), binding.span)]
        elif (call := op_call(value)) is not None:
            made = self._of_operator(call, binding)
        for new in made:
            self.known.add(new)
        return made

    def _of_operator(self, call: OpCall, binding: Binding) -> list[Binding]:
        if call.op in _OPERANDS:
            return self._call(call, binding)
        if call.op is op.split:
            return self._split(call, binding)
        if call.op is op.reshape and call.args[0] in self.parts:
            part, order = self.parts[call.args[0]]
            shape = _undone(tensor_of(binding.var).static_shape, order)
            rows = Var(part.name, tensor_of(part).with_shape(shape))
            view = new_call(op.reshape, part, shape)
            back = new_call(op.permute_dims, rows, order)
            return [Binding(rows, view, binding.span), Binding(binding.var, back, binding.span)]
        return [binding]

    def _split(self, call: OpCall, binding: Binding) -> list[Binding]:
        """Return the split of a projection in the place of one of its transpose, whose parts, each
        of extent 1, are operands of attention without that axis.
        """
        source, sections, at = call.args
        turned = op_call(self.known.get(source))
        if turned is None or turned.op is not op.permute_dims or turned.args[1] is None:
            return [binding]
        assert binding.var.type is not None
        order = permutation(turned.args[1], len(turned.args[1]))
        at = normalize_axis(at, len(order))
        parts = [t for t in leaf_types(binding.var.type) if isinstance(t, TensorType)]
        if not all(t.is_static and t.shape[at] == 1 for t in parts):
            return [binding]
        if not all(self._is_operand(view, at) for view in self._readers(binding.var)):
            return [binding]
        axis = order[at]
        rest = tuple(a - (a > axis) for a in order if a != axis)
        types = tuple(t.with_shape(_undone(t.static_shape, order)) for t in parts)
        split = new_call(op.split, turned.args[0], sections, axis)
        var = Var(binding.var.name, TupleType(types))
        self.splits[binding.var] = var, rest
        return [Binding(var, split, binding.span)]

    def _readers(self, var: Var) -> Iterator[User]:
        """Yield who reads a variable, or a field of it."""
        for user in self.uses.users(var):
            if isinstance(user, Binding) and isinstance(user.value, TupleGetItem):
                yield from self._readers(user.var)
            else:
                yield user

    def _is_operand(self, user: User, at: int) -> bool:
        """Whether a user drops an axis, for attention and nothing else."""
        view = op_call(user.value) if isinstance(user, Binding) else None
        if view is None or view.op is not op.reshape or not isinstance(user, Binding):
            return False
        shape = list(tensor_of(view.args[0]).shape)
        del shape[at]
        readers = self.uses.users(user.var)
        calls = [op_call(u.value) for u in readers if isinstance(u, Binding)]
        reads = len(calls) == len(readers) and all(c and c.op in _OPERANDS for c in calls)
        return reads and tensor_of(user.var).shape == tuple(shape)

    def _call(self, call: OpCall, binding: Binding) -> list[Binding]:
        """Return a call of attention in the other layout, if that is better, and its operands."""
        operands = {i: call.args[i] for i in _OPERANDS[call.op]}
        sources = {i: self._source(a) for i, a in operands.items()}
        saved = sum(self._saved(a, sources[i]) for i, a in operands.items())
        if call.args[_LAYOUT[call.op]] != HEADS_FIRST or saved <= 0:
            return [binding]
        if call.op in _RESULTS and not self._only_fields(binding.var):
            return [binding]
        args, made, new = list(call.args), [], dict[Expr, Var]()
        for i, source in sources.items():
            atom = operands[i]
            if source is None and atom not in new:
                new[atom] = Var(getattr(atom, "name", "x"), _swapped(type_of(atom)))
                moved = new_call(op.permute_dims, atom, SWAPPED)
                made.append(Binding(new[atom], moved, binding.span))
            args[i] = new[atom] if source is None else source
        args[_LAYOUT[call.op]] = HEADS_LATER
        if call.op not in _RESULTS:
            return [*made, Binding(binding.var, Call(call.op, tuple(args)), binding.span)]
        assert isinstance(binding.var.type, TupleType)
        fields = enumerate(binding.var.type.fields)
        places = _RESULTS[call.op]
        types = tuple(_swapped(t) if i in places else t for i, t in fields)
        whole = Var(binding.var.name, TupleType(types))
        self.changed[binding.var], self.wholes[binding.var] = places, whole
        return [*made, Binding(whole, Call(call.op, tuple(args)), binding.span)]

    def _source(self, atom: Expr) -> Expr | None:
        """Return what an operand is a transpose of, if it is one."""
        made = op_call(self.known.get(atom))
        if made is None or not self._is_swap(made):
            return None
        source: Expr = made.args[0]
        return source

    def _saved(self, atom: Expr, source: Expr | None) -> int:
        """Return how many copies there are less in the other layout for an operand: none where
        its own kernel can write it there.
        """
        if source is not None:
            return 1
        made = op_call(self.known.get(atom))
        if made is None or made.op not in _WRITTEN_ANYWHERE or not isinstance(atom, Var):
            return -1
        calls = [op_call(user.value) for user in self.uses.users(atom) if isinstance(user, Binding)]
        swaps = (c.op in _OPERANDS or self._is_swap(c) for c in calls if c is not None)
        return 0 if len(calls) == len(self.uses.users(atom)) and all(swaps) else -1

    @staticmethod
    def _is_swap(call: OpCall) -> bool:
        return call.op is op.permute_dims and call.args[1] == SWAPPED

    def _only_fields(self, var: Var) -> bool:
        users = self.uses.users(var)
        return all(isinstance(u, Binding) and isinstance(u.value, TupleGetItem) for u in users)


def _undone(shape: tuple[int, ...], order: tuple[int, ...]) -> tuple[int, ...]:
    """Return the shape of what is of a shape when its axes are permuted in an order."""
    return tuple(shape[a] for a in inverse_permutation(order, len(shape)))


def _swapped(type_: Type | None) -> TensorType:
    assert isinstance(type_, TensorType)
    return type_.with_shape(tuple(type_.shape[axis] for axis in SWAPPED))
