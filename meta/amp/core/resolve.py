"""From a cast rule and a call to the casts that it takes. The autocast pass inserts them."""

from __future__ import annotations

from functools import reduce
from typing import Any

from meta.amp.core.rule import rule_of
from meta.base.dtype import is_float, promote
from meta.base.errors import RegistrationError
from meta.ir.types import TensorType
from meta.op.core.op import Op
from meta.op.core.schema import Slot


def cast_dtypes(op: Op, args: tuple[Any, ...], half: str) -> tuple[str | None, ...]:
    """Return what the floating point tensors of every argument are cast to; None leaves them alone.

    Parameters
    ----------
    args: canonical arguments in slot order, a `TensorType` for a tensor, as type functions get.
    half: "float16" or "bfloat16".

    One entry per slot of the schema. An argument that is written, that holds no floating point
    tensor or that has the dtype already is left alone, whatever the rule says. float64 is not
    narrowed: a call with a float64 argument is treated as "infer", in which arguments of different
    precision meet in the wider one.
    """
    rule = rule_of(op)
    if rule.function is not None:
        stated = rule.function(op.schema.Args(*args), half)
        slots = op.schema.tensor_slots
        if len(stated) != len(slots):
            raise RegistrationError(
                f"the cast rule of {op.name!r} returns the wrong number of dtypes",
                expected=f"one per tensor slot: {[op.schema.names[i] for i in slots]}",
                found=stated,
                span=rule.site,
            )
        wanted: dict[int, str | None] = dict(zip(slots, stated, strict=True))
    else:
        wanted = dict.fromkeys(op.schema.tensor_slots, _meeting(rule.word, op, args, half))
    return tuple(
        _needed(slot, value, wanted.get(i))
        for i, (slot, value) in enumerate(zip(op.schema.slots, args, strict=True))
    )


def _meeting(word: str, op: Op, args: tuple[Any, ...], half: str) -> str | None:
    """Return the dtype in which all arguments of a call meet."""
    present = [d for i in op.schema.tensor_slots for d in float_dtypes(args[i])]
    if word == "always" and "float64" not in present:
        return half
    # What is written in place keeps its dtype, so the others follow.
    written = [d for i in op.schema.written for d in float_dtypes(args[i])]
    lowest = ["float32"] if word == "never" else []
    dtypes = written or present + lowest
    return reduce(promote, dtypes) if dtypes else None


def _needed(slot: Slot, value: Any, wanted: str | None) -> str | None:
    present = float_dtypes(value)
    if slot.access == "RW" or all(d == wanted for d in present):
        return None
    return wanted


def float_dtypes(argument: Any) -> list[str]:
    """Return the dtypes of the floating point tensors of one argument."""
    tensors = argument if isinstance(argument, tuple) else (argument,)
    return [t.dtype for t in tensors if isinstance(t, TensorType) and is_float(t.dtype)]
