"""Reversing, shifting, tiling, masking and block moves: arithmetic on indices."""

from math import prod

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import BROADCAST, INJECTIVE, compute
from meta.dialect.tvm.transform import flat_index, ints, unflat_index
from meta.op.core.check import normalize_axis
from meta.op.movement import flipped_axes, roll_shifts, tile_counts


@compute(op.reverse, INJECTIVE)
def reverse(x, axis, out):
    return _flipped(x, (normalize_axis(axis, out.ndim),), out)


@compute(op.flip, INJECTIVE)
def flip(x, axes, out):
    return _flipped(x, flipped_axes(axes, out.ndim), out)


def _flipped(x, axes, out):
    return te.compute(
        out.shape,
        lambda *i: x(*(x.shape[a] - 1 - v if a in axes else v for a, v in enumerate(i))),
        name="flip",
    )


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
    if prod(shape) == 0 or not shape:
        return te.compute(shape, lambda *i: x(*i), name="roll")

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
    if 0 in source:
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="tile")
    counts, _ = tile_counts(tuple(source), reps)

    def element(*i):
        places = zip(i[lead:], source, counts[lead:], strict=True)
        return x(*(v if n == 1 else tirx.indexmod(v, d) if d != 1 else 0 for v, d, n in places))

    return te.compute(out.shape, element, name="tile")


@compute(op.mesh_grid, INJECTIVE)
def mesh_grid(x, out):
    def coordinate(a, vector):
        return te.compute(
            out[a].shape, lambda *i: vector(*i[a : a + len(vector.shape)]), name="mesh_grid"
        )

    return [coordinate(a, vector) for a, vector in enumerate(x)]


@compute(op.triu, INJECTIVE)
def triu(x, k, out):
    k = _within(k, out)
    return _where(x, lambda row, column: column - row >= k, out)


@compute(op.tril, INJECTIVE)
def tril(x, k, out):
    k = _within(k, out)
    return _where(x, lambda row, column: column - row <= k, out)


def _within(k, out):
    """Return a diagonal that is no further away than the matrix reaches: it fits an index."""
    return max(-out.static_shape[-2], min(k, out.static_shape[-1]))


def _where(x, kept, out):
    """Return ``x`` where ``kept`` holds of row and column, and 0 elsewhere."""
    zero = tirx.const(0, out.dtype)
    return te.compute(
        out.shape, lambda *i: tirx.if_then_else(kept(i[-2], i[-1]), x(*i), zero), name="triangle"
    )


@compute(op.diagonal, INJECTIVE)
def diagonal(x, offset, axis1, axis2, out):
    ndim = len(x.shape)
    a, b = normalize_axis(axis1, ndim), normalize_axis(axis2, ndim)
    if 0 in out.shape:
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="diagonal")

    def element(*i):
        rest, at = iter(i[:-1]), {a: i[-1] - min(offset, 0), b: i[-1] + max(offset, 0)}
        return x(*(at[d] if d in at else next(rest) for d in range(ndim)))

    return te.compute(out.shape, element, name="diagonal")


@compute(op.diagonal_dx, INJECTIVE)
def diagonal_dx(dy, offset, axis1, axis2, out):
    a, b = normalize_axis(axis1, out.ndim), normalize_axis(axis2, out.ndim)
    zero = tirx.const(0, out.dtype)
    if 0 in ints(dy.shape):
        return te.compute(out.shape, lambda *_: zero, name="diagonal_dx")

    def element(*i):
        rest = [v for d, v in enumerate(i) if d not in (a, b)]
        place = i[a] + min(offset, 0)
        # A row before the diagonal's first one is not on it.
        hit = tirx.all(i[b] - i[a] == offset, place >= 0)
        return tirx.if_then_else(hit, dy(*rest, place), zero)

    return te.compute(out.shape, element, name="diagonal_dx")


@compute(op.depth_to_space, INJECTIVE)
def depth_to_space(x, block_size, layout, mode, out):
    b, channels = block_size, _channels(out.static_shape, layout)

    def element(*i):
        n, c, h, w = _places(i, layout)
        place = tirx.indexmod(h, b) * b + tirx.indexmod(w, b)
        channel = place * channels + c if mode == "DCR" else c * (b * b) + place
        return x(*_ordered(n, channel, tirx.indexdiv(h, b), tirx.indexdiv(w, b), layout))

    return te.compute(out.shape, element, name="depth_to_space")


@compute(op.space_to_depth, INJECTIVE)
def space_to_depth(x, block_size, layout, mode, out):
    b, channels = block_size, _channels(ints(x.shape), layout)
    if 0 in out.shape:
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="space_to_depth")

    def element(*i):
        n, k, h, w = _places(i, layout)
        if mode == "DCR":
            place, c = tirx.indexdiv(k, channels), tirx.indexmod(k, channels)
        else:
            c, place = tirx.indexdiv(k, b * b), tirx.indexmod(k, b * b)
        row, column = h * b + tirx.indexdiv(place, b), w * b + tirx.indexmod(place, b)
        return x(*_ordered(n, c, row, column, layout))

    return te.compute(out.shape, element, name="space_to_depth")


def _channels(shape, layout):
    return shape[1] if layout == "NCHW" else shape[3]


def _places(i, layout):
    """Return the index of batch, channel, row and column."""
    return i if layout == "NCHW" else (i[0], i[3], i[1], i[2])


def _ordered(n, c, h, w, layout):
    return (n, c, h, w) if layout == "NCHW" else (n, h, w, c)
