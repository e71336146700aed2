"""Fusion: neighbouring calls of one dialect become one function, which it compiles to one kernel.

Which calls may be neighbours in a kernel follows from how each reads its arguments, its *kind*
(stated where its kernel is registered): ``elemwise`` and ``broadcast`` read the element they write,
``injective`` another one, ``comm_reduce`` many to make few, ``out_elemwise_fusable`` many to make
as many. An ``opaque`` call stays alone. These are the kinds of TVM's operator fusion (Chen et al.,
"TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3).

`FusionGroups` says who may join whom; `fuse_operators` makes functions of the groups.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial

from meta import op
from meta.base.device import CPU, Device
from meta.base.dtype import bits
from meta.dialect.core import FUSED, DialectOp
from meta.ir import Binding, Block, Call, Expr, Module, TensorType, Var, operands
from meta.ir.visit import uses
from meta.op.core.indices import checks_indices
from meta.passes.buffers import Buffers, Summaries
from meta.passes.calls import called_op, has_effect, new_call, tensor_of, whole_source
from meta.passes.index_ranges import IndexRanges
from meta.passes.outline import Outlined
from meta.passes.rewrite import with_inner_blocks, with_value

MAX_MEMBERS = 24
"""Calls in one kernel: beyond, compilers take long and registers run out."""


def fuse_operators(
    module: Module, *, max_members: int = MAX_MEMBERS, device: Device = CPU
) -> Module:
    """Join dispatched calls into functions that run as one kernel each.

    A call joins its users if they all are in one group, and the kinds allow it: a call that reads
    element by element joins anything but an opaque call or a convolution; a reduction or a
    convolution joins users that are elementwise. The result of a group is that of its last call,
    and with it those of elementwise calls of the same shape that others need later, as a backward
    pass does. So no value is kept in memory that was not before, nor computed twice, but for casts
    to a dtype of more bytes: each kernel computes those that it reads, from half the bytes. A call
    never moves behind another that writes what it reads. A group has at most ``max_members`` calls.
    Where indices are looked at before a kernel reads them (`checks_indices`), none computes them,
    unless they are known to be in range.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("tvm"):
    ...     print(fuse_operators(dispatch(parse('''
    ... func @main(%x: float32[2, 3]) -> float32[2] {
    ...   %a: float32[2, 3] = exp(%x)
    ...   %b: float32[2, 3] = multiply(%a, %x)
    ...   %c: float32[2] = sum(%b, axis=1)
    ...   return %c
    ... }'''), device=CPU)))
    func @main(%x: float32[2, 3]) -> float32[2] {
      %c: float32[2] = @fused_exp_multiply_sum(%x)
      return %c
    }
    <BLANKLINE>
    func @fused_exp_multiply_sum(%x: float32[2, 3]) -> float32[2] attrs(fused="tvm") {
      %a: float32[2, 3] = tvm.exp(%x)
      %b: float32[2, 3] = tvm.multiply(%a, %x)
      %c: float32[2] = tvm.sum(%b, axis=1)
      return %c
    }
    """
    made = Outlined(module)
    functions, summaries = {}, Summaries(module)
    for name, function in module.functions.items():
        if FUSED in function.attrs:
            functions[name] = function
            continue
        buffers = Buffers(function, summaries)
        ranges = None
        if checks_indices(device):
            ranges = IndexRanges(function, buffers, module.functions)
        grouped = partial(FusionGroups, buffers=buffers, ranges=ranges, max_members=max_members)
        functions[name] = replace(function, body=_block(function.body, made, grouped))
    return module.with_functions({**functions, **made.functions})


def _block(block: Block, made: Outlined, grouped: Callable[[Block], FusionGroups]) -> Block:
    """Fuse the calls of a block, and those of each block in it by themselves."""
    groups, kept = grouped(block), list[Binding]()
    for i, binding in enumerate(block.bindings):
        group = groups.of.get(i)
        if group is not None and group.size > 1:
            kept += _fused(group, groups, made) if i == group.last else []
        elif i not in groups.gone:
            kept.append(with_inner_blocks(binding, lambda inner: _block(inner, made, grouped)))
    return Block(tuple(kept), block.result)


def _fused(group: FusionGroup, groups: FusionGroups, made: Outlined) -> list[Binding]:
    """Return the call of a group's function, what it reads and what it makes."""
    views, copies = _copies(group, groups)
    members = {i: groups.items[i] for i in sorted(group.members)}
    placed = sorted([*copies, *members.items()], key=lambda pair: pair[0])
    calls = [_left_open(call) for _, call in placed]
    results = [m for i, m in members.items() if groups.leaves(i)]
    # Lines of calls that an error may name: functions that differ in them are not one.
    lines = tuple(members[i].span for i in members if i in groups.indices)
    attrs = {FUSED: group.dialect}
    return [*views, *made.call(calls, _stem(calls), attrs, results=results, key=lines)]


def _left_open(binding: Binding) -> Binding:
    """Return a call whose kernel's configuration is not stated: it has no kernel of its own."""
    call = binding.value
    assert isinstance(call, Call) and isinstance(call.callee, DialectOp)
    return (
        with_value(binding, Call(call.callee.plain, call.args)) if call.callee.config else binding
    )


def _stem(calls: list[Binding]) -> str:
    ops = [op.name for op in map(called_op, (c.value for c in calls)) if op is not None]
    return "_".join(["fused", *ops[:4], *(["etc"] if len(ops) > 4 else [])])


def _copies(
    group: FusionGroup, groups: FusionGroups
) -> tuple[list[Binding], list[tuple[int, Binding]]]:
    """Return the views that a kernel's copies of casts are made of, and the copies by position."""
    views, casts = [], []
    for cast, read in sorted(group.copies):
        binding, wanted = groups.items[cast], groups.items[read]
        assert isinstance(binding.value, Call)
        source, *others = binding.value.args
        if read != cast:
            type_ = tensor_of(wanted.var).with_dtype(tensor_of(source).dtype)
            view = Var(wanted.var.name, type_)
            shape = new_call(op.reshape, source, type_.static_shape)
            views.append(Binding(view, shape, wanted.span))
            source = view
        value = Call(binding.value.callee, (source, *others))
        casts.append((cast, Binding(wanted.var, value, binding.span)))
    return views, casts


_RANK = {"elemwise": 0, "broadcast": 1, "injective": 2, "comm_reduce": 3, "out_elemwise_fusable": 4}
_BROADCAST, _INJECTIVE, _REDUCE = _RANK["broadcast"], _RANK["injective"], _RANK["comm_reduce"]


@dataclass(slots=True)
class FusionGroup:
    """Calls that run as one kernel, at the place of the last: positions in their block.

    dialect: of all calls. rank: the highest of their kinds. members: the last one first. copies:
    casts that are computed here, and elsewhere too: the position of each, and of what is read of
    it, the cast itself or a view.
    """

    dialect: str
    rank: int
    members: list[int]
    copies: list[tuple[int, int]] = field(default_factory=list)

    @property
    def last(self) -> int:
        return self.members[0]

    @property
    def size(self) -> int:
        """How many calls the kernel has."""
        return len(self.members) + len(self.copies)


@dataclass(frozen=True, slots=True)
class _CastReader:
    """Who reads a cast: its position, and those of the views between the two, the last one last."""

    position: int
    views: tuple[int, ...]

    @property
    def first(self) -> int:
        """Where the cast has to be known."""
        return min((*self.views, self.position))


class FusionGroups:
    """The groups of one block.

    of: the group of each call that is in one, by position. gone: the positions of what nobody needs
    any more: casts that every reader computes for itself, and their views. indices: by the position
    of a call, the buffers of its indices that are looked at before it runs, and so in memory:
    those that ``ranges`` do not know to be in range (None: none is looked at).
    """

    def __init__(
        self, block: Block, buffers: Buffers, ranges: IndexRanges | None, max_members: int
    ) -> None:
        self.items = block.bindings
        self.of: dict[int, FusionGroup] = {}
        self.gone: set[int] = set()
        self.indices = {} if ranges is None else _indices(block, buffers, ranges)
        self._buffers, self._max_members = buffers, max_members
        self._users = _users(block)
        self._places = {binding.var: i for i, binding in enumerate(self.items)}
        self._copied: dict[int, list[tuple[FusionGroup, int]]] = {}
        for i in reversed(range(len(self.items))):
            own = _fusable(self.items[i], i)
            if own is not None and not (_growth(self.items[i]) > 0 and self._shared(own)):
                self._place(own, self._joined(own))

    def leaves(self, position: int) -> bool:
        """Whether the result of a member is needed outside of its kernel."""
        group = self.of[position]
        return position == group.last or any(g is not group for g, _ in self._uses(position))

    def _place(self, own: _Fusable, group: FusionGroup | None) -> None:
        """Put a call into a group, by default one of its own."""
        if group is None:
            group = FusionGroup(own.dialect, own.rank, [own.position])
        else:
            group.members.append(own.position)
            group.rank = max(group.rank, own.rank)
        self.of[own.position] = group

    def _uses(self, position: int) -> Iterator[tuple[FusionGroup | None, int]]:
        """Yield where the result of a binding is used: in which group, and at which position."""
        for user in self._users.get(self.items[position].var, ()):
            for group, read in self._copied.get(user, ()):
                yield (group if read == user else None), group.last
            if user in self.of:
                yield self.of[user], self.of[user].last
            elif user not in self._copied:
                yield None, user

    def _joined(self, own: _Fusable) -> FusionGroup | None:
        """Return the group that a call may join, None if it stays apart."""
        uses = list(self._uses(own.position))
        fusable = [group for group, _ in uses if group is not None]
        if not fusable:
            return None
        group = min(fusable, key=lambda g: g.last)
        outside = [at for g, at in uses if g is not group]
        if outside and not self._may_leave(own, group, min(outside)):
            return None
        return group if self._may_join(own, group, 1) else None

    def _may_join(self, own: _Fusable, group: FusionGroup, calls: int) -> bool:
        """Whether a call, with some others, may be computed in a group, and not at its place."""
        if group.dialect != own.dialect or group.size + calls > self._max_members:
            return False
        if group.rank > _limit(own.rank):
            return False
        if group.rank > _BROADCAST and self._rounds_a_reduction(own):
            return False
        made = self._buffers.of(self.items[own.position].var)
        if any(made in self.indices.get(member, ()) for member in group.members):
            return False
        value = self.items[own.position].value
        read = {self._buffers.of(a) for a in operands(value) if isinstance(a, Var)}
        passed = self.items[own.position + 1 : group.last]
        return not any(read & self._buffers.written_by(b) for b in passed)

    def _rounds_a_reduction(self, own: _Fusable) -> bool:
        """Whether a call is a cast to fewer bytes of what a reduction computes, which stores that
        then, and not the wide numbers: as it cannot be in a group that moves elements.
        """
        binding = self.items[own.position]
        if _growth(binding) >= 0:
            return False
        assert isinstance(binding.value, Call)
        place = self._places.get(binding.value.args[0])
        source = None if place is None else _fusable(self.items[place], place)
        return source is not None and source.dialect == own.dialect and source.rank == _REDUCE

    def _may_leave(self, own: _Fusable, group: FusionGroup, needed: int) -> bool:
        """Whether a call in a group may have a result that others read, the first at ``needed``.

        Nobody may write to it: what a view of it is, and what not, is decided by the program.
        """
        var, last = self.items[own.position].var, self.items[group.last].var
        return (
            needed > group.last
            and max(own.rank, group.rank) <= _BROADCAST
            and tensor_of(var).shape == tensor_of(last).shape
            and self._buffers.of(var) not in self._buffers.written
        )

    # Casts that several kernels read ---------------------------------------------------------

    def _shared(self, own: _Fusable) -> bool:
        """Give a widening cast to each group that reads it; whether it was done.

        What cannot compute it shares one wide result: of the first group that may have a second
        one, or of a kernel of its own.
        """
        if self._buffers.of(self.items[own.position].var) in self._buffers.written:
            return False
        readers = list(self._readers(own.position, ()))
        wanted: dict[int, tuple[FusionGroup, list[_CastReader]]] = {}
        for reader in readers:
            if reader.position in self.of:
                group = self.of[reader.position]
                wanted.setdefault(group.last, (group, []))[1].append(reader)
        taken = {
            last: (group, sorted({_read(own, r) for r in found}))
            for last, (group, found) in sorted(wanted.items())
            if self._may_join(own, group, len({_read(own, r) for r in found}))
        }
        kept = [
            r for r in readers if r.position not in self.of or self.of[r.position].last not in taken
        ]
        direct = [group for group, read in taken.values() if read == [own.position]]
        if not taken or (not kept and len(taken) == 1 and direct):
            return False  # nothing is shared
        if kept:
            needed = min(r.first for r in kept)
            home = next((g for g in direct if self._may_leave(own, g, needed)), None)
            self._place(own, home)
            if home is not None:
                del taken[home.last]
        else:
            self.gone.add(own.position)
        self._copied[own.position] = [(g, read) for g, found in taken.values() for read in found]
        for group, read in self._copied[own.position]:
            group.copies.append((own.position, read))
        views = {v for r in readers for v in r.views}
        self.gone |= views - {v for r in kept for v in r.views}
        return True

    def _readers(self, position: int, views: tuple[int, ...]) -> Iterator[_CastReader]:
        """Yield who reads a binding, through views of this block or without."""
        users = sorted(self._users.get(self.items[position].var, ()))
        if views and not users:
            yield _CastReader(views[-1], views[:-1])  # nobody reads the view: it stays as it is
        for user in users:
            if user < len(self.items) and _is_view(self.items[user]):
                yield from self._readers(user, (*views, user))
            else:
                yield _CastReader(user, views)


@dataclass(frozen=True, slots=True)
class _Fusable:
    """A call that may be in a group."""

    dialect: str
    rank: int
    position: int


def _read(own: _Fusable, reader: _CastReader) -> int:
    """Return the position of what a reader names: the cast, or the last view of it."""
    return reader.views[-1] if reader.views else own.position


def _indices(block: Block, buffers: Buffers, ranges: IndexRanges) -> dict[int, set[Expr]]:
    found: dict[int, set[Expr]] = {}
    for i, binding in enumerate(block.bindings):
        if isinstance(binding.value, Call) and _fusable(binding, i) is not None:
            atoms = [atom for _, atom, _ in ranges.open(binding.value)]
            if atoms:
                found[i] = {buffers.of(a) for a in atoms if isinstance(a, Var)}
    return found


def _users(block: Block) -> dict[Expr, set[int]]:
    """Return who uses each variable, by position; the block's result comes after all bindings."""
    users: dict[Expr, set[int]] = {}

    def add(atoms: Iterable[Expr], position: int) -> None:
        for atom in atoms:
            users.setdefault(atom, set()).add(position)

    for i, binding in enumerate(block.bindings):
        add(uses(binding.value), i)
    add(operands(block.result), len(block.bindings))
    return users


def _limit(rank: int) -> int:
    """Return the highest rank of a group that a call of a rank may join."""
    return _REDUCE if rank <= _INJECTIVE else _BROADCAST


def fusion_ranks(kernel: DialectOp) -> tuple[int, int] | None:
    """Return the highest rank of a reader that a call of a kernel may be fused with, and its own
    rank; None if it is never fused. Of one dialect, a call and a reader of its result may be one
    kernel if the reader's rank is at most that.
    """
    rank = _RANK.get(kernel.fusion or "opaque")
    return None if kernel.dialect.fuse is None or rank is None else (_limit(rank), rank)


def _fusable(binding: Binding, position: int) -> _Fusable | None:
    """Return a call that may be in a group, None if it can be in none."""
    call, type_ = binding.value, binding.var.type
    if not isinstance(call, Call) or not isinstance(call.callee, DialectOp):
        return None
    ranks = fusion_ranks(call.callee)
    if ranks is None or has_effect(binding):
        return None
    if not isinstance(type_, TensorType) or not type_.is_static or type_.size == 0:
        return None
    return _Fusable(call.callee.dialect.name, ranks[1], position)


def _growth(binding: Binding) -> int:
    """Return the bits by which a dispatched cast makes elements larger; 0 for other calls."""
    call = binding.value
    assert isinstance(call, Call) and isinstance(call.callee, DialectOp)
    if call.callee.base is not op.astype or not isinstance(call.args[0], Var):
        return 0
    return bits(tensor_of(binding.var).dtype) - bits(tensor_of(call.args[0]).dtype)


def _is_view(binding: Binding) -> bool:
    """Whether a binding is another shape of a tensor, by numbers."""
    value, type_ = binding.value, binding.var.type
    if not isinstance(value, Call) or whole_source(value) is None:
        return False
    return isinstance(type_, TensorType) and type_.is_static
