"""Whether kernels may run where results overwrite arguments: that nothing is read too late."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.tirx.buffer import is_buffer_var

from meta.dialect.tvm.lower import OVERWRITTEN
from meta.dialect.tvm.schedule_cuda.walk import KernelPart, all_reads
from meta.dialect.tvm.stages import at_axes


class Overwriting:
    """Which arguments of a function its results may overwrite."""

    def __init__(self, function: tirx.PrimFunc) -> None:
        self.pairs: set[tuple[Any, Any]] | None = None
        if OVERWRITTEN in function.attrs:
            places = [int(place) for place in function.attrs[OVERWRITTEN]]
            results = function.params[len(function.params) - len(places) :]
            arguments = [function.params[place] for place in places]
            self.pairs = set(zip(arguments, results, strict=True))

    def may_be(self, argument: Any, result: Any) -> bool:
        """Whether both may be in the same memory: if it is not known, they are of one type."""
        if self.pairs is not None:
            return (argument, result) in self.pairs
        return is_buffer_var(argument) and _type_of(argument) == _type_of(result)


def _type_of(buffer: Any) -> tuple[str, list[int | None]]:
    extents = [e.value if isinstance(e, tirx.IntImm) else None for e in buffer.ty.shape]
    return str(buffer.dtype), extents


def safe(groups: Sequence[Sequence[KernelPart]], inner: set[Any], overwriting: Overwriting) -> bool:
    """Whether kernels of these parts, in this order, read all arguments before they change.

    In the kernel that overwrites it, an argument may be read at the element that is written, by
    stages that are no reductions: by the same thread, before it stores anything.
    """
    written: set[Any] = set()
    made = {part.stage.buffer for group in groups for part in group}
    for group in groups:
        now = {part.stage.buffer for part in group} - inner
        for part in group:
            for node in all_reads(part.value):
                if node.source in made:
                    continue
                if any(overwriting.may_be(node.source, one) for one in written):
                    return False
                own = not part.stage.reduce and at_axes(node.indices, part.stage.axes)
                if not own and any(overwriting.may_be(node.source, one) for one in now):
                    return False
        written |= now
    return True
