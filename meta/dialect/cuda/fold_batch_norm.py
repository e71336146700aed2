"""Batch normalisation folded into the weights of all layers in one launch, or a few.

A convolution network has some fifty layers of a few hundred kilobytes: a launch for each takes
longer than reading and writing their weights. As for other lists of tensors (`list_kernel.py`) the
table of addresses is a parameter by value.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import Launch, OpEnv, decline_if, require_static
from meta.dialect.cuda import cubin, list_kernel
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, runtime_args, slot_positions

THREADS = 256
CHUNK = 1 << 12
"""Elements of a thread block: two vectors of half precision for each thread, four of float32.

On an H100 (2026-11-26) ResNet-50's weights take 37 us in float16 and 69 in float32, 2.6 and 2.7
TB/s; chunks of 8192 take 44 and 72 with 256 threads (with 512 threads 36 in float16).
"""
ACCESS = 16
"""Bytes of an access, where rows and addresses allow."""
LOADS_IN_FLIGHT = 2
"""Accesses of a thread before it waits for the first; four are no faster."""
MOST = 1 << 31
"""Elements of a tensor, which are counted in 32 bits."""
BYTES = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}
LISTS = "w", "mean", "var", "scale", "shift", "b"
"""The lists that are read; then come the weights and the biases that are made."""
TYPES = "WEIGHT", "MEAN", "VAR", "SCALE", "SHIFT", "B"
"""Their types in the source."""
TABLES = len(LISTS) + 2
HEAD_BYTES, LAYER_BYTES = 24, 8 * TABLES + 12
"""Of the struct: what is there once, and for each layer."""


@dataclass(frozen=True)
class LayerBatch:
    """The layers of one launch: their numbers, the end of its struct, and its thread blocks."""

    layers: tuple[int, ...]
    tail: bytes
    blocks: int
    room: int


def layer_batches(w: tuple[TensorType, ...], rooms: tuple[int, ...]) -> list[LayerBatch]:
    """Cut layers into launches; rooms: for how many there may be room, the least that does first.

    A layer without channels is left out.
    """
    layers = [i for i, t in enumerate(w) if t.size]
    room = next((r for r in rooms if r >= len(layers)), rooms[-1])
    found = []
    for start in range(0, len(layers), room):
        some = layers[start : start + room]
        chunks = [0]
        for i in some:
            chunks.append(chunks[-1] + -(-w[i].size // CHUNK))
        spare = [0] * (room - len(some))
        sizes = [w[i].size for i in some]
        rows = [w[i].size // w[i].static_shape[0] for i in some]
        tail = struct.pack(
            f"<{room}I{room}I{room + 1}i", *sizes, *spare, *rows, *spare, *chunks, *spare
        )
        found.append(LayerBatch(tuple(some), tail, chunks[-1], room))
    return found


class Launcher:
    """What folds into weights of these types; ``types`` are those of all tensors in the source."""

    def __init__(
        self, w: tuple[TensorType, ...], types: dict[str, str], eps: float, device: Device
    ) -> None:
        self._types, self._eps, self._device = types, eps, device.ordinal
        limits = list_kernel.parameter_limits(device.ordinal)
        rooms = tuple((limit - HEAD_BYTES - 4 - 7) // LAYER_BYTES for limit in limits)
        self.parts = layer_batches(w, rooms)
        self._kernel = cache(self._compiled)

    def source(self, part: LayerBatch) -> str:
        """Return the source of a launch."""
        widest = max(BYTES[self._types["WEIGHT"]], BYTES[self._types["RESULT"]])
        sizes = {
            "VECTOR": ACCESS // widest,
            "AHEAD": LOADS_IN_FLIGHT,
            "THREADS": THREADS,
            "CHUNK": CHUNK,
        }
        return source("fold_batch_norm", self._types, {**sizes, "TENSORS": part.room})

    def _compiled(self, part: LayerBatch, size: int) -> Launch:
        return cubin.launch(
            self.source(part), "fold", self._device, (part.blocks, 1), THREADS, size
        )

    def __call__(self, tables: list[list[int]]) -> None:
        """Launch it; ``tables`` are the addresses of the lists, of an empty list none."""
        for part in self.parts:
            content = bytearray(struct.pack("<dii", self._eps, len(part.layers), 0))
            for table in tables:
                some = [table[i] if table else 0 for i in part.layers]
                content += struct.pack(f"<{part.room}Q", *some, *[0] * (part.room - len(some)))
            content += part.tail
            content += bytes(-len(content) % 8)
            self._kernel(part, len(content))(bytes(content))


@dialect.op(op.multi_tensor_fold_batch_norm)
def multi_tensor_fold_batch_norm(call: CallValues) -> OpEnv:
    """Return the launch of a call; of several hundred layers there are more."""
    args = call.args
    lists: list[tuple[TensorType, ...]] = [getattr(args, name) for name in LISTS]
    require_static(*(t for tensors in lists for t in tensors))
    for t in args.w:
        decline_if(t.size >= MOST, f"{t.size} elements, more than this kernel counts")
        decline_if(t.static_shape[0] and not t.size, "there are biases of channels without weights")
    wide = "float64" if args.w[0].dtype == "float64" else "float32"
    kinds = (tensors[0].dtype if tensors else wide for tensors in lists)
    types = {"COMPUTE": wide, **dict(zip(TYPES, kinds, strict=True))}
    types["RESULT"] = call.outputs[0].dtype
    launch = Launcher(args.w, types, args.eps, call.device)
    places = slot_positions(call)
    read = [places.get(name, slice(0)) for name in LISTS]
    end, count = len(runtime_args(call.op, args)), len(args.w)
    made = slice(end, end + count), slice(end + count, end + 2 * count)

    def run(*values: torch.Tensor) -> None:
        launch([[t.data_ptr() for t in values[at]] for at in (*read, *made)])

    def sources() -> list[str]:
        return [launch.source(part) for part in launch.parts]

    return cubin.env(run, sources, call.device.ordinal)
