"""Inputs of a file: numbers of a seed in the types that the file declares."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tools.onnx_files.table import File

OTHERS = 24
"""The extent of an axis behind the first that is not stated, where the table has none."""


def declared(proto: Any) -> list[Any]:
    """Return the graph's inputs that are no initializers."""
    stored = {t.name for t in proto.graph.initializer}
    return [i for i in proto.graph.input if i.name not in stored]


def is_batched(file: File, proto: Any) -> bool:
    """Whether the second run has other sizes than the first."""
    first, second = (made(file, proto, run) for run in range(2))
    return any(first[n].shape != second[n].shape for n in first)


def made(file: File, proto: Any, run: int) -> dict[str, Any]:
    """Return arrays of NumPy by name, of the sizes of run 0 or 1."""
    return {i.name: _values(file, i, run) for i in declared(proto)}


def shape_of(file: File, declared: Any, run: int) -> tuple[int, ...]:
    """Return the shape of an input in a run. The table names an axis by its name in the file or as
    "input:axis".
    """
    shape = []
    for axis, dim in enumerate(declared.type.tensor_type.shape.dim):
        if dim.HasField("dim_value") and dim.dim_value > 0:
            shape.append(dim.dim_value)
            continue
        keys = (f"{declared.name}:{axis}", dim.dim_param)
        found = next((file.sizes[k] for k in keys if k in file.sizes), None)
        if found is None:
            found = file.batch if axis == 0 or "batch" in dim.dim_param.lower() else OTHERS
        shape.append(found[run] if isinstance(found, tuple) else found)
    return tuple(shape)


def _values(file: File, declared: Any, run: int) -> Any:
    kind = declared.type.tensor_type.elem_type
    dtype = helper.tensor_dtype_to_np_dtype(kind)
    shape = shape_of(file, declared, run)
    if declared.name in file.values:
        return np.full(shape, file.values[declared.name], dtype)
    rng = np.random.default_rng(zlib.crc32(f"{declared.name} {run}".encode()))
    low, high = file.ranges.get(declared.name, (0, 8) if kind in INTEGERS else (-1, 1))
    if kind == onnx.TensorProto.BOOL:
        # Masks that leave nothing give NaN in most models.
        return rng.integers(0, 4, shape) > 0
    if kind in INTEGERS:
        return rng.integers(int(low), int(high), shape).astype(dtype)
    return rng.uniform(low, high, shape).astype(dtype)


INTEGERS = {
    onnx.TensorProto.INT64,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT16,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
}
