"""The memory that a forward program and that of its gradient have in turn.

What the forward program saves stays in its arena, where the gradient's program reads it, and uses
the memory of what it has read for the last time. The gradients that it returns lie there, too. So
the two do not run again in this memory while somebody has what was saved, or a gradient: a forward
pass takes memory that is free, or else new memory.
"""

from __future__ import annotations

from meta.base.device import Device
from meta.base.errors import GradientError
from meta.frontend.dynamo.saved_tensors import Bundle, LastingToken
from meta.vm.bound_executable import BoundExecutable
from meta.vm.run.workspace import LentTensors, Workspace

IDLE = 16
"""After how many forward passes memory that none of them took is given back, but for the first."""


class TrainingMemory:
    """Memory of a forward pass and its gradient.

    Attributes
    ----------
    programs: what runs in it, by the roles of the graphs. bundle: what the forward program
    saved last. token: what autograd has for that. gradients: the results of the gradient's program
    that are lent. is_spent: whether the gradient's program has used the memory of what was saved.
    """

    def __init__(self, device: Device) -> None:
        self.workspace = Workspace(device)
        self.programs: dict[str, BoundExecutable] = {}
        self.bundle = Bundle([], self)
        self.token = LastingToken(self.bundle)
        self.gradients = LentTensors(())
        self.is_spent = False
        self.idle = 0

    def spend(self) -> None:
        """Note that the gradient's program uses the memory of what was saved from now on. Raises
        GradientError if one has done so since the last forward pass.
        """
        if self.is_spent:
            raise GradientError(
                "what a forward pass saved is there no more: its gradient was computed",
                hint="backward(retain_graph=True) the first time",
            )
        self.is_spent = True


class MemoryPool:
    """The memory of a graph and its gradient: as much as there are forward passes that wait for
    their gradient at a time.

    Attributes
    ----------
    copies_gradients: whether gradients are copied out of the memory, since somebody had them beyond
    the next forward pass, as when they are added up: so that they do not hold all of it.
    """

    def __init__(self) -> None:
        self.copies_gradients = False
        self._all: list[TrainingMemory] = []

    def free(self, device: Device) -> TrainingMemory:
        """Return memory in which nobody has anything."""
        found: TrainingMemory | None = None
        for memory in self._all:
            if memory.token.is_out():
                memory.idle = 0
            elif memory.gradients.is_out():
                memory.idle, self.copies_gradients = 0, True
            elif found is None:
                found = memory
            else:
                memory.idle += 1
        if found is None:
            found = TrainingMemory(device)
            self._all.append(found)
        elif len(self._all) > 1:
            self._all = [m for m in self._all if m.idle < IDLE]
        found.idle, found.is_spent = 0, False
        return found

    def first(self, role: str) -> BoundExecutable | None:
        """Return a program of a role that runs in the memory; None if there is none yet."""
        return next((m.programs[role] for m in self._all if role in m.programs), None)
