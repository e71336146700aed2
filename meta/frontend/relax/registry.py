"""The registry of Relax's converters, which the families in `converters/` fill, and the error that
lists what a program calls and has no converter.

Names are TVM's without the leading "relax.", as "nn.conv2d"; a tensor expression that an importer
of ours has marked (see `tensor_expressions.py`) is "te.pad", and what the one of PyTorch calls
beside Relax (see `walker.py`) "torch.embedding". Besides arrays and symbols, positional
arguments may be numbers, text, `Shape`s, tuples of these, and None for `null_value`. To convert a
further operator, write a function in the family file of `converters/` that fits (see
`meta.frontend.core.converter`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from meta.base.errors import FormatError
from meta.frontend.core import Converters

relax = Converters("relax")


class RelaxError(FormatError):
    """A Relax program that cannot be converted."""


@dataclass(frozen=True)
class Failure:
    """A call that is not converted; ``place`` is the variable that it is bound to."""

    operator: str
    why: str
    hint: str | None = None
    place: str = ""


def failed(failures: Iterable[Failure], hint: str | None = None) -> RelaxError:
    """Return the error that lists all of them: each operator once, how often, and where first."""
    grouped: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        grouped.setdefault((failure.operator, failure.why), []).append(failure)
    most = sorted(grouped.items(), key=lambda item: -len(item[1]))
    error = RelaxError(
        f"{sum(map(len, grouped.values()))} calls of this program are not supported", hint=hint
    )
    for (operator, why), found in most:
        times = "once" if len(found) == 1 else f"{len(found)} times"
        place = f", first at {found[0].place}" if found[0].place else ""
        near = f" ({found[0].hint})" if found[0].hint else ""
        error.note(f"  - {operator}, {times}{place}: {why}{near}")
    return error
