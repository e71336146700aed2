"""Layer normalisation over the last axis, and its gradients: a row stays in registers.

The gradients of scale and bias are sums over all rows: each thread block adds up those of its rows,
and a second launch adds up the blocks, always in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache, reduce
from math import prod
from operator import or_
from typing import Any

import torch

from meta import op
from meta.dialect.core import Deferred, OpEnv, Unsupported
from meta.dialect.cuda import cubin, driver
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.layer_norm_source import THREADS, source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis

VECTOR = 4
"""Elements of an access: 8 or 16 bytes."""
MOST = THREADS * 32
"""The widest row."""
BLOCKS_PER_PROCESSOR = 2
"""Of the backward pass: each keeps sums of all columns."""
FILLING = 64
"""Of the forward pass, which keeps nothing."""
DTYPES = "float16", "bfloat16", "float32"


class _Kernels:
    """The kernels of a call, compiled when they are first launched."""

    def __init__(self, call: CallValues, adds: bool = False, sums: int = 2) -> None:
        self.adds, self.sums = adds, sums
        args, x = call.args._asdict(), call.args.x
        present = [p for p in (args["scale"], args.get("bias")) if p is not None]
        self.parameters = {p.dtype for p in present} or {x.dtype}
        _require_fits(x, args["axis"], self.parameters)
        self.dtype, self.width = x.dtype, x.static_shape[-1]
        self.rows, self.eps = prod(x.static_shape[:-1]), args["eps"]
        self.device = call.device.ordinal
        processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.blocks = min(processors * BLOCKS_PER_PROCESSOR, self.rows)
        self.filling = min(processors * FILLING, self.rows)
        self.kernel = cache(self._kernel)

    def _kernel(self, name: str, vector: int) -> driver.Function:
        return cubin.function(self._source(name, vector), name, self.device)

    def _source(self, name: str, vector: int) -> str:
        (parameters,) = self.parameters
        return source(name, self.dtype, parameters, self.width, vector, self.adds, self.sums)

    def deferred(self, run: Callable[..., None], *names: str) -> Deferred:
        """Return what launches kernels of these names, compiled before."""
        vector = 1 if self.width % VECTOR else VECTOR
        return cubin.deferred(run, lambda: [self._source(n, vector) for n in names], self.device)

    def launch(self, name: str, blocks: int | None = None, **tensors: torch.Tensor | None) -> None:
        """Launch a kernel with tensors by the names of its parameters."""
        at = [0 if (t := tensors.get(n)) is None else t.data_ptr() for n in POINTERS]
        moved = reduce(or_, (at[POINTERS.index(n)] for n in ("x", "dy", "addend", "out")))
        size = VECTOR * (4 if self.dtype == "float32" else 2)
        vector = VECTOR if self.width % VECTOR == 0 and moved % size == 0 else 1
        given = struct.pack("<14Qqif", *at, self.rows, self.blocks, self.eps)
        self.kernel(name, vector).launch(blocks or self.blocks, THREADS, given)


POINTERS = (
    *("x", "dy", "scale", "bias", "mean", "invvar", "addend"),
    *("out", "new_mean", "new_inv", "partial", "dscale", "dbias", "dsum"),
)


def _require_fits(x: TensorType, axis: int, parameters: set[str]) -> None:
    if not x.is_static or x.dtype not in DTYPES:
        raise Unsupported(f"made for {', '.join(DTYPES)} of extents that are numbers, not {x}")
    if normalize_axis(axis, x.ndim) != x.ndim - 1:
        raise Unsupported("made for the last axis")
    if len(parameters) > 1:
        raise Unsupported("scale and bias differ in dtype")
    if not 0 < x.static_shape[-1] <= MOST or 0 in x.static_shape:
        raise Unsupported(f"made for rows of 1 to {MOST} elements")


@dialect.op(op.layer_norm)
def layer_norm(call: CallValues) -> OpEnv:
    """Return the launch of the forward pass."""
    return _forward(call)


@dialect.op(op.layer_norm_train)
def layer_norm_train(call: CallValues) -> OpEnv:
    """Return the launch that keeps mean and 1 / deviation of each row, too."""
    return _forward(call)


@dialect.op(op.layer_norm_dx)
def layer_norm_dx(call: CallValues) -> OpEnv:
    """Return the launches that compute the statistics once more."""
    return backward(call)


@dialect.op(op.layer_norm_train_dx)
def layer_norm_train_dx(call: CallValues) -> OpEnv:
    """Return the launches that are given the statistics."""
    return backward(call)


def _forward(call: CallValues) -> OpEnv:
    kernels = _Kernels(call)
    names = (*_given(call, "x", "scale", "bias"), "out", "new_mean", "new_inv")

    def run(*values: torch.Tensor) -> None:
        kernels.launch("forward", kernels.filling, **dict(zip(names, values, strict=False)))

    return OpEnv(kernels.deferred(run, "forward"), allocates=False)


def backward(call: CallValues, adds: bool = False, summed: bool = False) -> OpEnv:
    """Return the launches of a gradient. ``adds``: they are given another tensor, which is added to
    the gradient of x. ``summed``: they fill a float32 sum over all rows of that, too.
    """
    kernels = _Kernels(call, adds, 3 if summed else 2)
    given = _given(call, "x", "scale", "dy", "mean", "invvar")
    names = (*given, *(("addend",) if adds else ()), "out", "dscale", "dbias", "dsum")
    sums = len(call.outputs) > 1
    shape = kernels.blocks, kernels.sums, kernels.width

    def run(*values: torch.Tensor) -> None:
        tensors = dict(zip(names, values, strict=False))
        if not sums:
            kernels.launch("backward", **tensors)
            return
        partial = torch.empty(shape, dtype=torch.float32, device=values[0].device)
        kernels.launch("backward", partial=partial, **tensors)
        kernels.launch("finish", -(-kernels.sums * kernels.width // 32), partial=partial, **tensors)

    used = ("backward", "finish") if sums else ("backward",)
    workspace = 4 * prod(shape) if sums else 0
    return OpEnv(kernels.deferred(run, *used), allocates=False, workspace=workspace)


def _given(call: CallValues, *names: str) -> tuple[str, ...]:
    """Return the names of the arguments that a call has."""
    args: dict[str, Any] = call.args._asdict()
    return tuple(n for n in names if args.get(n) is not None)
