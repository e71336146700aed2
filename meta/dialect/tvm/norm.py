"""Normalisations in TE.

Variances are taken in a second pass over the data, about the mean: one pass over x and x² would
lose all digits of a small variance around a large mean. Means are taken of the distances from the
first element, so that equal elements have just that mean: what a sum of them rounds away would be
divided by the square root of ``eps``. `group_norm` sees channels as (group, channel in the group),
without a copy.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import COMM_REDUCE, OPAQUE, compute
from meta.dialect.tvm.reduce import accumulator, reduced, result_index, source_index
from meta.op.core.reduction import reduction
from meta.op.norm import statistics_dtype


class _Over:
    """Sums of an array over some axes, in the statistics' dtype."""

    def __init__(self, x, r):
        self.x, self.r = x, r
        self.wide = statistics_dtype(str(x.dtype))
        self.shape = r.shape(x.shape)
        self.count = r.count([int(extent) for extent in x.shape])

    def number(self, value):
        """Return a constant."""
        return tirx.const(float(value), self.wide)

    def element(self, x):
        """Return the function from an index to an element in the statistics' dtype."""
        return lambda *i: cast(x(*i), self.wide)

    def at(self, statistic):
        """Return the function from an index of x to the statistic that belongs to it."""
        return lambda *i: statistic(*result_index(self.r, i))

    def sum(self, element, name):
        """Return the sums of ``element(*index)``."""
        return reduced(self.x, self.r, self.shape, te.sum, lambda i: element(*i), name)

    def mean(self, element, name):
        """Return the means of ``element(*index)``."""
        total, n = self.sum(element, f"{name}_sum"), self.number(max(self.count, 1))
        return te.compute(self.shape, lambda *i: total(*i) / n, name=name)

    def statistics(self):
        """Return the mean and the biased variance of x."""
        x, zeros = self.element(self.x), [0] * len(self.r.axes)

        def first(*i):  # of those that belong to a statistic
            if not self.count:
                return self.number(0)
            return x(*source_index(self.r, len(self.x.shape), i, zeros))

        start = self.at(first)
        distance = self.mean(lambda *i: x(*i) - start(*i), "distance")
        mean = te.compute(self.shape, lambda *i: first(*i) + distance(*i), name="mean")
        centre = self.at(mean)

        def squared(*i):
            return (x(*i) - centre(*i)) * (x(*i) - centre(*i))

        return mean, self.mean(squared, "variance")

    def inverse(self, variance, eps):
        """Return 1 / sqrt(variance + eps)."""
        one, eps = self.number(1), self.number(eps)
        return te.compute(
            self.shape, lambda *i: one / te.sqrt(cast(variance(*i), self.wide) + eps), name="invvar"
        )


def _normalised(over, mean, inverse, scale, bias, channel):
    """Return (x - mean) * inverse * scale + bias, in x's dtype; parameters go with ``channel``."""
    x, mean, inverse = over.element(over.x), over.at(mean), over.at(inverse)

    def element(*i):
        value = (x(*i) - mean(*i)) * inverse(*i)
        if scale is not None:
            value = value * cast(scale(i[channel]), over.wide)
        if bias is not None:
            value = value + cast(bias(i[channel]), over.wide)
        return cast(value, over.x.dtype)

    return te.compute(over.x.shape, element, name="y")


def _over_batch(x, axis):
    return _Over(x, reduction(len(x.shape), axis, exclude=True))


@compute(op.batch_norm_train, OPAQUE)
def batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis):
    over = _over_batch(x, axis)
    mean, variance = over.statistics()
    y = _normalised(over, mean, over.inverse(variance, eps), w, b, axis)
    unbiased = over.count / max(over.count - 1, 1)

    def blended(running, batch, factor):
        keep, take = over.number(1 - momentum), over.number(momentum * factor)
        return te.compute(
            running.shape,
            lambda c: cast(cast(running(c), over.wide) * keep + batch(c) * take, running.dtype),
            name="running",
        )

    return y, blended(running_mean, mean, 1.0), blended(running_var, variance, unbiased)


@compute(op.batch_norm_infer, OPAQUE)
def batch_norm_infer(x, running_mean, running_var, w, b, eps, axis):
    over = _over_batch(x, axis)
    mean = te.compute(over.shape, lambda c: cast(running_mean(c), over.wide), name="mean")
    return _normalised(over, mean, over.inverse(running_var, eps), w, b, axis)


@compute(op.batch_norm_train_dxwb, OPAQUE)
def batch_norm_train_dxwb(dy, x, w, eps, axis, out):
    over = _over_batch(x, axis)
    mean, variance = over.statistics()
    inverse = over.inverse(variance, eps)
    xhat, slope = _xhat(over, mean, inverse), over.element(dy)
    db = over.sum(slope, "db")
    dw = over.sum(lambda *i: slope(*i) * xhat(*i), "dw")
    n, factor = over.number(max(over.count, 1)), over.at(inverse)

    def gradient(*i):
        c = i[axis]
        value = (slope(*i) - db(c) / n - xhat(*i) * (dw(c) / n)) * factor(*i)
        return cast(value if w is None else value * cast(w(c), over.wide), x.dtype)

    return te.compute(x.shape, gradient, name="dx"), _as(dw, out[1]), _as(db, out[2])


def _as(x, type_):
    return te.compute(x.shape, lambda *i: cast(x(*i), type_.dtype), name="rounded")


def _xhat(over, mean, inverse):
    x, mean, inverse = over.element(over.x), over.at(mean), over.at(inverse)
    return lambda *i: (x(*i) - mean(*i)) * inverse(*i)


def _layer(x, scale, bias, axis, eps):
    """Return y, mean and invvar."""
    over = _Over(x, reduction(len(x.shape), axis))
    mean, variance = over.statistics()
    inverse = over.inverse(variance, eps)
    return _normalised(over, mean, inverse, scale, bias, axis % len(x.shape)), mean, inverse


@compute(op.layer_norm, COMM_REDUCE)
def layer_norm(x, scale, bias, axis, eps):
    return _layer(x, scale, bias, axis, eps)[0]


@compute(op.layer_norm_train, OPAQUE)
def layer_norm_train(x, scale, bias, axis, eps):
    return _layer(x, scale, bias, axis, eps)


def _layer_gradients(x, scale, dy, mean, inverse, axis, out):
    axis %= len(x.shape)
    over = _Over(x, reduction(len(x.shape), axis))
    xhat, factor, slope = _xhat(over, mean, inverse), over.at(inverse), over.element(dy)

    def g(*i):
        return slope(*i) if scale is None else slope(*i) * cast(scale(i[axis]), over.wide)

    flat = over.at(over.mean(g, "mean_g"))
    along = over.at(over.mean(lambda *i: g(*i) * xhat(*i), "mean_gx"))
    dx = te.compute(
        x.shape,
        lambda *i: cast((g(*i) - flat(*i) - xhat(*i) * along(*i)) * factor(*i), x.dtype),
        name="dx",
    )
    if scale is None:
        return dx
    others = _Over(x, reduction(len(x.shape), axis, exclude=True))
    dscale = others.sum(lambda *i: slope(*i) * xhat(*i), "dscale")
    return dx, _as(dscale, out[1]), _as(others.sum(slope, "dbias"), out[2])


@compute(op.layer_norm_dx, OPAQUE)
def layer_norm_dx(x, scale, dy, axis, eps, out):
    over = _Over(x, reduction(len(x.shape), axis))
    mean, variance = over.statistics()
    return _layer_gradients(x, scale, dy, mean, over.inverse(variance, eps), axis, out)


@compute(op.layer_norm_train_dx, OPAQUE)
def layer_norm_train_dx(x, scale, dy, mean, invvar, axis, out):
    return _layer_gradients(x, scale, dy, mean, invvar, axis, out)


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


def _wide(x):
    """Return the function from an index to an element of x in the dtype of the statistics."""
    dtype = statistics_dtype(str(x.dtype))
    return lambda *i: cast(x(*i), dtype)


def _mean(x, axis, element, name):
    """Return the function from an index of x to the mean of ``element`` along ``axis``."""
    r = reduction(len(x.shape), axis)
    shape = r.shape(x.shape)
    total = reduced(x, r, shape, te.sum, lambda i: element(*i), f"{name}_sum")
    n = tirx.const(float(max(int(x.shape[r.axes[0]]), 1)), str(total.dtype))
    mean = te.compute(shape, lambda *i: total(*i) / n, name=name)
    return lambda *i: mean(*result_index(r, i))


def _inverse(x, axis, eps):
    """Return the function from an index of x to 1 / sqrt(mean(x²) + eps)."""
    r, source = reduction(len(x.shape), axis), _wide(x)
    shape, wide = r.shape(x.shape), statistics_dtype(str(x.dtype))
    total = reduced(x, r, shape, te.sum, lambda i: source(*i) * source(*i), "squares")
    n = tirx.const(float(max(int(x.shape[r.axes[0]]), 1)), wide)
    one, eps = tirx.const(1.0, wide), tirx.const(eps, wide)
    inverse = te.compute(shape, lambda *i: one / te.sqrt(total(*i) / n + eps), name="inverse")
    return lambda *i: inverse(*result_index(r, i))


@compute(op.rms_norm, COMM_REDUCE)
def rms_norm(x, scale, bias, axis, eps):
    axis %= len(x.shape)
    source, inverse = _wide(x), _inverse(x, axis, eps)

    def element(*i):
        value = source(*i) * inverse(*i)
        if scale is not None:
            value = value * _wide(scale)(i[axis])
        if bias is not None:
            value = value + _wide(bias)(i[axis])
        return cast(value, x.dtype)

    return te.compute(x.shape, element, name="y")


@compute(op.rms_norm_dx, OPAQUE)
def rms_norm_dx(x, scale, dy, axis, eps):
    axis %= len(x.shape)
    source, slope, inverse = _wide(x), _wide(dy), _inverse(x, axis, eps)

    def xhat(*i):
        return source(*i) * inverse(*i)

    def g(*i):
        return slope(*i) if scale is None else slope(*i) * _wide(scale)(i[axis])

    along = _mean(x, axis, lambda *i: g(*i) * xhat(*i), "along")
    dx = te.compute(
        x.shape, lambda *i: cast((g(*i) - xhat(*i) * along(*i)) * inverse(*i), x.dtype), name="dx"
    )
    if scale is None:
        return dx
    others = reduction(len(x.shape), axis, exclude=True)
    total = reduced(x, others, scale.shape, te.sum, lambda i: slope(*i) * xhat(*i), "dscale")
    return dx, te.compute(scale.shape, lambda c: cast(total(c), scale.dtype), name="rounded")


def _window_sum(shape, axis, before, after, element, dtype, name):
    """Return, per element, the sum from ``before`` places before it to ``after`` behind."""
    extent, k = shape[axis], te.reduce_axis((0, before + after + 1), name="k")

    def near(*i):
        at = i[axis] + k - before
        inside = tirx.And(at >= 0, at < extent)
        value = element(*i[:axis], at, *i[axis + 1 :])
        return te.sum(tirx.if_then_else(inside, value, tirx.const(0.0, dtype)), axis=k)

    return te.compute(shape, near, name=name)


def _divisor(x, size, axis, bias, alpha, dtype):
    """Return bias + alpha / size * sum(x²)."""

    def square(*i):
        return cast(x(*i), dtype) * cast(x(*i), dtype)

    total = _window_sum(x.shape, axis, size // 2, (size - 1) // 2, square, dtype, "squares")
    bias, factor = tirx.const(bias, dtype), tirx.const(alpha / size, dtype)
    return te.compute(x.shape, lambda *i: bias + factor * total(*i), name="divisor")


@compute(op.lrn, OPAQUE)
def lrn(x, size, axis, bias, alpha, beta):
    dtype, axis = accumulator(str(x.dtype)), axis % len(x.shape)
    divisor = _divisor(x, size, axis, bias, alpha, dtype)
    power = tirx.const(-beta, dtype)

    def element(*i):
        return cast(cast(x(*i), dtype) * te.power(divisor(*i), power), x.dtype)

    return te.compute(x.shape, element, name="lrn")


@compute(op.lrn_dx, OPAQUE)
def lrn_dx(x, dy, size, axis, bias, alpha, beta):
    dtype, axis = accumulator(str(x.dtype)), axis % len(x.shape)
    divisor = _divisor(x, size, axis, bias, alpha, dtype)
    power = tirx.const(-beta, dtype)
    direct = te.compute(
        x.shape, lambda *i: cast(dy(*i), dtype) * te.power(divisor(*i), power), name="direct"
    )
    share = te.compute(
        x.shape, lambda *i: direct(*i) * cast(x(*i), dtype) / divisor(*i), name="share"
    )
    others = _window_sum(x.shape, axis, (size - 1) // 2, size // 2, share, dtype, "others")
    factor = tirx.const(2 * alpha * beta / size, dtype)

    def element(*i):
        return cast(direct(*i) - factor * cast(x(*i), dtype) * others(*i), x.dtype)

    return te.compute(x.shape, element, name="lrn_dx")


def _square_sum(x, r):
    dtype = accumulator(str(x.dtype))

    def square(i):
        return cast(x(*i), dtype) * cast(x(*i), dtype)

    return reduced(x, r, r.shape(x.shape), te.sum, square, "squares")


@compute(op.l2_normalize, OPAQUE)
def l2_normalize(x, eps, axis):
    r, dtype = reduction(len(x.shape), axis), accumulator(str(x.dtype))
    total, least = _square_sum(x, r), tirx.const(eps, dtype)
    one = tirx.const(1.0, dtype)

    def inverse(*i):
        # Not a maximum, which may forget a NaN.
        return one / te.sqrt(tirx.Select(total(*i) < least, least, total(*i)))

    scale = te.compute(total.shape, inverse, name="inverse")
    return te.compute(
        x.shape,
        lambda *i: cast(cast(x(*i), dtype) * scale(*result_index(r, i)), x.dtype),
        name="l2_normalize",
    )


@compute(op.l2norm, COMM_REDUCE)
def l2norm(x):
    total = _square_sum(x, reduction(len(x.shape), ()))
    return te.compute((), lambda: cast(te.sqrt(total()), x.dtype), name="l2norm")
