"""Cases of comparing neighbourhoods; the oracle is a loop over displacements and taps."""

import torch
import torch.nn.functional as F_

from meta.testing import F, I, OpCase, error, refusals, sample
from tests.op.conv import sides


def _correlation(x1, x2, kernel=1, reach=1, stride1=1, stride2=1, padding=0, multiply=True):
    a, b = (F_.pad(x, sides(padding, 2)) for x in (x1, x2))
    border = reach + kernel // 2
    height, width = (-(-(n - 2 * border) // stride1) for n in a.shape[2:])
    steps = range(-(reach // stride2) * stride2, reach + 1, stride2)
    found = []
    for dy in steps:
        for dx in steps:
            total = 0
            for p in range(kernel):
                for r in range(kernel):
                    y, x = reach + p, reach + r

                    def cut(image, y, x):
                        rows = slice(y, y + (height - 1) * stride1 + 1, stride1)
                        return image[:, :, rows, x : x + (width - 1) * stride1 + 1 : stride1]

                    own, other = cut(a, y, x), cut(b, y + dy, x + dx)
                    total = total + (own * other if multiply else (own - other).abs()).sum(1)
            found.append(total / (kernel * kernel * a.shape[1]))
    return torch.stack(found, 1)


def _correlation_dx(x1, x2, dy, *options):
    x1, x2 = (x.detach().requires_grad_() for x in (x1, x2))
    with torch.enable_grad():
        return torch.autograd.grad(_correlation(x1, x2, *options), (x1, x2), dy)


# shape of the images, options, shape of the result
_CALLS = [
    ((1, 2, 4, 4), (), (1, 9, 2, 2)),
    ((2, 3, 6, 5), (3, 2, 1, 1, 2), (2, 25, 4, 3)),
    ((1, 2, 7, 8), (1, 3, 2, 2, (1, 2, 3, 0), False), (1, 9, 3, 2)),
    ((1, 1, 6, 9), (3, 1, 3, 2, (1, 0)), (1, 1, 2, 2)),
]

CASES = [
    OpCase(
        "correlation",
        [sample(F(*x), F(*x), *options) for x, options, _ in _CALLS],
        _correlation,
        second=False,
    ),
    OpCase(
        "correlation_dx",
        [sample(F(*x), F(*x), F(*y), *options) for x, options, y in _CALLS],
        _correlation_dx,
        grad=False,
    ),
]
_X = F(1, 2, 4, 5)
CASES += refusals(
    {
        "correlation": [
            error(F(2, 4, 5), F(2, 4, 5), match="x1 must have 4 axes"),
            error(I(1, 2, 4, 5, low=0, high=2), _X, match="x1 must be floating point"),
            error(_X, I(1, 2, 4, 5, low=0, high=2), match="differ in dtype"),
            error(_X, F(1, 2, 5, 4), match="x1 and x2 differ in shape"),
            error(_X, _X, 2, match="kernel_size must be odd"),
            error(_X, _X, 1, -1, match="max_displacement is negative"),
            error(_X, _X, 1, 1, 0, match="strides must be positive"),
            error(_X, _X, 1, 2, match="the border leaves nothing"),
        ],
        "correlation_dx": [error(_X, _X, F(1, 9, 2, 2), match="dy is not of the forward")],
    }
)
