"""The instructions of a program that launch kernels, and which of them it was that failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meta.base.source import Span
from meta.vm.compiler.bytecode import Invoke
from meta.vm.compiler.code import Code, Kernel

SITES = "__meta_sites__"
"""The global of a generated function with the sites of its lines, by line."""


@dataclass(frozen=True, slots=True)
class LaunchSite:
    """An instruction that launches a kernel: its number in the program, and where it is."""

    number: int
    function: str
    instruction: Invoke
    kernel: Kernel

    @property
    def dialect(self) -> str:
        """The name of the dialect; empty if that is decided when the program runs."""
        return self.kernel.dialect

    @property
    def operator(self) -> str:
        """The name of the base operator, or of the fused function."""
        return self.kernel.base

    @property
    def span(self) -> Span | None:
        """The user's line."""
        return self.instruction.span

    def record(self) -> dict[str, Any]:
        """Return this as values that JSON has."""
        return {
            "instruction": self.number,
            "function": self.function,
            "dialect": self.dialect,
            "operator": self.operator,
            "line": None if self.span is None else str(self.span),
        }


def launch_sites(code: Code) -> list[LaunchSite]:
    """Return the instructions that launch kernels, in the order of the code."""
    found: list[LaunchSite] = []
    for name, function in code.functions.items():
        for i in function.instructions():
            if isinstance(i, Invoke):
                found.append(LaunchSite(len(found), name, i, code.kernels[i.kernel]))
    return found


def site_of(error: BaseException, *, nearest: bool = False) -> LaunchSite | None:
    """Return what was launched when an error was raised, by the generated function in its trace;
    ``nearest``: or what was to be launched next, or was last.
    """
    trace = error.__traceback__
    while trace is not None:
        sites: dict[int, LaunchSite] = trace.tb_frame.f_globals.get(SITES, {})
        if trace.tb_lineno in sites:
            return sites[trace.tb_lineno]
        if nearest and sites:
            return sites[min((n for n in sites if n > trace.tb_lineno), default=max(sites))]
        trace = trace.tb_next
    return None
