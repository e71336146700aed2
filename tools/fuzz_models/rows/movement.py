"""Views, and operators that rearrange, repeat, cut or convert elements."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tools.fuzz_models.rows.row import Call, Row, add


def shapes_of(d: Any, size: int) -> tuple[int, ...]:
    """Return a shape of so many elements."""
    if size == 0:
        return d.choice(((0,), (0, 3), (2, 0), (1, 0, 2)))
    shape, rest = [], size
    for _ in range(d.int(0, 3)):
        divisors = [
            k for k in (1, 2, 3, 4, 5, 7, 8, 11, 13, 16, 17, 31, 32, 64, 65) if rest % k == 0
        ]
        shape.append(d.choice(divisors))
        rest //= shape[-1]
    shape.insert(d.int(0, len(shape)), rest)
    return tuple(shape)


def _reshape(d: Any) -> Call:
    x = d.pick(dtype="any")
    shape = shapes_of(d, d.value(x).size)
    if d.value(x).size and shape and d.chance(0.2):
        at = d.int(0, len(shape) - 1)
        shape = (*shape[:at], -1, *shape[at + 1 :])
    return (x, shape), {}


add(
    Row(
        "reshape",
        _reshape,
        lambda x, shape: x.reshape(shape),
        "same",
        "none",
        smooth=True,
        view=True,
        weight=3,
    )
)


def _expand_dims(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim < 5, dtype="any")
    axis = d.int(-d.value(x).ndim - 1, d.value(x).ndim)
    return (x, axis), {"num_newaxis": 2} if d.chance(0.2) else {}


def _expanded(x: Tensor, axis: int, num_newaxis: int = 1) -> Tensor:
    at = axis % (x.ndim + 1)
    return x.reshape((*x.shape[:at], *(1,) * num_newaxis, *x.shape[at:]))


add(Row("expand_dims", _expand_dims, _expanded, "same", "none", smooth=True, view=True))


def _squeeze(d: Any) -> Call:
    x = d.pick(lambda v: 1 in v.shape, dtype="any")
    places = [i for i, n in enumerate(d.value(x).shape) if n == 1]
    return (x, d.choice(places)) if d.chance(0.5) else (x,), {}


def _squeezed(x: Tensor, axis: int | None = None) -> Tensor:
    return x.squeeze() if axis is None else x.squeeze(axis)


add(Row("squeeze", _squeeze, _squeezed, "same", "none", smooth=True, view=True))
add(
    Row(
        "batch_flatten", lambda d: ((d.pick(lambda v: v.ndim >= 1, dtype="any"),), {}),
        lambda x: x.reshape(x.shape[0], math.prod(x.shape[1:])), "same", "none", smooth=True,
        view=True, weight=0.5,
    )
)  # fmt: skip


def _transpose(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 1, dtype="any")
    axes = list(range(d.value(x).ndim))
    d.random.shuffle(axes)
    return (x,) if d.chance(0.3) else (x, tuple(axes)), {}


def _transposed(x: Tensor, axes: Any = None) -> Tensor:
    return x.permute(tuple(reversed(range(x.ndim))) if axes is None else axes)


def _transposed_back(x: Tensor, axes: Any = None) -> Tensor:
    axes = tuple(reversed(range(x.ndim))) if axes is None else axes
    return x.permute(tuple(axes.index(i) for i in range(x.ndim)))


add(Row("permute_dims", _transpose, _transposed, "same", "none", smooth=True, weight=3))
add(Row("permute_dims_dx", _transpose, _transposed_back, "same", "none", weight=0.4))


def _axis(d: Any, least: int = 1, **kind: Any) -> tuple[Any, Any, int]:
    """Return an operand, its value and one of its axes."""
    x = d.pick(lambda v: v.ndim >= least, **{"dtype": "any", **kind})
    value = d.value(x)
    return x, value, d.int(-value.ndim, value.ndim - 1)


def _swap(d: Any) -> Call:
    x, value, axis = _axis(d)
    return (x, axis, d.int(-value.ndim, value.ndim - 1)), {}


add(Row("swapaxes", _swap, lambda x, a, b: x.transpose(a, b), "same", "none", smooth=True))


def _flip(d: Any) -> Call:
    x, value, axis = _axis(d)
    if d.chance(0.4):
        return (x, axis), {}
    if d.chance(0.2):
        return (x,), {}
    return (x, tuple(d.random.sample(range(value.ndim), d.int(1, value.ndim)))), {}


def _flipped(x: Tensor, axis: Any = None) -> Tensor:
    return x.flip(tuple(range(x.ndim)) if axis is None else axis)


add(Row("flip", _flip, _flipped, "same", "none", smooth=True, weight=1.5))


def _roll(d: Any) -> Call:
    x, value, axis = _axis(d)
    shift = d.int(-5, 7)
    if d.chance(0.25):
        return (x, shift), {}
    if d.chance(0.3) and value.ndim >= 2:
        return (x, (shift, d.int(-3, 3)), (axis, axis % value.ndim - 1)), {}
    return (x, shift, axis), {}


def _rolled(x: Tensor, shift: Any, axis: Any = None) -> Tensor:
    return x.roll(shift) if axis is None else x.roll(shift, axis)


add(Row("roll", _roll, _rolled, "same", "none", smooth=True))


def _tile(d: Any) -> Call:
    x = d.pick(lambda v: v.size <= d.style.size // 2 and v.ndim <= 4, dtype="any")
    reps = tuple(d.choice((1, 1, 2, 3)) for _ in range(d.int(1, max(1, d.value(x).ndim + 1))))
    return (x, reps), {}


add(Row("tile", _tile, lambda x, reps: x.tile(reps), "same", "none", smooth=True))


def _repeat(d: Any) -> Call:
    x = d.pick(lambda v: 0 < v.size <= d.style.size // 2, dtype="any")
    value = d.value(x)
    if value.ndim == 0 or d.chance(0.2):
        return (x, d.int(1, 3)), {}
    return (x, d.int(1, 3), d.int(-value.ndim, value.ndim - 1)), {}


def _repeated(x: Tensor, repeats: int, axis: int | None = None) -> Tensor:
    return (
        x.repeat_interleave(repeats, axis)
        if axis is not None
        else x.reshape(-1).repeat_interleave(repeats)
    )


add(Row("repeat", _repeat, _repeated, "same", "none", smooth=True))


def _broadcast(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim <= 4, dtype="any")
    shape = tuple(d.choice((1, 2, 3, *d.extents)) if n == 1 else n for n in d.value(x).shape)
    shape = (d.choice((1, 2, 3)),) * d.int(0, 1) + shape
    if math.prod(shape) > d.style.size:
        raise d.missing
    return (x, shape), {}


add(
    Row(
        "broadcast_to",
        _broadcast,
        lambda x, shape: x.broadcast_to(shape),
        "same",
        "none",
        smooth=True,
        weight=1.5,
    )
)


def _broadcast_like(d: Any) -> Call:
    x = d.pick(dtype="any")
    shape = d.value(x).shape
    return (x, d.pick(lambda v: d.fit(shape, v.shape), dtype="any")), {}


add(
    Row(
        "broadcast_to_like",
        _broadcast_like,
        lambda x, y: x.broadcast_to(y.shape),
        "same",
        "none",
        weight=0.5,
    )
)


def _collapse(d: Any) -> Call:
    x = d.pick(dtype="float")
    shape = d.value(x).shape
    return (x, d.pick(lambda v: d.fit(v.shape, shape), dtype="any")), {}


add(
    Row(
        "collapse_sum_like", _collapse, lambda x, y: x.sum_to_size(y.shape), "same", "add",
        weight=0.7, magnitude=lambda args, kwargs: args[0].sum_to_size(args[1].shape),
    )
)  # fmt: skip


def _reshape_like(d: Any) -> Call:
    x = d.pick(dtype="any")
    size = d.value(x).size
    return (x, d.pick(lambda v: v.size == size, dtype="any")), {}


add(
    Row(
        "reshape_like",
        _reshape_like,
        lambda x, y: x.reshape(y.shape),
        "same",
        "none",
        view=True,
        weight=0.4,
    )
)


def _triangle(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 2, dtype="any")
    return (x, d.int(-2, 3)) if d.chance(0.7) else (x,), {}


add(Row("tril", _triangle, lambda x, k=0: x.tril(k), "same", "none", smooth=True))
add(Row("triu", _triangle, lambda x, k=0: x.triu(k), "same", "none", smooth=True))


def _diagonal(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 2, dtype="any")
    a, b = d.random.sample(range(d.value(x).ndim), 2)
    return (x, d.int(-1, 1), a, b), {}


add(
    Row(
        "diagonal",
        _diagonal,
        lambda x, k, a, b: x.diagonal(k, a, b),
        "same",
        "none",
        smooth=True,
        weight=0.6,
    )
)


# Slices.


def slice_of(d: Any, shape: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Return begins, ends and strides of a slice of the leading axes that is not empty."""
    begins, ends, strides = [], [], []
    for extent in shape[: d.int(1, len(shape))]:
        low = d.int(0, max(0, extent - 1))
        high = d.int(low + 1, max(extent, low + 1))
        step = d.choice((1, 1, 1, 2, 3))
        if d.chance(0.2):
            begins.append(high - 1)
            ends.append(low - 1 - extent if low == 0 else low - 1)
            strides.append(-step)
        else:
            begins.append(low - extent if low and d.chance(0.2) else low)
            ends.append(extent + 3 if high == extent and d.chance(0.2) else high)
            strides.append(step)
    return tuple(begins), tuple(ends), tuple(strides)


def _indices(shape: Any, begin: Any, end: Any, strides: Any) -> tuple[list[int], ...]:
    return tuple(
        list(range(n))[slice(b, e if not (s < 0 and e < -n) else None, s)]
        for n, b, e, s in zip(shape, begin, end, strides, strict=False)
    )


def sliced(x: Tensor, begin: Any, end: Any, strides: Any) -> Tensor:
    """Return the slice."""
    for axis, places in enumerate(_indices(x.shape, begin, end, strides)):
        x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return x


def _slice(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 1 and v.size > 0, dtype="any")
    return (x, *slice_of(d, d.value(x).shape)), {}


add(Row("strided_slice", _slice, sliced, "same", "none", smooth=True, weight=2.5))


def _slice_dx(d: Any) -> Call:
    shape = d.shape(d.int(1, 3))
    if 0 in shape:
        raise d.missing
    begin, end, strides = slice_of(d, shape)
    places = _indices(shape, begin, end, strides)
    part = tuple(len(p) for p in places) + shape[len(places) :]
    return (d.like(part, d.dtype), shape, begin, end, strides), {}


def _slice_back(dy: Tensor, shape: Any, begin: Any, end: Any, strides: Any) -> Tensor:
    return set_slice(torch.zeros(shape, dtype=dy.dtype), dy, begin, end, strides)


def set_slice(x: Tensor, v: Tensor, begin: Any, end: Any, strides: Any) -> Tensor:
    """Return x with a slice replaced."""
    places = _indices(x.shape, begin, end, strides)
    rest = [list(range(n)) for n in x.shape[len(places) :]]
    grid = torch.meshgrid(
        *(torch.tensor(p, dtype=torch.int64) for p in [*places, *rest]), indexing="ij"
    )
    return x.clone().index_put(grid, v)


add(Row("strided_slice_dx", _slice_dx, _slice_back, "same", "none", weight=0.7))


def _strided_set(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 1 and v.size > 0, dtype="any")
    value = d.value(x)
    begin, end, strides = slice_of(d, value.shape)
    places = _indices(value.shape, begin, end, strides)
    part = tuple(len(p) for p in places) + value.shape[len(places) :]
    return (x, d.like(part, value.dtype), begin, end, strides), {}


add(Row("strided_set", _strided_set, set_slice, "same", "none", smooth=True, weight=1.5))


# Padding.


def _pad(d: Any) -> Call:
    x = d.pick(lambda v: 1 <= v.ndim <= 4 and v.size <= d.style.size // 2, dtype="number")
    value = d.value(x)
    widths = tuple((d.choice((0, 0, 1, 2)), d.choice((0, 0, 1, 2))) for _ in range(value.ndim))
    mode = d.choice(("constant",) * 5 + ("edge", "reflect", "symmetric", "wrap"))
    if mode == "constant":
        return (x, widths, mode, d.number_like(value.dtype)), {}
    if min(value.shape) < 3:
        raise d.missing
    return (x, widths, mode), {}


def _padded(x: Tensor, widths: Any, mode: str = "constant", value: Any = 0) -> Tensor:
    for axis, (n, (before, after)) in enumerate(zip(x.shape, widths, strict=True)):
        if mode == "constant":
            sizes = [
                [w if i == axis else m for i, m in enumerate(x.shape)] for w in (before, after)
            ]
            a, b = (torch.full(s, value, dtype=x.dtype) for s in sizes)
            x = torch.cat([a, x, b], axis)
            continue
        places = [_mirrored(i, n, mode) for i in range(-before, n + after)]
        x = x.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return x


def _mirrored(i: int, n: int, mode: str) -> int:
    if mode == "edge":
        return min(max(i, 0), n - 1)
    if mode == "wrap":
        return i % n
    skip = 1 if mode == "reflect" else 0
    if i < 0:
        return -i - 1 + skip
    return i if i < n else 2 * n - 1 - i - skip


add(Row("pad", _pad, _padded, "same", "none", smooth=True, weight=1.5))


def _sequence(d: Any) -> tuple[Any, Any, int]:
    x = d.pick(lambda v: v.ndim >= 2 and v.size > 0, dtype="any")
    return x, d.value(x), d.int(0, 1)


def _sequence_mask(d: Any) -> Call:
    x, value, axis = _sequence(d)
    lengths = d.input("int32", (value.shape[1 - axis],), 0, value.shape[axis])
    fill = d.number_like(value.dtype) if value.dtype != "bool" else True
    return (x, lengths, fill, axis), {}


def _masked(x: Tensor, lengths: Tensor, fill: Any, axis: int) -> Tensor:
    places = torch.arange(x.shape[axis])
    inside = places[:, None] < lengths[None] if axis == 0 else places[None] < lengths[:, None]
    inside = inside.reshape((*inside.shape, *(1,) * (x.ndim - 2)))
    return torch.where(inside, x, torch.tensor(fill, dtype=x.dtype))


add(Row("sequence_mask", _sequence_mask, _masked, "same", "none", smooth=True, weight=0.6))


def _reverse_sequence(d: Any) -> Call:
    x, value, axis = _sequence(d)
    lengths = d.input("int32", (value.shape[1 - axis],), 0, value.shape[axis])
    return (x, lengths, axis, 1 - axis), {}


def _reversed(x: Tensor, lengths: Tensor, axis: int, batch: int) -> Tensor:
    rows = []
    for row, n in zip(x.unbind(batch), lengths.tolist(), strict=True):
        at = 0 if axis < batch or axis == 0 else axis - 1
        rows.append(
            torch.cat([row.narrow(at, 0, n).flip(at), row.narrow(at, n, row.shape[at] - n)], at)
        )
    return torch.stack(rows, batch)


add(Row("reverse_sequence", _reverse_sequence, _reversed, "same", "none", smooth=True, weight=0.5))


def _blocks(d: Any) -> tuple[Any, int, dict[str, Any]]:
    x = d.pick(lambda v: v.ndim == 4 and v.size > 0, dtype="any")
    return x, d.choice((1, 2, 3)), {"mode": d.choice(("DCR", "CRD"))}


def _depth(d: Any) -> Call:
    x, b, kwargs = _blocks(d)
    if d.value(x).shape[1] % (b * b):
        raise d.missing
    return (x, b), kwargs


def _space(d: Any) -> Call:
    x, b, kwargs = _blocks(d)
    if d.value(x).shape[2] % b or d.value(x).shape[3] % b:
        raise d.missing
    return (x, b), kwargs


def _depth_to_space(x: Tensor, b: int, mode: str) -> Tensor:
    n, c, h, w = x.shape
    k = c // b // b
    if mode == "DCR":
        y = x.reshape(n, b, b, k, h, w).permute(0, 3, 4, 1, 5, 2)
    else:
        y = x.reshape(n, k, b, b, h, w).permute(0, 1, 4, 2, 5, 3)
    return y.reshape(n, k, h * b, w * b)


def _space_to_depth(x: Tensor, b: int, mode: str) -> Tensor:
    n, c, h, w = x.shape
    y = x.reshape(n, c, h // b, b, w // b, b)
    y = y.permute(0, 3, 5, 1, 2, 4) if mode == "DCR" else y.permute(0, 1, 3, 5, 2, 4)
    return y.reshape(n, c * b * b, h // b, w // b)


add(Row("depth_to_space", _depth, _depth_to_space, "same", "none", smooth=True))
add(Row("space_to_depth", _space, _space_to_depth, "same", "none", smooth=True))


# Conversion.

FLOATS = ("float32", "float64", "float16", "bfloat16")


def _cast(d: Any) -> Call:
    x = d.pick(dtype="any")
    value = d.value(x)
    if d.style.smooth:
        return (x, d.choice((d.dtype, "float64"))), {}
    wanted = [*FLOATS, d.dtype, d.dtype]
    data = value.tensor.double()
    small = bool((data.abs() <= 120).all())
    if small and value.exact:
        wanted += ["int64", "int32", "int8", "int16"]
        if bool((data >= 0).all()):
            wanted.append("uint8")
        wanted.append("bool")
    elif small:
        wanted += ["int64", "int32"]
    return (x, d.choice(wanted)), {}


def _converted(x: Tensor, dtype: str) -> Tensor:
    if dtype == "bool":
        return x != 0
    if "float" in dtype:
        return x.double()
    return x.trunc().long() if x.is_floating_point() else x.long()


add(Row("astype", _cast, _converted, lambda o, args, _: args[1], "round", smooth=True, weight=3))


def _cast_like(d: Any) -> Call:
    x = d.pick(dtype="float")
    return (x, d.pick(dtype="float")), {}


add(Row("cast_like", _cast_like, lambda x, y: x, lambda o, a, k: o[1], "round", weight=0.4))
