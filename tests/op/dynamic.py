"""Test records of operators whose shapes depend on data."""

import numpy as np
import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample

NAN = float("nan")


def argwhere(condition):
    """numpy's."""
    return torch.from_numpy(np.argwhere(condition.numpy()))


def upper_bound_argwhere(condition):
    """numpy's, with rows of -1 behind it."""
    found = argwhere(condition)
    indices = torch.full((condition.numel(), condition.ndim), -1)
    indices[: len(found)] = found
    return indices, torch.tensor(found.shape)


def nonzero(x):
    """numpy's."""
    return tuple(map(torch.from_numpy, np.nonzero(x.numpy())))


def unique(x, return_inverse=False, return_counts=False):
    """numpy's, in which the inverse may be flat."""
    found = np.unique(
        x.numpy(),
        return_inverse=return_inverse,
        return_counts=return_counts,
        equal_nan=False,
    )
    if not isinstance(found, tuple):
        return torch.from_numpy(found)
    results = [torch.from_numpy(f) for f in found]
    if return_inverse:
        results[1] = results[1].reshape(x.shape)
    return tuple(results)


PLACES = [
    sample(B(3, 4)),
    sample(I(2, 3, 2, low=0, high=2, dtype="int32")),
    sample(C([0.0, -0.0, NAN, 2.0])),
    sample(F(0, 3)),
]

CASES = [
    OpCase("argwhere", [*PLACES, sample(F())], argwhere, dialects=("torch",), grad=False),
    OpCase(
        "upper_bound_argwhere",
        samples=[
            *PLACES,
            sample(F()),
            sample(C(0.0)),
            sample(I(3, 5, 7, 31, low=0, high=2)),
            sample(I(0, 0, 2, low=0, high=2)),
            sample(I(2, 3, low=0, high=1, dtype="uint8")),
        ],
        oracle=upper_bound_argwhere,
        grad=False,
    ),
    OpCase("nonzero", PLACES, nonzero, dialects=("torch",), grad=False),
    OpCase(
        "unique",
        samples=[
            sample(I(3, 5, low=-3, high=3)),
            sample(C([[2.0, 1.0, 2.0], [0.0, -1.0, 1.0]]), True),
            sample(C([2.0, NAN, 1.0, 2.0, NAN]), return_counts=True),
            sample(I(9, low=0, high=4, dtype="uint8"), True, True),
            sample(C([2**16 - 1, 0, 3, 2**16 - 1], "uint16"), True, True),
            sample(C([2**32 - 1, 0, 3, 2**32 - 1], "uint32"), True, True),
            sample(B(7)),
            sample(F(0)),
        ],
        oracle=unique,
        dialects=("torch",),
        grad=False,
    ),
]

CASES += refusals({"nonzero": [error(F(), match="x has no axis")]})


def sparse_fill_empty_rows(indices, values, shape, default):
    """Row by row."""
    places, numbers, empty = [], [], []
    for row in range(int(shape[0])):
        own = [k for k, at in enumerate(indices.tolist()) if at[0] == row]
        empty.append(not own)
        places += [indices[k] for k in own] or [torch.tensor([row] + [0] * (len(shape) - 1))]
        numbers += [values[k] for k in own] or [default]
    return (
        torch.stack(places).to(indices.dtype),
        torch.stack(numbers),
        torch.tensor(empty, dtype=torch.bool),
    )


ENTRIES = C([[3, 1], [0, 3], [0, 1], [2, 0]], "int64")

NONE = C([[0, 0]], "int64")

CASES += [
    OpCase(
        "sparse_fill_empty_rows",
        samples=[
            sample(ENTRIES, F(4), C([5, 6], "int64"), F()),
            sample(ENTRIES, I(4, low=0, high=9), C([4, 6], "int64"), C(10, "int64")),
            sample(NONE, F(1), C([3, 1], "int64"), F()),
        ],
        oracle=sparse_fill_empty_rows,
        dialects=("torch",),
        grad=False,
        errors=[
            error(F(4, 2), F(4), C([5, 6], "int64"), F(), match="integer"),
            error(ENTRIES, F(4), F(2), F(), match="integer"),
            error(ENTRIES, F(4, 1), C([5, 6], "int64"), F(), match="no sparse tensor"),
            error(ENTRIES, F(4), C([5, 6], "int64"), C(1, "int64"), match="dtype"),
        ],
    )
]


def ints(*values):
    return C(list(values), "int64")


def reshape(x, shape):
    return x.reshape(shape.tolist())


def broadcast_to(x, shape):
    return x.broadcast_to(shape.tolist())


def full(fill_value, shape, dtype):
    return fill_value.reshape(()).to(getattr(torch, dtype)).expand(shape.tolist())


def arange(start, stop, step, dtype):
    return torch.arange(*[float(x) for x in (start, stop, step)]).to(getattr(torch, dtype))


def strided_slice(x, begin, end, strides, slice_mode="end"):
    cuts = zip(begin.tolist(), end.tolist(), strides.tolist(), strict=False)
    for axis, (b, e, s) in enumerate(cuts):
        if slice_mode == "size":
            e = x.shape[axis] if e < 0 else b + e
        picked = range(*slice(b, e, s).indices(x.shape[axis]))
        x = x.index_select(axis, torch.tensor(list(picked), dtype=torch.int64))
    return x


def strided_slice_dx(x, dy, *bounds):
    places = strided_slice(torch.arange(x.numel()).reshape(x.shape), *bounds)
    return (
        torch.zeros_like(x)
        .reshape(-1)
        .index_put((places.reshape(-1),), dy.reshape(-1))
        .reshape(x.shape)
    )


def topk(x, k, axis=-1, largest=True, ret_type="both", dtype="int64"):
    count = int(k) if int(k) >= 1 else x.shape[axis]
    values, indices = torch.sort(x, dim=axis, descending=largest, stable=True)
    values, indices = values.narrow(axis, 0, count), indices.narrow(axis, 0, count)
    indices = indices.to(getattr(torch, dtype))
    return {"both": (values, indices), "values": values, "indices": indices}[ret_type]


def one_hot(indices, on_value, off_value, depth, axis=-1, dtype="int32"):
    hot = torch.zeros(*indices.shape, int(depth)).scatter(-1, indices.long()[..., None], 1.0)
    chosen = torch.where(hot.bool(), torch.tensor(on_value), torch.tensor(off_value))
    return chosen.movedim(-1, axis).to(getattr(torch, dtype))


def tile(x, reps):
    return x.tile(reps.tolist())


def pad(x, pad_width, pad_value=0.0, pad_mode="constant"):
    for axis, (before, after) in enumerate(pad_width.tolist()):
        n = x.shape[axis]
        if pad_mode == "constant":
            around = [
                x.new_full((*x.shape[:axis], k, *x.shape[axis + 1 :]), float(pad_value))
                for k in (before, after)
            ]
            x = torch.cat([around[0], x, around[1]], axis)
        else:
            places = torch.arange(-before, n + after).abs()
            x = x.index_select(axis, torch.where(places < n, places, 2 * (n - 1) - places))
    return x  # fmt: skip


def resize2d(x, size, layout="NCHW", method="linear", **_):
    mode = {"linear": "bilinear", "nearest_neighbor": "nearest"}[method]
    flag = {"align_corners": False} if mode == "bilinear" else {}
    return torch.nn.functional.interpolate(x, tuple(size.tolist()), mode=mode, **flag)


def squeeze(x, axes):
    return x.squeeze(tuple(axes.tolist()))


def expand_dims(x, axis, num_newaxis=1):
    for _ in range(num_newaxis):
        x = x.unsqueeze(int(axis))
    return x


def case(name, samples, oracle, **options):
    return OpCase(f"dynamic_{name}", samples, oracle, dialects=("torch",), **options)


CASES += [
    case(
        "reshape",
        [
            sample(F(2, 8), ints(4, 4)),
            sample(F(2, 6), ints(2, -1, 2)),
            sample(F(0, 6), ints(3, 0)),
            sample(F(1, 1), C([], "int32")),
        ],
        reshape,
    ),
    case(
        "broadcast_to",
        [
            sample(F(3, 1), ints(3, 3, 3)),
            sample(F(3, 1), ints(2, 3, 4)),
            sample(F(), C([5], "int32")),
            sample(F(2), ints(2)),
        ],
        broadcast_to,
    ),
    case(
        "full",
        [sample(F(), ints(3, 3), "float64"), sample(I(1, low=0, high=9), ints(0, 2), "int32")],
        full,
    ),
    case(
        "arange",
        [
            sample(C(1, "int64"), C(9, "int64"), C([3], "int64"), "int32"),
            sample(C(5, "int32"), C(1, "int32"), C(-2, "int32"), "float32"),
        ],
        arange,
        grad=False,
    ),
    case(
        "strided_slice",
        [
            sample(F(5, 4, 6), ints(1, 3, -1), ints(4, 0, -5), ints(2, -1, -2)),
            sample(F(5, 4), ints(1), ints(2), ints(1), "size"),
            sample(F(5, 4), ints(1, 0), ints(2, -1), ints(1, 1), "size"),
            sample(F(5, 4), ints(4), ints(1), ints(1)),
        ],
        strided_slice,
    ),
    case(
        "strided_slice_dx",
        [
            sample(F(3, 4), F(3, 4), ints(0), ints(3), ints(1)),
            sample(F(5, 4, 6), F(2, 3, 2), ints(1, 3, -1), ints(4, 0, -5), ints(2, -1, -2)),
            sample(F(5, 4), F(2, 4), ints(1, 0), ints(2, -1), ints(1, 1), "size"),
        ],
        strided_slice_dx,
    ),
    case(
        "topk",
        [
            sample(F(2, 5), C(3, "int64")),
            sample(F(2, 5), C([0], "int32"), 0, False, "values"),
        ],
        topk,
    ),
    case(
        "topk",
        [sample(F(2, 5), C(1, "int32"), 1, True, "indices", dtype="int32")],
        topk,
        grad=False,
    ),
    case(
        "one_hot",
        [
            sample(I(3, low=0, high=4), 2.0, -1.0, C(4, "int64"), 0, "float32"),
            sample(I(2, 3, low=0, high=2), 1, 0, C([2], "int32")),
        ],
        one_hot,
        grad=False,
    ),
    case(
        "tile",
        [sample(F(2, 3), ints(2, 1, 3)), sample(F(2, 3), ints(2)), sample(F(2), ints(0))],
        tile,
    ),
    case(
        "pad",
        [
            sample(F(2, 3), C([[1, 0], [0, 2]], "int64")),
            sample(F(2, 3), C([[1, 0], [0, 2]], "int32"), C(2.5)),
            sample(F(4, 3), C([[2, 1], [0, 2]], "int32"), 0.0, "reflect"),
        ],
        pad,
        grad=False,
    ),
    case(
        "resize2d",
        [
            sample(F(1, 2, 4, 6), ints(7, 3)),
            sample(F(1, 2, 4, 6), ints(8, 3), method="nearest_neighbor",
                   coordinate_transformation_mode="asymmetric"),
        ],
        resize2d,
        grad=False,
    ),
    case("squeeze", [sample(F(1, 3), ints(0)), sample(F(1, 3, 1), ints(0, -1))], squeeze),
    case("expand_dims", [sample(F(2, 3), C(1, "int64")), sample(F(2), C([-1], "int32"), 2)],
         expand_dims),
]  # fmt: skip

_X = F(2, 3)

NO_VECTOR = [
    error(_X, C(1, "int64"), match="must be a vector"),
    error(_X, F(2), match="indices must be integers"),
]

CASES += refusals(
    {
        "dynamic_reshape dynamic_broadcast_to dynamic_tile dynamic_squeeze": NO_VECTOR,
        "dynamic_full": [error(F(2), ints(2), "float32", match="must have one element")],
        "dynamic_arange": [
            error(F(2), F(), F(), "float32", match="must have one element"),
            error(F(), F(), F(), "bool", match="bool cannot"),
        ],
        "dynamic_strided_slice": [
            error(_X, ints(0), ints(1, 2), ints(1), match="one entry for each"),
            error(_X, ints(0), ints(1), ints(1), "all", match="slice_mode is unknown"),
        ],
        "dynamic_strided_slice_dx": [
            error(_X, F(2, 4), ints(0), ints(1), ints(1), match="dy has another shape"),
            error(
                _X, C([[1.0] * 3], "float64"), ints(0), ints(1), ints(1), match="differ in dtype"
            ),
        ],
        "dynamic_topk": [
            error(_X, ints(1, 2), match="must have one element"),
            error(_X, ints(1), 2, match="out of range"),
            error(_X, ints(1), 1, True, "none", match="unknown ret_type"),
        ],
        "dynamic_one_hot": [
            error(I(2, low=0, high=2), 1, 0, ints(1, 2), match="must have one element"),
            error(F(2), 1, 0, ints(1), match="must be integers"),
        ],
        "dynamic_pad": [
            error(_X, ints(1, 2), match="before and after every axis"),
            error(_X, C([[0, 0], [0, 0]], "int64"), F(2), match="must have one element"),
            error(_X, C([[0, 0], [0, 0]], "int64"), 0.0, "mean", match="unknown padding mode"),
        ],
        "dynamic_resize2d": [
            error(F(1, 2, 3, 4), ints(1), match="height and width"),
            error(_X, ints(1, 2), match="must have 4 axes"),
        ],
        "dynamic_squeeze": [error(_X, ints(0, 1, 2), match="more axes are named")],
        "dynamic_expand_dims": [
            error(_X, ints(0, 1), match="must have one element"),
            error(_X, ints(0), -1, match="no number of axes"),
        ],
    }
)
