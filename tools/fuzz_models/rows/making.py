"""Tensors made of numbers. Their memory may be the program's own: nobody writes to it."""

from __future__ import annotations

from typing import Any

import torch

from tools.fuzz_models.rows.row import Call, Row, add

KINDS = {"bool": torch.bool}


def _torch(dtype: str) -> torch.dtype:
    return torch.float64 if "float" in dtype else KINDS.get(dtype, torch.int64)


def _dtype(operands: Any, args: Any, kwargs: Any) -> str:
    return str(kwargs["dtype"])


def _maker(name: str, value: int) -> None:
    add(
        Row(
            name,
            lambda d: ((d.shape(),), {"dtype": d.choice((d.dtype, d.dtype, d.int_dtype, "bool"))}),
            lambda shape, dtype, device="cpu": torch.full(shape, value, dtype=_torch(dtype)),
            _dtype, "none", constant=True, weight=0.5,
        )
    )  # fmt: skip
    add(
        Row(
            f"{name}_like", lambda d: ((d.pick(dtype="any"),), {}),
            lambda x: torch.full_like(x, value), "same", "none", weight=0.4, constant=True,
        )
    )  # fmt: skip


_maker("zeros", 0)
_maker("ones", 1)


def _full(d: Any) -> Call:
    dtype = d.choice((d.dtype, d.dtype, d.int_dtype))
    return (d.shape(), d.number_like(dtype)), {"dtype": dtype}


add(
    Row(
        "full", _full,
        lambda shape, value, dtype, device="cpu": torch.full(shape, value, dtype=_torch(dtype)),
        _dtype, "none", constant=True, weight=0.6,
    )
)  # fmt: skip


def _arange(d: Any) -> Call:
    start, step = d.int(-3, 3), d.choice((1, 2, -1))
    dtype = d.choice((d.dtype, "int64", "int32"))
    return (start, start + step * d.int(1, 20), step), {"dtype": dtype}


add(
    Row(
        "arange", _arange,
        lambda a, b, step, dtype, device="cpu": torch.arange(a, b, step, dtype=_torch(dtype)),
        _dtype, "none", constant=True, weight=0.6,
    )
)  # fmt: skip


def _full_like(d: Any) -> Call:
    x = d.pick(dtype="number")
    return (x, d.number_like(d.value(x).dtype)), {}


add(Row("full_like", _full_like, torch.full_like, "same", "none", constant=True, weight=0.4))
add(
    Row(
        "shape_as_tensor", lambda d: ((d.pick(lambda v: v.ndim >= 1, dtype="any"),), {}),
        lambda x: torch.tensor(x.shape, dtype=torch.int64), "int64", "none",
        constant=True, weight=0.2,
    )
)  # fmt: skip


def _fuse(d: Any) -> Call:
    x = d.pick(dtype="any")
    return ((x, d.pick(dtype=d.value(x).dtype)),), {}


add(
    Row(
        "fuse_tensor", _fuse, lambda x: torch.cat([p.reshape(-1) for p in x]), "same", "none",
        weight=0.4,
    )
)  # fmt: skip


def _defuse(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim == 1 and v.size >= 2, dtype="any")
    first = d.int(1, d.value(x).size - 1)
    sizes = (first, d.value(x).size - first)
    return (x, sizes, sizes, (1, 2)), {}


add(
    Row(
        "defuse_tensor", _defuse, lambda x, sizes, *_: torch.split(x, sizes),
        lambda o, a, k: list(o[:1]) * 2, "none", weight=0.3,
    )
)  # fmt: skip
