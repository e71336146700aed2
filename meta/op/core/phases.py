"""The phases of an operator as a task: what its init, its forward and its backward read and write.

Nothing is declared for it: the schema says what forward reads, and the gradient rule what backward
keeps of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from meta.base.dtype import has_gradient
from meta.base.errors import ArgumentError
from meta.op.core.slot import Slot

if TYPE_CHECKING:
    from meta.op.core.op import Op

PHASES = ("init", "forward", "backward")


@dataclass(frozen=True, slots=True)
class TaskSlot:
    """One thing that a phase reads or writes.

    Attributes
    ----------
    name: unique within the phase: of an argument its slot's, of a gradient "d" and its slot's.
    access: "RO", "WO" or "RW". role: "input", "weight", "output", "gradient" or "argument" (an
    attribute or a number). of: the slot that it is, or whose gradient it is; of the operator's
    result, and its gradient, "out". slot: that slot; None of the result.

    >>> slot = meta.task.OpTaskSignature.of(meta.op.softmax, "forward")["x"]
    >>> slot.name, slot.access, slot.role, slot.of
    ('x', 'RO', 'input', 'x')
    """

    name: str
    access: str
    role: str
    of: str
    slot: Slot | None

    def __str__(self) -> str:
        return f"{self.name} ({self.access} {self.role})"


def phase_slots(op: Op, phase: str, args: tuple[Any, ...] | None = None) -> tuple[TaskSlot, ...]:
    """Return what a phase of an operator reads, then what it writes.

    args: canonical arguments, tensors as arrays or types. With them an optional slot that holds
    nothing contributes nothing, and an input without a gradient (of integers, say) gets none;
    without them all slots count. A result that is several tensors is one slot. What an operator
    writes in place has no gradient. ``backward`` is () for an operator that has no gradient.

    Raises ArgumentError for an unknown phase.
    """
    if phase not in PHASES:
        raise ArgumentError(
            "unknown phase", op=op.name, expected="init, forward or backward", found=repr(phase)
        )
    bound = dict(zip(op.schema.names, args or (True,) * len(op.slots), strict=True))
    slots = [s for s in op.slots if s.kind == "attribute" or bound[s.name] is not None]
    out = op.schema.reserved("out")
    if phase == "init":
        return tuple(_read(s) for s in slots if s.kind == "attribute")
    if phase == "forward":
        given = tuple(_read(s) for s in slots if s.kind != "attribute")
        return (*given, TaskSlot(out, "WO", "output", "out", None))
    rule = op.aspects.gradient
    if rule is None or rule.function is None:
        return ()
    found: list[TaskSlot] = []
    for name, index, type_only in rule.kept:
        if type_only:
            continue
        if index < 0:
            found.append(TaskSlot(name, "RO", "output", "out", None))
        elif op.slots[index] in slots and op.slots[index].kind != "attribute":
            found.append(_read(op.slots[index], "RO"))
    found.append(TaskSlot(rule.dy, "RO", "gradient", "out", None))
    taken = {s.name for s in found}
    for slot in slots:
        value = bound[slot.name]
        if slot.is_tensor and slot.access == "RO" and (args is None or _has_gradient(value)):
            name = f"d{slot.name}"
            while name in taken:
                name += "_"
            taken.add(name)
            found.append(TaskSlot(name, "WO", "gradient", slot.name, slot))
    return tuple(found)


def _read(slot: Slot, access: str = "") -> TaskSlot:
    role = slot.role if slot.is_tensor else "argument"
    return TaskSlot(slot.name, access or slot.access, role, slot.name, slot)


def _has_gradient(value: Any) -> bool:
    """Whether an argument, or one of several, is a tensor of a dtype that has gradients."""
    return any(has_gradient(dtype) for dtype in _dtypes(value))


def _dtypes(value: Any) -> Iterator[str]:
    if isinstance(value, tuple):
        for one in value:
            yield from _dtypes(one)
    elif hasattr(value, "dtype"):
        yield value.dtype
