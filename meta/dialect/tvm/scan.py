"""Scans as hand-built loops: rows in parallel, each from one end to the other.

Tensor expressions have no recurrence, so the loops are written out. Half precision is carried in
float32, and rounded in a stage of its own."""

import operator
from math import prod

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.tvm.broadcast import cast, computing, rounded
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.dialect.tvm.index import hand_built, unflat_index
from meta.op.core.check import normalize_axis


def _scan(inputs, axis, out, first, step, reverse=False):
    """Return y with y[0] = first(read) and y[i] = step(y[i - 1], read).

    ``read(n, before)`` is the element of the n-th input at i - before. ``reverse`` counts i from
    the end.
    """
    shape, at = out.static_shape, normalize_axis(axis, out.ndim)
    wide = computing(out.dtype)
    sources = [_converted(x, out.dtype, wide) for x in inputs]
    length, others = shape[at], [*shape[:at], *shape[at + 1 :]]

    def loops(*buffers):
        *given, result = buffers
        with T.parallel(0, prod(others)) as row:
            outer = unflat_index(row, others)

            def place(i):
                k = length - 1 - i if reverse else i
                return (*outer[:at], k, *outer[at:])

            def reader(i):
                return lambda n, before=0: given[n][place(i - before)]

            result[place(tirx.const(0, "int32"))] = first(reader(tirx.const(0, "int32")))
            with T.serial(0, length - 1) as i:
                result[place(i + 1)] = step(result[place(i)], reader(i + 1))

    (scanned,) = hand_built([shape], sources, loops, [wide], "scan")
    return rounded(scanned, out.dtype)


def _converted(x, dtype, wide):
    """Return ``x`` rounded to ``dtype``, whose values are what is scanned, in ``wide``."""
    return te.compute(x.shape, lambda *i: cast(cast(x(*i), dtype), wide), name="wide")


def _accumulate(combine, identity):
    def kernel(x, axis, exclusive, out):
        if exclusive:
            one = tirx.const(identity, computing(out.dtype))
            return _scan([x], axis, out, lambda read: one, lambda y, read: combine(y, read(0, 1)))
        return _scan([x], axis, out, lambda read: read(0), lambda y, read: combine(y, read(0)))

    return kernel


compute(op.cumsum, OPAQUE)(_accumulate(operator.add, 0))
compute(op.cumprod, OPAQUE)(_accumulate(operator.mul, 1))


@compute(op.linear_scan, OPAQUE)
def linear_scan(a, b, axis, reverse, out):
    def step(y, read):
        return read(0) * y + read(1)

    return _scan([a, b], axis, out, lambda read: read(1), step, reverse)
