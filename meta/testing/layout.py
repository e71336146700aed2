"""The check of memory layouts: a value means the same however its elements lie in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from meta.base.registry import OPERATORS
from meta.dialect import only
from meta.model import trace
from meta.op.core import tree
from meta.op.core.op import ComposedOp
from meta.runtime.ndarray import as_array, ndarray
from meta.testing.case import OpCase, Sample
from meta.testing.compare import check
from meta.vm import compile

# The kernel gets the same values, so that results are equal but for the order of sums. What is
# expanded has a variance of 0, by which a normalisation of rounding errors divides.
CLOSE = (1e-4, 1e-4)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return the values with the axes in memory in reverse order."""
    backwards = tuple(reversed(range(x.ndim)))
    return x.permute(backwards).contiguous().permute(backwards)


def sliced(x: torch.Tensor) -> torch.Tensor:
    """Return the values as every second element, from the second on, of a larger buffer."""
    buffer = torch.zeros([2 * n + 1 for n in x.shape], dtype=x.dtype, device=x.device)
    view = buffer[tuple(slice(1, 2 * n + 1, 2) for n in x.shape)]
    view.copy_(x)
    return view


def expanded(x: torch.Tensor) -> torch.Tensor:
    """Return the first slice along each axis, repeated by a stride of 0."""
    return x[tuple(slice(0, 1) for _ in x.shape)].expand(x.shape) if x.numel() else x


LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": transposed,
    "sliced": sliced,
    "expanded": expanded,
}


def widest(case: OpCase) -> str:
    """Return the last dtype of a case, in which rounding matters least."""
    return case.dtypes[-1] if case.dtypes else "float32"


def of_tensors(function: Callable[..., Any], structure: Any) -> Callable[..., Any]:
    """Return a function of the tensors among another one's arguments, ``(args, kwargs)``."""

    def call(*tensors: Any) -> Any:
        args, kwargs = tree.unflatten(structure, list(tensors))
        return function(*args, **kwargs)

    return call


def called(case: OpCase) -> Callable[..., Any]:
    """Return what a record's samples are arguments of: the operator, or its schema where a call of
    it takes others.
    """
    op = OPERATORS[case.op]
    by_call = not isinstance(op, ComposedOp) or op.takes_schema
    chosen: Callable[..., Any] = op if by_call else op.plain
    return chosen


def check_layouts(case: OpCase, one: Sample, dialects: list[str], device: str = "cpu") -> None:
    """Arguments in `LAYOUTS` give what their compact copies give: on each dialect, and compiled.

    So do arguments that are written, and the others are left as they were. What is written is not
    expanded: elements that share memory cannot be written one by one.
    """
    leaves, structure = tree.flatten(one.make(widest(case)))
    written = _written(case, leaves, structure)
    call = of_tensors(called(case), structure)
    # A program is of shapes and dtypes, so one takes all layouts.
    compiled = compile(trace(call), *(ndarray(t.to(device)) for t in leaves), device=device)
    runs = {**{dialect: only(dialect)(call) for dialect in dialects}, "compiled": compiled}
    for name, layout in LAYOUTS.items():
        if layout is expanded and not case.expanded:
            continue
        views = [
            sliced if layout is expanded and i in written else layout for i in range(len(leaves))
        ]
        tensors = [view(t.to(device)) for view, t in zip(views, leaves, strict=True)]
        for who, run in runs.items():
            given = [ndarray(view(t)) for view, t in zip(views, tensors, strict=True)]
            compact = [ndarray(t.clone(memory_format=torch.contiguous_format)) for t in tensors]
            what = f"{who} {case.op}({one}), {name}"
            check(run(*given), run(*compact), *CLOSE, what=what)
            check(given, compact, *CLOSE, what=f"the arguments after {what}")


def _written(case: OpCase, leaves: list[torch.Tensor], structure: Any) -> set[int]:
    """Return which of the leaves the operator writes."""
    op = OPERATORS[case.op]
    arrays = [ndarray(t.clone()) for t in leaves]
    args, kwargs = tree.unflatten(structure, arrays)
    bound = op.schema.bind(args, kwargs, as_array)
    places = {id(a): i for i, a in enumerate(arrays)}
    return {places[id(a)] for i in op.schema.written for a in tree.flatten(bound[i])[0]}
