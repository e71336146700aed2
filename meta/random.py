"""Random numbers: one seed, and the same numbers on every device, on arrays and in programs.

Each call draws a key from one stream (`meta.runtime.random`), which `seed` starts anew, and expands
it by an operator. In traced code the call becomes part of the program, which draws a key of its own
in every run. So the numbers are a function of the seed and the order of calls, whichever executor
runs them.

``shape`` is an int or a sequence of ints, and the only positional argument of what draws numbers:
NumPy has it last. ``dtype`` and ``device`` are those of the result. Without
a device, it is where the array parameters are; else, in traced code, where the program's inputs
are; else the CPU, or where a block says (``with meta.device("cuda"):``). ArgumentError says what
is wrong with an argument.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.call_context import current
from meta.base.device import CPU, Device, default_device, require
from meta.base.did_you_mean import unknown_attribute
from meta.base.dtype import TO_TORCH, canonical, is_float, limits
from meta.base.errors import ArgumentError
from meta.base.signature_check import check_signature
from meta.dialect.core.preference import unrestricted
from meta.dialect.core.random_fill import FILLED, kernel_of, refuse_capture
from meta.ir.types import SymbolicDim
from meta.op.core.tracing import Symbol, Trace
from meta.runtime.array_key import array_key
from meta.runtime.ndarray import as_array, ndarray
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory, require_room
from meta.runtime.random import Generator, default, seed

__all__ = [
    "Generator",
    "bernoulli",
    "default",
    "exponential",
    "gumbel",
    "multinomial",
    "normal",
    "permutation",
    "randint",
    "seed",
    "uniform",
]

Shape = int | Sequence[int]
Array = Any
"""An array, or a traced value."""


def _draw(
    random: Any, place: str, shape: tuple[Any, ...], *numbers: float, dtype: str = "float32"
) -> Array:
    """Return numbers of an operator. Those of an eager call are the same on every dialect, so the
    choice of `only` and `exclude`, which is about what is computed, does not hold for it; kernels
    that serve all shapes fill the result at once.
    """
    if current() is not None:
        return random(_key(place), shape, *numbers, dtype=dtype)
    device = Device(place)
    kernel = kernel_of(random, device.kind, dtype)
    refuse_capture(device)
    if kernel is None:
        with unrestricted():
            return random(_key(place), shape, *numbers, dtype=dtype)
    key, kind = array_key(shape, dtype, device), TO_TORCH[dtype]
    require_room(math.prod(shape) * kind.itemsize, device, random.name)
    try:
        out = torch.empty(shape, dtype=kind, device=None if device == CPU else place)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        hint = "fewer numbers at a time"
        raise out_of_memory(error, device, "random numbers", hint=hint) from None
    kernel(default.key(), *numbers, out=out)
    return ndarray(out, key)


@check_signature
def normal(
    shape: Shape,
    *,
    mean: float | Array = 0.0,
    std: float | Array = 1.0,
    dtype: object = "float32",
    device: object = None,
) -> Array:
    """Return independent samples of a normal distribution.

    mean, std: numbers, std >= 0; or arrays of ``dtype`` that broadcast to ``shape``, which get the
    gradients of ``mean + std * z`` (Kingma and Welling, "Auto-encoding variational Bayes", 2014).

    >>> meta.random.seed(0)
    >>> meta.random.normal((2, 3), std=0.1).shape
    (2, 3)
    """
    extents, place = _shape(shape), _on(device, mean, std)
    if _is_number(mean) and _is_number(std):
        _require(std >= 0, "the standard deviation is negative", "std >= 0", std)
        numbers = float(mean), float(std)
        return _draw(op.random_normal, place, extents, *numbers, dtype=_floating(dtype))
    z = _draw(op.random_normal, place, extents, 0.0, 1.0, dtype=_floating(dtype))
    return _of_shape(op.add(op.multiply(z, _tensor(std)), _tensor(mean)), extents)


@check_signature
def uniform(
    shape: Shape,
    *,
    low: float | Array = 0.0,
    high: float | Array = 1.0,
    dtype: object = "float32",
    device: object = None,
) -> Array:
    """Return independent samples of the uniform distribution on [low, high).

    low, high: numbers, low <= high; or arrays of ``dtype`` that broadcast to ``shape``, which get
    the gradients of ``low + (high - low) * u``. What is rounded to ``high`` becomes ``low``.

    >>> meta.random.uniform(4, low=-1.0, high=1.0).dtype
    'float32'
    """
    extents, place = _shape(shape), _on(device, low, high)
    if _is_number(low) and _is_number(high):
        _require(low <= high, "the interval is empty", "low <= high", (low, high))
        numbers = float(low), float(high)
        return _draw(op.random_uniform, place, extents, *numbers, dtype=_floating(dtype))
    u = _unit(place, extents, _floating(dtype))
    low, high = _tensor(low), _tensor(high)
    y = op.add(op.multiply(u, op.subtract(high, low)), low)
    return _of_shape(op.where(op.less(y, high), y, low), extents)


@check_signature
def randint(
    shape: Shape, *, low: int, high: int, dtype: object = "int64", device: object = None
) -> Array:
    """Return independent integers, uniform on [low, high); ``dtype`` has them all.

    >>> meta.random.randint((2, 2), low=0, high=10).dtype
    'int64'
    """
    name = canonical(dtype)
    whole = not is_float(name) and name != "bool"
    _require(whole, "the numbers are integers", "an integer dtype", name)
    held = limits(name)
    _require(
        isinstance(low, int) and isinstance(high, int) and held.min <= low < high <= held.max + 1,
        "there is no integer to draw",
        f"ints, {held.min} <= low < high <= {held.max + 1}",
        (low, high),
    )
    return _draw(op.random_integers, _on(device), _shape(shape), low, high - 1, dtype=name)


@check_signature
def bernoulli(p: float | Array, *, dtype: object = None) -> Array:
    """Return 1 with probability ``p`` and else 0, independently for each element of ``p``.

    p: a number, or an array of floats from 0 to 1; others, and NaN, are an ArgumentError where
    they are at hand: in an eager call on the CPU. Elsewhere what is below 0, or NaN, gives 0, and
    what is above 1 gives 1. dtype: of the result; None: that of p.

    >>> meta.random.bernoulli(meta.array([0.0, 1.0])).tolist()
    [0.0, 1.0]
    """
    if _is_number(p):
        _require(0 <= p <= 1, "p is not a probability", "0 <= p <= 1", p)
    weights = _wide(p)
    if _at_hand(weights):
        least, most = _bounds(weights.tensor) if weights.size else (0.0, 1.0)
        _require(0 <= least <= most <= 1, "p has no probabilities", "0 <= p <= 1", (least, most))
    name = canonical(dtype) if dtype is not None else _lifted(p).dtype
    u = _unit(_on(None, weights), weights.shape, weights.dtype)
    by_parts = _at_hand(weights) and name in (*FILLED, "bool")
    if not by_parts or weights.requires_grad:  # where a gradient ends is known by the operators
        return op.astype(op.less(u, weights), name)
    drawn = torch.empty(weights.shape, dtype=TO_TORCH[name])
    for out, number, weight in _pieces(drawn, u.tensor, weights.tensor.contiguous()):
        out.copy_(number < weight)
    return ndarray(drawn)


@check_signature
def exponential(
    shape: Shape,
    *,
    scale: float | Array = 1.0,
    dtype: object = "float32",
    device: object = None,
) -> Array:
    """Return independent samples of the exponential distribution with mean ``scale``.

    scale: a number >= 0, or an array of ``dtype`` that broadcasts to ``shape``, which gets a
    gradient. All samples of scale 1 are above 0.

    >>> meta.random.exponential((2, 3)).shape
    (2, 3)
    """
    if _is_number(scale):
        _require(scale >= 0, "the scale is negative", "scale >= 0", scale)
    extents = _shape(shape)
    drawn = _exponential(extents, _floating(dtype), _on(device, scale))
    drawn = op.astype(drawn, canonical(dtype))
    if _is_number(scale) and scale == 1:
        return drawn
    return _of_shape(op.multiply(drawn, _tensor(scale)), extents)


@check_signature
def gumbel(
    shape: Shape,
    *,
    loc: float | Array = 0.0,
    scale: float | Array = 1.0,
    dtype: object = "float32",
    device: object = None,
) -> Array:
    """Return independent samples of the Gumbel distribution, ``loc - scale * log(e)`` with samples
    ``e`` of the exponential one.

    loc, scale: numbers, scale >= 0; or arrays of ``dtype`` that broadcast to ``shape``, which get
    gradients.

    >>> meta.random.gumbel((2, 3)).shape
    (2, 3)
    """
    if _is_number(scale):
        _require(scale >= 0, "the scale is negative", "scale >= 0", scale)
    extents = _shape(shape)
    e = _exponential(extents, _floating(dtype), _on(device, loc, scale))
    drawn = op.astype(op.negative(op.log(e)), canonical(dtype))
    return _of_shape(op.add(op.multiply(drawn, _tensor(scale)), _tensor(loc)), extents)


@check_signature
def multinomial(p: Array, num_samples: int, replacement: bool = False) -> Array:
    """Return indices along the last axis of ``p``, drawn with probabilities proportional to it.

    p: floats >= 0, not all 0 along the last axis; their sum may be any. Result: int64, of p's shape
    with ``num_samples`` for the last extent. With ``replacement`` the draws are independent;
    without, all indices of a row differ, and those of weight 0 come after all others
    (Efraimidis and Spirakis, "Weighted random sampling with a reservoir", 2006).

    Other weights are an ArgumentError where they are at hand: in an eager call on the CPU. In
    traced code and on CUDA nobody looks at them: the indices are in range, and mean nothing.

    >>> meta.random.multinomial(meta.array([0.0, 1.0]), 1).tolist()
    [1]
    """
    weights = _wide(p)
    _require(len(weights.shape) > 0, "p has no axis", "at least one axis", weights.shape)
    if _at_hand(weights) and weights.size:
        least, most = _bounds(weights.tensor)
        fits = 0 <= least <= most < math.inf
        _require(fits, "p has no weights", "finite numbers of at least 0", (least, most))
        least = float(weights.tensor.sum(-1).min())
        _require(least > 0, "all weights of a row are 0", "one above 0 in each row", least)
    count, place = weights.shape[-1], _on(None, weights)
    fits = isinstance(num_samples, int) and (
        0 <= num_samples and (replacement or num_samples <= count)
    )
    _require(fits, "so many cannot be drawn", f"0 to {count} without replacement", num_samples)
    if not replacement:
        e = _exponential(weights.shape, weights.dtype, place)
        return op.topk(op.divide(weights, e), num_samples)[1]
    _require(count > 0, "p has no element to draw", "a last extent above 0", weights.shape)
    sums = op.cumsum(weights, -1, weights.dtype)
    shape = (*weights.shape[:-1], num_samples)
    u = _unit(place, shape, weights.dtype)
    found = op.searchsorted(sums, op.multiply(u, sums[..., -1:]), side="right")
    return op.minimum(found, count - 1)  # a product may be rounded to the sum


@check_signature
def permutation(x: int | Array, *, device: object = None) -> Array:
    """Return the ints 0 to x - 1 in random order (int64); of an array, its slices along axis 0.

    >>> sorted(meta.random.permutation(4).tolist())
    [0, 1, 2, 3]
    """
    if not isinstance(x, int):
        rows = _lifted(x)
        _require(len(rows.shape) > 0, "x has no axis", "at least one axis", rows.shape)
        return op.take(rows, permutation(rows.shape[0], device=_on(device, rows)), 0)
    _require(not isinstance(x, bool) and x >= 0, "this is no count", "an int >= 0", x)
    words = _draw(op.random_integers, _on(device), (x,), -(2**63), 2**63 - 1, dtype="int64")
    return op.argsort(words)


def _exponential(extents: tuple[Any, ...], dtype: str, place: str) -> Array:
    """Return samples of the exponential distribution with mean 1, in at least float32."""
    double = dtype == "float64"
    u = _unit(place, extents, "float64" if double else "float32")
    # What is left of 1 has 24 or 53 bits; samples below the last one are its half.
    least = 2.0**-54 if double else 2.0**-25
    if _at_hand(u):
        for (number,) in _pieces(u.tensor):
            torch.sub(1.0, number, out=number)
        u.tensor.log_()  # which starts threads for small pieces, too
        for (number,) in _pieces(u.tensor):
            number.neg_().clamp_(min=least)
        return u
    return op.maximum(op.negative(op.log(op.subtract(1.0, u))), least)


def _pieces(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Yield parts of compact tensors on the CPU, so few elements that ATen starts no threads: these
    wait for one another longer than they work, where other programs have the cores.
    """
    return zip(*(t.view(-1).split(PIECE) for t in tensors), strict=True)


PIECE = 2**14


def _bounds(x: torch.Tensor) -> tuple[float, float]:
    """Return the least and the largest element of a tensor on the CPU; a NaN is both."""
    ends = torch.stack([torch.stack(part.aminmax()) for (part,) in _pieces(x.contiguous())])
    return float(ends[:, 0].min()), float(ends[:, 1].max())


def _unit(place: str, shape: tuple[Any, ...], dtype: str) -> Array:
    """Return numbers on [0, 1)."""
    return _draw(op.random_uniform, place, shape, 0.0, 1.0, dtype=dtype)


def _key(place: str) -> Array:
    """Return the next key on a device; in traced code, what draws one in every run."""
    if isinstance(current(), Trace):
        return op.random_key(place)
    if place == CPU:
        return ndarray(torch.tensor([default.key()]))
    return ndarray(torch.full((1,), default.key(), device=place))  # without waiting


def _on(device: object, *given: Any) -> str:
    if device is not None:
        return str(require(device))
    handler = current()
    if isinstance(handler, Trace):
        return str(handler.device)
    found = (str(a.device) for a in given if isinstance(a, ndarray | torch.Tensor))
    return str(require(next(found, default_device())))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float | np.number)


def _lifted(value: Any) -> Array:
    if _is_number(value):
        value = torch.tensor(float(value))
    return value if isinstance(value, Symbol | ndarray) else as_array(value)


def _tensor(value: Any) -> Any:
    """Return a parameter as operators take it: a Python float or an array."""
    return float(value) if _is_number(value) else _lifted(value)


def _wide(p: Any) -> Array:
    """Return probabilities in float32 or float64."""
    p = _lifted(p)
    _require(is_float(p.dtype), "p has no floats", "floating point probabilities", p.dtype)
    return p if p.dtype in ("float32", "float64") else op.astype(p, "float32")


def _at_hand(x: Array) -> bool:
    """Whether the values of an array can be looked at without waiting for a device."""
    return current() is None and isinstance(x, ndarray) and x.device == CPU


def _floating(dtype: object) -> str:
    name = canonical(dtype)
    _require(is_float(name), "the numbers are floating point", "a floating point dtype", name)
    return name


def _shape(shape: Any) -> tuple[Any, ...]:
    given = shape if isinstance(shape, Sequence) else (shape,)
    try:
        extents = tuple(e if isinstance(e, SymbolicDim) else operator.index(e) for e in given)
    except TypeError:
        extents = (-1,)
    fits = all(isinstance(e, SymbolicDim) or e >= 0 for e in extents)
    _require(fits, "this is no shape", "ints of at least 0", shape)
    return extents


def _of_shape(result: Array, extents: tuple[Any, ...]) -> Array:
    fits = tuple(result.shape) == extents
    _require(fits, "a parameter does not broadcast to the shape", str(extents), result.shape)
    return result


def _require(condition: bool, what: str, expected: str, found: object) -> None:
    if not condition:
        raise ArgumentError(what, expected=expected, found=repr(found))


def __getattr__(name: str) -> Any:
    raise unknown_attribute("meta.random", name, __all__)
