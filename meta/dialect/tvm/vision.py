"""Detection and matching of images in TE.

A batch element is one loop (on CUDA, one thread), for what it decides about a box depends on the
boxes before. Half precision is computed in float32.
"""

import math

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.tvm import order_keys
from meta.dialect.tvm.broadcast import cast, computing, constant, single, wide
from meta.dialect.tvm.compute import OPAQUE, OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.index import hand_built, zeros
from meta.dialect.tvm.sorting import ranks
from meta.op.core.window import pads
from meta.op.vision import displacements


def _per_batch(inputs, batch, shapes, body):
    """Return arrays that ``body(b, given, results)`` fills, for every batch element on its own."""

    def loops(*buffers):
        with T.parallel(0, batch) as b:
            body(b, buffers[: len(inputs)], buffers[len(inputs) :])

    return hand_built(shapes, inputs, loops, ["int32"] * len(shapes), "boxes")


def _number(value, dtype):
    """Return a run-time number or a tensor of one element as a tensor of shape [1]."""
    return te.compute((1,), lambda _: single(value, dtype), name="number")


def _rows(data, order):
    """Return the rows of ``data`` in an order in which -1 stands for a row of -1."""

    def element(b, j, *k):
        row = order(b, j)
        minus = tirx.const(-1, str(data.dtype))
        return tirx.Select(row >= 0, data(b, tirx.max(row, 0), *k), minus)

    return te.compute(data.shape, element, name="rows")


@compute(op.get_valid_counts, OPAQUE)
def get_valid_counts(data, score_threshold, id_index, score_index):
    batch, boxes, _ = shape = [int(n) for n in data.shape]
    if 0 in shape[:2]:
        return [
            zeros([batch], "int32"), zeros(shape, str(data.dtype)), zeros(shape[:2], "int32"),
        ]  # fmt: skip
    values = wide(data)

    def select(b, given, results):
        (rows, threshold), (count, order) = given, results
        count[b] = tirx.const(0, "int32")
        with T.serial(0, boxes) as j:
            valid = rows[b, j, score_index] > threshold[0]
            if id_index >= 0:
                background = tirx.const(0, values.dtype)
                valid = tirx.And(valid, rows[b, j, id_index] >= background)
            order[b, j] = tirx.const(-1, "int32")
            with T.If(valid), T.Then():
                order[b, count[b]] = j
                count[b] = count[b] + 1

    inputs = [values, _number(score_threshold, values.dtype)]
    count, order = _per_batch(inputs, batch, [[batch], [batch, boxes]], select)
    return [count, _rows(data, order), order]


def _ranks(data, present, column):
    """Return how many of the boxes present come before each by descending score, stably."""
    batch, boxes, _ = data.shape
    dtype = str(data.dtype)
    keys = te.compute(
        (batch, boxes), lambda b, j: order_keys.key(data(b, j, column), dtype, True), name="keys"
    )
    return ranks(keys, 1, descending=True, counts=lambda b, j: j < present(b))


class Suppression:
    """The loops of `non_max_suppression` for one batch element ``b``.

    ``order`` holds the row of data at every place, or -1 for none; ``state`` how many were kept and
    whether the row at hand still is.
    """

    def __init__(self, b, given, results, boxes, columns):
        self.b, self.boxes, self.columns = b, boxes, columns
        self.rows, self.ranks, present, self.indices, self.limit, self.threshold = given
        self.order, self.state = results
        self.present = present[b]
        self.zero = tirx.const(0, str(self.rows.dtype))

    def clear(self):
        """Say that there is nothing at any place."""
        with T.serial(0, self.boxes) as j:
            self.order[self.b, j] = tirx.const(-1, "int32")
        self.state[self.b, 0] = tirx.const(0, "int32")

    def identity(self):
        """Put every row present at its own place."""
        with T.serial(0, self.present) as j:
            self.order[self.b, j] = j

    def sort(self, top_k):
        """Put the rows of the highest scores in order."""
        with T.serial(0, self.present) as j:
            rank = self.ranks[self.b, j]
            with T.If(rank < top_k if top_k > 0 else tirx.const(True, "bool")), T.Then():
                self.order[self.b, rank] = j

    def suppress(self, force):
        """Drop rows that overlap, and all when enough are kept."""
        b, order, state = self.b, self.order, self.state
        with T.serial(0, self.present) as j:
            row = tirx.max(order[b, j], 0)
            with T.If(state[b, 0].astype("int64") == self.limit[0]):
                with T.Then():
                    order[b, j] = tirx.const(-1, "int32")
                with T.Else(), T.If(tirx.And(order[b, j] >= 0, self._counts(row))), T.Then():
                    state[b, 1] = tirx.const(1, "int32")
                    with T.serial(0, j) as k:
                        other = tirx.max(order[b, k], 0)
                        checked = tirx.And(state[b, 1] == 1, order[b, k] >= 0)
                        rival = tirx.And(checked, self._is_rival(row, other, force))
                        defeated = self._overlap(row, other) >= self.threshold[0]
                        with T.If(rival), T.Then(), T.If(defeated), T.Then():
                            state[b, 1] = tirx.const(0, "int32")
                    state[b, 0] = state[b, 0] + state[b, 1]
                    with T.If(state[b, 1] == 0), T.Then():
                        order[b, j] = tirx.const(-1, "int32")

    def pack(self, named):
        """Move the rows kept to the front; if ``named``, those with a name. Count them."""
        b, order, state = self.b, self.order, self.state
        state[b, 0] = tirx.const(0, "int32")
        with T.serial(0, self.present) as j:
            state[b, 1] = order[b, j]
            row = tirx.max(state[b, 1], 0)
            keep = state[b, 1] >= 0
            if named:
                keep = tirx.And(keep, self.indices[b, row] >= 0)
            order[b, j] = tirx.const(-1, "int32")
            with T.If(keep), T.Then():
                order[b, state[b, 0]] = state[b, 1]
                state[b, 0] = state[b, 0] + 1

    def _counts(self, row):
        return self.rows[self.b, row, self.columns["score"]] > self.zero

    def _is_rival(self, row, other, force):
        rival, column = self._counts(other), self.columns["id"]
        if column >= 0:
            its = self.rows[self.b, other, column]
            rival = tirx.And(rival, its >= self.zero)
            if not force:
                rival = tirx.And(rival, its == self.rows[self.b, row, column])
        return rival

    def _overlap(self, row, other):
        """Return intersection over union; NaN if a coordinate is."""
        shared = self._shared(row, other, 0) * self._shared(row, other, 1)
        union = self._area(row) + self._area(other) - shared
        return tirx.Select(union <= self.zero, self.zero, shared / union)

    def _side(self, row, axis):
        first = self.columns["coord"] + axis
        return self.rows[self.b, row, first], self.rows[self.b, row, first + 2]

    def _area(self, row):
        (left, right), (top, bottom) = self._side(row, 0), self._side(row, 1)
        return tirx.abs(right - left) * tirx.abs(bottom - top)

    def _shared(self, row, other, axis):
        own, its = self._side(row, axis), self._side(other, axis)
        length = tirx.min(tirx.max(*own), tirx.max(*its)) - tirx.max(tirx.min(*own), tirx.min(*its))
        return tirx.max(length, self.zero)


@compute(op.non_max_suppression, OPAQUE)
def non_max_suppression(
    data, valid_count, indices, max_output_size, iou_threshold, force_suppress, top_k,
    coord_start, score_index, id_index, return_indices, invalid_to_bottom,
):  # fmt: skip
    batch, boxes, _ = shape = [int(n) for n in data.shape]
    if 0 in shape[:2]:
        return (
            [zeros(shape[:2], "int32"), zeros([batch, 1], "int32")]
            if return_indices
            else zeros(shape, str(data.dtype))
        )
    values = wide(data)
    present = te.compute(
        (batch,), lambda b: tirx.max(tirx.min(valid_count(b), boxes), 0), name="present"
    )
    columns = {"score": score_index, "id": id_index, "coord": coord_start}

    def decide(b, given, results):
        loops = Suppression(b, given, results, boxes, columns)
        loops.clear()
        with T.If(loops.threshold[0] > loops.zero):
            with T.Then():
                loops.sort(top_k)
                loops.suppress(force_suppress)
            with T.Else():
                loops.identity()
        if return_indices or invalid_to_bottom:
            loops.pack(named=return_indices)

    inputs = [
        values, _ranks(values, present, score_index), present, indices,
        _number(max_output_size, "int64"), _number(iou_threshold, values.dtype),
    ]  # fmt: skip
    order, state = _per_batch(inputs, batch, [[batch, boxes], [batch, 2]], decide)
    if not return_indices:
        return _rows(data, order)

    return [_rows(indices, order), te.compute((batch, 1), lambda b, _: state(b, 0), name="count")]


class _Images:
    """Two images with zeros around them, and the numbers of a comparison."""

    def __init__(self, x1, x2, kernel_size, max_displacement, stride1, stride2, padding, multiply):
        self.top, self.left, _, _ = pads(padding)
        self.images, self.channels, self.height, self.width = (int(n) for n in x1.shape)
        self.wide = computing(str(x1.dtype))
        self.x1, self.x2, self.multiply = x1, x2, multiply
        self.kernel, self.reach = kernel_size, max_displacement
        self.stride1, self.stride2 = stride1, stride2
        self.count = len(displacements(max_displacement, stride2))
        self.size = kernel_size * kernel_size * self.channels

    def read(self, x, n, c, h, w):
        """Return an element of a padded image."""
        h, w = h - self.top, w - self.left
        inside = te.all(h >= 0, h < self.height, w >= 0, w < self.width)
        value = cast(x(n, c, h, w), self.wide)
        return te.if_then_else(inside, value, tirx.const(0, self.wide))

    def displacement(self, q):
        """Return (dy, dx) of channel ``q`` of the result."""
        radius = self.count // 2
        rows, columns = tirx.indexdiv(q, self.count), tirx.indexmod(q, self.count)
        return (rows - radius) * self.stride2, (columns - radius) * self.stride2

    def slope(self, own, other):
        """Return the derivative of what is compared by its first operand."""
        if self.multiply:
            return other
        one, zero = constant(1, own), constant(0, own)
        below = tirx.Select(own < other, -one, zero)
        return tirx.Select(own > other, one, below)

    def gradient(self, dy, dtype, second):
        """Return the gradient by x1, or by x2: the sum over all windows that read an element."""
        rows, columns = (int(n) for n in dy.shape[2:])
        q, p, r = (te.reduce_axis((0, e)) for e in (self.count**2, self.kernel, self.kernel))

        def element(n, c, h, w):
            y, x = h + self.top, w + self.left
            down, right = self.displacement(q.var)
            # Where the element is the tap (p, r) of a window at (i, j) of x1.
            v, u = (y - down, x - right) if second else (y, x)
            i, j = v - self.reach - p, u - self.reach - r
            steps = self.stride1
            hit = te.all(
                i >= 0, j >= 0, tirx.floormod(i, steps) == 0, tirx.floormod(j, steps) == 0,
                tirx.floordiv(i, steps) < rows, tirx.floordiv(j, steps) < columns,
            )  # fmt: skip
            share = dy(n, q, tirx.floordiv(i, steps), tirx.floordiv(j, steps))
            a, b = self.read(self.x1, n, c, v, u), self.read(self.x2, n, c, v + down, u + right)
            slope = self.slope(b, a) if second else self.slope(a, b)
            value = cast(share, self.wide) * slope
            return te.sum(te.if_then_else(hit, value, constant(0, value)), axis=[q, p, r])

        shape = (self.images, self.channels, self.height, self.width)
        total = te.compute(shape, element, name="spread")
        scale = tirx.const(max(self.size, 1), self.wide)
        return te.compute(shape, lambda *at: cast(total(*at) / scale, dtype), name="dx")


@compute(op.correlation, OUT_ELEMWISE_FUSABLE)
def correlation(x1, x2, kernel_size, max_displacement, stride1, stride2, padding, is_multiply, out):
    options = (kernel_size, max_displacement, stride1, stride2, padding, is_multiply)
    both = _Images(x1, x2, *options)
    c, p, r = (te.reduce_axis((0, e)) for e in (both.channels, kernel_size, kernel_size))

    def element(n, q, i, j):
        down, right = both.displacement(q)
        y, x = i * stride1 + max_displacement + p, j * stride1 + max_displacement + r
        a, b = both.read(x1, n, c, y, x), both.read(x2, n, c, y + down, x + right)
        return te.sum(a * b if is_multiply else te.abs(a - b), axis=[c, p, r])

    total = te.compute(out.static_shape, element, name="correlation")
    # TVM divides by no constant 0; the mean of no channels is NaN.
    scale = tirx.const(both.size or math.nan, both.wide)
    return te.compute(total.shape, lambda *at: cast(total(*at) / scale, out.dtype), name="mean")


@compute(op.correlation_dx, OPAQUE)
def correlation_dx(
    x1, x2, dy, kernel_size, max_displacement, stride1, stride2, padding, is_multiply
):
    options = (kernel_size, max_displacement, stride1, stride2, padding, is_multiply)
    both = _Images(x1, x2, *options)
    return [both.gradient(dy, str(x1.dtype), second) for second in (False, True)]
