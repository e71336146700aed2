"""Functions that create arrays, by the Array API standard, of which those of `meta` take less:
complex numbers, those of uint64, and a device beside an array.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.dtype import canonical
from meta.op.core.function import as_operand
from meta.runtime.ndarray import array

Array = Any
"""An array, or a traced one."""


def astype(x: Array, dtype: object, /, *, copy: bool = True, device: object = None) -> Array:
    """Return ``x`` in another dtype, on another device; itself if nothing changes and not ``copy``.

    Values are converted as by `meta.astype`.

    >>> meta.array_api.astype(meta.array([1.7, -1.7]), "int32").tolist()
    [1, -1]
    """
    x = as_operand(x)
    kind = canonical(dtype)
    found = x if kind == x.dtype else op.astype(x, kind)
    found = found if device is None else found.to(device=device)
    return op.copy(x) if copy and found is x else found


def _numbers(shape: int | tuple[int, ...], value: Any, dtype: object, device: object) -> Array:
    return op.broadcast_to(array(value, dtype, device=device), shape)


def full(
    shape: int | tuple[int, ...],
    fill_value: bool | int | float | complex,
    *,
    dtype: object = None,
    device: object = None,
) -> Array:
    """Return an array of one number; its dtype is by default that of `asarray` of the number.

    >>> meta.array_api.full((2, 2), 7).tolist(), meta.array_api.full(2, 0.5).dtype
    ([[7, 7], [7, 7]], 'float32')
    """
    return _numbers(shape, fill_value, dtype, device)


def full_like(
    x: Array,
    /,
    fill_value: bool | int | float | complex,
    *,
    dtype: object = None,
    device: object = None,
) -> Array:
    """Return an array of one number, of the shape, dtype and device of ``x``.

    >>> meta.array_api.full_like(meta.zeros((2, 2)), 7).tolist()
    [[7.0, 7.0], [7.0, 7.0]]
    """
    x = as_operand(x)
    where = getattr(x, "device", None) if device is None else device
    return _numbers(x.shape, fill_value, x.dtype if dtype is None else dtype, where)


def zeros_like(x: Array, /, *, dtype: object = None, device: object = None) -> Array:
    """Return zeros, of the shape, dtype and device of ``x``.

    >>> meta.array_api.zeros_like(meta.ones((2, 2))).tolist()
    [[0.0, 0.0], [0.0, 0.0]]
    """
    return _on(op.zeros_like(x, dtype), device)


def ones_like(x: Array, /, *, dtype: object = None, device: object = None) -> Array:
    """Return ones, of the shape, dtype and device of ``x``.

    >>> meta.array_api.ones_like(meta.zeros((2, 2)), dtype="int32").tolist()
    [[1, 1], [1, 1]]
    """
    return _on(op.ones_like(x, dtype), device)


def _on(x: Array, device: object) -> Array:
    return x if device is None else x.to(device=device)


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Return the coordinates of the grid that vectors span, as a list; see `meta.meshgrid`.

    >>> x, y = meta.array_api.meshgrid(meta.array([1, 2, 3]), meta.array([4, 5]))
    >>> x.tolist(), y.tolist()
    ([[1, 2, 3], [1, 2, 3]], [[4, 4, 4], [5, 5, 5]])
    """
    return list(op.meshgrid(*arrays, indexing=indexing))
