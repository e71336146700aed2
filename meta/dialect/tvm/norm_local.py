"""Local response normalisation and lengths in tensor expressions, in at least float32."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import COMM_REDUCE, OPAQUE, compute
from meta.dialect.tvm.reduce import accumulator, reduced, result_index
from meta.op.core.reduction import reduction


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
