"""`TaskArgumentAccessor`: what the function of a task sees of its call."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import IRError, MetaWarning
from meta.base.registry import nearest
from meta.task.signature import OpTaskSignature

RESULT = "out"
"""The name of the operator's result in `get_output` and `get_gradient`."""


class TaskArgumentAccessor:
    """The tensors, arguments and state of one run of a forward or backward task.

    Tensors are torch's, on the device of the call. A task writes what `get_output` (forward) and
    `get_gradient` of arguments (backward) return, in place and all of it; everything else it only
    reads. A slot whose value is several tensors gives a tuple. An optional slot that holds nothing
    gives None, and so does its gradient.

    Attributes
    ----------
    signature: what is read and written in this call. device: where the task runs.
    """

    def __init__(
        self,
        signature: OpTaskSignature,
        device: Device,
        values: Mapping[str, Any],
        state: Any,
        stateful: bool,
    ) -> None:
        self.signature, self.device = signature, device
        self._values, self._state, self._stateful = values, state, stateful
        self._asked: set[str] = set()

    def get_tensor(self, slot: str) -> Any:
        """Return an argument of the operator, which is read only."""
        index = self.signature.op.schema.index
        if slot not in index or self.signature.op.slots[index[slot]].kind == "attribute":
            known = [s.name for s in self.signature.op.slots if s.is_tensor]
            raise self.signature.error(
                f"there is no tensor {slot!r}", expected=known, hint=nearest(slot, known)
            )
        self._asked.add(slot)
        return self._values.get(slot)

    def get_output(self, slot: str = RESULT) -> Any:
        """Return the result: to be written by a forward task, read only in a backward task."""
        found = [s for s in self.signature.slots if s.role == "output" and s.of == slot]
        if not found:
            what = "reads no result" if slot == RESULT else f"has no output {slot!r}"
            raise self.signature.error(
                f"this task {what}",
                expected="a forward task, or a backward task registered with output=True",
            )
        self._asked.add(found[0].name)
        return self._values[found[0].name]

    def get_gradient(self, slot: str) -> Any:
        """Return the gradient of the result, "out", which is read only, or where that of an
        argument is to be written. ArgumentError for an argument that has none.
        """
        found = self.signature.gradient_of(slot) if not self._is_unbound(slot) else None
        if found is None:
            return None
        self._asked.add(found.name)
        return self._values[found.name]

    def get_argument(self, name: str) -> Any:
        """Return an attribute or a number."""
        op = self.signature.op
        known = [s.name for s in op.slots if s.kind not in ("tensor", "tensors")]
        if name not in known:
            raise self.signature.error(
                f"there is no argument {name!r}", expected=known, hint=nearest(name, known)
            )
        self._asked.add(name)
        return self._values.get(name)

    def get_per_device_state(self) -> Any:
        """Return what the init task made for this device, which is read only."""
        if not self._stateful:
            raise self.signature.error(
                "there is no state", expected="an init task, registered before this one"
            )
        return self._state

    @property
    def stream(self) -> torch.cuda.Stream | None:
        """The CUDA stream that the task is to launch on; None on the CPU."""
        if self.device.kind != "cuda":
            return None
        return torch.cuda.current_stream(torch.device(self.device))

    @property
    def handle(self) -> int | None:
        """The cuBLAS handle of device and stream, as an address; None on the CPU."""
        if self.device.kind != "cuda":
            return None
        with torch.cuda.device(torch.device(self.device)):
            found: int = torch.cuda.current_blas_handle()  # type: ignore[no-untyped-call]
        return found

    @property
    def asks_to_write(self) -> bool:
        """Whether the task asked for anything that it is to write."""
        return any(slot.name in self._asked for slot in self.signature.writes)

    def check_asked(self) -> None:
        """Report what the task declares and did not ask for: IRError for what it is to write, a
        MetaWarning for what it reads in vain.

        Arguments, and in a backward task the operator's tensors, are there anyway.
        """
        for slot in self.signature.slots:
            if slot.name in self._asked or slot.role == "argument":
                continue
            title = f"the {self.signature.phase} task of {self.signature.op.name}"
            if slot.access != "RO":
                raise IRError(
                    f"{title} never asked for {slot.name!r}, which it is to write",
                    op=self.signature.op.name,
                    expected="get_output() or get_gradient(slot) of each slot that is written",
                    found=f"asked for {sorted(self._asked)}",
                )
            if self.signature.phase == "forward" or slot.slot is None:
                warnings.warn(
                    f"{title} never asked for {slot.name!r}, which it declares",
                    MetaWarning,
                    stacklevel=2,
                )

    def _is_unbound(self, slot: str) -> bool:
        """Whether an optional argument holds nothing in this call."""
        index, args = self.signature.op.schema.index, self.signature.args
        return args is not None and slot in index and args[index[slot]] is None
