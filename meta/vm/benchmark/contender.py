"""`Contender`: a kernel that may run a workload, called as measuring needs it, and `Reference`: the
first one that runs, with whose results those of all others are compared.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from meta.base import config
from meta.base.dtype import FROM_TORCH, REAL_OF, TO_TORCH, TOLERANCE
from meta.base.errors import MetaError
from meta.dialect.core import DIALECTS, OpEnv, Unsupported
from meta.dialect.core.backend_errors import summary
from meta.dialect.core.dispatch import answer
from meta.dialect.core.preference import Config, current
from meta.ir import Function, TensorType
from meta.runtime.allocate import allocator
from meta.runtime.array_key import array_key
from meta.vm.benchmark.interleave import Call
from meta.vm.benchmark.workload import FLOATS, Copies, Workload, random_arguments
from meta.vm.eager.kernel_contracts import contract_checked, results_of


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

    def results(self, workload: Workload, values: Sequence[Any]) -> list[torch.Tensor]:
        """Run once; return the results, then what was written of ``values``.

        Raises what the kernel raises, and BackendError for a broken promise.
        """
        env = self.env
        assert env is not None
        run = contract_checked(env, workload.name, workload.outputs, workload.written)
        outs = () if env.allocates else [_empty(t, workload) for t in workload.outputs]
        found = run(*values, *outs)
        if workload.device.kind == "cuda":
            torch.cuda.synchronize(workload.device.ordinal)
        results = results_of(found) if env.allocates else outs
        return [*results, *(values[place] for place in workload.written)]

    def calls(self, workload: Workload, copies: Copies, how: str, count: int) -> list[Call]:
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
        if how == "eager" and workload.device.kind == "cuda" and not env.allocates:
            keys = (array_key(t.static_shape, t.dtype, workload.device) for t in workload.outputs)
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


def _empty(type_: Any, workload: Workload) -> torch.Tensor:
    return torch.empty(type_.static_shape, dtype=TO_TORCH[type_.dtype], device=str(workload.device))


def kernel_of(workload: Workload, dialect: str, config: Config, *, eager: bool) -> OpEnv:
    """Return a dialect's kernel of a workload; Unsupported if it refuses. It is compiled when its
    ``run`` is first asked for. eager: whether it is for eager calls.

    Raises whatever the dialect raises while it makes one.
    """
    if isinstance(workload.what, Function):
        env: OpEnv = DIALECTS[dialect].fused_kernel(workload.what, workload.device)
        env = env.configured(config)
    else:
        dialect_op = DIALECTS[dialect].ops[workload.what.op.name]
        found = answer(dialect_op, workload.what, current(), config, eager=eager)
        if found.env is None:
            raise Unsupported(found.reason)
        env = found.env
    return env


def reason_of(error: Exception) -> str:
    """Return what an error says, in one line."""
    if isinstance(error, MetaError):
        return error.what if error.found is None else f"{error.what}: {error.found}"
    return summary(error)


@dataclass(eq=False, slots=True)
class Reference:
    """What all contenders are given, as it is before a call, and what has to come out of it: the
    results, then the arguments that are written.
    """

    contender: Contender
    values: list[Any]
    expected: list[torch.Tensor]

    def copied(self) -> list[Any]:
        """Return the arguments in memory of their own."""
        return [v.clone() if isinstance(v, torch.Tensor) else v for v in self.values]

    def call(self, contender: Contender, workload: Workload) -> Call:
        """Return a call of a contender's kernel on arguments of its own."""
        env = contender.env
        assert env is not None
        outs = () if env.allocates else self.expected[: len(workload.outputs)]
        return partial(env.run, *self.copied(), *map(torch.empty_like, outs))

    def check(self, contender: Contender, workload: Workload) -> None:
        """Refuse a contender whose results are not these."""
        try:
            found = contender.results(workload, self.copied())
        except Exception as error:
            contender.refuse(f"fails: {reason_of(error)}")
            return
        wrong = None if workload.random else difference(found, self.expected)
        if wrong is not None:
            contender.refuse(f"is wrong, if {self.contender.dialect} is right: {wrong}")


def reference_of(contender: Contender, workload: Workload) -> Reference | None:
    """Run the first contender on arguments of which its results are finite; None, and it is
    refused, if it cannot be run at all.
    """
    found: Reference | None = None
    failure: Exception | None = None
    makes_floats = any(isinstance(v, TensorType) and "float" in v.dtype for v in workload.values)
    for floats in FLOATS if makes_floats else FLOATS[:1]:
        values = random_arguments(workload, floats)
        one = Reference(contender, values, [])
        try:
            one.expected = contender.results(workload, one.copied())
        except Exception as error:
            failure = error
            continue
        found = found or one
        if all(_is_finite(t) for t in one.expected):
            return one
    if found is None:
        assert failure is not None
        contender.refuse(f"fails: {reason_of(failure)}")
    return found


def _is_finite(tensor: torch.Tensor) -> bool:
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        return True
    return bool(tensor.isfinite().all())


TF32 = TOLERANCE["float16"]
"""The tolerance of float32 where factors may be rounded to 10 bits of mantissa."""
SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}
"""Integers of the same bits as those of which torch has no comparison."""


def difference(
    found: Sequence[torch.Tensor], expected: Sequence[torch.Tensor], slack: float = 1.0
) -> str | None:
    """Return how results differ by more than ``slack`` times the tolerance of their dtype, None if
    they do not.

    That is |a - b| <= atol * max(1, largest |b|) + rtol * |b|: the rounding of a long sum goes with
    the size of what is summed, which is about that of the largest result, and not with an element
    in which the terms cancel. NaN equals NaN. Integers and bools are equal.
    """
    for place, (a, b) in enumerate(zip(found, expected, strict=True)):
        if a.shape != b.shape or a.dtype != b.dtype:
            return f"result {place} is {_text(a)}, not {_text(b)}"
        wrong = _apart(a, b, slack)
        count = int(wrong.sum())
        if count:
            at = tuple(wrong.nonzero()[0].tolist())
            return (
                f"result {place} is {a[at].item()} at {list(at)}, where {b[at].item()} is expected;"
                f" {count} of {a.numel()} elements differ"
            )
    return None


def _apart(a: torch.Tensor, b: torch.Tensor, slack: float) -> torch.Tensor:
    """Return which elements of two tensors of one type differ by more than rounding."""
    dtype = FROM_TORCH[a.dtype]
    if not (a.is_floating_point() or a.is_complex()):
        signed = SIGNED.get(a.dtype, a.dtype)
        return a.view(signed) != b.view(signed)
    rtol, atol = (slack * bound for bound in tolerance(dtype, a.is_cuda))
    if not a.is_complex():
        wide = torch.float64 if a.dtype is torch.float64 else torch.float32
        a, b = a.to(wide), b.to(wide)
    sizes = b.abs()
    largest = max(float(sizes.nan_to_num(0, 0, 0).max()), 1.0) if sizes.numel() else 1.0
    same = (a == b) | (a.isnan() & b.isnan())
    return ~(same | (sizes.isfinite() & ((a - b).abs() <= atol * largest + rtol * sizes)))


def tolerance(dtype: str, is_cuda: bool) -> tuple[float, float]:
    """Return (rtol, atol) of a floating point or complex dtype."""
    dtype = REAL_OF.get(dtype, dtype)
    if dtype == "float32" and is_cuda and config.get("META_TF32"):
        return TF32
    return TOLERANCE.get(dtype, (0.25, 0.25))  # of float8: one unit in the last place


def _text(tensor: torch.Tensor) -> str:
    return f"{FROM_TORCH[tensor.dtype]}{list(tensor.shape)}"
