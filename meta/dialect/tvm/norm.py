"""Batch and layer normalisation in tensor expressions. Statistics are of at least float32.

Variances are taken in a second pass over the data, about the mean: one pass over x and x² would
lose all digits of a small variance around a large mean. Means are taken of the distances from the
first element, so that equal elements have just that mean: what a sum of them rounds away would be
divided by the square root of ``eps``.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import COMM_REDUCE, OPAQUE, compute
from meta.dialect.tvm.reduce import reduced, result_index, source_index
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
