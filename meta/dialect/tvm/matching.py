"""Comparing neighbourhoods in tensor expressions, as gathers: no element is written twice."""

import math

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing, constant
from meta.dialect.tvm.compute import OPAQUE, OUT_ELEMWISE_FUSABLE, compute
from meta.op.core.window import pads
from meta.op.matching import displacements


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
        """Return the gradient by x1, or by x2: of the windows and displacements that read an
        element.
        """
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
