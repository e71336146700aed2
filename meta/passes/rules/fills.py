"""Tensors that hold one number everywhere, whatever made them."""

from __future__ import annotations

import math
from typing import Any

import torch

from meta import op
from meta.base.dtype import TO_TORCH, convertible, is_float
from meta.ir import Constant
from meta.ir.constants import tensor_bytes
from meta.op.core.numbers import Number
from meta.passes.buffers import Definitions
from meta.passes.calls import OpCall, op_call, tensor_type

# A constant is looked at up to this many elements.
_LIMIT = 4096
# Up to this, every integer is a float64.
_EXACT = 1 << 53
_ALIKE = {op.zeros: 0, op.zeros_like: 0, op.ones: 1, op.ones_like: 1}
_SPREADS = (
    *(op.reshape, op.expand_dims, op.squeeze, op.transpose),
    *(op.broadcast_to, op.broadcast_to_like),
)


def fill_of(atom: Any, known: Definitions) -> Number | None:
    """Return the number that every element of ``atom`` is; None if they differ or are not known.

    A Python number is that of a tensor of any shape.
    """
    while (value := op_call(known.get(atom))) is not None:
        if value.op not in _SPREADS:
            return _filled(value, atom)
        atom = value.args[0]
    if isinstance(atom, Constant):
        return _constant(atom.data)
    return atom if isinstance(atom, bool | int | float) else None


def _filled(value: OpCall, atom: Any) -> Number | None:
    """Return the number with which a call fills its result, as the dtype of that holds it."""
    type_ = tensor_type(atom)
    if value.op in _ALIKE:
        return _ALIKE[value.op]
    if value.op not in (op.full, op.full_like) or type_ is None:
        return None
    number = value.args[0 if value.op is op.full else 1]
    if isinstance(number, int) and abs(number) > _EXACT:
        return None
    if not math.isfinite(number):
        return float(number) if is_float(type_.dtype) else None
    dtype = TO_TORCH[type_.dtype]
    held: Number = convertible(torch.tensor(number).double(), dtype).to(dtype).item()
    return held


def _constant(data: torch.Tensor) -> Number | None:
    if not 0 < data.numel() <= _LIMIT:
        return None
    raw = bytes(tensor_bytes(data))
    first: Number = data.reshape(-1)[0].item()
    return first if raw == raw[: data.element_size()] * data.numel() else None


def is_number(found: Number | None, value: float) -> bool:
    """Whether a fill is this number, with its sign: -0.0 is not 0.0."""
    if found is None or isinstance(found, bool):
        return False
    return str(float(found)) == str(float(value))
