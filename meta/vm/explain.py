"""`explain`: who would run a call, and why not the others."""

from __future__ import annotations

from typing import Any

from meta.dialect.core import Candidate, answers
from meta.dialect.core.preference import current
from meta.op.core import Op, View, map_tensors, runtime_args
from meta.op.core.array_type import array_type
from meta.runtime.ndarray import as_array, ndarray
from meta.vm.eager import device_of


class Explanation(list[Candidate]):
    """The candidates of one call in the order in which they are asked; prints as a table."""

    def __init__(self, title: str, candidates: list[Candidate]) -> None:
        super().__init__(candidates)
        self.title = title

    @property
    def chosen(self) -> Candidate | None:
        """The first candidate that accepts."""
        return next((c for c in self if c.env is not None), None)

    def __str__(self) -> str:
        lines = [self.title]
        for candidate in self:
            mark = "->" if candidate is self.chosen else "  "
            lines.append(f"{mark} {candidate}")
        return "\n".join(lines)

    __repr__ = __str__


def explain(op: Op, *args: Any, **kwargs: Any) -> Explanation:
    """Ask every dialect for its answer to a call, without running it; print the result to see why.

    The arguments are those of the call. Preferences (`prefer`, `only`, `exclude`) in force count. A call that needs no
    kernel (a view, a value known now) has no candidates, and the title says so.
    """
    bound = op.schema.bind(args, kwargs, as_array)
    arrays = [v for v in runtime_args(op, bound) if isinstance(v, ndarray)]
    call = op.call_values(map_tensors(op, bound, lambda a: array_type(a.key)), device_of(op, bound, arrays))
    if call.callee is None or isinstance(call.out, View):
        kind = "is a view of its argument" if isinstance(call.out, View) else f"is known now: {call.out}"
        return Explanation(f"{call}\n   {kind}; no kernel runs", [])
    return Explanation(f"{call} -> {call.out}", list(answers(call, current.get())))
