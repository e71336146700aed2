"""`OpTaskSignature`: what one phase of an operator reads and writes, with roles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meta.base.errors import ArgumentError, GradientError
from meta.base.registry import nearest
from meta.op.core.call import array_type, map_tensors
from meta.op.core.op import Op
from meta.op.core.phases import TaskSlot, phase_slots
from meta.op.core.registration import require_op
from meta.runtime.ndarray import as_array, ndarray


@dataclass(frozen=True)
class OpTaskSignature:
    """One phase of an operator, derived from its schema and gradient; see `phases.phase_slots`.

    Attributes
    ----------
    op: the base operator. phase: "init", "forward" or "backward". slots: what is read, then what is
    written. args: the canonical arguments that it was derived for, tensors as types; None: of any
    call.

    >>> signature = meta.task.OpTaskSignature.of(meta.op.softmax, "backward")
    >>> print(signature)
    softmax.backward(y (RO output), dy (RO gradient), dx (WO gradient))
    >>> [slot.name for slot in signature.writes]
    ['dx']
    """

    op: Op
    phase: str
    slots: tuple[TaskSlot, ...]
    args: tuple[Any, ...] | None = None

    @classmethod
    def of(cls, op: Op, phase: str, *args: Any, **kwargs: Any) -> OpTaskSignature:
        """Return the signature of a phase: of any call, or of one with these arguments, arrays or
        types.

        Raises ArgumentError for an unknown phase and for arguments that the operator does not take,
        TypeInferError for types that do not fit, GradientError for the backward of an operator that
        has no gradient.
        """
        require_op(op, "the signature of a task")
        types = None
        if args or kwargs:
            bound = op.schema.bind(args, kwargs, _as_type)
            types = map_tensors(op, bound, _as_type)
            op.infer(types)
        return cls.derived(op, phase, types)

    @classmethod
    def derived(cls, op: Op, phase: str, types: tuple[Any, ...] | None) -> OpTaskSignature:
        """Return the signature for canonical arguments that are known to fit; None: of any call."""
        slots = phase_slots(op, phase, types)
        if phase == "backward" and not slots:
            rule = op.aspects.gradient
            raise GradientError(
                "this operator has no backward task",
                op=op.name,
                expected="an operator with a gradient",
                found="none was registered" if rule is None else rule.reason,
            )
        return cls(op, phase, slots, types)

    @property
    def reads(self) -> tuple[TaskSlot, ...]:
        """The slots that the task reads; what it reads and writes is among them."""
        return tuple(s for s in self.slots if s.access != "WO")

    @property
    def writes(self) -> tuple[TaskSlot, ...]:
        """The slots that the task writes."""
        return tuple(s for s in self.slots if s.access != "RO")

    @property
    def arguments(self) -> tuple[str, ...]:
        """The names of the attributes and numbers that a binding may set.

        A backward task takes those of the call that its signature was derived for.
        """
        if self.phase == "backward":
            return ()
        numbers = ("attribute",) if self.phase == "init" else ("attribute", "scalar")
        return tuple(s.name for s in self.op.slots if s.kind in (*numbers, "scalar or tensor"))

    @property
    def tensors(self) -> tuple[str, ...]:
        """The names of the slots of tensors, gradients of the operator's arguments left out."""
        return tuple(
            s.name for s in self.slots if s.role != "argument" and (s.access != "WO" or not s.slot)
        )

    def of_init(self, name: str) -> TaskSlot | None:
        """Return the tensor of this name that an init task may be told the type of; None if there
        is none, or in another phase.
        """
        slots = phase_slots(self.op, "forward", self.args) if self.phase == "init" else ()
        found = (s for s in slots if s.slot is not None and s.slot.is_tensor)
        return next((s for s in found if s.name == name), None)

    def __getitem__(self, name: str) -> TaskSlot:
        """Return a slot by name; ArgumentError, with the nearest name, if there is none."""
        for slot in self.slots:
            if slot.name == name:
                return slot
        raise self.error(
            f"there is no slot {name!r}",
            expected=[s.name for s in self.slots],
            hint=nearest(name, [s.name for s in self.slots]),
        )

    def gradient_of(self, slot: str) -> TaskSlot:
        """Return the slot of the gradient of an argument, or of the result ("out"); ArgumentError
        if there is none.
        """
        found = {s.of: s for s in self.slots if s.role == "gradient"}
        if slot not in found:
            raise self.error(
                f"there is no gradient of {slot!r}",
                expected=f"a gradient of {' or '.join(found)}" if found else "none in this phase",
                found=slot,
                hint=nearest(slot, found),
            )
        return found[slot]

    def error(self, what: str, **more: Any) -> ArgumentError:
        """Return the error of a wrong slot or value, which names operator and phase."""
        return ArgumentError(what, op=f"{self.op.name}, {self.phase} task", **more)

    def __str__(self) -> str:
        return f"{self.op.name}.{self.phase}({', '.join(map(str, self.slots))})"


def _as_type(value: Any) -> Any:
    if isinstance(value, ndarray):
        return array_type(value.key)
    return value if hasattr(value, "static_shape") else array_type(as_array(value).key)
