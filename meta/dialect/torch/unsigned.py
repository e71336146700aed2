"""uint16, uint32 and uint64 on ATen, which has few functions of them.

What is computed of uint16 and uint32 is computed in a signed dtype that holds all their numbers,
and converted back. Sums, products, powers and shifts that leave the range have the same low bits
there. What is only moved is seen as a signed dtype of the same width, without a copy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from meta.base.dtype import FROM_TORCH, TO_TORCH, canonical
from meta.dialect.core.openv import OpEnv
from meta.ir.types import TensorType, TupleType
from meta.op.core.call import CallValues, written_positions

WIDER = {"uint16": "int32", "uint32": "int64"}
"""The dtype in which one is computed."""
SAME_BITS = {"uint16": "int16", "uint32": "int32", "uint64": "int64"}
"""The dtype as which one is moved."""
AS_THEY_ARE = frozenset(
    (
        *("assign", "astype", "cast_like", "copy", "defuse_tensor", "detach"),
        *("device_copy", "dynamic_full", "torch_call"),
        *("full", "full_like", "fuse_tensor", "group_cast", "ones", "ones_like"),
        *("optimization_barrier", "reinterpret", "zeros", "zeros_like"),
    )
)
"""Operators of which ATen has the functions: they convert, fill and copy."""
MOVING = frozenset(
    (
        *("adv_index", "batch_flatten", "broadcast_to", "broadcast_to_like", "concat"),
        *("depth_to_space", "diagonal", "dynamic_broadcast_to", "dynamic_expand_dims"),
        *("dynamic_reshape", "dynamic_squeeze", "dynamic_strided_slice", "dynamic_tile"),
        *("expand_dims", "flip", "gather_nd", "index_select"),
        *("permute_dims", "repeat", "reshape", "reshape_like", "reverse_sequence", "roll"),
        *("space_to_depth", "split", "squeeze", "stack", "strided_slice", "swapaxes", "take"),
        *("take_along_axis", "tile", "tril", "triu"),
    )
)
"""Operators that move the elements of their first argument, whatever these are."""
WITHOUT_UINT64 = frozenset(
    (
        *("abs", "add", "addcmul", "argmax", "argmin", "batch_matmul"),
        *("batch_matmul_nt", "batch_matmul_tn", "batch_matmul_tt", "bias_add", "bitwise_invert"),
        *("bitwise_left_shift", "bitwise_right_shift", "clip", "conv1d", "conv_transpose1d"),
        *("conv2d", "conv_transpose2d", "conv3d", "conv_transpose3d", "cumprod", "cumsum", "dense"),
        *("einsum", "floor_divide", "fmax", "fmin", "fmod", "heaviside", "logical_not", "matmul"),
        *("matmul_nt", "matmul_tn", "matmul_tt", "max", "maximum", "min", "minimum", "negative"),
        *(
            "pad",
            "relu",
            "remainder",
            "scatter_reduce",
            "searchsorted",
            "sign",
            "square",
            "strided_set",
            "subtract",
        ),
        "threshold",
    )
)
"""Operators of which ATen has no function of uint64; generated code has."""


def declines(call: CallValues) -> str | None:
    """Return why ATen does not run a call, because of uint64; None if it may."""
    if call.op.name not in WITHOUT_UINT64:
        return None
    data = next(call.tensors(), None)  # indices, which come later, may be uint64
    return "ATen has none of uint64" if data is not None and data.dtype == "uint64" else None


def carried(make: Callable[[CallValues], OpEnv]) -> Callable[[CallValues], OpEnv]:
    """Return a maker of kernels that serves unsigned integers by the kernels of signed ones."""

    def made(call: CallValues) -> OpEnv:
        types = (*call.tensors(), *call.outputs)
        known = SAME_BITS if call.op.name in MOVING else WIDER
        if call.op.name in AS_THEY_ARE or not any(t.dtype in known for t in types):
            return make(call)
        env = make(_signed(call))
        run = _converting(env, call)
        return OpEnv(run, env.allocates, env.strided, not_capturable=env.not_capturable)

    return made


def _of_results(call: CallValues) -> dict[str, str]:
    return SAME_BITS if call.op.name in MOVING else WIDER


def _of_slot(call: CallValues, slot: int) -> dict[str, str]:
    return _of_results(call) if slot == call.op.schema.tensor_slots[0] else WIDER


def _signed(call: CallValues) -> CallValues:
    """Return the call in signed dtypes."""

    def carrier(type_: Any, carriers: dict[str, str]) -> Any:
        if isinstance(type_, TupleType):
            return TupleType(carrier(type_.fields, carriers))
        if isinstance(type_, tuple):
            return tuple(carrier(t, carriers) for t in type_)
        if isinstance(type_, TensorType):
            return type_.with_dtype(carriers.get(type_.dtype, type_.dtype))
        return type_

    args = []
    for i, (slot, value) in enumerate(zip(call.op.schema.slots, call.args, strict=True)):
        if slot.is_tensor:
            args.append(carrier(value, _of_slot(call, i)))
        else:
            args.append(WIDER.get(value, value) if canonical in slot.readers else value)
    found = CallValues(call.op, tuple(args), call.device)
    found.out_device, found.callee = call.out_device, call.callee
    found.out = carrier(call.out, _of_results(call))
    return found


def _converting(env: OpEnv, call: CallValues) -> Callable[..., Any]:
    """Return the kernel of the signed call as one of the call itself."""
    of_args = [
        _of_slot(call, i)
        for i, slot in enumerate(call.op.schema.slots)
        if slot.kind != "attribute" and call.args[i] is not None
        for _ in (call.args[i] if slot.kind == "tensors" else (None,))
    ]
    of_results, written, count = _of_results(call), written_positions(call), len(of_args)
    dtypes = [TO_TORCH[t.dtype] for t in call.outputs]
    kernel, allocates = env.run, env.allocates

    def run(*values: Any) -> Any:
        given = [_as_carrier(v, c) for v, c in zip(values, of_args, strict=False)]
        outs = values[count:]
        places = [_room(out, of_results) for out in outs]
        found = kernel(*given, *places)
        for p in written:
            _bring_back(given[p], values[p])
        for out, place in zip(outs, places, strict=True):
            _bring_back(place, out)
        if not allocates or found is None:
            return found
        if isinstance(found, Tensor):
            return _unseen(found, dtypes[0])
        return tuple(_unseen(part, dtype) for part, dtype in zip(found, dtypes, strict=True))

    return run


def _as_carrier(x: Any, carriers: dict[str, str]) -> Any:
    """Return a tensor in the dtype of which ATen has the functions; numbers as they are."""
    name = carriers.get(FROM_TORCH[x.dtype]) if isinstance(x, Tensor) else None
    if name is None:
        return x
    return x.view(TO_TORCH[name]) if carriers is SAME_BITS else x.to(TO_TORCH[name])


def _room(out: Tensor, carriers: dict[str, str]) -> Tensor:
    """Return where a kernel writes a result."""
    name = carriers.get(FROM_TORCH[out.dtype])
    if name is None:
        return out
    of = TO_TORCH[name]
    return out.view(of) if carriers is SAME_BITS else torch.empty_like(out, dtype=of)


def _bring_back(found: Tensor, wanted: Tensor) -> None:
    """Write a result to where it is wanted, unless it is there."""
    if found.itemsize != wanted.itemsize:
        wanted.copy_(found)


def _unseen(found: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a result in the dtype that it is to have."""
    return found.view(dtype) if found.itemsize == dtype.itemsize else found.to(dtype)
