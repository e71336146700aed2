"""Which sums of a kernel of rows are of exponentials that a maximum of the row is subtracted from.

Both can be had in one sweep over the row, as `rows` does where a row is read anew for each.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.dialect.tvm.floats import subtracted
from meta.dialect.tvm.schedule_cuda.emit import substituted
from meta.dialect.tvm.schedule_cuda.row_stages import ELEMENT, REDUCED, Member


def online(members: Sequence[Member]) -> dict[Member, Member]:
    """Return the maximum of each such sum."""
    by_buffer = {member.part.stage.buffer: member for member in members}
    found = {}
    for member in members:
        if member.role == REDUCED and isinstance(member.part.value, tirx.Add):
            largest = _maximum(member, by_buffer)
            if largest is not None and largest not in found.values():
                found[member] = largest
    return found


def _maximum(member: Member, by_buffer: Mapping[Any, Member]) -> Member | None:
    """Return the member m of a sum of exp(e - m), if m is the maximum of e."""
    value = _expanded(member.part.value.b, member, by_buffer)
    if not isinstance(value, tvm.ir.Call) or value.op.name != "tirx.exp":
        return None
    terms = subtracted(value.args[0])
    if terms is None or not isinstance(terms[1], tvm.ir.TensorLoad):
        return None
    largest = by_buffer.get(terms[1].source)
    if largest is None or largest.role != REDUCED:
        return None
    if not isinstance(largest.part.value, tirx.Max):
        return None
    axes = _axes(largest, member)
    if axes is None:
        return None
    of = _expanded(largest.part.value.b, largest, by_buffer)
    of = substituted(of, axes)
    return largest if tvm_ffi.structural_equal(of, terms[0]) else None


def _expanded(value: Any, reader: Member, by_buffer: Mapping[Any, Member]) -> Any:
    """Return an element with that of a stage of the row in its place, if it is one."""
    if not isinstance(value, tvm.ir.TensorLoad):
        return value
    made = by_buffer.get(value.source)
    if made is None or made.role != ELEMENT:
        return value
    axes = _axes(made, reader)
    return value if axes is None else substituted(made.part.value, axes)


def _axes(made: Member, reader: Member) -> dict[Any, Any] | None:
    """Return the axes of one stage by those of another; None if they have other extents."""
    ours, theirs = made.part.stage, reader.part.stage
    if (*ours.spatial, *ours.reduce) != (*theirs.spatial, *theirs.reduce):
        return None
    return dict(zip(ours.axes, theirs.axes, strict=True))
