"""New tensors, and conversions between dtypes."""

from __future__ import annotations

import math
from typing import Any

import torch

import meta
from tools.torch_samples.compose import shape_of
from tools.torch_samples.decline import Outside, outside_if


def plain(kwargs: dict[str, Any]) -> None:
    """Decline places and layouts that are torch's own; the dtype is handled by the caller."""
    outside_if(str(kwargs.get("device", "cpu")) not in ("cpu", "None"), Outside.DEVICE)


def filled(value: float) -> Any:
    """Return zeros or ones."""

    def made(*size: Any, dtype: Any = None, **kwargs: Any) -> Any:
        plain(kwargs)
        return meta.full(shape_of(*size), value, dtype or "float32")

    return made


def new_filled(value: float) -> Any:
    """Return new_zeros or new_ones, whose dtype is that of a tensor."""

    def made(input: Any, *size: Any, dtype: Any = None, **kwargs: Any) -> Any:
        plain(kwargs)
        return meta.full(shape_of(*size), value, dtype or input.dtype)

    return made


def like(value: float) -> Any:
    """Return zeros_like or ones_like."""

    def made(input: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
        plain(kwargs)
        to_bool = dtype is torch.bool or (dtype is None and input.dtype == "bool")
        return meta.full_like(input, bool(value) if to_bool else value, dtype)

    return made


def full(size: Any, fill_value: Any, *, dtype: Any = None, **kwargs: Any) -> Any:
    """One number everywhere."""
    plain(kwargs)
    value = bool(fill_value) if dtype is torch.bool else fill_value
    return meta.full(shape_of(size), value, dtype)


def arange(
    start: float, end: float | None = None, step: float = 1, *, dtype: Any = None, **kwargs: Any
) -> Any:
    """Numbers at equal distances."""
    plain(kwargs)
    whole = dtype is not None and not dtype.is_floating_point
    numbers = [
        int(b) if b is not None and (whole or isinstance(b, bool)) else b
        for b in (start, end, step)
    ]
    return meta.arange(*numbers, dtype)


def linspace(start: Any, end: Any, steps: int, *, dtype: Any = None, **kwargs: Any) -> Any:
    """So many numbers from start to end, counted from the nearer of the two."""
    plain(kwargs)
    begin, last = float(start), float(end)
    if dtype is not None and "int" in str(dtype):
        begin, last = float(int(begin)), float(int(last))
    step = (last - begin) / (steps - 1) if steps > 1 else 0.0
    i = meta.arange(0, steps, 1, "float64")
    up, down = begin + i * step, last - (steps - 1 - i) * step
    return meta.astype(meta.where(i < steps / 2, up, down), dtype or "float32")


def logspace(
    start: Any, end: Any, steps: int, base: float = 10.0, *, dtype: Any = None, **kwargs: Any
) -> Any:
    """Powers of a base, the exponents at equal distances."""
    if dtype is not None and "int" in str(dtype):
        start, end = int(start), int(end)
    y = meta.pow(float(base), linspace(start, end, steps, dtype="float64", **kwargs))
    return meta.astype(y, dtype or "float32")


def eye(n: int, m: int | None = None, *, dtype: Any = None, **kwargs: Any) -> Any:
    """Ones on the diagonal."""
    plain(kwargs)
    columns = n if m is None else m
    row = meta.expand_dims(meta.arange(0, n, 1, "int64"), 1)
    return meta.astype(row == meta.arange(0, columns, 1, "int64"), dtype or "float32")


def triangle(function: Any) -> Any:
    """Return triu_indices or tril_indices."""

    def made(row: int, col: int, offset: int = 0, *, dtype: Any = None, **kwargs: Any) -> Any:
        plain(kwargs)
        places = meta.argwhere(function(meta.ones((row, col)), offset))
        return meta.astype(meta.permute_dims(places), dtype or "int64")

    return made


def to(dtype: str) -> Any:
    """Return the conversion to one dtype."""
    return lambda input, memory_format=None: meta.astype(input, dtype)


def to_any(input: Any, *args: Any, dtype: Any = None, **kwargs: Any) -> Any:
    """The dtype of a tensor or a dtype itself among arguments of many kinds."""
    for given in args:
        if hasattr(given, "dtype"):
            return meta.cast_like(input, given)
        if isinstance(given, torch.dtype):
            return meta.astype(input, given)
    return meta.copy(input) if dtype is None else meta.astype(input, dtype)


def window(coefficients: Any) -> Any:
    """Return a window that is a sum of cosines with given coefficients."""

    def made(M: int, *args: Any, sym: bool = True, dtype: Any = None, **kwargs: Any) -> Any:
        plain(kwargs)
        given = coefficients(*args, **{k: v for k, v in kwargs.items() if k in ("a", "alpha")})
        if M <= 1:
            return meta.ones((M,), dtype or "float32")
        phase = meta.arange(0, M, 1, "float64") * (2 * math.pi / (M - 1 if sym else M))
        y = meta.zeros((M,), "float64")
        for k, a in enumerate(given):
            y = y + (-1) ** k * a * meta.cos(phase * float(k))
        return meta.astype(y, dtype or "float32")

    return made


def places(M: int, sym: bool, kwargs: dict[str, Any]) -> Any:
    """Return the distances of a window's places from its middle."""
    plain(kwargs)
    return meta.arange(0, M, 1, "float64") - (M - 1 if sym or M <= 1 else M) / 2


def shaped(function: Any) -> Any:
    """Return a window from a function of the distances from its middle and of its length."""

    def made(M: int, *, sym: bool = True, dtype: Any = None, **kwargs: Any) -> Any:
        d = places(M, sym, kwargs)
        own = {k: v for k, v in kwargs.items() if k in ("std", "tau", "center", "beta")}
        y = function(d, M if sym or M <= 1 else M + 1, **own)
        return meta.astype(y, dtype or "float32")

    return made


def exponential(d: Any, length: int, center: float | None = None, tau: float = 1.0) -> Any:
    """exp(-|distance| / tau) from the middle or another place."""
    shift = 0.0 if center is None else (length - 1) / 2 - center
    return meta.exp(meta.abs(d + shift) / -tau)


def gaussian(d: Any, length: int, std: float = 1.0) -> Any:
    """The density of the normal distribution, 1 in the middle."""
    return meta.exp(d * d * (-0.5 / std**2))


def bartlett(d: Any, length: int) -> Any:
    """A triangle that ends at 0."""
    return 1 - meta.abs(d) * (2 / max(length - 1, 1)) if length > 1 else meta.ones_like(d)


def cosine(d: Any, length: int) -> Any:
    """Half a wave."""
    return meta.cos(d * (math.pi / length)) if length > 1 else meta.ones_like(d)


ADAPTERS = {
    "arange": arange,
    "bfloat16": to("bfloat16"),
    "bool": to("bool"),
    "byte": to("uint8"),
    "char": to("int8"),
    "double": to("float64"),
    "eye": eye,
    "float": to("float32"),
    "full": full,
    "full_like": lambda input, fill_value, *, dtype=None, **kwargs: like(fill_value)(
        input, dtype=dtype, **kwargs
    ),
    "half": to("float16"),
    "int": to("int32"),
    "item": lambda input: input.item(),
    "linspace": linspace,
    "linspace|tensor_overload": linspace,
    "logspace": logspace,
    "logspace|tensor_overload": logspace,
    "long": to("int64"),
    "new_full": lambda input, size, fill_value, *, dtype=None, **kwargs: new_filled(fill_value)(
        input, size, dtype=dtype, **kwargs
    ),
    "new_ones": new_filled(1),
    "new_zeros": new_filled(0),
    "ones": filled(1),
    "ones_like": like(1),
    "scalar_tensor": lambda value, *, dtype=None, **kwargs: full((), value, dtype=dtype, **kwargs),
    "short": to("int16"),
    "signal.windows.bartlett": shaped(bartlett),
    "signal.windows.blackman": window(lambda: (0.42, 0.5, 0.08)),
    "signal.windows.cosine": shaped(cosine),
    "signal.windows.exponential": shaped(exponential),
    "signal.windows.gaussian": shaped(gaussian),
    "signal.windows.general_cosine": window(lambda a: tuple(a)),
    "signal.windows.general_hamming": window(lambda alpha=0.54: (alpha, 1 - alpha)),
    "signal.windows.hamming": window(lambda: (0.54, 0.46)),
    "signal.windows.hann": window(lambda: (0.5, 0.5)),
    "signal.windows.nuttall": window(lambda: (0.3635819, 0.4891775, 0.1365995, 0.0106411)),
    "to": to_any,
    "tril_indices": triangle(meta.tril),
    "triu_indices": triangle(meta.triu),
    "zero_": meta.zeros_like,
    "zeros": filled(0),
    "zeros_like": like(0),
}
