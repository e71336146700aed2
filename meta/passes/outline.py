"""Outlining: bindings of a block become a global function and one call of it."""

from __future__ import annotations

from collections.abc import Container, Hashable, Mapping, Sequence

from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Literal,
    Module,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    map_atoms,
    structural_equal,
    structural_hash,
    type_of,
)

NOTHING = TupleType(())
"""The type of a call that only writes."""


class OutlinedFunctions:
    """The functions that one pass makes beside those of a module; equal ones are one.

    functions: those made, by name.
    """

    def __init__(self, module: Module) -> None:
        self.functions: dict[str, Function] = {}
        self._taken = set(module.functions)
        self._by_hash: dict[tuple[int, Hashable], list[str]] = {}

    def call(
        self,
        members: Sequence[Binding],
        stem: str,
        attrs: Mapping[str, Literal],
        names: Mapping[Expr, str] | None = None,
        results: Sequence[Binding] = (),
        key: Hashable = None,
    ) -> list[Binding]:
        """Return bindings of the results' variables, the last member's unless given, to a call that
        does all members.

        Nothing but the results may be used elsewhere. Several come as a tuple, whose fields are
        bound, but for ``()`` of a member that only writes. The function's parameters are the atoms
        of ``names``, under these names and in this order, as far as members use them, then whatever
        else they use. Functions of another ``key`` are never one.
        """
        results = results or members[-1:]
        values = [r for r in results if r.var.type != NOTHING] or results[:1]
        rest = [Binding(r.var, Tuple(()), r.span) for r in results if r not in values]
        function, args = outlined_function(members, attrs, names or {}, values)
        call = Call(GlobalVar(self.name(function, stem, key), function.type), args)
        span = members[-1].span
        if len(values) == 1:
            return [Binding(values[0].var, call, span), *rest]
        fields = Var(stem, function.result_type)
        taken = (Binding(r.var, TupleGetItem(fields, i), r.span) for i, r in enumerate(values))
        return [Binding(fields, call, span), *taken, *rest]

    def name(self, function: Function, stem: str, key: Hashable = None) -> str:
        """Return the name of a function, which is added unless there is an equal one."""
        alike = self._by_hash.setdefault((structural_hash(function), key), [])
        for name in alike:
            if structural_equal(self.functions[name], function):
                return name
        name = unused_name(stem, self._taken)
        self._taken.add(name)
        self.functions[name] = function
        alike.append(name)
        return name


def unused_name(stem: str, taken: Container[str]) -> str:
    """Return a name that is not taken: the stem, or the stem with a number."""
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}_{number}"
    return name


def outlined_function(
    members: Sequence[Binding],
    attrs: Mapping[str, Literal],
    names: Mapping[Expr, str],
    results: Sequence[Binding],
) -> tuple[Function, tuple[Expr, ...]]:
    """Return a function that computes results by members, and what it is to be given."""
    inside: dict[Expr, Var] = {m.var: Var(m.var.name, m.var.type) for m in members}
    params: dict[Expr, Var] = {}

    def leaf(atom: Expr) -> Expr:
        if atom in inside:
            return inside[atom]
        if not isinstance(atom, Var | Constant):
            return atom  # an operator
        if atom not in params:
            hint = atom.name if isinstance(atom, Var) else "constant"
            params[atom] = Var(names.get(atom, hint), atom.type)
        return params[atom]

    body = [Binding(inside[m.var], map_atoms(m.value, leaf), m.span) for m in members]
    ordered = {a: params[a] for a in (*names, *params) if a in params}
    made = [inside[r.var] for r in results]
    result: Expr = made[0] if len(made) == 1 else Tuple(tuple(made))
    block = Block(tuple(body), result)
    return Function(tuple(ordered.values()), block, type_of(result), dict(attrs)), tuple(ordered)
