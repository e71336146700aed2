"""Kernels of a program: from names to kernels by dispatch, fusion and one go of compilation for
all; kernels of extents that are known at run time only; and kernels as artifacts, which are written
and made again.

A kernel by extents is called with a call's tensors and numbers, then the extents that
`KernelRef.unbound` names; it returns fresh tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch

from meta.base import config
from meta.base.call_context import override_context
from meta.base.device import Device
from meta.base.errors import FormatError, IRError
from meta.base.registry import OPERATORS
from meta.dialect.core import Artifact, DialectOp, OpEnv, compile_together, dispatch
from meta.dialect.core.backend_errors import building
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.dialect_op import exact_kernel
from meta.dialect.core.ir_calls import base_op
from meta.dialect.core.preference import current as current_preference
from meta.ir import Function, Module, SymbolicDim, TensorType, TupleType
from meta.ir.operators import resolve_op
from meta.op.core.call import map_tensors, written_positions
from meta.op.core.op import Op
from meta.runtime.allocate import allocator
from meta.runtime.array_key import array_key
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Code, FusedRef, Kernel, KernelRef
from meta.vm.eager.decided_call import DecidedCall
from meta.vm.eager.kernel_contracts import first_fused_run, first_run, is_of_others, results_of


@dataclass(frozen=True, slots=True)
class BoundProgram:
    """A program with its kernels, in the order of the code: all that runs it, but a model's arrays.

    ``module`` returns the program that the code was emitted from, which may have to be read.
    ``preparation`` returns what computes what main is given besides inputs and arrays, which may
    have to be read, too; None if that is nothing.
    """

    code: Code
    kernels: tuple[OpEnv, ...]
    device: Device
    module: Callable[[], Module]
    preparation: Callable[[], Function] | None = None


Shapes = tuple[Any, ...]
"""The shapes of a call's tensors, then its unbound extents."""
REMEMBERED = 1024
"""Combinations of extents for which a kernel remembers what was decided, those met last."""


class ByExtents:
    """What an eager call would do, decided for each combination of extents that is met, under the
    preference that was in force when it was made.
    """

    def __init__(self, op: Op, kernel: KernelRef, device: Device) -> None:
        self.op, self.kernel, self.device = op, kernel, device
        self.unbound = kernel.unbound
        self.preference = current_preference()
        self.plan_of = lru_cache(maxsize=REMEMBERED)(self.plan)

    def __call__(self, *values: Any) -> Any:
        count = len(values) - len(self.unbound)
        plan = self.plan_of(_shapes(values, count))
        result = plan.run(list(values[:count]))
        return tuple([r.tensor for r in result]) if isinstance(result, tuple) else result.tensor

    def plan(self, shapes: Shapes) -> DecidedCall:
        """Decide the call for these extents."""
        args = concrete_args(self.op, self.kernel, shapes)
        call = self.op.call_values(args, self.device)
        if call.callee is None:
            raise IRError(
                "a value that is known while tracing is no operator call", op=self.op.name
            )
        # An observer looks for NaN; the plan is used without one, too.
        with override_context(preference=self.preference), config.override(META_DEBUG_NANS=""):
            # Alias analysis knows what a program's own copies are.
            return DecidedCall(call, strided=False, marks=False)


class ForAllExtents:
    """One kernel for all extents: only its results are allocated anew for each.

    It does not run a call of which an array is empty: the strides of empty arrays are not what
    such kernels are compiled for. Such a call is decided like those of `ByExtents`.
    """

    def __init__(self, op: Op, run: Callable[..., Any], kernel: KernelRef, device: Device) -> None:
        self.op, self.run, self.kernel, self.device = op, run, kernel, device
        self.unbound = kernel.unbound
        self.makers_for = lru_cache(maxsize=REMEMBERED)(self.allocators)
        self.empty = ByExtents(op, kernel, device)

    def __call__(self, *values: Any) -> Any:
        count = len(values) - len(self.unbound)
        makers = self.makers_for(_shapes(values, count))
        if makers is None:
            return self.empty(*values)
        outs = tuple([make() for make in makers])
        self.run(*values[:count], *outs)
        return outs

    def allocators(self, shapes: Shapes) -> tuple[Callable[[], torch.Tensor], ...] | None:
        """Return what allocates the results for these extents; None if an array is empty."""
        call = self.op.call_values(concrete_args(self.op, self.kernel, shapes), self.device)
        if any(0 in t.shape for t in (*call.tensors(), *call.outputs)):
            return None
        keys = (array_key(t.static_shape, t.dtype, self.device) for t in call.outputs)
        return tuple(map(allocator, keys))


def _shapes(values: tuple[Any, ...], count: int) -> Shapes:
    tensors = [v.shape for v in values[:count] if isinstance(v, torch.Tensor)]
    return (*tensors, *values[count:])


def concrete_args(op: Op, kernel: KernelRef, shapes: Shapes) -> tuple[Any, ...]:
    """Return the arguments of a call with its extents at run time."""
    rest = iter(shapes)
    extents: dict[str, int] = {}

    def concrete(type_: TensorType) -> TensorType:
        shape = tuple(next(rest))
        for dim, extent in zip(type_.shape, shape, strict=True):
            if isinstance(dim, SymbolicDim) and dim.name is not None:
                extents[dim.name] = extent
        return type_.with_shape(shape)

    args = map_tensors(op, kernel.args, concrete)
    extents.update(zip(kernel.unbound, rest, strict=True))
    found: tuple[Any, ...] = evaluated(args, extents)
    return found


def evaluated(value: Any, extents: Mapping[str, int]) -> Any:
    """Return an argument, or nested tuples of them, with numbers for symbolic dimensions."""
    if isinstance(value, tuple):
        return tuple(evaluated(v, extents) for v in value)
    return value.evaluate(extents) if isinstance(value, SymbolicDim) else value


def find_kernels(
    kernels: Sequence[Kernel], functions: Mapping[str, Function], device: Device
) -> list[OpEnv]:
    """Return the kernels in order, not compiled yet; raises as `bind_kernels`."""
    return [_find(kernel, functions, device) for kernel in kernels]


def bind_kernels(
    kernels: Sequence[Kernel], functions: Mapping[str, Function], device: Device
) -> tuple[OpEnv, ...]:
    """Return the kernels, compiled, in order; ``functions`` are the fused ones by name.

    Raises DispatchError if the dialect that is named does not accept a call, and UnknownName for an
    operator that does not exist.
    """
    envs = find_kernels(kernels, functions, device)
    compile_together(envs)
    for env in envs:  # now, as `init` may do what a CUDA graph cannot hold
        if env.state is not None:
            env.state.get(device)
    pairs = list(zip(envs, kernels, strict=True))
    envs = [_checked_at_first(env, kernel, functions, device) for env, kernel in pairs]
    return tuple(_for_all_extents(*pair, device) for pair in zip(envs, kernels, strict=True))


def _checked_at_first(
    env: OpEnv, kernel: Kernel, functions: Mapping[str, Function], device: Device
) -> OpEnv:
    """Let a kernel that is not of this package be checked in its first run."""
    if not is_of_others(env) or config.get("META_VERIFY"):
        return env
    if isinstance(kernel, KernelRef):
        return env.launched_by(first_run(env, _base(kernel).call_values(kernel.args, device)))
    function = functions[kernel.function]
    return env.launched_by(first_fused_run(env, function, device))


def _for_all_extents(env: OpEnv, kernel: Kernel, device: Device) -> OpEnv:
    """Let a kernel that serves all extents allocate its results; return others as they are."""
    if not env.polymorphic or not isinstance(kernel, KernelRef) or kernel.fills:
        return env
    run = ForAllExtents(_base(kernel), env.run, kernel, device)
    workspace = env.workspace_bytes
    made = OpEnv(run, allocates=True, dialect_op=env.dialect_op, workspace=workspace)
    made.kept_as(env)
    made.state = env.state
    return made


def adapt_results(
    env: OpEnv, kernel: Kernel, call: bc.Invoke, functions: Mapping[str, Function], device: Device
) -> OpEnv:
    """Return a kernel that is given its results, or returns them, as its call in a program has it.

    A dialect may choose another kernel than the one for which the program was emitted: on another
    processor another library is the faster one.
    """
    if env.allocates != call.fills:
        return env
    run, count = env.run, len(call.outs)
    if call.fills:

        def called(*values: Any) -> Any:
            results = results_of(run(*values[: len(values) - count]))
            for out, result in zip(values[len(values) - count :], results, strict=True):
                out.copy_(result)
    else:
        if isinstance(kernel, KernelRef):
            types: Sequence[Any] = _base(kernel).call_values(kernel.args, device).outputs
        else:
            result = functions[kernel.function].result_type
            types = result.fields if isinstance(result, TupleType) else (result,)
        makers = [allocator(array_key(t.static_shape, t.dtype, device)) for t in types]

        def called(*values: Any) -> Any:
            outs = tuple([make() for make in makers])
            run(*values, *outs)
            return outs

    made = OpEnv(called, not call.fills, dialect_op=env.dialect_op, workspace=env.workspace_bytes)
    made.kept_as(env)
    made.state = env.state
    return made


def _find(kernel: Kernel, functions: Mapping[str, Function], device: Device) -> OpEnv:
    if isinstance(kernel, FusedRef):
        function = functions[kernel.function]
        with building(kernel.function, function.type, kernel.dialect):
            made: OpEnv = DIALECTS[kernel.dialect].fused_kernel(function, device)
            return made
    op = resolve_op(kernel.operator)
    base = _base(kernel)
    with exact_kernel(op) if isinstance(op, DialectOp) else nullcontext():
        if kernel.is_static or isinstance(op, DialectOp):
            env = dispatch(base.call_values(kernel.args, device))
            # Of extents that are not known the bounds of indices are not, either.
            if kernel.is_static or (env.polymorphic and base.indices is None):
                return env
        return OpEnv(ByExtents(base, kernel, device), allocates=True)


def _base(kernel: KernelRef) -> Op:
    op = base_op(resolve_op(kernel.operator))
    assert op is not None
    return op


def artifact_records(kernels: Sequence[OpEnv]) -> list[dict[str, Any] | None]:
    """Return, for each kernel, the name of its file and what else is needed; None without one."""
    return [
        None if k.artifact is None else {"file": k.artifact.file.name, **k.artifact.record}
        for k in kernels
    ]


def restored(
    code: Code, number: int, record: dict[str, Any], folder: Path, device: Device
) -> OpEnv:
    """Return a kernel from its record and its file in ``folder``; FormatError if damaged."""
    kernel = code.kernels[number]
    dialect = kernel.dialect
    name = record.get("file")
    if dialect not in DIALECTS or not isinstance(name, str) or name != Path(name).name:
        raise FormatError(f"the record of the kernel {kernel.name} is damaged", found=record)
    rest = {key: value for key, value in record.items() if key != "file"}
    artifact = Artifact(folder / name, rest)
    try:
        made = DIALECTS[dialect].restore(artifact)
    except (ValueError, OSError, RuntimeError) as error:  # of files, and of whoever loads them
        raise FormatError(
            f"the kernel {kernel.name} cannot be loaded: {error}",
            hint="meta.vm.load(folder, rebuild=True) compiles all kernels anew",
        ) from None
    env = OpEnv(made.run, allocates=False, workspace=made.workspace)
    env.artifact = artifact
    if not isinstance(kernel, KernelRef):
        return env
    base = OPERATORS[kernel.base]
    if not kernel.is_static and not kernel.fills:
        run = ForAllExtents(base, made.run, kernel, device)
        env = OpEnv(run, allocates=True, workspace=made.workspace)
        env.artifact = artifact
        return env
    if base.schema.written and kernel.is_static:
        call = base.call_values(kernel.args, device)
        env.counts_writes(written_positions(call))
    return env
