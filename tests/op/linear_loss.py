"""Test records of the cross entropy of a fully connected layer."""

import torch
import torch.nn.functional as nn

from meta.testing import C, F, I, OpCase, error, sample
from meta.testing.case import Spec


def _scores(x, linear_weight, linear_bias):
    return nn.linear(x, linear_weight, linear_bias)


def _losses(x, linear_weight, target, linear_bias=None):
    scores = _scores(x, linear_weight, linear_bias)
    losses = nn.cross_entropy(scores, target.long(), reduction="none")
    return losses, scores.logsumexp(1)


def _gradients(dloss, dlogsumexp, x, linear_weight, target, logsumexp, linear_bias=None):
    """The formula in closed form, for a logsumexp as given."""
    scores, counts = _scores(x, linear_weight, linear_bias), target.long() != -100
    dloss = torch.where(counts, dloss, 0)
    hot = nn.one_hot(target.long().clamp(min=0), scores.shape[1])
    share = (dloss + dlogsumexp)[:, None]
    slopes = (scores - logsumexp[:, None]).exp() * share - hot * dloss[:, None]
    found = slopes @ linear_weight, slopes.T @ x
    return found if linear_bias is None else (*found, slopes.sum(0))


def _labels(n, classes, **options):
    return I(n, low=0, high=classes, **options)


def _rows(n):
    """Return a number for each row: float64 beside float64, else float32."""
    spec = F(n, low=0.5, high=2.0)

    def make(dtype, generator):
        return spec.make("float64" if dtype == "float64" else "float32", generator)

    return Spec(make, f"rows[{n}]")


ROWS = [
    sample(F(5, 3), F(4, 3), _labels(5, 4), F(4)),
    sample(F(2, 3), F(4, 3), _labels(2, 4)),
    sample(F(4, 3), F(5, 3), C([4, -100, 0, -100], "int64")),
    sample(F(3, 2), F(7, 2), C([-100, -100, -100], "int32")),
    sample(F(1, 1), F(1, 1), _labels(1, 1, dtype="uint8"), F(1)),
    sample(F(3, 0), F(4, 0), _labels(3, 4), F(4)),
    sample(F(0, 3), F(4, 3), I(0, low=0, high=1)),
    sample(F(33, 17), F(70, 17), _labels(33, 70, dtype="int32"), F(70)),
    sample(F(3, 2, low=-30.0, high=30.0), F(9, 2), _labels(3, 9)),
]

_SMALL = F(33, 17, low=-0.5, high=0.5), F(70, 17, low=-0.5, high=0.5)
MILD = sample(*_SMALL, _labels(33, 70, dtype="int32"), F(70))
"""Of which exponentials are no larger than hundreds for any logsumexp."""

_X, _WEIGHT, _LABELS = F(3, 2), F(4, 2), I(3, low=0, high=4)

ERRORS = [
    error(F(3), _WEIGHT, _LABELS, match="x must have 2 axes"),
    error(_X, F(4), _LABELS, match="linear_weight must have 2 axes"),
    error(_X, _WEIGHT, I(3, 1, low=0, high=4), match="target must have 1 axes"),
    error(I(3, 2, low=0, high=4), _WEIGHT, _LABELS, match="x must be floating point"),
    error(_X, C([[1.0, 2.0]], "float64"), _LABELS, match="the operands differ in dtype"),
    error(_X, _WEIGHT, F(3), match="labels must be integers"),
    error(_X, _WEIGHT, C([True, False, True], "bool"), match="labels must be integers"),
    error(_X, F(0, 2), _LABELS, match="there is no class"),
    error(_X, F(4, 3), _LABELS, match="differ in their last axis"),
    error(_X, _WEIGHT, I(2, low=0, high=4), match="there must be one label per row"),
    error(_X, _WEIGHT, _LABELS, F(3), match="linear_bias does not fit"),
]


def _with_rows(one):
    """Return a sample of the gradient for a sample of the loss."""
    x, weight, target, *bias = one.args
    n = x.make("float32", torch.Generator()).shape[0]
    return sample(_rows(n), _rows(n), x, weight, target, _rows(n), *bias)


_OF_ROWS = _rows(3)

CASES = [
    OpCase(
        "linear_cross_entropies",
        ROWS,
        _losses,
        dialects=("torch",),
        errors=ERRORS,
        # The differences of scores that nearly cancel; and of 17 products in half precision.
        atol={"float16": 2e-3, "bfloat16": 2e-2},
    ),
    OpCase(
        "linear_cross_entropies_dxwb",
        [_with_rows(one) for one in (*ROWS[:-2], MILD)],
        _gradients,
        dialects=("torch",),
        grad=False,
        why="it is the second gradient of linear_cross_entropies",
        # Gradients of scores are rounded before they are multiplied and added up, as by `dense`.
        rtol={"float16": 1e-2, "bfloat16": 5e-2},
        atol={"float16": 1e-1, "bfloat16": 5e-1},
        errors=[
            error(_OF_ROWS, _OF_ROWS, *one.args[:3], _OF_ROWS, *one.args[3:], match=one.match)
            for one in ERRORS
        ]
        + [
            error(F(2), _OF_ROWS, _X, _WEIGHT, _LABELS, _OF_ROWS, match="dloss is not that of"),
            error(_OF_ROWS, F(2), _X, _WEIGHT, _LABELS, _OF_ROWS, match="dlogsumexp is not"),
            error(_OF_ROWS, _OF_ROWS, _X, _WEIGHT, _LABELS, F(2), match="logsumexp is not"),
        ],
    ),
]
