"""Reductions along axes in TE."""

import math

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm import order_keys
from meta.dialect.tvm.broadcast import cast, converted
from meta.dialect.tvm.compute import BROADCAST, COMM_REDUCE, OPAQUE, compute
from meta.dialect.tvm.index import zeros
from meta.op.core.reduction import reduction
from meta.op.reduce import per_degree

product = te.comm_reducer(lambda a, b: a * b, lambda dtype: tirx.const(1, dtype), name="product")


def accumulator(dtype):
    """Return the dtype in which values of a dtype are added up."""
    if dtype in ("float16", "bfloat16"):
        return "float32"
    return dtype if is_float(dtype) else "int64"


class Over:
    """An array and the axes over which it is reduced, a `Reduction`.

    shape: of the results. count: elements of each. wide: the dtype in which they are added up.
    """

    def __init__(self, x, r):
        self.x, self.r, self.wide = x, r, accumulator(str(x.dtype))
        self.shape = r.shape(x.shape)
        self.count = r.count([int(d) if isinstance(d, tirx.IntImm) else d for d in x.shape])

    @classmethod
    def of(cls, x, axis, keepdims=False, exclude=False):
        """Return the reduction that the arguments of an operator name."""
        return cls(x, reduction(len(x.shape), axis, keepdims, exclude))

    def number(self, value):
        """Return a constant."""
        return tirx.const(float(value), self.wide)

    def element(self, x):
        """Return the function from an index to an element in the dtype of sums."""
        return lambda *i: cast(x(*i), self.wide)

    def at(self, statistic):
        """Return the function from an index of x to the result that belongs to it."""
        return lambda *i: statistic(*result_index(self.r, i))

    def source(self, i, over):
        """Return the index of x for an index of the results and one of the reduced axes."""
        r, stays, steps, result = self.r, iter(i), iter(over), []
        for a in range(len(self.x.shape)):
            if a in r.kept:
                next(stays)
            result.append(next(steps) if a in r.axes else next(stays))
        return result

    def reduce(self, combine, element, name):
        """Return ``combine`` of ``element(*index)``; where no axis is reduced, the element."""
        over = [te.reduce_axis((0, self.x.shape[a]), name=f"r{a}") for a in self.r.axes]

        def body(*i):
            value = element(*self.source(i, [axis.var for axis in over]))
            return combine(value, axis=over) if over else value

        return te.compute(self.shape, body, name=name)

    def sum(self, element, name):
        """Return the sums of ``element(*index)``."""
        return self.reduce(te.sum, element, name)

    def mean(self, element, name):
        """Return the means of ``element(*index)``."""
        total = self.sum(element, f"{name}_sum")
        if isinstance(self.count, int):
            n = self.number(max(self.count, 1))
        else:
            n = self.count.astype(self.wide)  # of a symbolic extent, which is not 0
        return te.compute(self.shape, lambda *i: total(*i) / n, name=name)


def result_index(r, i):
    """Return the index of a reduction's result for index ``i`` of its argument."""
    return [0 if a in r.axes else v for a, v in enumerate(i) if a not in r.axes or a in r.kept]


def _total(combine, name):
    def kernel(x, axis, keepdims, out):
        over = Over.of(x, axis, keepdims)
        return converted(over.reduce(combine, over.element(x), name), out.dtype)

    return kernel


@compute(op.sum_dx, BROADCAST, static=True)
def sum_dx(dy, axis, keepdims, out):
    r = reduction(out.ndim, axis, keepdims)
    return te.compute(
        out.shape, lambda *i: dy(*result_index(r, i)).astype(out.dtype), name="sum_dx"
    )


@compute(op.mean, COMM_REDUCE, static=False)
def mean(x, axis, keepdims, out):
    over = Over.of(x, axis, keepdims)
    if over.count == 0:
        return te.compute(out.shape, lambda *i: tirx.const(math.nan, out.dtype), name="mean")
    total, n = over.sum(over.element(x), "sum"), over.number(over.count)
    return te.compute(out.shape, lambda *i: (total(*i) / n).astype(out.dtype), name="mean")


@compute(op.mean_dx, BROADCAST, static=True)
def mean_dx(dy, axis, keepdims, out):
    r = reduction(out.ndim, axis, keepdims)
    dtype = accumulator(out.dtype)
    n = tirx.const(float(max(r.count(out.static_shape), 1)), dtype)
    return te.compute(
        out.shape,
        lambda *i: (dy(*result_index(r, i)).astype(dtype) / n).astype(out.dtype),
        name="mean_dx",
    )


def _best_key(over, key, largest):
    return over.reduce(te.max if largest else te.min, key, "best")


def _extremum(largest):
    def kernel(x, axis, keepdims, out):
        over = Over.of(x, axis, keepdims)
        if not over.r.axes:
            return x
        best = _best_key(over, lambda *i: order_keys.key(x(*i), str(x.dtype), largest), largest)
        if str(best.dtype) == out.dtype:
            return best
        return te.compute(out.shape, lambda *i: order_keys.value(best(*i), out.dtype), name="value")

    return kernel


def _first_index(largest):
    """Return the kernel of the least index at which the key is the best one: two plain reductions,
    no pairs; one where a key and an index have room in one integer.
    """

    def kernel(x, axis, keepdims, out):
        over = Over.of(x, axis, keepdims)
        if not over.r.axes:
            return zeros(out.shape, "int64")
        count = over.count if isinstance(over.count, int) else 1 << 62  # of symbolic extents
        if str(x.dtype) in order_keys.OF_16_BITS and count <= 1 << 16:
            return _index_with_key(over, out, largest)

        def key(*i):
            return order_keys.key(x(*i), str(x.dtype), largest)

        best = over.at(_best_key(over, key, largest))
        # Counted in int32 where that suffices, which GPUs compare in one instruction.
        dtype = "int32" if count < 2**31 else "int64"

        def position(*i):
            return tirx.Select(key(*i) == best(*i), _flat(over, i, dtype), tirx.max_value(dtype))

        return converted(over.reduce(te.min, position, "index"), "int64")

    return kernel


def _flat(over, i, dtype):
    """Return the number of an element among those that are reduced with it."""
    flat = tirx.const(0, dtype)
    for a in over.r.axes:
        flat = flat * over.x.shape[a].astype(dtype) + i[a].astype(dtype)
    return flat


def _index_with_key(over, out, largest):
    """Return the least index of the best key by one reduction: of 16 bits each, the key first."""
    low = tirx.const(0xFFFF, "int32")

    def turned(i):  # of equal keys the first is the best
        return low - i if largest else i

    def packed(*i):
        key = order_keys.high_key(over.x(*i), str(over.x.dtype), largest)
        return key + turned(_flat(over, i, "int32"))

    best = _best_key(over, packed, largest)

    def index(*i):
        return turned(tirx.bitwise_and(best(*i), low)).astype("int64")

    return te.compute(out.shape, index, name="index")


@compute(op.prod_dx, OPAQUE)
def prod_dx(x, dy, axis, keepdims, out):
    """Count zeros: with none, divide; with one, only its own gradient is not zero."""
    over = Over.of(x, axis, keepdims)
    zero, one = tirx.const(0, over.wide), tirx.const(1, over.wide)

    def nonzero(*i):
        return tirx.Select(x(*i) == 0, one, x(*i).astype(over.wide))

    rest = over.at(over.reduce(product, nonzero, "rest"))
    zeros = over.at(over.sum(lambda *i: (x(*i) == 0).astype("int64"), "zeros"))

    def gradient(*i):
        alone = tirx.Select(x(*i) == 0, rest(*i), zero)
        others = tirx.Select(
            zeros(*i) == 0, rest(*i) / nonzero(*i), tirx.Select(zeros(*i) == 1, alone, zero)
        )
        return (over.at(dy)(*i).astype(over.wide) * others).astype(out.dtype)

    return te.compute(out.shape, gradient, name="prod_dx")


def truth(value, dtype):
    """Return whether a value is not 0, as 0 or 1 in uint8. TVM's own != is false for NaN."""
    if dtype == "bool":
        return value.astype("uint8")
    zero, one = tirx.const(0, "uint8"), tirx.const(1, "uint8")
    return tirx.Select(value == tirx.const(0, dtype), zero, one)


def _test(combine):
    def kernel(x, axis, keepdims, out):
        over = Over.of(x, axis, keepdims)
        flag = over.reduce(combine, lambda *i: truth(x(*i), str(x.dtype)), "flag")
        return te.compute(out.shape, lambda *i: flag(*i) != 0, name="bool")

    return kernel


for _base, _kernel in {
    op.sum: _total(te.sum, "sum"),
    op.prod: _total(product, "prod"),
    op.max: _extremum(True),
    op.min: _extremum(False),
    op.argmax: _first_index(True),
    op.argmin: _first_index(False),
    op.all: _test(te.min),
    op.any: _test(te.max),
}.items():
    compute(_base, COMM_REDUCE, static=False)(_kernel)


def _variance(finish):
    """Return the kernel of ``finish`` of the variance, taken in a second pass, about the mean."""

    def kernel(x, axis, keepdims, correction, out):
        over = Over.of(x, axis, keepdims)
        source, count = over.element(x), over.count
        mean = over.at(over.mean(source, "mean"))

        def squared(*i):
            return (source(*i) - mean(*i)) * (source(*i) - mean(*i))

        squares = over.sum(squared, "squares")
        # No elements have no mean: their variance is NaN, whatever the correction.
        share = over.number(per_degree(count, correction) if count else math.nan)
        return te.compute(
            out.shape, lambda *i: cast(finish(squares(*i) * share), out.dtype), name="y"
        )

    return kernel


compute(op.var, OPAQUE)(_variance(lambda v: v))
compute(op.std, OPAQUE)(_variance(te.sqrt))


@compute(op.logsumexp, COMM_REDUCE)
def logsumexp(x, axis, keepdims, out):
    over = Over.of(x, axis, keepdims)
    source = over.element(x)
    largest, limit = over.reduce(te.max, source, "largest"), tirx.max_value(over.wide)
    # An infinite maximum is not subtracted, as inf - inf is NaN; no elements have a huge one.
    finite = te.compute(
        out.shape,
        lambda *i: tirx.Select(te.abs(largest(*i)) < limit, largest(*i), over.number(0)),
        name="finite",
    )
    shift = over.at(finite)
    total = over.sum(lambda *i: te.exp(source(*i) - shift(*i)), "total")
    return te.compute(
        out.shape, lambda *i: cast(te.log(total(*i)) + finite(*i), out.dtype), name="y"
    )
