"""The debugger: what each instruction of a program was given and what it made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from meta.base.html import fragment, table, tag
from meta.base.source import Span
from meta.runtime.ndarray import ndarray
from meta.vm.compiler.kernels import BoundProgram
from meta.vm.compiler.launch_sites import LaunchSite
from meta.vm.run.observers import observed, operands


@dataclass(frozen=True, slots=True)
class DebugStep:
    """One executed instruction.

    Attributes
    ----------
    inputs: copies of what it read, before it ran: arrays, and numbers given at run time.
    outputs: copies of what it made: its own results, then the arguments that it wrote in place.
    input_names, output_names: the program's parameters by name, other values by register.
    """

    site: LaunchSite
    inputs: tuple[Any, ...]
    outputs: tuple[ndarray, ...]
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]

    @property
    def operator(self) -> str:
        """The name of the base operator, or of the fused function."""
        return self.site.operator

    @property
    def dialect(self) -> str:
        """The dialect whose kernel ran."""
        return self.site.dialect

    @property
    def span(self) -> Span | None:
        """The user's line."""
        return self.site.span

    @property
    def has_nan(self) -> bool:
        """Whether an output has a NaN."""
        return any(bool(o.tensor.isnan().any()) for o in self.outputs)

    def __str__(self) -> str:
        outs = ", ".join(map(_described, self.output_names, self.outputs))
        args = ", ".join(map(_described, self.input_names, self.inputs))
        nan = "  NaN!" if self.has_nan else ""
        line = f"  # {self.span}" if self.span else ""
        name = ".".join(filter(None, (self.dialect, self.operator)))
        return f"{outs or '()'} = {name}({args}){nan}{line}"


class DebugRun(list[DebugStep]):
    """The executed instructions in order; prints one line each.

    Attributes
    ----------
    nan: the step at which the run stopped because it made the first NaN, or None.
    """

    def __init__(self, steps: Sequence[DebugStep], nan: DebugStep | None) -> None:
        super().__init__(steps)
        self.nan = nan

    def __str__(self) -> str:
        return "\n".join(map(str, self))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        rows = [
            (
                ", ".join(map(_described, step.output_names, step.outputs)),
                ".".join(filter(None, (step.dialect, step.operator))),
                ", ".join(map(_described, step.input_names, step.inputs)),
                tag("b", "NaN") if step.has_nan else "",
                step.span or "",
            )
            for step in self
        ]
        return fragment(table(("made", "kernel", "of", "", "line"), rows, code=(0, 1, 2, 4)))


class _FirstNaN(Exception):
    """Ends a run."""


def debug(program: BoundProgram, arguments: list[torch.Tensor], stop_at_nan: bool) -> DebugRun:
    """Run a program once and keep copies of all that its kernels read and make."""
    code = program.code
    steps: list[DebugStep] = []
    parameters = [name for name, _ in code.params]

    def names(site: LaunchSite, registers: Sequence[int]) -> tuple[str, ...]:
        known = parameters if site.function == code.entry else ()
        return tuple((known[r] if r < len(known) else "") or f"r{r}" for r in registers)

    def observer(site: LaunchSite, run: Callable[..., Any], values: tuple[Any, ...]) -> Any:
        i = site.instruction
        inputs = tuple(map(_copy, values[: len(i.args)]))
        result = run(*values)
        outputs = tuple(map(_copy, operands(site, values, result)[1]))
        written = [r for r in i.args if r in i.written]
        step = DebugStep(
            site, inputs, outputs, names(site, i.args), names(site, (*i.outs, *written))
        )
        steps.append(step)
        if stop_at_nan and step.has_nan:
            raise _FirstNaN
        return result

    try:
        observed(program, observer).run(arguments)
    except _FirstNaN:
        return DebugRun(steps, steps[-1])
    return DebugRun(steps, None)


def _copy(value: Any) -> Any:
    return ndarray(value.clone()) if isinstance(value, torch.Tensor) else value


def _described(name: str, value: Any) -> str:
    if isinstance(value, ndarray):
        return f"{name}: {value.dtype}[{', '.join(map(str, value.shape))}]"
    return f"{name}: {value!r}"
