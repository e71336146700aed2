"""Operators that read and write at indices in TE.

What writes is turned around: every element of the result looks all indices up that may name it.
That is deterministic and parallel, but slow for many indices, where libraries scatter.
"""

from abc import ABC, abstractmethod
from math import prod

from tvm import te, tirx

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.tvm import order_keys
from meta.dialect.tvm.broadcast import broadcast_at, broadcast_shape, cast, computing, converted
from meta.dialect.tvm.compute import INJECTIVE, OPAQUE, compute
from meta.dialect.tvm.index import flat, flat_index, in_range, ints, number, unflat_index, zeros
from meta.dialect.tvm.reduce import product
from meta.op.core.check import normalize_axis

FEW = 4
"""Indices, at most, that are looked up as fast as written."""


@compute(op.take_along_axis, INJECTIVE)
def take_along_axis(x, indices, axis, out):
    at, shape = normalize_axis(axis, out.ndim), ints(x.shape)

    def element(*i):
        return x(*i[:at], in_range(indices(*i), shape[at], "raise"), *i[at + 1 :])

    return te.compute(out.shape, element, name="take_along_axis")


class _Named(ABC):
    """Which indices name an element of an array of ``shape``.

    over: the extents of the indices that are looked through for one element. names(i, k): whether
    there is such an index (None: always), and whether it names ``i``.
    """

    def __init__(self, shape, over):
        self.shape, self.over, self.empty = shape, over, 0 in over

    @abstractmethod
    def place(self, i, k):
        """Return where the value of index ``k`` is that may name element ``i``."""

    def at_position(self, i, position):
        """Return where the value of the index of that row-major position is."""
        return self.place(i, unflat_index(position, self.over))


class _Gathered(_Named):
    """Indices of any rank along one axis."""

    def __init__(self, indices, shape, axis, mode):
        super().__init__(shape, ints(indices.shape))
        self.indices, self.at, self.mode = indices, normalize_axis(axis, len(shape)), mode

    def place(self, i, k):
        return (*i[: self.at], *k, *i[self.at + 1 :])

    def names(self, i, k):
        return None, in_range(self.indices(*k), self.shape[self.at], self.mode) == i[self.at]


class _Along(_Gathered):
    """Indices along an axis of an array of their own rank, which may have fewer of other axes."""

    def __init__(self, index, shape, axis, mode="clip"):
        super().__init__(index, shape, axis, mode)
        self.extents = ints(index.shape)
        self.over = [self.extents[self.at]]

    def names(self, i, k):
        j = self.place(i, k)
        inside = [
            v < have
            for v, have, whole in zip(j, self.extents, self.shape, strict=True)
            if v is not k[0] and have < whole
        ]
        return tirx.all(*inside) if inside else None, super().names(i, j)[1]

    def at_position(self, i, position):
        return self.place(i, (position,))


class _Coordinates(_Named):
    """Coordinates of the first axes; ``coordinate(m, k)``: index ``k`` along axis ``m``."""

    def __init__(self, coordinate, depth, over, shape, mode):
        super().__init__(shape, over)
        self.coordinate, self.depth, self.mode = coordinate, depth, mode

    def place(self, i, k):
        return (*k, *i[self.depth :])

    def names(self, i, k):
        hits = [
            in_range(self.coordinate(m, k), self.shape[m], self.mode) == i[m]
            for m in range(self.depth)
        ]
        return None, tirx.all(*hits) if hits else tirx.const(True, "bool")


def _nd(indices, shape):
    """Return the coordinates that are the columns of an array."""
    depth, *over = ints(indices.shape)
    return _Coordinates(lambda m, k: indices(m, *k), depth, over, shape, "clip")


def _combined(found, combine, value, otherwise, name):
    """Return ``combine`` of ``value(i, k)`` over the indices that name element ``i``.

    The others are ``otherwise``; what is outside of the indices is not read.
    """
    over = [te.reduce_axis((0, extent), "k") for extent in found.over]

    def element(*i):
        k = [axis.var for axis in over]
        inside, hit = found.names(i, k)
        chosen = tirx.if_then_else(hit, value(i, k), otherwise)
        if inside is not None:
            chosen = tirx.if_then_else(inside, chosen, otherwise)
        return combine(chosen, axis=over) if over else chosen

    return te.compute(found.shape, element, name=name)


def _added(x, found, src, dtype):
    """Return ``x`` (None: zeros) plus ``src`` by index."""
    if found.empty:
        return zeros(found.shape, dtype) if x is None else x
    wide = "int32" if dtype == "bool" else computing(dtype)

    def value(i, k):
        return cast(src(*found.place(i, k)), wide)

    sums = _combined(found, te.sum, value, tirx.const(0, wide), "sums")
    if x is None:
        return converted(sums, dtype)
    return te.compute(
        found.shape, lambda *i: cast(cast(x(*i), wide) + sums(*i), dtype), name="added"
    )


def _written(x, found, src):
    """Return ``x`` with ``src`` (None: zeros) by index; of equal ones the last."""
    if found.empty:
        return x

    def number(i, k):
        return tirx.Cast("int32", flat_index(k, found.over))

    last = _combined(found, te.max, number, tirx.const(-1, "int32"), "last")

    def element(*i):
        # Clamped, for a read may be done before the condition is known.
        position = tirx.max(last(*i), 0)
        value = tirx.const(0, x.dtype) if src is None else src(*found.at_position(i, position))
        return tirx.if_then_else(last(*i) >= 0, value, x(*i))

    return te.compute(found.shape, element, name="written")


@compute(op.take_along_axis_dx, OPAQUE)
def take_along_axis_dx(dy, indices, axis, out):
    return _added(None, _Along(indices, out.static_shape, axis, "raise"), dy, out.dtype)


def _at_coordinates(x, coordinate, depth, lead, mode, out):
    """Return ``x`` at the coordinates of its first axes; see `_Coordinates`."""
    extents = ints(x.shape)

    def element(*i):
        picked = [in_range(coordinate(m, i[:lead]), extents[m], mode) for m in range(depth)]
        return x(*picked, *i[lead:])

    return te.compute(out.shape, element, name="at_coordinates")


@compute(op.gather_nd, INJECTIVE)
def gather_nd(data, indices, out):
    depth, *over = ints(indices.shape)
    return _at_coordinates(data, lambda m, k: indices(m, *k), depth, len(over), "clip", out)


@compute(op.gather_nd_dx, OPAQUE)
def gather_nd_dx(indices, dy, out):
    return _added(None, _nd(indices, out.static_shape), dy, out.dtype)


@compute(op.scatter, OPAQUE)
def scatter(x, index, src, axis, out):
    return _written(x, _Along(index, out.static_shape, axis), src)


@compute(op.scatter_dx, OPAQUE)
def scatter_dx(dy, index, axis, out):
    return scatter(dy, index, None, axis, out)


@compute(op.scatter_add, OPAQUE)
def scatter_add(x, index, src, axis, out):
    return _added(x, _Along(index, out.static_shape, axis), src, out.dtype)


@compute(op.scatter_reduce, OPAQUE)
def scatter_reduce(x, index, src, axis, reduce, out):
    found, dtype = _Along(index, out.static_shape, axis), out.dtype
    if found.empty:
        return x

    def combined(combine, of, neutral):
        return _combined(
            found, combine, lambda i, k: of(src(*found.place(i, k))), neutral, "reduced"
        )

    if reduce == "prod":
        wide = computing(dtype)
        factors = combined(product, lambda v: cast(v, wide), tirx.const(1, wide))
        return te.compute(
            out.shape,
            lambda *i: cast(cast(x(*i), wide) * factors(*i), dtype),
            name="scatter_reduce",
        )
    largest = reduce == "amax"

    def key(value):
        return order_keys.key(value, dtype, largest)

    of = order_keys.key_dtype(dtype)
    neutral = tirx.min_value(of) if largest else tirx.max_value(of)
    best = combined(te.max if largest else te.min, key, neutral)
    better = tirx.max if largest else tirx.min

    def element(*i):
        chosen = better(key(x(*i)), best(*i))
        return chosen if of == dtype else order_keys.value(chosen, dtype)

    return te.compute(out.shape, element, name="scatter_reduce")


def _of_few(call):
    """Raise the level on the CPU for the few places that a loop writes: a library is Python's."""
    indices = call.args.indices
    few = indices.is_static and prod(indices.shape[1:]) <= FEW
    return LIBRARY + 1 if few and call.device.kind == "cpu" else None


@compute(op.scatter_nd, OPAQUE, level_of=_of_few)
def scatter_nd(data, indices, updates, mode, out):
    found = _nd(indices, out.static_shape)
    if mode == "add":
        return _added(data, found, updates, out.dtype)
    return _written(data, found, updates)


@compute(op.adv_index, INJECTIVE)
def adv_index(inputs, out):
    x, *indices = inputs
    lead = out.ndim - len(x.shape) + len(indices)

    def coordinate(m, k):
        return broadcast_at(indices[m], k)

    return _at_coordinates(x, coordinate, len(indices), lead, "raise", out)


@compute(op.adv_index_dx, OPAQUE)
def adv_index_dx(dy, inputs, out):
    indices = inputs[1:]
    over = ints(broadcast_shape(*(index.shape for index in indices)))

    def coordinate(m, k):
        return broadcast_at(indices[m], k)

    found = _Coordinates(coordinate, len(indices), over, out.static_shape, "raise")
    return _added(None, found, dy, out.dtype)


@compute(op.take, INJECTIVE, static=False)
def take(x, indices, axis, mode, out):
    x = flat(x) if axis is None else x
    at = normalize_axis(axis or 0, len(x.shape))
    extent, n = number(x.shape[at]), len(indices.shape)

    def element(*i):
        picked = in_range(indices(*i[at : at + n]), extent, mode)
        return x(*i[:at], picked, *i[at + n :])

    return te.compute(out.shape, element, name="take")


@compute(op.index_select, INJECTIVE, static=False)
def index_select(x, axis, index, out):
    return take(x, index, axis, "raise", out)


@compute(op.take_dx, OPAQUE)
def take_dx(dy, indices, axis, mode, out):
    shape = out.static_shape
    if axis is not None:
        return _added(None, _Gathered(indices, shape, axis, mode), dy, out.dtype)
    sums = _added(None, _Gathered(indices, (prod(shape),), 0, mode), dy, out.dtype)
    return te.compute(shape, lambda *i: sums(flat_index(i, shape)), name="take_dx")


@compute(op.embedding, INJECTIVE, static=False)
def embedding(x, indices, out):
    return take(x, indices, 0, "clip", out)


@compute(op.embedding_dx, OPAQUE)
def embedding_dx(dy, indices, out):
    return take_dx(dy, indices, 0, "clip", out)
