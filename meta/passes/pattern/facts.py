"""What the search for patterns knows of a function: worked out when it is first asked for, once for
any number of patterns.
"""

from __future__ import annotations

from functools import cached_property

from meta.ir import DefUse, Function, Module, Var
from meta.ir.printer import variable_names
from meta.passes.buffers import Buffers, Summaries


class Facts:
    """Facts of one function of a module (None: nothing is known of other functions)."""

    def __init__(self, function: Function, module: Module | None) -> None:
        self.function, self.module = function, module

    @cached_property
    def buffers(self) -> Buffers:
        """Which values may share memory."""
        summaries = None if self.module is None else Summaries(self.module)
        return Buffers(self.function, summaries)

    @cached_property
    def uses(self) -> DefUse:
        """Who uses what."""
        return DefUse(self.function)

    @cached_property
    def names(self) -> dict[Var, str]:
        """The names under which variables are printed."""
        return variable_names(self.function)
