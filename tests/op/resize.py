"""Test records of resizing and sampling of images."""

import math

import torch

from meta.testing import C, F, I, OpCase, error, refusals, sample

_ROUND = {
    "floor": math.floor,
    "ceil": math.ceil,
    "round": lambda c: math.floor(c + 0.5),
    "round_prefer_ceil": lambda c: math.floor(c + 0.5),
    "round_prefer_floor": lambda c: math.ceil(c - 0.5),
}


def _coordinate(o, m, n, mode):
    if mode == "pytorch_half_pixel" and n == 1:
        return 0.0
    if mode in ("half_pixel", "pytorch_half_pixel"):
        return (o + 0.5) * m / n - 0.5
    if mode == "align_corners":
        return o * (m - 1) / (n - 1) if n > 1 else 0.0
    return (o + 0.5) * m / n if mode == "tf_half_pixel_for_nn" else o * m / n


def _matrix(m, n, method, mode, rounding, alpha, exclude):
    """Return the weights [n, m] with which the samples of an axis read its elements."""
    weights = torch.zeros(n, m, dtype=torch.float64)
    for o in range(n):
        c = _coordinate(o, m, n, mode)
        if method == "nearest_neighbor":
            default = "round" if mode == "align_corners" else "floor"
            read = {_ROUND[rounding or default](c): 1.0}
        elif method == "linear":
            read = {math.floor(c): 1 - c % 1, math.floor(c) + 1: c % 1}
        else:
            read = {}
            for i in range(math.floor(c) - 1, math.floor(c) + 3):
                s = abs(c - i)
                near = (alpha + 2) * s**3 - (alpha + 3) * s**2 + 1
                far = alpha * (s**3 - 5 * s**2 + 8 * s - 4)
                read[i] = near if s <= 1 else far
            if exclude:
                read = {i: w for i, w in read.items() if 0 <= i < m}
                read = {i: w / sum(read.values()) for i, w in read.items()}
        for i, w in read.items():
            weights[o, min(max(i, 0), m - 1)] += w
    return weights


def resize(
    x,
    size,
    layout="NCHW",
    method="linear",
    mode="half_pixel",
    rounding="",
    alpha=-0.5,
    exclude=0,
    out_dtype="",
):
    axes = [layout.index(letter) for letter in "DHW" if letter in layout]
    sizes = (size,) * len(axes) if isinstance(size, int) else size
    y = x.double()
    for axis, n in zip(axes, sizes, strict=True):
        w = _matrix(x.shape[axis], n, method, mode, rounding, alpha, exclude)
        y = torch.movedim(torch.movedim(y, axis, -1) @ w.T, -1, axis)
    return y if x.dtype.is_floating_point else y.to(x.dtype)


def resize_dx(x, dy, *args):
    leaf = torch.zeros(x.shape, dtype=torch.float64, requires_grad=True)
    with torch.enable_grad():
        (dx,) = torch.autograd.grad(resize(leaf, *args), leaf, dy, create_graph=dy.requires_grad)
    return dx


def _upsampling(
    x, scale_h=1.0, scale_w=1.0, layout="NCHW", method="nearest_neighbor", align_corners=False
):
    size = round(x.shape[layout.index("H")] * scale_h), round(x.shape[layout.index("W")] * scale_w)
    mode = "align_corners" if align_corners else "asymmetric"
    return resize(x, size, layout, method.removeprefix("bi"), mode)


# (shape, size, further arguments)
_CALLS = [
    ((2, 3, 4, 4), (8, 6)),
    ((1, 1, 3, 5), 4, "NCHW", "linear", "align_corners"),
    ((1, 2, 6, 4), (3, 9), "NCHW", "linear", "asymmetric"),
    ((1, 5, 3, 2), (7, 2), "NHWC", "linear", "pytorch_half_pixel"),
    ((1, 1, 1, 4), (3, 1), "NCHW", "linear", "align_corners"),
    ((0, 2, 3, 3), 2),
    ((1, 2, 5, 3), (4, 7), "NCHW", "nearest_neighbor", "asymmetric"),
    ((1, 1, 4, 7), (9, 3), "NCHW", "nearest_neighbor", "half_pixel", "round_prefer_floor"),
    ((1, 1, 4, 7), (8, 3), "NCHW", "nearest_neighbor", "half_pixel", "round_prefer_ceil"),
    ((1, 1, 5, 4), (9, 10), "NCHW", "nearest_neighbor", "align_corners"),
    ((1, 1, 6, 4), (4, 6), "NCHW", "nearest_neighbor", "asymmetric", "ceil"),
    ((1, 4, 6, 1), (2, 11), "NHWC", "nearest_neighbor", "tf_half_pixel_for_nn"),
    ((1, 1, 1, 1), (3, 2), "NCHW", "nearest_neighbor", "half_pixel"),
    ((1, 1, 5, 6), (9, 4), "NCHW", "cubic"),
    ((1, 1, 4, 5), (7, 3), "NCHW", "cubic", "align_corners", "", -0.75),
    ((1, 1, 5, 2), (3, 5), "NCHW", "cubic", "asymmetric", "", -0.5, 1),
    ((1, 2, 33, 40), (17, 95), "NCHW", "cubic", "half_pixel", "", -0.75, 1),
]


def result(shape, size, layout="NCHW", *_):
    """Return the shape of a resized tensor."""
    letters = [letter for letter in "DHW" if letter in layout]
    extents = (size,) * len(letters) if isinstance(size, int) else size
    sizes = dict(zip(letters, extents, strict=True))
    return [sizes.get(letter, n) for letter, n in zip(layout, shape, strict=True)]


CASES = [
    OpCase("resize2d", [sample(F(*shape), *rest) for shape, *rest in _CALLS], resize),
    OpCase(
        "resize2d",
        [
            sample(I(1, 2, 5, 4, low=0, high=99, dtype=d), (3, 6), "NCHW", "nearest_neighbor")
            for d in ("uint8", "int8", "int32", "int64", "uint16", "uint32")
        ],
        resize,
        dtypes=(),
    ),
    OpCase(
        "resize2d_dx",
        [sample(F(*shape), F(*result(shape, *rest)), *rest) for shape, *rest in _CALLS],
        resize_dx,
    ),
    OpCase(
        "upsampling",
        [
            sample(F(1, 2, 3, 4), 2.0, 3.0),
            sample(F(2, 3, 4, 1), 1.5, 0.5, "NHWC", "bilinear"),
            sample(F(1, 1, 3, 3), 2.0, 2.0, "NCHW", "bilinear", True),
            sample(F(1, 1, 4, 3), 1.75, 2.0, method="bicubic"),
            sample(F(1, 1, 2, 2)),
        ],
        _upsampling,
    ),
]

_X = F(1, 2, 4, 4)

CASES += refusals(
    {
        "resize2d": [
            error(F(2, 4, 4), 2, match="x must have 4 axes"),
            error(_X, 0, match="there must be one sample at least"),
            error(_X, (2, 2, 2), match="ints"),
            error(_X, 2, method="area", match="method is not known"),
            error(_X, 2, cubic_exclude=2, match="cubic_exclude is a flag"),
            error(_X, 2, layout="NCHW4c", match="layout"),
        ],
        "resize2d_dx": [error(_X, F(1, 2, 3, 3), 2, match="dy does not fit")],
        "upsampling": [
            error(F(2, 4, 4), match="x must have 4 axes"),
            error(_X, scale_h=-1.0, match="there must be one sample at least"),
            error(_X, scale_w=math.inf, match="no extent follows from the scale"),
        ],
    }
)

# (shape, size, further arguments)
_CALLS_1D = [
    ((2, 3, 5), 8, "NCW"),
    ((1, 2, 4), (9,), "NCW", "linear", "align_corners"),
    ((1, 5, 2), 3, "NWC", "nearest_neighbor", "asymmetric"),
    ((1, 1, 7), 4, "NCW", "cubic", "pytorch_half_pixel", "", -0.75),
]

CASES += [
    OpCase("resize1d", [sample(F(*shape), *rest) for shape, *rest in _CALLS_1D], resize),
    OpCase(
        "resize1d_dx",
        [sample(F(*shape), F(*result(shape, *rest)), *rest) for shape, *rest in _CALLS_1D],
        resize_dx,
    ),
]

CASES += refusals(
    {
        "resize1d": [
            error(F(1, 2, 4, 4), 2, match="x must have 3 axes"),
            error(F(1, 2, 4), 0, match="there must be one sample at least"),
            error(F(1, 2, 4), 2, method="area", match="method is not known"),
        ],
        "resize1d_dx": [error(F(1, 2, 4), F(*[1] * 3), 2, match="dy does not fit")],
    }
)

# (shape, size, further arguments)
_CALLS_3D = [
    ((1, 2, 3, 2, 4), (4, 3, 6), "NCDHW"),
    ((1, 1, 2, 3, 3), 5, "NCDHW", "linear", "align_corners"),
    ((1, 2, 3, 2, 3), (3, 4, 5), "NDHWC", "nearest_neighbor", "asymmetric"),
    ((1, 1, 3, 2, 4), (2, 4, 3), "NCDHW", "cubic", "half_pixel", "", -0.75, 1),
]

CASES += [
    OpCase("resize3d", [sample(F(*shape), *rest) for shape, *rest in _CALLS_3D], resize),
    OpCase(
        "resize3d_dx",
        [sample(F(*shape), F(*result(shape, *rest)), *rest) for shape, *rest in _CALLS_3D],
        resize_dx,
    ),
]

CASES += refusals(
    {
        "resize3d": [
            error(F(1, 2, 4, 4), 2, match="x must have 5 axes"),
            error(F(1, 1, 2, 2, 2), 0, match="there must be one sample at least"),
            error(F(1, 1, 2, 2, 2), 2, method="area", match="method is not known"),
        ],
        "resize3d_dx": [error(F(1, 1, 2, 2, 2), F(*[1] * 5), 2, match="dy does not fit")],
    }
)


def grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False):
    return torch.nn.functional.grid_sample(x, grid, mode, padding_mode, align_corners)


def grid_sample_dx(x, grid, dy, *options, **named):
    leaves = [t.detach().requires_grad_() for t in (x, grid)]
    with torch.enable_grad():
        y = grid_sample(*leaves, *options, **named)
        return torch.autograd.grad(y, leaves, dy)


_N, _I = math.nan, math.inf

STRANGE = [[[_N, 0.0], [0.0, _N], [_N, _N]], [[_I, 0.0], [-_I, 0.5], [0.5, _I]]]

STRANGE_3D = [[[*place, 0.25] for place in row] for row in STRANGE]

CASES += [
    OpCase(
        "grid_sample",
        [
            sample(F(2, 3, 4, 5), F(2, 3, 2, 2, low=-1.4, high=1.4)),
            *(
                sample(F(1, 2, 4, 5), F(1, 3, 2, 2, low=-1.7, high=1.7), mode, padding, align)
                for mode in ("bilinear", "nearest", "bicubic")
                for padding in ("zeros", "border", "reflection")
                for align in (False, True)
            ),
            # Far outside, where a mirrored image begins anew several times.
            *(
                sample(F(1, 2, 3, 4), F(1, 3, 2, 2, low=-7.0, high=7.0), "bicubic", padding)
                for padding in ("zeros", "border", "reflection")
            ),
            *(
                sample(F(1, 2, 3, 4, 5), F(1, 2, 2, 3, 3, low=-1.4, high=1.4), mode, padding)
                for mode in ("bilinear", "nearest")
                for padding in ("zeros", "border", "reflection")
            ),
            sample(F(1, 1, 1, 1), F(1, 2, 2, 2), align_corners=True),
            sample(F(0, 2, 3, 4), F(0, 2, 2, 2)),
        ],
        grid_sample,
        # Half precision rounds the positions, which the oracle has in double precision.
        dtypes=("float32", "float64"),
        # torch has no double backward of bicubic sampling, nor of any in volumes.
        second=False,
        errors=[
            error(F(2, 3, 4), F(2, 3, 2), match="is no image and no volume"),
            error(F(1, 1, 2, 2, 2), F(1, 2, 2, 2, 3), "bicubic", match="bicubic is for images"),
            error(F(1, 1, 2, 2), F(2, 2, 2, 2), match="grid does not fit x"),
            error(F(1, 1, 2, 2), F(1, 2, 2, 2), "linear", match="mode is not known"),
            error(F(1, 1, 0, 2), F(1, 2, 2, 2), match="nothing to sample"),
        ],
    ),
    OpCase(
        "grid_sample",
        [
            *(
                sample(F(1, 2, 3, 4), C([STRANGE]), mode, padding, align)
                for mode in ("bilinear", "nearest", "bicubic")
                for padding in ("zeros", "border", "reflection")
                for align in (False, True)
            ),
            *(
                sample(F(1, 2, 3, 4, 5), C([[STRANGE_3D]]), mode, padding)
                for mode in ("bilinear", "nearest")
                for padding in ("zeros", "border", "reflection")
            ),
        ],
        grid_sample,
        dtypes=("float32", "float64"),
        grad=False,
    ),
    OpCase(
        "grid_sample_dx",
        [
            *(
                sample(*arguments, mode, padding, align)
                for arguments in (
                    (F(2, 3, 4, 5), F(2, 3, 2, 2, low=-1.4, high=1.4), F(2, 3, 3, 2)),
                    (F(1, 2, 3, 4, 5), F(1, 2, 2, 3, 3, low=-1.4, high=1.4), F(1, 2, 2, 2, 3)),
                )
                for mode in ("bilinear", "nearest")
                for padding in ("zeros", "border", "reflection")
                for align in (False, True)
            ),
            sample(F(1, 2, 4, 5), F(1, 3, 2, 2, low=-1.7, high=1.7), F(1, 2, 3, 2), "bicubic"),
            sample(F(0, 2, 3, 4), F(0, 2, 2, 2), F(0, 2, 2, 2)),
        ],
        grid_sample_dx,
        dtypes=("float32", "float64"),
        dialects=("torch",),
        grad=False,
        why="torch has no double backward of bicubic sampling, nor of any in volumes; "
        "tests/op/test_resize.py has those of the others",
        errors=[error(F(1, 1, 2, 2), F(1, 2, 2, 2), F(1, 1, 2, 3), match="dy does not fit")],
    ),
]
