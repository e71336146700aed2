"""Where the one call that takes a match's place may stand.

Calls of one result stand where it was computed. Several results may be used before the last of them
is there, so their call has to come earlier: after everything that the match reads, and before all
that use its results. Places are positions in the block, and numbers between them.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from meta.ir import Binding, Block, DefUse, Var, bindings, operands
from meta.ir.def_use import User
from meta.ir.visit import inner_blocks


class Places:
    """The positions in one block, as matches that were found move them."""

    def __init__(self, block: Block, uses: DefUse) -> None:
        self.block, self.uses = block, uses
        self.position: Mapping[Binding, int] = {b: i for i, b in enumerate(block.bindings)}
        self._moved: dict[Binding, float] = {}
        self._outer: dict[User, Binding] = {}
        for binding in block.bindings:
            for inner in inner_blocks(binding.value):
                self._outer[inner] = binding
                for nested in bindings(inner):
                    self._outer[nested] = binding
                    self._outer.update(dict.fromkeys(inner_blocks(nested.value), binding))

    def of(self, user: User) -> float:
        """Return where a binding is evaluated, or one of the block in which it is nested; the end
        for the block's result.
        """
        user = self._outer.get(user, user)
        if isinstance(user, Block):
            return len(self.block.bindings)
        return self._moved.get(user, self.position[user])

    def find(
        self, members: tuple[Binding, ...], inside: set[Binding], results: tuple[Binding, ...]
    ) -> float | None:
        """Return where the call of a match can be, None if nowhere.

        ``members``: what it computes; those ``inside`` are there nowhere else. ``results``: those
        that others may use.
        """
        last = max(self.position[b] for b in inside)
        if len(results) == 1:
            return last
        used = (u for r in results for u in self.uses.users(r.var) if u not in inside)
        end = min(map(self.of, used), default=len(self.block.bindings))
        if last < end:
            return last
        read = (a for b in members for a in operands(b.value) if isinstance(a, Var))
        sources = {self.uses.definitions[a] for a in read if a in self.uses.definitions}
        begin = max(
            (self.of(s) for s in sources if s in self.position and s not in members), default=-1.0
        )
        begin = max(begin, ceil(end) - 1)
        return (begin + end) / 2 if begin < end else None

    def move(self, inside: set[Binding], place: float) -> None:
        """Note where the results of a match are computed from now on."""
        self._moved.update(dict.fromkeys(inside, place))
