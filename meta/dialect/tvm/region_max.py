"""Maxima over regions of interest as hand-built loops: which elements a bin has depends on data."""

from math import prod

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.tvm.broadcast import cast, computing, constant
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.dialect.tvm.regions import Layout, greater, named, too_large, wide
from meta.dialect.tvm.transform import unflat_index
from meta.op.core.check import pair


def _bounds(begin, end, bins, extent, part):
    """Return the first element of a bin and how many it has in the image; both int32."""
    dtype = str(begin.ty.dtype)
    half, one = constant(0.5, begin), constant(1, begin)
    first, last = (named(tirx.floor(x + half)) for x in (begin, end))
    size = named(tirx.max(last - first + one, one) / constant(bins, begin))
    number = part.astype(dtype)
    ends = tirx.floor(number * size) + first, tirx.ceil((number + one) * size) + first
    zero, most = constant(0, begin), constant(extent, begin)
    low, high = (named(tirx.max(tirx.min(x, most), zero).astype("int32")) for x in ends)
    return low, named(tirx.max(high - low, 0))


@compute(op.roi_pool, OPAQUE, when=too_large)
def roi_pool(data, rois, pooled_size, spatial_scale, layout, out):
    shape = out.static_shape
    if 0 in shape or 0 in list(map(int, data.shape)):
        return te.compute(shape, lambda *_: tirx.const(0, out.dtype), name="pooled")
    order = Layout(layout, data.shape)
    bins = pair(pooled_size, "pooled_size")

    def loops(ins, outs):
        with IRBuilder() as builder:
            boxes, values, result = (T.buffer_proxy(b) for b in (*ins, *outs))
            with T.parallel(0, prod(shape)) as element:
                index = [i + tirx.const(0, "int32") for i in unflat_index(element, shape)]
                place = tuple(named(i) for i in index)
                r, c, ph, pw = order.split(place)
                number = named(boxes[r, 0])
                images = constant(order.extents["N"], number)
                exists = named(tirx.And(number >= constant(0, number), number < images))
                image = named(tirx.Select(exists, number, constant(0, number)).astype("int32"))
                scale = tirx.const(spatial_scale, boxes.dtype)
                x1, y1, x2, y2 = (boxes[r, i] * scale for i in (1, 2, 3, 4))
                top, rows = _bounds(y1, y2, bins[0], order.extents["H"], ph)
                left, columns = _bounds(x1, x2, bins[1], order.extents["W"], pw)
                result[place] = tirx.const(0, result.dtype)
                with (
                    T.If(exists),
                    T.Then(),
                    T.serial(0, rows) as i,
                    T.serial(0, columns) as j,
                ):
                    value = named(values[order.place(image, c, top + i, left + j)])
                    first = tirx.And(i == 0, j == 0)
                    with T.If(tirx.Or(first, greater(value, result[place]))), T.Then():
                        result[place] = value
            return builder.get()

    pooled = te.extern(
        shape, [wide(rois), wide(data)], loops, dtype=computing(out.dtype), name="pooled"
    )
    return te.compute(shape, lambda *i: cast(pooled(*i), out.dtype), name="rounded")
