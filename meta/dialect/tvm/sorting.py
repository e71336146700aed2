"""Sorting in tensor expressions: the rank of an element is the number of those before it.

Counting takes the square of the extent, in parallel and without branches, and is stable; it is the
same on every device. Long axes are declined; libraries sort them. Order is that of the integer keys
of `order_keys.py`, in which a NaN is the largest."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm import order_keys
from meta.dialect.tvm.broadcast import rounded
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.dialect.tvm.index import zeros
from meta.op.core.check import normalize_axis

LONGEST = 4096
"""The longest axis to sort by counting."""


def _too_long(call):
    x = call.args[0]
    extent = x.shape[normalize_axis(call.args.axis, x.ndim)]
    if isinstance(extent, int) and extent > LONGEST:
        return f"counting ranks takes the square of the extent {extent}; at most {LONGEST}"
    return None


def ranks(keys, at, descending, counts=None):
    """Return how many elements of an axis come before each, stably; of those that count, if any.

    ``counts(*index)``: whether an element does; None: all do.
    """
    other = te.reduce_axis((0, keys.shape[at]), "other")

    def before(*i):
        there = (*i[:at], other.var, *i[at + 1 :])
        own, its = keys(*i), keys(*there)
        less = its > own if descending else its < own
        found = tirx.Or(less, tirx.And(its == own, other.var < i[at]))
        found = found if counts is None else tirx.And(counts(*there), found)
        return te.sum(found.astype("int32"), axis=other)

    return te.compute(keys.shape, before, name="ranks")


def _order(x, at, descending, count):
    """Return the indices (int32) of the first ``count`` elements of the sorted axis."""
    shape, dtype = list(x.shape), str(x.dtype)
    taken = [*shape[:at], count, *shape[at + 1 :]]
    keys = te.compute(shape, lambda *i: order_keys.key(x(*i), dtype, True), name="keys")
    rank = ranks(keys, at, descending)
    source = te.reduce_axis((0, shape[at]), "source")

    def index(*i):
        here = rank(*i[:at], source.var, *i[at + 1 :]) == i[at]
        chosen = tirx.Select(here, source.var.astype("int32"), tirx.const(0, "int32"))
        return te.sum(chosen, axis=source)

    return te.compute(taken, index, name="order")


def _values(x, at, order):
    def element(*i):
        # In range by construction; the clamp holds for whatever a schedule may read early.
        last = tirx.const(int(x.shape[at]) - 1, "int32")
        place = tirx.max(tirx.min(order(*i), last), 0)
        return x(*i[:at], place, *i[at + 1 :])

    return te.compute(order.shape, element, name="values")


@compute(op.argsort, OPAQUE, when=_too_long)
def argsort(x, axis, descending, dtype):
    at = normalize_axis(axis, len(x.shape))
    return rounded(_order(x, at, descending, x.shape[at]), dtype)


@compute(op.sort, OPAQUE, when=_too_long)
def sort(x, axis, descending):
    at = normalize_axis(axis, len(x.shape))
    return _values(x, at, _order(x, at, descending, x.shape[at]))


@compute(op.topk, OPAQUE, when=_too_long)
def topk(x, k, axis, largest, ret_type, dtype):
    at = normalize_axis(axis, len(x.shape))
    order = _order(x, at, largest, k)
    results = {"values": lambda: _values(x, at, order), "indices": lambda: rounded(order, dtype)}
    return [make() for name, make in results.items() if ret_type in ("both", name)]


@compute(op.searchsorted, OPAQUE)
def searchsorted(x1, x2, right, out):
    extent, dtype = x1.shape[-1], str(x2.dtype)
    if int(extent) == 0:
        return zeros(out.shape, out.dtype)
    along = te.reduce_axis((0, extent), "along")
    lead = len(x1.shape) - 1
    # A NaN, the largest key, is behind all numbers on either side.
    nan = order_keys.nan_key(dtype, True) if "float" in dtype else None

    def before(*i):
        own = order_keys.key(x2(*i), dtype, True)
        its = order_keys.key(x1(*i[:lead], along.var), dtype, True)
        passed = its <= own if right else its < own
        if nan is not None:
            passed = tirx.Or(passed, own == nan)
        return te.sum(passed.astype("int64"), axis=along)

    return rounded(te.compute(out.shape, before, name="found"), out.dtype)
