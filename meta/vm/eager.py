"""Eager execution: the default meaning of calling an operator.

The hot path builds one key from the arguments, finds a `Plan`, allocates the result and launches the kernel. Everything
else (reading arguments, types, dispatch) happens when a plan is made.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from meta.base import config
from meta.base.device import CPU, Device, require
from meta.base.dtype import TO_TORCH
from meta.base.errors import DeviceError, IRError, TraceError
from meta.dialect.core.dispatch import dispatch
from meta.dialect.core.openv import OpEnv
from meta.dialect.core.preference import current as current_preference
from meta.grad.core.tape import record, recording
from meta.ir.types import TensorType
from meta.op.core.array_type import array_type
from meta.op.core.call import CallValues, View, map_tensors, runtime_args
from meta.op.core.op import Op
from meta.op.core.tracing import Symbol
from meta.runtime.ndarray import ArrayKey, array_key, as_array, ndarray


class Plan:
    """A decided call: run-time values in, arrays out."""

    __slots__ = ("allocates", "allocators", "keys", "run", "single", "strided", "value", "view", "written")

    def __init__(self, call: CallValues, strided: bool) -> None:
        self.value: Any = None
        self.view: Any = None
        self.run: Callable[..., Any] | None = None
        self.written = call.op.schema.written
        self.strided = strided
        if call.callee is None and not isinstance(call.out, View):
            self.value = call.out
            return
        self.keys: tuple[ArrayKey, ...] = tuple(
            array_key(t.static_shape, t.dtype, call.device) for t in call.outputs
        )
        self.single = isinstance(call.out, TensorType)
        if isinstance(call.out, View):
            self.view = call.out
            return
        env: OpEnv = dispatch(call)
        self.run, self.allocates = env.run, env.allocates
        self.strided = strided and not env.strided
        self.allocators = tuple(allocator(k) for k in self.keys)
        if config.get("META_VERIFY"):
            self.run = _checked(env, call)

    def __call__(self, values: list[Any]) -> Any:
        """Run; ``values`` are torch tensors and numbers in `OpEnv.run` order."""
        if self.strided:
            return self._run_compact(values)
        if self.single:
            if self.allocates:
                return ndarray(self.run(*values), self.keys[0])  # type: ignore[misc]
            out = self.allocators[0]()
            self.run(*values, out)  # type: ignore[misc]
            return ndarray(out, self.keys[0])
        if self.view is not None:
            return ndarray(values[0].reshape(self.keys[0].shape), self.keys[0])
        if self.allocates:
            outs = self.run(*values) or ()  # type: ignore[misc]
        else:
            outs = [make() for make in self.allocators]
            self.run(*values, *outs)  # type: ignore[misc]
        return tuple(map(ndarray, outs, self.keys))

    def _run_compact(self, values: list[Any]) -> Any:
        """Run a kernel that needs compact inputs on strided ones; what it writes in place is copied back."""
        compact = [v.contiguous() if isinstance(v, torch.Tensor) else v for v in values]
        plan = object.__new__(Plan)
        for name in Plan.__slots__:
            if hasattr(self, name):
                setattr(plan, name, getattr(self, name))
        plan.strided = False
        result = plan(compact)
        if self.written:
            for old, new in zip(values, compact, strict=True):
                if old is not new:
                    old.copy_(new)
        return result


def allocator(key: ArrayKey) -> Callable[[], torch.Tensor]:
    """Return a function that allocates an uninitialised compact tensor (``empty_strided`` is torch's cheapest way)."""
    strides, step = [], 1
    for extent in reversed(key.shape):
        strides.append(step)
        step *= max(extent, 1)
    options: dict[str, Any] = {}
    if key.dtype != "float32":
        options["dtype"] = TO_TORCH[key.dtype]
    if key.device != CPU:
        options["device"] = str(key.device)
    return partial(torch.empty_strided, key.shape, tuple(reversed(strides)), **options)


def _checked(env: OpEnv, call: CallValues) -> Callable[..., Any]:
    """Wrap a kernel so that it is checked for the promised shapes, dtypes, compactness and no aliasing."""

    def run(*values: Any) -> Any:
        result = env.run(*values)
        count = len(call.outputs)
        outs = values[len(values) - count :] if not env.allocates else result if isinstance(result, tuple) else (result,)
        inputs = {v.data_ptr() for v in values if isinstance(v, torch.Tensor) and v.numel()}
        for tensor, type_ in zip(outs if count else (), call.outputs, strict=True):
            ok = tuple(tensor.shape) == type_.shape and tensor.dtype == TO_TORCH[type_.dtype]
            alias = env.allocates and tensor.numel() > 0 and tensor.data_ptr() in inputs
            if not ok or not tensor.is_contiguous() or alias:
                raise IRError(
                    f"the kernel {env.dialect_op} breaks its promise",
                    op=call.op.name,
                    expected=f"a fresh compact {type_}",
                    found=f"{'an alias of an argument, ' if alias else ''}{tuple(tensor.shape)} {tensor.dtype} "
                    f"strides {tensor.stride()}",
                )
        return result

    return run


def eager(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call now. Accepts ndarrays, torch tensors and numpy arrays as tensors."""
    schema = op.schema
    if kwargs or len(args) != len(schema.slots):
        args = schema.arrange(args, kwargs)
    key: list[Any] = [op]
    values: list[Any] = []
    tracked = False
    for slot, a in zip(schema.slots, args, strict=True):
        cls = a.__class__
        if cls is ndarray:
            key.append(a.key)
            values.append(a._tensor)
            if a._requires_grad:
                tracked = True
        elif slot.kind == "attribute":
            key.append(a.hex() if cls is float else (cls, a))
        elif a is None:
            key.append(None)
        elif cls is float or cls is int or cls is bool:
            key.append(cls)
            values.append(a)
        elif cls is tuple:
            key.append(len(a))
            for item in a:
                if item.__class__ is not ndarray:
                    return _canonical(op, args)
                key.append(item.key)
                values.append(item._tensor)
                if item._requires_grad:
                    tracked = True
        else:
            return _canonical(op, args)
    plans = current_preference.get().plans
    try:
        plan = plans.get(tuple(key))
    except TypeError:  # an unhashable attribute: a list where a tuple is meant
        return _canonical(op, args)
    if plan is None:
        bound = schema.bind(args, {}, _lift)
        plan = _plan(op, bound)
        # A result known now may depend on the value of a number, of which the key has the type only.
        if plan.value is None or not any(isinstance(v, bool | int | float) for v in values):
            plans[tuple(key)] = plan
    if plan.run is None and plan.view is None:
        return plan.value
    result = plan(values)
    if tracked and recording.get():
        record(op, args, result)
    if plan.written:
        return _with_written(args, plan.written, result)
    return result


def _with_written(args: tuple[Any, ...], written: tuple[int, ...], result: Any) -> tuple[Any, ...]:
    own = result if isinstance(result, tuple) else (result,)
    return (*own, *(args[i] for i in written if args[i] is not None))


def _canonical(op: Op, args: tuple[Any, ...]) -> Any:
    """Read the arguments as the schema says, then run."""
    return eager(op, op.schema.bind(args, {}, _lift), {})


def _lift(value: Any) -> ndarray:
    if isinstance(value, Symbol):
        raise TraceError(
            "a traced value is used outside the function that it was traced in",
            found=repr(value),
            hint="return it from the traced function",
        )
    return as_array(value)


def _plan(op: Op, bound: tuple[Any, ...]) -> Plan:
    arrays = [v for v in runtime_args(op, bound) if isinstance(v, ndarray)]
    device = device_of(op, bound, arrays)
    call = op.call_values(map_tensors(op, bound, lambda a: array_type(a.key)), device)
    return Plan(call, strided=any(not a.key.compact for a in arrays))


def device_of(op: Op, args: tuple[Any, ...], arrays: list[ndarray]) -> Device:
    """Return where a call runs: where its tensors are, else its device argument, else the CPU."""
    devices = {a.device for a in arrays}
    if len(devices) > 1:
        raise DeviceError(
            "the tensors are on several devices",
            op=op.name,
            found=", ".join(sorted(devices)),
            hint="move them together with .to(device=...)",
        )
    if devices:
        return devices.pop()
    index = op.schema.index.get("device")
    return CPU if index is None else require(args[index])

