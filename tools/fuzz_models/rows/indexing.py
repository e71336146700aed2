"""Operators that read or write what integers name. All indices are in range."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tools.fuzz_models.rows.row import Call, Row, add


def _axis(d: Any, dtype: str = "any") -> tuple[Any, Any, int]:
    x = d.pick(lambda v: v.ndim >= 1 and v.size > 0, dtype=dtype)
    value = d.value(x)
    return x, value, d.int(-value.ndim, value.ndim - 1)


def _indices(d: Any, extent: int, shape: tuple[int, ...]) -> Any:
    dtype = d.choice(("int64", "int64", "int32"))
    fits = (
        lambda v: v.size <= 200 and bool(((v.tensor >= 0) & (v.tensor < extent)).all()) and v.exact,
    )
    if d.chance(0.3):
        try:
            return d.pick(*fits, lambda v: len(v.shape) == len(shape), dtype=dtype)
        except d.missing:
            pass
    return d.input(dtype, shape, 0, extent - 1)


def _taken_shape(d: Any) -> tuple[int, ...]:
    return d.choice(((), (1,), (3,), (2, 3), (5,), (17,)))


def _take(d: Any) -> Call:
    x, value, axis = _axis(d)
    if d.chance(0.2):
        return (x, _indices(d, value.size, _taken_shape(d))), {"mode": d.choice(("clip", "wrap"))}
    return (x, _indices(d, value.shape[axis], _taken_shape(d)), axis), {}


def _taken(x: Tensor, indices: Tensor, axis: int | None = None, mode: str = "clip") -> Tensor:
    if axis is None:
        return x.reshape(-1)[indices]
    at = axis % x.ndim
    found = x.index_select(at, indices.reshape(-1))
    return found.reshape((*x.shape[:at], *indices.shape, *x.shape[at + 1 :]))


add(Row("take", _take, _taken, "same", "none", smooth=True, weight=1.5))


def _embedding(d: Any) -> Call:
    x, value, _ = _axis(d)
    return (_indices(d, value.shape[0], _taken_shape(d)), x), {}


add(
    Row(
        "embedding", _embedding, lambda i, x: _taken(x, i, 0),
        lambda o, args, kwargs: o[1], "none", smooth=True,
    )
)  # fmt: skip


def _index_select(d: Any) -> Call:
    x, value, axis = _axis(d)
    return (x, axis, _indices(d, value.shape[axis], d.choice(((1,), (4,), (0,), (9,))))), {}


add(
    Row(
        "index_select", _index_select, lambda x, axis, i: x.index_select(axis, i),
        "same", "none", smooth=True, weight=0.7,
    )
)  # fmt: skip


def _index_shape(d: Any, value: Any, axis: int) -> tuple[int, ...]:
    at = axis % value.ndim
    return tuple(
        d.choice((1, 2, 5)) if i == at else d.int(1, n) if d.chance(0.3) else n
        for i, n in enumerate(value.shape)
    )


def _along(d: Any) -> Call:
    x, value, axis = _axis(d)
    at = axis % value.ndim
    extents = enumerate(value.shape)
    shape = tuple(d.choice((1, 2, 5)) if i == at else 1 if d.chance(0.2) else n for i, n in extents)
    last = value.shape[axis] - 1
    return (x, d.input("int64", shape, -last - 1, last), axis), {}


def _taken_along(x: Tensor, index: Tensor, axis: int) -> Tensor:
    return x.take_along_dim(index % x.shape[axis], axis)


add(Row("take_along_axis", _along, _taken_along, "same", "none", smooth=True))


def _scatter_parts(d: Any, dtype: str, distinct: bool) -> tuple[Any, Any, Any, int]:
    x, value, axis = _axis(d, dtype)
    at = axis % value.ndim
    shape = list(_index_shape(d, value, axis))
    if distinct:
        shape[at] = min(shape[at], value.shape[at])
    if math.prod(shape) > 600:
        raise d.missing
    rows = math.prod(shape[:at]) * math.prod(shape[at + 1 :])
    if distinct:
        picks = [d.random.sample(range(value.shape[at]), shape[at]) for _ in range(rows)]
        lead = [n for i, n in enumerate(shape) if i != at]
        index = torch.tensor(picks, dtype=torch.int64).reshape((*lead, shape[at])).movedim(-1, at)
        index_ref = d.input("int64", tuple(shape), values=index.reshape(-1))
    else:
        index_ref = d.input("int64", tuple(shape), 0, value.shape[at] - 1)
    return x, index_ref, d.like(tuple(shape), value.dtype), axis


def _scatter(d: Any) -> Call:
    x, index, src, axis = _scatter_parts(d, "any", True)
    return (x, axis, index, src), {}


def _within(index: Tensor, src: Tensor) -> Tensor:
    return src[tuple(slice(0, n) for n in index.shape)]


add(
    Row(
        "scatter", _scatter, lambda x, axis, i, src: x.scatter(axis, i, _within(i, src)),
        "same", "none", smooth=True,
    )
)  # fmt: skip


def _scatter_add(d: Any) -> Call:
    x, index, src, axis = _scatter_parts(d, "number", False)
    return (x, axis, index, src), {}


add(
    Row(
        "scatter_add", _scatter_add,
        lambda x, axis, i, src: x.scatter_add(axis, i, _within(i, src)),
        "same", "add", smooth=True, weight=0.8,
    )
)  # fmt: skip


def _scatter_reduce(d: Any) -> Call:
    x, index, src, axis = _scatter_parts(d, "number", False)
    return (x, axis, index, src, d.choice(("amin", "amax"))), {}


add(
    Row(
        "scatter_reduce", _scatter_reduce,
        lambda x, axis, i, src, reduce: x.scatter_reduce(axis, i, _within(i, src), reduce),
        "same", "none", weight=0.7,
    )
)  # fmt: skip


def _coordinates(d: Any, value: Any, depth: int, count: int, distinct: bool) -> Any:
    size = math.prod(value.shape[:depth])
    if distinct:
        flat = d.random.sample(range(size), min(count, size))
    else:
        flat = [d.int(0, size - 1) for _ in range(count)]
    columns = []
    for extent in reversed(value.shape[:depth]):
        columns.append([f % extent for f in flat])
        flat = [f // extent for f in flat]
    index = [i for column in reversed(columns) for i in column]
    return d.input("int64", (depth, len(columns[0])), values=index)


def _gather_nd(d: Any) -> Call:
    x, value, _ = _axis(d)
    return (x, _coordinates(d, value, d.int(1, value.ndim), d.int(1, 6), False)), {}


add(Row("gather_nd", _gather_nd, lambda x, i: x[tuple(i.unbind(0))], "same", "none", smooth=True))


def _scatter_nd(d: Any) -> Call:
    x, value, _ = _axis(d, "number")
    depth = d.int(1, value.ndim)
    mode = d.choice(("update", "add"))
    index = _coordinates(d, value, depth, d.int(1, 5), mode == "update")
    shape = (d.value(index).shape[1], *value.shape[depth:])
    return (x, index, d.like(shape, value.dtype)), {"mode": mode}


add(
    Row(
        "scatter_nd", _scatter_nd,
        lambda x, i, u, mode: x.index_put(tuple(i.unbind(0)), u, accumulate=mode == "add"),
        "same", "add", smooth=True, weight=0.8,
    )
)  # fmt: skip


def _adv_index(d: Any) -> Call:
    x, value, _ = _axis(d)
    shape = d.choice(((3,), (2, 2), (1,)))
    count = d.int(1, min(2, value.ndim))
    places = [d.input("int64", shape, 0, value.shape[i] - 1) for i in range(count)]
    return ((x, *places),), {}


add(
    Row(
        "adv_index", _adv_index, lambda inputs: inputs[0][tuple(inputs[1:])], "same", "none",
        smooth=True, weight=0.7,
    )
)  # fmt: skip


def _one_hot(d: Any) -> Call:
    depth = d.choice((1, 3, 7, 17))
    index = _indices(d, depth, _taken_shape(d))
    dtype = d.choice((d.dtype, "int32", "float32"))
    return (index, depth), {"axis": -1, "dtype": dtype}


add(
    Row(
        "one_hot", _one_hot,
        lambda i, depth, axis, dtype: torch.nn.functional.one_hot(i, depth),
        lambda o, a, k: k["dtype"], "none",
    )
)  # fmt: skip
