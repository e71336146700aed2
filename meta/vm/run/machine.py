"""The machine: runs linked functions on a stack of frames.

A frame is the registers of one activation. Between two decisions (a branch, a call, a return) a
function is a `Segment`: a Python function of the registers. Calls do not recurse in Python: frames
that wait are on a list, and a tail call leaves none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meta.base import config
from meta.base.errors import IRError
from meta.base.source import Span
from meta.vm.compiler.bytecode import Register

Registers = list[Any]


class Segment:
    """What runs on the registers, and what comes after it, by the value that it returns."""

    __slots__ = ("exit", "run")

    def __init__(self) -> None:
        self.run: Callable[[Registers], Any]
        self.exit: Goto | Fork | Enter | Leave


class Routine:
    """A linked function.

    Attributes
    ----------
    start: its first segment. params: number of parameters.
    template: registers with constants and tensors of the function's memory in place.
    """

    __slots__ = ("name", "params", "start", "template")

    def __init__(self, name: str, params: int) -> None:
        self.name, self.params = name, params
        self.start: Segment
        self.template: Registers

    def frame(self, args: Sequence[Any]) -> Registers:
        """Return the registers of a new activation."""
        registers = self.template.copy()
        registers[: self.params] = args
        return registers


@dataclass(slots=True)
class Goto:
    """Go on with a segment."""

    target: Segment


@dataclass(slots=True)
class Fork:
    """Go on with one of two segments, by the value."""

    then: Segment
    otherwise: Segment


@dataclass(slots=True)
class Enter:
    """Call ``routine`` with the value, its arguments; without a routine, the value is a closure and
    further arguments. ``after`` is None for a tail call.
    """

    routine: Routine | None
    out: Register = -1
    after: Segment | None = None
    span: Span | None = None


@dataclass(slots=True)
class Leave:
    """Return the value."""


def run(routine: Routine, args: list[Any]) -> Any:
    """Run a function on torch tensors; return its result, a tensor or a nested tuple of them.

    Raises IRError if more than META_MAX_DEPTH calls wait for one another.
    """
    max_depth: int = config.get("META_MAX_DEPTH")
    # Frames that wait for a result: registers, where the result goes, what comes then.
    stack: list[tuple[Registers, Register, Segment]] = []
    registers = routine.frame(args)
    segment = routine.start
    while True:
        value = segment.run(registers)
        exit = segment.exit
        if isinstance(exit, Fork):
            segment = exit.then if value else exit.otherwise
        elif isinstance(exit, Enter):
            callee = exit.routine
            if callee is None:
                closure, value = value
                callee, value = closure.routine, closure.captured + value
                del closure
            if exit.after is not None:
                if len(stack) >= max_depth:
                    raise IRError(
                        f"the program recurses more than {max_depth} frames deep",
                        hint="does the recursion end? META_MAX_DEPTH is the limit; a call whose "
                        "result is the function's own result takes no frame",
                        span=exit.span,
                    )
                stack.append((registers, exit.out, exit.after))
            registers = callee.frame(value)
            segment = callee.start
        elif isinstance(exit, Leave):
            if not stack:
                return value
            registers, out, segment = stack.pop()
            registers[out] = value
        else:
            segment = exit.target
        value = None
