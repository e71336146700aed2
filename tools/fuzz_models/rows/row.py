"""What is known of an operator: `Row`, and the table of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tools.fuzz_models.program import Ref, Step, refs_in

Call = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments, with `Ref` for values."""
Dtypes = Callable[[Sequence[str], Sequence[Any], Mapping[str, Any]], "str | Sequence[str]"]


@dataclass(frozen=True)
class Row:
    """One operator.

    draw: makes a call out of a `Draw`, or raises Missing. reference: the operator on torch tensors
    in float64, int64 and bool, with the same arguments; it returns a tensor, or several; those of
    an operator that writes end with what the written arguments hold then.

    dtype: of the result: "same" (the first operand's), "float" (that, but float32 for ints), a
    dtype, or a function of the operands' dtypes and the arguments.

    rounding: "none": elements are moved, chosen or compared, and exact if the operands are;
    "round": a result is the nearest number, exact where the dtype holds it; "add" and "product":
    sums of operands or of their products, exact while the dtype holds all sums, whose size is
    ``magnitude`` of the absolute values; "always": it rounds.

    inner: how large the numbers are that cancel inside of the operator, as 1 + erf(x) has them; a
    list, one for each result; beside a dtype, in a tuple, if they are of this dtype, beside
    "squared" if the unit counts twice, beside "operand" if they are of the first operand's.

    slope: the same of its derivative, as 1 - y * y has them: ``slope(shake, *args)`` is what a
    gradient may be off by, in units in the last place, as that of a function of the operands:
    ``shake(x)`` is 0, and its derivative by each element of x a random number up to 1.

    smooth: whether gradients are compared. view: whether the result has the memory of the first
    operand. writes: the positions of written arguments. constant: whether the result may be memory
    of the program itself. weight: how often it is drawn.
    """

    op: str
    draw: Callable[[Any], Call]
    reference: Callable[..., Any]
    dtype: str | Dtypes = "same"
    rounding: str = "always"
    smooth: bool = False
    view: bool = False
    writes: tuple[int, ...] = ()
    constant: bool = False
    magnitude: Callable[[tuple[Any, ...], dict[str, Any]], Any] | None = None
    inner: Callable[..., Any] | None = None
    slope: Callable[..., Any] | None = None
    weight: float = 1.0

    def compute(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply the reference."""
        return self.reference(*args, **kwargs)

    def dtypes(
        self, operands: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> list[str]:
        """Return the dtypes of all that the reference returns."""
        if callable(self.dtype):
            found = self.dtype(operands, args, kwargs)
        elif self.dtype == "same":
            found = operands[0]
        elif self.dtype == "float":
            found = operands[0] if "float" in operands[0] else "float32"
        else:
            found = self.dtype
        return [found] if isinstance(found, str) else list(found)

    def written(self, step: Step) -> list[Ref]:
        """Return the arguments that a step writes."""
        return [r for position in self.writes for r in refs_in(step.args[position])]


ROWS: dict[str, Row] = {}
"""All operators by name."""


def add(row: Row) -> None:
    """Add a row to the table."""
    if row.op in ROWS:
        raise AssertionError(f"two rows for {row.op}")
    ROWS[row.op] = row
