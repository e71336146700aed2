"""Steps: instructions bound to their kernels and registers, each a function of the registers; and
which instruction it was that failed: steps know (`marked`), and the trace of an error says which
ran.

Small arities are written out: a star call costs as much as a small kernel's launch.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import itemgetter
from types import FunctionType
from typing import Any

import torch

from meta.base.errors import BackendError, IRError, MetaError
from meta.base.source import Span
from meta.dialect.core.failure import backend_error, passes
from meta.ir import PRIMITIVES, TensorType
from meta.runtime.shards import own_shard
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.bytecode import Operand, Register
from meta.vm.compiler.code import Kernel
from meta.vm.eager.launch_checks import looker

Registers = list[Any]
Step = Callable[[Registers], None]


def reader(operand: Operand) -> Callable[[Registers], Any]:
    """Return a function that builds the value of an operand."""
    if isinstance(operand, int):
        return lambda regs: regs[operand]
    if all(isinstance(part, int) for part in operand):
        if len(operand) > 1:
            return itemgetter(*operand)  # a loop of C's: a call may return hundreds of results
        return lambda regs: tuple([regs[i] for i in operand])  # type: ignore[index]
    parts = [reader(part) for part in operand]
    return lambda regs: tuple([read(regs) for read in parts])


def setting(out: Register, value: Callable[[Registers], Any]) -> Step:
    """Set a register to what a function returns of the registers."""

    def step(regs: Registers) -> None:
        regs[out] = value(regs)

    return step


def fixed_step(run: Callable[..., Any], values: tuple[Any, ...]) -> Step:
    """Run a kernel on values that are the same at every run."""
    return lambda _: run(*values)


def filling_step(
    run: Callable[..., Any],
    places: tuple[Register, ...],
    fresh: tuple[tuple[Register, Callable[[], torch.Tensor]], ...],
) -> Step:
    """Run a kernel that fills the last of its arguments, some of which are allocated before."""
    if fresh:

        def allocating(regs: Registers) -> None:
            for out, make in fresh:
                regs[out] = make()
            run(*[regs[i] for i in places])

        return allocating
    if len(places) == 2:
        a, b = places
        return lambda regs: run(regs[a], regs[b])
    if len(places) == 3:
        a, b, c = places
        return lambda regs: run(regs[a], regs[b], regs[c])
    return lambda regs: run(*[regs[i] for i in places])


def returning_step(
    run: Callable[..., Any], sources: tuple[Register, ...], outs: tuple[Register, ...]
) -> Step:
    """Run a kernel that returns its results."""
    if len(outs) == 1:
        out = outs[0]

        def one(regs: Registers) -> None:
            result = run(*[regs[i] for i in sources])
            regs[out] = result[0] if result.__class__ is tuple else result

        return one

    def several(regs: Registers) -> None:
        result = run(*[regs[i] for i in sources]) or ()
        for out, value in zip(outs, result, strict=True):
            regs[out] = value

    return several


def plain_step(i: bc.Instruction, device: str) -> Step | None:
    """Return the step of an instruction that neither launches nor allocates; None for others."""
    match i:
        case bc.Move(out, operand):
            return setting(out, reader(operand))
        case bc.GetItem():
            return field_step(i.source, i.index, i.out)
        case bc.ViewTensor(out, source, type_):
            shape = type_.static_shape
            return setting(out, lambda regs: regs[source].view(shape))
        case bc.OwnShard(out, source, _, over, size):
            return setting(out, lambda regs: own_shard(regs[source], over, size))
        case bc.Extent(out, source, axis):
            return setting(out, lambda regs: regs[source].shape[axis])
        case bc.RunPrimitive():
            return primitive_step(i, device)
        case bc.Check():
            return check_step(i.source, i.type, i.span)
        case bc.CheckIndices(source, bounds, span):
            look = looker(bounds, span)
            return lambda regs: look(regs[source])
        case bc.Release():
            return release_step(i.registers)
    return None


def field_step(source: Register, index: int, out: Register) -> Step:
    """Take a field of a tuple."""

    def step(regs: Registers) -> None:
        regs[out] = regs[source][index]

    return step


def primitive_step(i: bc.RunPrimitive, device: str) -> Step:
    """Run a primitive; an error names the user's line."""
    run, read, out = partial(PRIMITIVES[i.name].run, *i.details), reader(i.operands), i.out
    if i.as_tensor:
        return setting(out, lambda regs: torch.tensor(run(*read(regs)), device=device))
    span, source = i.span, i.operands[0] if len(i.operands) == 1 else None

    def one(regs: Registers) -> None:
        try:
            regs[out] = run(regs[source])  # type: ignore[index]
        except MetaError as error:
            error.span = span
            raise

    def several(regs: Registers) -> None:
        try:
            regs[out] = run(*read(regs))
        except MetaError as error:
            error.span = span
            raise

    return one if isinstance(source, int) else several


def check_step(source: Register, type_: TensorType, span: Span | None) -> Step:
    """Raise IRError for a tensor that does not have the known extents of a type."""
    known = tuple((axis, d) for axis, d in enumerate(type_.shape) if isinstance(d, int))

    def step(regs: Registers) -> None:
        shape = regs[source].shape
        if len(shape) != type_.ndim or any(shape[axis] != extent for axis, extent in known):
            raise IRError(
                "a value does not have the extents that the program says",
                expected=type_,
                found=type_.with_shape(tuple(shape)),
                span=span,
            )

    return step


def release_step(registers: tuple[Register, ...]) -> Step:
    """Forget values."""
    if len(registers) == 1:
        (only,) = registers

        def one(regs: Registers) -> None:
            regs[only] = None

        return one

    def several(regs: Registers) -> None:
        for i in registers:
            regs[i] = None

    return several


def guarded(step: Step, written: tuple[Register, ...], constants: frozenset[int], op: str) -> Step:
    """Let a step that writes in place first check that it writes to no constant."""

    check = guard(constants, op)

    def checked(regs: Registers) -> None:
        check(*[regs[i] for i in written])
        step(regs)

    return checked


def guard(constants: frozenset[int], op: str) -> Callable[..., None]:
    """Return a function that raises IRError for tensors in memory of constants."""

    def check(*written: torch.Tensor) -> None:
        if any(buffer(t) in constants for t in written):
            raise IRError("this writes to a constant of the program", op=op)

    return check


def located(step: Step, span: Span | None) -> Step:
    """Let an error of a step name the user's line."""
    if span is None:
        return step

    def attempt(regs: Registers) -> None:
        try:
            step(regs)
        except MetaError as error:
            error.span = span
            raise

    return attempt


def buffer(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor is in; -1 for one without elements."""
    return tensor.untyped_storage().data_ptr() or -1


_SITE = "__meta_site__"
SITES = "__meta_sites__"
"""The global of a function that is written out, with what its lines launch."""


def marked(step: Step, kernel: Kernel, span: Span | None) -> Step:
    """Note on a step what it launches, where `launch_error` finds it; running it costs nothing."""
    step.__dict__[_SITE] = (kernel, span)
    return step


def launch_error(error: Exception) -> BackendError:
    """Return the error to raise from what a kernel of a program raised."""
    site = _site(error)
    if site is None:
        return backend_error(error, "cannot run a program")
    kernel, span = site
    return backend_error(
        error,
        "cannot run a kernel",
        op=kernel.base,
        types=kernel,
        dialect=kernel.dialect or None,
        span=span,
    )


def passed_on(error: Exception) -> bool:
    """Whether what a program raised goes on as it is. What a kernel did wrong names its operator's
    line.
    """
    if isinstance(error, BackendError):
        name_site(error, error.op or "", error.span)
    return passes(error)


def name_site(error: MetaError, op: str, span: Span | None) -> None:
    """Let an error that a program raised name the operator that was run, with the user's line;
    ``op`` and ``span`` if there was none yet.
    """
    site = _site(error)
    if site is not None:
        op, span = site[0].base, site[1]
    error.op = op
    if span is not None:
        if error.span is not None:
            error.note(f"in a program that was called at {error.span}")
        error.span = span


def _site(error: Exception) -> tuple[Kernel, Span | None] | None:
    """Return what was launched when an error was raised, and its line in the user's code."""
    site = None
    trace = error.__traceback__
    while trace is not None and site is None:
        frame = trace.tb_frame
        step = frame.f_locals.get("step")
        if isinstance(step, FunctionType):
            site = step.__dict__.get(_SITE)
        elif SITES in frame.f_globals:
            site = frame.f_globals[SITES].get(trace.tb_lineno)
        trace = trace.tb_next
    return site
