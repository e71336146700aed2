"""Normalisation of groups of channels in tensor expressions. Statistics are of at least float32.

Channels are seen as (group, channel in the group), spatial axes as they are: nothing is copied.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.op.norm import statistics_dtype


class _Groups:
    """Means over one example's groups of channels, in the statistics' dtype."""

    def __init__(self, x, count):
        self.x, self.wide = x, statistics_dtype(str(x.dtype))
        self.size = max(int(x.shape[1]) // max(count, 1), 1)
        self.shape = (x.shape[0], count)

    def element(self, x):
        """Return the function from an index to an element in the statistics' dtype."""
        return lambda *i: cast(x(*i), self.wide)

    def at(self, statistic):
        """Return the function from an index of x to the statistic of its group."""
        return lambda *i: statistic(i[0], i[1] // self.size)

    def mean(self, element, name):
        """Return the means of ``element(*index)`` over each group."""
        over = [te.reduce_axis((0, self.size), name="channel")]
        over += [te.reduce_axis((0, e), name="at") for e in self.x.shape[2:]]
        total = te.compute(
            self.shape,
            lambda n, g: te.sum(element(n, g * self.size + over[0], *over[1:]), axis=over),
            name=f"{name}_sum",
        )
        count = self.size
        for extent in self.x.shape[2:]:
            count *= int(extent)
        n = tirx.const(float(max(count, 1)), self.wide)
        return te.compute(self.shape, lambda *i: total(*i) / n, name=name)

    def statistics(self, eps):
        """Return, as functions from an index of x, the mean and 1 / sqrt(variance + eps)."""
        # As in `norm`: means of the distances from the first element, if there is one.
        x, zeros = self.element(self.x), [0] * (len(self.x.shape) - 2)
        empty = 0 in [int(extent) for extent in self.x.shape]

        def first(n, g):
            return tirx.const(0.0, self.wide) if empty else x(n, g * self.size, *zeros)

        start = self.at(first)
        distance = self.mean(lambda *i: x(*i) - start(*i), "distance")
        mean = self.at(te.compute(self.shape, lambda *i: first(*i) + distance(*i), name="mean"))

        def squared(*i):
            return (x(*i) - mean(*i)) * (x(*i) - mean(*i))

        variance = self.mean(squared, "variance")
        one, eps = tirx.const(1.0, self.wide), tirx.const(eps, self.wide)
        inverse = te.compute(
            self.shape, lambda *i: one / te.sqrt(variance(*i) + eps), name="inverse"
        )
        return mean, self.at(inverse)


def _group_normalised(x, count, scale, bias, eps):
    groups = _Groups(x, count)
    mean, inverse = groups.statistics(eps)
    source = groups.element(x)

    def element(*i):
        value = (source(*i) - mean(*i)) * inverse(*i)
        if scale is not None:
            value = value * cast(scale(i[1]), groups.wide)
        if bias is not None:
            value = value + cast(bias(i[1]), groups.wide)
        return cast(value, x.dtype)

    return te.compute(x.shape, element, name="y")


@compute(op.group_norm, OPAQUE)
def group_norm(x, num_groups, scale, bias, eps):
    return _group_normalised(x, num_groups, scale, bias, eps)


@compute(op.instance_norm, OPAQUE)
def instance_norm(x, scale, bias, eps):
    return _group_normalised(x, int(x.shape[1]), scale, bias, eps)


@compute(op.group_norm_dx, OPAQUE)
def group_norm_dx(x, num_groups, scale, dy, eps):
    groups = _Groups(x, num_groups)
    mean, inverse = groups.statistics(eps)
    source, slope = groups.element(x), groups.element(dy)

    def xhat(*i):
        return (source(*i) - mean(*i)) * inverse(*i)

    def g(*i):
        return slope(*i) if scale is None else slope(*i) * cast(scale(i[1]), groups.wide)

    flat = groups.at(groups.mean(g, "mean_g"))
    along = groups.at(groups.mean(lambda *i: g(*i) * xhat(*i), "mean_gx"))
    dx = te.compute(
        x.shape,
        lambda *i: cast((g(*i) - flat(*i) - xhat(*i) * along(*i)) * inverse(*i), x.dtype),
        name="dx",
    )
    if scale is None:
        return dx
    dscale = _per_channel(x, lambda *i: slope(*i) * xhat(*i), scale, "dscale")
    return dx, dscale, _per_channel(x, slope, scale, "dbias")


def _per_channel(x, element, scale, name):
    """Return the sums of ``element(*index)`` over all axes but 1, in the dtype of ``scale``."""
    over = [te.reduce_axis((0, x.shape[a]), name=f"r{a}") for a in range(len(x.shape)) if a != 1]
    total = te.compute(
        scale.shape, lambda c: te.sum(element(over[0], c, *over[1:]), axis=over), name=name
    )
    return te.compute(scale.shape, lambda c: cast(total(c), scale.dtype), name="rounded")
