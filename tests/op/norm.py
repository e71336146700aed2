"""Test records of normalisations."""

import torch
import torch.nn.functional as F_

from meta.testing import C, F, I, OpCase, error, refusals, sample

POSITIVE = {"low": 0.5, "high": 2.0}


def batch_norm_train(x, mean, var, w=None, b=None, momentum=0.1, eps=1e-5, axis=1):
    mean, var = mean.detach().clone(), var.detach().clone()
    y = F_.batch_norm(x.movedim(axis, 1), mean, var, w, b, True, momentum, eps)
    return y.movedim(1, axis), mean, var


def batch_norm_infer(x, mean, var, w=None, b=None, momentum=0.1, eps=1e-5, axis=1):
    lifted = [1] * x.ndim
    lifted[axis] = -1
    y = (x - mean.reshape(lifted)) / torch.sqrt(var + eps).reshape(lifted)
    y = y if w is None else y * w.reshape(lifted)
    return y if b is None else y + b.reshape(lifted)


def batch_norm_train_dxwb(dy, x, w, b, eps, axis=1):
    if axis != 1:
        moved = (t.movedim(axis, 1) for t in (dy, x))
        dx, *others = batch_norm_train_dxwb(*moved, w, b, eps)
        return dx.movedim(1, axis), *others
    channels = x.shape[1]
    x = x.clone().requires_grad_()
    w = (torch.ones(channels, dtype=x.dtype) if w is None else w.clone()).requires_grad_()
    b = torch.zeros(channels, dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(F_.batch_norm(x, None, None, w, b, True, 0.1, eps), (x, w, b), dy)


def layer_norm(x, scale=None, bias=None, axis=-1, eps=1e-5):
    return layer_norm_train(x, scale, bias, axis, eps)[0]


def layer_norm_train(x, scale=None, bias=None, axis=-1, eps=1e-5):
    x = x.movedim(axis, -1)
    mean = x.mean(-1)
    invvar = 1 / torch.sqrt(((x - mean.unsqueeze(-1)) ** 2).mean(-1) + eps)
    y = F_.layer_norm(x, x.shape[-1:], scale, bias, eps)
    return y.movedim(-1, axis), mean.detach(), invvar.detach()


def layer_norm_dx(x, scale, dy, axis=-1, eps=1e-5):
    x = x.clone().requires_grad_()
    if scale is None:
        return torch.autograd.grad(layer_norm(x, None, None, axis, eps), x, dy)[0]
    scale, bias = scale.clone().requires_grad_(), torch.zeros_like(scale, requires_grad=True)
    return torch.autograd.grad(layer_norm(x, scale, bias, axis, eps), (x, scale, bias), dy)


def layer_norm_train_dx(x, scale, dy, mean, invvar, axis=-1, eps=1e-5):
    """The formula in closed form, for mean and invvar as given."""
    n = x.shape[axis]
    lift = [1] * x.ndim
    lift[axis] = n
    xhat = (x - mean.unsqueeze(axis)) * invvar.unsqueeze(axis)
    g = dy if scale is None else dy * scale.reshape(lift)
    along = (g * xhat).sum(axis, keepdim=True) / n
    dx = invvar.unsqueeze(axis) * (g - g.sum(axis, keepdim=True) / n - xhat * along)
    if scale is None:
        return dx
    others = [i for i in range(x.ndim) if i != axis % x.ndim]
    sums = [t.sum(others) if others else t for t in (dy * xhat, dy)]
    return dx, *sums


def wide(*shape, low=0.5, high=2.0):
    """Floats in float32 whatever the dtype under test, as beside half precision data."""
    spec = F(*shape, low=low, high=high)
    return type(spec)(lambda _, generator: spec.make("float32", generator), f"wide{list(shape)}")


def statistics(*shape):
    """Statistics of layer norm: float64 beside float64, else float32."""
    spec = F(*shape, **POSITIVE)

    def make(dtype, generator):
        return spec.make("float64" if dtype == "float64" else "float32", generator)

    return type(spec)(make, f"statistics{list(shape)}")


HALVES = ("float16", "bfloat16", "float32")

BATCH = [
    sample(F(4, 3), F(3), F(3, **POSITIVE)),
    sample(F(4, 3), F(3), F(3, **POSITIVE), F(3), F(3)),
    sample(F(2, 3, 4, 5), F(3), F(3, **POSITIVE), F(3), F(3), 0.3, 1e-3),
    sample(F(2, 3, 7), F(3), F(3, **POSITIVE), F(3)),
    sample(F(3, 1, 2), F(1), F(1, **POSITIVE), None, F(1)),
    sample(F(2, 4, 5, 3), F(3), F(3, **POSITIVE), F(3), F(3), axis=-1),
]

LAYER = [
    sample(F(4, 6)),
    sample(F(4, 6), F(6), F(6)),
    sample(F(2, 5, 3), F(5), F(5), axis=1),
    sample(F(2, 5, 3), F(2), axis=-3, eps=1e-3),
    sample(F(2, 6), None, F(6)),
    sample(F(7), F(7), F(7)),
    sample(F(0, 4), F(4), F(4)),
    sample(F(3, 200), F(200), F(200)),
]

MIXED_BATCH = [
    sample(F(4, 3, 2, 2), wide(3), wide(3), wide(3), wide(3)),
    sample(F(4, 2, 2, 8), wide(8), wide(8), wide(8), wide(8), axis=3),
]

MIXED_LAYER = [sample(F(4, 6), wide(6), wide(6))]

CASES = [
    OpCase("batch_norm_train", BATCH, batch_norm_train),
    OpCase("batch_norm_train", MIXED_BATCH, batch_norm_train, HALVES, grad=False),
    OpCase("batch_norm_infer", BATCH, batch_norm_infer),
    OpCase("batch_norm_infer", MIXED_BATCH, batch_norm_infer, HALVES, grad=False),
    OpCase(
        "batch_norm_train_dxwb",
        [
            sample(F(4, 3), F(4, 3), F(3), F(3), 1e-5),
            sample(F(2, 3, 4, 5), F(2, 3, 4, 5), F(3), None, 1e-3),
            sample(F(3, 2, 4), F(3, 2, 4), wide(2), wide(2), 1e-5),
            sample(F(2, 4, 5, 8), F(2, 4, 5, 8), wide(8), wide(8), 1e-5, 3),
        ],
        batch_norm_train_dxwb,
        HALVES,
        grad=False,
        why="it is the second gradient of batch_norm_train",
        # dw is a sum of 40 products, rounded to half precision at the end.
        atol={"float16": 2e-2, "bfloat16": 1e-1},
    ),
    OpCase("layer_norm", LAYER, layer_norm),
    OpCase("layer_norm", MIXED_LAYER, layer_norm, HALVES, grad=False),
    OpCase("layer_norm_train", LAYER, layer_norm_train),
    OpCase("layer_norm_train", MIXED_LAYER, layer_norm_train, HALVES, grad=False),
    OpCase(
        "layer_norm_dx",
        [
            sample(F(4, 6), F(6), F(4, 6)),
            sample(F(4, 6), None, F(4, 6)),
            sample(F(2, 5, 3), F(5), F(2, 5, 3), 1, 1e-3),
            sample(F(7), F(7), F(7)),
            sample(F(0, 4), F(4), F(0, 4)),
        ],
        layer_norm_dx,
        grad=False,
        why="it is the second gradient of layer_norm",
        atol={"float16": 1e-2, "bfloat16": 1e-1},
    ),
    OpCase(
        "layer_norm_train_dx",
        [
            sample(F(4, 6), F(6), F(4, 6), statistics(4), statistics(4)),
            sample(F(4, 6), None, F(4, 6), statistics(4), statistics(4)),
            sample(F(2, 5, 3), F(5), F(2, 5, 3), statistics(2, 3), statistics(2, 3), -2),
            sample(F(7), F(7), F(7), statistics(), statistics()),
        ],
        layer_norm_train_dx,
        grad=False,
        why="it is the second gradient of layer_norm_train",
        # The statistics are not those of x, so the terms do not cancel and results are large.
        atol={"float16": 3e-2, "bfloat16": 3e-1},
    ),
]

_X, _C = F(2, 3, 4), F(3)

_FLOATS_ONLY = I(2, 3, 4, low=0, high=3)

CHANNELS = [
    error(F(3), _C, _C, match="x must have a channel axis"),
    error(_FLOATS_ONLY, _C, _C, match="x must be floating point"),
    error(_X, F(4), _C, match="running_mean does not fit"),
    error(_X, _C, _C, F(4), match="w does not fit"),
    error(_X, _C, _C, None, C([1.0] * 3, "float16"), match="b does not fit"),
    error(_X, _C, _C, axis=3, match="axis 3 is out of range"),
]

ALONG = [
    error(_X, axis=3, match="axis 3 is out of range"),
    error(_FLOATS_ONLY, match="x must be floating point"),
    error(_X, F(3), match="scale does not fit"),
    error(_X, F(4), C([1.0] * 4, "float64"), match="bias does not fit"),
]

CASES += refusals(
    {
        "batch_norm_train": [*CHANNELS, error(F(1, 3), _C, _C, match="too few values per channel")],
        "batch_norm_infer": CHANNELS,
        "batch_norm_train_dxwb": [error(F(2, 3), _X, None, None, 1e-5, match="dy is not of x's")],
        "layer_norm layer_norm_train": ALONG,
        "layer_norm_dx": [
            error(_X, None, F(2, 3), match="dy is not of x's type"),
            error(_X, F(3), _X, match="scale does not fit"),
        ],
        "layer_norm_train_dx": [
            error(_X, None, _X, F(3), F(2, 3), match="mean does not fit"),
            error(_X, None, F(4), F(2, 3), F(2, 3), match="dy is not of x's type"),
        ],
    }
)


def group_norm(x, num_groups, scale=None, bias=None, eps=1e-5):
    """The formula: torch's own refuses groups of one value."""
    channels = x.shape[1]
    groups = x.reshape(x.shape[0], num_groups, channels // max(num_groups, 1), *x.shape[2:])
    axes = tuple(range(2, groups.ndim))
    centred = groups - groups.mean(axes, keepdim=True)
    y = centred / torch.sqrt((centred**2).mean(axes, keepdim=True) + eps)
    y, lifted = y.reshape(x.shape), (1, -1) + (1,) * (x.ndim - 2)
    y = y if scale is None else y * scale.reshape(lifted)
    return y if bias is None else y + bias.reshape(lifted)


def instance_norm(x, scale=None, bias=None, eps=1e-5):
    return F_.instance_norm(x, None, None, scale, bias, True, 0.0, eps)


def group_norm_dx(x, num_groups, scale, dy, eps=1e-5):
    x = x.clone().requires_grad_()
    if scale is None:
        return torch.autograd.grad(F_.group_norm(x, num_groups, None, None, eps), x, dy)[0]
    scale, bias = scale.clone().requires_grad_(), torch.zeros_like(scale, requires_grad=True)
    return torch.autograd.grad(F_.group_norm(x, num_groups, scale, bias, eps), (x, scale, bias), dy)


def group_wide(*shape):
    """Floats in float32 whatever the dtype under test, as beside half precision data."""
    spec = F(*shape, low=0.5, high=2.0)
    return type(spec)(lambda _, generator: spec.make("float32", generator), f"wide{list(shape)}")


CASES += [
    OpCase(
        "group_norm",
        [
            sample(F(2, 4, 3), 2),
            sample(F(2, 6, 3, 2), 3, F(6), F(6)),
            sample(F(2, 4, 5), 1, F(4), eps=1e-2),
            sample(F(2, 4, 5), 4, None, F(4)),
            sample(F(3, 6), 2, F(6), F(6)),
            sample(F(0, 4, 2), 2, F(4), F(4)),
            sample(F(1, 8, 2, 3, 4), 2, F(8), F(8)),
        ],
        group_norm,
    ),
    OpCase("group_norm", [sample(F(2, 2), 2, F(2), F(2))], group_norm, grad=False),
    OpCase(
        "group_norm",
        [sample(F(2, 4, 3), 2, group_wide(4), group_wide(4))],
        group_norm,
        HALVES,
        grad=False,
    ),
    OpCase(
        "instance_norm",
        [
            sample(F(2, 3, 5)),
            sample(F(2, 3, 4, 2), F(3), F(3)),
            sample(F(2, 3, 7), F(3), eps=1e-2),
            sample(F(1, 1, 6), None, F(1)),
        ],
        instance_norm,
    ),
    OpCase(
        "instance_norm",
        [sample(F(2, 4, 3), group_wide(4), group_wide(4))],
        instance_norm,
        HALVES,
        grad=False,
    ),
    OpCase(
        "group_norm_dx",
        [
            sample(F(2, 4, 3), 2, F(4), F(2, 4, 3)),
            sample(F(2, 4, 3), 4, None, F(2, 4, 3)),
            sample(F(2, 6, 3, 2), 3, F(6), F(2, 6, 3, 2), 1e-2),
            sample(F(3, 6), 1, F(6), F(3, 6)),
            sample(F(0, 4, 2), 2, F(4), F(0, 4, 2)),
        ],
        group_norm_dx,
        grad=False,
        why="it is the second gradient of group_norm",
        # Terms of the order of 5 that cancel, rounded to half precision at the end.
        atol={"float16": 1e-2, "bfloat16": 1e-1},
    ),
]

GROUP_X = F(2, 4, 3)

CASES += refusals(
    {
        "group_norm": [
            error(GROUP_X, 3, match="num_groups must divide the number of channels"),
            error(GROUP_X, 0, match="num_groups must divide the number of channels"),
            error(F(4), 2, match="x must have a channel axis"),
            error(GROUP_X, 2, F(3), match="scale does not fit"),
        ],
        "instance_norm": [
            error(F(4), match="x must have a channel axis"),
            error(GROUP_X, None, F(3), match="bias does not fit"),
        ],
        "group_norm_dx": [error(GROUP_X, 2, None, F(4), match="dy is not of x's type")],
    }
)


def rms_norm(x, scale=None, bias=None, axis=-1, eps=1e-6):
    y = F_.rms_norm(x.movedim(axis, -1), x.shape[axis : axis + 1 or None], scale, eps)
    return (y if bias is None else y + bias).movedim(-1, axis)


def rms_norm_dx(x, scale, dy, axis=-1, eps=1e-6):
    x = x.clone().requires_grad_()
    if scale is None:
        return torch.autograd.grad(rms_norm(x, None, None, axis, eps), x, dy)[0]
    scale = scale.clone().requires_grad_()
    return torch.autograd.grad(rms_norm(x, scale, None, axis, eps), (x, scale), dy)


def rms_wide(*shape):
    """Floats in float32 whatever the dtype under test, as beside half precision data."""
    spec = F(*shape, low=0.5, high=2.0)
    return type(spec)(lambda _, generator: spec.make("float32", generator), f"wide{list(shape)}")


CASES += [
    OpCase(
        "rms_norm",
        [
            sample(F(4, 6)),
            sample(F(4, 6), F(6)),
            sample(F(4, 6), F(6), F(6)),
            sample(F(2, 5, 3), F(5), axis=1),
            sample(F(2, 5, 3), None, F(2), axis=-3, eps=1e-2),
            sample(F(7), F(7)),
            sample(F(0, 4), F(4)),
            sample(F(3, 1), F(1)),
            sample(F(3, 200), F(200)),
        ],
        rms_norm,
    ),
    OpCase("rms_norm", [sample(F(4, 6), rms_wide(6), rms_wide(6))], rms_norm, HALVES, grad=False),
    OpCase(
        "rms_norm_dx",
        [
            sample(F(4, 6), F(6), F(4, 6)),
            sample(F(4, 6), None, F(4, 6)),
            sample(F(2, 5, 3), F(5), F(2, 5, 3), 1, 1e-2),
            sample(F(7), F(7), F(7)),
            sample(F(0, 4), F(4), F(0, 4)),
        ],
        rms_norm_dx,
        grad=False,
        why="it is the second gradient of rms_norm",
        # Sums of products of the order of 5, rounded to half precision at the end.
        atol={"float16": 1e-2, "bfloat16": 1e-1},
    ),
]

CASES += refusals(
    {
        "rms_norm": [
            error(F(2, 3), F(2), match="scale does not fit"),
            error(F(2, 3), axis=2, match="axis 2 is out of range"),
            error(F(), match="at least one axis"),
        ],
        "rms_norm_dx": [error(F(2, 3), None, F(3), match="dy is not of x's type")],
    }
)

INF, NAN = float("inf"), float("nan")


def lrn(x, size=5, axis=1, bias=1.0, alpha=1e-4, beta=0.75):
    """torch's normalises axis 1 of at least three."""
    moved = x.movedim(axis, 0)
    rows = moved.reshape(1, moved.shape[0], -1)
    y = F_.local_response_norm(rows, size, alpha, beta, bias)
    return y.reshape(moved.shape).movedim(0, axis)


def lrn_dx(x, dy, *args, **kwargs):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(lrn(x, *args, **kwargs), x, dy)[0]


def l2_normalize(x, eps=1e-12, axis=None):
    square = (x * x).sum(axis, keepdim=True) if x.ndim else x * x
    return x / torch.sqrt(torch.clamp_min(square, eps))


STRONG = {"bias": 2.0, "alpha": 0.5, "beta": 1.5}

SETTINGS = [
    ((2, 7, 3), {}),
    ((2, 7, 2, 3), {"size": 3, **STRONG}),
    ((2, 7, 3), {"size": 4, **STRONG}),
    ((2, 3, 4), {"size": 9, **STRONG}),
    ((2, 3, 6), {"axis": -1, "size": 3, **STRONG}),
    ((5,), {"axis": 0, "size": 1, **STRONG}),
]

CASES += [
    OpCase("lrn", [sample(F(*s), **how) for s, how in SETTINGS], lrn),
    OpCase(
        "lrn_dx",
        [sample(F(*s), F(*s), **how) for s, how in SETTINGS],
        lrn_dx,
        grad=False,
        why="it is the second gradient of lrn",
    ),
    OpCase(
        "l2_normalize",
        [
            sample(F(3, 4)),
            sample(F(3, 4), axis=1),
            sample(F(2, 3, 4), axis=(0, -1)),
            sample(F(2, 3, 4, low=-0.1, high=0.1), eps=0.05, axis=1),
            sample(F(3, 4), eps=100.0, axis=0),
            sample(F()),
            sample(F(3, 1), axis=-1),
            sample(F(0, 3), axis=1),
            sample(F(2, 700), axis=1),
            sample(C([[0.0, 0.0], [3.0, 4.0]]), axis=1),
        ],
        l2_normalize,
    ),
    OpCase(
        "l2_normalize",
        [sample(C([[NAN, 1.0], [300.0, 400.0]]), axis=1)],
        l2_normalize,
        grad=False,
    ),
    OpCase(
        "l2norm",
        [
            sample(F(3, 4)),
            sample(F(5)),
            sample(F(2, 1, 3)),
            sample(F(300, 3)),
            sample(C([3.0, 4.0])),
            sample(C([0.0, 0.0])),
        ],
        torch.linalg.vector_norm,
    ),
    OpCase(
        "l2norm",
        [sample(F(0)), sample(F()), sample(C([INF, 1.0])), sample(C([300.0, NAN]))],
        torch.linalg.vector_norm,
        grad=False,
    ),
]

_INTS = C([[1, 2], [3, 4]], "int64")

CASES += refusals(
    {
        "lrn": [
            error(F(2, 3), size=0, match="size must be positive"),
            error(F(3), match="axis 1 is out of range"),
            error(_INTS, match="x must be floating point"),
        ],
        "lrn_dx": [
            error(F(2, 3), F(3, 2), match="dy is not of x's type"),
            error(F(2, 3), F(2, 3), size=-1, match="size must be positive"),
        ],
        "l2_normalize": [
            error(F(2, 3), axis=(0, 2), match="axis 2 is out of range"),
            error(_INTS, match="x must be floating point"),
        ],
        "l2norm": [error(_INTS, match="x must be floating point")],
    }
)
