"""Operators that read and write at indices in TE.

What writes is turned around: every element of the result looks all indices up that may name it.
That is deterministic and parallel, but slow for many indices, where libraries scatter.
"""

from math import prod

from tvm import te, tirx

from meta import op
from meta.dialect.tvm import ordered
from meta.dialect.tvm.broadcast import (
    broadcast_at,
    broadcast_shape,
    cast,
    computing,
    converted,
    rounded,
)
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.index import flat, flat_index, in_range, ints
from meta.dialect.tvm.reduce import product
from meta.op.core.check import normalize_axis


@compute(op.gather, INJECTIVE)
def gather(data, axis, indices, out):
    at, shape = normalize_axis(axis, out.ndim), ints(data.shape)

    def element(*i):
        return data(*i[:at], in_range(indices(*i), shape[at], "clip"), *i[at + 1 :])

    return te.compute(out.shape, element, name="gather")


class _Along:
    """Which indices, of those along an axis, name an element."""

    def __init__(self, index, shape, axis):
        self.index, self.shape, self.at = index, shape, normalize_axis(axis, len(shape))
        self.extents = ints(index.shape)
        self.count = self.extents[self.at]

    @property
    def empty(self):
        """Whether there is no index."""
        return 0 in self.extents

    def reduce_axes(self):
        """Return what to look through."""
        return [te.reduce_axis((0, self.count), "k")]

    def place(self, i, k):
        """Return where the index is that may name element ``i``, and where its value is."""
        return (*i[: self.at], *k, *i[self.at + 1 :])

    def names(self, i, k):
        """Whether the index exists and names element ``i``."""
        j = self.place(i, k)
        inside = [
            v < have
            for v, have, whole in zip(j, self.extents, self.shape, strict=True)
            if v is not k[0] and have < whole
        ]
        hit = in_range(self.index(*j), self.shape[self.at], "clip") == i[self.at]
        return tirx.all(*inside) if inside else None, hit

    def position(self, k):
        """Return the order of an index among those that may name an element."""
        return k[0]

    def at_position(self, i, position):
        """Return where the value of the index of that order is."""
        return self.place(i, (position,))


class _Coordinates:
    """Which coordinates name an element. They are flattened in row-major order."""

    def __init__(self, indices, shape):
        self.indices, self.shape = indices, shape
        self.depth, *self.rest = ints(indices.shape)

    @property
    def empty(self):
        return 0 in self.rest

    def reduce_axes(self):
        return [te.reduce_axis((0, extent), "k") for extent in self.rest or (1,)]

    def place(self, i, k):
        return (*(k if self.rest else ()), *i[self.depth :])

    def names(self, i, k):
        j = k if self.rest else ()
        hits = [
            in_range(self.indices(m, *j), self.shape[m], "clip") == i[m] for m in range(self.depth)
        ]
        return None, tirx.all(*hits) if hits else tirx.const(True, "bool")

    def position(self, k):
        return flat_index(k, self.rest or (1,))

    def at_position(self, i, position):
        k = []
        for extent in reversed(self.rest):
            k.append(tirx.indexmod(position, extent))
            position = tirx.indexdiv(position, extent)
        return (*k[::-1], *i[self.depth :])


def _chosen(found, i, k, value, otherwise):
    """Return value() where the index names element ``i``, without reading outside of it."""
    inside, hit = found.names(i, k)
    chosen = tirx.if_then_else(hit, value(), otherwise)
    return chosen if inside is None else tirx.if_then_else(inside, chosen, otherwise)


def _added(x, found, src, dtype):
    """Return ``x`` (None: zeros) plus ``src`` by index."""
    if found.empty:
        zero = tirx.const(0, dtype)
        return te.compute(found.shape, lambda *i: zero if x is None else x(*i), name="added")
    wide = "int32" if dtype == "bool" else computing(dtype)
    over = found.reduce_axes()

    def total(*i):
        k = [axis.var for axis in over]
        value = _chosen(
            found, i, k, lambda: cast(src(*found.place(i, k)), wide), tirx.const(0, wide)
        )
        return te.sum(value, axis=over)

    sums = te.compute(found.shape, total, name="sums")

    def element(*i):
        whole = sums(*i) if x is None else cast(x(*i), wide) + sums(*i)
        return cast(whole, dtype)

    return te.compute(found.shape, element, name="added")


def _last(found):
    """Return the order of the last index that names each element, -1 where none does."""
    over = found.reduce_axes()

    def latest(*i):
        k = [axis.var for axis in over]
        position = found.position(k).astype("int32")
        return te.max(_chosen(found, i, k, lambda: position, tirx.const(-1, "int32")), axis=over)

    return te.compute(found.shape, latest, name="last")


def _written(x, found, src):
    """Return ``x`` with ``src`` (None: zeros) by index; of equal ones the last."""
    if found.empty:
        return te.compute(found.shape, lambda *i: x(*i), name="written")
    last = _last(found)

    def element(*i):
        # Clamped, for a read may be done before the condition is known.
        position = tirx.max(last(*i), 0)
        value = tirx.const(0, x.dtype) if src is None else src(*found.at_position(i, position))
        return tirx.if_then_else(last(*i) >= 0, value, x(*i))

    return te.compute(found.shape, element, name="written")


@compute(op.gather_dx, OPAQUE)
def gather_dx(axis, indices, dy, out):
    return _added(None, _Along(indices, out.static_shape, axis), dy, out.dtype)


@compute(op.gather_nd, INJECTIVE)
def gather_nd(data, indices, out):
    shape, depth = ints(data.shape), int(indices.shape[0])
    n = len(indices.shape) - 1

    def element(*i):
        picked = [in_range(indices(m, *i[:n]), shape[m], "clip") for m in range(depth)]
        return data(*picked, *i[n:])

    return te.compute(out.shape, element, name="gather_nd")


@compute(op.gather_nd_dx, OPAQUE)
def gather_nd_dx(indices, dy, out):
    return _added(None, _Coordinates(indices, out.static_shape), dy, out.dtype)


@compute(op.index_select, INJECTIVE)
def index_select(x, axis, index, out):
    at, extent = normalize_axis(axis, out.ndim), int(x.shape[axis])

    def element(*i):
        return x(*i[:at], in_range(index(i[at]), extent, "raise"), *i[at + 1 :])

    return te.compute(out.shape, element, name="index_select")


@compute(op.scatter, OPAQUE)
def scatter(x, index, src, axis, out):
    return _written(x, _Along(index, out.static_shape, axis), src)


@compute(op.scatter_dx, OPAQUE)
def scatter_dx(dy, index, axis, out):
    return scatter(dy, index, None, axis, out)


@compute(op.scatter_add, OPAQUE)
def scatter_add(x, index, src, axis, out):
    return _added(x, _Along(index, out.static_shape, axis), src, out.dtype)


def _reduced(found, src, combine, element, neutral):
    """Return ``combine`` of the elements of ``src`` by index, ``neutral`` where there are none."""
    over = found.reduce_axes()

    def body(*i):
        k = [axis.var for axis in over]
        return combine(
            _chosen(found, i, k, lambda: element(src(*found.place(i, k))), neutral), axis=over
        )

    return te.compute(found.shape, body, name="reduced")


@compute(op.scatter_reduce, OPAQUE)
def scatter_reduce(x, index, src, axis, reduce, out):
    found, dtype = _Along(index, out.static_shape, axis), out.dtype
    if found.empty:
        return te.compute(found.shape, lambda *i: x(*i), name="scatter_reduce")
    if reduce == "prod":
        wide = computing(dtype)
        factors = _reduced(found, src, product, lambda v: cast(v, wide), tirx.const(1, wide))
        return te.compute(
            out.shape,
            lambda *i: cast(cast(x(*i), wide) * factors(*i), dtype),
            name="scatter_reduce",
        )
    largest = reduce == "amax"

    def key(value):
        return ordered.key(value, dtype, largest)

    of = ordered.key_dtype(dtype)
    neutral = tirx.min_value(of) if largest else tirx.max_value(of)
    best = _reduced(found, src, te.max if largest else te.min, key, neutral)
    better = tirx.max if largest else tirx.min

    def element(*i):
        chosen = better(key(x(*i)), best(*i))
        return chosen if of == dtype else ordered.value(chosen, dtype)

    return te.compute(out.shape, element, name="scatter_reduce")


@compute(op.scatter_nd, OPAQUE)
def scatter_nd(data, indices, updates, mode, out):
    found = _Coordinates(indices, out.static_shape)
    if mode == "add":
        return _added(data, found, updates, out.dtype)
    return _written(data, found, updates)


@compute(op.adv_index, INJECTIVE)
def adv_index(inputs, out):
    x, *indices = inputs
    lead = out.ndim - len(x.shape) + len(indices)

    def element(*i):
        picked = [
            in_range(broadcast_at(index, i[:lead]), extent, "raise")
            for index, extent in zip(indices, ints(x.shape), strict=False)
        ]
        return x(*picked, *i[lead:])

    return te.compute(out.shape, element, name="adv_index")


@compute(op.adv_index_dx, OPAQUE)
def adv_index_dx(dy, inputs, out):
    """Every element looks all indices up: deterministic and parallel, but slow for large ones."""
    indices, dtype = inputs[1:], computing(out.dtype)
    if 0 in ints(dy.shape):
        return te.compute(out.shape, lambda *_: tirx.const(0, out.dtype), name="adv_index_dx")
    over = [te.reduce_axis((0, d)) for d in broadcast_shape(*(i.shape for i in indices))]

    def element(*i):
        j = [axis.var for axis in over]
        hits = [
            in_range(broadcast_at(index, j), extent, "raise") == v
            for index, extent, v in zip(indices, out.static_shape, i, strict=False)
        ]
        value = cast(dy(*j, *i[len(indices) :]), dtype)
        if hits:
            value = tirx.if_then_else(tirx.all(*hits), value, tirx.const(0, dtype))
        return te.sum(value, axis=over) if over else value

    total = te.compute(out.shape, element, name="adv_index_dx")
    return rounded(total, out.dtype, "cast")


def _taken(x, indices, at, mode, out):
    extent, n = int(x.shape[at]), len(indices.shape)

    def element(*i):
        picked = in_range(indices(*i[at : at + n]), extent, mode)
        return x(*i[:at], picked, *i[at + n :])

    return te.compute(out.shape, element, name="take")


@compute(op.take, INJECTIVE)
def take(x, indices, axis, mode, out):
    if axis is None:
        return _taken(flat(x), indices, 0, mode, out)
    return _taken(x, indices, normalize_axis(axis, len(x.shape)), mode, out)


def _accumulated(dy, indices, shape, at, mode, dtype):
    """Return zeros of a shape plus ``dy`` by index: every element looks all indices up.

    That is deterministic and parallel, but slow for large tables, where libraries scatter.
    """
    n, extent = len(indices.shape), shape[at]
    if 0 in ints(indices.shape):
        return te.compute(shape, lambda *_: tirx.const(0, dtype), name="accumulated")
    wide = dtype if dtype == "bool" else computing(dtype)
    over = [te.reduce_axis((0, d)) for d in indices.shape]

    def total(*i):
        j = [axis.var for axis in over]
        hit = in_range(indices(*j), extent, mode) == i[at]
        value = tirx.if_then_else(
            hit, dy(*i[:at], *j, *i[at + 1 :]).astype(wide), tirx.const(0, wide)
        )
        return te.sum(value, axis=over) if n else value

    return converted(te.compute(shape, total, name="accumulated"), dtype)


@compute(op.take_dx, OPAQUE)
def take_dx(dy, indices, axis, mode, out):
    shape = out.static_shape
    if axis is not None:
        at = normalize_axis(axis, out.ndim)
        return _accumulated(dy, indices, shape, at, mode, out.dtype)
    sums = _accumulated(dy, indices, (prod(shape),), 0, mode, out.dtype)
    return te.compute(shape, lambda *i: sums(flat_index(i, shape)), name="take_dx")


@compute(op.embedding, INJECTIVE)
def embedding(x, indices, out):
    return _taken(x, indices, 0, "clip", out)


@compute(op.embedding_dx, OPAQUE)
def embedding_dx(dy, indices, out):
    return _accumulated(dy, indices, out.static_shape, 0, "clip", out.dtype)
