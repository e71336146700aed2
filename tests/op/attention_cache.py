"""Test records of caches of keys and values."""

import torch

from meta.testing import C, F, I, OpCase, error, sample
from tests.op.attention import HALVES, single


def slot(cache, row, position, block_table):
    """Return where a position of a text is, None if it is nowhere."""
    if position < 0:
        return None
    if block_table is None:
        return row, position
    size = cache.shape[2]
    block = int(block_table[row, position // size])
    return None if block < 0 else (block, position % size)


def cache_update(keys, values, key, value, positions, block_table=None):
    """Write token by token."""
    written = keys.clone(), values.clone()
    for row in range(positions.shape[0]):
        for step in range(positions.shape[1]):
            at = slot(keys, row, int(positions[row, step]), block_table)
            for cache, x in zip(written, (key, value), strict=True) if at else ():
                cache[at[0], :, at[1]] = x[row, step]
    return written


def cached_attention(
    query, keys, values, positions, block_table=None, sinks=None, scale=None, window=None,
    score_cap=None,
):  # fmt: skip
    """Attend token by token, and head by head."""
    n, steps, heads, width = query.shape
    y = query.new_zeros((n, steps, heads, values.shape[3]))
    for row, step, head in torch.cartesian_prod(*map(torch.arange, (n, steps, heads))).tolist():
        last = int(positions[row, step])
        first = 0 if window is None else max(last - window + 1, 0)
        places = [slot(keys, row, j, block_table) for j in range(first, last + 1)]
        group = head // (heads // keys.shape[1])
        found = [(keys[p[0], group, p[1]], values[p[0], group, p[1]]) for p in places if p]
        if not found:
            continue
        scores = torch.stack([k @ query[row, step, head] for k, _ in found])
        scores = scores * (max(width, 1) ** -0.5 if scale is None else scale)
        if score_cap is not None:
            scores = score_cap * torch.tanh(scores / score_cap)
        if sinks is not None:
            scores = torch.cat((scores, sinks[head : head + 1]))
        weights = torch.softmax(scores, 0)[: len(found)]
        y[row, step, head] = weights @ torch.stack([v for _, v in found])
    return y


def inputs(n, steps, heads, groups, slots, width, value_width=None, blocks=None):
    """Query and caches; of ``slots`` in each of so many blocks."""
    shape = blocks or n, groups, slots
    return F(n, steps, heads, width), F(*shape, width), F(*shape, value_width or width)


def tokens(n, steps, heads, slots, width, value_width, blocks=None):
    """Caches, and what is written."""
    shape = blocks or n, heads, slots
    return (
        F(*shape, width), F(*shape, value_width), F(n, steps, heads, width),
        F(n, steps, heads, value_width),
    )  # fmt: skip


AT, TABLE = C([[5, 6], [0, -1]], "int64"), C([[3, 0], [1, -1]], "int32")
ONE, FAR = C([[17]], "int64"), C([[3, 0, 4, 6, 5]], "int32")

CASES = [
    OpCase(
        "cache_update",
        samples=[
            sample(*tokens(2, 2, 3, 7, 4, 5), AT),
            sample(*tokens(2, 2, 1, 4, 3, 3, 5), AT, TABLE),
            sample(*tokens(1, 1, 2, 4, 16, 16, 7), ONE, FAR),
            sample(*tokens(1, 3, 2, 9, 4, 4), C([[8, 2, 0]], "int64")),
            sample(*tokens(1, 1, 2, 9, 4, 4), C([[-1]], "int64")),
            sample(*tokens(2, 0, 2, 9, 4, 4), I(2, 0, low=0, high=9)),
        ],
        oracle=cache_update,
        grad=False,
        errors=[
            error(*tokens(2, 2, 3, 7, 4, 5), I(2, 1, low=0, high=7), match="positions does not"),
            error(*tokens(2, 2, 3, 7, 4, 5), F(2, 2), match="positions does not fit"),
            error(*tokens(2, 2, 3, 7, 4, 5), AT, I(2, 2, low=0, high=2), match="block_table does"),
            error(*tokens(2, 2, 3, 7, 4, 5, 9), AT, match="the caches do not fit"),
            error(
                F(2, 3, 7, 4), F(2, 3, 8, 4), *tokens(2, 2, 3, 7, 4, 4)[2:], AT,
                match="the caches do not fit",
            ),
            error(*tokens(2, 2, 3, 7, 4, 5)[:3], F(2, 2, 3, 4), AT, match="value does not fit"),
            error(
                *tokens(2, 2, 3, 7, 4, 5)[:2], *tokens(2, 2, 1, 7, 4, 5)[2:], AT,
                match="key does not fit its cache",
            ),
            error(F(3, 7, 4), *tokens(2, 2, 3, 7, 4, 5)[1:], AT, match="keys must have 4 axes"),
        ],
    ),
    OpCase(
        "cached_attention",
        samples=[
            sample(*inputs(2, 2, 4, 2, 7, 8), AT),
            sample(*inputs(2, 2, 4, 2, 4, 8, 5, blocks=5), AT, TABLE, window=3),
            sample(*inputs(1, 1, 6, 2, 4, 16, blocks=7), ONE, FAR, F(6)),
            sample(*inputs(1, 1, 4, 4, 40, 32), C([[33]], "int64"), score_cap=2.0, scale=0.5),
            sample(
                *inputs(1, 3, 2, 1, 9, 3), C([[4, 5, 6]], "int64"), None, F(2), window=2,
                score_cap=1.5,
            ),
            sample(*inputs(1, 20, 2, 1, 24, 16), C([[*range(3, 23)]], "int64"), window=7),
            sample(*inputs(1, 1, 2, 1, 9, 4), C([[-1]], "int64")),
            sample(*inputs(2, 0, 2, 2, 9, 4), I(2, 0, low=0, high=9)),
        ],
        oracle=cached_attention,
        grad=False,
        errors=[
            error(*inputs(2, 2, 4, 2, 7, 8), I(2, 3, low=0, high=7), match="positions does not"),
            error(*inputs(2, 2, 4, 3, 7, 8), AT, match="keys do not fit query"),
            error(F(2, 2, 4, 9), *inputs(2, 2, 4, 2, 7, 8)[1:], AT, match="keys do not fit query"),
            error(*inputs(2, 2, 4, 2, 7, 8), AT, None, F(3), match="sinks do not fit"),
            error(*inputs(2, 2, 4, 2, 7, 8), AT, window=0, match="window is at least 1"),
            error(*inputs(2, 2, 4, 2, 7, 8), AT, score_cap=0.0, match="score_cap is above 0"),
            error(*inputs(3, 2, 4, 2, 7, 8), AT, match="positions does not fit"),
            error(
                I(2, 2, 4, 8, low=0, high=3), *[I(2, 2, 7, 8, low=0, high=3)] * 2, AT,
                match="query must be floating point",
            ),
        ],
    ),
    OpCase(
        "cached_attention",
        samples=[sample(*inputs(1, 1, 4, 1, 9, 8), C([[6]], "int64"), None, single(4))],
        oracle=cached_attention,
        dtypes=HALVES,
        grad=False,
    ),
]  # fmt: skip
