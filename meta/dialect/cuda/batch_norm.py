"""Batch normalisation of arrays whose channels come last, and its gradients: three launches each.

The gradients want no statistics of the forward pass: they are had from the pass that adds up dy.
"""

from __future__ import annotations

import struct
from functools import cache
from typing import Any

import torch

from meta import op
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cuda import cubin, driver
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.batch_norm_source import FINISHING, THREADS, source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import normalize_axis

ACCESS = 16
"""Bytes of an access, where channels and addresses allow."""
SUMMING, FILLING = 4, 8
"""Thread blocks per processor, of the sums, which every channel's last step reads, and of what
follows.
"""
DTYPES = "float16", "bfloat16", "float32"
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
POINTERS = (
    *("x", "dy", "w", "b", "running_mean", "running_var"),
    *("out", "dw", "db", "partial", "known"),
)


class _Kernels:
    """The kernels of a call, compiled when they are first launched."""

    def __init__(self, call: CallValues, backward: bool, types: dict[str, str]) -> None:
        x: TensorType = call.args.x
        _require_fits(x, call.args.axis)
        self.dtype, self.channels = x.dtype, x.static_shape[-1]
        self.rows, self.backward = x.size // self.channels, backward
        unused = dict.fromkeys(("P", "R", "DW", "DB"), "float32")
        self.types = {"T": x.dtype, **unused, **types}
        self.momentum, self.eps = getattr(call.args, "momentum", 0.0), call.args.eps
        self.device = call.device.ordinal
        self.processors = torch.cuda.get_device_properties(self.device).multi_processor_count
        self.kernel = cache(self._kernel)

    def _kernel(self, name: str, vector: int) -> driver.Function:
        return cubin.function(source(self.types, vector, self.backward), name, self.device)

    def run(self, tensors: dict[str, torch.Tensor]) -> None:
        """Launch the kernels with tensors by the names of their parameters."""
        moved = tensors["x"].data_ptr() | tensors["out"].data_ptr()
        if self.backward:
            moved |= tensors["dy"].data_ptr()
        vector = ACCESS // BYTES[self.dtype]
        if self.channels % vector or moved % ACCESS:
            vector = 1
        lanes, tiles = shares(self.channels // vector)
        blocks = self._blocks(SUMMING, lanes, tiles)
        sums = 4 if self.backward else 2
        options = {"dtype": torch.float32, "device": tensors["x"].device}
        partial = torch.empty(blocks, sums, self.channels, **options)
        known = torch.empty(sums + (not self.backward), self.channels, **options)
        tensors = {**tensors, "partial": partial, "known": known}
        at = [0 if (t := tensors.get(n)) is None else t.data_ptr() for n in POINTERS]
        numbers = self.rows, self.channels, lanes, blocks, self.momentum, self.eps
        given = struct.pack("<11Qqiiiff4x", *at, *numbers)
        self.kernel("sums", vector).launch(blocks, THREADS, given, tiles)
        self.kernel("finish", vector).launch(-(-self.channels // 32), FINISHING, given)
        filling = self._blocks(FILLING, lanes, tiles)
        self.kernel("apply", vector).launch(filling, THREADS, given, tiles)

    @property
    def workspace(self) -> int:
        """The bytes of the sums that aligned tensors take."""
        full = ACCESS // BYTES[self.dtype]
        lanes, tiles = shares(self.channels // (1 if self.channels % full else full))
        sums = 4 if self.backward else 2
        blocks = self._blocks(SUMMING, lanes, tiles)
        return 4 * self.channels * (blocks * sums + sums + (not self.backward))

    def _blocks(self, each: int, lanes: int, tiles: int) -> int:
        """Return into how many thread blocks the rows are divided."""
        at_once = THREADS // lanes
        return max(1, min(self.processors * each // tiles, -(-self.rows // at_once)))


def shares(vectors: int) -> tuple[int, int]:
    """Return how many threads share a row's ``vectors``, a power of 2, and how often that is done
    beside one another.
    """
    lanes = 1
    while lanes < 32 and lanes < vectors:
        lanes *= 2
    return lanes, -(-vectors // lanes)


def _require_fits(x: TensorType, axis: int) -> None:
    if not x.is_static or x.dtype not in DTYPES:
        raise Unsupported(f"made for {', '.join(DTYPES)} of extents that are numbers, not {x}")
    if normalize_axis(axis, x.ndim) != x.ndim - 1:
        raise Unsupported("made for channels on the last axis")
    if not x.size:
        raise Unsupported("there is an empty tensor")


def _dtype(**parameters: TensorType | None) -> str:
    """Return the dtype of those that there are; Unsupported if they differ."""
    found = {p.dtype for p in parameters.values() if p is not None}
    if len(found) > 1:
        raise Unsupported(f"{' and '.join(parameters)} differ in dtype")
    return found.pop() if found else "float32"


@dialect.op(op.batch_norm_train)
def batch_norm_train(call: CallValues) -> OpEnv:
    """Return the launches that normalise, and write the running statistics."""
    a = call.args
    running = _dtype(running_mean=a.running_mean, running_var=a.running_var)
    kernels = _Kernels(call, False, {"P": _dtype(w=a.w, b=a.b), "R": running})
    return _env(kernels, call, "x", "running_mean", "running_var", "w", "b", results=("out",))


@dialect.op(op.batch_norm_train_dxwb)
def batch_norm_train_dxwb(call: CallValues) -> OpEnv:
    """Return the launches that compute the statistics once more."""
    _, dw, db = call.outputs
    types = {"P": _dtype(w=call.args.w), "DW": dw.dtype, "DB": db.dtype}
    kernels = _Kernels(call, True, types)
    return _env(kernels, call, "dy", "x", "w", "b", results=("out", "dw", "db"))


def _env(kernels: _Kernels, call: CallValues, *names: str, results: tuple[str, ...]) -> OpEnv:
    """Return what runs the kernels with the arguments that a call has."""
    args: dict[str, Any] = call.args._asdict()
    given = (*(n for n in names if args[n] is not None), *results)

    def run(*values: torch.Tensor) -> None:
        kernels.run(dict(zip(given, values, strict=True)))

    return OpEnv(run, allocates=False, workspace=kernels.workspace)
