"""`explain`: who would run a call, and why not the others."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

from meta.base.errors import ArgumentError
from meta.dialect.core import Candidate, DialectOp, answers, dialects, only
from meta.dialect.core.preference import current
from meta.ir.types import TensorType
from meta.op.core import Op, View, map_tensors, runtime_args
from meta.op.core.array_type import array_type
from meta.runtime.ndarray import as_array, ndarray
from meta.vm.eager import device_of


class Explanation(list[Candidate]):
    """The candidates of one call in the order in which they are asked; prints as a table.

    Attributes
    ----------
    title: the call. absent: the backends that are not usable on this machine, with the reason.
    """

    def __init__(
        self, title: str, candidates: Iterable[Candidate], absent: dict[str, str] | None = None
    ) -> None:
        super().__init__(candidates)
        self.title, self.absent = title, absent or {}

    @property
    def chosen(self) -> Candidate | None:
        """The first candidate that accepts."""
        return next((c for c in self if c.env is not None), None)

    def records(self) -> list[dict[str, Any]]:
        """Return one plain record per candidate."""
        return [
            {
                "dialect": c.dialect_op.dialect.name,
                "plevel": int(c.plevel),
                "site": str(c.dialect_op.site),
                "accepts": c.env is not None,
                "chosen": c is self.chosen,
                "reason": c.reason,
            }
            for c in self
        ]

    def __str__(self) -> str:
        rows = [
            (
                "->" if r["chosen"] else "  ",
                r["dialect"],
                f"plevel {r['plevel']}",
                "accepts" if r["accepts"] else f"refuses: {r['reason']}",
                _short(r["site"]),
            )
            for r in self.records()
        ]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [self.title]
        for row in rows:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            lines.append("  ".join(cells).rstrip())
        lines += [f"    {name}  unavailable: {why}" for name, why in self.absent.items()]
        if rows and self.chosen is None:
            lines.append("nobody accepts: the call raises DispatchError")
        return "\n".join(lines)

    __repr__ = __str__


def explain(op: Op | DialectOp, *args: Any, **kwargs: Any) -> Explanation:
    """Ask every dialect for its answer to a call, without running it; print the result to see why.

    The arguments are those of the call; a `TensorType` may stand for an array (then the device is
    the CPU, unless another argument says otherwise). Preferences (`prefer`, `only`, `exclude`) in
    force count. Of a dialect operator (``meta.op.tvm.softmax``) only that dialect is asked. A call
    that needs no kernel (a view, a value known now) has no candidates, and the title says so.

    Raises what the call itself would raise for wrong arguments, and ArgumentError if ``op`` is no
    operator.
    """
    if isinstance(op, DialectOp):
        choice, op = only(op.dialect.name), op.base
    else:
        choice = nullcontext()
    if not isinstance(op, Op):
        raise ArgumentError(
            "explain needs an operator",
            expected="an operator and the arguments of the call: explain(meta.softmax, x)",
            found=type(op).__name__,
        )
    bound = op.schema.bind(args, kwargs, _lift)
    arrays = [v for v in runtime_args(op, bound) if isinstance(v, ndarray)]
    call = op.call_values(map_tensors(op, bound, _type), device_of(op, bound, arrays))
    if call.callee is None:
        return Explanation(f"{call}\n    is known now: {call.out}; no kernel runs", [])
    if isinstance(call.out, View):
        return Explanation(f"{call}\n    is a view of its argument; no kernel runs", [])
    with choice:
        found = list(answers(call, current.get()))
    absent = {d.name: d.unavailable for d in dialects() if d.unavailable is not None}
    return Explanation(f"{call} -> {call.out}", found, absent)


def _lift(value: Any) -> Any:
    return value if isinstance(value, TensorType) else as_array(value)


def _type(value: ndarray | TensorType) -> TensorType:
    return value if isinstance(value, TensorType) else array_type(value.key)


def _short(site: str) -> str:
    """Return a file:line relative to the working directory if it lies in it."""
    inside = site.startswith(os.getcwd() + os.sep)
    return os.path.relpath(site) if inside else site
