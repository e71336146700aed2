"""Eager execution: the default meaning of calling an operator.

A call builds one key from the arguments, finds a `DecidedCall`, allocates the result and launches
the kernel; `Op.__call__` itself does so for the usual arguments. Everything else (reading
arguments, types, dispatch) happens when a plan is made. An array is in the key by its interned
`ArrayKey` (shape, dtype, device, compactness), a number in a ``Scalar`` slot by its type only; one
that takes an integer dtype is compared with its range, which the plan keeps. A plan whose kernel
serves all shapes (`OpEnv.fresh`) is kept a second time, under a key without shapes, for calls with
shapes that were not met before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta.base import config
from meta.base.bounded_cache import bounded_insert
from meta.base.config import current_overrides
from meta.base.device import CPU, NOWHERE, Device, require
from meta.base.errors import DeviceError, OutOfMemory, TraceError
from meta.dialect.core.backend_errors import backend_error, passes
from meta.dialect.core.preference import DECISIONS, Preference
from meta.dialect.core.preference import current as current_preference
from meta.grad.core.tape import record
from meta.ir import type_bytes
from meta.op.core.call import (
    array_type,
    map_tensors,
    runtime_args,
    written_args,
)
from meta.op.core.op import Op
from meta.op.core.promotion import cast_together, common_dtype, with_complex
from meta.op.core.slot import INT_LIMIT
from meta.op.core.tracing import Value
from meta.runtime.array_key import ArrayKey, array_key
from meta.runtime.inplace_writes import require_unrecorded
from meta.runtime.ndarray import array_with_key, as_array, ndarray
from meta.runtime.no_gradient import is_recording
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory
from meta.runtime.torch_leaf import TorchLeaf
from meta.runtime.trace_checks import require_values
from meta.vm.eager.decided_call import KNOBS, DecidedCall

MAX_SHOWN = 8
"""Parts of a tuple that an error shows."""


def recorded(op: Op, args: tuple[Any, ...], result: Any) -> Any:
    """Return the result of a call of which an argument requires a gradient, after recording it."""
    if is_recording():
        record(op, op.schema.arrange(args, {}), result)
    return result


def _store_direct(preference: Preference, key: tuple[Any, ...], plan: DecidedCall) -> None:
    """Keep what runs a call of one array, two, or one and a float where `Op.__call__` finds it."""
    op, *operands = key
    if plan.simple is None or plan.bounds or current_overrides() is not None:
        return
    kinds = [part.__class__ is ArrayKey for part in operands]
    if kinds == [True]:
        bounded_insert(preference.alone.setdefault(op, {}), operands[0], plan.simple, DECISIONS)
    elif len(kinds) == 2 and kinds[0] and (kinds[1] or operands[1] is float):
        first, second = operands
        place = first if first is second else (first, second)
        bounded_insert(preference.pairs.setdefault(op, {}), place, plan.simple, DECISIONS)


def _in_new_shape(plans: dict[Any, Any], kinds: Any, key: Any, values: Sequence[Any]) -> Any:
    """Run a call that was decided for arrays of these kinds; None if there is none, or if it fails:
    what is wrong is then said by the call made anew, from its types on.
    """
    decided = plans.get(kinds)
    if decided is None or (decided.bounds and not decided.takes(values)):
        return None
    try:
        out = decided.fresh(*values)
    except Exception:
        return None
    known = decided.key
    described_by = array_key(tuple(out.shape), known.dtype, known.device)
    bounded_insert(plans, key, decided.in_shape(described_by), DECISIONS)
    return array_with_key(out, described_by)


def _kinds(key: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Return the key of a call without shapes; None if an array is not compact."""
    kinds = [part.kind if part.__class__ is ArrayKey else part for part in key]
    compact = all(part.__class__ is not ArrayKey or part.compact for part in key)
    return tuple(kinds) if compact else None


class Promotion:
    """What stands for a plan where operands are cast to a common dtype first: it has no kernel."""

    __slots__ = ("common",)
    simple = None

    def __init__(self, common: str) -> None:
        self.common = common


def eager(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a call now. Accepts ndarrays, torch tensors and numpy arrays as tensors."""
    plan: DecidedCall | None = None
    failure: Exception | None = None
    result: Any
    try:
        if kwargs or len(args) < op.schema.explicit:
            args = op.schema.arrange(args, kwargs)
        read = _read(op, args)
        if read is None:
            return _canonical(op, args)
        key, values, tracked = read
        if current_overrides() is not None:  # a plan is made with the knobs of its time
            key = (*key, tuple([config.get(knob) for knob in KNOBS]))
        preference = current_preference()
        plans = preference.plans
        try:
            found = plans.get(key)
        except TypeError:  # an unhashable attribute: a list where a tuple is meant
            return _canonical(op, args)
        kinds = _kinds(key) if found is None else None
        if kinds is not None and kinds in plans:
            result = _in_new_shape(plans, kinds, key, values)
            if result is not None:
                return recorded(op, args, result) if tracked else result
        if found is None:
            bound = op.schema.bind(args, {}, _lift)
            if _respelled(op, args, bound):
                return eager(op, bound, {})
            if op.promotes:
                common = common_dtype(op, bound)
                if common is not None:
                    bounded_insert(plans, key, Promotion(common), DECISIONS)
                    return eager(op, cast_together(op, bound, common), {})
            found = _plan(op, bound)
            # A result known now may depend on the value of a number, of which the key has the type
            # only.
            if found.value is None or not any(isinstance(v, bool | int | float) for v in values):
                bounded_insert(plans, key, found, DECISIONS)
                if found.fresh is not None and kinds is not None:
                    bounded_insert(plans, kinds, found, DECISIONS)
        elif found.__class__ is Promotion:
            bound = args if len(args) == len(op.slots) else op.schema.arrange(args, {})
            if config.get("META_STRICT_DTYPES"):
                _plan(op, bound)  # the same call without casts, which is an error
            return eager(op, cast_together(op, bound, found.common), {})
        elif found.bounds and not found.takes(values):
            _plan(op, op.schema.bind(args, {}, _lift))  # the same call made anew, which is an error
        plan = found
        if plan.simple is not None:
            _store_direct(preference, key, plan)
            kernel, described_by = plan.simple
            result = array_with_key(kernel(*values), described_by)
        elif plan.kernel is None and not plan.view:
            return plan.value
        else:
            if tracked and plan.written:
                _refuse_entered(op, op.schema.arrange(args, {}))
            result = plan.run(values)
    except Exception as error:
        failure = _failure(op, args, plan, error)
    if failure is not None:  # behind the block: what the first error holds is free by then
        raise failure
    if tracked:
        recorded(op, args, result)
    assert plan is not None
    if plan.written:
        own = result if isinstance(result, tuple) else (result,)
        return (*own, *written_args(op, op.schema.arrange(args, {})))
    return result


def failed(op: Op, args: tuple[Any, ...], error: Exception) -> Exception:
    """Return the error to raise for a call whose kernel was decided before and raised one."""
    read = _read(op, args)
    plan = None if read is None else current_preference().plans.get(read[0])
    return _failure(op, args, plan, error)


def _failure(
    op: Op, args: tuple[Any, ...], plan: DecidedCall | None, error: Exception
) -> Exception:
    """Return the error to raise for a call from one that was raised; without a plan no kernel ran
    yet, and it is raised as it is.
    """
    if is_out_of_memory(error) and not isinstance(error, OutOfMemory):
        return _out_of_memory(error, op, plan)
    if plan is None or passes(error):
        return error
    made = backend_error(
        *(error, "cannot run a kernel"),
        op=op.name,
        types=call_text(op, args),
        dialect=plan.dialect,
    )
    made.__cause__ = error
    return made


def _read(op: Op, args: tuple[Any, ...]) -> tuple[tuple[Any, ...], list[Any], bool] | None:
    """Return the key of a call, what the kernel receives, and whether an argument requires a
    gradient; None if the arguments have to be read as the schema says first.

    Trailing defaults are left out of the key, so a call's length is part of it.
    """
    kinds = op.schema.kinds
    if len(args) > len(kinds):
        return None
    key: list[Any] = [op]
    values: list[Any] = []
    tracked = False
    for a in args:
        cls = type(a)
        if cls is ndarray:
            key.append(a.key)
            values.append(a.tensor)
            if a.tracked:
                tracked = True
            continue
        kind = kinds[len(key) - 1]  # behind the operator, the key has an entry for each argument
        if kind == "attribute":
            if cls is tuple:  # (1, 0) == (True, 0.0), which the schema refuses
                key.append((a, *map(type, a)))
            else:
                key.append(a.hex() if cls is float else (cls, a))
        elif a is None:
            key.append(None)
        elif kind == "tensors":
            if cls is not tuple or not all(type(t) is ndarray for t in a):
                return None
            key.append(tuple([t.key for t in a]))
            values.extend([t.tensor for t in a])
            tracked = tracked or any(t.tracked for t in a)
        elif kind != "tensor" and (
            cls is float or cls is bool or (cls is int and -INT_LIMIT <= a < INT_LIMIT)
        ):
            key.append(cls)
            values.append(a)
        else:
            return None
    return tuple(key), values, tracked


def _respelled(op: Op, args: tuple[Any, ...], bound: tuple[Any, ...]) -> bool:
    """Whether an attribute is not in the canonical spelling, by which gradient rules go."""
    return any(
        slot.kind == "attribute" and given is not read and given != read
        for slot, given, read in zip(op.schema.slots, args, bound, strict=False)
    )


def _refuse_entered(op: Op, args: tuple[Any, ...]) -> None:
    """Raise GradientError if an argument that is written is a torch tensor with a gradient."""
    for array in written_args(op, args):
        if isinstance(array.node, TorchLeaf):
            require_unrecorded(array, op.name)


def _canonical(op: Op, args: tuple[Any, ...]) -> Any:
    """Read the arguments as the schema says, then run."""
    return eager(op, op.schema.bind(*with_complex(op, args, {}), _lift), {})


def _lift(value: Any) -> ndarray:
    if isinstance(value, Value):
        raise TraceError(
            "a traced value is used outside the function that it was traced in",
            found=repr(value),
            hint="return it from the traced function",
        )
    return as_array(value)


def call_text(op: Op, args: Sequence[Any]) -> str:
    """Return a call with the types of its arrays."""

    def text(value: Any) -> str:
        if isinstance(value, tuple | list):
            more = ["..."] if len(value) > MAX_SHOWN else []
            return f"({', '.join([*map(text, value[:MAX_SHOWN]), *more])})"
        return str(array_type(value.key)) if isinstance(value, ndarray) else repr(value)[:80]

    return f"{op.name}({', '.join(map(text, args))})"


def _out_of_memory(error: Exception, op: Op, plan: DecidedCall | None) -> OutOfMemory:
    made = () if plan is None else getattr(plan, "keys", ())
    keys = [k for k in made if k is not None]
    known = bool(keys) and len(keys) == len(made)
    planned = sum(type_bytes(array_type(k)) for k in keys) if known else None
    return out_of_memory(
        error,
        keys[0].device if keys else CPU,
        "a call",
        op=op.name,
        planned=planned,
        hint="delete arrays that nobody needs; use smaller ones; compile the model: a compiled "
        "program plans its memory",
    )


def _plan(op: Op, bound: tuple[Any, ...]) -> DecidedCall:
    arrays = [v for v in runtime_args(op, bound) if isinstance(v, ndarray)]
    device = device_of(op, bound, arrays)
    call = op.call_values(map_tensors(op, bound, lambda a: array_type(a.key)), device)
    return DecidedCall(call, strided=any(not a.key.compact for a in arrays))


def device_of(op: Op, args: tuple[Any, ...], arrays: list[ndarray]) -> Device:
    """Return where a call runs: where its tensors are, else its device argument, else the CPU."""
    devices = {a.device for a in arrays}
    if NOWHERE in devices:
        for array in arrays:
            require_values(array)
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
