"""Rearranging, selecting and repeating elements in tensor expressions: arithmetic on indices."""

from itertools import accumulate
from math import prod

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast as convert
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.reduce import truth
from meta.op.core.axes import inverse_permutation, permutation, swapped
from meta.op.core.check import normalize_axis
from meta.op.core.slicing import slice_ranges
from meta.op.transform import split_bounds, squeezed_axes


def ints(shape):
    """Return the extents of a tensor as Python ints."""
    return [int(d) for d in shape]


def flat_index(i, shape):
    """Return the row-major position of index ``i``."""
    position = 0
    for v, d in zip(i, shape, strict=True):
        position = position * d + v
    return position


def unflat_index(position, shape):
    """Return the index at a row-major position."""
    result = []
    for d in reversed(shape):
        d = max(d, 1)  # where there is no element, no index is computed
        result.append(tirx.indexmod(position, d) if d != 1 else 0)
        position = tirx.indexdiv(position, d)
    return result[::-1]


@compute(op.reshape, INJECTIVE)
def reshape(x, out):
    source, shape = ints(x.shape), out.static_shape
    if prod(shape) == 0:
        return te.compute(shape, lambda *_: tirx.const(0, out.dtype), name="reshape")

    def element(*i):
        # Leading axes that are the same need no arithmetic, and let a fused loop keep them.
        same = 0
        while same < min(len(source), len(shape)) and source[same] == shape[same]:
            same += 1
        position = flat_index(i[same:], shape[same:])
        return x(*i[:same], *unflat_index(position, source[same:]))

    return te.compute(shape, element, name="reshape")


def permuted(x, order, out, name):
    """Return ``x`` with axis ``order[i]`` as axis i."""
    back = [order.index(a) for a in range(len(order))]
    return te.compute(out.shape, lambda *i: x(*(i[b] for b in back)), name=name)


@compute(op.transpose, INJECTIVE)
def transpose(x, axes, out):
    return permuted(x, permutation(axes, out.ndim), out, "transpose")


@compute(op.transpose_dx, INJECTIVE)
def transpose_dx(x, axes, out):
    return permuted(x, inverse_permutation(axes, out.ndim), out, "transpose_dx")


compute(op.batch_flatten, INJECTIVE)(reshape)


@compute(op.expand_dims, BROADCAST, static=True)
def expand_dims(x, axis, num_newaxis, out):
    at = normalize_axis(axis, len(x.shape) + 1)
    return te.compute(out.shape, lambda *i: x(*i[:at], *i[at + num_newaxis :]), name="expand_dims")


@compute(op.squeeze, INJECTIVE)
def squeeze(x, axis, out):
    gone = squeezed_axes(out.with_shape(tuple(ints(x.shape))), axis)

    def element(*i):
        rest = iter(i)
        return x(*(0 if a in gone else next(rest) for a in range(len(x.shape))))

    return te.compute(out.shape, element, name="squeeze")


@compute(op.concatenate, INJECTIVE)
def concatenate(x, axis, out):
    at = normalize_axis(axis, out.ndim)
    ends = list(accumulate(int(t.shape[at]) for t in x))
    parts = [
        (t, end - int(t.shape[at]), end) for t, end in zip(x, ends, strict=True) if t.shape[at] != 0
    ]
    if not parts:
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="concatenate")

    def element(*i):
        def of(tensor, begin):
            return tensor(*i[:at], i[at] - begin, *i[at + 1 :])

        tensor, begin, _ = parts[-1]
        result = of(tensor, begin)
        for tensor, begin, end in reversed(parts[:-1]):
            result = tirx.if_then_else(i[at] < end, of(tensor, begin), result)
        return result

    return te.compute(out.shape, element, name="concatenate")


@compute(op.split, INJECTIVE)
def split(x, indices_or_sections, axis, out):
    at = normalize_axis(axis, len(x.shape))
    bounds = split_bounds(int(x.shape[at]), indices_or_sections)

    def part(begin, type_):
        return te.compute(
            type_.shape, lambda *i: x(*i[:at], i[at] + begin, *i[at + 1 :]), name="split"
        )

    return [part(begin, type_) for (begin, _), type_ in zip(bounds, out, strict=True)]


@compute(op.stack, INJECTIVE)
def stack(x, axis, out):
    at = normalize_axis(axis, out.ndim)

    def element(*i):
        j = (*i[:at], *i[at + 1 :])
        result = x[-1](*j)
        for k in reversed(range(len(x) - 1)):
            result = tirx.if_then_else(i[at] == k, x[k](*j), result)
        return result

    return te.compute(out.shape, element, name="stack")


@compute(op.strided_slice, INJECTIVE)
def strided_slice(x, begin, end, strides, slice_mode, out):
    ranges = slice_ranges(ints(x.shape), begin, end, strides, slice_mode)

    def element(*i):
        picked = [v * r.step + r.start for v, r in zip(i, ranges, strict=False)]
        return x(*picked, *i[len(ranges) :])

    return te.compute(out.shape, element, name="strided_slice")


@compute(op.strided_slice_dx, INJECTIVE)
def strided_slice_dx(dy, begin, end, strides, slice_mode, out):
    ranges = slice_ranges(out.static_shape, begin, end, strides, slice_mode)
    zero = tirx.const(0, out.dtype)
    if 0 in ints(dy.shape):
        return te.compute(out.shape, lambda *_: zero, name="strided_slice_dx")

    def element(*i):
        index, inside = place_in_slice(i, ranges)
        return tirx.if_then_else(tirx.all(*inside), dy(*index), zero) if inside else dy(*index)

    return te.compute(out.shape, element, name="strided_slice_dx")


def place_in_slice(i, ranges):
    """Return the index of element ``i`` in a slice, and the conditions for it to be there."""
    index, inside = list(i), []
    for a, r in enumerate(ranges):
        # Counted upwards: TVM's simplifier is wrong about quotients of a constant minus an index.
        step, first = abs(r.step), min(r[0], r[-1])
        offset = i[a] - first
        inside += [offset >= 0, offset < len(r) * step]
        if step != 1:
            inside.append(tirx.indexmod(offset, step) == 0)
            offset = tirx.indexdiv(offset, step)
        index[a] = offset if r.step > 0 else len(r) - 1 - offset
    return index, inside


def in_range(index, extent, mode):
    """Return an index value within [0, extent), by the mode of `take`; as int32 where that
    suffices.
    """
    wide = index.astype("int64")
    if mode == "wrap":
        wide = tirx.floormod(wide, tirx.const(extent, "int64"))
    else:
        if mode == "raise":
            whole, zero = tirx.const(extent, "int64"), tirx.const(0, "int64")
            wide = wide + tirx.Select(wide < 0, whole, zero)
        wide = tirx.max(tirx.min(wide, tirx.const(extent - 1, "int64")), tirx.const(0, "int64"))
    return wide.astype("int32") if extent < 2**31 else wide


def _taken(x, indices, at, mode, out):
    extent, n = int(x.shape[at]), len(indices.shape)
    if 0 in out.shape:
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="take")

    def element(*i):
        picked = in_range(indices(*i[at : at + n]), extent, mode)
        return x(*i[:at], picked, *i[at + n :])

    return te.compute(out.shape, element, name="take")


def _flat(x):
    shape = ints(x.shape)
    return te.compute(
        (prod(shape),), lambda i: x(*unflat_index(i, shape)) if shape else x(), name="flat"
    )


@compute(op.take, INJECTIVE)
def take(x, indices, axis, mode, out):
    if axis is None:
        return _taken(_flat(x), indices, 0, mode, out)
    return _taken(x, indices, normalize_axis(axis, len(x.shape)), mode, out)


def _accumulated(dy, indices, shape, at, mode, dtype):
    """Return zeros of a shape plus ``dy`` by index: every element looks all indices up.

    That is deterministic and parallel, but slow for large tables, where libraries scatter.
    """
    n, extent = len(indices.shape), shape[at]
    if 0 in (*shape, *ints(indices.shape)):
        return te.compute(shape, lambda *_: tirx.const(0, dtype), name="accumulated")
    wide = "float32" if dtype in ("float16", "bfloat16") else dtype
    over = [te.reduce_axis((0, d)) for d in indices.shape]

    def total(*i):
        j = [axis.var for axis in over]
        hit = in_range(indices(*j), extent, mode) == i[at]
        value = tirx.if_then_else(
            hit, dy(*i[:at], *j, *i[at + 1 :]).astype(wide), tirx.const(0, wide)
        )
        return te.sum(value, axis=over) if n else value

    sums = te.compute(shape, total, name="accumulated")
    if wide == dtype:
        return sums
    return te.compute(shape, lambda *i: sums(*i).astype(dtype), name="cast")


@compute(op.take_dx, OPAQUE)
def take_dx(dy, indices, axis, mode, out):
    shape = out.static_shape
    if axis is not None:
        at = normalize_axis(axis, out.ndim)
        return _accumulated(dy, indices, shape, at, mode, out.dtype)
    flat = _accumulated(dy, indices, (prod(shape),), 0, mode, out.dtype)
    return te.compute(shape, lambda *i: flat(flat_index(i, shape)), name="take_dx")


@compute(op.embedding, INJECTIVE)
def embedding(x, indices, out):
    return _taken(x, indices, 0, "clip", out)


@compute(op.embedding_dx, OPAQUE)
def embedding_dx(dy, indices, out):
    return _accumulated(dy, indices, out.static_shape, 0, "clip", out.dtype)


@compute(op.cast, ELEMWISE)
def cast(data, dtype):
    def element(*i):
        value = data(*i)
        if dtype == "bool":
            return truth(value, str(data.dtype)) != 0
        return convert(value, dtype)

    return te.compute(data.shape, element, name="cast")


@compute(op.broadcast_to, BROADCAST, static=True)
def broadcast_to(x, out):
    source = ints(x.shape)
    lead = out.ndim - len(source)
    return te.compute(
        out.shape,
        lambda *i: x(*(0 if d == 1 else v for d, v in zip(source, i[lead:], strict=True))),
        name="broadcast_to",
    )


@compute(op.repeat, BROADCAST, static=True)
def repeat(x, repeats, axis, out):
    source = _flat(x) if axis is None else x
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
    wide = "float32" if out.dtype in ("float16", "bfloat16") else out.dtype
    over = te.reduce_axis((0, repeats))
    sums = te.compute(
        shape,
        lambda *i: te.sum(
            dy(*i[:at], i[at] * repeats + over.var, *i[at + 1 :]).astype(wide), axis=over
        ),
        name="repeat_dx",
    )
    return te.compute(
        out.shape,
        lambda *i: sums(*(i if axis is not None else [flat_index(i, out.static_shape)])).astype(
            out.dtype
        ),
        name="shaped",
    )


@compute(op.swap_axis, INJECTIVE)
def swap_axis(x, axis1, axis2, out):
    return permuted(x, swapped(axis1, axis2, out.ndim), out, "swap_axis")
