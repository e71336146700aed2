"""Test records of operators that read and write at indices."""

import itertools

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.shapes import gradient


def at(axis, indices):
    """Return the advanced index by which `take_along_axis` reads."""
    grid = list(torch.meshgrid(*[torch.arange(n) for n in indices.shape], indexing="ij"))
    grid[axis] = indices.long()
    return tuple(grid)


def gather(x, indices, axis=-1):
    """Index with a grid."""
    return x[at(axis, indices)]


def gather_dx(x, dy, indices, axis=-1):
    """Put dy into zeros."""
    zeros = torch.zeros_like(x)
    return zeros.index_put(at(axis, indices), dy, accumulate=True)


def coordinates(indices):
    """Return the advanced index by which `gather_nd` reads."""
    return tuple(indices.long())


def gather_nd(data, indices):
    """Index with coordinates; without any, the whole is repeated."""
    if not indices.shape[0]:
        return data.expand(*indices.shape[1:], *data.shape)
    return data[coordinates(indices)]


def gather_nd_dx(data, indices, dy):
    """Put dy into zeros."""
    zeros = torch.zeros_like(data)
    return zeros.index_put(coordinates(indices), dy, accumulate=True)


def index_select(x, axis, index):
    """Index one axis."""
    axis %= x.ndim
    return x[(slice(None),) * axis + (index.long(),)]


def part(src, index):
    """Return what of src is used."""
    return src[tuple(slice(0, n) for n in index.shape)]


def scatter(x, axis, index, src):
    """Put into x."""
    return x.index_put(at(axis, index), part(src, index))


def scatter_dx(x, y, dy, index, src, axis):
    """Erase what was written."""
    where = at(axis, index)
    return dy.index_put(where, torch.zeros(index.shape, dtype=dy.dtype))


def scatter_add(x, axis, index, src):
    """Add to x."""
    return x.index_put(at(axis, index), part(src, index), accumulate=True)


def scatter_reduce(x, axis, index, src, reduce):
    """Reduce into x."""
    return x.scatter_reduce(axis, index.long(), part(src, index), reduce)


def scatter_nd(data, indices, updates, mode="update"):
    """Put into, or add to, data."""
    return data.index_put(coordinates(indices), updates, accumulate=mode == "add")


def assign_at(x, indices, value, axis=0):
    """Put into x, element by element, with the axes that are indexed first."""
    count = indices.shape[0]
    new = x.clone().movedim(tuple(range(axis, axis + count)), tuple(range(count)))
    rest = indices[0].ndim
    rows = value.movedim(tuple(range(axis, axis + rest)), tuple(range(rest)))
    for at in itertools.product(*map(range, indices.shape[1:])):
        new[tuple(indices[(slice(None), *at)].tolist())] = rows[at]
    return (new.movedim(tuple(range(count)), tuple(range(axis, axis + count))),)


# Both ends, with duplicates.
TWICE = C([[0, 2, 0], [2, 1, 1]], "int64")

APART = C([[2, 0, 1], [1, 2, 0]], "int64")

CASES = [
    OpCase(
        "take_along_axis",
        samples=[
            sample(F(2, 3), I(2, 5, low=-3, high=3), 1),
            sample(F(2, 3), TWICE, 1),
            sample(F(2, 3), I(4, 3, low=0, high=2, dtype="int32"), -2),
            sample(F(4, 3, 5), I(4, 6, 5, low=-3, high=3, dtype="int8"), 1),
            sample(F(3), I(4, low=0, high=3, dtype="uint8")),
            sample(F(2, 3), I(2, 0, low=0, high=3)),
            sample(F(0, 3), I(0, 2, low=0, high=3)),
            sample(F(2, 0), I(2, 0, low=0, high=3)),
            sample(I(2, 3, low=-9, high=9, dtype="int32"), TWICE),
            sample(B(2, 3), TWICE),
        ],
        oracle=gather,
    ),
    OpCase(
        "take_along_axis_dx",
        samples=[
            sample(F(2, 3), F(2, 5), I(2, 5, low=-3, high=3), 1),
            sample(F(2, 3), F(2, 3), TWICE, 1),
            sample(F(4, 3, 5), F(2, 6, 4), I(2, 6, 4, low=0, high=3, dtype="int32"), -2),
            sample(F(2, 3), F(2, 0), I(2, 0, low=0, high=3)),
            sample(F(0, 3), F(0, 2), I(0, 2, low=0, high=3)),
        ],
        oracle=lambda x, dy, indices, axis=-1: gather_dx(x, dy, indices, axis) + 0 * x,
    ),
    OpCase(
        "gather_nd",
        samples=[
            sample(F(3, 4), I(2, 5, low=0, high=3)),
            sample(F(3, 4), C([[0, 2, 0], [1, 3, 1]], "int64")),
            sample(F(3, 4), I(1, 2, 2, low=0, high=3, dtype="int32")),
            sample(F(3, 4, 2), I(2, low=0, high=3)),
            sample(F(3), I(0, 2, low=0, high=3)),
            sample(F(3, 4), I(2, 0, low=0, high=3)),
            sample(F(0, 4), I(1, 0, low=0, high=3)),
            sample(I(3, 4, low=0, high=9), I(2, 5, low=0, high=3)),
        ],
        oracle=gather_nd,
    ),
    OpCase(
        "gather_nd_dx",
        samples=[
            sample(F(3, 4), I(2, 9, low=0, high=3), F(9)),
            sample(F(3, 4), C([[0, 2, 0], [1, 3, 1]], "int64"), F(3)),
            sample(F(3, 4), I(1, 2, 2, low=0, high=3, dtype="int32"), F(2, 2, 4)),
            sample(F(3, 4, 2), I(2, low=0, high=3), F(2)),
            sample(F(3, 4), I(2, 0, low=0, high=3), F(0)),
        ],
        oracle=lambda data, indices, dy: gather_nd_dx(data, indices, dy) + 0 * data,
    ),
    OpCase(
        "index_select",
        samples=[
            sample(F(3, 4), 0, I(5, low=0, high=3)),
            sample(F(3, 4, 2), -2, C([-4, -1, 3], "int32")),
            sample(F(3, 4), 1, I(0, low=0, high=3)),
            sample(F(0, 4), 0, I(0, low=0, high=3)),
            sample(I(3, 4, low=0, high=9, dtype="int8"), 1, I(5, low=0, high=4)),
        ],
        oracle=index_select,
    ),
    OpCase(
        "scatter",
        samples=[
            sample(F(2, 3), 1, APART, F(2, 3)),
            sample(F(2, 3), -1, C([[2], [0]], "int64"), F(2, 3)),
            sample(F(4, 3), 0, C([[2, 0]], "int32"), F(1, 2)),
            sample(F(2, 3), 1, I(2, 0, low=0, high=3), F(2, 0)),
            sample(F(0, 3), 1, I(0, 3, low=0, high=3), F(0, 3)),
            sample(I(2, 3, low=0, high=9), 1, APART, I(2, 3, low=0, high=9)),
        ],
        oracle=scatter,
    ),
    OpCase(
        "scatter_dx",
        samples=[
            sample(F(2, 3), F(2, 3), F(2, 3), C([[2, 1], [0, 0]], "int64"), F(2, 3), -1),
            sample(F(4, 3), F(4, 3), F(4, 3), C([[2, 0]], "int32"), F(1, 2), 0),
            sample(F(2, 3), F(2, 3), F(2, 3), I(2, 0, low=0, high=3), F(2, 0), 1),
        ],
        oracle=scatter_dx,
    ),
    OpCase(
        "scatter_add",
        samples=[
            sample(F(2, 3), 1, TWICE, F(2, 3)),
            sample(F(2, 3), -1, I(2, 7, low=0, high=3), F(2, 8)),
            sample(F(4, 3), 0, C([[2, 0]], "int32"), F(1, 2)),
            sample(F(2, 3), 1, I(2, 0, low=0, high=3), F(2, 0)),
            *[
                sample(
                    I(2, 3, low=0, high=9, dtype=f"uint{b}"),
                    1,
                    TWICE,
                    I(2, 3, low=0, high=2**b - 1, dtype=f"uint{b}"),
                )
                for b in (8, 16, 32)
            ],
        ],
        oracle=scatter_add,
    ),
    OpCase(
        "scatter_reduce",
        samples=[
            sample(F(2, 3), 1, TWICE, F(2, 3), "amax"),
            sample(F(2, 3), -1, I(2, 7, low=0, high=3), F(2, 8), "amin"),
            sample(F(2, 3), -1, I(2, 4, low=0, high=3), F(2, 4), "prod"),
            sample(C([[0.0, 2.0, 3.0]]), 1, C([[0, 1, 1, 2, 2]], "int64"),
                   C([[2.0, 0.0, 3.0, 0.0, 0.0]]), "prod"),
            sample(F(4, 3), 0, C([[2, 0]], "int32"), F(1, 2), "prod"),
            sample(F(4, 3), 0, C([[2, 0]], "int32"), F(1, 2), "amin"),
            sample(F(2, 3), 1, I(2, 0, low=0, high=3), F(2, 0), "amax"),
            *[sample(I(2, 3, low=0, high=9), 1, TWICE, I(2, 3, low=0, high=9), how)
              for how in ("prod", "amin", "amax")],
            sample(C([[1.0, float("nan")]]), 1, C([[0, 0, 1]], "int64"),
                   C([[2.0, float("nan"), 1.0]]), "amax"),
        ],
        oracle=scatter_reduce,
    ),
    OpCase(
        "scatter_nd",
        samples=[
            sample(F(3, 4), C([[0, 2, 0], [1, 3, 2]], "int64"), F(3)),
            sample(F(3, 4), C([[0, 2, 0], [1, 3, 1]], "int64"), F(3), mode="add"),
            sample(F(3, 4), C([[2, 0]], "int32"), F(2, 4)),
            sample(F(3, 4), I(1, 2, 3, low=0, high=3), F(2, 3, 4), mode="add"),
            sample(F(3, 4), I(2, low=0, high=3), F(), mode="add"),
            sample(F(3, 4), I(2, 0, low=0, high=3), F(0)),
            sample(I(3, 4, low=0, high=9), I(2, 5, low=0, high=3), I(5, low=0, high=9), mode="add"),
        ],
        oracle=scatter_nd,
    ),
    OpCase(
        "assign_at",
        samples=[
            sample(F(3, 4), C([[0, 2, 0], [1, 3, 2]], "int64"), F(3)),
            sample(F(3, 4), C([[2, 0]], "int32"), F(2, 4)),
            sample(F(2, 3, 4), C([[2, 0]], "int64"), F(2, 2, 4), axis=1),
            sample(F(2, 5, 4), C([[[3, 0], [1, 2]]], "int64"), F(2, 2, 2, 4), axis=1),
            sample(F(2, 3, 4), C([[2, 0], [1, 1]], "int64"), F(2, 2), axis=1),
            sample(F(3, 4), C([3], "int64"), F(3), axis=1),
            sample(F(3, 4), I(2, 0, low=0, high=3), F(0)),
            sample(I(3, 4, low=0, high=9), C([[1, 2]], "int64"), I(2, 4, low=0, high=9)),
        ],
        oracle=assign_at,
        dialects=("torch",),
        grad=False,
        errors=[
            error(F(3, 4), I(1, 2, low=0, high=3), F(2, 3), match="value has another type"),
            error(F(3, 4), I(1, 2, low=0, high=3), F(3, 2), axis=3, match="axis is out of range"),
            error(F(3, 4), I(0, 2, low=0, high=3), F(2, 3, 4), match="there are no coordinates"),
            error(F(3, 4), F(1, 2), F(2, 4), match="indices must be integers"),
            error(F(3, 4), I(3, 2, low=0, high=3), F(2), match="at most 2 coordinates"),
        ],
    ),
]  # fmt: skip

_X, _AT = F(3, 4), I(3, 2, low=0, high=3)

NO_PLACE = [
    error(_X, _AT, 2, match="axis 2 is out of range"),
    error(_X, F(3, 2), 1, match="indices must be integers"),
    error(_X, I(4, 2, low=0, high=3), 1, match="the indices do not fit x"),
    error(F(3, 0), _AT, 1, match="an axis without elements cannot be indexed"),
]

NO_COORDINATES = [
    error(_X, I(3, 5, low=0, high=3), match="at most 2 coordinates"),
    error(_X, I(low=0, high=3), match="a first axis of coordinates"),
    error(_X, F(2, 5), match="indices must be integers"),
    error(F(0, 4), I(1, 5, low=0, high=3), match="an axis without elements cannot be indexed"),
]

NO_SOURCE = [
    error(_X, 1, _AT, F(3, 1), match="index does not fit src"),
    error(_X, 1, _AT, C([[1.0, 2.0]] * 3, "float64"), match="differ in dtype"),
    error(_X, -3, _AT, F(3, 2), match="axis -3 is out of range"),
]

CASES += refusals(
    {
        "take_along_axis": [
            *NO_PLACE,
            error(_X, I(3, low=0, high=3), 1, match="the indices do not fit x"),
        ],
        "take_along_axis_dx": [error(_X, F(3, 3), _AT, 1, match="dy has another type")],
        "gather_nd": NO_COORDINATES,
        "gather_nd_dx": [error(_X, I(2, 5, low=0, high=3), F(4), match="dy has another type")],
        "index_select": [
            error(_X, 0, _AT, match="index must be a vector"),
            error(_X, 2, I(2, low=0, high=3), match="axis 2 is out of range"),
            error(_X, 0, F(2), match="indices must be integers"),
        ],
        "scatter": NO_SOURCE,
        "scatter_add": NO_SOURCE,
        "scatter_reduce": [
            *(error(*e.args, "amax", match=e.match) for e in NO_SOURCE),
            error(_X, 1, _AT, F(3, 2), "max", match="unknown reduction"),
        ],
        "scatter_dx": [
            error(_X, F(3, 3), _X, _AT, F(3, 2), 1, match="y has another type"),
            error(_X, _X, F(3, 3), _AT, F(3, 2), 1, match="dy has another type"),
        ],
        "scatter_nd": [
            error(_X, I(2, 5, low=0, high=3), F(4), match="updates has another type"),
            error(_X, I(2, 5, low=0, high=3), F(5), mode="max", match="unknown mode"),
        ],
    }
)


def adv_index(inputs):
    """torch's own indexing."""
    x, *indices = inputs
    return x[tuple(i.long() for i in indices)] if indices else x.clone()


def adv_index_dx(dy, inputs):
    """The gradient of the oracle above; that of x is 0."""
    x, *indices = inputs
    at = torch.zeros(x.shape, dtype=torch.float64, requires_grad=True)
    dx = torch.autograd.grad(adv_index((at, *indices)), at, dy.double(), create_graph=True)[0]
    return 0 * x + dx


INPUTS = [
    (F(5, 3), I(4, low=-5, high=5)),
    (F(5, 3), I(4, low=-5, high=5), I(4, low=-3, high=3, dtype="int32")),
    (F(5, 3, 2), I(2, 1, low=0, high=5, dtype="uint8"), I(3, low=-3, high=3)),
    (F(4, 3, 2), I(low=0, high=4), I(2, low=0, high=3), I(2, 1, low=0, high=2, dtype="int8")),
    (F(3, 2), I(low=0, high=3), I(low=0, high=2)),
    (F(3, 2), C([-3, 2, -1, 2], "int64")),
    (F(3, 2), I(0, low=0, high=1)),
    (F(0, 2), I(0, low=0, high=1)),
    (F(2, 0), I(3, low=0, high=2)),
    (F(2, 3),),
    (F(1, 3), I(2, low=0, high=1), I(1, low=0, high=3)),
]

DYS = [F(4, 3), F(4), F(2, 3, 2), F(2, 2), F(), F(4, 2), F(0, 2), F(0, 2), F(3, 0), F(2, 3), F(2)]

CASES += [
    OpCase(
        "adv_index",
        samples=[
            *map(sample, INPUTS),
            sample((B(5), I(3, low=-5, high=5))),
            sample((I(5, low=0, high=9), I(3, low=-5, high=5))),
        ],
        oracle=adv_index,
    ),
    OpCase("adv_index_dx", samples=list(map(sample, DYS, INPUTS)), oracle=adv_index_dx),
]

CASES += refusals(
    {
        "adv_index": [
            error((F(3), C(0, "int64"), C(0, "int64")), match="more indices than axes"),
            error((F(3), F(2)), match="indices must be integers"),
            error((F(3, 3), C([0, 1], "int64"), C([0, 1, 2], "int64")), match="broadcast"),
            error((F(0), C([0], "int64")), match="nothing can be picked of an empty axis"),
        ],
        "adv_index_dx": [error(F(3), (F(4), C([0, 1], "int64")), match="dy has another shape")],
    }
)


def in_range(indices, extent, mode):
    """Return indices moved into the extent as `take` does."""
    if mode == "clip":
        return indices.long().clamp(0, max(extent - 1, 0))
    return indices.long() % max(extent, 1)


def take(x, indices, axis=None, mode="raise"):
    """Advanced indexing does what `take` does."""
    if axis is None:
        x, axis = x.reshape(-1), 0
    at = axis % x.ndim
    return x[(slice(None),) * at + (in_range(indices, x.shape[at], mode),)]


CASES += [
    OpCase(
        "take",
        samples=[
            sample(F(5, 3), C([-5, 4, 0, -1], "int64"), axis=0),
            sample(F(5, 3), I(2, 2, low=-3, high=3), axis=-1),
            sample(F(5, 3), I(2, 2, low=-15, high=15)),
            sample(F(5, 3), I(4, low=-9, high=9), axis=0, mode="clip"),
            sample(F(5, 3), I(2, 2, low=-40, high=40), mode="clip"),
            sample(F(5, 3), I(4, low=-9, high=9, dtype="int32"), axis=0, mode="wrap"),
            sample(F(5, 3), I(4, low=0, high=5, dtype="uint8"), axis=0, mode="fast"),
            sample(I(5, 3, low=0, high=2**16, dtype="uint16"), C([4, 0, 2], "uint32"), axis=0),
            sample(I(5, 3, low=0, high=2**32, dtype="uint32"), C([14, 0, 2], "uint16")),
            sample(F(2, 5, 3), I(low=0, high=5), axis=1),
            sample(F(), I(3, low=-1, high=1)),
            sample(F(5, 3), I(0, low=0, high=1), axis=0),
            sample(F(0, 3), I(0, low=0, high=1), axis=0),
            sample(F(0, 3), I(2, low=0, high=1), axis=1),
            sample(B(5), I(3, low=0, high=5), axis=0),
        ],
        oracle=take,
    ),
    OpCase(
        "take_dx",
        samples=[
            sample(F(5, 3), F(8, 3), I(8, low=-5, high=5), axis=0),
            sample(F(5, 3), F(5, 4, 2), I(4, 2, low=-9, high=9), axis=-1, mode="clip"),
            sample(F(5, 3), F(2, 2), I(2, 2, low=-15, high=15)),
            sample(F(5, 3), F(7, 3), I(7, low=-9, high=9, dtype="int32"), axis=0, mode="wrap"),
            sample(F(2, 5, 3), F(2, 3), I(low=0, high=5), axis=1),
            sample(F(), F(3), I(3, low=-1, high=1)),
            sample(F(5, 3), F(0, 3), I(0, low=0, high=1), axis=0),
        ],
        oracle=lambda x, dy, indices, axis=None, mode="raise": (
            0 * x + gradient(lambda z: take(z, indices, axis, mode), x.shape, dy)
        ),
    ),
    OpCase(
        "embedding",
        samples=[
            sample(F(6, 3), C([0, 5, 5, 1], "int64")),
            sample(F(6, 3), I(2, 3, low=0, high=6, dtype="int32")),
            sample(F(6, 2, 2), I(low=0, high=6)),
            sample(F(6, 3), I(0, low=0, high=6)),
        ],
        oracle=lambda x, indices: x[indices.long()],
    ),
    OpCase(
        "embedding",
        samples=[sample(F(6, 3), I(2, 4, low=0, high=6), 1)],
        oracle=lambda x, indices, padding_idx: x[indices],
        grad=False,  # that of the padding is 0, whatever the result: see test_transform.py
    ),
    OpCase(
        "embedding_dx",
        samples=[
            sample(F(7, 3), I(7, low=0, high=6), 6),
            sample(F(2, 4, 3), I(2, 4, low=0, high=6, dtype="int32"), (6, 3)),
            sample(F(2), I(low=0, high=6), 6),
            sample(F(0, 3), I(0, low=0, high=6), 6),
        ],
        oracle=lambda dy, indices, num_weight: gradient(
            lambda x: x[indices.long()],
            (num_weight, *dy.shape[indices.ndim :]) if isinstance(num_weight, int) else num_weight,
            dy,
        ),
    ),
]
