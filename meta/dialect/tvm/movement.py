"""Operators that join, split, slice, pad and rearrange in TE."""

import operator
from math import prod

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing, rounded
from meta.dialect.tvm.compute import BROADCAST, INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.index import (
    bounds,
    extent,
    flat,
    flat_index,
    in_slice,
    index_in_slice,
    ints,
    number,
    unflat_index,
    where_all,
    zeros,
)
from meta.dialect.tvm.layout import Ordered
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.slicing import slice_ranges
from meta.op.core.window import mirror_ranges, pad_pairs, source_index
from meta.op.movement import roll_shifts, tile_counts
from meta.op.shapes import split_bounds


@compute(op.flip, INJECTIVE)
def flip(x, axis, out):
    axes = normalize_axes(axis, out.ndim)

    def element(*i):
        return x(*(x.shape[a] - 1 - v if a in axes else v for a, v in enumerate(i)))

    return te.compute(out.shape, element, name="flip")


@compute(op.reverse_sequence, INJECTIVE)
def reverse_sequence(x, sequence_length, seq_axis, batch_axis, out):
    axis, batch = normalize_axis(seq_axis, out.ndim), normalize_axis(batch_axis, out.ndim)
    extent = tirx.const(out.static_shape[axis], "int64")

    def element(*i):
        # Clipped as int64, in which every length fits; an extent fits the dtype of an index.
        length = tirx.min(sequence_length(i[batch]).astype("int64"), extent)
        length = tirx.max(length, tirx.const(0, "int64")).astype(str(i[axis].ty.dtype))
        source = tirx.Select(i[axis] < length, length - 1 - i[axis], i[axis])
        return x(*i[:axis], source, *i[axis + 1 :])

    return te.compute(out.shape, element, name="reverse_sequence")


@compute(op.sequence_mask, INJECTIVE)
def sequence_mask(x, sequence_length, mask_value, axis, out):
    at = normalize_axis(axis, out.ndim)
    value = cast(mask_value, out.dtype)

    def element(*i):
        length = sequence_length(i[1 - at]).astype("int64")
        return tirx.if_then_else(i[at].astype("int64") < length, x(*i), value)

    return te.compute(out.shape, element, name="sequence_mask")


@compute(op.roll, INJECTIVE)
def roll(x, shift, axis, out):
    shape, shifts = out.static_shape, roll_shifts(shift, axis, out.ndim)
    if not shape:
        return x

    def back(place, extent, by):
        # Selected, not a remainder: TVM's simplifier joins the remainders of several axes wrongly.
        by %= extent
        return tirx.Select(place < by, place + (extent - by), place - by) if by else place

    def element(*i):
        if axis is None:
            return x(*unflat_index(back(flat_index(i, shape), prod(shape), shifts[0]), shape))
        return x(
            *(back(v, d, shifts.get(a, 0)) for a, (v, d) in enumerate(zip(i, shape, strict=True)))
        )

    return te.compute(shape, element, name="roll")


@compute(op.tile, BROADCAST, static=True)
def tile(x, reps, out):
    source = ints(x.shape)
    lead = out.ndim - len(source)
    counts, _ = tile_counts(tuple(source), reps)

    def element(*i):
        places = zip(i[lead:], source, counts[lead:], strict=True)
        return x(*(v if n == 1 else tirx.indexmod(v, d) if d != 1 else 0 for v, d, n in places))

    return te.compute(out.shape, element, name="tile")


def _triangle(kept):
    """Return the kernel of ``x`` where ``kept(column - row, k)`` holds, and 0 elsewhere."""

    def kernel(x, k, out):
        # No further away than the matrix reaches: it fits an index.
        k = max(-out.static_shape[-2], min(k, out.static_shape[-1]))
        zero = tirx.const(0, out.dtype)

        def element(*i):
            return tirx.if_then_else(kept(i[-1] - i[-2], k), x(*i), zero)

        return te.compute(out.shape, element, name="triangle")

    return kernel


compute(op.triu, INJECTIVE)(_triangle(operator.ge))
compute(op.tril, INJECTIVE)(_triangle(operator.le))


@compute(op.diagonal, INJECTIVE)
def diagonal(x, offset, axis1, axis2, out):
    ndim = len(x.shape)
    a, b = normalize_axis(axis1, ndim), normalize_axis(axis2, ndim)

    def element(*i):
        rest, at = iter(i[:-1]), {a: i[-1] - min(offset, 0), b: i[-1] + max(offset, 0)}
        return x(*(at[d] if d in at else next(rest) for d in range(ndim)))

    return te.compute(out.shape, element, name="diagonal")


@compute(op.diagonal_dx, INJECTIVE)
def diagonal_dx(dy, offset, axis1, axis2, out):
    a, b = normalize_axis(axis1, out.ndim), normalize_axis(axis2, out.ndim)
    if 0 in ints(dy.shape):
        return zeros(out.shape, out.dtype)

    def element(*i):
        rest = [v for d, v in enumerate(i) if d not in (a, b)]
        place = i[a] + min(offset, 0)
        # A row before the diagonal's first one is not on it.
        hit = i[b] - i[a] == offset, place >= 0
        return where_all(hit, dy(*rest, place), tirx.const(0, out.dtype))

    return te.compute(out.shape, element, name="diagonal_dx")


@compute(op.depth_to_space, INJECTIVE)
def depth_to_space(x, block_size, layout, mode, out):
    b, image = block_size, Ordered(x, layout, "NCHW")
    channels = image.shape[1] // (b * b)

    def element(n, c, h, w):
        place = tirx.indexmod(h, b) * b + tirx.indexmod(w, b)
        channel = place * channels + c if mode == "DCR" else c * (b * b) + place
        return image(n, channel, tirx.indexdiv(h, b), tirx.indexdiv(w, b))

    return image.result(out.shape, element, "depth_to_space")


@compute(op.space_to_depth, INJECTIVE)
def space_to_depth(x, block_size, layout, mode, out):
    b, image = block_size, Ordered(x, layout, "NCHW")
    channels = image.shape[1]

    def element(n, k, h, w):
        if mode == "DCR":
            place, c = tirx.indexdiv(k, channels), tirx.indexmod(k, channels)
        else:
            c, place = tirx.indexdiv(k, b * b), tirx.indexmod(k, b * b)
        row, column = h * b + tirx.indexdiv(place, b), w * b + tirx.indexmod(place, b)
        return image(n, c, row, column)

    return image.result(out.shape, element, "space_to_depth")


@compute(op.pad, INJECTIVE, static=False)
def pad(x, pad_width, pad_value, pad_mode, out):
    if pad_mode != "constant":
        return _repeated(x, pad_width, pad_mode, out)
    shape, pairs = list(map(extent, x.shape)), pad_pairs(pad_width, out.ndim)
    value = cast(pad_value, out.dtype)
    if any(isinstance(size, int) and size == 0 for size in shape):
        return te.compute(out.shape, lambda *_: value, name="pad")

    def element(*i):
        index, inside = [], []
        for v, (before, after), size in zip(i, pairs, shape, strict=True):
            index.append(v - before)
            inside += [v >= before] if before else []
            inside += [v < before + size] if after else []
        return where_all(inside, x(*index), value)

    return te.compute(out.shape, element, name="pad")


def _repeated(x, pad_width, mode, out):
    """Return ``x`` with copies of its own elements around it."""
    pairs = pad_pairs(pad_width, out.ndim)

    def element(*i):
        return x(
            *(
                source_index(v - before, int(extent), mode, tirx.min, tirx.max)
                if before + after
                else v
                for v, (before, after), extent in zip(i, pairs, x.shape, strict=True)
            )
        )

    return te.compute(out.shape, element, name="pad")


@compute(op.pad_dx, OPAQUE)
def pad_dx(dy, pad_width, pad_mode, out):
    pairs, dtype = pad_pairs(pad_width, out.ndim), computing(out.dtype)
    if pad_mode == "constant":
        return te.compute(
            out.shape,
            lambda *i: dy(*(v + before for v, (before, _) in zip(i, pairs, strict=True))),
            name="pad_dx",
        )
    total = rounded(dy, dtype, "wide")
    for axis, pair in enumerate(pairs):
        if any(pair):
            fold = {"edge": _folded_edge, "wrap": _folded_wrap}.get(pad_mode, _folded_mirror)
            total = fold(total, axis, *pair, out.static_shape[axis], pad_mode)
    return rounded(total, out.dtype, "pad_dx")


def _along(total, axis, extent, element):
    """Return a tensor with another extent along an axis; ``element(read, place)`` is an element.

    ``read(place)`` is the element of ``total`` at another place of the axis.
    """
    shape = [*total.shape[:axis], extent, *total.shape[axis + 1 :]]
    return te.compute(
        shape,
        lambda *i: element(lambda place: total(*i[:axis], place, *i[axis + 1 :]), i[axis]),
        name="folded",
    )


def _folded_edge(total, axis, before, after, extent, mode):
    """Add what lies outside to the first and the last element."""
    zero = tirx.const(0, str(total.dtype))
    step = te.reduce_axis((0, max(before, after) + 1), name="step")

    def element(read, i):
        k = step.var
        own = tirx.if_then_else(k == 0, read(i + before), zero)
        front = tirx.all(i == 0, k > 0, k <= before)
        back = tirx.all(i == extent - 1, k > 0, k <= after)
        first = tirx.if_then_else(front, read(before - k), zero)
        last = tirx.if_then_else(back, read(before + extent - 1 + k), zero)
        return te.sum(own + first + last, axis=step)

    return _along(total, axis, extent, element)


def _folded_mirror(total, axis, before, after, extent, mode):
    """Add both mirror images to what they show."""
    zero = tirx.const(0, str(total.dtype))

    def element(read, i):
        result = read(i + before)
        for begin, end, both in mirror_ranges(before, after, extent, mode):
            if begin < end:
                seen = tirx.all(i >= begin, i < end)
                result = result + tirx.if_then_else(seen, read(both - i), zero)
        return result

    return _along(total, axis, extent, element)


def _folded_wrap(total, axis, before, after, extent, mode):
    """Add what lies outside to the elements of the other end."""
    zero = tirx.const(0, str(total.dtype))

    def element(read, i):
        result = read(i + before)
        if before:
            end = i - (extent - before)
            result = result + tirx.if_then_else(end >= 0, read(end), zero)
        if after:
            result = result + tirx.if_then_else(i < after, read(before + extent + i), zero)
        return result

    return _along(total, axis, extent, element)


@compute(op.strided_set, INJECTIVE)
def strided_set(data, v, begin, end, strides, out):
    ranges = slice_ranges(out.static_shape, begin, end, strides, "end")
    if 0 in ints(v.shape):
        return data

    def element(*i):
        index, inside = index_in_slice(i, ranges)
        return where_all(inside, v(*index), data(*i))

    return te.compute(out.shape, element, name="strided_set")


def _static_sections(call):
    arrays, axis = call.args
    if axis is None and not all(t.is_static for t in arrays):
        return "where a part of a number of elements not known in advance begins is not computed"
    return None


@compute(op.concat, INJECTIVE, when=_static_sections, static=False)
def concat(arrays, axis, out):
    arrays = arrays if axis is not None else tuple(map(flat, arrays))
    at = 0 if axis is None else normalize_axis(axis, out.ndim)
    parts = bounds(arrays, [number(t.shape[at]) for t in arrays])

    def element(*i):
        def of(tensor, begin):
            return tensor(*i[:at], i[at] - begin, *i[at + 1 :])

        return in_slice(parts, i[at], of)

    return te.compute(out.shape, element, name="concat")


@compute(op.split, INJECTIVE, static=False)
def split(x, indices_or_sections, axis, out):
    at = normalize_axis(axis, len(x.shape))
    bounds = split_bounds(number(x.shape[at]), indices_or_sections)

    def part(begin, type_):
        return te.compute(
            type_.shape, lambda *i: x(*i[:at], i[at] + begin, *i[at + 1 :]), name="split"
        )

    return [part(begin, type_) for (begin, _), type_ in zip(bounds, out, strict=True)]


@compute(op.stack, INJECTIVE, static=False)
def stack(arrays, axis, out):
    at = normalize_axis(axis, out.ndim)

    def element(*i):
        j = (*i[:at], *i[at + 1 :])
        result = arrays[-1](*j)
        for k in reversed(range(len(arrays) - 1)):
            result = tirx.if_then_else(i[at] == k, arrays[k](*j), result)
        return result

    return te.compute(out.shape, element, name="stack")


@compute(op.strided_slice, INJECTIVE, static=False)
def strided_slice(x, begin, end, strides, slice_mode, out):
    ranges = slice_ranges(list(map(extent, x.shape)), begin, end, strides, slice_mode)
    # Of an axis whose extent is no number, all is kept.
    steps = [(1, 0) if r is None else (r.step, r.start) for r in ranges]

    def element(*i):
        picked = [v * step + start for v, (step, start) in zip(i, steps, strict=False)]
        return x(*picked, *i[len(steps) :])

    return te.compute(out.shape, element, name="strided_slice")


@compute(op.strided_slice_dx, INJECTIVE)
def strided_slice_dx(dy, begin, end, strides, slice_mode, out):
    ranges = slice_ranges(out.static_shape, begin, end, strides, slice_mode)
    if 0 in ints(dy.shape):
        return zeros(out.shape, out.dtype)

    def element(*i):
        index, inside = index_in_slice(i, ranges)
        return where_all(inside, dy(*index), tirx.const(0, out.dtype))

    return te.compute(out.shape, element, name="strided_slice_dx")


@compute(op.repeat, BROADCAST, static=True)
def repeat(x, repeats, axis, out):
    source = flat(x) if axis is None else x
    at = 0 if axis is None else normalize_axis(axis, len(x.shape))
    step = max(repeats, 1)  # of no repeats nothing is computed
    return te.compute(
        out.shape,
        lambda *i: source(*i[:at], tirx.indexdiv(i[at], step), *i[at + 1 :]),
        name="repeat",
    )


@compute(op.repeat_dx, OPAQUE)
def repeat_dx(dy, repeats, axis, out):
    shape = out.static_shape if axis is not None else (prod(out.static_shape),)
    at = 0 if axis is None else normalize_axis(axis, out.ndim)
    wide = out.dtype if out.dtype == "bool" else computing(out.dtype)
    over = te.reduce_axis((0, repeats))

    def total(*i):
        value = dy(*i[:at], i[at] * repeats + over.var, *i[at + 1 :])
        return te.sum(value.astype(wide), axis=over)

    sums = te.compute(shape, total, name="repeat_dx")

    def element(*i):
        place = i if axis is not None else [flat_index(i, out.static_shape)]
        return sums(*place).astype(out.dtype)

    return te.compute(out.shape, element, name="shaped")
