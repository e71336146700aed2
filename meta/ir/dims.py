"""Dimensions of tensors: numbers, unknown ones, and symbolic ones with which types can compute.

A symbolic dimension is a polynomial with integer coefficients over named extents and quotients:
``n``, ``4*n + 1``, ``((n + 1) // 2)``. It is kept in one canonical form, so that equal polynomials
are equal objects. A named extent is at least 1 wherever that decides a comparison.

To add an operation, add a method to `SymbolicDim` that returns `_dim(...)`; one that needs another
kind of atom (as floor division does) adds a class beside `Quotient`, its text and its reading in
`type_parser.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any, NoReturn

from meta.base.errors import TypeInferError
from meta.ir.names import name_text


class UnknownDim:
    """A dimension of which nothing is known; it equals only itself.

    >>> str(meta.ir.TensorType((meta.ir.UNKNOWN, 3), "float32"))
    'float32[?, 3]'
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "?"


UNKNOWN = UnknownDim()


@dataclass(frozen=True, slots=True)
class Quotient:
    """``numerator // divisor``, which is no polynomial and so an atom of others."""

    numerator: SymbolicDim
    divisor: int

    def __str__(self) -> str:
        return f"(({self.numerator}) // {self.divisor})"


Atom = str | Quotient
Monomial = tuple[Atom, ...]
Terms = tuple[tuple[Monomial, int], ...]


class SymbolicDim:
    """A dimension that depends on extents known by name only.

    ``SymbolicDim("n")`` is the extent called n: equal names are equal extents within one function.
    Arithmetic with ints and other dimensions gives a dimension again, or an int where the names
    cancel out. A comparison that does not hold, or fail, for all extents raises TypeInferError.

    Attributes
    ----------
    terms: (atoms, coefficient) pairs in canonical order; no coefficient is 0.

    >>> n = meta.ir.SymbolicDim("n")
    >>> str(n * 2 + 1), str(n * 2 - n), n - n, (n + 1).evaluate({"n": 4})
    ('2*n + 1', 'n', 0, 5)
    """

    __slots__ = ("terms",)
    terms: Terms

    def __init__(self, name: str) -> None:
        self.terms = (((name,), 1),)

    @property
    def name(self) -> str | None:
        """The name of an extent that is nothing else, else None."""
        if len(self.terms) != 1:
            return None
        atoms, coefficient = self.terms[0]
        atom = atoms[0] if len(atoms) == 1 and coefficient == 1 else None
        return atom if isinstance(atom, str) else None

    def symbols(self) -> set[str]:
        """Return the names that occur."""
        found: set[str] = set()
        for atoms, _ in self.terms:
            for atom in atoms:
                found |= {atom} if isinstance(atom, str) else atom.numerator.symbols()
        return found

    def substitute(self, value_of: Callable[[str], Dim]) -> Dim:
        """Return the dimension with every name replaced; unknown if a value is."""
        total: int | SymbolicDim = 0
        for atoms, coefficient in self.terms:
            product: int | SymbolicDim = coefficient
            for atom in atoms:
                if isinstance(atom, str):
                    value = value_of(atom)
                else:
                    value = atom.numerator.substitute(value_of)
                    if not isinstance(value, UnknownDim):
                        value = value // atom.divisor
                if isinstance(value, UnknownDim):
                    return UNKNOWN
                product = product * value
            total = total + product
        return total

    def evaluate(self, extents: Mapping[str, int]) -> int:
        """Return the number for given extents; KeyError if one is missing."""
        found = self.substitute(extents.__getitem__)
        assert isinstance(found, int)
        return found

    # Arithmetic.

    def __add__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        if not isinstance(other, int | SymbolicDim):
            return NotImplemented
        return _dim([*self.terms, *_terms(other)])

    __radd__ = __add__

    def __neg__(self) -> int | SymbolicDim:
        return self * -1

    def __sub__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        if not isinstance(other, int | SymbolicDim):
            return NotImplemented
        return self + -other

    def __rsub__(self, other: int) -> int | SymbolicDim:
        return -self + other

    def __mul__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        if not isinstance(other, int | SymbolicDim):
            return NotImplemented
        return _dim(
            (tuple(sorted((*a, *b), key=str)), c * d)
            for a, c in self.terms
            for b, d in _terms(other)
        )

    __rmul__ = __mul__

    def __floordiv__(self, other: int | SymbolicDim) -> int | SymbolicDim:
        exact = self.exactly_by(other)
        if exact is not None:
            return exact
        if not isinstance(other, int) or other < 1:
            raise TypeInferError(f"{self} cannot be divided by {other} as a dimension")
        whole = [(atoms, c // other) for atoms, c in self.terms if c % other == 0]
        rest = _dim((atoms, c) for atoms, c in self.terms if c % other)
        if isinstance(rest, int):
            return _dim([*whole, ((), rest // other)])
        inner = [a[0] for a, c in rest.terms if c == 1 and len(a) == 1]
        quotients = [a for a in inner if isinstance(a, Quotient)]
        if len(quotients) == 1:  # (n // a + m) // b is (n + a m) // (a b)
            (q,) = quotients
            more = rest - _dim([((q,), 1)])
            return (q.numerator + q.divisor * more) // (q.divisor * other) + _dim(whole)
        return _dim([*whole, ((Quotient(rest, other),), 1)])

    def __mod__(self, other: int) -> int | SymbolicDim:
        return self - (self // other) * other

    def exactly_by(self, other: int | SymbolicDim) -> int | SymbolicDim | None:
        """Return the quotient if the division leaves no rest for any extents, else None."""
        divisors = _terms(other)
        if len(divisors) != 1:
            return (1 if other == self else None) if divisors else None
        (by, factor) = divisors[0]
        result = []
        for atoms, coefficient in self.terms:
            left = list(atoms)
            for atom in by:
                if atom not in left:
                    return None
                left.remove(atom)
            if coefficient % factor:
                return None
            result.append((tuple(left), coefficient // factor))
        return _dim(result)

    # Comparisons.

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SymbolicDim) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def __lt__(self, other: int | SymbolicDim) -> bool:
        return self._decided(other - self, 1, f"{self} < {other}")

    def __le__(self, other: int | SymbolicDim) -> bool:
        return self._decided(other - self, 0, f"{self} <= {other}")

    def __gt__(self, other: int | SymbolicDim) -> bool:
        return self._decided(self - other, 1, f"{self} > {other}")

    def __ge__(self, other: int | SymbolicDim) -> bool:
        return self._decided(self - other, 0, f"{self} >= {other}")

    @staticmethod
    def _decided(difference: int | SymbolicDim, least: int, question: str) -> bool:
        """Tell whether the difference is at least ``least``, whatever the extents."""
        if isinstance(difference, int):
            return difference >= least
        low, high = difference._bounds()
        if low is not None and low >= least:
            return True
        if high is not None and high < least:
            return False
        raise TypeInferError(
            f"whether {question} depends on the extents",
            expected="a program that is the same for all extents",
            hint="compile it for each size, from arguments with numbers for their extents",
        )

    def _bounds(self) -> tuple[int | None, int | None]:
        """Return the least and the largest number this can be, None for no bound."""
        low, high = self._bounds_by_term()
        for atoms, c in self.terms:
            if len(atoms) != 1 or not isinstance(q := atoms[0], Quotient):
                continue
            # d (n // d) is from n - d + 1 to n, which other terms may cancel.
            d = q.divisor
            times = d * (self - _dim([(atoms, c)])) + c * q.numerator
            below, above = (times, times) if isinstance(times, int) else times._bounds()
            less = c * (d - 1)
            below = None if below is None else below - max(less, 0)
            above = None if above is None else above - min(less, 0)
            if below is not None:
                low = -(-below // d) if low is None else max(low, -(-below // d))
            if above is not None:
                high = above // d if high is None else min(high, above // d)
            break
        return low, high

    def _bounds_by_term(self) -> tuple[int | None, int | None]:
        """Return such bounds as the sums of those of single terms."""
        low: int | None = 0
        high: int | None = 0
        for atoms, coefficient in self.terms:
            least: int | None = coefficient
            most: int | None = coefficient
            if atoms:
                # No atom has an upper bound, so a product has a lower one only if no factor can
                # be negative.
                lows = [_lower_bound(atom) for atom in atoms]
                known = [n for n in lows if n is not None and n >= 0]
                bound = coefficient * prod(known) if len(known) == len(lows) else None
                least = bound if coefficient > 0 else None
                most = bound if coefficient < 0 else None
            low = None if low is None or least is None else low + least
            high = None if high is None or most is None else high + most
        return low, high

    def _no_number(self, *_: object) -> NoReturn:
        raise TypeInferError(
            f"Python code asked for the number of the dimension {self}, which is symbolic",
            hint="compute with it as a dimension (+, -, *, //), or loop over an axis by meta.scan",
        )

    __index__ = __int__ = __float__ = __truediv__ = __rtruediv__ = _no_number

    def __str__(self) -> str:
        parts = []
        for i, (atoms, coefficient) in enumerate(self.terms):
            size = abs(coefficient)
            factors = [str(size)] if size != 1 or not atoms else []
            factors += [name_text(a) if isinstance(a, str) else str(a) for a in atoms]
            sign = "-" if coefficient < 0 else "+"
            parts.append(f" {sign} " if i else "-" * (coefficient < 0))
            parts.append("*".join(factors))
        return "".join(parts)

    __repr__ = __str__  # in a shape, a tuple, a dimension reads as it does in a type


Dim = int | SymbolicDim | UnknownDim


def product(dims: Iterable[Dim]) -> Dim:
    """Return the number of elements of a shape; 0 if a dimension is, unknown if one is."""
    total: int | SymbolicDim = 1
    unknown = False
    for dim in dims:
        if isinstance(dim, UnknownDim):
            unknown = True
        else:
            total = dim * total
    return UNKNOWN if unknown and total != 0 else total


def total(dims: Iterable[Dim]) -> Dim:
    """Return the sum of dimensions; unknown if one is."""
    result: int | SymbolicDim = 0
    for dim in dims:
        if isinstance(dim, UnknownDim):
            return UNKNOWN
        result = dim + result
    return result


def differ(a: Dim, b: Dim) -> bool:
    """Whether two dimensions are known to differ, whatever the extents."""
    if isinstance(a, UnknownDim) or isinstance(b, UnknownDim) or a == b:
        return False
    difference = a - b
    if isinstance(difference, int):
        return difference != 0
    low, high = difference._bounds()
    return (low is not None and low > 0) or (high is not None and high < 0)


def is_quotient(dim: int | SymbolicDim) -> bool:
    """Whether this is one quotient and nothing else."""
    if isinstance(dim, int) or len(dim.terms) != 1:
        return False
    atoms, coefficient = dim.terms[0]
    return coefficient == 1 and len(atoms) == 1 and isinstance(atoms[0], Quotient)


def is_symbolic(value: Any) -> bool:
    """Whether an attribute, or an item of nested tuples, is a number that only a call knows."""
    if isinstance(value, tuple):
        return any(map(is_symbolic, value))
    return isinstance(value, SymbolicDim)


def _terms(value: int | SymbolicDim) -> Terms:
    if isinstance(value, SymbolicDim):
        return value.terms
    return (((), value),) if value else ()


def _dim(terms: Iterable[tuple[Monomial, int]]) -> int | SymbolicDim:
    """Return the canonical form of a sum: terms by degree, then by text; the constant last."""
    sums: dict[Monomial, int] = {}
    for atoms, coefficient in terms:
        sums[atoms] = sums.get(atoms, 0) + coefficient
    kept = {atoms: c for atoms, c in sums.items() if c}
    if not any(kept):
        return kept.get((), 0)
    result = SymbolicDim.__new__(SymbolicDim)
    order = sorted(kept, key=lambda atoms: (-len(atoms), [str(a) for a in atoms]))
    result.terms = tuple((atoms, kept[atoms]) for atoms in order)
    return result


def _lower_bound(atom: Atom) -> int | None:
    """Return the least number that an atom can be, None for no bound."""
    if isinstance(atom, str):
        return 1
    low, _ = atom.numerator._bounds()
    return None if low is None else low // atom.divisor
