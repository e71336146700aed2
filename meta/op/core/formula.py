"""Formulas of element-wise updates, written once on symbols.

A formula is a Python function of `Expr`s that returns the new value of each list of tensors that it
writes. `trace` runs it and cuts it into `Sweep`s over memory: a `total` over a tensor is known in
the sweep after the one that adds it up. Dialects print sweeps with `evaluate`, each in its own
language; see `meta/op/optimizer.py` for the formulas.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from math import inf
from typing import Any

from meta.base.errors import RegistrationError

Stores = dict[str, "Expr"]
"""The new value of each list that a formula writes, by its name."""


def _infix(kind: str, swapped: bool = False) -> Callable[[Expr, Expr | float], Expr]:
    """Return the method of an infix operation; ``swapped``: the other operand comes first."""

    def method(self: Expr, other: Expr | float) -> Expr:
        return _operation(kind, other, self) if swapped else _operation(kind, self, other)

    return method


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """A node of a formula. Two uses of one Python object are computed once.

    kind: one of `LEAVES`, or an operation: ``+ - * / ** > == &``, "sqrt", "where" (condition, value
    if true, otherwise), "clamp" (value, bound). parts: the operands; of an "element" its list, of a
    "number" its name, of a "derived" number its name and value, of a "constant" its value, of a
    "total" the summand.
    """

    kind: str
    parts: tuple[Any, ...]

    __add__, __mul__, __pow__ = _infix("+"), _infix("*"), _infix("**")
    __sub__, __rsub__ = _infix("-"), _infix("-", swapped=True)
    __truediv__, __rtruediv__ = _infix("/"), _infix("/", swapped=True)
    __gt__, __lt__, __and__ = _infix(">"), _infix(">", swapped=True), _infix("&")

    @property
    def operands(self) -> tuple[Expr, ...]:
        """The nodes that it is computed from."""
        return tuple(p for p in self.parts if isinstance(p, Expr))


LEAVES = "element", "number", "derived", "constant", "total"


def constant(value: Expr | float) -> Expr:
    """Return a number as a node; a node stays as it is."""
    return value if isinstance(value, Expr) else Expr("constant", (float(value),))


def sqrt(x: Expr) -> Expr:
    """The square root of x."""
    return Expr("sqrt", (x,))


def equal(a: Expr, b: Expr | float) -> Expr:
    """Whether a is b."""
    return _operation("==", a, b)


def where(condition: Expr, a: Expr | float, b: Expr | float) -> Expr:
    """a where the condition holds, else b."""
    return Expr("where", (condition, constant(a), constant(b)))


def clamp(x: Expr, bound: Expr) -> Expr:
    """x within [-bound, bound]; a NaN stays."""
    return x if _is_constant(bound, inf) else Expr("clamp", (x, bound))


def total(x: Expr) -> Expr:
    """The sum of x over the whole of a tensor, added up in float64."""
    return Expr("total", (x,))


def ratio(square: Expr, other: Expr) -> Expr:
    """The quotient of two norms, given their squares; 1 where either is 0."""
    return where((square > 0) & (other > 0), sqrt(square / other), 1)


def _is_constant(value: Any, number: float) -> bool:
    return isinstance(value, Expr) and value.kind == "constant" and value.parts[0] == number


def _operation(kind: str, a: Expr | float, b: Expr | float) -> Expr:
    """Return a node; one of constants that change nothing is left out, and so is a product by 0."""
    a, b = constant(a), constant(b)
    if kind == "*" and (_is_constant(a, 0) or _is_constant(b, 1)):
        return a
    if kind == "*" and (_is_constant(b, 0) or _is_constant(a, 1)):
        return b
    if kind == "+" and _is_constant(a, 0):
        return b
    if kind in "+-" and _is_constant(b, 0):
        return a
    return Expr(kind, (a, b))


class Numbers:
    """The numbers of a call, as attributes."""

    def __init__(self, values: Mapping[str, Expr]) -> None:
        self._values = values

    def __getattr__(self, name: str) -> Expr:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(name) from None


@dataclass(frozen=True)
class Sweep:
    """What happens to each element of a list of tensors in one pass over memory.

    stores: the new values by list, all computed before any is stored. totals: the summands of the
    totals of these numbers. needs: the totals of sweeps before that it reads.
    """

    stores: Stores
    totals: dict[int, Expr]
    needs: dict[Expr, int]

    @property
    def roots(self) -> tuple[Expr, ...]:
        """All that is computed."""
        return (*self.stores.values(), *self.totals.values())

    @property
    def loads(self) -> list[str]:
        """The lists that are read."""
        return list(
            dict.fromkeys(n.parts[0] for n in postorder(*self.roots) if n.kind == "element")
        )


@dataclass(frozen=True, eq=False)
class Traced:
    """A formula for some lists and attributes. stores: the new values. sweeps: the same by pass."""

    stores: Stores
    sweeps: tuple[Sweep, ...]

    @property
    def totals(self) -> int:
        """How many totals there are."""
        return sum(len(sweep.totals) for sweep in self.sweeps)

    def rounds(self) -> list[list[Expr]]:
        """Return the totals; what those of a list add up needs none but those of lists before."""
        levels = {x: i for x, i in _levels(self.stores).items() if x.kind == "total"}
        last = max(levels.values(), default=0)
        return [[x for x, at in levels.items() if at == i] for i in range(1, last + 1)]


def postorder(*roots: Expr, through: bool = False) -> Iterator[Expr]:
    """Yield every node once, operands first; those of totals and derived numbers if ``through``."""
    seen = set[int]()

    def visit(node: Expr) -> Iterator[Expr]:
        if id(node) not in seen:
            seen.add(id(node))
            if through or node.kind not in LEAVES:
                for operand in node.operands:
                    yield from visit(operand)
            yield node

    for root in roots:
        yield from visit(root)


def evaluate(
    node: Expr,
    leaf: Callable[[Expr], Any],
    operations: Mapping[str, Callable[..., Any]],
    known: dict[Expr, Any],
) -> Any:
    """Return the value of a node: ``leaf`` gives those of `LEAVES`, ``operations`` the others'.

    known: what is computed already; it gets all that is.
    """
    if node not in known:
        if node.kind in LEAVES:
            known[node] = leaf(node)
        else:
            parts = [evaluate(part, leaf, operations, known) for part in node.parts]
            known[node] = operations[node.kind](*parts)
    return known[node]


@dataclass(frozen=True, eq=False)
class Formula:
    """A formula with the names of what it is given.

    function: ``(k, *lists, **attributes) -> Stores``; ``k`` has the numbers. lists: the names of
    its lists, in order; a list that is not there is None. numbers: those of a call. derived: those
    that follow from these, computed once for a call, in float64. attributes: what it takes by name.
    step: whether it is a step of an optimizer, whose gradient ``dx`` it sees as the clamped
    ``factor * dx``; ``copies``, if there are any, get the new x.
    """

    function: Callable[..., Stores]
    lists: tuple[str, ...]
    numbers: tuple[str, ...] = ()
    derived: Mapping[str, Expr] = field(default_factory=dict)
    attributes: tuple[str, ...] = ()
    step: bool = False

    def trace(
        self,
        present: Collection[str],
        attributes: Mapping[str, Any],
        constants: Mapping[str, float],
    ) -> Traced:
        """Return the formula for the lists that are present, with some numbers known before."""
        k = Numbers(
            {n: Expr("number", (n,)) for n in self.numbers}
            | {n: Expr("derived", (n, x)) for n, x in self.derived.items()}
            | {n: constant(x) for n, x in constants.items()}
        )
        given = {n: Expr("element", (n,)) for n in self.lists if n in present}
        if self.step:
            given["dx"] = clamp(k.factor * given["dx"], k.clip_value)
        stores = self.function(k, *map(given.get, self.lists), **attributes)
        if self.step and "copies" in present:
            stores = {**stores, "copies": stores["x"]}
        return Traced(stores, _sweeps(stores))


def _levels(stores: Stores) -> dict[Expr, int]:
    """Return all nodes, operands first, each with how many totals there are one within another."""
    level: dict[Expr, int] = {}
    for node in postorder(*stores.values(), through=True):
        below = (level[operand] for operand in node.operands if node.kind != "derived")
        level[node] = max(below, default=0) + (node.kind == "total")
    return level


def _sweeps(stores: Stores) -> tuple[Sweep, ...]:
    """Cut a formula at its totals. What is stored is so as early, what is added up as late as can
    be, so that no sweep reads more than it has to.
    """
    level = _levels(stores)
    totals = [node for node in level if node.kind == "total"]
    when = dict.fromkeys(totals, max((level[x] for x in stores.values()), default=0) - 1)

    def before(root: Expr, sweep: int) -> None:
        for node in postorder(root):
            if node.kind == "total":
                when[node] = min(when[node], sweep - 1)

    for value in stores.values():
        before(value, level[value])
    for node in reversed(totals):
        before(node.parts[0], when[node])
    found = list[Sweep]()
    written: dict[Expr, str] = {}
    for number in range(1 + max((level[x] for x in stores.values()), default=0)):
        fresh = _reread(written)
        now = {n: fresh(x) for n, x in stores.items() if level[x] == number}
        sums = {i: fresh(t.parts[0]) for i, t in enumerate(totals) if when[t] == number}
        read = postorder(*now.values(), *sums.values())
        needs = {node: totals.index(node) for node in read if node.kind == "total"}
        found.append(Sweep(now, sums, needs))
        written |= {x: n for n, x in stores.items() if level[x] == number and x not in written}
    return tuple(found)


def _reread(written: Mapping[Expr, str]) -> Callable[[Expr], Expr]:
    """Return what replaces values that were stored before by the elements of their lists."""
    again = {x: Expr("element", (n,)) for x, n in written.items()}
    gone = set(written.values())

    def replaced(node: Expr) -> Expr:
        if node not in again:
            if node.kind == "element" and node.parts[0] in gone:
                raise RegistrationError(
                    f"a formula reads {node.parts[0]!r} after a sum that needs its new value",
                    expected="the new value, or another list",
                )
            leaf = node.kind in LEAVES
            parts = node.parts if leaf else tuple(map(replaced, node.parts))
            same = all(a is b for a, b in zip(parts, node.parts, strict=True))
            again[node] = node if same else Expr(node.kind, parts)
        return again[node]

    return replaced
