"""Which operator made the first NaN (META_DEBUG_NANS): what eager calls and compiled programs ask.

An operator made one if its result has one and nothing that it read has; with META_DEBUG_NANS=inf,
an infinity, too, if what it read was finite. What is handed on, such as the infinities of a mask or
the numbers of another rank, is not of its making. Where a program hands on the NaN of an argument,
the argument is named.

Eager calls, and so the tape and the interpreter, look at every operator (`with_nans_named`); a
compiled program at every kernel, and for the operator inside of a fused one (`observers.py`). Each
look waits for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from math import isfinite
from typing import Any

import torch

from meta.base import config
from meta.base.dtype import FROM_TORCH
from meta.base.errors import NonFiniteError
from meta.base.source import Span
from meta.dialect.core.openv import Kernel, OpEnv
from meta.ir.types import TensorType
from meta.op.core import tree
from meta.op.core.call import CallValues, argument_names, written_positions
from meta.op.core.op import Op
from meta.runtime.ndarray import ndarray
from meta.vm.eager.kernel_contracts import results_of

MAX_SHOWN = 8
"""Arguments that an error describes."""


def debug_nans(infinities: bool = False) -> AbstractContextManager[None]:
    """Let the first operator that makes a NaN in a block be a NonFiniteError, which names it, its
    line, its kernel, and the ranges of what it read. infinities: so is the first that makes one of
    finite numbers.

    It is so in eager calls, in their gradients, and in programs, compiled ones without CUDA graphs;
    every operator is waited for. For the whole process: META_DEBUG_NANS=1, or inf.

    >>> with meta.debug_nans():
    ...     try:
    ...         meta.log(meta.array([-1.0, 1.0]))
    ...     except meta.errors.NonFiniteError as error:
    ...         error.op, error.notes[0]
    ('log', 'x: float32[2], from -1 to 1')
    """
    return config.override(META_DEBUG_NANS="inf" if infinities else "nan")


@dataclass(frozen=True, slots=True)
class Numbers:
    """What a tensor or a Python number holds.

    Attributes
    ----------
    kind: the type, or the number. low, high: of what is finite, of complex numbers both parts;
    None: nothing is. nans, infinities: how many elements are.
    """

    kind: str
    low: float | None = None
    high: float | None = None
    nans: int = 0
    infinities: int = 0

    def __str__(self) -> str:
        parts = [] if self.low is None else [f"from {self.low:g} to {self.high:g}"]
        parts += [f"{n} {name}" for n, name in ((self.nans, "NaN"), (self.infinities, "inf")) if n]
        return ", ".join([self.kind, *parts])


def numbers_of(value: Any) -> Numbers:
    """Return what a tensor, an array or a Python number holds."""
    if isinstance(value, ndarray):
        value = value.tensor
    if not isinstance(value, torch.Tensor):
        is_nan = value != value
        infinite = isinstance(value, float | complex) and not is_nan and not isfinite(abs(value))
        return Numbers(repr(value), nans=int(is_nan), infinities=int(infinite))
    kind = str(TensorType(tuple(value.shape), FROM_TORCH[value.dtype]))
    parts = _as_real(value)
    if not parts.numel():
        return Numbers(kind)
    low, high = (x.item() for x in torch.aminmax(parts))
    if isfinite(low) and isfinite(high):
        return Numbers(kind, low, high)
    own = value.detach() if value.is_complex() else parts
    nans, infinities = int(own.isnan().sum()), int(own.isinf().sum())
    finite = parts[parts.isfinite()]
    if not finite.numel():
        return Numbers(kind, None, None, nans, infinities)
    return Numbers(kind, finite.min().item(), finite.max().item(), nans, infinities)


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    """Return the elements as real floating point numbers that torch can order."""
    tensor = tensor.detach()
    if tensor.is_complex():
        return torch.view_as_real(tensor.resolve_conj())
    if tensor.is_floating_point():
        return tensor.float() if tensor.itemsize == 1 else tensor
    return tensor.double()


def kinds_of(values: Iterable[Any]) -> tuple[bool, bool]:
    """Return whether there is a NaN, and whether there is an infinity, among values."""
    found = list(map(numbers_of, values))
    return any(n.nans for n in found), any(n.infinities for n in found)


def what_is_read(op: Op, args: tuple[Any, ...], values: Sequence[Any]) -> dict[str, Numbers]:
    """Return what a kernel is given, by the names of the operator's arguments, its floating point
    attributes among them.
    """
    found = dict(zip(argument_names(op, args), values, strict=False))
    for name, value in zip(op.schema.names, args, strict=True):
        if name not in found:
            numbers, structure = tree.flatten(value, lambda v: isinstance(v, float))
            found.update(zip(tree.leaf_names(structure, name), numbers, strict=True))
    return {name: numbers_of(value) for name, value in found.items()}


def with_nans_named(run: Kernel, env: OpEnv, call: CallValues) -> Kernel:
    """Return an eager call's kernel, looked at. It takes what `OpEnv.run` takes."""
    written = written_positions(call)
    fresh = 0 if env.allocates else len(call.outputs)
    kernel = "" if env.dialect_op is None else str(env.dialect_op)

    def checked(*values: Any) -> Any:
        inputs = values[: len(values) - fresh]
        read = what_is_read(call.op, call.args, inputs)
        result = run(*values)
        outs = results_of(result) if env.allocates else values[len(inputs) :]
        if not call.op.collective:
            outs = (*outs, *(values[i] for i in written))
            require_handed_on(read, outs, call.op.name, kernel, None)
        return result

    return checked


def require_handed_on(
    read: Mapping[str, Numbers], outs: Iterable[Any], op: str, kernel: str, span: Span | None
) -> None:
    """Raise NonFiniteError if one of ``outs`` has a NaN and nothing that was read does, or an
    infinity, where these are looked for, and nothing does that is not finite.
    """
    had_nan = any(n.nans for n in read.values())
    finite = not had_nan and not any(n.infinities for n in read.values())
    for i, out in enumerate(outs):
        if not isinstance(out, torch.Tensor):
            continue
        numbers = numbers_of(out)
        made_nan = numbers.nans and not had_nan
        infinite = numbers.infinities and finite and config.get("META_DEBUG_NANS") == "inf"
        if not made_nan and not infinite:
            continue
        own = out.detach() if out.is_complex() else _as_real(out)
        place = (own.isnan() if made_nan else own.isinf()).nonzero()[0].tolist()
        error = NonFiniteError(
            f"this operator made {'a NaN' if made_nan else 'an infinity'}",
            op=op,
            expected=f"{'no NaN' if made_nan else 'finite numbers'}, as in what it was given",
            found=f"{own[tuple(place)].item()} at {place} of result {i}: {numbers}",
            hint="look at what it was given: the argument of a logarithm or a root, a divisor, "
            "infinities, numbers too large for the dtype",
            span=span,
        )
        for name, given in islice(read.items(), MAX_SHOWN):
            error.note(f"{name}: {given}")
        if len(read) > MAX_SHOWN:
            error.note(f"and {len(read) - MAX_SHOWN} more")
        if kernel:
            error.note(f"computed by {kernel}")
        raise error


def with_arguments_named(
    names: Iterable[str], arguments: Sequence[Any], run: Callable[[], Any]
) -> Any:
    """Return what a program makes of arguments with these names. A result with a NaN that no
    operator made is a NonFiniteError, which names the arguments that have it.
    """
    before = [(name, numbers_of(a)) for name, a in zip(names, arguments, strict=True)]
    result = run()
    bad = [f"%{name}: {numbers}" for name, numbers in before if numbers.nans]
    if bad and kinds_of(tree.flatten(result)[0])[0]:
        more = f"; and {len(bad) - MAX_SHOWN} more" if len(bad) > MAX_SHOWN else ""
        raise NonFiniteError(
            "a result of the program has a NaN, which came with an argument",
            expected="arguments without a NaN, or a result without",
            found="; ".join(bad[:MAX_SHOWN]) + more,
            hint="look at where the argument comes from; meta.nan_to_num replaces a NaN",
        )
    return result
