"""Pooling of regions of interest in TE.

Forward, an element of the result is one loop; backward, a channel of an image, which adds up what
the bins have read of it, in a fixed order. Half precision is computed in float32.
"""

from math import prod

from tvm import tirx
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.tvm.broadcast import computing, constant, is_nan, rounded, wide
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.dialect.tvm.index import hand_built, ints, unflat_index, zeros
from meta.op.core.check import pair
from meta.op.regions import MOST_SAMPLES

LARGEST = 2**31 - 1
"""The most elements of an array: loops that are built by hand count in int32."""


def too_large(call):
    sizes = [prod(t.static_shape) for t in (*call.tensors(), *call.outputs)]
    return f"{max(sizes)} elements; at most {LARGEST}" if max(sizes) > LARGEST else None


def named(value):
    """Return a value that is computed once, by a statement at this place of the loops.

    A number is kept in a cell of its own: TVM would put what a name stands for into all that uses
    it, and simplify trees that grow exponentially.
    """
    dtype = str(value.ty.dtype)
    if not dtype.startswith("float"):
        return T.bind(value)
    cell = T.buffer_proxy(T.alloc_buffer((1,), dtype, scope="local"))
    cell[0] = value
    return cell[0]


class RegionAxis:
    """The samples of one axis of a region, from ``begin`` to ``end`` on ``extent`` elements; see
    `roi_align` for ``aligned``.

    Statements name what is computed once; so this is to be made where the loops need it.
    """

    def __init__(self, begin, end, bins, extent, sample_ratio, aligned):
        one, half = constant(1, begin), constant(0.5, begin)
        self.begin, self.extent = named(begin - half if aligned else begin), extent
        length = named((end - half if aligned else end) - self.begin)
        if not aligned:
            length = tirx.Select(length > one, length, one)
        self.size = named(length / constant(bins, begin))
        if sample_ratio > 0:
            self.count = tirx.const(sample_ratio, "int32")
        else:
            most, ceiling = constant(MOST_SAMPLES, begin), named(tirx.ceil(self.size))
            count = tirx.Select(ceiling < most, ceiling, most)
            self.count = named(tirx.max(count, constant(0, begin)).astype("int32"))

    def taps(self, part, sample):
        """Return whether a sample of a bin is inside, and the (element, weight) that it reads."""
        dtype = str(self.begin.ty.dtype)
        half, zero, last = (constant(v, self.begin) for v in (0.5, 0, self.extent - 1))
        step = (sample.astype(dtype) + half) * (self.size / self.count.astype(dtype))
        position = named(self.begin + part.astype(dtype) * self.size + step)
        above, below = constant(-1, position), constant(self.extent, position)
        inside = named(tirx.And(position >= above, position <= below))
        within = named(tirx.Select(inside, tirx.max(tirx.min(position, last), zero), zero))
        low = named(tirx.floor(within).astype("int32"))
        weight = named(within - low.astype(dtype))
        high = named(tirx.min(low + 1, self.extent - 1))
        return inside, [(low, constant(1, weight) - weight), (high, weight)]


class RegionLayout:
    """The order of the axes of data and result, and the extents of data."""

    def __init__(self, letters, shape):
        self.letters = letters
        self.extents = dict(zip(letters, map(int, shape), strict=True))

    def place(self, n, c, h, w):
        """Return the index of an element in the order of the layout."""
        place = {"N": n, "C": c, "H": h, "W": w}
        return tuple(place[letter] for letter in self.letters)

    def box(self, rois, r, spatial_scale):
        """Return whether region ``r`` has an image, its number (0 if not), and the corners."""
        number = named(rois[r, 0])
        zero = constant(0, number)
        inside = tirx.And(number >= zero, number < constant(self.extents["N"], number))
        exists = named(inside)
        image = named(tirx.Select(exists, number, zero).astype("int32"))
        scale = tirx.const(spatial_scale, rois.dtype)
        return exists, image, [rois[r, i] * scale for i in (1, 2, 3, 4)]

    def unflat(self, position, shape):
        """Return the index at a row-major position, as it is and in the order NCHW."""
        index = [i + tirx.const(0, "int32") for i in unflat_index(position, shape)]
        named_index = tuple(named(i) for i in index)
        place = dict(zip(self.letters, named_index, strict=True))
        return named_index, tuple(place[letter] for letter in "NCHW")


class Region:
    """Region ``r``: whether its image exists, that image (0 if not), and the samples' axes."""

    def __init__(self, layout, rois, r, pooled_size, spatial_scale, sample_ratio, aligned):
        self.layout, extents = layout, layout.extents
        self.exists, self.image, (x1, y1, x2, y2) = layout.box(rois, r, spatial_scale)
        bins = pair(pooled_size, "pooled_size")
        self.vertical = RegionAxis(y1, y2, bins[0], extents["H"], sample_ratio, aligned)
        self.horizontal = RegionAxis(x1, x2, bins[1], extents["W"], sample_ratio, aligned)

    def samples(self, dtype):
        """Return how many samples a bin has, at least 1, by which a sum of them is divided."""
        return tirx.max(self.vertical.count * self.horizontal.count, 1).astype(dtype)

    def taps(self, ph, pw, sy, sx):
        """Return whether a sample is inside, and the (h, w, weight) that it reads."""
        in_height, rows = self.vertical.taps(ph, sy)
        in_width, columns = self.horizontal.taps(pw, sx)
        inside = named(tirx.And(self.exists, tirx.And(in_height, in_width)))
        return inside, [(h, w, named(a * b)) for h, a in rows for w, b in columns]

    def read(self, data, c, inside, taps):
        """Return the value of a sample; 0 outside of the image."""
        parts = [data[self.layout.place(self.image, c, h, w)] * weight for h, w, weight in taps]
        total = parts[0] + parts[1] + parts[2] + parts[3]
        return named(tirx.Select(inside, total, constant(0, total)))


def greater(key, best):
    """Whether a key takes the place of the best so far; a NaN is the greatest, the first stays."""
    return tirx.Or(key > best, tirx.And(is_nan(key), tirx.Not(is_nan(best))))


def _pooled(chooser, images, rois, out, mode, layout, **options):
    """Return the mean of the samples of every bin, or the one that is greatest in ``chooser``."""
    shape = out.static_shape
    if 0 in ints(images.shape):
        return zeros(shape, out.dtype)
    order = RegionLayout(layout, images.shape)
    chooses = [] if chooser is images else [wide(chooser)]

    def loops(boxes, values, *others):
        *keys, result, best = others
        with T.parallel(0, prod(shape)) as element:
            place, (r, c, ph, pw) = order.unflat(element, shape)
            region = Region(order, boxes, r, **options)
            counts = region.vertical.count, region.horizontal.count
            result[place] = tirx.const(0, result.dtype)
            with T.serial(0, counts[0]) as sy, T.serial(0, counts[1]) as sx:
                taps = region.taps(ph, pw, sy, sx)
                value = region.read(values, c, *taps)
                if mode == "avg":
                    result[place] = result[place] + value
                else:
                    key = region.read(keys[0], c, *taps) if keys else value
                    first = tirx.And(sy == 0, sx == 0)
                    with T.If(tirx.Or(first, greater(key, best[place]))), T.Then():
                        result[place] = value
                        best[place] = key
            if mode == "avg":
                result[place] = result[place] / region.samples(result.dtype)

    best = shape if mode == "max" else (1,)
    computed = computing(out.dtype)
    inputs = [wide(rois), wide(images), *chooses]
    pooled, _ = hand_built([shape, best], inputs, loops, [computed] * 2, "pooled")
    return rounded(pooled, out.dtype)


@compute(op.roi_align, OPAQUE, when=too_large)
def roi_align(data, rois, out, **options):
    return _pooled(data, data, rois, out, **options)


@compute(op.roi_align_dx, OPAQUE, when=too_large)
def roi_align_dx(data, rois, dy, out, mode, layout, **options):
    shape = out.static_shape
    if int(rois.shape[0]) == 0:
        return zeros(shape, out.dtype)
    order = RegionLayout(layout, shape)
    images, channels = order.extents["N"], order.extents["C"]

    def loops(boxes, keys, gradients, dx, best, chosen):
        def add(region, c, share, inside, taps):
            with T.If(inside), T.Then():
                for h, w, weight in taps:
                    place = order.place(region.image, c, h, w)
                    dx[place] = dx[place] + weight * share

        def spread(region, row, c, ph, pw, share):
            """Add the gradient of one bin."""
            counts = region.vertical.count, region.horizontal.count
            with T.serial(0, counts[0]) as sy, T.serial(0, counts[1]) as sx:
                taps = region.taps(ph, pw, sy, sx)
                if mode == "avg":
                    part = share / region.samples(dx.dtype)
                    add(region, c, named(part), *taps)
                else:
                    key = region.read(keys, c, *taps)
                    first = tirx.And(sy == 0, sx == 0)
                    with T.If(tirx.Or(first, greater(key, best[row]))), T.Then():
                        best[row] = key
                        chosen[row, 0] = sy
                        chosen[row, 1] = sx
            if mode == "max":
                sample = [named(chosen[row, axis]) for axis in (0, 1)]
                add(region, c, share, *region.taps(ph, pw, *sample))

        with T.parallel(0, images * channels) as row:
            n = named(tirx.indexdiv(row, channels))
            c = named(tirx.indexmod(row, channels))
            with T.grid(order.extents["H"], order.extents["W"]) as (h, w):
                dx[order.place(n, c, h, w)] = tirx.const(0, dx.dtype)
            with T.serial(0, int(rois.shape[0])) as r:
                region = Region(order, boxes, r, **options)
                own = tirx.And(region.exists, region.image == n)
                bins = T.grid(*pair(options["pooled_size"], "pooled_size"))
                with T.If(own), T.Then(), bins as (ph, pw):
                    share = named(gradients[order.place(r, c, ph, pw)])
                    spread(region, row, c, ph, pw, share)

    computed = computing(out.dtype)
    shapes = [shape, (images * channels,), (images * channels, 2)]
    inputs = [wide(rois), wide(data), wide(dy)]
    dx, _, _ = hand_built(shapes, inputs, loops, [computed, computed, "int32"], "dx")
    return rounded(dx, out.dtype)


@compute(op.roi_align_ddy, OPAQUE, when=too_large)
def roi_align_ddy(data, rois, ddx, out, **options):
    return _pooled(data, ddx, rois, out, **options)


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
    if 0 in ints(data.shape):
        return zeros(shape, out.dtype)
    order = RegionLayout(layout, data.shape)
    bins = pair(pooled_size, "pooled_size")

    def loops(boxes, values, result):
        with T.parallel(0, prod(shape)) as element:
            place, (r, c, ph, pw) = order.unflat(element, shape)
            exists, image, (x1, y1, x2, y2) = order.box(boxes, r, spatial_scale)
            top, rows = _bounds(y1, y2, bins[0], order.extents["H"], ph)
            left, columns = _bounds(x1, x2, bins[1], order.extents["W"], pw)
            result[place] = tirx.const(0, result.dtype)
            with T.If(exists), T.Then(), T.serial(0, rows) as i, T.serial(0, columns) as j:
                value = named(values[order.place(image, c, top + i, left + j)])
                first = tirx.And(i == 0, j == 0)
                with T.If(tirx.Or(first, greater(value, result[place]))), T.Then():
                    result[place] = value

    inputs = [wide(rois), wide(data)]
    (pooled,) = hand_built([shape], inputs, loops, [computing(out.dtype)], "pooled")
    return rounded(pooled, out.dtype)
