"""Which buffers are written in place after a binding: what the forward computation read there, the
backward one cannot read again.
"""

from __future__ import annotations

from meta.ir import Binding, Block, Call, Expr, Function, GlobalVar, If, Module, Var, bindings
from meta.passes.buffers import Buffers
from meta.passes.call_of import base_op, flat_atoms

_NONE: frozenset[Expr] = frozenset()


class Writes:
    """The writes of a module: those of operators and, by a fixed point over the calls, those of
    functions to their parameters.
    """

    def __init__(self, module: Module) -> None:
        self._buffers = {name: Buffers(f) for name, f in module.functions.items()}
        self._params: dict[str, set[int]] = {name: set() for name in module.functions}
        size = -1
        while size != (size := sum(map(len, self._params.values()))):
            for name, function in module.functions.items():
                self._params[name] |= self._written_params(function, self._buffers[name])
        # By variable: the buffers of its function, and which of them are written after it is bound.
        self._later: dict[Var, tuple[Buffers, frozenset[Expr]]] = {}
        for name, function in module.functions.items():
            self._walk(function.body, self._buffers[name], _NONE)

    def overwritten(self, binding: Binding, value: Expr) -> bool:
        """Whether the memory of an atom that a binding reads or makes is written later, in the same
        function or in those that it calls.
        """
        buffers, later = self._later[binding.var]
        return bool(later) and buffers.of(value) in later

    def _written_params(self, function: Function, buffers: Buffers) -> set[int]:
        written = {buffers.of(a) for b in bindings(function) for a in self._by(b)}
        return {i for i, p in enumerate(function.params) if buffers.of(p) in written}

    def _walk(self, block: Block, buffers: Buffers, later: frozenset[Expr]) -> frozenset[Expr]:
        """Go through a block from its end; return what is written in it or later."""
        for binding in reversed(block.bindings):
            self._later[binding.var] = (buffers, later)
            value = binding.value
            if isinstance(value, If):
                blocks = (value.then_block, value.else_block)
                later = _NONE.union(*(self._walk(b, buffers, later) for b in blocks))
            later = later.union(map(buffers.of, self._by(binding)))
        return later

    def _by(self, binding: Binding) -> list[Expr]:
        """Return what evaluating a binding writes, apart from the blocks inside it."""
        call = binding.value
        if not isinstance(call, Call):
            return []
        op = base_op(call.callee)
        if op is not None:
            return [a for slot in op.schema.written for a in flat_atoms(call.args[slot])]
        if isinstance(call.callee, GlobalVar):
            return [a for i in self._params[call.callee.name] for a in flat_atoms(call.args[i])]
        # A closure may write whatever it is given.
        return [a for arg in call.args for a in flat_atoms(arg)]
