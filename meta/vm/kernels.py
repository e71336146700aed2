"""From the names of kernels to kernels: dispatch, fusion, and one go of compilation for all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from meta.base.device import Device
from meta.dialect.core import DialectOp, OpEnv, compile_together, dispatch, only
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.failure import building
from meta.ir import Function
from meta.ir.operators import resolve_op
from meta.op.core.op import Op
from meta.vm.by_extents import ByExtents, ForAllExtents
from meta.vm.code import FusedRef, Kernel, KernelRef


def bind_kernels(
    kernels: Sequence[Kernel], functions: Mapping[str, Function], device: Device
) -> tuple[OpEnv, ...]:
    """Return the kernels, compiled, in order; ``functions`` are the fused ones by name.

    Raises DispatchError if the dialect that is named does not accept a call, and UnknownName for an
    operator that does not exist.
    """
    envs = [_find(kernel, functions, device) for kernel in kernels]
    compile_together(envs)
    return tuple(_for_all_extents(*pair, device) for pair in zip(envs, kernels, strict=True))


def _for_all_extents(env: OpEnv, kernel: Kernel, device: Device) -> OpEnv:
    """Let a kernel that serves all extents allocate its results; return others as they are."""
    if not env.polymorphic or not isinstance(kernel, KernelRef):
        return env
    run = ForAllExtents(_base(kernel), env.run, kernel, device)
    workspace = env.workspace_bytes
    made = OpEnv(run, allocates=True, dialect_op=env.dialect_op, workspace=workspace)
    made.kept_as(env)
    return made


def _find(kernel: Kernel, functions: Mapping[str, Function], device: Device) -> OpEnv:
    if isinstance(kernel, FusedRef):
        function = functions[kernel.function]
        with building(kernel.function, function.type, kernel.dialect):
            return DIALECTS[kernel.dialect].fused_kernel(function, device)
    op = resolve_op(kernel.operator)
    base = _base(kernel)
    with only(op.dialect.name) if isinstance(op, DialectOp) else nullcontext():
        if kernel.is_static or isinstance(op, DialectOp):
            env = dispatch(base.call_values(kernel.args, device))
            # Of extents that are not known the bounds of indices are not, either.
            if kernel.is_static or (env.polymorphic and base.indices is None):
                return env
        return OpEnv(ByExtents(base, kernel, device), allocates=True)


def _base(kernel: KernelRef) -> Op:
    op = resolve_op(kernel.operator)
    return op.base if isinstance(op, DialectOp) else op  # type: ignore[return-value]
