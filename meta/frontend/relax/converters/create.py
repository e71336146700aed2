"""Converters of operators that make tensors."""

from __future__ import annotations

import numpy as np
import torch

from meta import op
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.core.operators import filled_like, full_tensor
from meta.frontend.relax.registry import relax
from meta.frontend.relax.values import RuntimeExtent, RuntimeShape
from meta.runtime.ndarray import array


@relax("full", op.full, op.broadcast_to, op.dynamic_full)
def full(shape, value, *, dtype, call):
    dtype = dtype or value.dtype
    if isinstance(shape, RuntimeShape):
        return op.dynamic_full(value, shape.vector, dtype)
    return full_tensor(value, tuple(shape), dtype, call)


@relax("full_like", op.full_like, op.broadcast_to_like)
def full_like(x, value, *, dtype):
    return filled_like(cast_to(x, dtype or x.dtype), value)


def _filled(name, value):
    @relax(name, op.full, op.dynamic_full)
    def converter(shape, *, dtype, call):
        return full(shape, array(value, dtype, device=call.device), dtype=dtype, call=call)


_filled("zeros", 0)
_filled("ones", 1)


@relax.each(op.zeros_like, op.ones_like)
def like(base, x, *, dtype):
    return base(x, dtype)


@relax("eye")
def eye(n, m, k, *, dtype, call):
    return array(np.eye(n, m, k), dtype, device=call.device)


@relax("eye_like")
def eye_like(x, k, *, dtype, call):
    return array(np.eye(*x.shape, k), dtype or x.dtype, device=call.device)


@relax("arange", op.arange, op.dynamic_arange)
def arange(start, end, step, *, dtype, call):
    given = (start, end, step)
    if any(isinstance(v, RuntimeExtent) for v in given):
        tensors = (
            v.tensor if isinstance(v, RuntimeExtent) else array(v, device=call.device)
            for v in given
        )
        return op.dynamic_arange(*tensors, dtype)
    return op.arange(start, end, step, dtype, str(call.device))


@relax("hamming_window")
def hamming_window(size, periodic, alpha, beta, *, dtype, call):
    """alpha - beta * cos(2 pi i / n), n = size, one less if not periodic; of one element 1."""
    window = torch.hamming_window(size, bool(periodic), alpha, beta, dtype=torch.float64)
    return array(window, dtype, device=call.device)


relax.same("tril", op.tril)
relax.same("triu", op.triu)


@relax("one_hot", op.one_hot)
def one_hot(indices, on, off, *, depth, axis, call):
    dtype = call.result_type.dtype if call.result_type is not None else "float32"
    return op.one_hot(indices, depth, on, off, axis, dtype, mode="ignore")


@relax("null_value")
def null_value():
    """What stands for an argument that is absent."""
    return None
