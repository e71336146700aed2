"""Attention with a cache on ATen, whose attention is given the slots that tokens see.

On the CPU these are known, text by text. On CUDA no host knows them: all slots are read, which is
for the dtypes that no other dialect has.
"""

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.attention import attend
from meta.dialect.torch.attention_blocks import Scoring
from meta.op.attention import score_scale

STEPS = 256
"""Tokens of a text at a time, on the CPU: they read no slots behind the last of them."""


@dialect.kernel(op.cache_update)
def cache_update(keys, values, key, value, positions, block_table):
    if not key.numel():
        return
    n, size = key.shape[0], keys.shape[2]
    rows = torch.arange(n, device=key.device).unsqueeze(1).expand(positions.shape)
    place, blocks = positions.clamp(min=0), rows
    if block_table is not None:
        last = block_table.shape[1] - 1
        blocks = block_table.long().gather(1, (place // size).clamp(max=last))
        blocks = blocks.masked_fill(place // size > last, -1)
    else:
        blocks = blocks.masked_fill(place >= size, -1)
    written = (positions >= 0) & (blocks >= 0) & (blocks < keys.shape[0])
    written = written.flatten()
    # What is not written is another token once more, so that no host has to know how many are; if
    # there is none at all, what is there already.
    token = torch.where(
        written, torch.arange(len(written), device=key.device), written.int().argmax()
    )
    at = blocks.flatten()[token].clamp(0, keys.shape[0] - 1), None, (place % size).flatten()[token]
    for cache, x in ((keys, key), (values, value)):
        new = x.flatten(0, 1)[token]
        old = torch.ops.aten.index(cache, at)
        torch.ops.aten.index_put_(cache, at, torch.where(written.any(), new, old))


@dialect.kernel(op.cached_attention, plevel={"cpu": LIBRARY}, strided=False)
def cached_attention(query, keys, values, positions, block_table, sinks, scale, window, score_cap):
    n, steps, heads, width = query.shape
    y = query.new_zeros((n, steps, heads, values.shape[3]))
    slots = keys.shape[2] * (1 if block_table is None else block_table.shape[1])
    if not (y.numel() and width and slots):
        return y
    how = score_scale(scale, width), score_cap, sinks
    query, result = query.transpose(1, 2), y.transpose(1, 2)
    if query.is_cuda:
        result.copy_(_of_slots(query, keys, values, positions, block_table, 0, slots, window, how))
        return y
    for row in range(n):
        table = None if block_table is None else block_table[row : row + 1]
        k, v = (x if table is not None else x[row : row + 1] for x in (keys, values))
        for first in range(0, steps, STEPS):
            part = slice(row, row + 1), slice(None), slice(first, first + STEPS)
            at = positions[row : row + 1, first : first + STEPS]
            low, high = at.masked_fill(at < 0, slots).min().item(), at.max().item()
            if high >= 0:
                begin = 0 if window is None else max(low - window + 1, 0)
                found = _of_slots(query[part], k, v, at, table, begin, high + 1, window, how)
                result[part] = found
    return y


def _of_slots(query, keys, values, positions, table, begin, end, window, how):
    """Return attention to slots from ``begin`` to ``end`` of the caches of all texts given."""
    slots, places = torch.arange(begin, end, device=query.device), positions.unsqueeze(-1)
    seen = slots <= places
    if window is not None:
        seen &= slots > places - window
    if table is None:
        keys, values = keys[:, :, begin:end], values[:, :, begin:end]
    else:
        size = keys.shape[2]
        blocks = table[:, slots // size]
        seen &= ((blocks >= 0) & (blocks < keys.shape[0])).unsqueeze(1)
        at = blocks.clamp(0, keys.shape[0] - 1), None, slots % size
        keys, values = (torch.ops.aten.index(x, at).transpose(1, 2) for x in (keys, values))
    # A weight of 0 times what is in a slot that nobody sees would be NaN where that is.
    read = seen.any(1)
    if query.is_cuda or not read.all():
        keys, values = (x.masked_fill(~read[:, None, :, None], 0) for x in (keys, values))
    scale, cap, sinks = how
    y, logsumexp = attend(query, keys, values, Scoring(seen.unsqueeze(1), False, scale, cap=cap))
    if sinks is None:
        return y
    share = torch.sigmoid(logsumexp - sinks.to(logsumexp.dtype).unsqueeze(-1))
    return (y * share.unsqueeze(-1)).to(y.dtype)
