"""`Recipe`: how a program is compiled once more, as it was traced."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import Context
from dataclasses import dataclass

from meta.base.device import Device
from meta.dialect.core import prefer
from meta.dialect.core.preference import unrestricted
from meta.ir import Module
from meta.passes import PassRecord, Pipeline, infer_type
from meta.vm.compiler.code import Code
from meta.vm.compiler.emit import emit
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.static_sizes import of_sizes


@dataclass(frozen=True, slots=True)
class Recipe:
    """The passes of a program, and the context in which they ran: preferences, knobs, levels.

    traced: what they are given. device: where the program runs. bound: what lowers a traced program
    with the passes, or finds it in the program cache.
    """

    context: Context
    passes: Pipeline
    traced: Module
    device: Device
    bound: Callable[[Pipeline, Module, Device], BoundProgram]

    def history(self) -> list[PassRecord]:
        """Run the passes again; return a record of each."""
        self.context.copy().run(self.passes, self.traced)
        return self.passes.history

    def of_sizes(self, extents: Mapping[str, int]) -> BoundProgram:
        """Return the program for these extents of its symbolic dimensions, with its kernels."""
        traced = infer_type(of_sizes(self.traced, extents))
        return self.context.copy().run(self.bound, self.passes, traced, self.device)

    def emitted(self, *preferred: str, traced: Module | None = None) -> tuple[Module, Code]:
        """Return the program and its code as they are where these dialects run what they can,
        whatever was preferred; no kernel is compiled. traced: what is compiled in the place of the
        program.
        """
        return self.context.copy().run(self._emitted, preferred, traced or self.traced)

    def _emitted(self, preferred: tuple[str, ...], traced: Module) -> tuple[Module, Code]:
        with unrestricted(), prefer(*preferred):
            module = self.passes(traced)
            return module, emit(module, self.device)
