"""What a converter may ask about the call that it converts, besides the arguments."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meta.base.device import CPU, Device
from meta.runtime.ndarray import ndarray


class Unconvertible(Exception):
    """Raised by a converter for a call that it cannot express, with the reason.

    The importer collects all of a program and reports them in one error.
    """

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why, self.hint = why, hint


@dataclass(frozen=True)
class CallSite:
    """Where a converted call stands.

    Attributes
    ----------
    name: the source's name of the operator.
    version: major and minor version of the program that wrote the file, (0, 7); None if unknown.
    given: names of the attributes that the file states; the others have their defaults.
    has_attributes: False where the call has no attributes at all, as for operators that had none in
        that version.
    training: whether a model in train mode is being traced.
    device: where arrays that the converter makes belong.
    result_type: the type that the file declares for the result, as the importer's own type node;
        None if it declares none.
    """

    name: str
    version: tuple[int, int] | None = None
    given: frozenset[str] = frozenset()
    has_attributes: bool = True
    training: bool = False
    device: Device = field(default=CPU)
    result_type: Any = None


def known(value: Any) -> ndarray | None:
    """Return an argument's array if it is known while converting, otherwise None.

    Constants of the program are known, and what is computed of small ones alone, such as shapes;
    inputs and parameters are not.
    """
    return value if isinstance(value, ndarray) else None
