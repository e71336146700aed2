"""`AtenCall`: that an overload of ATen computes a base operator, and which argument is which slot.

Such a record serves both ways. From ATen: the converter of the overload, where its arguments are
all that a converter has to look at (`meta.frontend.aten`). To ATen: the plain kernels of this
dialect, and the functions of vendors that have ATen's names and arguments
(`meta.dialect.vendors`). `aten_calls` has the tables.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cache
from typing import Any

import torch

from meta.base.dtype import FLOATS, UNSIGNED
from meta.op.core.op import Op


class Promotion(Enum):
    """What a call of an overload does to its operands before they are those of the operator."""

    NONE = "they are taken as they are"
    COMMON = "they are promoted to one dtype, as torch promotes"
    FLOATING = "the same, and integers to torch's default for floating point"


@dataclass(frozen=True)
class Domain:
    """Tensors of which the overload means what the operator means.

    Attributes
    ----------
    text: what they are, for errors. dtypes: theirs, or if ``others``, those that they have not.
    ndim: how many axes they have, None for any.
    """

    text: str
    dtypes: frozenset[str]
    others: bool = False
    ndim: int | None = None

    def has(self, dtype: str) -> bool:
        """Whether a tensor may have a dtype."""
        return (dtype in self.dtypes) != self.others


REAL = Domain("floating point", FLOATS)
MATRIX = Domain("floating point", FLOATS, ndim=2)
MATRICES = Domain("floating point", FLOATS, ndim=3)
INTEGER = Domain("whole numbers", FLOATS, others=True)
NUMBER = Domain("a number", frozenset({"bool"}), others=True)
SIGNED = Domain("signed", UNSIGNED, others=True)
BOOL = Domain("bool", frozenset({"bool"}))


@dataclass(frozen=True)
class Computed:
    """An argument that is computed of slots. what: "dtype" of a tensor; "last", ``[extent]`` of an
    axis that is the last one; "integers", a list of an attribute; "along", such a list as long as
    that of axes; "repeats", one not shorter than the shape of a tensor; "batch", the first of two
    batches of equally many matrices.
    """

    what: str
    slots: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.what}({', '.join(self.slots)})"


Argument = str | Computed | bool | int | None
"""What stands for an argument: the name of a slot, something computed, or a constant."""


@dataclass(frozen=True)
class AtenCall:
    """A call of an overload that computes an operator.

    Attributes
    ----------
    op: the operator. A slot that no argument stands for has its default value.
    overload: its name without ATen's namespace and ".default"; None for a function of torch that
        is composed of others.
    arguments: what stands for each argument, in ATen's order. keywords: for those that are given by
        name.
    promotion: of operands, where this is all that a converter does; None where it is written out.
    domain: by slot, of which tensors the function is the operator's.
    result: which of several results is the operator's, None for the only one.
    functions: the names of functions of vendors that are called so.
    """

    op: Op
    overload: str | None
    arguments: tuple[Argument, ...]
    keywords: Mapping[str, Argument] = field(default_factory=dict)
    promotion: Promotion | None = None
    domain: Mapping[str, Domain] = field(default_factory=dict)
    result: int | None = None
    functions: tuple[str, ...] = ()

    @property
    def slots(self) -> set[str]:
        """The slots of the operator that an argument is made of."""
        found: set[str] = set()
        for argument in (*self.arguments, *self.keywords.values()):
            if isinstance(argument, Computed):
                found.update(argument.slots)
            elif isinstance(argument, str):
                found.add(argument)
        return found

    def __str__(self) -> str:
        shown = [*map(str, self.arguments), *(f"{k}={v}" for k, v in self.keywords.items())]
        return f"{self.op.name}({', '.join(shown)})"


def aten_calls(
    op: Op,
    overloads: str,
    *arguments: Argument,
    promotion: Promotion | None = None,
    result: int | None = None,
    functions: str | None = "",
    **domain: Domain,
) -> list[AtenCall]:
    """Return the records of overloads that have the same arguments.

    overloads, functions: names, apart by spaces; by default there is a function of the name that
    `function_name` gives, of None there is none. arguments: names of slots, any number in a text,
    ``name=slot`` for those that are given by name; constants and what is computed, by themselves;
    by default ``x``, or ``x1 x2``, whichever the operator has. domain: by slot.
    """
    operands = " ".join(s.name for s in op.slots if s.name in ("x", "x1", "x2"))
    tokens: list[Argument] = []
    for argument in arguments or (operands,):
        tokens += argument.split() if isinstance(argument, str) else [argument]
    named = dict(t.split("=") for t in tokens if isinstance(t, str) and "=" in t)
    given = tuple(t for t in tokens if not (isinstance(t, str) and "=" in t))
    return [
        AtenCall(op, overload, given, named, promotion, domain, result, names)
        for overload in overloads.split()
        for names in [_function_names(overload, functions)]
    ]


def _function_names(overload: str, functions: str | None) -> tuple[str, ...]:
    if functions is None or overload.startswith("__"):  # Python's operators
        return ()
    return tuple(functions.split()) or (function_name(overload),)


def function_name(overload: str) -> str:
    """Return how a vendor names a function with an overload's arguments.

    >>> function_name("eq.Tensor"), function_name("where.ScalarOther"), function_name("sin")
    ('eq', 'where_scalar_other', 'sin')
    """
    packet, _, form = overload.partition(".")
    if form in ("", "Tensor"):
        return packet
    return f"{packet}_{re.sub('(?<=[a-z])(?=[A-Z])', '_', form).lower()}"


@cache
def schema_of(overload: str) -> Sequence[Any]:
    """Return the arguments of an overload of ATen, as its schema has them."""
    packet, _, form = overload.partition(".")
    found = getattr(getattr(torch.ops.aten, packet), form or "default")
    arguments: Sequence[Any] = found._schema.arguments
    return arguments
