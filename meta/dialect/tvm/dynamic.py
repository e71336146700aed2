"""Operators whose result's shape depends on data in TE.

Elements are counted in parts; the parts know from the counts where to begin, and write in parallel.
"""

from math import prod

from tvm import te, tirx
from tvm.script.ir_builder import tirx as T

from meta import op
from meta.dialect.tvm.broadcast import cast, computing, not_equal
from meta.dialect.tvm.compute import OPAQUE, compute
from meta.dialect.tvm.index import hand_built, unflat_index

SHARE = 1024
"""How many elements one loop looks at."""


LARGEST = 2**31 - SHARE
"""Where int32, the index of loops that are built by hand, ends."""


def _too_large(call):
    size = prod(call.args.condition.static_shape)
    return f"{size} elements; at most {LARGEST}" if size > LARGEST else None


def _begins(counts):
    """Return where every part begins, and behind them the count of all; int64."""
    parts = int(counts.shape[0])

    def loops(count, begin):
        with T.serial(0, parts + 1) as part, T.If(part == 0):
            with T.Then():
                begin[part] = tirx.const(0, "int64")
            with T.Else():
                begin[part] = begin[part - 1] + count[part - 1].astype("int64")

    return hand_built([(parts + 1,)], [counts], loops, ["int64"], "begins")[0]


def _positions(chosen, begins):
    """Return the positions of the elements chosen, in order; what is behind them is undefined."""
    parts, size = int(begins.shape[0]) - 1, int(chosen.shape[0])

    def loops(flags, begin, found, place):
        with T.parallel(0, parts) as part:
            place[part] = begin[part]
            with T.serial(0, SHARE) as i:
                position = part * SHARE + i
                inside = tirx.min(position, size - 1)
                here = tirx.And(position < size, flags[inside] != 0)
                with T.If(here), T.Then():
                    found[place[part]] = position.astype("int64")
                    place[part] = place[part] + 1

    shapes = [(size,), (parts,)]
    return hand_built(shapes, [chosen, begins], loops, ["int64"] * 2, "positions")[0]


@compute(op.upper_bound_argwhere, OPAQUE, when=_too_large)
def upper_bound_argwhere(condition, out):
    indices = out[0]
    extents = [int(n) for n in condition.shape]
    size = prod(extents)
    ndim = tirx.const(len(extents), "int64")

    def both(count):
        return te.compute((2,), lambda i: tirx.Select(i == 0, count(), ndim), name="shape")

    if size == 0:
        nothing = te.compute(indices.shape, lambda *_: tirx.const(-1, "int64"), name="indices")
        return [nothing, both(lambda: tirx.const(0, "int64"))]

    def flag(i):
        value = condition(*unflat_index(i, extents))
        value = cast(value, computing(str(condition.dtype)))
        return not_equal(value, tirx.const(0, value.ty.dtype)).astype("int32")

    chosen = te.compute((size,), flag, name="chosen")
    parts = -(-size // SHARE)
    i = te.reduce_axis((0, SHARE), "i")

    def in_part(part):
        position = part * SHARE + i.var
        inside = chosen(tirx.min(position, size - 1))
        return te.sum(tirx.Select(position < size, inside, tirx.const(0, "int32")), axis=i)

    begins = _begins(te.compute((parts,), in_part, name="counts"))
    positions = _positions(chosen, begins)

    def element(row, axis):
        index = tirx.const(-1, "int64")
        for d, its in enumerate(unflat_index(positions(row), extents)):
            index = tirx.Select(axis == d, tirx.Cast("int64", its), index)
        return tirx.Select(row < begins(parts), index, tirx.const(-1, "int64"))

    return [te.compute(indices.shape, element, name="indices"), both(lambda: begins(parts))]
