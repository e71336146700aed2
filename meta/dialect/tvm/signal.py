"""Transforms of signals as products with a matrix of which one row is kept: n**2 multiplications
for n elements, in a kernel for any n.
"""

from math import pi

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.compute import OPAQUE, compute


@compute(op.dft, OPAQUE)
def dft(re, im, inverse):
    *lead, extent = re.shape
    dtype = str(re.dtype)

    def table(function, name):
        """Return function(2 pi t / n) for all t below n."""

        def entry(t):
            angle = tirx.Cast("float64", t) * tirx.const(2 * pi, "float64")
            return tirx.Cast(dtype, function(angle / tirx.Cast("float64", extent)))

        return te.compute((extent,), entry, name=name)

    cosine, sine = table(tirx.cos, "cosine"), table(tirx.sin, "sine")

    def part(along, across, sign, name):
        """Return the sum of along * cos + sign * across * sin."""
        k = te.reduce_axis((0, extent), name="k")

        def term(*index):
            *at, j = index
            wide = tirx.Cast("int64", j) * tirx.Cast("int64", k)
            turn = tirx.Cast("int32", tirx.floormod(wide, tirx.Cast("int64", extent)))
            product = across(*at, k) * sine(turn)
            value = along(*at, k) * cosine(turn)
            return te.sum(value + product if sign > 0 else value - product, axis=k)

        total = te.compute((*lead, extent), term, name=name)
        if not inverse:
            return total
        count = tirx.Cast(dtype, extent)
        return te.compute(total.shape, lambda *i: total(*i) / count, name=f"{name}_mean")

    forward = -1 if inverse else 1
    return [part(re, im, forward, "re"), part(im, re, -forward, "im")]
