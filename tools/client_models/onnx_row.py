"""An ONNX file of a wheel, and its inputs: numbers of a seed in the types that it declares."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tools.client_models.measure import Outcome, Row
from tools.client_models.onnx_stages import OnnxSubject
from tools.client_models.wheels import file_of_wheel

OTHERS = 24
"""The extent of an axis behind the first that is not stated, where the table has none."""
INTEGERS = {
    onnx.TensorProto.INT64,
    onnx.TensorProto.INT32,
    onnx.TensorProto.INT16,
    onnx.TensorProto.INT8,
    onnx.TensorProto.UINT8,
}


@dataclass(frozen=True, kw_only=True)
class OnnxRow(Row):
    """A file of a wheel.

    Attributes
    ----------
    package, version: as pip knows them. path: inside of the wheel.
    sizes: extents that the file does not state, by the name of the axis or "input:axis": one, or
    one for each run. batch: of the first axes that are not stated, at both runs.
    ranges: by input, where its numbers lie; values: by input, the one number that it holds.
    rows: how many along axis 1 of the results are compared, if not all: the others have nearly
    equal scores, by which they are sorted.
    tolerance: the largest distance from onnxruntime's results over the largest number of a result,
    and ``why`` where it is not the default.
    cache: the folder of the wheels.
    """

    package: str
    version: str
    path: str
    sizes: Mapping[str, int | tuple[int, int]] = field(default_factory=dict)
    batch: tuple[int, int] = (1, 3)
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    rows: int | None = None
    tolerance: float = 1e-4
    why: str | None = None
    cache: Path = Path()

    @property
    def key(self) -> str:
        """The package and the path in it."""
        return f"{self.package}/{self.path.partition('/')[2]}"

    def subject(self, outcome: Outcome, dialect: str | None) -> OnnxSubject:
        """Return the file with inputs and onnxruntime's results."""
        path = file_of_wheel(self.package, self.version, self.path, self.cache)
        proto = onnx.load(path)
        runs = [self.inputs(proto, run) for run in range(2 if self.is_batched(proto) else 1)]
        return OnnxSubject(path, proto, runs, (self.tolerance, self.rows), outcome, dialect)

    def is_batched(self, proto: Any) -> bool:
        """Whether the second run has other sizes than the first."""
        first, second = (self.inputs(proto, run) for run in range(2))
        return any(first[n].shape != second[n].shape for n in first)

    def inputs(self, proto: Any, run: int) -> dict[str, Any]:
        """Return arrays of NumPy by name, of the sizes of run 0 or 1."""
        return {i.name: self._values(i, run) for i in declared_inputs(proto)}

    def shape_of(self, declared: Any, run: int) -> tuple[int, ...]:
        """Return the shape of an input in a run. The table names an axis by its name in the file or
        as "input:axis".
        """
        shape = []
        for axis, dim in enumerate(declared.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                shape.append(dim.dim_value)
                continue
            keys = (f"{declared.name}:{axis}", dim.dim_param)
            found = next((self.sizes[k] for k in keys if k in self.sizes), None)
            if found is None:
                found = self.batch if axis == 0 or "batch" in dim.dim_param.lower() else OTHERS
            shape.append(found[run] if isinstance(found, tuple) else found)
        return tuple(shape)

    def _values(self, declared: Any, run: int) -> Any:
        kind = declared.type.tensor_type.elem_type
        dtype = helper.tensor_dtype_to_np_dtype(kind)
        shape = self.shape_of(declared, run)
        if declared.name in self.values:
            return np.full(shape, self.values[declared.name], dtype)
        rng = np.random.default_rng(zlib.crc32(f"{declared.name} {run}".encode()))
        low, high = self.ranges.get(declared.name, (0, 8) if kind in INTEGERS else (-1, 1))
        if kind == onnx.TensorProto.BOOL:
            # Masks that leave nothing give NaN in most models.
            return rng.integers(0, 4, shape) > 0
        if kind in INTEGERS:
            return rng.integers(int(low), int(high), shape).astype(dtype)
        return rng.uniform(low, high, shape).astype(dtype)


def declared_inputs(proto: Any) -> list[Any]:
    """Return the graph's inputs that are no initializers."""
    stored = {t.name for t in proto.graph.initializer}
    return [i for i in proto.graph.input if i.name not in stored]
