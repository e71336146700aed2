"""What the operators with extents of the run time have to do: what torch does with the values."""

import torch

from meta.testing import C, F, I, OpCase, error, refusals, sample


def ints(*values):
    return C(list(values), "int64")


def reshape(x, shape, allowzero=False):
    kept = [d or (0 if allowzero else x.shape[i]) for i, d in enumerate(shape.tolist())]
    return x.reshape(kept)


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


def topk(data, k, axis=-1, ret_type="both", is_ascend=False, dtype="int64"):
    count = int(k) if int(k) >= 1 else data.shape[axis]
    values, indices = torch.sort(data, dim=axis, descending=not is_ascend, stable=True)
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


CASES = [
    case(
        "reshape",
        [
            sample(F(2, 8), ints(4, 4)),
            sample(F(2, 6), ints(0, -1, 2)),
            sample(F(0, 6), ints(3, 0), True),
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
            sample(F(2, 5), C([0], "int32"), 0, "values", True),
        ],
        topk,
    ),
    case("topk", [sample(F(2, 5), C(1, "int32"), 1, "indices", dtype="int32")], topk, grad=False),
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
            error(_X, ints(1), 1, "none", match="unknown ret_type"),
        ],
        "dynamic_one_hot": [
            error(I(2, low=0, high=2), 1, 0, ints(1, 2), match="must have one element"),
            error(F(2), 1, 0, ints(1), match="must be integers"),
        ],
        "dynamic_pad": [
            error(_X, ints(1, 2), match="before and after every axis"),
            error(_X, C([[0, 0], [0, 0]], "int64"), F(2), match="must have one element"),
            error(_X, C([[0, 0], [0, 0]], "int64"), 0.0, "wrap", match="unknown padding mode"),
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
