"""What several adapters are composed with: torch's ways to say axes, dtypes and indices."""

from __future__ import annotations

from typing import Any

import numpy as np

import meta


def axes(x: Any, dim: Any) -> Any:
    """Return torch's ``dim`` as `meta` has it: () is all axes as well, and 0-d tensors have one."""
    if dim is None or x.ndim == 0:
        return None
    return tuple(dim) or None if isinstance(dim, tuple | list) else dim


def axis_of(x: Any, dim: int) -> int:
    """Return an axis counted from the start."""
    return dim % max(x.ndim, 1)


def at_least_1d(x: Any) -> Any:
    """Return a 0-d array as a vector of one element."""
    return meta.reshape(x, (1,)) if x.ndim == 0 else x


def like_1d(function: Any, x: Any, *args: Any, **kwargs: Any) -> Any:
    """Apply a function of arrays with axes; torch lets a 0-d tensor have one as well."""
    if x.ndim:
        return function(x, *args, **kwargs)
    return meta.reshape(function(at_least_1d(x), *args, **kwargs), ())


def in_dtype(x: Any, dtype: Any) -> Any:
    """Return an array in another dtype; None leaves it."""
    return x if dtype is None else meta.astype(x, dtype)


def real(x: Any) -> Any:
    """Return integers and bools as float32, as torch's functions of real numbers take them."""
    return x if "float" in x.dtype or "complex" in x.dtype else meta.astype(x, "float32")


def whole(function: Any) -> Any:
    """Return a function that is computed in float64 of integers, and rounded towards 0 back."""

    def applied(input: Any, *args: Any, **kwargs: Any) -> Any:
        if "float" in input.dtype:
            return function(input, *args, **kwargs)
        given = [
            meta.astype(a, "float64") if getattr(a, "dtype", None) == input.dtype else a
            for a in (input, *args)
        ]
        return meta.astype(meta.trunc(function(*given, **kwargs)), input.dtype)

    return applied


def of_reals(function: Any) -> Any:
    """Return a function that takes integers and bools, too: as float32."""

    def applied(*args: Any, **kwargs: Any) -> Any:
        return function(*[real(a) if hasattr(a, "dtype") else a for a in args], **kwargs)

    return applied


def wide(function: Any) -> Any:
    """Return a function of one tensor that is computed in float32 where its numbers are shorter."""

    def applied(input: Any, *args: Any, **kwargs: Any) -> Any:
        if input.dtype not in ("bfloat16", "float16"):
            return function(input, *args, **kwargs)
        return meta.astype(function(meta.astype(input, "float32"), *args, **kwargs), input.dtype)

    return applied


def number_for(value: Any, like: Any) -> Any:
    """Return a Python number as torch takes it beside integers: without what the dtype lacks."""
    if not isinstance(value, int | float) or "float" in like.dtype or "complex" in like.dtype:
        return value
    return bool(value) if like.dtype == "bool" else int(value)


def indices(values: Any) -> Any:
    """Return known indices as an array."""
    return meta.array(np.asarray(values, dtype=np.int64))


def narrowed(x: Any, axis: int, begin: int, end: int, step: int = 1) -> Any:
    """Return ``x[..., begin:end:step, ...]`` along one axis, begin and end not negative."""
    at = axis_of(x, axis)
    whole = x.shape[:at]
    return meta.strided_slice(x, (*(0,) * at, begin), (*whole, end), (*(1,) * at, step))


def picked(x: Any, axis: int, index: int) -> Any:
    """Return ``x`` at one index of an axis, which is gone."""
    at = axis_of(x, axis)
    index %= x.shape[at]
    return meta.squeeze(narrowed(x, at, index, index + 1), at)


def replaced(x: Any, axis: int, value: Any) -> tuple[Any, ...]:
    """Return the shape of ``x`` with another extent at one axis."""
    at = axis_of(x, axis)
    return (*x.shape[:at], value, *x.shape[at + 1 :])


def scalar(value: Any, like: Any) -> Any:
    """Return a number as a 0-d array of the dtype of another one."""
    return meta.full((), value, like.dtype)


def shape_of(*size: Any) -> tuple[int, ...]:
    """Return a shape given as one sequence or as several ints."""
    return tuple(size[0]) if size and not isinstance(size[0], int) else size
