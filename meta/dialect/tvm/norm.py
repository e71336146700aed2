"""Normalisations in TE.

Variances are taken in a second pass over the data, about the mean: one pass over x and x² would
lose all digits of a small variance around a large mean. Means are taken of the distances from the
first element, so that equal elements have just that mean: what a sum of them rounds away would be
divided by the square root of ``eps``. `group_norm` sees channels as (group, channel in the group),
without a copy.
"""

from math import prod
from typing import Any

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, rounded
from meta.dialect.tvm.compute import COMM_REDUCE, OPAQUE, compute
from meta.dialect.tvm.index import ints, number
from meta.dialect.tvm.reduce import Over, accumulator


def _sum_along(element, axis, along):
    return lambda *i: te.sum(element(*i[:axis], along.var, *i[axis:]), axis=along)


class _Over(Over):
    """Statistics over some axes."""

    def sum(self, element, name):
        """Return the sums of ``element(*index)``: of images whose channels come last, a sum along
        one axis after the other. Down a column of a million elements one would be rounded as often.
        """
        ndim, axes = len(self.x.shape), tuple(self.r.axes)
        if ndim < 3 or axes != tuple(range(ndim - 1)) or self.r.kept:
            return super().sum(element, name)
        found, shape = element, list(self.x.shape)
        for axis in reversed(axes):
            along = te.reduce_axis((0, shape.pop(axis)), name=f"r{axis}")
            found = te.compute(
                shape, _sum_along(found, axis, along), name=f"{name}_{axis}" if axis else name
            )
        return found

    def first(self, *i):
        """Return the first of the elements that belong to a statistic, 0 if there is none."""
        if not self.count:
            return self.number(0)
        return cast(self.x(*self.source(i, [0] * len(self.x.shape))), self.wide)

    def statistics(self):
        """Return the mean and the biased variance of x."""
        x, start = self.element(self.x), self.at(self.first)
        distance = self.mean(lambda *i: x(*i) - start(*i), "distance")
        mean = te.compute(self.shape, lambda *i: self.first(*i) + distance(*i), name="mean")
        centre = self.at(mean)

        def squared(*i):
            return (x(*i) - centre(*i)) * (x(*i) - centre(*i))

        return mean, self.mean(squared, "variance")

    def squares(self):
        """Return the sums of squares."""
        x = self.element(self.x)
        return self.sum(lambda *i: x(*i) * x(*i), "squares")

    def inverse(self, variance, eps):
        """Return 1 / sqrt(variance + eps)."""
        one, eps = self.number(1), self.number(eps)
        return te.compute(
            self.shape, lambda *i: one / te.sqrt(cast(variance(*i), self.wide) + eps), name="invvar"
        )

    def normalised(self, mean, inverse):
        """Return the function from an index to (x - mean) * inverse."""
        x, mean, inverse = self.element(self.x), self.at(mean), self.at(inverse)
        return lambda *i: (x(*i) - mean(*i)) * inverse(*i)

    def affine(self, value, scale, bias, channel):
        """Return value(*index) * scale + bias in x's dtype; parameters go with ``channel``."""

        def element(*i):
            result = value(*i)
            if scale is not None:
                result = result * cast(scale(i[channel]), self.wide)
            if bias is not None:
                result = result + cast(bias(i[channel]), self.wide)
            return cast(result, self.x.dtype)

        return te.compute(self.x.shape, element, name="y")

    def gradients(self, xhat, inverse, scale, dy, channel, centred=True):
        """Return dx, and with a scale its gradient and that of the bias.

        ``centred``: whether ``xhat(*index)`` depends on the mean.
        """
        slope, factor = self.element(dy), self.at(inverse)

        def g(*i):
            return slope(*i) if scale is None else slope(*i) * cast(scale(i[channel]), self.wide)

        flat = self.at(self.mean(g, "mean_g")) if centred else None
        along = self.at(self.mean(lambda *i: g(*i) * xhat(*i), "mean_gx"))

        def element(*i):
            value = g(*i) if flat is None else g(*i) - flat(*i)
            return cast((value - xhat(*i) * along(*i)) * factor(*i), self.x.dtype)

        dx = te.compute(self.x.shape, element, name="dx")
        if scale is None:
            return dx
        others = Over.of(self.x, channel, exclude=True)
        dscale = others.sum(lambda *i: slope(*i) * xhat(*i), "dscale")
        return dx, rounded(dscale, scale.dtype), rounded(others.sum(slope, "dbias"), scale.dtype)


@compute(op.batch_norm_train, OPAQUE)
def batch_norm_train(x, running_mean, running_var, w, b, momentum, eps, axis):
    over = _Over.of(x, axis, exclude=True)
    mean, variance = over.statistics()
    y = over.affine(over.normalised(mean, over.inverse(variance, eps)), w, b, axis)
    unbiased = over.count / max(over.count - 1, 1)

    def blended(running, batch, factor):
        keep, take = over.number(1 - momentum), over.number(momentum * factor)
        return te.compute(
            running.shape,
            lambda c: cast(cast(running(c), over.wide) * keep + batch(c) * take, running.dtype),
            name="running",
        )

    return y, blended(running_mean, mean, 1.0), blended(running_var, variance, unbiased)


@compute(op.batch_norm_infer, COMM_REDUCE)
def batch_norm_infer(x, running_mean, running_var, w, b, eps, axis):
    over = _Over.of(x, axis, exclude=True)
    mean = rounded(running_mean, over.wide, "mean")
    return over.affine(over.normalised(mean, over.inverse(running_var, eps)), w, b, axis)


@compute(op.batch_norm_train_dxwb, OPAQUE)
def batch_norm_train_dxwb(dy, x, w, eps, axis, out):
    over = _Over.of(x, axis, exclude=True)
    mean, variance = over.statistics()
    inverse = over.inverse(variance, eps)
    xhat, slope = over.normalised(mean, inverse), over.element(dy)
    db = over.sum(slope, "db")
    dw = over.sum(lambda *i: slope(*i) * xhat(*i), "dw")
    n, factor = over.number(max(over.count, 1)), over.at(inverse)

    def gradient(*i):
        c = i[axis]
        value = (slope(*i) - db(c) / n - xhat(*i) * (dw(c) / n)) * factor(*i)
        return cast(value if w is None else value * cast(w(c), over.wide), x.dtype)

    dx = te.compute(x.shape, gradient, name="dx")
    return dx, rounded(dw, out[1].dtype), rounded(db, out[2].dtype)


@compute(op.layer_norm_train, OPAQUE)
def layer_norm_train(x, scale, bias, axis, eps):
    over = _Over.of(x, axis)
    mean, variance = over.statistics()
    inverse = over.inverse(variance, eps)
    xhat = over.normalised(mean, inverse)
    return over.affine(xhat, scale, bias, axis % len(x.shape)), mean, inverse


@compute(op.layer_norm, COMM_REDUCE, static=False)
def layer_norm(x, scale, bias, axis, eps):
    number(x.shape[axis])
    return layer_norm_train(x, scale, bias, axis, eps)[0]


@compute(op.layer_norm_train_dx, OPAQUE)
def layer_norm_train_dx(x, scale, dy, mean, invvar, axis):
    over, channel = _Over.of(x, axis), axis % len(x.shape)
    return over.gradients(over.normalised(mean, invvar), invvar, scale, dy, channel)


@compute(op.layer_norm_dx, OPAQUE)
def layer_norm_dx(x, scale, dy, axis, eps):
    over = _Over.of(x, axis)
    mean, variance = over.statistics()
    return layer_norm_train_dx(x, scale, dy, mean, over.inverse(variance, eps), axis)


class _Groups(_Over):
    """Statistics of one example's groups of channels."""

    def __init__(self, x, groups):
        self.x, self.wide = x, accumulator(str(x.dtype))
        extents = ints(x.shape)
        self.size = max(extents[1] // max(groups, 1), 1)
        self.shape = (x.shape[0], groups)
        self.count = 0 if 0 in extents else self.size * prod(extents[2:])

    def at(self, statistic):
        return lambda *i: statistic(i[0], i[1] // self.size)

    def source(self, i, over):
        return i[0], i[1] * self.size + over[0], *over[1 : len(self.x.shape) - 1]

    def sum(self, element, name):
        over = [te.reduce_axis((0, self.size), name="channel")]
        over += [te.reduce_axis((0, e), name="at") for e in self.x.shape[2:]]
        return te.compute(
            self.shape, lambda *i: te.sum(element(*self.source(i, over)), axis=over), name=name
        )

    def own(self, eps) -> tuple[Any, Any]:
        """Return the function from an index to normalised x, and what it was multiplied by."""
        mean, variance = self.statistics()
        inverse = self.inverse(variance, eps)
        return self.normalised(mean, inverse), inverse


@compute(op.group_norm, OPAQUE)
def group_norm(x, num_groups, scale, bias, eps):
    groups = _Groups(x, num_groups)
    return groups.affine(groups.own(eps)[0], scale, bias, 1)


@compute(op.instance_norm, OPAQUE)
def instance_norm(x, scale, bias, eps):
    return group_norm(x, int(x.shape[1]), scale, bias, eps)


@compute(op.group_norm_dx, OPAQUE)
def group_norm_dx(x, num_groups, scale, dy, eps):
    groups = _Groups(x, num_groups)
    return groups.gradients(*groups.own(eps), scale, dy, 1)


def _by_root(over, eps):
    """Return the function from an index to x / sqrt(mean(x²) + eps), and that factor."""
    x, n, one, eps = over.element(over.x), *map(over.number, (max(over.count, 1), 1, eps))
    total = over.squares()
    inverse = te.compute(over.shape, lambda *i: one / te.sqrt(total(*i) / n + eps), name="inverse")
    factor = over.at(inverse)
    return lambda *i: x(*i) * factor(*i), inverse


@compute(op.rms_norm, COMM_REDUCE, static=False)
def rms_norm(x, scale, bias, axis, eps):
    number(x.shape[axis])
    over = _Over.of(x, axis)
    return over.affine(_by_root(over, eps)[0], scale, bias, axis % len(x.shape))


@compute(op.rms_norm_dx, OPAQUE)
def rms_norm_dx(x, scale, dy, axis, eps):
    over, channel = _Over.of(x, axis), axis % len(x.shape)
    found = over.gradients(*_by_root(over, eps), scale, dy, channel, centred=False)
    return found if scale is None else found[:2]


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


@compute(op.l2_normalize, OPAQUE)
def l2_normalize(x, eps, axis):
    over = _Over.of(x, axis)
    total, least, one = over.squares(), over.number(eps), over.number(1)

    def inverse(*i):
        # Not a maximum, which may forget a NaN.
        return one / te.sqrt(tirx.Select(total(*i) < least, least, total(*i)))

    source, scale = over.element(x), over.at(te.compute(over.shape, inverse, name="inverse"))
    return te.compute(
        x.shape, lambda *i: cast(source(*i) * scale(*i), x.dtype), name="l2_normalize"
    )


@compute(op.l2norm, COMM_REDUCE)
def l2norm(x):
    total = _Over.of(x, None).squares()
    return te.compute((), lambda: cast(te.sqrt(total()), x.dtype), name="l2norm")
