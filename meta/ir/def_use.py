"""Definitions and uses of a function's variables: a view, computed once and not kept up to date."""

from __future__ import annotations

from meta.ir.expr import Binding, Block, Function, Var
from meta.ir.visit import bindings, inner_blocks, operands

User = Binding | Block
"""Who uses a variable: a binding in its value, or a block as (a part of) its result."""


class DefUse:
    """Who defines and who uses each variable of a function, nested blocks included.

    A use inside of a nested block is the inner binding's, not that of the `If` or closure around.

    Attributes
    ----------
    definitions: the binding of each variable; parameters and free variables have none.
    """

    def __init__(self, root: Function | Block) -> None:
        self.definitions: dict[Var, Binding] = {}
        self._users: dict[Var, dict[User, None]] = {}
        self._result_of(root.body if isinstance(root, Function) else root)
        for binding in bindings(root):
            self.definitions[binding.var] = binding
            for atom in operands(binding.value):
                if isinstance(atom, Var):
                    self._users.setdefault(atom, {})[binding] = None
            for block in inner_blocks(binding.value):
                self._result_of(block)

    def _result_of(self, block: Block) -> None:
        for atom in operands(block.result):
            if isinstance(atom, Var):
                self._users.setdefault(atom, {})[block] = None

    def users(self, var: Var) -> tuple[User, ...]:
        """Return who uses a variable, each once; nothing for one that is dead."""
        return tuple(self._users.get(var, ()))
