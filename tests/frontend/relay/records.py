"""`ConverterCase`: what one call of a Relay operator has to give, as data.

The families are in `converters/`, one list ``CASES`` per file, as the converters themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class ConverterCase:
    """One call and its result.

    Attributes
    ----------
    name: the Relay operator. args: numpy arrays (or torch tensors) and tuples of them.
    expected: the result, or a function of ``args`` that computes it independently (torch, numpy, a
        loop); a tuple for several results.
    attrs: the attributes that the program states.
    constants: positions of the arguments that are constants of the program, not inputs.
    version: of the TVM that wrote the program; None if unknown.
    has_attributes: False for a call without attributes where others have some.
    training: convert for a model in train mode.
    tolerance: relative and absolute; integers are always compared exactly.
    refused: instead of a result, a pattern that the reason of the refusal matches.
    dialects: those that can run it.
    label: added to the test's name.
    """

    name: str
    args: tuple[Any, ...]
    expected: Any | Callable[..., Any] = None
    attrs: dict[str, Any] = field(default_factory=dict)
    constants: tuple[int, ...] = ()
    version: tuple[int, int] | None = None
    has_attributes: bool = True
    training: bool = False
    tolerance: float = 1e-5
    refused: str | None = None
    dialects: tuple[str, ...] = ("tvm", "torch")
    label: str = ""

    @property
    def id(self) -> str:
        """The name of its test."""
        stated = ",".join(f"{k}={v}" for k, v in self.attrs.items())
        return "-".join(p for p in (self.name, self.label or stated) if p)
