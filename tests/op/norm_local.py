"""Cases of local response normalisation and lengths."""

import torch
import torch.nn.functional as F_

from meta.testing import C, F, OpCase, error, refusals, sample

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


def l2_normalize(x, eps=1e-12, axis=()):
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

CASES = [
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
