"""Formulas: arithmetic that a pattern describes whatever way a program writes it.

A formula and a value of a program are brought to the same form, a sum of products of powers with
number coefficients (`Terms`). So factors may come in any order, a factor may be drawn out of a sum,
a number divided by instead of multiplied with, a root be a quotient or a power, and floating point
dtypes be cast on the way. What computes the values that a formula names, and rounds differently, is
the same function but for rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from itertools import permutations, product
from typing import TYPE_CHECKING, Any, Protocol

import torch

from meta import op
from meta.base.dtype import TO_TORCH, is_float
from meta.base.errors import ArgumentError
from meta.dialect.core.ir_calls import called_op, tensor_of
from meta.ir import Expr, TensorType, Var, type_of
from meta.op.core import Op
from meta.passes.pattern.nodes import (
    Assignment,
    Called,
    ConstantValue,
    LiteralValue,
    Node,
    Step,
    Ways,
    Wildcard,
)
from meta.passes.simplify.arithmetic import fill_of

if TYPE_CHECKING:
    from meta.passes.pattern.scope import BlockScope

Monomial = frozenset[tuple[Any, float]]
"""A product of powers: factors with their exponents."""
Terms = dict[Monomial, float]
"""A sum of products of powers with their coefficients."""
_UNIT: Monomial = frozenset()

CASTS = (op.astype, op.cast_like)
ARITHMETIC = (
    *(op.add, op.bias_add, op.subtract, op.multiply, op.divide, op.negative),
    *(op.pow, op.square, op.sqrt, op.rsqrt, op.reciprocal),
)
STEPS = frozenset((*ARITHMETIC, *CASTS))
MOST_STEPS, MOST_TERMS, LARGEST_POWER = 32, 16, 4
"""Calls, and terms, of a value that is compared with a formula; the exponents that are expanded."""
ROUNDING, ROUNDING_64 = 1e-7, 1e-15
"""By how much, relatively, coefficients may differ from those of a formula; in float64."""


class _Unlike(Exception):
    """A value that has no form of this kind."""


class _Reader(Protocol):
    """How arithmetic is read: of patterns, and of programs."""

    def number(self, value: Any, step: Any) -> float | None:
        """Return the number that a value is as an operand of a step."""

    def step(self, value: Any) -> tuple[Op, tuple[Any, ...]] | None:
        """Return the arithmetic that computes a value, and of what; None if none does."""


class _Expansion:
    """The terms of values, whose factors are what ``stops`` says and what no step computes.

    steps: the values that were computed on the way.
    """

    def __init__(self, reader: _Reader, stops: Iterable[Any]) -> None:
        self._reader, self._stops = reader, frozenset(stops)
        self.steps: dict[Any, None] = {}

    def of(self, value: Any, user: Any = None) -> Terms:
        """Return the terms of an operand of ``user``; raises _Unlike."""
        if value in self._stops:
            return {frozenset({(value, 1.0)}): 1.0}
        number = self._reader.number(value, user)
        if number is not None:
            return {_UNIT: number}
        step = self._reader.step(value)
        if step is None:
            return {frozenset({(value, 1.0)}): 1.0}
        self.steps[value] = None
        if len(self.steps) > MOST_STEPS:
            raise _Unlike
        called, operands = step
        if called in _ROOTS:
            return _power(self._base(operands[0], value), _ROOTS[called])
        if called is op.pow:
            return self._power_of(value, *operands)
        terms = [self.of(x, value) for x in operands]
        return _RULES[called](*terms)

    def _base(self, value: Any, user: Any) -> Terms:
        """Return the terms of what a root is of: a sum is one factor."""
        before = dict(self.steps)
        terms = self.of(value, user)
        if len(terms) == 1:
            return terms
        self.steps = before
        return {frozenset({(value, 1.0)}): 1.0}

    def _power_of(self, value: Any, base: Any, exponent: Any) -> Terms:
        number = self._reader.number(exponent, value)
        if number is None:
            raise _Unlike
        if number in range(1, LARGEST_POWER + 1):
            terms = self.of(base, value)
            found = terms
            for _ in range(int(number) - 1):
                found = _times(found, terms)
            return found
        return _power(self._base(base, value), number)


def _sum(x: Terms, y: Terms) -> Terms:
    found = dict(x)
    for monomial, coefficient in y.items():
        found[monomial] = found.get(monomial, 0.0) + coefficient
    if len(found) > MOST_TERMS:
        raise _Unlike
    return found


def _times(x: Terms, y: Terms) -> Terms:
    found: Terms = {}
    for (a, m), (b, n) in product(x.items(), y.items()):
        powers = dict(a)
        for factor, exponent in b:
            before = powers.get(factor, 0.0)
            if before * exponent < 0:  # x / x is no number where x is 0
                raise _Unlike
            powers[factor] = before + exponent
        found = _sum(found, {frozenset(powers.items()): m * n})
    return found


def _power(terms: Terms, exponent: float) -> Terms:
    """Return a power of a product, of which a root is taken only of one factor."""
    if len(terms) != 1:
        raise _Unlike
    ((monomial, coefficient),) = terms.items()
    whole = exponent == int(exponent)
    if not coefficient or (not whole and (coefficient < 0 or len(monomial) > 1)):
        raise _Unlike
    if not whole and any(e != 1 and e != -1 for _, e in monomial):
        raise _Unlike
    return {frozenset((f, e * exponent) for f, e in monomial): coefficient**exponent}


_ROOTS = {op.sqrt: 0.5, op.rsqrt: -0.5}
_RULES: dict[Op, Callable[..., Terms]] = {
    op.add: _sum,
    op.bias_add: _sum,
    op.subtract: lambda x, y: _sum(x, _times({_UNIT: -1.0}, y)),
    op.multiply: _times,
    op.divide: lambda x, y: _times(x, _power(y, -1.0)),
    op.negative: lambda x: _times({_UNIT: -1.0}, x),
    op.square: lambda x: _times(x, x),
    op.reciprocal: lambda x: _power(x, -1.0),
    op.astype: lambda x: x,
    op.cast_like: lambda x: x,
}


def formula(node: Node) -> Node:
    """Return a node that arithmetic in a pattern is however it is written; see `pattern`.

    The arithmetic in what it is computed of is a formula, too. Sums with a constant of any value
    stay calls, and so does what has a name, of `named`.
    """
    return _as_formulas(node, {})


def _as_formulas(node: Node, known: dict[Node, Node]) -> Node:
    if node in known:
        return known[node]
    reader = _PatternReader()
    if reader.step(node) is None:
        inner = tuple(_as_formulas(n, known) for n in node.inner)
        known[node] = node if inner == node.inner else replace(node, inner=inner)
        return known[node]
    try:
        terms = _Expansion(reader, ()).of(node)
    except _Unlike:
        raise ArgumentError(
            "the arithmetic is no formula",
            expected=f"a sum of at most {MOST_TERMS} products of powers",
        ) from None
    factors = dict.fromkeys(f for monomial in terms for f, _ in monomial)
    as_formulas = {f: _as_formulas(f, known) for f in factors}
    terms = {frozenset((as_formulas[f], e) for f, e in m): c for m, c in terms.items()}
    known[node] = Formula(terms, _as_rounded(reader.numbers), inner=(*as_formulas.values(),))
    return known[node]


class _PatternReader:
    """Reads the nodes of patterns; notes the numbers that it meets."""

    def __init__(self) -> None:
        self.numbers: set[float] = set()

    def number(self, value: Any, _: Any) -> float | None:
        number = value.value if isinstance(value, ConstantValue) else None
        if number is None:
            return None
        self.numbers.add(float(number))
        return float(number)

    def step(self, value: Any) -> tuple[Op, tuple[Any, ...]] | None:
        if not isinstance(value, Called) or value.op is None or value.op not in ARITHMETIC:
            return None
        if value.name:
            return None
        operands = tuple(n for n in value.inner if not isinstance(n, LiteralValue))
        open_constant = any(isinstance(n, ConstantValue) and n.value is None for n in operands)
        return None if open_constant else (value.op, operands)


def _as_rounded(numbers: Iterable[float]) -> dict[tuple[str, float], float]:
    """Return by dtype and value what numbers, and what one divides by for them, are rounded to."""
    found = {}
    for number in (n for n in numbers if n):
        for exact in (number, 1 / number):
            for dtype in ("float16", "bfloat16", "float32"):
                found[dtype, torch.tensor(exact, dtype=TO_TORCH[dtype]).item()] = exact
    return found


@dataclass(eq=False, frozen=True)
class Formula(Node):
    """A value that is these terms of what ``inner`` describes.

    rounded: by dtype and value, the numbers that a program has instead.
    """

    terms: Terms
    rounded: Mapping[tuple[str, float], float]
    expanded: Node = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "expanded", _Expanded(self))

    def may_be(self, value: Expr) -> bool:
        return called_op(value) in STEPS

    def among(self, scope: BlockScope) -> Set[Var] | None:
        inner = [near for near in map(scope.among, self.inner) if near is not None]
        return set.intersection(*(scope.reached(n, self.may_be) for n in inner)) if inner else None

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        """First what other nodes compute is looked for, then the terms are compared."""
        reader = _ProgramReader(self, scope)
        below = reader.below(value)
        if len(below) == 1:
            return f"{scope.shown(value)} is not computed by arithmetic"
        calls = [n for n in self.inner if not isinstance(n, Wildcard) and n not in found]
        choices = []
        for node in calls:
            near = [a for a in below if scope.may_be(node, a)]
            if not near:
                return f"{scope.shown(value)} is not computed of {_label(node)}"
            choices.append(near)
        goal = self.expanded, value
        return [(*zip(calls, choice, strict=True), goal) for choice in product(*choices)]


def _label(node: Node) -> str:
    return node.label if isinstance(node, Called) else "what the pattern describes"


@dataclass(eq=False, frozen=True)
class _Expanded(Node):
    """The terms of a formula, when what other nodes compute is known."""

    formula: Formula

    def ways(self, value: Any, scope: BlockScope, found: Assignment) -> Ways | str:
        formula, reader = self.formula, _ProgramReader(self.formula, scope)
        known = {found[n]: n for n in formula.inner if n in found}
        missing = [n for n in formula.inner if n not in found]
        if len(known) + len(missing) < len(formula.inner):
            return f"two of what {scope.shown(value)} is computed of are one value"
        ways = []
        for stops in reader.stops(value, known, len(missing)):
            expansion = _Expansion(reader, stops)
            try:
                terms = expansion.of(value)
            except (_Unlike, OverflowError):
                continue
            factors = dict.fromkeys(f for m in terms for f, _ in m if f not in known)
            if len(factors) != len(missing):
                continue
            steps = tuple((Step(), step) for step in expansion.steps)
            for order in permutations(factors):
                named = {**known, **dict(zip(order, missing, strict=True))}
                own = {frozenset((named[f], e) for f, e in m): c for m, c in terms.items()}
                if _same_terms(own, formula.terms, reader.rounding(value)):
                    ways.append((*((node, atom) for atom, node in named.items()), *steps))
        return ways or f"{scope.shown(value)} is another function"


def _same_terms(one: Terms, other: Terms, rounding: float) -> bool:
    return one.keys() == other.keys() and all(
        math.isclose(one[m], other[m], rel_tol=rounding) for m in one
    )


class _ProgramReader:
    """Reads the values of a block, as a formula may compute them."""

    def __init__(self, formula: Formula, scope: BlockScope) -> None:
        self._formula, self._scope = formula, scope

    def number(self, value: Any, step: Any) -> float | None:
        if isinstance(value, Expr):
            buffers = self._scope.facts.buffers
            if buffers.of(value) in buffers.written:
                return None
        number = fill_of(value, self._scope)
        if isinstance(number, bool) or not isinstance(number, int | float):
            return None
        dtype = _dtype_of(step)
        return self._formula.rounded.get((dtype or "", number), float(number))

    def step(self, value: Any) -> tuple[Op, tuple[Any, ...]] | None:
        known = self._scope.arithmetic
        if value not in known:
            known[value] = self._read(value)
        return known[value]

    def _read(self, value: Any) -> tuple[Op, tuple[Any, ...]] | None:
        call: Any = self._scope.get(value)
        called = called_op(call)
        if called is None or called not in STEPS:
            return None
        dtype = _dtype_of(value)
        if dtype is None or not is_float(dtype):
            return None
        if called in CASTS:
            before = _dtype_of(call.args[0])
            return (called, call.args[:1]) if before is not None and is_float(before) else None
        operands = call.args[: 2 if called in _TWO_OPERANDS else 1]
        rest = call.args[len(operands) :]
        if called is op.bias_add:  # along the last axis it is broadcast as any operand
            rest = () if rest[0] in (-1, tensor_of(value).ndim - 1) else rest
        return None if any(a is not None for a in rest) else (called, operands)

    def rounding(self, value: Any) -> float:
        """Return by how much coefficients may differ."""
        return ROUNDING_64 if _dtype_of(value) == "float64" else ROUNDING

    def below(self, value: Any) -> dict[Any, list[Any]]:
        """Return what a value is computed of by arithmetic, itself first, and of what each is."""
        found: dict[Any, list[Any]] = {}
        waiting = [value]
        while waiting and len(found) < MOST_STEPS:
            atom = waiting.pop(0)
            if atom in found or not isinstance(atom, Expr):
                continue
            step = self.step(atom)
            found[atom] = [] if step is None else [a for a in step[1] if isinstance(a, Expr)]
            waiting += found[atom]
        return found

    def stops(
        self, value: Any, known: Mapping[Any, Node], missing: int
    ) -> Iterator[tuple[Any, ...]]:
        """Yield where the expansion of a value may stop: at what is known, and at what is not
        computed of that; where nothing is known, at one value after the other, the last first.
        """
        if not known:
            if missing == 1:
                yield from ((atom,) for atom in reversed(self.alone(value)))
            return
        below = self.below(value)
        dependent, size = set(known), 0
        while size < len(dependent):
            size = len(dependent)
            dependent.update(a for a in below if not dependent.isdisjoint(below[a]))
        yield *known, *(a for a in below if a not in dependent and self.number(a, value) is None)

    def alone(self, value: Any) -> list[Any]:
        """Return the values that, each alone and with numbers, a value is computed of, the nearest
        first: its dominators.
        """
        position, bindings = self._scope.places.position, self._scope.bindings
        found: list[Any] = []
        pending = {value}
        while pending:
            atom = max(pending, key=lambda a: position[bindings[a]] if a in bindings else -1)
            pending.remove(atom)
            if not pending and atom is not value:
                found.append(atom)
            step = self.step(atom)
            if step is None:  # whatever else is left is computed of something else
                break
            pending.update(a for a in step[1] if self.number(a, atom) is None)
        return found


_TWO_OPERANDS = (op.add, op.bias_add, op.subtract, op.multiply, op.divide, op.pow)


def _dtype_of(atom: Any) -> str | None:
    type_ = type_of(atom) if isinstance(atom, Expr) else None
    return type_.dtype if isinstance(type_, TensorType) else None
