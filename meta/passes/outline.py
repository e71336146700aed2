"""Outlining: bindings of a block become a global function and one call of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

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
    Var,
    map_atoms,
    structural_equal,
    structural_hash,
    type_of,
)


@dataclass
class Outlined:
    """The functions that one pass has made so far; equal ones are one.

    Attributes
    ----------
    taken: names that are not free. functions: those made, by name.
    """

    taken: set[str]
    functions: dict[str, Function] = field(default_factory=dict)
    _by_hash: dict[int, list[str]] = field(default_factory=dict)

    @classmethod
    def beside(cls, module: Module) -> Outlined:
        """Return an empty collection whose names will not clash with the module's."""
        return cls(set(module.functions))

    def call(
        self,
        members: Sequence[Binding],
        stem: str,
        attrs: Mapping[str, Literal],
        names: Mapping[Expr, str] | None = None,
        results: Sequence[Binding] = (),
    ) -> list[Binding]:
        """Return bindings of the results' variables, the last member's unless given, to a call that
        does all members.

        Nothing but the results may be used elsewhere. Several come as a tuple, whose fields are
        bound. The function's parameters are the atoms of ``names``, under these names and in this
        order, as far as members use them, then whatever else they use.
        """
        results = results or members[-1:]
        function, args = _function(members, attrs, names or {}, results)
        call = Call(GlobalVar(self._name(function, stem), function.type), args)
        span = members[-1].span
        if len(results) == 1:
            return [Binding(results[0].var, call, span)]
        fields = Var(stem, function.result_type)
        taken = (Binding(r.var, TupleGetItem(fields, i), r.span) for i, r in enumerate(results))
        return [Binding(fields, call, span), *taken]

    def _name(self, function: Function, stem: str) -> str:
        alike = self._by_hash.setdefault(structural_hash(function), [])
        for name in alike:
            if structural_equal(self.functions[name], function):
                return name
        name, number = stem, 1
        while name in self.taken:
            number += 1
            name = f"{stem}_{number}"
        self.taken.add(name)
        self.functions[name] = function
        alike.append(name)
        return name


def _function(
    members: Sequence[Binding],
    attrs: Mapping[str, Literal],
    names: Mapping[Expr, str],
    results: Sequence[Binding],
) -> tuple[Function, tuple[Expr, ...]]:
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
    ordered = {a: params[a] for a in _in_order(names, params)}
    made = [inside[r.var] for r in results]
    result: Expr = made[0] if len(made) == 1 else Tuple(tuple(made))
    block = Block(tuple(body), result)
    return Function(tuple(ordered.values()), block, type_of(result), dict(attrs)), tuple(ordered)


def _in_order(names: Iterable[Expr], params: Iterable[Expr]) -> Iterable[Expr]:
    known = list(params)
    first = [a for a in names if a in known]
    return (*first, *(a for a in known if a not in first))
