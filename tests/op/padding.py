"""What the operators of `meta/op/padding.py` have to do."""

import torch
from torch.nn.functional import pad as torch_pad

from meta.testing import B, C, F, I, OpCase, error, refusals, sample


def pairs(pad_width, ndim):
    """The widths as one pair for every axis."""
    flat = [pad_width] * (2 * ndim) if isinstance(pad_width, int) else list(pad_width)
    return [flat[2 * i : 2 * i + 2] for i in range(ndim)]


def pad(x, pad_width, pad_value=0.0, pad_mode="constant"):
    """Constants as torch pads; else slices, flipped and repeated, joined axis by axis."""
    around = pairs(pad_width, x.ndim)
    if pad_mode == "constant":
        value = pad_value if x.is_floating_point() else int(pad_value)
        return torch_pad(x, [w for pair in around[::-1] for w in pair], value=value)
    for axis, (before, after) in enumerate(around):
        n = x.shape[axis]
        if pad_mode == "edge":
            front = [x.narrow(axis, 0, 1)] * before if before else []
            back = [x.narrow(axis, n - 1, 1)] * after if after else []
        else:
            skip = int(pad_mode == "reflect")
            front = [x.narrow(axis, skip, before).flip(axis)] if before else []
            back = [x.narrow(axis, n - skip - after, after).flip(axis)] if after else []
        x = torch.cat([*front, x, *back], axis)
    return x


def pad_dx(dy, pad_width, pad_mode="constant"):
    """The gradient of the oracle above."""
    around = pairs(pad_width, dy.ndim)
    shape = [d - a - b for d, (a, b) in zip(dy.shape, around, strict=True)]
    x = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    y = pad(x, pad_width, 0.0, pad_mode)
    return torch.autograd.grad(y, x, dy.double(), create_graph=True)[0]


CASES = [
    OpCase(
        "pad",
        samples=[
            sample(F(2, 3), (1, 2, 0, 3)),
            sample(F(2, 3), 1, 1.5),
            sample(F(3), (0, 2), -2),
            sample(C([1.0, -2.0]), (1, 1), float("inf")),
            sample(C([1.0, -2.0]), (1, 1), float("nan")),
            sample(F(), ()),
            sample(F(), 2),
            sample(F(2, 2), 0),
            sample(F(0, 2), (1, 1, 0, 1), 3.0),
            sample(F(0, 2), (0, 0, 1, 1)),
            sample(I(3, low=-5, high=5), (1, 2), 2.0),
            sample(I(3, low=0, high=5, dtype="uint8"), (1, 2), 3),
            sample(B(3), (1, 2), 1),
            sample(B(3), (1, 2)),
            sample(F(3, 4), (2, 1, 3, 5), pad_mode="edge"),
            sample(F(1, 2), (4, 0, 0, 3), pad_mode="edge"),
            sample(F(0, 2), (0, 0, 1, 1), pad_mode="edge"),
            sample(I(3, low=-5, high=5, dtype="int8"), 2, pad_mode="edge"),
            sample(F(3, 4), (2, 1, 3, 2), pad_mode="reflect"),
            sample(F(2, 1, 4), (0, 0, 0, 0, 1, 3), pad_mode="reflect"),
            sample(F(1), 0, pad_mode="reflect"),
            sample(B(3), (2, 2), pad_mode="reflect"),
            sample(F(3, 4), (3, 1, 2, 4), pad_mode="symmetric"),
            sample(F(1), (1, 1), pad_mode="symmetric"),
            sample(C([float("nan"), float("inf"), 1.0]), 2, pad_mode="reflect"),
        ],
        oracle=pad,
    ),
    OpCase(
        "mirror_pad",
        samples=[
            sample(F(2, 3), (1, 2, 0, 3)),
            sample(F(2, 3), (1, 1, 2, 0), "REFLECT"),
            sample(F(2, 3), 1, mode="REFLECT"),
            sample(F(1, 3), 1),
            sample(F(), ()),
            sample(F(0, 2), (0, 0, 1, 2)),
            sample(I(4, low=-9, high=9, dtype="int32"), (3, 2)),
        ],
        oracle=lambda x, pad_width, mode="SYMMETRIC": pad(x, pad_width, 0.0, mode.lower()),
    ),
    OpCase(
        "pad_dx",
        samples=[
            sample(F(5, 6), (1, 2, 0, 3)),
            sample(F(5, 6), 1, "edge"),
            sample(F(9, 6), (4, 2, 0, 5), "edge"),
            sample(F(4, 5), (3, 0, 1, 3), "edge"),
            sample(F(6, 9), (2, 1, 3, 2), "reflect"),
            sample(F(8, 7), (2, 3, 2, 1), "symmetric"),
            sample(F(3), (1, 1), "symmetric"),
            sample(F(2, 3), 0, "reflect"),
            sample(F(), (), "edge"),
            sample(F(0, 4), (0, 0, 1, 1), "edge"),
            sample(F(3, 2), (1, 2, 0, 0)),
        ],
        oracle=pad_dx,
    ),
]

_X = F(2, 3)

CASES += refusals(
    {
        "pad": [
            error(_X, (1, 1), match="pad_width must be an int, or one pair"),
            error(_X, -1, match="pad_width is negative"),
            error(_X, 1, pad_mode="wrap", match="unknown padding mode"),
            error(_X, (0, 0, 3, 0), pad_mode="reflect", match="too few elements for the reflect"),
            error(F(0, 3), 1, pad_mode="edge", match="too few elements for the edge"),
        ],
        "mirror_pad": [
            error(_X, 1, "symmetric", match="unknown mirror"),
            error(_X, (3, 0, 0, 0), match="too few elements for the symmetric"),
        ],
        "pad_dx": [
            error(_X, 2, match="dy is smaller than its padding"),
            error(_X, (1, 1), match="pad_width must be an int, or one pair"),
            error(F(5, 5), 2, "reflect", match="too few elements for the reflect"),
        ],
    }
)
