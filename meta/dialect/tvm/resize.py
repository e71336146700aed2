"""Resizing and sampling of images in TE.

Forward, an element of the result is a weighted sum of what its sample reads. Backward, the axes
come one after the other; an element adds up the few samples that can have read it. The functions
serve any number of spatial axes.
"""

import math
import operator
from functools import reduce
from itertools import product

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.broadcast import cast, computing, constant, rounded
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.op.core.check import pair
from meta.op.core.resample import sampling, upsampled


class ResizedAxis:
    """A resized axis: `Sampling` on indices that are expressions."""

    def __init__(self, position, s, dtype):
        self.position, self.sampling, self.dtype = position, s, dtype
        self.index_dtype = "int32" if s.largest < 2**31 else "int64"

    def _elements(self, o):
        """Return the elements that sample ``o`` reads, some of which may be outside."""
        s = self.sampling
        base = tirx.floordiv(o * s.a + s.b, tirx.const(s.d, self.index_dtype))
        return [base + tap for tap in s.taps]

    def _clamped(self, e):
        last = tirx.const(self.sampling.size - 1, self.index_dtype)
        return tirx.max(tirx.min(e, last), tirx.const(0, self.index_dtype))

    def _weights(self, o):
        """Return the weights of these, and their sum where they are to be divided by it."""
        s = self.sampling
        ahead = tirx.floormod(o * s.a + s.b, tirx.const(s.d, self.index_dtype))
        weights = s.weights(ahead.astype(self.dtype) / tirx.const(float(s.d), self.dtype))
        if not s.exclude or len(s.taps) < 4:
            return weights, None
        zero = constant(0, weights[0])
        inside = [tirx.And(e >= 0, e < s.size) for e in self._elements(o)]
        weights = [tirx.Select(i, w, zero) for i, w in zip(inside, weights, strict=True)]
        return weights, reduce(operator.add, weights)

    def taps(self, o):
        """Return (element, weight) of what sample ``o`` reads; a weight of None is 1."""
        o = o.astype(self.index_dtype)
        elements = [self._clamped(e) for e in self._elements(o)]
        if len(elements) == 1:
            return [(elements[0], None)]
        weights, total = self._weights(o)
        if total is not None:
            weights = [w / total for w in weights]
        return list(zip(elements, weights, strict=True))

    def _reader(self, i, k):
        """Return the k-th sample that may have read element ``i``."""
        s, start = self.sampling, tirx.const(0, self.index_dtype)
        i = i.astype(self.index_dtype)
        if s.a and s.size > 1:
            d, a = tirx.const(s.d, self.index_dtype), tirx.const(s.a, self.index_dtype)
            first = start - tirx.floordiv(s.b - (i - s.taps[-1]) * d, a)
            start = tirx.Select(i > 0, tirx.max(first, start), start)
        return start + k.astype(self.index_dtype)

    def _share(self, i, o):
        """Return with what weight sample ``o`` reads element ``i``; 0 if it does not."""
        weight = zero = tirx.const(0, self.dtype)
        for e, w in self.taps(o):
            one = constant(1, zero) if w is None else w
            weight = weight + tirx.Select(e == i.astype(self.index_dtype), one, zero)
        return weight

    def _share_of_cubic(self, i, o):
        """Return the same as a sum over the taps, which makes it a table of its own: written out in
        each of the places where it is needed, it is thousands of operations, over which TVM and
        CUDA's compiler take minutes.
        """
        tap = te.reduce_axis((0, len(self.sampling.taps)), name="tap")
        weights, total = self._weights(o)
        element, weight = self._elements(o)[0] + tap.var.astype(self.index_dtype), weights[-1]
        for number, other in enumerate(weights[:-1]):
            weight = tirx.Select(tap.var == number, other, weight)
        if total is not None:
            weight = weight / total
        same = self._clamped(element) == i.astype(self.index_dtype)
        return te.sum(tirx.Select(same, weight, tirx.const(0, self.dtype)), axis=tap)

    def spread(self, dy):
        """Return the gradient along this axis: every sample's, spread over what it read."""
        s, p = self.sampling, self.position
        k = te.reduce_axis((0, s.readers), name="k")
        shape = [s.size if a == p else n for a, n in enumerate(dy.shape)]
        last = tirx.const(s.out - 1, self.index_dtype)
        if len(s.taps) > 2:
            table = te.compute(
                (s.size, s.readers),
                lambda i, k: self._share_of_cubic(i, tirx.min(self._reader(i, k), last)),
                name="share",
            )

        def element(*index):
            o = self._reader(index[p], k.var)
            there = tirx.min(o, last)
            value = dy(*index[:p], there, *index[p + 1 :]).astype(self.dtype)
            weight = table(index[p], k) if len(s.taps) > 2 else self._share(index[p], there)
            # Not weight * value alone: an infinite dy must not reach what its sample did not read.
            zero = constant(0, value)
            read = tirx.And(o <= last, weight != zero)
            return te.sum(tirx.Select(read, weight * value, zero), axis=k)

        return te.compute(shape, element, name="spread")


def axes_of(
    shape, dtype, size, layout, method, coordinate_transformation_mode,
    rounding_method="", cubic_alpha=-0.5, cubic_exclude=0, **_,
):  # fmt: skip
    """Return the `Axis` of each spatial axis, outermost first."""
    mode = coordinate_transformation_mode
    options = (method, mode, rounding_method, cubic_alpha, cubic_exclude)
    letters = [letter for letter in "DHW" if letter in layout]
    found = []
    for letter, out in zip(letters, pair(size, "size", len(letters)), strict=True):
        p = layout.index(letter)
        found.append(ResizedAxis(p, sampling(int(shape[p]), out, *options), dtype))
    return found


def resize(x, out, **options):
    """Return the resized image."""
    wide = computing(str(x.dtype)) if is_float(str(x.dtype)) else str(x.dtype)
    axes = axes_of(x.shape, wide, **options)

    def element(*index):
        taps = [axis.taps(index[axis.position]) for axis in axes]

        def sampled(place, k):
            """Return the sample along the axes from ``k`` on, at elements of the others."""
            if k == len(axes):
                return x(*place).astype(wide)
            at = axes[k].position
            values = []
            for e, weight in taps[k]:  # a weight of None is 1
                value = sampled([*place[:at], e, *place[at + 1 :]], k + 1)
                values.append(value if weight is None else value * weight)
            return reduce(operator.add, values)

        return sampled(list(index), 0).astype(out.dtype)

    return te.compute(out.shape, element, name="resized")


def resize_dx(dy, out, **options):
    """Return the gradient of its argument."""
    wide = "float64" if "float64" in (str(dy.dtype), out.dtype) else "float32"
    dx = dy
    for axis in axes_of(out.shape, wide, **options):
        dx = axis.spread(dx)
    return rounded(dx, out.dtype, "dx")


for _n in (1, 2, 3):
    compute(getattr(op, f"resize{_n}d"), INJECTIVE)(resize)
    compute(getattr(op, f"resize{_n}d_dx"), OPAQUE)(resize_dx)


@compute(op.upsampling, INJECTIVE)
def upsampling(x, scale_h, scale_w, layout, method, align_corners, out):
    sizes = tuple(int(x.shape[layout.index(letter)]) for letter in "HW")
    size, method, mode = upsampled(sizes, (scale_h, scale_w), method, align_corners)
    options = {"method": method, "coordinate_transformation_mode": mode}
    return resize(x, out, size=size, layout=layout, **options)


ALPHA = -0.75


def _mirrored(position, size, align_corners):
    """Return the position reflected at the ends of the axis."""
    low, span = (0.0, size - 1) if align_corners else (-0.5, size)
    if span == 0:
        return constant(0, position)
    width = constant(span, position)
    away = tirx.abs(position - constant(low, position))
    flips = tirx.floor(away / width)
    extra = away - flips * width
    half = constant(0.5, position)
    odd = flips - constant(2, position) * tirx.floor(flips * half) > half
    return constant(low, position) + tirx.Select(odd, width - extra, extra)


def _moved(position, size, padding_mode, align_corners, image):
    if padding_mode == "reflection":
        position = _mirrored(position, size, align_corners)
    if padding_mode == "zeros":
        return position
    first, last = constant(0, position), constant(size - 1, position)
    if image:  # NaN is the first element
        return tirx.Select(position > first, tirx.min(position, last), first)
    return tirx.max(tirx.min(position, last), first)


def _cubic(t, k):
    """The weight of the element ``k`` behind the base (Keys, 1981)."""
    d = tirx.abs(t - constant(k, t))
    a, one = ALPHA, constant(1, t)
    if k in (0, 1):
        return (constant(a + 2, t) * d - constant(a + 3, t)) * d * d + one
    return ((constant(a, t) * d - constant(5 * a, t)) * d + constant(8 * a, t)) * d - constant(
        4 * a, t
    )


def _taps(coordinate, size, mode, padding_mode, align_corners, image):
    """Return (element, weight) of what a sample reads of one axis; outside, the weight is 0.

    At NaN and infinities, it is what torch has on the CPU, which differs for images and volumes.
    """
    one, zero = constant(1, coordinate), constant(0, coordinate)
    scale = constant((size - 1) / 2 if align_corners else size / 2, coordinate)
    position = (coordinate + one) * scale - constant(0 if align_corners else 0.5, coordinate)
    if mode != "bicubic":
        position = _moved(position, size, padding_mode, align_corners, image)
    if mode != "bicubic" or padding_mode != "reflection":
        # Elements far outside are all alike; integers have bounds.
        bounded = tirx.min(position, constant(size + 3, position))
        position = tirx.max(bounded, constant(-3, position))
    base = tirx.nearbyint(position) if mode == "nearest" else tirx.floor(position)
    t = position - base
    shares = {
        "nearest": lambda: [(0, one)],
        "bilinear": lambda: [(0, one - t), (1, t)],
        "bicubic": lambda: [(k, _cubic(t, k)) for k in (-1, 0, 1, 2)],
    }[mode]()
    found = []
    for offset, weight in shares:
        element = base + constant(offset, base)
        if mode == "bicubic":
            element = _moved(element, size, padding_mode, align_corners, image)
        inside = tirx.And(element >= zero, element <= constant(size - 1, element))
        clamped = tirx.max(tirx.min(element, constant(size - 1, element)), zero)
        index = tirx.nearbyint(clamped).astype("int32")
        share = tirx.Select(inside, weight, zero)
        if image and (mode == "bicubic" or (mode == "bilinear" and padding_mode == "zeros")):
            finite = tirx.abs(coordinate) < constant(math.inf, coordinate)
            share = tirx.Select(finite, share, constant(math.nan, coordinate))
        found.append((index, share))
    return found


@compute(op.grid_sample, OPAQUE)
def grid_sample(x, grid, mode, padding_mode, align_corners, out):
    wide = computing(out.dtype)
    extents = [int(extent) for extent in x.shape[2:]]
    options = (mode, padding_mode, align_corners, len(extents) == 2)

    def element(n, c, *place):
        axes = [
            _taps(cast(grid(n, *place, len(extents) - 1 - axis), wide), size, *options)
            for axis, size in enumerate(extents)
        ]
        terms = []
        for taps in product(*axes):
            places, weights = zip(*taps, strict=True)
            terms.append(cast(x(n, c, *places), wide) * reduce(operator.mul, weights))
        return cast(reduce(operator.add, terms), out.dtype)

    return te.compute(out.shape, element, name="sampled")
