"""Pooling in tensor expressions. Gradients gather: each input sums over the windows that cover it.

One spatial axis is a `_Sliding` window or an adaptive `_Region`; both answer the same questions,
so every operator is written once, for any number of axes.
Maxima are found on keys (see `order_keys.py`) to keep NaNs. Half precision accumulates in
float32."""

import typing
from dataclasses import dataclass
from math import prod

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm import order_keys
from meta.dialect.tvm.broadcast import cast, computing
from meta.dialect.tvm.compute import OPAQUE, OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.index import flat_index, number, where_all, zeros
from meta.dialect.tvm.layout import Ordered
from meta.op.core.check import pair
from meta.op.core.window import DATA, Taps, window

BYTE = 255
"""Taps that are told apart by a byte."""


@dataclass(frozen=True)
class _Sliding:
    """A window of fixed size; ``include_pad`` says whether padding counts."""

    taps: Taps
    include_pad: bool

    @property
    def length(self):
        """The number of taps of a window."""
        return self.taps.kernel

    @property
    def size(self) -> int:
        """The extent of the input: a kernel is made for numbers."""
        return typing.cast(int, self.taps.size)

    @property
    def windows(self) -> int:
        """How many windows there are."""
        return typing.cast(int, self.taps.out)

    @property
    def covers(self):
        """An upper bound of the number of windows that cover an input."""
        taps = self.taps
        covers = -(-taps.kernel // taps.stride) if taps.dilation == 1 else taps.kernel
        return 1 if self.only else covers

    @property
    def whole(self):
        """Whether all windows lie inside the input."""
        taps = self.taps
        return taps.before == 0 and (self.windows - 1) * taps.stride + taps.extent <= self.size

    @property
    def only(self):
        """Whether there is one window, of all elements."""
        taps = self.taps
        return (
            taps.out == 1 and taps.before == 0 and taps.dilation == 1 and taps.kernel == taps.size
        )

    def tap(self, o, k):
        """Return where tap k of window o lies, and whether that is inside the input."""
        if self.only:  # that k alone decides makes it a reduction of rows or columns
            return k, True
        place = o * self.taps.stride - self.taps.before + k * self.taps.dilation
        return place, self.whole or te.all(place >= 0, place < self.taps.size)

    def cover(self, h, j):
        """Return the j-th window that may cover input h, which tap that is, and whether it does."""
        if self.only:
            return tirx.const(0, h.ty.dtype), h, True
        if self.taps.dilation == 1:  # those that start at or before h, the last first
            start, stride = h + self.taps.before, self.taps.stride
            # Not start - o * stride: TVM divides by zero where it simplifies under its comparison.
            o, tap = tirx.floordiv(start, stride) - j, tirx.floormod(start, stride) + j * stride
            return o, tap, te.all(tap < self.taps.kernel, o >= 0, o < self.taps.out)
        start = h + self.taps.before - j * self.taps.dilation
        o = tirx.floordiv(start, self.taps.stride)
        exact = tirx.floormod(start, self.taps.stride) == 0
        return o, j, te.all(exact, o >= 0, o < self.taps.out)

    def count(self, o):
        """Return how many elements window o averages."""
        if self.whole:
            return tirx.const(self.taps.kernel, o.ty.dtype)
        low, high = 0, self.size
        if self.include_pad:
            low, high = -self.taps.before, high + self.taps.after
        start, step = o * self.taps.stride - self.taps.before, self.taps.dilation
        first = te.max(tirx.floordiv(low - start + step - 1, step), 0)
        end = te.min(tirx.floordiv(high - start + step - 1, step), self.taps.kernel)
        return end - first


@dataclass(frozen=True)
class _Region:
    """Region o of ``out`` is [floor(o * size / out), ceil((o + 1) * size / out))."""

    size: int
    out: int

    @staticmethod
    def _ratio(i, to, of):
        """Return (floor(i * to / of), ceil((i + 1) * to / of))."""
        return tirx.floordiv(i * to, of), tirx.floordiv((i + 1) * to + of - 1, of)

    @staticmethod
    def _longest(to, of):
        """Return the largest extent of [floor(i * to / of), ceil((i + 1) * to / of)), i < of."""
        return max(-(-(i + 1) * to // of) - i * to // of for i in range(of))

    @property
    def length(self):
        """The number of taps of the largest region."""
        return self._longest(self.size, self.out)

    @property
    def covers(self):
        """The largest number of regions that cover an input."""
        return self._longest(self.out, self.size)

    def tap(self, o, k):
        """As for `_Sliding`."""
        start, end = self._ratio(o, self.size, self.out)
        return start + k, start + k < end

    def cover(self, h, j):
        """As for `_Sliding`. Which regions cover an input follows the same rule, turned around."""
        first, end = self._ratio(h, self.out, self.size)
        o = first + j
        return o, h - self._ratio(o, self.size, self.out)[0], o < end

    def count(self, o):
        """As for `_Sliding`."""
        start, end = self._ratio(o, self.size, self.out)
        return end - start


def _axes(x, kernel, stride, padding, dilation, ceil_mode, layout, include_pad=False):
    taps = window(_sizes(x, layout), kernel, stride, padding, dilation, ceil_mode)
    return tuple(_Sliding(axis, include_pad) for axis in taps)


def _regions(x, shape, layout):
    sizes = _sizes(x, layout)
    wanted = pair(shape, "shape", len(sizes))
    return tuple(map(_region, sizes, wanted))


def _sizes(x, layout):
    return tuple(map(number, _ordered(x, layout).shape[2:]))


def _region(size, out):
    """Return one axis of adaptive pooling: regions of one size are windows."""
    if not out or size % out:
        return _Region(size, out)
    return _Sliding(Taps(size, size // out, size // out, 1, 0, 0, False), True)


def _ordered(x, layout):
    """Return an image seen in the order of `DATA`."""
    order = DATA[len(x.shape) - 2]
    return Ordered(x, layout, order)


def _over(axes, at, combine, value, outside):
    """Combine ``value(places, taps)`` over the taps of the window ``at``; ``outside`` elsewhere."""
    taps = [te.reduce_axis((0, axis.length)) for axis in axes]
    found = [axis.tap(o, k) for axis, o, k in zip(axes, at, taps, strict=True)]
    places, inside = zip(*found, strict=True)
    return combine(where_all(inside, value(places, taps), outside), axis=taps)


def _maximum(x, axes, layout, out):
    image, dtype = _ordered(x, layout), str(x.dtype)
    least = tirx.min_value(order_keys.key_dtype(dtype))

    def element(n, c, *at):
        def key(places, _):
            return order_keys.key(image(n, c, *places), dtype, True)

        return _over(axes, at, te.max, key, least)

    best = image.result(out.shape, element, "best")
    return te.compute(out.shape, lambda *i: order_keys.value(best(*i), dtype), name="max_pool")


def _mean(x, axes, layout, out):
    image, wide = _ordered(x, layout), computing(x.dtype)

    def element(n, c, *at):
        def value(places, _):
            return cast(image(n, c, *places), wide)

        return _over(axes, at, te.sum, value, tirx.const(0, wide))

    total = image.result(out.shape, element, "total")

    def divided(*i):
        _, _, *at = (i[a] for a in image.to)
        return cast(total(*i) / _count(axes, at).astype(wide), x.dtype)

    return te.compute(out.shape, divided, name="avg_pool")


def _count(axes, at):
    """Return how many elements the window ``at`` averages."""
    counts = [axis.count(o) for axis, o in zip(axes, at, strict=True)]
    return prod(counts[1:], start=counts[0])


def _gathered(image, axes, value):
    """Return the sums of ``value(n, c, window, taps)`` over the windows that cover each place.

    The result is of the type and the layout of ``image``.
    """
    shape, dtype = image.x.shape, str(image.x.dtype)
    wide = computing(dtype)

    def term(n, c, at, js):
        found = [a.cover(h, j) for a, h, j in zip(axes, at, js, strict=True)]
        windows, taps, covered = zip(*found, strict=True)
        return where_all(covered, value(n, c, windows, taps), tirx.const(0, wide))

    if all(isinstance(axis, _Sliding) and axis.only for axis in axes):
        return image.result(shape, lambda n, c, *at: cast(term(n, c, at, at), dtype), "dx")

    def element(n, c, *at):
        js = [te.reduce_axis((0, axis.covers)) for axis in axes]
        return te.sum(term(n, c, at, js), axis=js)

    total = image.result(shape, element, "dx_sum")
    return te.compute(shape, lambda *i: cast(total(*i), dtype), name="dx")


def _maximum_gradient(x, y, dy, axes, layout):
    """Find the first tap of every window that is the maximum; only there dy arrives."""
    dtype, wide = str(x.dtype), computing(x.dtype)
    none = tirx.max_value("int32")
    image, result, slope = (_ordered(t, layout) for t in (x, y, dy))

    def first(n, c, *at):
        best = cast(result(n, c, *at), wide)

        def number(places, taps):
            value = cast(image(n, c, *places), wide)
            found = value == best
            if is_float(dtype):  # a NaN is the maximum wherever it is
                found = te.any(found, tirx.isnan(value))
            return tirx.Select(found, _number(taps, axes), none)

        return _over(axes, at, te.min, number, none)

    found = narrow = result.result(y.shape, first, "first")
    if prod(axis.length for axis in axes) <= BYTE:
        narrow = te.compute(y.shape, lambda *i: found(*i).astype("uint8"), name="winner")
    winner = _ordered(narrow, layout)

    def value(n, c, windows, taps):
        won = winner(n, c, *windows).astype("int32") == _number(taps, axes)
        return tirx.Select(won, cast(slope(n, c, *windows), wide), tirx.const(0, wide))

    return _gathered(image, axes, value)


def _number(taps, axes):
    """Number the taps of a window in row order."""
    return flat_index(taps, [axis.length for axis in axes]).astype("int32")


def _mean_gradient(dy, axes, layout, out):
    slope, wide = _ordered(dy, layout), computing(dy.dtype)

    def value(n, c, windows, _):
        count = te.max(_count(axes, windows), 1)  # a window without elements is nobody's
        return cast(slope(n, c, *windows), wide) / count.astype(wide)

    return _gathered(_ordered(out, layout), axes, value)


def _empty(dy):
    """Whether nothing was pooled: regions of nothing have no size."""
    return any(isinstance(extent, tirx.IntImm) and extent.value == 0 for extent in dy.shape)


def _register(name, axes_of):
    """Register the maximum and the mean over windows, and their gradients.

    ``axes_of(x, **attributes)``: the axes of an image.
    """

    def maximum(x, out, layout, **options):
        return _maximum(x, axes_of(x, layout=layout, **options), layout, out)

    def mean(x, out, layout, **options):
        return _mean(x, axes_of(x, layout=layout, **options), layout, out)

    def maximum_dx(x, y, dy, layout, **options):
        if _empty(dy):
            return zeros(x.shape, x.dtype)
        return _maximum_gradient(x, y, dy, axes_of(x, layout=layout, **options), layout)

    def mean_dx(dy, out, layout, **options):
        if _empty(dy):
            return zeros(out.shape, out.dtype)
        return _mean_gradient(dy, axes_of(out, layout=layout, **options), layout, out)

    for kind, function, gradient in (("max", maximum, maximum_dx), ("avg", mean, mean_dx)):
        compute(getattr(op, name.format(kind)), OUT_ELEMWISE_FUSABLE, static=False)(function)
        compute(getattr(op, name.format(kind) + "_dx"), OPAQUE)(gradient)


for _n in (1, 2, 3):
    _register(f"{{}}_pool{_n}d", _axes)
    _register(f"adaptive_{{}}_pool{_n}d", _regions)
