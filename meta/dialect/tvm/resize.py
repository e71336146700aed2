"""Resizing in tensor expressions. Half precision is computed in float32.

Forward, an element of the result is a weighted sum of what its sample reads. Backward, the axes
come one after the other; an element adds up the few samples that can have read it. The functions
serve any number of spatial axes; `resize_1d.py` and `resize_3d.py` register them too.
"""

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.elementwise import computing, constant
from meta.op.core.check import pair
from meta.op.core.resample import sampling, upsampled


class Axis:
    """A resized axis: `Sampling` on indices that are expressions."""

    def __init__(self, position, s, dtype):
        self.position, self.sampling, self.dtype = position, s, dtype
        self.index_dtype = "int32" if s.largest < 2**31 else "int64"

    def taps(self, o):
        """Return (element, weight) of what sample ``o`` reads; a weight of None is 1."""
        s = self.sampling
        o = o.astype(self.index_dtype)
        position, d = o * s.a + s.b, tirx.const(s.d, self.index_dtype)
        base = tirx.floordiv(position, d)
        elements = [base + tap for tap in s.taps]
        inside = [tirx.And(e >= 0, e < s.size) for e in elements]
        last = tirx.const(s.size - 1, self.index_dtype)
        clamped = [tirx.max(tirx.min(e, last), tirx.const(0, self.index_dtype)) for e in elements]
        if len(s.taps) == 1:
            return [(clamped[0], None)]
        t = tirx.floormod(position, d).astype(self.dtype) / tirx.const(float(s.d), self.dtype)
        weights = s.weights(t)
        if s.exclude and len(s.taps) == 4:
            zero = constant(0, t)
            weights = [tirx.Select(i, w, zero) for i, w in zip(inside, weights, strict=True)]
            total = weights[0] + weights[1] + weights[2] + weights[3]
            weights = [w / total for w in weights]
        return list(zip(clamped, weights, strict=True))

    def spread(self, dy):
        """Return the gradient along this axis: every sample's, spread over what it read."""
        s, p = self.sampling, self.position
        k = te.reduce_axis((0, s.readers), name="k")
        shape = [s.size if a == p else n for a, n in enumerate(dy.shape)]

        def element(*index):
            i = index[p].astype(self.index_dtype)
            start = tirx.const(0, self.index_dtype)
            if s.a and s.size > 1:
                d, a = tirx.const(s.d, self.index_dtype), tirx.const(s.a, self.index_dtype)
                first = start - tirx.floordiv(s.b - (i - s.taps[-1]) * d, a)
                start = tirx.Select(i > 0, tirx.max(first, start), start)
            o = start + k.var.astype(self.index_dtype)
            last = tirx.const(s.out - 1, self.index_dtype)
            value = dy(*index[:p], tirx.min(o, last), *index[p + 1 :]).astype(self.dtype)
            zero = constant(0, value)
            weight = zero
            for e, w in self.taps(tirx.min(o, last)):
                one = constant(1, value) if w is None else w
                weight = weight + tirx.Select(e == i, one, zero)
            # Not weight * value alone: an infinite dy must not reach what its sample did not read.
            read = tirx.And(o <= last, weight != zero)
            return te.sum(tirx.Select(read, weight * value, zero), axis=k)

        return te.compute(shape, element, name="spread")


def axes_of(shape, dtype, size, layout, *options):
    """Return the `Axis` of each spatial axis, outermost first."""
    letters = [letter for letter in "DHW" if letter in layout]
    found = []
    for letter, out in zip(letters, pair(size, "size", len(letters)), strict=True):
        p = layout.index(letter)
        found.append(Axis(p, sampling(int(shape[p]), out, *options), dtype))
    return found


def forward(x, out, size, layout, *options):
    """Return the resized image."""
    wide = computing(str(x.dtype)) if is_float(str(x.dtype)) else str(x.dtype)
    axes = axes_of(x.shape, wide, size, layout, *options)

    def element(*index):
        taps = [axis.taps(index[axis.position]) for axis in axes]

        def sampled(place, k):
            """Return the sample along the axes from ``k`` on, at elements of the others."""
            if k == len(axes):
                return x(*place).astype(wide)
            at = axes[k].position
            values = [
                weighted(sampled([*place[:at], e, *place[at + 1 :]], k + 1), weight)
                for e, weight in taps[k]
            ]
            return added(values)

        return sampled(list(index), 0).astype(out.dtype)

    return te.compute(out.shape, element, name="resized")


def weighted(value, weight):
    """Return their product; a weight of None is 1."""
    return value if weight is None else value * weight


def added(values):
    """Return the sum of at least one value."""
    total = values[0]
    for value in values[1:]:
        total = total + value
    return total


def resizing(resize, resize_dx):
    """Register the functions of a resize and of its gradient."""

    @compute(resize, INJECTIVE)
    def _(
        x, size, layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
        cubic_exclude, out,
    ):  # fmt: skip
        options = (
            method, coordinate_transformation_mode, rounding_method, cubic_alpha, cubic_exclude
        )  # fmt: skip
        return forward(x, out, size, layout, *options)

    @compute(resize_dx, OPAQUE)
    def _(
        dy, size, layout, method, coordinate_transformation_mode, rounding_method, cubic_alpha,
        cubic_exclude, out,
    ):  # fmt: skip
        options = (
            method, coordinate_transformation_mode, rounding_method, cubic_alpha, cubic_exclude
        )  # fmt: skip
        wide = "float64" if "float64" in (str(dy.dtype), out.dtype) else "float32"
        dx = dy
        for axis in axes_of(out.shape, wide, size, layout, *options):
            dx = axis.spread(dx)
        return te.compute(out.shape, lambda *i: dx(*i).astype(out.dtype), name="dx")


resizing(op.resize2d, op.resize2d_dx)


@compute(op.upsampling, INJECTIVE)
def upsampling(x, scale_h, scale_w, layout, method, align_corners, out):
    sizes = tuple(int(x.shape[layout.index(letter)]) for letter in "HW")
    size, method, mode = upsampled(sizes, (scale_h, scale_w), method, align_corners)
    return forward(x, out, size, layout, method, mode)
