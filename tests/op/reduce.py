"""Test records of reductions along axes."""

import warnings

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample


def axes_of(x, axis=None):
    """Return the reduced axes, sorted; all for None."""
    if axis is None:
        return list(range(x.ndim))
    named = {a % x.ndim for a in ([axis] if isinstance(axis, int) else axis)}
    return sorted(named)


def one_by_one(function):
    """Make an oracle of a reduction over one axis by moving the reduced axes to the end."""

    def oracle(x, axis=None, keepdims=False):
        axes = axes_of(x, axis)
        rest = [i for i in range(x.ndim) if i not in axes]
        y = function(
            x.permute([*rest, *axes]).reshape(
                [x.shape[i] for i in rest] + [-1]
                if x.numel()
                else [x.shape[i] for i in rest] + [_count(x, axes)]
            )
        )
        return y.reshape([1 if i in axes else d for i, d in enumerate(x.shape)]) if keepdims else y

    return oracle


def _count(x, axes):
    n = 1
    for a in axes:
        n *= x.shape[a]
    return n


def summed(x, axis=None, keepdims=False):
    """Sum, with a flag per axis where ``keepdims`` is a tuple."""
    if isinstance(keepdims, tuple):
        flags = {a % x.ndim: bool(k) for a, k in zip(axis, keepdims, strict=True)}
        for a in sorted(flags, reverse=True):
            x = x.sum(a, keepdim=flags[a])
        return x + 0
    return one_by_one(lambda z: z.sum(-1))(x, axis, bool(keepdims))


def gradient(function):
    """Make an oracle of the gradient of a reduction."""

    def oracle(x, dy, *args, **kwargs):
        z = x if x.requires_grad else x.clone().requires_grad_()
        return torch.autograd.grad(function(z, *args, **kwargs), z, dy, create_graph=True)[0]

    return oracle


def mean_dx(dy, shape, *args, **kwargs):
    """The gradient of the mean does not depend on where it is taken."""
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    return torch.autograd.grad(mean(x, *args, **kwargs), x, dy, create_graph=True)[0]


mean = one_by_one(lambda z: z.mean(-1))

product = one_by_one(lambda z: z.prod(-1))

USUAL = [
    sample(F(3, 4)),
    sample(F(3, 4), axis=0),
    sample(F(3, 4), axis=-1, keepdims=True),
    sample(F(2, 3, 4), axis=(0, -1)),
    sample(F(2, 3, 4), axis=(0, 2), keepdims=True),
    sample(F(2, 3), axis=()),
    sample(F(2, 3), axis=(), keepdims=True),
    sample(F(2, 3), axis=None, keepdims=True),
    sample(F()),
    sample(F(), axis=()),
    sample(F(1, 1), axis=0),
    sample(F(2, 700), axis=1),
    sample(F(300, 3), axis=0),
]

EMPTY = [sample(F(0)), sample(F(2, 0), axis=1), sample(F(2, 0), axis=0, keepdims=True)]

INTS = [
    sample(I(3, 4, low=-5, high=5), axis=0),
    sample(I(5, low=0, high=99, dtype="uint8")),
    *[sample(I(3, 4, low=2**b - 9, high=2**b, dtype=f"uint{b}"), axis=1) for b in (16, 32)],
    sample(B(2, 3)),
]

NAN = float("nan")

SPECIAL = [
    sample(C([1.0, NAN, 2.0]), axis=0),
    sample(C([[NAN, 1.0], [2.0, -NAN]])),
    sample(C([-0.0, 0.0])),
    sample(C([float("-inf"), float("-inf")])),
    sample(C([float("inf"), 1.0, float("-inf")])),
]

TIES = [sample(C([[1.0, 3.0, 3.0], [-2.0, -2.0, -2.0]]), axis=1), sample(C([0.0, 0.0]))]


def chosen(name):
    """Samples of max, min, argmax and argmin: NaN and ties included."""
    grad = name in ("max", "min")
    pick = {"max": torch.amax, "min": torch.amin, "argmax": torch.argmax, "argmin": torch.argmin}[
        name
    ]

    def oracle(z):
        return (
            pick(z.to(torch.uint8), -1).to(z.dtype)
            if z.dtype == torch.bool and grad
            else pick(z.to(torch.uint8) if z.dtype == torch.bool else z, -1)
        )

    return [
        OpCase(name, samples=[*USUAL, *TIES], oracle=one_by_one(oracle), grad=grad),
        OpCase(name, samples=INTS, oracle=one_by_one(oracle), dtypes=(), grad=False),
        OpCase(name, samples=SPECIAL, oracle=one_by_one(oracle), grad=False),
    ]


# A float sum of many numbers: the error grows with their count.
LONG = {"rtol": {"float16": 1e-2, "float32": 1e-4}, "atol": {"float16": 1e-2, "float32": 1e-4}}

# Products of hundreds of numbers are far from 1: compare them relatively.
PRODUCT = [s for s in USUAL if "700" not in str(s) and "300" not in str(s)]

ZEROS = [
    sample(C([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0], [1.0, 2.0, 4.0]]), axis=1),
    sample(C([0.0, 2.0, 4.0])),
]

CASES = [
    OpCase(
        "sum",
        samples=[
            *USUAL,
            *EMPTY,
            sample(F(3, 4, 5), (0, 2), (0, 1)),
            sample(F(3, 4, 5), (2, 0), (1, 0)),
            sample(F(3, 4), (), ()),
            sample(F(3, 4), 1, 1),
        ],
        oracle=summed,
        **LONG,
    ),
    OpCase("sum", samples=INTS, oracle=summed, dtypes=(), grad=False),
    OpCase(
        "sum_dx",
        samples=[
            sample(F(3, 4), F()),
            sample(F(3, 4), F(4), axis=0),
            sample(F(3, 4), F(3, 1), axis=-1, keepdims=1),
            sample(F(2, 3, 4), F(3), axis=(0, 2)),
            sample(F(3, 4, 5), F(4, 1), (0, 2), (0, 1)),
            sample(F(3, 4), F(3, 4), (), ()),
            sample(F(), F()),
            sample(F(2, 0), F(2), axis=1),
        ],
        oracle=lambda x, dy, *a, **k: 0 * x + gradient(summed)(x.detach(), dy, *a, **k),
    ),
    OpCase("mean", samples=USUAL, oracle=mean),
    OpCase("mean", samples=EMPTY, oracle=mean, grad=False),
    OpCase(
        "mean_dx",
        samples=[
            sample(F(), (3, 4)),
            sample(F(4), (3, 4), axis=0),
            sample(F(3, 1), (3, 4), axis=-1, keepdims=True),
            sample(F(3), (2, 3, 4), axis=(0, 2)),
            sample(F(), ()),
            sample(F(), 3),
        ],
        oracle=mean_dx,
    ),
    *chosen("max"),
    *chosen("min"),
    *chosen("argmax"),
    *chosen("argmin"),
    OpCase("prod", samples=[*PRODUCT, *EMPTY, *ZEROS], oracle=product),
    OpCase("prod", samples=INTS, oracle=product, dtypes=(), grad=False),
    OpCase(
        "prod_dx",
        samples=[
            sample(F(3, 4), F()),
            sample(F(3, 4), F(4), axis=0),
            sample(F(3, 4), F(3, 1), axis=-1, keepdims=True),
            sample(F(2, 3, 4), F(3), axis=(0, 2)),
            sample(F(), F()),
            sample(F(2, 0), F(2), axis=1),
            sample(C([[1.0, 0.0, 3.0], [0.0, 2.0, 0.0], [1.0, 2.0, 4.0]]), F(3), axis=1),
            sample(C([0.0, 2.0, 4.0]), F()),
        ],
        oracle=gradient(product),
        grad=False,
        why="it is the second gradient of prod",
    ),
]


for name, function in (("all", torch.all), ("any", torch.any)):
    CASES.append(
        OpCase(
            name,
            samples=[*USUAL, *EMPTY, *INTS, *SPECIAL, *ZEROS, sample(B(3, 2), axis=0)],
            oracle=one_by_one(lambda z, f=function: f(z != 0, -1)),
            grad=False,
        )
    )


_X, _INTS = F(2, 3), I(2, 3, low=0, high=3)

AXES = [
    error(_X, 2, match="axis 2 is out of range for ndim 2"),
    error(_X, (1, -1), match="an axis is named twice"),
]

EXTREMES = [*AXES, error(F(0, 2), 0, match="no elements to choose from")]

CASES += refusals(
    {
        "sum": [
            *AXES,
            error(_X, (0, 1), (1,), match="keepdims must be one flag, or one per entry of axis"),
            error(_X, None, (1,), match="keepdims is one flag where axis is None"),
        ],
        "mean": [*AXES, error(_INTS, match="x must be floating point")],
        "max min argmax argmin": EXTREMES,
        "prod all any": AXES,
        "sum_dx": [error(_X, F(3), 1, match="dy has another shape than the reduction")],
        "mean_dx": [
            error(F(3), (2, 3), 1, match="dy has another shape than the reduction"),
            error(F(), (-2, 3), match="no negative extents"),
        ],
        "prod_dx": [
            error(_X, C([1.0, 2.0], "float64"), 1, match="cast the float32 one"),
            error(_X, F(3), 1, match="dy has another shape than the reduction"),
            error(_INTS, _INTS, match="x must be floating point"),
        ],
    }
)

INF, MOMENTS_NAN = float("inf"), float("nan")


def over(function, **defaults):
    """Make an oracle of a torch reduction; with no axes at all it sees one of extent 1."""

    def oracle(x, axis=None, keepdims=False, **given):
        axes, options = tuple(axes_of(x, axis)), {**defaults, **given}
        if not axes:
            x, axes, keepdims = x.unsqueeze(-1), -1, False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # degrees of freedom that are not there, on purpose
            return function(x, axes, keepdim=keepdims, **options)

    return oracle


MOMENTS_USUAL = [
    sample(F(3, 4)),
    sample(F(3, 4), axis=0),
    sample(F(3, 4), axis=-1, keepdims=True),
    sample(F(2, 3, 4), axis=(0, -1)),
    sample(F(2, 3, 4), axis=(0, 2), keepdims=True),
    sample(F(2, 3, 4), axis=(1, 2)),
    sample(F(2, 700), axis=1),
    sample(F(300, 3), axis=0),
]

CORRECTED = [
    sample(F(3, 4), axis=1, correction=1),
    sample(F(3, 4), axis=1, correction=0.5),
    sample(F(2, 3, 4), axis=(1, 2), correction=2),
    sample(F()),
]

DEGENERATE = [
    sample(F(), correction=1),
    sample(F(2, 1), axis=1, correction=1),
    sample(F(2, 3), axis=1, correction=3.5),
    sample(F(2, 3), axis=()),
    sample(F(2, 3), axis=(), correction=1),
    sample(F(0)),
    sample(F(2, 0), axis=1, correction=1),
    sample(F(2, 0), axis=0),
    sample(C([1.0, MOMENTS_NAN, 2.0])),
    sample(C([1.0, INF, 2.0])),
    sample(C([[1.0, 1.0], [1.0, 2.0]]), axis=1, correction=2),
]

LARGE_MEAN = [sample(F(2, 50, low=1000.0, high=1001.0), axis=1)]

NARROW = {"rtol": {"float32": 1e-3}}  # the numbers themselves are rounded to 6e-5 of a variance

CASES += [
    OpCase("var", [*MOMENTS_USUAL, *CORRECTED], over(torch.var, correction=0)),
    OpCase("var", DEGENERATE, over(torch.var, correction=0), grad=False),
    OpCase("var", LARGE_MEAN, over(torch.var, correction=0), ("float32", "float64"), **NARROW),
    OpCase("std", MOMENTS_USUAL, over(torch.std, correction=0)),
    OpCase("std", [*DEGENERATE, *CORRECTED], over(torch.std, correction=0), grad=False),
    OpCase("std", [sample(C([[1.0, 1.0], [1.0, 2.0]]), axis=1)], over(torch.std, correction=0)),
    OpCase(
        "logsumexp", [*MOMENTS_USUAL, sample(F()), sample(F(1, 1), axis=0)], over(torch.logsumexp)
    ),
    OpCase(
        "logsumexp",
        [
            sample(F(0)),
            sample(F(2, 0), axis=1),
            sample(F(2, 0), axis=0, keepdims=True),
            sample(F(2, 3), axis=()),
            sample(F(0, 3), axis=()),
            sample(F(2, 130, low=-30.0, high=30.0), axis=1),
            sample(C([[1e4, 1e4 - 16], [-1e4, -1e4]]), axis=1),
            sample(
                C([[INF, 1.0], [-INF, -INF], [-INF, 1.0], [INF, -INF], [MOMENTS_NAN, 1.0]]), axis=1
            ),
        ],
        over(torch.logsumexp),
        grad=False,
    ),
]

_AXES = [
    error(F(2, 3), 2, match="axis 2 is out of range for ndim 2"),
    error(F(2, 3), (0, -2), match="an axis is named twice"),
]

_FLOATS_ONLY = error(I(2, 3, low=0, high=3), match="x must be floating point")

CASES += refusals(
    {
        "var std logsumexp": [*_AXES, _FLOATS_ONLY],
    }
)
