"""The reference: the first kernel that runs, its arguments and its results, with which those of
all others are compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from meta.ir import TensorType
from meta.vm.measuring.arguments import FLOATS, made
from meta.vm.measuring.contender import Contender, reason_of
from meta.vm.measuring.results import difference
from meta.vm.measuring.subject import Subject


@dataclass(eq=False, slots=True)
class Reference:
    """What all contenders are given, as it is before a call, and what has to come out of it: the
    results, then the arguments that are written.
    """

    contender: Contender
    values: list[Any]
    expected: list[torch.Tensor]

    def copied(self) -> list[Any]:
        """Return the arguments in memory of their own."""
        return [v.clone() if isinstance(v, torch.Tensor) else v for v in self.values]


def reference_of(contender: Contender, subject: Subject) -> Reference | None:
    """Run the first contender on arguments of which its results are finite; None, and it is
    refused, if it cannot be run at all.
    """
    found: Reference | None = None
    failure: Exception | None = None
    makes_floats = any(isinstance(v, TensorType) and "float" in v.dtype for v in subject.values)
    for floats in FLOATS if makes_floats else FLOATS[:1]:
        values = made(subject, floats)
        one = Reference(contender, values, [])
        try:
            one.expected = contender.results(subject, one.copied())
        except Exception as error:
            failure = error
            continue
        found = found or one
        if all(_is_finite(t) for t in one.expected):
            return one
    if found is None:
        assert failure is not None
        contender.refuse(f"fails: {reason_of(failure)}")
    return found


def _is_finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        return True
    return bool(tensor.isfinite().all())


def check(contender: Contender, subject: Subject, reference: Reference) -> None:
    """Refuse a contender whose results are not those of the reference."""
    try:
        found = contender.results(subject, reference.copied())
    except Exception as error:
        contender.refuse(f"fails: {reason_of(error)}")
        return
    wrong = None if subject.random else difference(found, reference.expected)
    if wrong is not None:
        first = reference.contender.dialect
        contender.refuse(f"is wrong, if {first} is right: {wrong}")
