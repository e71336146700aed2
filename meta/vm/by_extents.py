"""Kernels of calls whose extents are known at run time only.

Called with a call's tensors and numbers, then the extents that `KernelRef.unbound` names; they
return fresh tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import IRError
from meta.dialect.core.preference import current as current_preference
from meta.ir import SymbolicDim, TensorType
from meta.op.core.call import map_tensors
from meta.op.core.op import Op
from meta.runtime.ndarray import array_key
from meta.vm.code import KernelRef
from meta.vm.eager import Plan, allocator

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
        self.preference = current_preference.get()
        self.plan_of = lru_cache(maxsize=REMEMBERED)(self.plan)

    def __call__(self, *values: Any) -> Any:
        count = len(values) - len(self.unbound)
        plan = self.plan_of(_shapes(values, count))
        result = plan.run(list(values[:count]))
        return tuple([r.torch() for r in result]) if isinstance(result, tuple) else result.torch()

    def plan(self, shapes: Shapes) -> Plan:
        """Decide the call for these extents."""
        args = concrete_args(self.op, self.kernel, shapes)
        call = self.op.call_values(args, self.device)
        if call.callee is None:
            raise IRError(
                "a value that is known while tracing is no operator call", op=self.op.name
            )
        token = current_preference.set(self.preference)
        try:
            return Plan(call, strided=False)
        finally:
            current_preference.reset(token)


class ForAllExtents:
    """One kernel for all extents: only its results are allocated anew for each."""

    def __init__(self, op: Op, run: Callable[..., Any], kernel: KernelRef, device: Device) -> None:
        self.op, self.run, self.kernel, self.device = op, run, kernel, device
        self.unbound = kernel.unbound
        self.makers_for = lru_cache(maxsize=REMEMBERED)(self.allocators)

    def __call__(self, *values: Any) -> Any:
        count = len(values) - len(self.unbound)
        outs = tuple([make() for make in self.makers_for(_shapes(values, count))])
        self.run(*values[:count], *outs)
        return outs

    def allocators(self, shapes: Shapes) -> tuple[Callable[[], torch.Tensor], ...]:
        """Return what allocates the results for these extents."""
        call = self.op.call_values(concrete_args(self.op, self.kernel, shapes), self.device)
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

    def number(value: Any) -> Any:
        return value.evaluate(extents) if isinstance(value, SymbolicDim) else value

    return tuple(tuple(map(number, a)) if isinstance(a, tuple) else number(a) for a in args)
