"""Functions that create arrays, by the Array API standard: ``device=None`` is the CPU, and
``dtype=None`` float32, or what the value has.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.dtype import canonical
from meta.base.errors import ArgumentError
from meta.op.core.function import operand
from meta.runtime.ndarray import array, as_array, ndarray

Array = Any
"""An array, or a traced one."""


def asarray(
    obj: Any, /, *, dtype: object = None, device: object = None, copy: bool | None = None
) -> ndarray:
    """Return an array of numbers, nested lists of them, an array, or a DLPack exporter.

    ``copy``: True gives memory of its own, False that of ``obj``, and ArgumentError where that
    cannot be; None copies where it has to. Other arguments and errors as of `meta.array`.
    """
    if copy is True or isinstance(obj, bool | int | float | complex | list | tuple):
        if copy is False:
            raise _refused(obj)
        return array(obj, dtype, device=device)
    if not isinstance(obj, ndarray | torch.Tensor | np.ndarray) and not hasattr(obj, "__dlpack__"):
        if copy is False:
            raise _refused(obj)
        return array(obj, dtype, device=device)
    shared = as_array(obj)
    found = shared.to(device=device, dtype=dtype)
    if copy is False and found is not shared:
        raise _refused(obj)
    return found


def _refused(obj: Any) -> ArgumentError:
    return ArgumentError(
        "this object cannot be an array without a copy",
        expected="an array of the dtype, on the device",
        found=type(obj).__name__,
        hint="copy=None",
    )


def astype(x: Array, dtype: object, /, *, copy: bool = True, device: object = None) -> Array:
    """Return ``x`` in another dtype, on another device; itself if nothing changes and not ``copy``.

    Values are converted as by `meta.cast`.
    """
    x = operand(x)
    kind = canonical(dtype)
    found = x if kind == x.dtype else op.cast(x, kind)
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
    """Return an array of one number; its dtype is by default that of `asarray` of the number."""
    return _numbers(shape, fill_value, dtype, device)


def zeros(shape: int | tuple[int, ...], *, dtype: object = None, device: object = None) -> Array:
    """Return an array of zeros, of float32 by default."""
    return op.zeros(shape, *_kind_and_place(dtype, device))


def ones(shape: int | tuple[int, ...], *, dtype: object = None, device: object = None) -> Array:
    """Return an array of ones, of float32 by default."""
    return op.ones(shape, *_kind_and_place(dtype, device))


def empty(shape: int | tuple[int, ...], *, dtype: object = None, device: object = None) -> Array:
    """Return an array whose values do not matter: they are zeros."""
    return op.zeros(shape, *_kind_and_place(dtype, device))


def _kind_and_place(dtype: object, device: object) -> tuple[object, object]:
    return "float32" if dtype is None else dtype, "cpu" if device is None else device


def full_like(
    x: Array,
    /,
    fill_value: bool | int | float | complex,
    *,
    dtype: object = None,
    device: object = None,
) -> Array:
    """Return an array of one number, of the shape, dtype and device of ``x``."""
    x = operand(x)
    where = getattr(x, "device", None) if device is None else device
    return _numbers(x.shape, fill_value, x.dtype if dtype is None else dtype, where)


def zeros_like(x: Array, /, *, dtype: object = None, device: object = None) -> Array:
    """Return zeros, of the shape, dtype and device of ``x``."""
    return _on(op.zeros_like(x, dtype), device)


def ones_like(x: Array, /, *, dtype: object = None, device: object = None) -> Array:
    """Return ones, of the shape, dtype and device of ``x``."""
    return _on(op.ones_like(x, dtype), device)


def empty_like(x: Array, /, *, dtype: object = None, device: object = None) -> Array:
    """Return an array of the shape, dtype and device of ``x`` whose values do not matter."""
    return _on(op.zeros_like(x, dtype), device)


def _on(x: Array, device: object) -> Array:
    return x if device is None else x.to(device=device)


def arange(
    start: int | float,
    /,
    stop: int | float | None = None,
    step: int | float = 1,
    *,
    dtype: object = None,
    device: object = None,
) -> Array:
    """Return ``start + i * step`` for i = 0, 1, ... before ``stop``; see `meta.arange`."""
    return op.arange(start, stop, step, dtype, "cpu" if device is None else device)


def eye(
    n_rows: int,
    n_cols: int | None = None,
    /,
    *,
    k: int = 0,
    dtype: object = None,
    device: object = None,
) -> Array:
    """Return ones on the diagonal ``k`` of a matrix, else zeros; see `meta.eye`."""
    kind, place = _kind_and_place(dtype, device)
    return op.eye(n_rows, n_cols, k=k, dtype=kind, device=place)


def meshgrid(*arrays: Array, indexing: str = "xy") -> list[Array]:
    """Return the coordinates of the grid that vectors span, as a list; see `meta.meshgrid`."""
    return list(op.meshgrid(*arrays, indexing=indexing))


def linspace(
    start: int | float | complex,
    stop: int | float | complex,
    /,
    num: int,
    *,
    dtype: object = None,
    device: object = None,
    endpoint: bool = True,
) -> Array:
    """Return ``num`` evenly spaced numbers; see `meta.linspace`."""
    kind, place = _kind_and_place(dtype, device)
    return op.linspace(start, stop, num, dtype=kind, device=place, endpoint=endpoint)
