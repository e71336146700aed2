"""A plain function on torch tensors as a kernel: its parameters name arguments of the call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta.base.dtype import limits, overflow_rounded
from meta.base.errors import RegistrationError
from meta.base.source import definition_span
from meta.dialect.core.fused import launcher
from meta.dialect.core.openv import Kernel
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, number_positions, runtime_args, slot_positions
from meta.op.core.op import Op
from meta.op.core.registration import parameters

_SINGLE = ("float16", "bfloat16", "float32")  # their arithmetic is in float32
_LARGEST = limits("float32").max


def check_parameters(
    base: Op, function: Callable[..., Any], reserved: tuple[str, ...]
) -> tuple[str, ...]:
    """Return a kernel's parameter names; RegistrationError for one that is neither an argument nor
    one of these reserved names.
    """
    names = parameters(function)
    if definition_span(function).is_own:  # a test looks at ours
        return names
    extra = tuple(map(base.schema.reserved, reserved))
    unknown = [n for n in names if n not in base.schema.names and n not in extra]
    if unknown:
        raise RegistrationError(
            f"a kernel of {base.name!r} asks for {unknown}",
            expected=f"some of {(*base.schema.names, *extra)}",
            span=definition_span(function),
        )
    return names


def bind_kernel(
    function: Callable[..., Any], call: CallValues, stateful: bool = False
) -> Callable[..., Any]:
    """Return ``function`` as a callable of the run-time values only (see `OpEnv.run`), and of the
    state before them if it has one.
    """
    wanted = parameters(function)
    out, whole = call.op.schema.reserved("out"), call.op.schema.reserved("call")
    constants: dict[str, Any] = {whole: call} if whole in wanted else {}
    dtypes = {t.dtype for t in call.tensors()}
    single = bool(dtypes) and "float64" not in dtypes | {t.dtype for t in call.outputs}
    places, count = slot_positions(call), len(runtime_args(call.op, call.args))
    for name, value in zip(call.op.schema.names, call.args, strict=True):
        if name not in places:
            constants[name] = _rounded(value) if single else value
    if out in wanted:
        several = not isinstance(call.out, TensorType)
        places[out] = slice(count, count + len(call.outputs)) if several else count
    narrow = [p for p, dtype in number_positions(call) if dtype in _SINGLE]
    if stateful:
        behind = {n: slice(p.start + 1, p.stop + 1) if isinstance(p, slice) else p + 1
                  for n, p in places.items()}  # fmt: skip
        places = {call.op.schema.reserved("state"): 0, **behind}
        narrow, count = [p + 1 for p in narrow], count + 1
    run = launcher(function, places, constants, count + (out in wanted))
    return _rounding(run, tuple(narrow)) if narrow else run


def _rounded(value: Any) -> Any:
    """Return an attribute that is a number beyond float32 as infinity."""
    return (
        overflow_rounded(value, "float32") if isinstance(value, float) and value == value else value
    )


def _rounding(run: Kernel, places: tuple[int, ...]) -> Kernel:
    """Give a kernel infinity for a finite number beyond float32: libraries refuse it."""

    def launch(*values: Any) -> Any:
        for place in places:
            if not -_LARGEST <= values[place] <= _LARGEST:
                rounded = list(values)
                for p in places:
                    rounded[p] = overflow_rounded(values[p], "float32")
                return run(*rounded)
        return run(*values)

    return launch
