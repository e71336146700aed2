"""Attention in Triton, a block of scores at a time: forward, and gradients by queries and by keys.

Scores and probabilities are computed to base 2. What dropout keeps is computed again in each
kernel, of the key and an element's place in the array of all weights; where rows are of multiples
of 4 keys, one random block serves four neighbours.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def _split(place, tiles, heads):
    """Return the tile of a thread block, its batch and its head."""
    pair = place // tiles
    return place % tiles, (pair // heads).to(tl.int64), pair % heads


@triton.jit
def _tile(start, rows, row_end, row_step, columns, width):
    """Read rows from ``start`` on, with zeros behind the last one and behind the width."""
    inside = (rows < row_end)[:, None] & (columns < width)[None, :]
    places = rows.to(tl.int64)[:, None] * row_step + columns[None, :]
    return tl.load(start + places, mask=inside, other=0.0)


@triton.jit
def _dropout_mask(
    seed, first, rows, start, keys, threshold, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """Return which weights dropout keeps: of rows, and of BLOCK_N keys from ``start`` on."""
    begin = first + rows.to(tl.int64) * keys
    if VECTOR:
        block = (begin[:, None] >> 2) + (start // 4 + tl.arange(0, BLOCK_N // 4))[None, :]
        low, high = block.to(tl.uint32), (block >> 32).to(tl.uint32)
        a, b, c, d = tl.philox(seed, low, high, low * 0, low * 0)
        a, b, c, d = a >= threshold, b >= threshold, c >= threshold, d >= threshold
        # Four neighbours: a, b, c, d.
        even = tl.join(a.to(tl.int8), c.to(tl.int8))
        odd = tl.join(b.to(tl.int8), d.to(tl.int8))
        return tl.reshape(tl.join(even, odd), (BLOCK_M, BLOCK_N)) != 0
    place = begin[:, None] + (start + tl.arange(0, BLOCK_N))[None, :]
    block, lane = place >> 2, place & 3
    low, high = block.to(tl.uint32), (block >> 32).to(tl.uint32)
    a, b, c, d = tl.philox(seed, low, high, low * 0, low * 0)
    word = tl.where(lane < 2, tl.where(lane == 0, a, b), tl.where(lane == 2, c, d))
    return word >= threshold


@triton.jit
def _scores(
    q, k, mask, slope, row, start, queries, keys, mask_row, mask_key, left, right, scale,
    MASK: tl.constexpr, SLOPES: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):  # fmt: skip
    """Return scores to base 2 of a tile, minus infinity where a query may not look.

    MASK: 0 for none, 1 for truth values, 2 for numbers to add.
    """
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * LOG2E)
    rows, columns = row + tl.arange(0, BLOCK_M), start + tl.arange(0, BLOCK_N)
    distance = columns[None, :] - rows[:, None]
    if SLOPES:
        s -= slope * tl.abs(distance).to(tl.float32)
    if MASK:
        inside = (rows < queries)[:, None] & (columns < keys)[None, :]
        seen = inside & (distance <= right) & (distance >= -left)
        places = rows.to(tl.int64)[:, None] * mask_row + columns.to(tl.int64)[None, :] * mask_key
        if MASK == 1:
            seen = seen & (tl.load(mask + places, mask=inside, other=0) != 0)
        else:
            s += tl.load(mask + places, mask=inside, other=0.0).to(tl.float32) * LOG2E
        s = tl.where(seen, s, float("-inf"))
    else:
        # Most tiles are seen as a whole.
        behind = (row + BLOCK_M > queries) | (start + BLOCK_N > keys)
        outside = (start + BLOCK_N - 1 - row > right) | (row + BLOCK_M - 1 - start > left)
        if behind | outside:
            inside = (rows < queries)[:, None] & (columns < keys)[None, :]
            seen = inside & (distance <= right) & (distance >= -left)
            s = tl.where(seen, s, float("-inf"))
    return s


@triton.jit
def _mask_start(mask, batch, head, mask_batches, mask_batch, mask_head):
    return mask + (batch % mask_batches) * mask_batch + head.to(tl.int64) * mask_head


@triton.jit
def _slope(slopes, batch, head, slope_batch, SLOPES: tl.constexpr):
    if SLOPES:
        return tl.load(slopes + batch * slope_batch + head).to(tl.float32) * LOG2E
    return 0.0


@triton.jit
def attention_forward(
    query, key, value, mask, slopes, dropout_key, y, logsumexp,
    heads, share, queries, keys, width, value_width,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
    mask_batches, mask_batch, mask_head, mask_row, mask_key, slope_batch, left, right,
    scale, kept_scale, threshold: tl.uint32,
    MASK: tl.constexpr, SLOPES: tl.constexpr, DROPS: tl.constexpr, VECTOR: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M rows of y and their logsumexp."""
    tile, batch, head = _split(tl.program_id(0), tl.cdiv(queries, BLOCK_M), heads)
    group = (head // share).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    depth, value_depth = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    k_start = key + batch * k_batch + group * k_head
    v_start = value + batch * v_batch + group * v_head
    q_start = query + batch * q_batch + head.to(tl.int64) * q_head
    q = _tile(q_start, rows, queries, q_row, depth, width)
    mask_start = mask
    if MASK:
        mask_start = _mask_start(mask, batch, head, mask_batches, mask_batch, mask_head)
    slope = _slope(slopes, batch, head, slope_batch, SLOPES)
    first = (batch * heads + head) * queries * keys
    if DROPS:
        seed = tl.load(dropout_key)
    top = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    total = tl.zeros((BLOCK_M,), tl.float32)
    sums = tl.zeros((BLOCK_M, VALUE_WIDTH), tl.float32)
    begin = tl.maximum(tile * BLOCK_M - left, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(tile * BLOCK_M + BLOCK_M + right, keys)
    for start in range(begin, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k = _tile(k_start, columns, keys, k_row, depth, width)
        s = _scores(
            q, k, mask_start, slope, tile * BLOCK_M, start, queries, keys, mask_row, mask_key,
            left, right, scale, MASK, SLOPES, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        higher = tl.maximum(top, tl.max(s, 1))
        # A row that has seen nothing yet stays one.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - base[:, None])
        fade = tl.exp2(top - base)
        total = total * fade + tl.sum(p, 1)
        if DROPS:
            keep = _dropout_mask(
                seed, first, rows, start, keys, threshold, BLOCK_M, BLOCK_N, VECTOR
            )
            p = tl.where(keep, p, 0.0)
        v = _tile(v_start, columns, keys, v_row, value_depth, value_width)
        sums = tl.dot(p.to(v.dtype), v, sums * fade[:, None], input_precision=PRECISION)
        top = higher
    blind = total == 0.0
    total = tl.where(blind, 1.0, total)
    result = sums / total[:, None] * kept_scale
    top = tl.where(blind, 0.0, top)
    inside = (rows < queries)[:, None] & (value_depth < value_width)[None, :]
    places = rows.to(tl.int64)[:, None] * y_row + value_depth[None, :]
    y_start = y + batch * y_batch + head.to(tl.int64) * y_head
    tl.store(y_start + places, result.to(y.dtype.element_ty), mask=inside)
    sums_start = logsumexp + (batch * heads + head) * queries
    tl.store(sums_start + rows, (top + tl.log2(total)) * LN2, mask=rows < queries)


@triton.jit
def attention_dquery(
    query, key, value, mask, y, logsumexp, dy, slopes, dropout_key, dquery, delta,
    heads, share, queries, keys, width, value_width,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
    mask_batches, mask_batch, mask_head, mask_row, mask_key, slope_batch, left, right,
    scale, kept_scale, threshold: tl.uint32,
    MASK: tl.constexpr, SLOPES: tl.constexpr, DROPS: tl.constexpr, VECTOR: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_M rows of the gradient of query, and sum(dy * y) of each."""
    tile, batch, head = _split(tl.program_id(0), tl.cdiv(queries, BLOCK_M), heads)
    group = (head // share).to(tl.int64)
    rows = tile * BLOCK_M + tl.arange(0, BLOCK_M)
    depth, value_depth = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    k_start = key + batch * k_batch + group * k_head
    v_start = value + batch * v_batch + group * v_head
    own = batch * q_batch + head.to(tl.int64) * q_head
    result_own = batch * y_batch + head.to(tl.int64) * y_head
    q = _tile(query + own, rows, queries, q_row, depth, width)
    slope_y = _tile(dy + result_own, rows, queries, y_row, value_depth, value_width)
    result = _tile(y + result_own, rows, queries, y_row, value_depth, value_width)
    flat = tl.sum(slope_y.to(tl.float32) * result.to(tl.float32), 1)
    sums_place = (batch * heads + head) * queries + rows
    tl.store(delta + sums_place, flat, mask=rows < queries)
    top = tl.load(logsumexp + sums_place, mask=rows < queries, other=0.0) * LOG2E
    mask_start = mask
    if MASK:
        mask_start = _mask_start(mask, batch, head, mask_batches, mask_batch, mask_head)
    slope = _slope(slopes, batch, head, slope_batch, SLOPES)
    first = (batch * heads + head) * queries * keys
    if DROPS:
        seed = tl.load(dropout_key)
    total = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    begin = tl.maximum(tile * BLOCK_M - left, 0) // BLOCK_N * BLOCK_N
    end = tl.minimum(tile * BLOCK_M + BLOCK_M + right, keys)
    for start in range(begin, end, BLOCK_N):
        columns = start + tl.arange(0, BLOCK_N)
        k = _tile(k_start, columns, keys, k_row, depth, width)
        s = _scores(
            q, k, mask_start, slope, tile * BLOCK_M, start, queries, keys, mask_row, mask_key,
            left, right, scale, MASK, SLOPES, PRECISION, BLOCK_M, BLOCK_N,
        )  # fmt: skip
        p = tl.exp2(s - top[:, None])
        v = _tile(v_start, columns, keys, v_row, value_depth, value_width)
        by_p = tl.dot(slope_y, tl.trans(v), input_precision=PRECISION)
        if DROPS:
            keep = _dropout_mask(
                seed, first, rows, start, keys, threshold, BLOCK_M, BLOCK_N, VECTOR
            )
            by_p = tl.where(keep, by_p * kept_scale, 0.0)
        ds = p * (by_p - flat[:, None])
        total = tl.dot(ds.to(k.dtype), k, total, input_precision=PRECISION)
    inside = (rows < queries)[:, None] & (depth < width)[None, :]
    places = rows.to(tl.int64)[:, None] * q_row + depth[None, :]
    tl.store(dquery + own + places, (total * scale).to(dquery.dtype.element_ty), mask=inside)


@triton.jit
def attention_dkey(
    query, key, value, mask, logsumexp, dy, slopes, dropout_key, delta, dkey, dvalue,
    heads, share, queries, keys, width, value_width,
    q_batch, q_head, q_row, k_batch, k_head, k_row, v_batch, v_head, v_row, y_batch, y_head, y_row,
    mask_batches, mask_batch, mask_head, mask_row, mask_key, slope_batch, left, right,
    scale, kept_scale, threshold: tl.uint32,
    MASK: tl.constexpr, SLOPES: tl.constexpr, DROPS: tl.constexpr, VECTOR: tl.constexpr,
    PRECISION: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):  # fmt: skip
    """Compute BLOCK_N rows of the gradients of key and value, over all heads that share them."""
    tile, batch, group = _split(tl.program_id(0), tl.cdiv(keys, BLOCK_N), heads // share)
    start = tile * BLOCK_N
    columns = start + tl.arange(0, BLOCK_N)
    depth, value_depth = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    k_own = batch * k_batch + group.to(tl.int64) * k_head
    v_own = batch * v_batch + group.to(tl.int64) * v_head
    k = _tile(key + k_own, columns, keys, k_row, depth, width)
    v = _tile(value + v_own, columns, keys, v_row, value_depth, value_width)
    by_k = tl.zeros((BLOCK_N, WIDTH), tl.float32)
    by_v = tl.zeros((BLOCK_N, VALUE_WIDTH), tl.float32)
    if DROPS:
        seed = tl.load(dropout_key)
    # Query i sees the keys from i - left to i + right.
    begin = tl.maximum(start - right, 0) // BLOCK_M * BLOCK_M
    end = tl.minimum(start + BLOCK_N + left, queries)
    for member in range(share):
        head = group * share + member
        q_start = query + batch * q_batch + head.to(tl.int64) * q_head
        dy_start = dy + batch * y_batch + head.to(tl.int64) * y_head
        mask_start = mask
        if MASK:
            mask_start = _mask_start(mask, batch, head, mask_batches, mask_batch, mask_head)
        slope = _slope(slopes, batch, head, slope_batch, SLOPES)
        line = (batch * heads + head) * queries
        for row in range(begin, end, BLOCK_M):
            rows = row + tl.arange(0, BLOCK_M)
            q = _tile(q_start, rows, queries, q_row, depth, width)
            s = _scores(
                q, k, mask_start, slope, row, start, queries, keys, mask_row, mask_key, left,
                right, scale, MASK, SLOPES, PRECISION, BLOCK_M, BLOCK_N,
            )  # fmt: skip
            top = tl.load(logsumexp + line + rows, mask=rows < queries, other=0.0) * LOG2E
            p = tl.exp2(s - top[:, None])
            slope_y = _tile(dy_start, rows, queries, y_row, value_depth, value_width)
            flat = tl.load(delta + line + rows, mask=rows < queries, other=0.0)
            by_p = tl.dot(slope_y, tl.trans(v), input_precision=PRECISION)
            weights = p
            if DROPS:
                keep = _dropout_mask(
                    seed, line * keys, rows, start, keys, threshold, BLOCK_M, BLOCK_N, VECTOR
                )
                by_p = tl.where(keep, by_p * kept_scale, 0.0)
                weights = tl.where(keep, p * kept_scale, 0.0)
            ds = p * (by_p - flat[:, None])
            by_v = tl.dot(
                tl.trans(weights.to(slope_y.dtype)), slope_y, by_v, input_precision=PRECISION
            )
            by_k = tl.dot(tl.trans(ds.to(q.dtype)), q, by_k, input_precision=PRECISION)
    inside = columns < keys
    places = columns.to(tl.int64)[:, None] * k_row + depth[None, :]
    within = inside[:, None] & (depth < width)[None, :]
    tl.store(dkey + k_own + places, (by_k * scale).to(dkey.dtype.element_ty), mask=within)
    places = columns.to(tl.int64)[:, None] * v_row + value_depth[None, :]
    within = inside[:, None] & (value_depth < value_width)[None, :]
    tl.store(dvalue + v_own + places, by_v.to(dvalue.dtype.element_ty), mask=within)
