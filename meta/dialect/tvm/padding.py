"""Padding in tensor expressions: arithmetic on indices."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.transform import ints
from meta.op.core.padding import pad_pairs, read_at, sides
from meta.op.padding import MIRRORS


@compute(op.pad, INJECTIVE)
def pad(x, pad_width, pad_value, pad_mode, out):
    if pad_mode != "constant":
        return _repeated(x, pad_width, pad_mode, out)
    shape, pairs = ints(x.shape), pad_pairs(pad_width, out.ndim)
    value = cast(pad_value, out.dtype)
    if 0 in shape:
        return te.compute(out.shape, lambda *_: value, name="pad")

    def element(*i):
        index, inside = [], []
        for v, (before, after), extent in zip(i, pairs, shape, strict=True):
            index.append(v - before)
            inside += [v >= before] if before else []
            inside += [v < before + extent] if after else []
        return tirx.if_then_else(tirx.all(*inside), x(*index), value) if inside else x(*index)

    return te.compute(out.shape, element, name="pad")


def _repeated(x, pad_width, mode, out):
    """Return ``x`` with copies of its own elements around it."""
    pairs = pad_pairs(pad_width, out.ndim)

    def element(*i):
        return x(
            *(
                read_at(v - before, int(extent), mode, tirx.min, tirx.max) if before + after else v
                for v, (before, after), extent in zip(i, pairs, x.shape, strict=True)
            )
        )

    return te.compute(out.shape, element, name="pad")


@compute(op.mirror_pad, INJECTIVE)
def mirror_pad(x, pad_width, mode, out):
    return _repeated(x, pad_width, MIRRORS[mode], out)


@compute(op.pad_dx, OPAQUE)
def pad_dx(dy, pad_width, pad_mode, out):
    pairs, dtype = pad_pairs(pad_width, out.ndim), computing(out.dtype)
    if pad_mode == "constant":
        return te.compute(
            out.shape,
            lambda *i: dy(*(v + before for v, (before, _) in zip(i, pairs, strict=True))),
            name="pad_dx",
        )
    total = te.compute(dy.shape, lambda *i: cast(dy(*i), dtype), name="wide")
    for axis, pair in enumerate(pairs):
        if any(pair):
            fold = _folded_edge if pad_mode == "edge" else _folded_mirror
            total = fold(total, axis, *pair, out.static_shape[axis], pad_mode)
    return te.compute(out.shape, lambda *i: cast(total(*i), out.dtype), name="pad_dx")


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
        for begin, end, both in sides(before, after, extent, mode):
            if begin < end:
                seen = tirx.all(i >= begin, i < end)
                result = result + tirx.if_then_else(seen, read(both - i), zero)
        return result

    return _along(total, axis, extent, element)
