"""What variables were bound to, for passes that look through them.

To compute a call from the arguments of an earlier one, instead of from its result, is right only if
nobody wrote to these arguments in between.
"""

from __future__ import annotations

from meta.ir import Binding, Expr, Function, Var, bindings, operands
from meta.passes.buffers import Buffers, owner


class Definitions:
    """The values of the variables met so far, as long as computing them again gives the same.

    `add` every binding of a function, in the order in which `rewrite_function` visits them.
    """

    def __init__(self, function: Function, buffers: Buffers) -> None:
        self._buffers = buffers
        self._values: dict[Var, Expr] = {}
        self._readers: dict[Expr, list[Var]] = {}
        # A closure runs later than it is written down, when more may have been written.
        self._in_order = not any(isinstance(b.value, Function) for b in bindings(function))

    def get(self, atom: object) -> Expr | None:
        """Return the value that an atom was bound to; None if it is unknown or out of date."""
        return self._values.get(atom) if isinstance(atom, Var) else None

    def add(self, binding: Binding) -> None:
        """Take note of a binding, and of what it writes."""
        for buffer in self._buffers.written_by(binding):
            for var in self._readers.pop(owner(buffer), ()):
                self._values.pop(var, None)
        read = {self._buffers.of(atom) for atom in operands(binding.value)}
        if not self._in_order and read & self._buffers.written:
            return
        self._values[binding.var] = binding.value
        # Who writes to the result makes it another value than what was computed.
        for buffer in (*read, self._buffers.of(binding.var)):
            self._readers.setdefault(owner(buffer), []).append(binding.var)
