"""Caches of keys and values on the CPU, as loops built by hand: as many as there are slots to read.

A task is the queries of a text that share a head of keys, or a part of its slots. Keys and values
are read once, a few slots at a time, whose scores change a running softmax (Milakov and
Gimelshein, arXiv:1805.02867). Numbers are as wide as float32 at least, and rounded once.
"""

from functools import partial

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.dialect.tvm.index import hand_built, ints
from meta.dialect.tvm.regions import named
from meta.op.attention import score_scale
from meta.op.norm import statistics_dtype

LANES = 16
"""The width of vectors."""
BLOCK = 32
"""Slots at a time."""
TASKS = 16
"""As many are enough for the cores of most machines."""
LEAST = 512
"""Slots that are worth a task."""
SUMS = 256
"""Numbers of a sum of values that stay in registers."""
ROWS = 32
"""Queries of a head of keys up to which these loops are faster than products of matrices."""


def _unfit(call):
    """Return why a call is declined."""
    if call.device.kind != "cpu":
        return "the loops are those of a CPU"
    given = call.tensors()
    return None if all(t.size for t in given if t.is_static) else "there is an empty array"


def _of_few_rows(call):
    query, groups = call.args.query, max(call.args.keys.shape[1], 1)
    return LIBRARY + 1 if query.shape[1] * query.shape[2] // groups <= ROWS else None


def _locate(row, slot, size, table):
    """Return the block of a text's slot, the slot in it, and whether there is one."""
    if table is None:
        return row, slot, True
    block = named(table[row, tirx.indexdiv(slot, size)])
    return block, tirx.indexmod(slot, size), block >= 0


def _if(condition):
    """Begin a statement that is done if a condition holds; True is one that always does."""
    return T.If(_truth(condition))


def _truth(condition):
    return tirx.const(True, "bool") if condition is True else condition


def _pieces(extent, most=LANES):
    """Return the width of vectors of which an axis is so many, and their number."""
    lanes = next(n for n in (16, 8, 4, 2, 1) if n <= most and extent % n == 0)
    return lanes, extent // lanes


@compute(op.cache_update, OPAQUE, when=_unfit, level_of=lambda call: LIBRARY + 1)
def cache_update(keys, values, key, value, positions, block_table):
    n, steps, heads, _ = ints(key.shape)
    size = int(keys.shape[2])

    def loops(key, value, positions, *rest):
        *table, new_keys, new_values = rest
        kind = T.parallel if n * steps >= LEAST else T.serial
        with kind(0, n * steps) as token:
            row, step = named(tirx.indexdiv(token, steps)), named(tirx.indexmod(token, steps))
            slot = named(positions[row, step].astype("int32"))
            with T.If(slot >= 0), T.Then():
                block, at, there = _locate(row, slot, size, *(table or [None]))
                with _if(there), T.Then(), T.serial(0, heads) as head:
                    for cache, x, like in ((new_keys, key, keys), (new_values, value, values)):
                        lanes, count = _pieces(int(like.shape[3]))
                        with T.serial(0, count) as piece, T.vectorized(0, lanes) as lane:
                            d = piece * lanes + lane
                            cache[block, head, at, d] = x[row, step, head, d]

    shapes, dtype = [ints(keys.shape), ints(values.shape)], str(keys.dtype)
    inputs = [x for x in (key, value, positions, block_table) if x is not None]
    return hand_built(shapes, inputs, loops, [dtype] * 2, "written")


class _Loops:
    """The loops of one call, and its sizes."""

    def __init__(self, query, values, block_table, scale, window, score_cap):
        self.n, self.steps, self.heads, self.width = ints(query.shape)
        _, self.groups, self.size, self.value_width = ints(values.shape)
        self.share = self.heads // self.groups
        self.rows = self.steps * self.share
        self.wide = statistics_dtype(str(query.dtype))
        self.scale, self.window, self.cap = score_scale(scale, self.width), window, score_cap
        self.paged = block_table is not None
        self.slots = self.size * (int(block_table.shape[1]) if self.paged else 1)
        tasks = max(self.n * self.groups, 1)
        self.parts = max(min(TASKS // tasks, self.slots // LEAST), 1)
        self.lead = (self.n, self.groups, self.parts, self.rows)

    def number(self, value):
        """Return a constant."""
        return tirx.const(value, self.wide)

    def cells(self, *shape):
        """Return memory of a task."""
        return T.buffer_proxy(T.alloc_buffer(shape, self.wide, scope="local"))

    def scaled(self, query):
        """Return the queries of each head of keys, [n, groups, rows, width]."""

        def element(b, g, r, d):
            step, own = tirx.indexdiv(r, self.share), tirx.indexmod(r, self.share)
            return cast(query(b, step, g * self.share + own, d), self.wide) * self.scale

        return te.compute((self.n, self.groups, self.rows, self.width), element, name="scaled")

    def fill(self, query, keys, values, positions, *rest):
        """Write sums of values, largest scores and sums of weights of all tasks."""
        *table, weighted, top, total = rest
        self.query, self.keys, self.values, self.positions = query, keys, values, positions
        self.table = table[0] if table else None
        self.weighted, self.top, self.total = weighted, top, total
        count = self.n * self.groups * self.parts
        with (T.parallel if count > 1 else T.serial)(0, count) as task:
            each = self.groups * self.parts
            row, rest = named(tirx.indexdiv(task, each)), tirx.indexmod(task, each)
            group = named(tirx.indexdiv(rest, self.parts))
            self.at = row, group, named(tirx.indexmod(rest, self.parts))
            begin, end = self.bounds()
            with T.serial(0, self.rows) as r:
                # Not -inf, which is never subtracted from -inf.
                top[(*self.at, r)] = tirx.min_value(self.wide)
                total[(*self.at, r)] = self.number(0)
                with T.serial(0, self.value_width) as d:
                    weighted[(*self.at, r, d)] = self.number(0)
            scores = self.cells(self.rows, BLOCK)
            with T.serial(0, tirx.indexdiv(end - begin + BLOCK - 1, BLOCK)) as number:
                start = named(begin + number * BLOCK)
                slots = named(tirx.min(end - start, BLOCK))
                self.products(scores, start, slots)
                with T.serial(0, self.rows) as r:
                    self.weigh(scores, r, start, slots)
                self.sums(scores, start, slots)

    def bounds(self):
        """Return which slots a task reads."""
        row, _, part = self.at
        cells = T.buffer_proxy(T.alloc_buffer((2,), "int32", scope="local"))
        cells[0], cells[1] = tirx.const(self.slots, "int32"), tirx.const(-1, "int32")
        with T.serial(0, self.steps) as step:
            at = named(self.positions[row, step].astype("int32"))
            with T.If(at >= 0), T.Then():
                cells[0] = tirx.min(cells[0], at)
                cells[1] = tirx.max(cells[1], at)
        end = named(cells[1] + 1)
        begin = named(tirx.max(cells[0] - (self.window - 1), 0)) if self.window else 0
        begin = named(tirx.min(begin, end))
        if self.parts == 1:
            return begin, end
        each = tirx.indexdiv(end - begin + self.parts * BLOCK - 1, self.parts * BLOCK) * BLOCK
        own = named(tirx.min(begin + part * each, end))
        return own, named(tirx.min(own + each, end))

    def cached(self, cache, slot):
        """Return a function that reads pieces of a slot, and whether there is one."""
        row, group, _ = self.at
        block, at, there = _locate(row, slot, self.size, self.table)
        return lambda d: cast(cache[block, group, at, d], self.wide), there

    def seen(self, slot, there):
        """Return whether there is a slot that a token sees: between the windows of tokens that are
        far apart there may be anything.
        """
        if self.window is None or self.steps == 1:
            return there
        at = (self.positions[self.at[0], step] for step in range(self.steps))
        tokens = [tirx.And(slot <= own, slot > own - self.window) for own in at]
        return tirx.And(tirx.any(*tokens), _truth(there))

    def products(self, scores, start, slots):
        """Write the products of queries and keys."""
        lanes, count = _pieces(self.width)
        together = next(k for k in (4, 3, 2, 1) if self.rows % k == 0)
        with T.serial(0, slots) as j:
            key, there = self.cached(self.keys, start + j)
            if there is not True:
                with T.If(tirx.Not(there)), T.Then(), T.serial(0, self.rows) as r:
                    scores[r, j] = self.number(float("-inf"))
            with _if(there), T.Then(), T.serial(0, self.rows // together) as tile:
                sums = self.cells(together, lanes)
                for r in range(together):
                    with T.vectorized(0, lanes) as lane:
                        sums[r, lane] = self.number(0)
                with T.unroll(0, count) as piece:
                    for r in range(together):
                        with T.vectorized(0, lanes) as lane:
                            d = piece * lanes + lane
                            own = self.query[(*self.at[:2], tile * together + r, d)]
                            sums[r, lane] = sums[r, lane] + own * key(d)
                for r in range(together):
                    row = partial(lambda r, lane: (r, lane), r)
                    scores[tile * together + r, j] = self.folded(sums, row, lanes, tirx.Add)

    def folded(self, cells, at, lanes, combine):
        """Return the combination of a vector's elements, which are overwritten."""
        while lanes > 1:
            lanes //= 2
            with T.vectorized(0, lanes) as lane:
                cells[at(lane)] = combine(cells[at(lane)], cells[at(lane + lanes)])
        return cells[at(0)]

    def weigh(self, scores, r, start, slots):
        """Make weights of a query's scores, and change what was summed before."""
        row = self.at[0]
        own = named(self.positions[row, tirx.indexdiv(r, self.share)].astype("int32"))
        folds, place = self.cells(LANES), (*self.at, r)
        hidden = self.number(float("-inf"))
        # The C library has no tanh of vectors.
        kind = T.vectorized if self.cap is None or self.wide == "float32" else T.serial
        for first in range(0, BLOCK, LANES):
            with kind(0, LANES) as lane:
                slot, score = start + first + lane, scores[r, first + lane]
                seen = tirx.And(slot <= own, first + lane < slots)
                if self.window:
                    seen = tirx.And(seen, slot > own - self.window)
                if self.cap is not None:
                    # What is -inf has no block.
                    seen = tirx.And(seen, score != hidden) if self.paged else seen
                    score = tirx.tanh(score * (1 / self.cap)) * self.cap
                scores[r, first + lane] = tirx.Select(seen, score, hidden)
        self.collect(scores, r, folds, tirx.Max)
        top = named(tirx.max(self.folded(folds, lambda i: i, LANES, tirx.Max), self.top[place]))
        for first in range(0, BLOCK, LANES):
            with T.vectorized(0, LANES) as lane:
                scores[r, first + lane] = tirx.exp(scores[r, first + lane] - top)
        self.collect(scores, r, folds, tirx.Add)
        fade = named(tirx.exp(self.top[place] - top))
        self.top[place] = top
        weights = self.folded(folds, lambda i: i, LANES, tirx.Add)
        self.total[place] = self.total[place] * fade + weights
        lanes, count = _pieces(self.value_width)
        with T.serial(0, count) as piece, T.vectorized(0, lanes) as lane:
            d = (*place, piece * lanes + lane)
            self.weighted[d] = self.weighted[d] * fade

    def collect(self, scores, r, folds, combine):
        """Combine a query's vectors."""
        with T.vectorized(0, LANES) as lane:
            found = scores[r, lane]
            for first in range(LANES, BLOCK, LANES):
                found = combine(found, scores[r, first + lane])
            folds[lane] = found

    def sums(self, weights, start, slots):
        """Add values, weighted."""
        lanes, count = _pieces(self.value_width)
        together = next(
            k
            for k in (4, 3, 2, 1)
            if self.rows % k == 0 and (k * self.value_width <= SUMS or k == 1)
        )
        with T.serial(0, self.rows // together) as tile:
            cells = self.cells(together, count, lanes)
            place = [(*self.at, tile * together + r) for r in range(together)]
            for r in range(together):
                with T.unroll(0, count) as piece, T.vectorized(0, lanes) as lane:
                    cells[r, piece, lane] = self.weighted[(*place[r], piece * lanes + lane)]
            with T.serial(0, slots) as j:
                value, there = self.cached(self.values, start + j)
                with _if(self.seen(start + j, there)), T.Then(), T.unroll(0, count) as piece:
                    for r in range(together):
                        with T.vectorized(0, lanes) as lane:
                            more = weights[tile * together + r, j] * value(piece * lanes + lane)
                            cells[r, piece, lane] = cells[r, piece, lane] + more
            for r in range(together):
                with T.unroll(0, count) as piece, T.vectorized(0, lanes) as lane:
                    self.weighted[(*place[r], piece * lanes + lane)] = cells[r, piece, lane]


@compute(op.cached_attention, OPAQUE, when=_unfit, level_of=_of_few_rows)
def cached_attention(
    query, keys, values, positions, block_table, sinks, scale, window, score_cap, out
):
    a = _Loops(query, values, block_table, scale, window, score_cap)
    inputs = [x for x in (a.scaled(query), keys, values, positions, block_table) if x is not None]
    shapes = [(*a.lead, a.value_width), a.lead, a.lead]
    weighted, top, total = hand_built(shapes, inputs, a.fill, [a.wide] * 3, "attended")
    if a.parts > 1:
        weighted, top, total = _joined(a, weighted, top, total)

    def result(b, s, h, d):
        r = s * a.share + tirx.indexmod(h, a.share)
        at = (b, tirx.indexdiv(h, a.share), 0, r)
        whole = total(*at)
        if sinks is not None:
            whole = whole + tirx.exp(cast(sinks(h), a.wide) - top(*at))
        blind = total(*at) == a.number(0)
        return cast(tirx.Select(blind, a.number(0), weighted(*at, d) / whole), query.dtype)

    return te.compute(out.static_shape, result, name="y")


def _joined(a, weighted, top, total):
    """Return what the parts of the slots are together."""
    parts = partial(te.reduce_axis, (0, a.parts))
    lead = (a.n, a.groups, 1, a.rows)
    p = parts("p")
    highest = te.compute(lead, lambda b, g, _, r: te.max(top(b, g, p, r), axis=p), name="highest")
    shares = te.compute(
        a.lead, lambda b, g, p, r: tirx.exp(top(b, g, p, r) - highest(b, g, 0, r)), name="shares"
    )
    q, s = parts("q"), parts("s")
    whole = te.compute(
        lead,
        lambda b, g, _, r: te.sum(total(b, g, q, r) * shares(b, g, q, r), axis=q),
        name="whole",
    )
    sums = te.compute(
        (*lead, a.value_width),
        lambda b, g, _, r, d: te.sum(weighted(b, g, s, r, d) * shares(b, g, s, r), axis=s),
        name="sums",
    )
    return sums, highest, whole
