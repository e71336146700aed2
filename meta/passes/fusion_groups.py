"""Who may join whom in one kernel: `FusionGroups` of a block, for `fuse_operators`.

Which calls may be neighbours in a kernel follows from how each reads its arguments, its *kind*
(stated where its kernel is registered): ``elemwise`` and ``broadcast`` read the element they write,
``injective`` another one, ``comm_reduce`` many to make few, ``out_elemwise_fusable`` many to make
as many. An ``opaque`` call stays alone. These are the kinds of TVM's operator fusion (Chen et al.,
"TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from meta import op
from meta.base.dtype import bits
from meta.dialect.core import DialectOp
from meta.dialect.core.ir_calls import called_op, full_view_source, has_effect, tensor_of
from meta.ir import Binding, Block, Call, Expr, TensorType, TupleType, Var, operands, type_bytes
from meta.ir.visit import uses
from meta.passes.alias_analysis import AliasSets
from meta.passes.index_ranges import IndexRanges
from meta.passes.symbolic_extents import serves_all_extents

_RANK = {"elemwise": 0, "broadcast": 1, "injective": 2, "comm_reduce": 3, "out_elemwise_fusable": 4}
_BROADCAST, _INJECTIVE, _REDUCE = _RANK["broadcast"], _RANK["injective"], _RANK["comm_reduce"]
MAX_COPIES = 4
"""The calls, at most, that a kernel computes again to have one result."""


@dataclass(slots=True)
class FusionGroup:
    """Calls that run as one kernel, at the place of the last: positions in their block.

    dialect: of all calls. rank: the highest of their kinds. members: the last one first. copies:
    calls that are computed here, and elsewhere too: the position of each, and of what is read of
    it, itself or, of a cast, a view.
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

    def computes(self, position: int) -> bool:
        """Whether a call is computed in this kernel."""
        return position in self.members or (position, position) in self.copies


@dataclass(frozen=True, slots=True)
class _Reader:
    """Who reads a cast or a broadcast: its position, and those of the views of a cast between the
    two, the last one last.
    """

    position: int
    views: tuple[int, ...]

    @property
    def first(self) -> int:
        """Where it has to be known."""
        return min((*self.views, self.position))


class FusionGroups:
    """The groups of one block.

    of: the group of each call that is in one, by position. gone: the positions of what nobody needs
    any more: casts and broadcasts that every reader computes for itself, and views of casts.
    indices: by the position of a call, the buffers of its indices that are looked at before it
    runs, and so in memory: those that ``ranges`` do not know to be in range (None: none is looked
    at). ``recompute``: whether kernels compute again what another one would have to write for them
    (`_recompute`). ``symbolic``: whether arrays may have symbolic dimensions.
    """

    def __init__(
        self,
        block: Block,
        buffers: AliasSets,
        ranges: IndexRanges | None,
        max_members: int,
        recompute: bool,
        symbolic: bool = False,
    ) -> None:
        self.items = block.bindings
        self._symbolic = symbolic
        self.of: dict[int, FusionGroup] = {}
        self.gone: set[int] = set()
        self.indices = {} if ranges is None else self._indices(block, buffers, ranges)
        self._buffers, self._max_members = buffers, max_members
        self._users = _users(block)
        self._places = {binding.var: i for i, binding in enumerate(self.items)}
        self._copied: dict[int, list[tuple[FusionGroup, int]]] = {}
        for i in reversed(range(len(self.items))):
            own = self._fusable(i)
            if own is not None and not (_growth(self.items[i]) > 0 and self._shared(own)):
                self._place(own, self._joined(own))
        if recompute:
            self._last = self._last_uses(block)
            for i in sorted(self.of):
                if i != self.of[i].last and self.leaves(i):
                    self._recompute(i)

    def _fusable(self, position: int) -> _Fusable | None:
        return _fusable(self.items[position], position, self._symbolic)

    def _indices(
        self, block: Block, buffers: AliasSets, ranges: IndexRanges
    ) -> dict[int, set[Expr]]:
        found: dict[int, set[Expr]] = {}
        for i, binding in enumerate(block.bindings):
            if isinstance(binding.value, Call) and self._fusable(i) is not None:
                atoms = [atom for _, atom, _ in ranges.open(binding.value)]
                if atoms:
                    found[i] = {buffers.of(a) for a in atoms if isinstance(a, Var)}
        return found

    def leaves(self, position: int) -> bool:
        """Whether the result of a member is needed outside of its kernel."""
        if position == self.of[position].last:
            return True
        return any(g is None or not g.computes(position) for g, _ in self._uses(position))

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
        then, and not the wide numbers: as it cannot be in a group that moves elements, nor, where
        others compute elementwise calls behind it, in one that reduces them.
        """
        binding = self.items[own.position]
        if _growth(binding) >= 0:
            return False
        assert isinstance(binding.value, Call)
        behind = False
        waiting, seen = [binding.value.args[0]], set[Expr]()
        while waiting:
            atom = waiting.pop()
            place = None if atom in seen else self._places.get(atom)
            seen.add(atom)
            source = None if place is None else self._fusable(place)
            if place is None or source is None or source.dialect != own.dialect:
                continue
            if source.rank > _REDUCE or (source.rank == _REDUCE and not behind):
                return True
            if source.rank <= _BROADCAST and _growth(self.items[place]) >= 0:
                waiting += [a for a in operands(self.items[place].value) if isinstance(a, Var)]
            behind = True
        return False

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

    # Casts and broadcasts that several kernels read --------------------------------------------

    def _shared(self, own: _Fusable) -> bool:
        """Give what is smaller before it, as before a widening cast, to each group that reads it;
        whether it was done.

        What cannot compute it shares one wide result: of the first group that may have a second
        one, or of a kernel of its own.
        """
        if self._buffers.of(self.items[own.position].var) in self._buffers.written:
            return False
        readers = list(self._readers(own.position, ()))
        wanted: dict[int, tuple[FusionGroup, list[_Reader]]] = {}
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

    def _readers(self, position: int, views: tuple[int, ...]) -> Iterator[_Reader]:
        """Yield who reads a binding, through views of this block or without; of a broadcast, whose
        views are not those of its operand, without.
        """
        users = sorted(self._users.get(self.items[position].var, ()))
        if views and not users:
            yield _Reader(views[-1], views[:-1])  # nobody reads the view: it stays as it is
        through = bool(views) or not _repeats(self.items[position])
        for user in users:
            if through and user < len(self.items) and _is_view(self.items[user]):
                yield from self._readers(user, (*views, user))
            else:
                yield _Reader(user, views)

    # What other kernels compute again ---------------------------------------------------------

    def _recompute(self, position: int) -> None:
        """Let the kernels that read a member's result compute it themselves, so that nobody writes
        it, if all can do so from what is in memory then anyway, and read no more bytes by that than
        are spared: those of one write and of a read by each.
        """
        readers: dict[int, FusionGroup] = {}
        for group, _ in self._uses(position):
            if group is None:
                return
            if not group.computes(position):
                readers[group.last] = group
        added: list[tuple[FusionGroup, list[int]]] = []
        more = 0
        for group in readers.values():
            calls = self._computed_from_memory(position, group)
            if calls is None:
                return
            added.append((group, calls))
            more += self._bytes_read(group, calls)
        if more > (1 + len(readers)) * type_bytes(self.items[position].var.type):
            return
        for group, calls in added:
            for call in calls:
                group.copies.append((call, call))
                self._copied.setdefault(call, []).append((group, call))

    def _computed_from_memory(self, position: int, group: FusionGroup) -> list[int] | None:
        """Return the calls that a kernel has to add so that it computes a result from what is in
        memory when it can run; None if there is no such way, or not with `MAX_COPIES` calls.
        """
        calls: list[int] = []
        wanted, begin = [position], self._begin(group)
        while wanted:
            at = wanted.pop()
            if at in calls:
                continue
            own = self._fusable(at)
            if own is None or own.rank > _BROADCAST or len(calls) == MAX_COPIES:
                return None
            calls.append(at)
            for atom in dict.fromkeys(operands(self.items[at].value)):
                if not isinstance(atom, Var) or self._in_memory(atom, begin):
                    continue
                source = self._places.get(atom)
                if source is None:
                    return None
                if not group.computes(source):
                    wanted.append(source)
        members = [self._fusable(at) for at in calls]
        joins = all(own and self._may_join(own, group, len(calls)) for own in members)
        return calls if joins else None

    def _begin(self, group: FusionGroup) -> int:
        """Return when a kernel could run: where the last of what it reads from others is made."""
        read = (a for at in group.members for a in operands(self.items[at].value))
        places = (self._places[a] for a in read if a in self._places)
        return max((self._moment(at) for at in places if not group.computes(at)), default=-1)

    def _moment(self, position: int) -> int:
        """Return where a call runs: at its own place, or that of its kernel."""
        return self.of[position].last if position in self.of else position

    def _in_memory(self, atom: Var, moment: int) -> bool:
        """Whether an atom is written to memory, and in use at a moment or later."""
        place = self._places.get(atom)
        if place in self.gone or (place in self.of and not self.leaves(place)):
            return False
        return self._last[self._buffers.of(atom)] >= moment

    def _last_uses(self, block: Block) -> dict[Expr, int]:
        """Return when the memory of each variable is used for the last time: at which position, or
        that of the kernel; what is not the block's own, always.
        """
        end, last = len(self.items), dict[Expr, int]()
        own = {self._buffers.of(b.var) for b in self.items}
        for atom, users in self._users.items():
            if isinstance(atom, Var):
                memory = self._buffers.of(atom)
                moments = map(self._moment, users)
                last[memory] = max(last.get(memory, -1), *moments, end if memory not in own else -1)
        return last

    def _bytes_read(self, group: FusionGroup, calls: list[int]) -> int:
        """Return the bytes that a kernel reads for more calls, and does not read without them."""
        inside = {self.items[at].var for at in (*group.members, *(c for c, _ in group.copies))}
        read = {a for at in group.members for a in operands(self.items[at].value)}
        added = {a for at in calls for a in operands(self.items[at].value) if isinstance(a, Var)}
        added -= read | inside | {self.items[at].var for at in calls}
        return sum(type_bytes(atom.type) for atom in added)


@dataclass(frozen=True, slots=True)
class _Fusable:
    """A call that may be in a group."""

    dialect: str
    rank: int
    position: int


def _read(own: _Fusable, reader: _Reader) -> int:
    """Return the position of what a reader names: the cast, or the last view of it."""
    return reader.views[-1] if reader.views else own.position


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


def _fusable(binding: Binding, position: int, symbolic: bool) -> _Fusable | None:
    """Return a call that may be in a group, None if it can be in none. symbolic: whether it may
    have symbolic dimensions.
    """
    call, type_ = binding.value, binding.var.type
    if not isinstance(call, Call) or not isinstance(call.callee, DialectOp):
        return None
    ranks = fusion_ranks(call.callee)
    if ranks is None or has_effect(binding):
        return None
    # A reduction may have several results, each of which is read outside.
    types: tuple[object, ...] = (type_,)
    if isinstance(type_, TupleType) and ranks[1] == _REDUCE:
        types = type_.fields
    known = all(isinstance(t, TensorType) and t.is_static and t.size for t in types)
    if not known and not (symbolic and serves_all_extents(call, type_)):
        return None
    return _Fusable(call.callee.dialect.name, ranks[1], position)


def _growth(binding: Binding) -> int:
    """Return the bits by which a dispatched cast makes elements larger, 1 for one that repeats
    them; 0 for other calls.
    """
    call = binding.value
    assert isinstance(call, Call) and isinstance(call.callee, DialectOp)
    if _repeats(binding):
        return 1
    if call.callee.base is not op.astype or not isinstance(call.args[0], Var):
        return 0
    return bits(tensor_of(binding.var).dtype) - bits(tensor_of(call.args[0]).dtype)


def _repeats(binding: Binding) -> bool:
    """Whether a dispatched call has the elements of one array, and more than once."""
    call = binding.value
    return (
        isinstance(call, Call)
        and called_op(call) is op.broadcast_to
        and isinstance(call.args[0], Var)
    )


def _is_view(binding: Binding) -> bool:
    """Whether a binding is another shape of a tensor, by numbers."""
    value, type_ = binding.value, binding.var.type
    if not isinstance(value, Call) or full_view_source(value) is None:
        return False
    return isinstance(type_, TensorType) and type_.is_static
