"""Statistics of elements in tensor expressions. Half precision is accumulated in float32."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import COMM_REDUCE, OPAQUE, compute
from meta.dialect.tvm.reduce import accumulator, max_, min_, reduced, result_index
from meta.op.core.reduction import reduction
from meta.op.moments import per_degree


def _variance(x, axis, keepdims, exclude, correction, out, finish):
    """Return ``finish`` of the variance, which is taken in a second pass, about the mean."""
    r = reduction(len(x.shape), axis, keepdims, exclude)
    dtype = accumulator(str(x.dtype))
    count = r.count([int(d) for d in x.shape])
    total = reduced(x, r, out.shape, te.sum, lambda i: cast(x(*i), dtype), "sum")
    n = tirx.const(float(max(count, 1)), dtype)
    mean = te.compute(out.shape, lambda *i: total(*i) / n, name="mean")

    def squared(i):
        centred = cast(x(*i), dtype) - mean(*result_index(r, i))
        return centred * centred

    squares = reduced(x, r, out.shape, te.sum, squared, "squares")
    # No elements have no mean: their variance is NaN, whatever the correction.
    share = tirx.const(per_degree(count, correction) if count else float("nan"), dtype)
    return te.compute(out.shape, lambda *i: cast(finish(squares(*i) * share), out.dtype), name="y")


@compute(op.var, OPAQUE)
def var(x, axis, keepdims, exclude, correction, out):
    return _variance(x, axis, keepdims, exclude, correction, out, lambda v: v)


@compute(op.std, OPAQUE)
def std(x, axis, keepdims, exclude, correction, out):
    return _variance(x, axis, keepdims, exclude, correction, out, te.sqrt)


@compute(op.logsumexp, COMM_REDUCE)
def logsumexp(x, axis, keepdims, exclude, out):
    r = reduction(len(x.shape), axis, keepdims, exclude)
    dtype = accumulator(str(x.dtype))
    largest = reduced(x, r, out.shape, te.max, lambda i: cast(x(*i), dtype), "largest")
    limit = tirx.max_value(dtype)
    # An infinite maximum is not subtracted, as inf - inf is NaN; no elements have a huge one.
    finite = te.compute(
        out.shape,
        lambda *i: tirx.Select(te.abs(largest(*i)) < limit, largest(*i), tirx.const(0.0, dtype)),
        name="finite",
    )
    total = reduced(
        x,
        r,
        out.shape,
        te.sum,
        lambda i: te.exp(cast(x(*i), dtype) - finite(*result_index(r, i))),
        "total",
    )
    return te.compute(
        out.shape, lambda *i: cast(te.log(total(*i)) + finite(*i), out.dtype), name="y"
    )


compute(op.amax, COMM_REDUCE)(max_)
compute(op.amin, COMM_REDUCE)(min_)
