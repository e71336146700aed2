"""The gradient of the maximum over windows of images whose channels come last, in one launch."""

from __future__ import annotations

import struct
from functools import cache

import torch

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cubin, driver
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.max_pool_source import LANES, SHARED, THREADS, TILE, source, windows
from meta.op.core.call import CallValues
from meta.op.core.window import window

ACCESS = 16
"""Bytes of an access, where channels and addresses allow."""
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
TAPS = 255
"""Of a window: which one wins is kept in a byte."""


@dialect.op(op.max_pool2d_dx)
def max_pool2d_dx(call: CallValues) -> OpEnv:
    """Return the launch; y is not read, for the maxima are found once more."""
    a = call.args
    if not a.x.is_static or a.x.dtype not in BYTES:
        raise Unsupported(f"made for {', '.join(BYTES)} of extents that are numbers, not {a.x}")
    if a.layout != "NHWC":
        raise Unsupported("made for channels on the last axis")
    if not a.x.size:
        raise Unsupported("there is an empty tensor")
    images, height, width, channels = a.x.static_shape
    axes = window((height, width), a.kernel, a.stride, a.padding, a.dilation, a.ceil_mode)
    across = [windows(TILE, axis.extent, axis.stride) for axis in axes]
    full = ACCESS // BYTES[a.x.dtype]
    too_many = across[0] * across[1] * LANES * full > SHARED
    if axes[0].kernel * axes[1].kernel > TAPS or too_many:
        raise Unsupported("made for small windows")
    taps = {
        name: (axis.kernel, axis.stride, axis.before, axis.dilation)
        for name, axis in zip(("DOWN", "ACROSS"), axes, strict=True)
    }
    dtype, device = a.x.dtype, call.device.ordinal
    tiles = -(-height // TILE), -(-width // TILE)
    sizes = height, width, channels, axes[0].out, axes[1].out, *tiles

    @cache
    def kernel(vector: int) -> driver.Function:
        return cubin.function(source(dtype, vector, taps), "scatter", device)

    def sources() -> list[str]:
        return [source(dtype, 1 if channels % full else full, taps)]

    def run(x: torch.Tensor, y: torch.Tensor, dy: torch.Tensor, dx: torch.Tensor) -> None:
        at = x.data_ptr(), dy.data_ptr(), dx.data_ptr()
        vector = 1 if channels % full or (at[0] | at[1] | at[2]) % ACCESS else full
        chunks = -(-channels // (LANES * vector))
        given = struct.pack("<3Q8i", *at, *sizes, chunks)
        kernel(vector).launch(images * tiles[0] * tiles[1] * chunks, THREADS, given)

    return OpEnv(cubin.deferred(run, sources, device), allocates=False)
