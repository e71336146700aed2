"""What the operators of `meta/op/moments.py` have to do."""

import warnings

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample

INF, NAN = float("inf"), float("nan")


def axes_of(x, axis, exclude):
    """Return the reduced axes; all where none is named."""
    if axis == ():
        return tuple(range(x.ndim))
    named = {a % x.ndim for a in ([axis] if isinstance(axis, int) else axis)}
    return tuple(sorted(set(range(x.ndim)) - named if exclude else named))


def over(function):
    """Make an oracle of a torch reduction; with no axes at all it sees one of extent 1."""

    def oracle(x, axis=(), keepdims=False, exclude=False, **options):
        axes = axes_of(x, axis, exclude)
        if not axes:
            x, axes, keepdims = x.unsqueeze(-1), -1, False
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # degrees of freedom that are not there, on purpose
            return function(x, axes, keepdim=keepdims, **options)

    return oracle


USUAL = [
    sample(F(3, 4)),
    sample(F(3, 4), axis=0),
    sample(F(3, 4), axis=-1, keepdims=True),
    sample(F(2, 3, 4), axis=(0, -1)),
    sample(F(2, 3, 4), axis=(0, 2), keepdims=True),
    sample(F(2, 3, 4), axis=1, exclude=True),
    sample(F(2, 700), axis=1),
    sample(F(300, 3), axis=0),
]
CORRECTED = [
    sample(F(3, 4), axis=1, correction=0),
    sample(F(2, 3, 4), axis=(1, 2), correction=2),
    sample(F(), correction=0),
]
DEGENERATE = [
    sample(F()),
    sample(F(2, 1), axis=1),
    sample(F(2, 3), axis=(0, 1), exclude=True),
    sample(F(0)),
    sample(F(2, 0), axis=1, correction=0),
    sample(F(2, 0), axis=0),
    sample(C([1.0, NAN, 2.0])),
    sample(C([1.0, INF, 2.0])),
    sample(C([[1.0, 1.0], [1.0, 2.0]]), axis=1, correction=2),
]
LARGE_MEAN = [sample(F(2, 50, low=1000.0, high=1001.0), axis=1)]
EXTREME = [sample(C([[1.0, 3.0, 3.0], [-2.0, -2.0, -2.0]]), axis=1), sample(C([0.0, 0.0]))]
NARROW = {"rtol": {"float32": 1e-3}}  # the numbers themselves are rounded to 6e-5 of a variance

CASES = [
    OpCase("var", [*USUAL, *CORRECTED], over(torch.var)),
    OpCase("var", DEGENERATE, over(torch.var), grad=False),
    OpCase("var", LARGE_MEAN, over(torch.var), ("float32", "float64"), **NARROW),
    OpCase("std", USUAL, over(torch.std)),
    OpCase("std", [*DEGENERATE, *CORRECTED], over(torch.std), grad=False),
    OpCase("std", [sample(C([[1.0, 1.0], [1.0, 2.0]]), axis=1)], over(torch.std)),
    OpCase("logsumexp", [*USUAL, sample(F()), sample(F(1, 1), axis=0)], over(torch.logsumexp)),
    OpCase(
        "logsumexp",
        [
            sample(F(0)),
            sample(F(2, 0), axis=1),
            sample(F(2, 0), axis=0, keepdims=True),
            sample(F(2, 3), axis=(0, 1), exclude=True),
            sample(F(2, 130, low=-30.0, high=30.0), axis=1),
            sample(C([[1e4, 1e4 - 16], [-1e4, -1e4]]), axis=1),
            sample(C([[INF, 1.0], [-INF, -INF], [-INF, 1.0], [INF, -INF], [NAN, 1.0]]), axis=1),
        ],
        over(torch.logsumexp),
        grad=False,
    ),
]
for name, function in (("amax", torch.amax), ("amin", torch.amin)):
    CASES += [
        OpCase(name, [*USUAL, *EXTREME, sample(F())], over(function)),
        OpCase(
            name,
            [sample(I(3, 4, low=-5, high=5), axis=0), sample(B(2, 3)), sample(C([1.0, NAN]))],
            over(function),
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
        "amax amin": [*_AXES, error(F(0, 2), 0, match="no elements to choose from")],
    }
)
