"""Which variables share memory, and which of them must not come to share more.

A pass that replaces a computed value by another one, or by a constant, makes two values that were
apart into one buffer. That is right as long as nobody writes to it: see `Buffers.replaceable`.
"""

from __future__ import annotations

from meta.base.device import CPU
from meta.dialect.core import IN_PLACE
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    bindings,
    operands,
)
from meta.ir.visit import inner_blocks
from meta.op.core import View
from meta.passes.call_of import base_op, flat_atoms, has_effect, typed_args


class Buffers:
    """The buffers of one function's variables.

    Attributes
    ----------
    written: buffers that an operator writes in place, or that are handed to a function, which may.
    leaving: buffers that are results: the caller may write to them, and to the arguments, later.

    A call of a global function may write what it is given, unless the ``module`` is known and the
    function `keeps_apart`.
    """

    def __init__(self, function: Function, module: Module | None = None) -> None:
        self._module = module
        self._apart: dict[str, bool] = {}
        # A view's buffer is that of what it views; a tuple's variables are looked through.
        self._base: dict[Var, Expr] = {}
        self._fields: dict[Var, Tuple] = {}
        self.written: set[Expr] = set()
        self.leaving: set[Expr] = set()
        self._leave(function.body)
        for binding in bindings(function):
            value = binding.value
            if isinstance(value, Tuple):
                self._fields[binding.var] = value
            elif isinstance(value, Var | Constant | TupleGetItem):
                self._base[binding.var] = self._resolved(value)
            elif isinstance(value, Call):
                self._call(binding.var, value)
            for block in inner_blocks(value):
                self._leave(block)
        self.written = {self.of(a) for a in self.written}
        self.leaving = {self.of(a) for a in self.leaving}

    def _call(self, var: Var, call: Call) -> None:
        op = base_op(call.callee)
        if op is None:
            if not self._known_apart(call.callee):
                self.written.update(operands(call))
            return
        for slot in op.schema.written:
            self.written.update(flat_atoms(call.args[slot]))
        # Only an operator with a declare of its own can return a view.
        out = op.call_values(typed_args(op, call), CPU).out if op.declare_site is not None else None
        if isinstance(out, View):
            self._base[var] = flat_atoms(call.args[out.slot])[0]

    def _known_apart(self, callee: Expr) -> bool:
        if self._module is None or not isinstance(callee, GlobalVar):
            return False
        name = callee.name
        if name not in self._apart:
            self._apart[name] = keeps_apart(self._module.functions[name])
        return self._apart[name]

    def _leave(self, block: Block) -> None:
        self.leaving.update(operands(block.result))

    def _resolved(self, value: Expr) -> Expr:
        if isinstance(value, TupleGetItem):
            fields = self._fields.get(value.value) if isinstance(value.value, Var) else value.value
            return fields.fields[value.index] if isinstance(fields, Tuple) else value
        return value

    def of(self, atom: Expr) -> Expr:
        """Return the atom whose buffer this one shares; itself if it has its own."""
        while isinstance(atom, Var) and atom in self._base:
            atom = self._base[atom]
        return atom

    def written_by(self, binding: Binding) -> set[Expr]:
        """Return the buffers that evaluating a binding may write, nested blocks included.

        A function that is called may write its arguments, and a closure what it closes over.
        """
        inner = (b for block in inner_blocks(binding.value) for b in bindings(block))
        found: set[Expr] = set()
        for one in (binding, *inner):
            if not has_effect(one):
                continue
            assert isinstance(one.value, Call)
            op = base_op(one.value.callee)
            if op is not None:
                found.update(a for s in op.schema.written for a in flat_atoms(one.value.args[s]))
            elif not self._known_apart(one.value.callee):
                found.update(operands(one.value))
                if isinstance(one.value.callee, Var):
                    found |= self.written
        return {self.of(a) for a in found}

    def replaceable(self, var: Var, by: Expr) -> bool:
        """Whether a freshly computed ``var`` may become the same buffer as ``by``.

        Not if one of them is written, and not if it is a result: then the user would get a
        constant of the program or an argument where a new array is expected.
        """
        mine = self.of(var)
        own = mine in self.written or mine in self.leaving
        return not own and self.of(by) not in self.written


def keeps_apart(function: Function) -> bool:
    """Whether a function writes nothing that it is given and returns none of it, as a kernel does.

    One that calls other functions counts as one that may.
    """
    buffers = Buffers(function)
    results = {buffers.of(atom) for atom in operands(function.body.result)}
    given = any(isinstance(r, Constant | TupleGetItem) or r in function.params for r in results)
    return not buffers.written and not given and IN_PLACE not in function.attrs
