"""Alias analysis: which variables share memory, and which of them must not come to share more.

A pass that replaces a computed value by another one, or by a constant, makes two values that were
apart into one buffer. That is right as long as nobody writes to it: see `Buffers.replaceable`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property

from meta.dialect.core import IN_PLACE
from meta.dialect.core.ir_calls import base_op, flat_atoms, has_effect, view_source, written_atoms
from meta.ir import (
    Binding,
    Call,
    Constant,
    DefUse,
    Effect,
    Expr,
    Function,
    GlobalVar,
    Module,
    Tuple,
    TupleGetItem,
    Var,
    bindings,
    free_vars,
    operands,
)
from meta.ir.visit import inner_blocks, nested_bindings
from meta.passes.call_graph import callees
from meta.passes.rewrite import map_functions

ViewRule = Callable[[Call], Expr | None]


class AliasSets:
    """The buffers of one function's variables.

    written: buffers that an operator writes in place, or that are handed to a function, which may;
    and what may be the same memory. leaving: buffers that are results: the caller may write to
    them, and to the arguments, later. results: what the function's own result may be.

    The result of an `If` may be what either block returns. A call of a function may write what it
    is given and return it; of a global function the ``summaries`` say what. A data value is one
    memory with its fields, a reference with all that it is made or written to hold.

    ``views`` says what the result of a call is a view of, None for nothing.
    """

    def __init__(
        self,
        function: Function,
        summaries: AliasSummaries | None = None,
        views: ViewRule = view_source,
    ) -> None:
        self._summaries, self._views = summaries, views
        self._bindings = function.body.bindings
        # A view's buffer is that of what it views; a tuple's variables are looked through.
        self._base: dict[Var, Expr] = {}
        self._fields: dict[Expr, Tuple] = {}
        self._items: dict[tuple[Expr, int], TupleGetItem] = {}
        # What may be one memory when the program runs, as a forest.
        self._parent: dict[Expr, Expr] = {}
        # By the variable of a call of a function: what it is given and may return.
        self._handed_on: dict[Expr, set[Expr]] = {}
        written: set[Expr] = set()
        leaving = self._leaves(function.body.result)
        for binding in bindings(function):
            var, value = binding.var, binding.value
            if isinstance(value, Tuple):
                self._fields[var] = value
            elif isinstance(value, Var | Constant | TupleGetItem):
                self._base[var] = self._resolved(value)
            elif isinstance(value, Call):
                written |= self._call(var, value)
            else:
                leaving |= self._data(var, value)
        for binding in bindings(function):
            for block in inner_blocks(binding.value):
                results = self._leaves(block.result)
                leaving |= results
                self._unite(binding.var, results)
            if isinstance(binding.value, Function):
                self._unite(binding.var, free_vars(binding.value))
        self._groups = self._members()
        self.results = self.sharing(self._leaves(function.body.result))
        self.written = self.sharing(written)
        self.leaving = self._with_handed_on(leaving)

    def _call(self, var: Var, call: Call) -> set[Expr]:
        """Take note of what the result of a call shares; return what the call may write."""
        op = base_op(call.callee)
        if op is None:
            written, returned = self._effects(call)
            self._handed_on[var] = returned
            self._unite(var, returned)
            return written
        viewed = self._views(call)
        if viewed is not None:
            self._base[var] = viewed
        return set(written_atoms(op, call))

    def _data(self, var: Var, value: Expr) -> set[Expr]:
        """Take note of what a data value or a reference holds, which is returned, or gives back.

        Who gets it back, and when, is not followed: it leaves the function.
        """
        if not value.opaque:
            return set()
        stored = {leaf for atom in value.stored for leaf in self._leaves(atom)}
        if value.effect is Effect.WRITE:
            self._unite(owning_tuple(self.of(next(operands(value)))), stored)
        else:
            self._unite(var, {leaf for atom in operands(value) for leaf in self._leaves(atom)})
        return stored

    def _effects(self, call: Call) -> tuple[set[Expr], set[Expr]]:
        """Return what a call of a function may write, and may return, of what it is given."""
        if self._summaries is None or not isinstance(call.callee, GlobalVar):
            given = {leaf for atom in operands(call) for leaf in self._leaves(atom)}
            return given, given
        summary = self._summaries[call.callee.name]
        given_back = range(len(call.args)) if summary.stores else summary.returned
        written, returned = (
            {leaf for i in places for a in flat_atoms(call.args[i]) for leaf in self._leaves(a)}
            for places in (summary.written, given_back)
        )
        return written, returned | summary.constants

    def _resolved(self, value: Expr) -> Expr:
        """Return what a variable that is bound to an atom or to a field stands for."""
        if not isinstance(value, TupleGetItem):
            return value
        whole = self.of(value.value)
        known = whole if isinstance(whole, Tuple) else self._fields.get(whole)
        if known is not None:
            return known.fields[value.index]
        return self._items.setdefault((whole, value.index), TupleGetItem(whole, value.index))

    def _leaves(self, atom: Expr) -> set[Expr]:
        """Return the buffers of what an atom is, of the fields of a known tuple."""
        known = atom if isinstance(atom, Tuple) else self._fields.get(self.of(atom))
        if known is None:
            return {self.of(atom)}
        return {leaf for field in known.fields for leaf in self._leaves(field)}

    def _root(self, buffer: Expr) -> Expr:
        while (parent := self._parent.get(buffer, buffer)) is not buffer:
            self._parent[buffer] = self._parent.get(parent, parent)
            buffer = parent
        return buffer

    def _unite(self, var: Expr, buffers: Iterable[Expr]) -> None:
        for buffer in buffers:
            self._parent[self._root(owning_tuple(self.of(buffer)))] = self._root(var)
            self._parent.setdefault(var, var)

    def _with_handed_on(self, leaving: Iterable[Expr]) -> set[Expr]:
        """Return the buffers of atoms, and those that calls may have returned as one of them."""
        pending = [self.of(a) for a in leaving]
        found = set(pending)
        while pending:
            given = map(self.of, self._handed_on.get(owning_tuple(pending.pop()), ()))
            new = set(given) - found
            found |= new
            pending += new
        return found

    def _members(self) -> dict[Expr, set[Expr]]:
        """Return, by root, what may be one memory, fields included."""
        groups: dict[Expr, set[Expr]] = {}
        for buffer in self._parent:
            groups.setdefault(self._root(buffer), set()).add(buffer)
        for item in self._items.values():
            if owning_tuple(item) in self._parent:
                groups[self._root(owning_tuple(item))].add(item)
        return groups

    @cached_property
    def _own(self) -> set[Expr]:
        """The arrays that calls in the function's outermost block make."""
        return {b.var for b in self._bindings if _is_new(b)}

    def of(self, atom: Expr) -> Expr:
        """Return the atom whose buffer this one shares; itself if it has its own."""
        while isinstance(atom, Var) and atom in self._base:
            atom = self._base[atom]
        return atom

    def is_own(self, atom: Expr) -> bool:
        """Whether an atom is an array that a call in the function's outermost block makes."""
        return owning_tuple(self.of(atom)) in self._own

    def sharing(self, atoms: Iterable[Expr]) -> set[Expr]:
        """Return the buffers of atoms, and those that may be the same memory as one of them."""
        found = {self.of(atom) for atom in atoms}
        return found.union(*(self._groups.get(self._root(owning_tuple(b)), ()) for b in found))

    def written_by(self, binding: Binding) -> set[Expr]:
        """Return the buffers that evaluating a binding may write, nested blocks included.

        A function that is called may write its arguments, and a closure what it closes over.
        """
        found: set[Expr] = set()
        for one in (binding, *nested_bindings(binding.value)):
            # Where a reference holds something else now, no memory is written.
            if not has_effect(one) or not isinstance(one.value, Call):
                continue
            op = base_op(one.value.callee)
            if op is not None:
                found.update(written_atoms(op, one.value))
            else:
                found |= self._effects(one.value)[0]
                if isinstance(one.value.callee, Var):
                    found |= self.written
        return self.sharing(found)

    def replaceable(self, var: Var, by: Expr) -> bool:
        """Whether a freshly computed ``var`` may become the same buffer as ``by``.

        Not if one of them is written, and not if it is a result: then the user would get a
        constant of the program or an argument where a new array is expected.
        """
        mine = self.of(var)
        own = mine in self.written or mine in self.leaving
        return not own and self.of(by) not in self.written

    def move_out(self, var: Var, by: Expr) -> bool:
        """Let ``by`` be a result in the place of a freshly computed ``var``; whether it may be.

        It may if it is an array that a call in the function's outermost block makes, which is no
        result yet, and if neither is written. It is a result from then on.
        """
        mine, other = self.of(var), self.of(by)
        if mine not in self.leaving or {mine, owning_tuple(other)} & self._parent.keys():
            return False
        taken = self.written | self.leaving
        if mine in self.written or other in taken or owning_tuple(other) in taken:
            return False
        if not self.is_own(mine) or not self.is_own(other):
            return False
        self.leaving.add(other)
        return True


def _is_new(binding: Binding) -> bool:
    """Whether a binding is of an array, or of several, that a call makes."""
    call = binding.value
    op = base_op(call.callee) if isinstance(call, Call) else None
    if op is None or not isinstance(call, Call) or has_effect(binding):
        return False
    return view_source(call) is None and op.name != "torch_call"  # which may return what it reads


def owning_tuple(buffer: Expr) -> Expr:
    """Return the tuple whose field a buffer is, for all its fields, or else the buffer itself."""
    while isinstance(buffer, TupleGetItem):
        buffer = buffer.value
    return buffer


@dataclass(frozen=True, slots=True)
class AliasSummary:
    """What a call of a global function may do to memory that is not its own.

    written: the parameters, by number, whose memory it may write. returned: those whose memory its
    result may be. constants: those of the program that its result may be. stores: whether it may
    let a reference hold something, so that parameters and result may be parts of one another.
    """

    written: frozenset[int] = frozenset()
    returned: frozenset[int] = frozenset()
    constants: frozenset[Expr] = frozenset()
    stores: bool = False


class AliasSummaries:
    """The summaries of a module's functions, computed on demand: a fixed point over the calls."""

    def __init__(self, module: Module, views: ViewRule = view_source) -> None:
        self._module, self._views = module, views
        self._found: dict[str, AliasSummary] = {}
        values = (b.value for f in module.functions.values() for b in bindings(f))
        self._has_writes = any(v.effect is Effect.WRITE for v in values)

    def __getitem__(self, name: str) -> AliasSummary:
        if name not in self._found:
            self._solve(name)
        return self._found[name]

    def _solve(self, root: str) -> None:
        pending, names = [root], []
        while pending:
            name = pending.pop()
            if name not in self._found:
                self._found[name] = AliasSummary()
                names.append(name)
                pending += callees(self._module.functions[name])
        changed = True
        while changed:
            new = {name: self._summary(self._module.functions[name]) for name in reversed(names)}
            changed = any(self._found[name] != summary for name, summary in new.items())
            self._found.update(new)

    def _summary(self, function: Function) -> AliasSummary:
        buffers = AliasSets(function, self, self._views)
        stores = self._has_writes and any(self._stores(b.value) for b in bindings(function))
        reached = buffers.results
        if stores:
            reached = buffers.sharing({*reached, *function.params})
        written, results = (set(map(owning_tuple, b)) for b in (buffers.written, reached))
        every = IN_PLACE in function.attrs
        return AliasSummary(
            frozenset(i for i, p in enumerate(function.params) if every or p in written),
            frozenset(i for i, p in enumerate(function.params) if p in results),
            frozenset(r for r in results if isinstance(r, Constant)),
            stores,
        )

    def _stores(self, value: Expr) -> bool:
        """Whether a value lets a reference hold something; any closure may."""
        if not isinstance(value, Call) or base_op(value.callee) is not None:
            return value.effect is Effect.WRITE
        return not isinstance(value.callee, GlobalVar) or self._found[value.callee.name].stores


def map_functions_with_aliases(
    module: Module, change: Callable[[Function, AliasSets], Function]
) -> Module:
    """Return the module with every function changed, given its buffers."""
    summaries = AliasSummaries(module)
    return map_functions(module, lambda f: change(f, AliasSets(f, summaries)))


class Definitions:
    """The values of the variables met so far, as long as computing them again gives the same.

    `add` every binding of a function, in the order in which `rewrite_function` visits them.
    """

    def __init__(self, function: Function, buffers: AliasSets) -> None:
        self._function, self._buffers = function, buffers
        self._values: dict[Var, Expr] = {}
        self._readers: dict[Expr, list[Var]] = {}
        # A closure runs later than it is written down, when more may have been written.
        self._in_order = not any(isinstance(b.value, Function) for b in bindings(function))

    def get(self, atom: object) -> Expr | None:
        """Return the value that an atom was bound to; None if it is unknown or out of date."""
        return self._values.get(atom) if isinstance(atom, Var) else None

    def is_read_once(self, atom: object) -> bool:
        """Whether an atom is a variable that one binding of the function, as it was, reads."""
        return isinstance(atom, Var) and len(self._uses.users(atom)) == 1

    @cached_property
    def _uses(self) -> DefUse:
        return DefUse(self._function)

    def add(self, binding: Binding) -> None:
        """Take note of a binding, and of what it writes."""
        for buffer in self._buffers.written_by(binding):
            for var in self._readers.pop(owning_tuple(buffer), ()):
                self._values.pop(var, None)
        read = {self._buffers.of(atom) for atom in operands(binding.value)}
        if not self._in_order and read & self._buffers.written:
            return
        self._values[binding.var] = binding.value
        # Who writes to the result makes it another value than what was computed.
        for buffer in (*read, self._buffers.of(binding.var)):
            self._readers.setdefault(owning_tuple(buffer), []).append(binding.var)
