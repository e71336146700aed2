"""From a cast rule and a call to the casts that it takes. The autocast pass inserts them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

from meta.amp.core.rule import require_rules, rule_of
from meta.base.dtype import bits, canonical, is_float, limits, overflow_rounded, promote
from meta.base.errors import ArgumentError, RegistrationError
from meta.ir.types import TensorType
from meta.op.core.op import Op
from meta.op.core.schema import Slot

HALVES = ("float16", "bfloat16")


class Finite(str):
    """A dtype that a rule asks for where numbers must not become infinite: of a mask that is added,
    in which -3.4e38 stands for "not this one". In a row of nothing else, infinities make NaN.
    """

    __slots__ = ()


def stays_finite(source: str, dtype: str) -> bool:
    """Whether a cast is to keep numbers finite, and they might not be."""
    return isinstance(dtype, Finite) and bits(source) > bits(dtype)


def cast_finite(x: Any, dtype: str, call: Callable[..., Any]) -> Any:
    """Return x cast to a `Finite` dtype: numbers beyond half of its range as that, so that what is
    added to them does not overflow either; infinities stay infinite.

    call: ``(operator's name, *arguments)`` makes a call, now or in a program.
    """
    limit = float(limits(dtype).max / 2)
    near = call("where", call("isinf", x), x, call("clip", x, -limit, limit))
    return call("astype", near, str(dtype))


def cast_dtypes(op: Op, args: tuple[Any, ...], half: str) -> tuple[str | None, ...]:
    """Return what the floating point tensors of every argument are cast to; None leaves them alone.

    Parameters
    ----------
    args: canonical arguments in slot order, a `TensorType` for a tensor, as type functions get.
    half: "float16" or "bfloat16".

    One entry per slot of the schema. An argument that is written, that holds no floating point
    tensor or that has the dtype already is left alone, whatever the rule says. float64 is not
    narrowed: a call with a float64 argument is treated as "infer", in which arguments of different
    precision meet in the wider one. A call with a number that its dtype does not hold, such as a
    mask's -1e9, is computed in float32. A `Finite` dtype is a cast by `cast_finite`.
    """
    wanted = _dtypes_by_rule(op, args, half)
    if _too_large(op, args, wanted):
        wide = "float64" if "float64" in _dtypes_after_casts(op, args, wanted) else "float32"
        pairs = zip(op.schema.slots, args, strict=True)
        return tuple(_cast_if_needed(slot, value, wide) for slot, value in pairs)
    return wanted


def too_large(op: Op, args: tuple[Any, ...], half: str) -> list[float]:
    """Return the numbers because of which a call is computed in float32, whatever its rule says."""
    return _too_large(op, args, _dtypes_by_rule(op, args, half))


def _too_large(op: Op, args: tuple[Any, ...], wanted: tuple[str | None, ...]) -> list[float]:
    narrow = {d for d in _dtypes_after_casts(op, args, wanted) if d in HALVES}
    if not narrow or op.schema.written:
        return []  # what is written keeps its dtype
    numbers = [
        value
        for slot, value in zip(op.schema.slots, args, strict=True)
        if slot.kind in ("scalar", "scalar or tensor")
        and type(value) in (int, float)
        and math.isfinite(value)
    ]
    return [n for n in numbers if any(math.isinf(overflow_rounded(n, d)) for d in narrow)]


def _dtypes_after_casts(op: Op, args: tuple[Any, ...], wanted: tuple[str | None, ...]) -> set[str]:
    """Return the dtypes that a call's floating point tensors have once they are cast."""
    return {w or d for a, w in zip(args, wanted, strict=True) for d in float_dtypes(a)}


def _dtypes_by_rule(op: Op, args: tuple[Any, ...], half: str) -> tuple[str | None, ...]:
    rule = rule_of(op)
    if rule is None:
        require_rules([op])
    assert rule is not None
    slots = op.schema.tensor_slots
    if rule.function is None:
        ruled = slots if rule.casts.count is None else slots[: rule.casts.count]
        wanted: dict[int, str | None] = dict.fromkeys(
            ruled, _common_dtype(rule.word, op, ruled, args, half)
        )
    else:
        stated = rule.function(op.schema.Args(*args), half)
        if len(stated) != len(slots):
            raise RegistrationError(
                f"the cast rule of {op.name!r} returns the wrong number of dtypes",
                expected=f"one per tensor slot: {[op.schema.names[i] for i in slots]}",
                found=stated,
                span=rule.site,
            )
        wanted = dict(zip(slots, stated, strict=True))
    return tuple(
        _cast_if_needed(slot, value, wanted.get(i))
        for i, (slot, value) in enumerate(zip(op.schema.slots, args, strict=True))
    )


def _common_dtype(
    word: str, op: Op, ruled: Sequence[int], args: tuple[Any, ...], half: str
) -> str | None:
    """Return the dtype in which the arguments that a rule is about meet."""
    present = [d for i in ruled for d in float_dtypes(args[i])]
    if word == "always" and "float64" not in present:
        return half
    # What is written in place keeps its dtype, so the others follow.
    written = [d for i in op.schema.written for d in float_dtypes(args[i])]
    lowest = ["float32"] if word == "never" else []
    dtypes = written or present + lowest
    return reduce(promote, dtypes) if dtypes else None


def _cast_if_needed(slot: Slot, value: Any, wanted: str | None) -> str | None:
    present = float_dtypes(value)
    if slot.access == "RW" or all(d == wanted for d in present):
        return None
    return wanted


def require_half(dtype: object) -> str:
    """Return the name of a half precision dtype; ArgumentError for any other."""
    half = canonical(dtype)
    if half not in HALVES:
        raise ArgumentError(
            "mixed precision computes in 16 bits", expected=" or ".join(HALVES), found=half
        )
    return half


def float_dtypes(argument: Any) -> list[str]:
    """Return the dtypes of the floating point tensors of one argument."""
    tensors = argument if isinstance(argument, tuple) else (argument,)
    return [t.dtype for t in tensors if isinstance(t, TensorType) and is_float(t.dtype)]
