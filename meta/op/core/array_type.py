"""The IR type of an array, kept on its interned key."""

from __future__ import annotations

from meta.ir.types import TensorType
from meta.runtime.ndarray import ArrayKey


def array_type(key: ArrayKey) -> TensorType:
    """Return the `TensorType` of arrays with this key."""
    if key.type is None:
        key.type = TensorType(key.shape, key.dtype)
    found: TensorType = key.type
    return found
