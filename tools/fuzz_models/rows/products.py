"""Matrix products and contractions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tools.fuzz_models.rows.row import Call, Row, add


def _product(name: str, ndim: int, t1: bool, t2: bool, weight: float) -> None:
    def draw(d: Any) -> Call:
        x = d.pick(lambda v: v.size <= 20_000, dtype="number", ndim=ndim)
        value = d.value(x)
        k = value.shape[-2] if t1 else value.shape[-1]
        batch = () if ndim == 2 else (d.choice((1, value.shape[0])),)

        def fits(v: Any) -> bool:
            inner = v.shape[-1] if t2 else v.shape[-2]
            return inner == k and (ndim == 2 or v.shape[0] in (1, value.shape[0]))

        if d.chance(0.6):
            try:
                return (x, d.pick(fits, dtype=value.dtype, ndim=ndim)), {}
            except d.missing:
                pass
        n = d.choice(d.extents)
        return (x, d.input(value.dtype, (*batch, n, k) if t2 else (*batch, k, n))), {}

    def reference(a: Tensor, b: Tensor) -> Tensor:
        a = a.transpose(-1, -2) if t1 else a
        return a @ (b.transpose(-1, -2) if t2 else b)

    add(Row(name, draw, reference, "same", "product", smooth=True, weight=weight))


_product("matmul", 2, False, False, 2.0)
_product("matmul_nt", 2, False, True, 0.7)
_product("matmul_tn", 2, True, False, 0.7)
_product("matmul_tt", 2, True, True, 0.5)
_product("dense", 2, False, True, 1.0)
_product("batch_matmul", 3, False, False, 1.2)
_product("batch_matmul_nt", 3, False, True, 0.8)
_product("batch_matmul_tn", 3, True, False, 0.6)
_product("batch_matmul_tt", 3, True, True, 0.6)

EQUATIONS = {
    1: ("i,i->", "i,j->ij"),
    2: ("ij,ij->i", "ij,kj->ik", "ij,ij->ji"),
    3: ("bij,bij->bj", "bij,bkj->bik"),
}


def _einsum(d: Any) -> Call:
    x = d.pick(lambda v: 1 <= v.ndim <= 3 and 0 < v.size <= 1000, dtype="float")
    value = d.value(x)
    y = d.pick(lambda v: v.shape == value.shape, dtype=value.dtype)
    return (d.choice(EQUATIONS[value.ndim]), (x, y)), {}


add(
    Row(
        "einsum", _einsum, lambda equation, x: torch.einsum(equation, *x), "same", "product",
        smooth=True, weight=0.5,
    )
)  # fmt: skip
