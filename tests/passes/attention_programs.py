"""Attention written in many ways, each beside the same on torch tensors.

A `Way` says how; `program` is a traced function of query, key, value and a mask, `oracle` the same
function in torch. A further way to write something is a further value of a field.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

import torch

import meta
from meta import op

B, H, S, T, D = 2, 4, 5, 6, 8
INF = float("inf")

FORMS = ("matmul", "merged", "merged_nt", "einsum", "einsum_bshd", "projected", "flat")
SCALES = ("none", "multiply", "divide", "array", "query", "key", "computed", "twice")
MASKS = {
    "none": None,
    "padding": (B, 1, 1, T),
    "vector": (T,),
    "rows": (S, T),
    "heads": (1, H, S, T),
    "subtracted": (B, 1, 1, T),
    "two": (B, 1, S, T),
    "where": (B, 1, 1, T),
    "where_inf": (B, 1, S, T),
    "masked_fill": (B, 1, S, T),
    "causal": None,
    "causal_range": None,
    "causal_added": None,
    "causal_and_padding": (B, 1, 1, T),
}
SHARES = ("none", "repeat", "broadcast", "one")


@dataclass(frozen=True)
class Way:
    """One way to write attention."""

    form: str = "matmul"
    scale: str = "multiply"
    mask: str = "none"
    softmax: str = "softmax"
    share: str = "none"
    mask_first: bool = False

    @property
    def groups(self) -> int:
        """The heads of key and value."""
        return {"none": H, "one": 1}.get(self.share, H // 2)


def random_way(seed: int) -> Way:
    """Return a way for a seed."""
    r = random.Random(seed)
    way = Way(
        r.choice(FORMS),
        r.choice(SCALES),
        r.choice(list(MASKS)),
        r.choice(("softmax", "softmax", "written")),
        r.choice(SHARES),
        r.random() < 0.2,
    )
    return replace(way, share="none") if way.form in ("merged", "merged_nt", "flat") else way


def inputs(way: Way, seed: int = 0, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Return query, key, value (with heads first) and the mask; some rows are hidden as a whole."""
    g = torch.Generator().manual_seed(seed)
    query = torch.randn(B, H, S, D, generator=g)
    key, value = torch.randn(2, B, way.groups, T, D, generator=g)
    shape = MASKS[way.mask] or (1,)
    mask = torch.randn(shape, generator=g)
    if way.mask in ("where", "where_inf", "masked_fill"):
        mask = (torch.rand(shape, generator=g) > 0.3).float()
        mask[..., 0] = 1
        if way.mask != "where_inf":
            mask[0] = 0
    elif way.mask in ("padding", "two", "rows"):
        mask = torch.where(torch.rand(shape, generator=g) > 0.7, -1e4, mask)
        mask[0] = -1e4  # all keys are as far away: none is hidden
    elif way.mask == "causal_and_padding":
        mask = torch.where(torch.arange(T) > 3, -1e4, 0.0).expand(shape).contiguous()
    elif way.mask == "subtracted":
        mask = (torch.rand(shape, generator=g) > 0.5).float()
        mask[..., 0] = 1
    return [t.to(dtype) for t in (query, key, value, mask)]


def program(way: Way) -> Any:
    """Return the traced function."""

    @meta.model.trace
    def attention(query, key, value, mask):
        return computed(way, query, key, value, mask)

    return attention


def computed(way: Way, query: Any, key: Any, value: Any, mask: Any) -> Any:
    """Return attention of arrays or symbols, [B, H, S, D]."""
    key, value = _repeated(way, key), _repeated(way, value)
    scale = D**-0.5
    if way.scale == "query":
        query = query * scale
    elif way.scale == "key":
        key = scale * key
    elif way.scale == "twice":
        query, key = query / D**0.25, key * D**-0.25
    query, key, value = (_laid_out(way, x) for x in (query, key, value))
    scores = _product(way, query, key)
    if way.mask_first:
        scores = _masked(way, scores * 1.0, mask)
    if way.scale == "multiply":
        scores = scale * scores
    elif way.scale == "divide":
        scores = scores / D**0.5
    elif way.scale == "array":
        scores = scores * meta.array(scale)
    elif way.scale == "computed":
        scores = scores / op.sqrt(op.full((), float(D), "float32"))
    if not way.mask_first:
        scores = _masked(way, scores, mask)
    if way.softmax == "softmax":
        p = op.softmax(scores, -1)
    else:
        power = op.exp(scores - op.max(scores, -1, True))
        p = power / op.sum(power, -1, True)
    return _result(way, p, value)


def _repeated(way: Way, x: Any) -> Any:
    if way.share == "repeat":
        return op.repeat(x, 2, 1)
    if way.share == "broadcast":
        x = op.broadcast_to(op.expand_dims(x, 2), (B, H // 2, 2, T, D))
        return op.reshape(x, (B, H, T, D))
    if way.share == "one" and way.form != "matmul":
        return op.broadcast_to(x, (B, H, T, D))
    return x


def _laid_out(way: Way, x: Any) -> Any:
    """Bring an array into the layout of the form."""
    b, h, s, d = x.shape
    if way.form in ("merged", "merged_nt", "flat"):
        return op.reshape(x, (b * h, s, d))
    if way.form == "einsum_bshd":
        return op.permute_dims(x, (0, 2, 1, 3))
    if way.form == "projected":
        flat = op.reshape(op.permute_dims(x, (0, 2, 1, 3)), (b, s, h * d)) + 0.0
        return op.permute_dims(op.reshape(flat, (b, s, h, d)), (0, 2, 1, 3))
    return x


def _product(way: Way, query: Any, key: Any) -> Any:
    if way.form == "merged":
        return op.reshape(op.batch_matmul(query, op.permute_dims(key, (0, 2, 1))), (B, H, S, T))
    if way.form in ("merged_nt", "flat"):
        scores = op.batch_matmul_nt(query, key)
        return scores if way.form == "flat" else op.reshape(scores, (B, H, S, T))
    if way.form == "einsum":
        return op.einsum("bhqd,bhkd->bhqk", query, key)
    if way.form == "einsum_bshd":
        return op.einsum("bqhd,bkhd->bhqk", query, key)
    return query @ op.swapaxes(key, 2, 3)


def _result(way: Way, p: Any, value: Any) -> Any:
    if way.form in ("merged", "merged_nt", "flat"):
        y = op.batch_matmul(op.reshape(p, (B * H, S, T)), value)
        return op.reshape(y, (B, H, S, D))
    if way.form == "einsum":
        return op.einsum("bhqk,bhkd->bhqd", p, value)
    if way.form == "einsum_bshd":
        return op.permute_dims(op.einsum("bhqk,bkhd->bqhd", p, value), (0, 2, 1, 3))
    if way.form == "projected":
        merged = op.reshape(op.permute_dims(p @ value, (0, 2, 1, 3)), (B, S, H * D))
        return op.permute_dims(op.reshape(merged, (B, S, H, D)), (0, 2, 1, 3))
    return p @ value


def _masked(way: Way, scores: Any, mask: Any) -> Any:
    if way.form == "flat" and way.mask != "none":
        scores = op.reshape(scores, (B, H, S, T))
    kind = way.mask
    if kind in ("padding", "vector", "rows", "heads"):
        return mask + scores if kind == "heads" else scores + mask
    if kind == "two":
        return scores + mask + mask * 0.5
    if kind == "subtracted":
        return scores - (1.0 - mask) * 1e4
    if kind == "where":
        return op.where(mask > 0.5, scores, -1e9)
    if kind == "where_inf":
        return op.where(mask > 0.5, scores, -INF)
    if kind == "masked_fill":
        return op.where(mask < 0.5, -1e9, scores)
    if kind == "causal":
        return op.where(op.tril(op.ones((S, T), "float32")) > 0.0, scores, -1e9)
    if kind == "causal_range":
        rows, columns = op.arange(0, S, 1), op.arange(0, T, 1)
        seen = op.greater_equal(op.expand_dims(rows, 1), op.expand_dims(columns, 0))
        return op.where(seen, scores, -INF)
    if kind == "causal_added":
        return scores + (1.0 - op.tril(op.ones((1, 1, S, T), "float32"))) * -1e9
    if kind == "causal_and_padding":
        seen = op.tril(op.ones((S, T), "float32")) > 0.0
        return op.where(seen, scores, -INF) + mask
    return scores


def oracle(
    way: Way, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor
) -> torch.Tensor:
    """Compute the same in torch."""
    key, value = (t.repeat_interleave(H // way.groups, 1) for t in (key, value))
    scores, scale = query @ key.mT, 1.0 if way.scale == "none" else D**-0.5
    before = scale if way.mask_first and way.scale not in ("query", "key", "twice") else 1.0
    scores = scores * (scale / before)
    back = torch.ones(S, T, dtype=torch.bool).tril()
    if way.mask in ("padding", "vector", "rows", "heads"):
        scores = scores + mask
    elif way.mask == "two":
        scores = scores + mask * 1.5
    elif way.mask == "subtracted":
        scores = scores - (1 - mask) * 1e4
    elif way.mask in ("where", "masked_fill"):
        scores = scores.masked_fill(mask < 0.5, -1e9)
    elif way.mask == "where_inf":
        scores = scores.masked_fill(mask < 0.5, -INF)
    elif way.mask.startswith("causal"):
        scores = scores.masked_fill(~back, -INF)
        scores = scores + mask if way.mask == "causal_and_padding" else scores
    return torch.softmax(scores * before, -1) @ value
