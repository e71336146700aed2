"""The notation of `einsum`: which axis of which operand bears which label.

``"bij,bjk->bik"``: the operands' labels, one letter per axis, then the result's. Where ``->`` is
left out the result has the labels that occur once, sorted, uppercase first. ``...`` stands for any
number of axes (those that the letters leave over), which are aligned at the last one and broadcast;
a result that does not have them is summed over them. White space does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from string import ascii_letters

from meta.base.errors import TypeInferError
from meta.ir.types import Dim

Labels = tuple[str, ...]
ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class Subscripts:
    """An equation applied to shapes.

    ``operands``: per operand, a label for every axis: a letter, or "...0" for the last axis that
    an ellipsis stands for, "...1" for the one before. ``result``: likewise. ``extents``: by label.
    """

    operands: tuple[Labels, ...]
    result: Labels
    extents: dict[str, Dim]

    @property
    def shape(self) -> tuple[Dim, ...]:
        """The shape of the result."""
        return tuple(self.extents[label] for label in self.result)

    @property
    def summed(self) -> Labels:
        """The labels that the result does not have."""
        return tuple(label for label in self.extents if label not in self.result)


def subscripts(equation: str, shapes: Sequence[tuple[Dim, ...]]) -> Subscripts:
    """Read an equation for operands of these shapes.

    Raises TypeInferError for a malformed equation, and for operands that do not fit it: another
    number of them, of axes, or, naming the label, of elements along one.
    """
    text = "".join(equation.split())
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    _require(
        len(terms) == len(shapes),
        "the equation is for another number of operands",
        equation,
        expected=f"{len(terms)} operands",
        found=f"{len(shapes)} of shapes {', '.join(str(list(s)) for s in shapes)}",
    )
    operands = tuple(
        _term_labels(term, len(shape), i, equation)
        for i, (term, shape) in enumerate(zip(terms, shapes, strict=True))
    )
    extents: dict[str, Dim] = {}
    for i, (labels, shape) in enumerate(zip(operands, shapes, strict=True)):
        _add_extents(extents, labels, shape, i, equation)
    count = sum(label.startswith(ELLIPSIS) for label in extents)
    if arrow:
        _letters(right, equation)
        result = _with_axes(right, count if ELLIPSIS in right else 0)
    else:
        result = _implicit_output(operands, count)
    for label in result:
        _require(label in extents, f"no operand has the result's label {label!r}", equation)
        _require(result.count(label) == 1, f"the result has the label {label!r} twice", equation)
    return Subscripts(operands, result, extents)


def _term_labels(term: str, ndim: int, operand: int, equation: str) -> Labels:
    """Return one label per axis of an operand."""
    letters = _letters(term, equation)
    dots = ndim - len(letters)
    _require(
        dots == 0 or (dots > 0 and ELLIPSIS in term),
        f"operand {operand} has {ndim} axes",
        equation,
        expected=f"{'at least ' * (ELLIPSIS in term)}{len(letters)}, as {term!r} says",
    )
    return _with_axes(term, dots)


def _letters(term: str, equation: str) -> str:
    """Return the letters of one term; TypeInferError for anything that is neither one nor dots."""
    letters = term.replace(ELLIPSIS, "", 1)
    bad = sorted({c for c in letters if c not in ascii_letters})
    _require(
        not bad,
        f"{', '.join(map(repr, bad))} in {term!r} is no label",
        equation,
        expected="letters a-z and A-Z, at most one '...' per operand, ',' and one '->'",
    )
    return letters


def _with_axes(term: str, dots: int) -> Labels:
    """Write a term's ellipsis out as ``dots`` labels, "...0" last."""
    before, _, after = term.partition(ELLIPSIS)
    return (*before, *(f"{ELLIPSIS}{i}" for i in reversed(range(dots))), *after)


def _add_extents(
    extents: dict[str, Dim], labels: Labels, shape: tuple[Dim, ...], operand: int, equation: str
) -> None:
    own: dict[str, Dim] = {}
    for label, extent in zip(labels, shape, strict=True):
        known = own.setdefault(label, extent)
        _require(
            known == extent,
            f"label {label!r} is twice on operand {operand}, with the extents {known} and {extent}",
            equation,
            expected="equal extents, of which the diagonal is taken",
        )
    for label, extent in own.items():
        known = extents.get(label, 1)
        _require(
            known == extent or 1 in (known, extent),
            f"label {label!r} has the extent {known}, and {extent} on operand {operand}",
            equation,
            expected="equal extents, or 1",
        )
        extents[label] = extent if known == 1 else known


def _implicit_output(operands: Iterable[Labels], count: int) -> Labels:
    every = [label for labels in operands for label in labels if len(label) == 1]
    return (*_with_axes(ELLIPSIS, count), *sorted(s for s in every if every.count(s) == 1))


def _require(
    condition: bool, what: str, equation: str, *, expected: object = None, found: object = None
) -> None:
    if not condition:
        raise TypeInferError(
            what, expected=expected, found=f"{equation!r}" + (f" and {found}" if found else "")
        )


def equation_of(operands: Sequence[Labels], result: Labels) -> str:
    """Return the equation of labels of any names, which get letters; the result's are written out.

    Raises TypeInferError for more than 52 labels.
    """
    names = dict.fromkeys(label for labels in (*operands, result) for label in labels)
    if len(names) > len(ascii_letters):
        raise TypeInferError(
            "there are more axes than letters", expected="at most 52 labels", found=len(names)
        )
    letter = dict(zip(names, ascii_letters, strict=False))
    left, right = (
        ["".join(letter[label] for label in labels) for labels in terms]
        for terms in (operands, [result])
    )
    return f"{','.join(left)}->{right[0]}"
