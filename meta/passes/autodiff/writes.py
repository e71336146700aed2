"""Which buffers are written in place after a binding: what the forward computation read there, the
backward one cannot read again.
"""

from __future__ import annotations

from meta.ir import Binding, Block, Expr, If, Module, Var
from meta.passes.buffers import Buffers, Summaries

_NONE: frozenset[Expr] = frozenset()


class Writes:
    """The writes of a module: those of operators and of the functions that it calls."""

    def __init__(self, module: Module) -> None:
        # By variable: the buffers of its function, and which of them are written after it is bound.
        self._later: dict[Var, tuple[Buffers, frozenset[Expr]]] = {}
        summaries = Summaries(module)
        for function in module.functions.values():
            self._walk(function.body, Buffers(function, summaries), _NONE)

    def overwritten(self, binding: Binding, value: Expr) -> bool:
        """Whether the memory of an atom that a binding reads or makes is written later, in the same
        function or in those that it calls.
        """
        buffers, later = self._later[binding.var]
        return bool(later) and buffers.of(value) in later

    def written_by(self, binding: Binding, value: Expr) -> bool:
        """Whether a binding writes to the memory of an atom."""
        buffers, _ = self._later[binding.var]
        return buffers.of(value) in buffers.written_by(binding)

    def _walk(self, block: Block, buffers: Buffers, later: frozenset[Expr]) -> frozenset[Expr]:
        """Go through a block from its end; return what is written in it or later."""
        for binding in reversed(block.bindings):
            self._later[binding.var] = (buffers, later)
            value = binding.value
            if isinstance(value, If):
                blocks = (value.then_block, value.else_block)
                later = _NONE.union(*(self._walk(b, buffers, later) for b in blocks))
            else:
                later |= buffers.written_by(binding)
        return later
