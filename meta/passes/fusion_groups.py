"""Which calls of a block run as one kernel: the groups that `fuse_tvm` makes functions of.

Who may join whom is here; what becomes of a group, in `fuse_tvm`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from meta import op
from meta.base.dtype import bits
from meta.dialect.core import DialectOp
from meta.ir import Binding, Block, Call, Expr, TensorType, Var, bindings, operands, type_of
from meta.ir.visit import inner_blocks
from meta.passes.buffers import Buffers
from meta.passes.calls import has_effect
from meta.passes.index_ranges import IndexRanges
from meta.passes.lifetimes import view_source

_RANK = {"elemwise": 0, "broadcast": 1, "injective": 2, "comm_reduce": 3, "out_elemwise_fusable": 4}
_BROADCAST, _INJECTIVE, _REDUCE = _RANK["broadcast"], _RANK["injective"], _RANK["comm_reduce"]


@dataclass(slots=True)
class Group:
    """Calls that run as one kernel, at the place of the last: positions in their block.

    Attributes
    ----------
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
class _Reader:
    """Who reads a cast: its position, and those of the views between the two, the last one last."""

    position: int
    views: tuple[int, ...]

    @property
    def first(self) -> int:
        """Where the cast has to be known."""
        return min((*self.views, self.position))


class Groups:
    """The groups of one block.

    Attributes
    ----------
    of: the group of each call that is in one, by position. gone: the positions of what nobody needs
    any more: casts that every reader computes for itself, and their views. indices: by the position
    of a call, the buffers of its indices that are looked at before it runs, and so in memory:
    those that ``ranges`` do not know to be in range (None: none is looked at).
    """

    def __init__(
        self, block: Block, buffers: Buffers, ranges: IndexRanges | None, max_members: int
    ) -> None:
        self.items = block.bindings
        self.of: dict[int, Group] = {}
        self.gone: set[int] = set()
        self.indices = {} if ranges is None else _indices(block, buffers, ranges)
        self._buffers, self._max_members = buffers, max_members
        self._users = _users(block)
        self._places = {binding.var: i for i, binding in enumerate(self.items)}
        self._copied: dict[int, list[tuple[Group, int]]] = {}
        for i in reversed(range(len(self.items))):
            own = _alone(self.items[i], i)
            if own is not None and not (_widens(self.items[i]) and self._shared(own)):
                self._place(own, self._joined(own))

    def leaves(self, position: int) -> bool:
        """Whether the result of a member is needed outside of its kernel."""
        group = self.of[position]
        return position == group.last or any(g is not group for g, _ in self._uses(position))

    def _place(self, own: _Alone, group: Group | None) -> None:
        """Put a call into a group, by default one of its own."""
        if group is None:
            group = Group(own.dialect, own.rank, [own.position])
        else:
            group.members.append(own.position)
            group.rank = max(group.rank, own.rank)
        self.of[own.position] = group

    def _uses(self, position: int) -> Iterator[tuple[Group | None, int]]:
        """Yield where the result of a binding is used: in which group, and at which position."""
        for user in self._users.get(self.items[position].var, ()):
            for group, read in self._copied.get(user, ()):
                yield (group if read == user else None), group.last
            if user in self.of:
                yield self.of[user], self.of[user].last
            elif user not in self._copied:
                yield None, user

    def _joined(self, own: _Alone) -> Group | None:
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

    def _may_join(self, own: _Alone, group: Group, calls: int) -> bool:
        """Whether a call, with some others, may be computed in a group, and not at its place."""
        if group.dialect != own.dialect or group.size + calls > self._max_members:
            return False
        if not _may_feed(own.rank, group.rank):
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

    def _rounds_a_reduction(self, own: _Alone) -> bool:
        """Whether a call is a cast to fewer bytes of what a reduction computes, which stores that
        then, and not the wide numbers: as it cannot be in a group that moves elements.
        """
        binding = self.items[own.position]
        if not _narrows(binding):
            return False
        assert isinstance(binding.value, Call)
        place = self._places.get(binding.value.args[0])
        source = None if place is None else _alone(self.items[place], place)
        return source is not None and source.dialect == own.dialect and source.rank == _REDUCE

    def _may_leave(self, own: _Alone, group: Group, needed: int) -> bool:
        """Whether a call in a group may have a result that others read, the first at ``needed``.

        Nobody may write to it: what a view of it is, and what not, is decided by the program.
        """
        var, type_ = self.items[own.position].var, self.items[group.last].var.type
        assert isinstance(var.type, TensorType) and isinstance(type_, TensorType)
        return (
            needed > group.last
            and max(own.rank, group.rank) <= _BROADCAST
            and var.type.shape == type_.shape
            and self._buffers.of(var) not in self._buffers.written
        )

    # Casts that several kernels read ---------------------------------------------------------

    def _shared(self, own: _Alone) -> bool:
        """Give a widening cast to each group that reads it; whether it was done.

        What cannot compute it shares one wide result: of the first group that may have a second
        one, or of a kernel of its own.
        """
        if self._buffers.of(self.items[own.position].var) in self._buffers.written:
            return False
        readers = list(self._readers(own.position, ()))
        wanted: dict[int, tuple[Group, list[_Reader]]] = {}
        for reader in readers:
            if reader.position in self.of:
                group = self.of[reader.position]
                wanted.setdefault(group.last, (group, []))[1].append(reader)
        taken = {
            last: (group, sorted({_read(own, r) for r in found}))
            for last, (group, found) in sorted(wanted.items())
            if self._may_join(own, group, len({_read(own, r) for r in found}))
        }
        kept = [r for r in readers if not self._takes(r, taken)]
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

    def _takes(self, reader: _Reader, taken: dict[int, tuple[Group, list[int]]]) -> bool:
        return reader.position in self.of and self.of[reader.position].last in taken

    def _readers(self, position: int, views: tuple[int, ...]) -> Iterator[_Reader]:
        """Yield who reads a binding, through views of this block or without."""
        users = sorted(self._users.get(self.items[position].var, ()))
        if views and not users:
            yield _Reader(views[-1], views[:-1])  # nobody reads the view: it stays as it is
        for user in users:
            if user < len(self.items) and _is_view(self.items[user]):
                yield from self._readers(user, (*views, user))
            else:
                yield _Reader(user, views)


@dataclass(frozen=True, slots=True)
class _Alone:
    """A call that may be in a group."""

    dialect: str
    rank: int
    position: int


def _read(own: _Alone, reader: _Reader) -> int:
    """Return the position of what a reader names: the cast, or the last view of it."""
    return reader.views[-1] if reader.views else own.position


def _indices(block: Block, buffers: Buffers, ranges: IndexRanges) -> dict[int, set[Expr]]:
    found: dict[int, set[Expr]] = {}
    for i, binding in enumerate(block.bindings):
        if isinstance(binding.value, Call) and _alone(binding, i) is not None:
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
        add(operands(binding.value), i)
        for inner in inner_blocks(binding.value):
            add(operands(inner.result), i)
            for nested in bindings(inner):
                add(operands(nested.value), i)
                for deeper in inner_blocks(nested.value):
                    add(operands(deeper.result), i)
    add(operands(block.result), len(block.bindings))
    return users


def _alone(binding: Binding, position: int) -> _Alone | None:
    """Return a call that may be in a group, None if it can be in none."""
    call, type_ = binding.value, binding.var.type
    if not isinstance(call, Call) or not isinstance(call.callee, DialectOp):
        return None
    dialect, rank = call.callee.dialect, _RANK.get(call.callee.fusion or "opaque")
    if dialect.fuse is None or rank is None or has_effect(binding):
        return None
    if not isinstance(type_, TensorType) or not type_.is_static or type_.size == 0:
        return None
    return _Alone(dialect.name, rank, position)


def _may_feed(producer: int, group: int) -> bool:
    if producer <= _INJECTIVE:
        return group <= _REDUCE
    return group <= _BROADCAST


def _widens(binding: Binding) -> bool:
    """Whether a dispatched call is a cast whose result takes more bytes than what it reads."""
    return _growth(binding) > 0


def _narrows(binding: Binding) -> bool:
    """Whether a dispatched call is a cast whose result takes fewer bytes than what it reads."""
    return _growth(binding) < 0


def _growth(binding: Binding) -> int:
    """Return the bits by which a dispatched cast makes elements larger; 0 for other calls."""
    call, made = binding.value, binding.var.type
    assert isinstance(call, Call) and isinstance(call.callee, DialectOp)
    if call.callee.base is not op.cast or not isinstance(call.args[0], Var):
        return 0
    source = type_of(call.args[0])
    assert isinstance(source, TensorType) and isinstance(made, TensorType)
    return bits(made.dtype) - bits(source.dtype)


def _is_view(binding: Binding) -> bool:
    """Whether a binding is another shape of a tensor, by numbers."""
    value, type_ = binding.value, binding.var.type
    if not isinstance(value, Call) or view_source(value) is None:
        return False
    return isinstance(type_, TensorType) and type_.is_static
