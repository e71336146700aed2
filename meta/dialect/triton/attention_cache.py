"""Caches of keys and values in Triton: tokens are written, and the slots that they see are read.

Queries that share a head of keys are the rows of a tile. The grid is that of the cache, so that a
CUDA graph holds it while texts grow: how many slots there are to read is known on the device. Where
tiles are too few for the processors, the slots of each are divided among several blocks, evenly,
whose results a second launch joins (as of Dao et al., "Flash-Decoding", 2023).
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from meta import op
from meta.base import config
from meta.dialect.core import HANDWRITTEN, OpEnv, decline_if, require_static
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.triton import triton_dialect as dialect
from meta.dialect.triton.attention import DTYPES, FORWARD, WIDEST, sizes_of, wide_tile
from meta.dialect.triton.attention_kernels import LOG2E
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.op.attention import score_scale
from meta.op.attention_cache import slots_of
from meta.op.core.call import CallValues
from meta.runtime import gpu_properties

FEW = 16
"""Rows of the smallest tile of a product."""
FEW_ROWS = {
    (True, 64): (FEW, 64, 4, 3),
    (True, 128): (FEW, 64, 4, 3),
    (True, 256): (FEW, 32, 4, 2),
    (False, 64): (FEW, 32, 4, 2),
    (False, 128): (FEW, 32, 4, 2),
    (False, 256): (FEW, 16, 4, 1),
}
"""Sizes as in `FORWARD`, for so few rows."""
MOST_TOKENS = 16
"""Tokens of a head that a block writes."""
LEAST = 128
"""Slots that are worth a block of their own."""
MOST_DIVISIONS = 64
"""Blocks among which the slots of a tile are divided."""


@triton.jit
def _wait(EARLY: tl.constexpr):
    """Let the next kernel begin, and wait for those before: nothing was read yet."""
    if EARLY:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def _locate(
    table, row, head, heads, slot, inside, blocks, most, PAGED: tl.constexpr, SIZE: tl.constexpr
):  # fmt: skip
    """Return where a head of a text's slots is, in slots, and which of them there are."""
    if PAGED:
        column = slot // SIZE
        inside = inside & (column < most)
        block = tl.load(table + row * most + column, mask=inside, other=-1).to(tl.int64)
        inside = inside & (block >= 0) & (block < blocks)
        return (block * heads + head) * SIZE + slot % SIZE, inside
    return (row * heads + head) * SIZE + slot, inside & (slot < SIZE)


@triton.jit
def write_tokens(
    keys, values, key, value, positions, table, count, steps, heads, width, value_width, blocks,
    most, PAGED: tl.constexpr, SIZE: tl.constexpr, WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr, TOKENS: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Write a head of some tokens."""
    _wait(EARLY)
    token = tl.program_id(0).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)
    head = tl.program_id(1)
    slot = tl.load(positions + token, mask=token < count, other=-1)
    row = token // steps
    to, there = _locate(table, row, head, heads, slot, slot >= 0, blocks, most, PAGED, SIZE)
    source = token * heads + head
    d = tl.arange(0, WIDTH)[None, :]
    inside = there[:, None] & (d < width)
    part = tl.load(key + source[:, None] * width + d, mask=inside)
    tl.store(keys + to[:, None] * width + d, part, mask=inside)
    d = tl.arange(0, VALUE_WIDTH)[None, :]
    inside = there[:, None] & (d < value_width)
    part = tl.load(value + source[:, None] * value_width + d, mask=inside)
    tl.store(values + to[:, None] * value_width + d, part, mask=inside)


@triton.jit
def attend_slots(
    query, keys, values, positions, table, sinks, y, sums, tops, totals,
    steps, heads, groups, width, value_width, blocks, most, slots, window, scale, cap,
    PAGED: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr, CAP: tl.constexpr,
    SINKS: tl.constexpr, PARTS: tl.constexpr, PRECISION: tl.constexpr, BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M rows of y, or their sums over a part of the slots."""
    _wait(EARLY)
    share = heads // groups
    tiles = tl.cdiv(steps * share, BLOCK_M)
    pair, part = tl.program_id(0) // tiles, tl.program_id(1)
    batch, group = (pair // groups).to(tl.int64), pair % groups
    rows = tl.program_id(0) % tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    inside = rows < steps * share
    token = batch * steps + rows // share
    result = token * heads + group * share + rows % share
    at = tl.load(positions + token, mask=inside, other=-1)
    at = tl.where(at < slots, at, -1).to(tl.int32)
    end, begin = tl.max(at, 0) + 1, 0
    if WINDOW:
        begin = tl.maximum(tl.min(tl.where(at >= 0, at, slots), 0) - window + 1, 0)
        begin = tl.minimum(begin, end)
    if PARTS > 1:
        each = tl.cdiv(tl.cdiv(end - begin, PARTS), BLOCK_N) * BLOCK_N
        begin += part * each
        end = tl.minimum(begin + each, end)
    depth, value_depth = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    q = tl.load(
        query + result[:, None] * width + depth[None, :],
        mask=inside[:, None] & (depth < width)[None, :], other=0.0,
    )  # fmt: skip
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sum_ = tl.zeros((BLOCK_M, VALUE_WIDTH), tl.float32)
    for start in range(begin, end, BLOCK_N):
        slot = start + tl.arange(0, BLOCK_N)
        place, there = _locate(
            table, batch, group, groups, slot, slot < end, blocks, most, PAGED, SIZE
        )
        k = tl.load(
            keys + place[:, None] * width + depth[None, :],
            mask=there[:, None] & (depth < width)[None, :], other=0.0,
        )  # fmt: skip
        s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * scale
        if CAP:
            s = cap - 2 * cap / (1 + tl.exp2(s * (2 * LOG2E / cap)))
        seen = there[None, :] & (slot[None, :] <= at[:, None])
        if WINDOW:
            seen = seen & (slot[None, :] > at[:, None] - window)
            # Between the windows of tokens far apart there may be anything.
            there = there & (tl.max(seen.to(tl.int32), 0) > 0)
        s = tl.where(seen, s * LOG2E, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 1))
        # A row that has seen nothing yet stays one.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p, fade = tl.exp2(s - base[:, None]), tl.exp2(top - base)
        total = total * fade + tl.sum(p, 1)
        v = tl.load(
            values + place[:, None] * value_width + value_depth[None, :],
            mask=there[:, None] & (value_depth < value_width)[None, :], other=0.0,
        )  # fmt: skip
        sum_ = tl.dot(p.to(v.dtype), v, sum_ * fade[:, None], input_precision=PRECISION)
        top = higher
    stored = inside[:, None] & (value_depth < value_width)[None, :]
    if PARTS > 1:
        place = result * PARTS + part
        tl.store(tops + place, top, mask=inside)
        tl.store(totals + place, total, mask=inside)
        to = sums + place[:, None] * value_width + value_depth[None, :]
        tl.store(to, sum_, mask=stored)
    else:
        blind = total == 0
        if SINKS:
            sink = tl.load(sinks + group * share + rows % share, mask=inside, other=0.0)
            total += tl.exp2(sink.to(tl.float32) * LOG2E - top)
        found = sum_ / tl.where(blind, 1.0, total)[:, None]
        to = y + result[:, None] * value_width + value_depth[None, :]
        tl.store(to, found.to(y.dtype.element_ty), mask=stored)


@triton.jit
def join_sums(
    sums, tops, totals, sinks, y, heads, value_width, SINKS: tl.constexpr, PARTS: tl.constexpr,
    POWER: tl.constexpr, VALUE_WIDTH: tl.constexpr, EARLY: tl.constexpr,
):  # fmt: skip
    """Make a row of y of its parts."""
    _wait(EARLY)
    row = tl.program_id(0).to(tl.int64)
    part, depth = tl.arange(0, POWER), tl.arange(0, VALUE_WIDTH)
    inside, place = part < PARTS, row * PARTS + part
    tops_ = tl.load(tops + place, mask=inside, other=float("-inf"))
    totals_ = tl.load(totals + place, mask=inside, other=0.0)
    top = tl.max(tops_, 0)
    shares = tl.where(top == float("-inf"), 0.0, tl.exp2(tops_ - top))
    total = tl.sum(totals_ * shares, 0)
    blind = total == 0
    if SINKS:
        sink = tl.load(sinks + row % heads).to(tl.float32)
        total += tl.exp2(sink * LOG2E - top)
    # A part without slots has sums of 0.
    stored = inside[:, None] & (depth < value_width)[None, :]
    parts = tl.load(sums + place[:, None] * value_width + depth[None, :], mask=stored, other=0.0)
    found = tl.sum(parts * shares[:, None], 0) / tl.where(blind, 1.0, total)
    tl.store(y + row * value_width + depth, found.to(y.dtype.element_ty), mask=depth < value_width)


def _fits(call: CallValues) -> None:
    """Raise Unsupported for what the kernels are not made for."""
    given = list(call.tensors())
    require_static(*given)
    dtype, widths = call.args.keys.dtype, (x.shape[3] for x in (call.args.keys, call.args.values))
    decline_if(dtype not in DTYPES, f"made for {', '.join(DTYPES)}")
    decline_if(not all(t.size for t in given), "there is an empty tensor")
    decline_if(max(widths) > WIDEST, f"made for heads of up to {WIDEST} elements")
    table = call.args.block_table
    decline_if(slots_of(call.args.keys, table) >= 2**30, "there are too many slots")


def _sizes_of_caches(call: CallValues) -> dict[str, Any]:
    """Return the arguments that describe caches."""
    keys, values, table = call.args.keys, call.args.values, call.args.block_table
    return {
        "keys": keys, "values": values, "positions": call.args.positions, "table": table,
        "width": keys.shape[3], "value_width": values.shape[3], "SIZE": keys.shape[2],
        "blocks": keys.shape[0], "most": 1 if table is None else table.shape[1],
        "PAGED": table is not None, "WIDTH": wide_tile(keys.static_shape[3]),
        "VALUE_WIDTH": wide_tile(values.static_shape[3]),
    }  # fmt: skip


def _launch(kernel: Any, call: CallValues, grid: tuple[int, ...], **given: Any) -> TritonLaunch:
    """Prepare a launch, one that begins early where that is possible."""
    early = gpu_properties.begins_early(call.device)
    return TritonLaunch(kernel, call.device, grid, early=early, EARLY=early, **given)


@dialect.op(op.cache_update, plevel=dialect.levels(HANDWRITTEN))
def cache_update(call: CallValues) -> OpEnv:
    """Return the launch that writes keys and values."""
    _fits(call)
    n, steps, heads, _ = call.args.key.static_shape
    count, processors = n * steps, gpu_properties.target_of(call.device).processors
    most = max(count * heads // (4 * processors), 1)  # of a block, so that all have some
    tokens = min(1 << (most.bit_length() - 1), MOST_TOKENS)
    given = _sizes_of_caches(call) | {
        "key": call.args.key, "value": call.args.value, "count": count, "steps": steps,
        "heads": heads, "TOKENS": tokens,
    }  # fmt: skip
    launch = _launch(write_tokens, call, (-(-count // tokens), heads), **given)
    return launch_sequence(launch, launch)


def _divisions(call: CallValues, blocks: int) -> int:
    """Return among how many blocks the slots of a tile are divided."""
    slots = slots_of(call.args.keys, call.args.block_table)
    if call.args.window is not None:
        slots = min(slots, call.args.window + call.args.query.shape[1])
    processors = gpu_properties.target_of(call.device).processors
    best = min(2 * processors // blocks, -(-slots // LEAST), MOST_DIVISIONS)
    return ask("PARTS", max(best, 1), (1, 2, 4, 8, 16, 32, 64))


@dialect.op(op.cached_attention, plevel=dialect.levels(HANDWRITTEN))
@tunable
def cached_attention(call: CallValues) -> OpEnv:
    """Return the launches of attention: one, or one for the parts of slots and one to join them."""
    _fits(call)
    a, half = call.args, call.args.query.dtype != "float32"
    n, steps, heads, width = a.query.static_shape
    groups, value_width = a.keys.static_shape[1], a.values.static_shape[3]
    rows, tile = steps * heads // groups, wide_tile(max(width, value_width))
    few = rows <= FEW
    sizes = sizes_of(FEW_ROWS if few else FORWARD, half, tile, few)
    blocks = n * groups * -(-rows // sizes["BLOCK_M"])
    parts, whole = _divisions(call, blocks), n * steps * heads
    single = "float32" if parts > 1 else None
    given = _sizes_of_caches(call) | {
        "query": a.query, "sinks": a.sinks if parts == 1 else None,
        "y": a.query.dtype if parts == 1 else None, "sums": single, "tops": single,
        "totals": single, "steps": steps, "heads": heads, "groups": groups,
        "slots": slots_of(a.keys, a.block_table), "window": a.window or 0,
        "scale": float(score_scale(a.scale, width)), "cap": float(a.score_cap or 0),
        "WINDOW": a.window is not None, "CAP": a.score_cap is not None,
        "SINKS": a.sinks is not None and parts == 1, "PARTS": parts, **sizes,
    }  # fmt: skip

    @cache
    def attended(exact: bool) -> TritonLaunch:
        # Three products of what TensorFloat-32 has are about one of float32.
        precision = "tf32x3" if exact else "tf32"
        return _launch(attend_slots, call, (blocks, parts), PRECISION=precision, **given)

    def is_exact() -> bool:
        return not (half or config.get("META_TF32"))

    if parts == 1:
        return launch_sequence(lambda *values: attended(is_exact())(*values), attended(is_exact()))
    joined = _launch(
        join_sums, call, (whole,), sums="float32", tops="float32", totals="float32",
        sinks=a.sinks, y=a.query.dtype, heads=heads, value_width=value_width,
        SINKS=a.sinks is not None, PARTS=parts, POWER=triton.next_power_of_2(parts),
        VALUE_WIDTH=given["VALUE_WIDTH"],
    )  # fmt: skip
    sizes_of_parts = whole * parts * value_width, whole * parts, whole * parts

    def run(*values: torch.Tensor) -> None:
        *inputs, y = values
        sinks = [inputs.pop()] if a.sinks is not None else []
        memory = torch.empty(sum(sizes_of_parts), dtype=torch.float32, device=y.device)
        parts_of = memory.split(sizes_of_parts)
        attended(is_exact())(*inputs, *parts_of)
        joined(*parts_of, *sinks, y)

    workspace = 4 * sum(sizes_of_parts)
    return launch_sequence(run, attended(is_exact()), joined, workspace=workspace)
