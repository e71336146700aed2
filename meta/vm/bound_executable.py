"""A program whose inputs are bound: parameters, which CUDA graphs use where they lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from torch import Tensor

from meta.runtime.buffer_replacement import replace_buffer
from meta.runtime.ndarray import ndarray
from meta.vm.compilation import LoweredProgram
from meta.vm.run.workspace import Workspace

InputAdapter = Callable[[Tensor], Tensor]
addresses = partial(map, Tensor.data_ptr)
"""The addresses of tensors."""


class BoundExecutable:
    """What runs a program on its bound inputs, which is told if they moved.

    Layers of one kind have one program. Where each has a memory of its own, as until its gradient
    has run, each has its parameters where they were at the step before.
    """

    def __init__(
        self,
        lowered: LoweredProgram,
        workspace: Workspace | None,
        bound: Sequence[Tensor],
        fits: Sequence[InputAdapter],
    ) -> None:
        self._fits = fits
        self.arrays = arrays_of(bound, fits)
        self.executable = replace(lowered, arrays=self.arrays).executable(workspace)
        self._addresses: list[int] | None = None

    def follow(self, bound: Sequence[Tensor]) -> None:
        """Look where the inputs are. One that is where it was lies there as it did: that is
        guarded.
        """
        found = list(addresses(bound))
        if found == self._addresses:
            return
        new = [a.tensor for a in arrays_of(bound, self._fits)]
        for array, tensor in zip(self.arrays, new, strict=True):
            if array.tensor.data_ptr() != tensor.data_ptr():
                replace_buffer(array, tensor)
        # A copy of one is the copy for this call.
        self._addresses = found if found == list(addresses(new)) else None


def arrays_of(bound: Sequence[Tensor], fits: Sequence[InputAdapter]) -> list[ndarray]:
    """Return bound inputs as a program takes them."""
    return [ndarray(fit(t).detach()) for fit, t in zip(fits, bound, strict=True)]
