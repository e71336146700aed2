"""Operators of PyTorch called by their own names, for what no base operator expresses.

A call is a text: JSON, in which what is no tensor is written out, so that a program that has one
is printed, kept on disk and run by another process like any other. What cannot be written, a
function that a higher-order operator takes, is kept here under a name that no other process has.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from meta import op
from meta.base.dtype import TO_TORCH
from meta.base.errors import ArgumentError, BackendError
from meta.dialect.core.openv import OpEnv
from meta.dialect.torch import torch as dialect
from meta.ir.dims import SymbolicDim
from meta.op.core.call import CallValues

_PROCESS_CALLS: WeakValueDictionary[str, ProcessCall] = WeakValueDictionary()
_NAMES = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


class ProcessCall:
    """A function of tensors for the calls of this process; it is known while somebody has it.

    ``name`` is what `call_text` takes for it.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = f"kept.{uuid.uuid4().hex}"
        _PROCESS_CALLS[self.name] = self


def call_text(
    target: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[str, list[Any], list[Any]]:
    """Return the text of a call, the tensors in it, and the dimensions in it.

    target: the name of an overload, "aten.add.Tensor", or of a `ProcessCall`. A tensor is whatever
    is no plain value. Raises ArgumentError for what has no text, such as a generator.
    """
    tensors: list[Any] = []
    extents: list[Any] = []

    def written(value: Any) -> Any:
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, tuple | list):
            return [written(v) for v in value]
        if isinstance(value, complex):
            return {"complex": [value.real, value.imag]}
        if isinstance(value, torch.device):
            return {"device": str(value)}
        for name, kind in _NAMES.items():
            if isinstance(value, kind):
                return {name: str(value).removeprefix("torch.")}
        if isinstance(value, SymbolicDim):
            extents.append(value)
            return {"extent": len(extents) - 1}
        if not hasattr(value, "shape"):
            raise ArgumentError(
                f"an argument of {target} cannot be written in a program",
                expected="tensors, numbers, names and lists of them",
                found=type(value).__name__,
            )
        tensors.append(value)
        return {"tensor": len(tensors) - 1}

    call = [target, written(list(args)), {name: written(v) for name, v in kwargs.items()}]
    return json.dumps(call), tensors, extents


def overload_of(name: str) -> torch._ops.OpOverload | None:
    """Return the overload of a name, None if torch, or what is imported of it, has none.

    >>> str(overload_of("aten.add.Tensor")), str(overload_of("aten.relu")), overload_of("aten.rel")
    ('aten.add.Tensor', 'aten.relu.default', None)
    """
    namespace, _, rest = name.partition(".")
    operator, _, overload = rest.partition(".")
    packet = getattr(getattr(torch.ops, namespace), operator, None) if operator else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    found: torch._ops.OpOverload | None = getattr(packet, overload or "default", None)
    return found


def _function_of(target: str) -> Callable[..., Any]:
    if target.startswith("kept."):
        kept = _PROCESS_CALLS.get(target)
        if kept is None:
            raise ArgumentError("a call of a function of another process", found=target)
        return kept.function
    found = overload_of(target)
    if found is None:
        raise ArgumentError("torch has no such operator", op="torch_call", found=target)
    return found


def _reader(value: Any, extents: Sequence[int]) -> Callable[[Sequence[Tensor]], Any]:
    """Return a function of the tensors that gives what was written."""
    if isinstance(value, list):
        parts = [_reader(v, extents) for v in value]
        return lambda tensors: [part(tensors) for part in parts]
    constant = value
    if isinstance(value, dict):
        ((kind, what),) = value.items()
        if kind == "tensor":
            return lambda tensors: tensors[what]
        if kind == "extent":
            constant = extents[what]
        elif kind == "complex":
            constant = complex(*what)
        elif kind == "device":
            constant = torch.device(what)
        else:
            constant = getattr(torch, what)
    return lambda _: constant


@dialect.op(op.torch_call)
def torch_call(call: CallValues) -> OpEnv:
    target, args, kwargs = json.loads(call.args.target)
    function = _function_of(target)
    extents = call.args.extents
    extents = (extents,) if isinstance(extents, int) else extents
    positional = [_reader(value, extents) for value in args]
    named = {name: _reader(value, extents) for name, value in kwargs.items()}
    wanted = [(t.shape, TO_TORCH[t.dtype]) for t in call.outputs]

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        given = [read(tensors) for read in positional]
        found = function(*given, **{name: read(tensors) for name, read in named.items()})
        leaves = pytree.tree_leaves(found)
        kept = [r for r in leaves if isinstance(r, Tensor)]
        if len(kept) < len(wanted) == len(kept) + sum(r is None for r in leaves):
            # A tensor that torch leaves out, as a workspace that only a gradient would read.
            some = [r for r in leaves if r is None or isinstance(r, Tensor)]
            kept = [_nothing(*w) if r is None else r for r, w in zip(some, wanted, strict=True)]
        if len(kept) != len(wanted):
            raise BackendError(f"{target} returns {len(kept)} tensors", expected=len(wanted))
        taken = {t.untyped_storage().data_ptr() for t in tensors}
        return tuple([_own(target, r, *w, taken) for r, w in zip(kept, wanted, strict=True)])

    return OpEnv(run, allocates=True, not_capturable="it runs a function of PyTorch's")


def _nothing(shape: Sequence[Any], dtype: torch.dtype) -> Tensor:
    return torch.zeros([d if type(d) is int else 0 for d in shape], dtype=dtype)


def _own(
    target: str, found: Tensor, shape: Sequence[Any], dtype: torch.dtype, taken: set[int]
) -> Tensor:
    """Return a result, compact and in memory that no other has; BackendError for another type."""
    fits = found.dtype == dtype and found.ndim == len(shape)
    if not fits or any(type(d) is int and d != n for d, n in zip(shape, found.shape, strict=True)):
        raise BackendError(
            f"{target} returns another type than torch has said",
            expected=f"{dtype}{list(shape)}",
            found=f"{found.dtype}{list(found.shape)}",
        )
    found = found.detach().resolve_conj().resolve_neg().contiguous()
    where = found.untyped_storage().data_ptr()
    if where in taken:
        return found.clone()
    taken.add(where)
    return found
