"""Reductions along axes in TE."""

import math

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm import ordered
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.compute import BROADCAST, COMM_REDUCE, OPAQUE, compute
from meta.op.core.reduction import reduction
from meta.op.reduce import per_degree

product = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")


def accumulator(dtype):
    """Return the dtype in which values of a dtype are added up."""
    if dtype in ("float16", "bfloat16"):
        return "float32"
    return dtype if is_float(dtype) else "int64"


def reduced(x, r, shape, combine, element, name):
    """Return ``combine`` over the axes of `Reduction` ``r`` of ``element(index)``.

    ``element`` gets an index of ``x``. Where no axis is reduced, the element is the result.
    """
    over = [te.reduce_axis((0, x.shape[a]), name=f"r{a}") for a in r.axes]

    def body(*i):
        value = element(source_index(r, len(x.shape), i, [axis.var for axis in over]))
        return combine(value, axis=over) if over else value

    return te.compute(shape, body, name=name)


def source_index(r, ndim, i, over):
    """Return the argument's index for index ``i`` of the result and ``over`` the reduced axes."""
    stays, steps, result = iter(i), iter(over), []
    for a in range(ndim):
        if a in r.kept:
            next(stays)
        result.append(next(steps) if a in r.axes else next(stays))
    return result


def result_index(r, i):
    """Return the index of a reduction's result for index ``i`` of its argument."""
    return [0 if a in r.axes else v for a, v in enumerate(i) if a not in r.axes or a in r.kept]


@compute(op.sum, COMM_REDUCE)
def sum(x, axis, keepdims, exclude, out):
    r = reduction(len(x.shape), axis, keepdims, exclude)
    dtype = accumulator(str(x.dtype))
    total = reduced(x, r, out.shape, te.sum, lambda i: x(*i).astype(dtype), "sum")
    return _as(total, out.dtype)


def _as(x, dtype):
    """Return ``x`` in a dtype."""
    if str(x.dtype) == dtype:
        return x
    return te.compute(x.shape, lambda *i: x(*i).astype(dtype), name="cast")


@compute(op.sum_dx, BROADCAST, static=True)
def sum_dx(dy, axis, keepdims, exclude, out):
    r = reduction(out.ndim, axis, keepdims, exclude)
    return te.compute(
        out.shape, lambda *i: dy(*result_index(r, i)).astype(out.dtype), name="sum_dx"
    )


@compute(op.mean, COMM_REDUCE)
def mean(x, axis, keepdims, exclude, out):
    r = reduction(len(x.shape), axis, keepdims, exclude)
    dtype = accumulator(str(x.dtype))
    count = r.count([int(d) for d in x.shape])
    if count == 0:
        return te.compute(out.shape, lambda *i: tirx.const(float("nan"), out.dtype), name="mean")
    total = reduced(x, r, out.shape, te.sum, lambda i: x(*i).astype(dtype), "sum")
    n = tirx.const(float(count), dtype)
    return te.compute(out.shape, lambda *i: (total(*i) / n).astype(out.dtype), name="mean")


@compute(op.mean_dx, BROADCAST, static=True)
def mean_dx(dy, axis, keepdims, exclude, out):
    r = reduction(out.ndim, axis, keepdims, exclude)
    dtype = accumulator(out.dtype)
    n = tirx.const(float(max(r.count(out.static_shape), 1)), dtype)
    return te.compute(
        out.shape,
        lambda *i: (dy(*result_index(r, i)).astype(dtype) / n).astype(out.dtype),
        name="mean_dx",
    )


def _best_key(x, r, shape, largest):
    combine = te.max if largest else te.min
    return reduced(
        x, r, shape, combine, lambda i: ordered.key(x(*i), str(x.dtype), largest), "best"
    )


def _extremum(x, axis, keepdims, exclude, out, largest):
    r = reduction(len(x.shape), axis, keepdims, exclude)
    if not r.axes:
        return te.compute(out.shape, lambda *i: x(*i), name="copy")
    best = _best_key(x, r, out.shape, largest)
    if str(best.dtype) == out.dtype:
        return best
    return te.compute(out.shape, lambda *i: ordered.value(best(*i), out.dtype), name="value")


@compute(op.max, COMM_REDUCE)
def max_(x, axis, keepdims, exclude, out):
    return _extremum(x, axis, keepdims, exclude, out, True)


@compute(op.min, COMM_REDUCE)
def min_(x, axis, keepdims, exclude, out):
    return _extremum(x, axis, keepdims, exclude, out, False)


def _first_index(x, axis, keepdims, exclude, out, largest):
    """Return the least index at which the key is the best one: two plain reductions, no pairs.

    One where a key and an index have room in one integer.
    """
    ndim = len(x.shape)
    r = reduction(ndim, axis, keepdims, exclude)
    if not r.axes:
        return te.compute(out.shape, lambda *i: tirx.const(0, "int64"), name="index")
    count = math.prod(int(x.shape[a]) for a in r.axes)
    if str(x.dtype) in ordered.OF_16_BITS and count <= 1 << 16:
        return _index_with_key(x, r, out, largest)
    best = _best_key(x, r, out.shape, largest)
    # Counted in int32 where that suffices, which GPUs compare in one instruction.
    dtype = "int32" if count < 2**31 else "int64"
    none = tirx.max_value(dtype)

    def position(i):
        found = ordered.key(x(*i), str(x.dtype), largest) == best(*result_index(r, i))
        return tirx.Select(found, _flat(x, r, i, dtype), none)

    return _as(reduced(x, r, out.shape, te.min, position, "index"), "int64")


def _flat(x, r, i, dtype):
    """Return the number of an element among those that are reduced with it."""
    flat = tirx.const(0, dtype)
    for a in r.axes:
        flat = flat * tirx.const(int(x.shape[a]), dtype) + i[a].astype(dtype)
    return flat


def _index_with_key(x, r, out, largest):
    """Return the least index of the best key by one reduction: of 16 bits each, the key first."""
    low = tirx.const(0xFFFF, "int32")

    def turned(i):  # of equal keys the first is the best
        return low - i if largest else i

    def packed(i):
        key = ordered.high_key(x(*i), str(x.dtype), largest)
        return key + turned(_flat(x, r, i, "int32"))

    best = reduced(x, r, out.shape, te.max if largest else te.min, packed, "best")

    def index(*i):
        return turned(tirx.bitwise_and(best(*i), low)).astype("int64")

    return te.compute(out.shape, index, name="index")


@compute(op.argmax, COMM_REDUCE)
def argmax(x, axis, keepdims, exclude, out):
    return _first_index(x, axis, keepdims, exclude, out, True)


@compute(op.argmin, COMM_REDUCE)
def argmin(x, axis, keepdims, exclude, out):
    return _first_index(x, axis, keepdims, exclude, out, False)


@compute(op.prod, COMM_REDUCE)
def prod(x, axis, keepdims, exclude, out):
    r = reduction(len(x.shape), axis, keepdims, exclude)
    dtype = accumulator(str(x.dtype))
    total = reduced(x, r, out.shape, product, lambda i: x(*i).astype(dtype), "prod")
    return _as(total, out.dtype)


@compute(op.prod_dx, OPAQUE)
def prod_dx(x, dy, axis, keepdims, exclude, out):
    """Count zeros: with none, divide; with one, only its own gradient is not zero."""
    r = reduction(len(x.shape), axis, keepdims, exclude)
    dtype = accumulator(str(x.dtype))
    zero, one = tirx.const(0, dtype), tirx.const(1, dtype)

    def nonzero(i):
        return tirx.Select(x(*i) == 0, one, x(*i).astype(dtype))

    rest = reduced(x, r, dy.shape, product, nonzero, "rest")
    zeros = reduced(x, r, dy.shape, te.sum, lambda i: (x(*i) == 0).astype("int64"), "zeros")

    def gradient(*i):
        j = result_index(r, i)
        alone = tirx.Select(x(*i) == 0, rest(*j), zero)
        others = tirx.Select(
            zeros(*j) == 0, rest(*j) / nonzero(i), tirx.Select(zeros(*j) == 1, alone, zero)
        )
        return (dy(*j).astype(dtype) * others).astype(out.dtype)

    return te.compute(out.shape, gradient, name="prod_dx")


def truth(value, dtype):
    """Return whether a value is not 0, as 0 or 1 in uint8. TVM's own != is false for NaN."""
    if dtype == "bool":
        return value.astype("uint8")
    zero, one = tirx.const(0, "uint8"), tirx.const(1, "uint8")
    return tirx.Select(value == tirx.const(0, dtype), zero, one)


def _test(x, axis, keepdims, exclude, out, combine):
    r = reduction(len(x.shape), axis, keepdims, exclude)
    flag = reduced(x, r, out.shape, combine, lambda i: truth(x(*i), str(x.dtype)), "flag")
    return te.compute(out.shape, lambda *i: flag(*i) != 0, name="bool")


@compute(op.all, COMM_REDUCE)
def all(x, axis, keepdims, exclude, out):
    return _test(x, axis, keepdims, exclude, out, te.min)


@compute(op.any, COMM_REDUCE)
def any(x, axis, keepdims, exclude, out):
    return _test(x, axis, keepdims, exclude, out, te.max)


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
