"""TE helpers: flat and multi-dimensional indices, slices, ranges, and loops built by hand."""

from itertools import accumulate
from math import prod

from tvm import te, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T

from meta.dialect.core import Unsupported


def ints(shape):
    """Return the extents of a tensor as Python ints; Unsupported where one is no number."""
    return list(map(number, shape))


def number(dim):
    """Return one extent as a Python int; Unsupported if it is none, of which nothing is made."""
    if not isinstance(dim, int | tirx.IntImm):
        raise Unsupported("it computes with an extent that is known at run time only")
    return int(dim)


def extent(dim):
    """Return one extent as a Python int, where it is a number."""
    return int(dim) if isinstance(dim, int | tirx.IntImm) else dim


def zeros(shape, dtype):
    """Return an array of zeros."""
    return te.compute(shape, lambda *_: tirx.const(0, dtype), name="zeros")


def where_all(conditions, value, otherwise):
    """Return ``value`` where all conditions hold; True stands for one that always does.

    The value is computed only there.
    """
    asked = [c for c in conditions if c is not True]
    return tirx.if_then_else(tirx.all(*asked), value, otherwise) if asked else value


def flat_index(i, shape):
    """Return the row-major position of index ``i``."""
    position = 0
    for v, d in zip(i, shape, strict=True):
        position = position * d + v
    return position


def unflat_index(position, shape):
    """Return the index at a row-major position."""
    result = []
    for d in reversed(shape):
        d = max(d, 1)  # where there is no element, no index is computed
        result.append(tirx.indexmod(position, d) if d != 1 else 0)
        position = tirx.indexdiv(position, d)
    return result[::-1]


def index_in_slice(i, ranges):
    """Return the index of element ``i`` in a slice, and the conditions for it to be there."""
    index, inside = list(i), []
    for a, r in enumerate(ranges):
        # Counted upwards: TVM's simplifier is wrong about quotients of a constant minus an index.
        step, first = abs(r.step), min(r[0], r[-1])
        offset = i[a] - first
        inside += [offset >= 0, offset < len(r) * step]
        if step != 1:
            inside.append(tirx.indexmod(offset, step) == 0)
            offset = tirx.indexdiv(offset, step)
        index[a] = offset if r.step > 0 else len(r) - 1 - offset
    return index, inside


def bounds(tensors, extents):
    """Return (tensor, begin, end) of tensors that follow one another; of those with elements, or
    of the first one where none has any.
    """
    given = zip(tensors, extents, accumulate(extents), strict=True)
    found = [(tensor, end - extent, end) for tensor, extent, end in given if extent]
    return found or [(tensors[0], 0, 0)]


def in_slice(parts, i, element):
    """Return ``element(tensor, begin)`` of the one of the `bounds` in which ``i`` is."""
    tensor, begin, _ = parts[-1]
    result = element(tensor, begin)
    for tensor, begin, end in reversed(parts[:-1]):
        result = tirx.if_then_else(i < end, element(tensor, begin), result)
    return result


def in_range(index, extent, mode):
    """Return an index within [0, extent) by the mode of `take`; as int32 where that suffices."""
    wide = index.astype("int64")
    if mode == "wrap":
        wide = tirx.floormod(wide, tirx.const(extent, "int64"))
    else:
        if mode == "raise":
            whole, zero = tirx.const(extent, "int64"), tirx.const(0, "int64")
            wide = wide + tirx.Select(wide < 0, whole, zero)
        wide = tirx.max(tirx.min(wide, tirx.const(extent - 1, "int64")), tirx.const(0, "int64"))
    return wide.astype("int32") if extent < 2**31 else wide


def hand_built(shapes, inputs, loops, dtypes, name):
    """Return the arrays that ``loops(*inputs, *results)`` fills: statements on their buffers."""

    def build(ins, outs):
        with IRBuilder() as builder:
            loops(*map(T.buffer_proxy, (*ins, *outs)))
            return builder.get()

    made = te.extern(shapes, inputs, build, dtype=dtypes, name=name)
    return list(made) if len(shapes) > 1 else [made]


def flat(x):
    shape = ints(x.shape)
    return te.compute(
        (prod(shape),), lambda i: x(*unflat_index(i, shape)) if shape else x(), name="flat"
    )
