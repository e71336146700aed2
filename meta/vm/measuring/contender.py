"""`Contender`: a kernel that may run a subject, made and called as measuring needs it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from meta.base.dtype import TO_TORCH
from meta.base.errors import MetaError
from meta.dialect.core import DIALECTS, OpEnv, Unsupported
from meta.dialect.core.dispatch import answer
from meta.dialect.core.failure import summary
from meta.dialect.core.preference import Config, current
from meta.ir import Function
from meta.runtime.allocate import allocator
from meta.runtime.array_key import array_key
from meta.vm.eager.kernel_contracts import promises_checked, results_of
from meta.vm.measuring.arguments import Copies
from meta.vm.measuring.clocks import Call
from meta.vm.measuring.subject import Subject


@dataclass(eq=False, slots=True)
class Contender:
    """A kernel, or why there is none.

    Attributes
    ----------
    dialect, config: whose it is, and how it is launched. env: the kernel, compiled. refused: why it
    does not take part, empty if it does. compile: milliseconds that making it took.
    """

    dialect: str
    config: Config = ()
    env: OpEnv | None = None
    refused: str = ""
    compile: float | None = None

    def refuse(self, reason: str) -> None:
        """Leave the race."""
        self.env, self.refused = None, reason

    def results(self, subject: Subject, values: Sequence[Any]) -> list[torch.Tensor]:
        """Run once; return the results, then what was written of ``values``.

        Raises what the kernel raises, and BackendError for a broken promise.
        """
        env = self.env
        assert env is not None
        run = promises_checked(env, subject.name, subject.outputs, subject.written)
        outs = () if env.allocates else [_empty(t, subject) for t in subject.outputs]
        found = run(*values, *outs)
        if subject.device.kind == "cuda":
            torch.cuda.synchronize(subject.device.ordinal)
        results = results_of(found) if env.allocates else outs
        return [*results, *(values[place] for place in subject.written)]

    def calls(self, subject: Subject, copies: Copies, how: str, count: int) -> list[Call]:
        """Return ``count`` calls of the kernel, which take the copies in turn.

        As in a compiled program, what a kernel fills is there already. An eager call on CUDA
        allocates it; on the CPU one race decides for both.
        Results are held until their copy's turn comes again, so that the memory of those which the
        kernel allocates is taken in turn, too.
        """
        env = self.env
        assert env is not None
        run, held = env.run, copies.held
        pairs = list(copies.pairs())
        makers: list[Callable[[], torch.Tensor]] = []
        if how == "eager" and subject.device.kind == "cuda" and not env.allocates:
            keys = (array_key(t.static_shape, t.dtype, subject.device) for t in subject.outputs)
            makers = list(map(allocator, keys))

        def call_on(place: int) -> Call:
            values, outs = pairs[place]
            given = (*values, *(outs if not env.allocates and not makers else ()))
            if makers:
                return partial(_allocating, run, given, makers, held, place)
            return partial(_keeping, run, given, held, place)

        return [call_on(i % copies.count) for i in range(count)]


def _keeping(run: Callable[..., Any], given: Any, held: list[Any], place: int) -> None:
    held[place] = run(*given)


def _allocating(
    run: Callable[..., Any], given: Any, makers: Any, held: list[Any], place: int
) -> None:
    outs = [make() for make in makers]
    run(*given, *outs)
    held[place] = outs


def _empty(type_: Any, subject: Subject) -> torch.Tensor:
    return torch.empty(type_.static_shape, dtype=TO_TORCH[type_.dtype], device=str(subject.device))


def kernel_of(subject: Subject, dialect: str, config: Config, *, eager: bool) -> OpEnv:
    """Return a dialect's kernel of a subject; Unsupported if it refuses. It is compiled when its
    ``run`` is first asked for. eager: whether it is for eager calls.

    Raises whatever the dialect raises while it makes one.
    """
    if isinstance(subject.what, Function):
        env: OpEnv = DIALECTS[dialect].fused_kernel(subject.what, subject.device)
        env = env.configured(config)
    else:
        dialect_op = DIALECTS[dialect].ops[subject.what.op.name]
        found = answer(dialect_op, subject.what, current(), config, eager=eager)
        if found.env is None:
            raise Unsupported(found.reason)
        env = found.env
    return env


def reason_of(error: Exception) -> str:
    """Return what an error says, in one line."""
    if isinstance(error, MetaError):
        return error.what if error.found is None else f"{error.what}: {error.found}"
    return summary(error)
