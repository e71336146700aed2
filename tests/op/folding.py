"""Test records of batch normalisation folded into the weights of several layers, by the formula in
float64.
"""

import torch

from meta.testing import C, F, I, OpCase, error, refusals, sample

SHAPES = (4, 3, 3, 3), (5, 7), (3,), (0, 2), (6, 1, 1, 16), (33, 300), (2, 3, 5)


def _weights(*shapes):
    return tuple(F(*s) for s in shapes)


def _vectors(*shapes):
    return tuple(F(s[0]) for s in shapes)


def _variances(*shapes):
    return tuple(F(s[0], low=0.1, high=2.0) for s in shapes)


def _statistics(*shapes):
    return _weights(*shapes), _vectors(*shapes), _variances(*shapes)


def _folded(w, mean, var, scale=(), shift=(), b=(), eps=1e-5, dtype=None):
    weights, biases = [], []
    for i, weight in enumerate(w):
        factor = (var[i] + eps) ** -0.5 * (scale[i] if scale else 1)
        weights.append(torch.einsum("o...,o->o...", weight, factor))
        biases.append(((b[i] if b else 0) - mean[i]) * factor + (shift[i] if shift else 0))
    made = (*weights, *biases)
    return made if dtype is None else tuple(t.to(getattr(torch, dtype)) for t in made)


ONE = ((3, 4),)
ALL = [_vectors(*SHAPES) for _ in range(3)]
SINGLES = C([2.0, 3.0], "float32"), C([0.5, 0.25], "float32"), C([1.0, -1.0], "float32")

CASES = [
    OpCase(
        "multi_tensor_fold_batch_norm",
        [
            sample(*_statistics(*SHAPES)),
            sample(*_statistics(*SHAPES), *ALL, eps=1e-3),
            sample(*_statistics(*SHAPES), *ALL[:2]),
            sample(*_statistics(*SHAPES), b=ALL[2], eps=0.25),
            sample(*_statistics(*SHAPES), shift=ALL[1], eps=0),
            sample(*_statistics(*ONE), scale=_vectors(*ONE)),
            sample(*_statistics((0, 3))),
            sample(*_statistics((2, 0), (3, 2))),
            # Statistics in float32 beside weights in half precision.
            sample(_weights((2, 8)), *((t,) for t in SINGLES[:2]), (SINGLES[2],)),
        ],
        _folded,
        dialects=("torch",),
        grad=False,
    ),
    OpCase(
        "multi_tensor_fold_batch_norm",
        [
            sample(*_statistics(*SHAPES), *ALL, dtype="float32"),
            sample(*_statistics(*ONE), dtype="float32"),
        ],
        _folded,
        dialects=("torch",),
        dtypes=("float16", "bfloat16", "float32"),
        grad=False,
    ),
    OpCase(
        "multi_tensor_fold_batch_norm",
        [
            sample(*_statistics(*SHAPES), *ALL, dtype="float16"),
            sample(*_statistics(*SHAPES), *ALL, dtype="bfloat16"),
        ],
        _folded,
        dialects=("torch",),
        dtypes=("float32", "float64"),
        grad=False,
        # A number that is nearly between two of half precision may become either.
        rtol={"float32": 2**-7, "float64": 2**-7},
    ),
]

FITS = (F(3, 4),)
OF_EACH = (F(3),)
CASES += refusals(
    {
        "multi_tensor_fold_batch_norm": [
            error((), (), (), match="there are no tensors"),
            error((F(),), (F(1),), (F(1),), match="w must have a first axis"),
            error((I(3, 4, low=0, high=2),), OF_EACH, OF_EACH, match="must be floating point"),
            error(FITS, (), OF_EACH, match="mean has another length than w"),
            error(FITS, OF_EACH, (F(4),), match="var does not fit w"),
            error(FITS, OF_EACH, OF_EACH, (F(3, 1),), match="scale does not fit w"),
            error(FITS, OF_EACH, OF_EACH, b=(*OF_EACH, *OF_EACH), match="b has another length"),
            error(
                (*FITS, *FITS), (F(3), C([1.0, 2.0, 3.0], "float16")), (*OF_EACH, *OF_EACH),
                match="mean has several dtypes",
            ),
            error(FITS, OF_EACH, OF_EACH, dtype="int32", match="dtype must be floating point"),
        ]
    }
)  # fmt: skip
