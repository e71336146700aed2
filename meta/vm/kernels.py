"""From the names of kernels to kernels: dispatch, fusion, and one go of compilation for all."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import IRError
from meta.dialect.core import DialectOp, OpEnv, compile_together, dispatch, only
from meta.dialect.core.catalog import DIALECTS
from meta.dialect.core.preference import current as current_preference
from meta.ir import Function, TensorType
from meta.ir.operators import resolve_op
from meta.op.core.call import map_tensors
from meta.op.core.op import Op
from meta.vm.code import FusedRef, Kernel, KernelRef
from meta.vm.eager import Plan


def bind_kernels(
    kernels: Iterable[Kernel], functions: Mapping[str, Function], device: Device
) -> tuple[OpEnv, ...]:
    """Return the kernels, compiled, in order; ``functions`` are the fused ones by name.

    Raises DispatchError if the dialect that is named does not accept a call, and UnknownName for an
    operator that does not exist.
    """
    envs = tuple(_bind(kernel, functions, device) for kernel in kernels)
    compile_together(envs)
    return envs


def _bind(kernel: Kernel, functions: Mapping[str, Function], device: Device) -> OpEnv:
    if isinstance(kernel, FusedRef):
        fuse = DIALECTS[kernel.dialect].fuse
        assert fuse is not None
        return fuse(functions[kernel.function], device)
    op = resolve_op(kernel.operator)
    base: Op = op.base if isinstance(op, DialectOp) else op  # type: ignore[assignment]
    with only(op.dialect.name) if isinstance(op, DialectOp) else nullcontext():
        if kernel.is_static:
            return dispatch(base.call_values(kernel.args, device))
        return OpEnv(ByExtents(base, kernel, device), allocates=True)


class ByExtents:
    """An operator some of whose extents are known at run time only: what an eager call would do is
    decided for each combination of extents that is met, under the preference that was in force
    when it was made.
    """

    def __init__(self, op: Op, kernel: KernelRef, device: Device) -> None:
        self.op, self.kernel, self.device = op, kernel, device
        self.preference = current_preference.get()
        self.plans: dict[tuple[torch.Size, ...], Plan] = {}

    def __call__(self, *values: Any) -> Any:
        shapes = tuple([v.shape for v in values if isinstance(v, torch.Tensor)])
        plan = self.plans.get(shapes)
        if plan is None:
            plan = self.plans[shapes] = self.plan(shapes)
        result = plan.run(list(values))
        return tuple([r.torch() for r in result]) if isinstance(result, tuple) else result.torch()

    def plan(self, shapes: tuple[torch.Size, ...]) -> Plan:
        """Decide the call for these extents."""
        rest = iter(shapes)

        def concrete(type_: TensorType) -> TensorType:
            return type_.with_shape(tuple(next(rest)))

        call = self.op.call_values(map_tensors(self.op, self.kernel.args, concrete), self.device)
        if call.callee is None:
            raise IRError(
                "a value that is known while tracing is no operator call", op=self.op.name
            )
        token = current_preference.set(self.preference)
        try:
            return Plan(call, strided=False)
        finally:
            current_preference.reset(token)
