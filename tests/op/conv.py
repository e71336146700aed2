"""Cases of convolutions. Gradients come from torch's autograd of the forward function."""

import torch
import torch.nn.functional as F_

from meta.testing import F, OpCase, sample


def sides(padding):
    """Return torch's order (left, right, top, bottom) of a padding of 1, 2 or 4 ints."""
    given = (padding,) if isinstance(padding, int) else tuple(padding)
    top, left, bottom, right = (given * 4)[:4]
    return left, right, top, bottom


def from_layout(x, layout, canonical):
    return x.permute([layout.index(letter) for letter in canonical])


def conv2d(
    x, w, stride=1, padding=0, dilation=1, groups=1,
    layout="NCHW", kernel_layout="OIHW", out_layout="NCHW",
):  # fmt: skip
    x, w = from_layout(x, layout, "NCHW"), from_layout(w, kernel_layout, "OIHW")
    y = F_.conv2d(F_.pad(x, sides(padding)), w, None, stride, 0, dilation, groups)
    return from_layout(y, "NCHW", out_layout)


def conv2d_dx(w, y, dy, shape, *window):
    """The gradient of <conv2d(x, w), dy>, which does not depend on where x is."""
    x = torch.zeros(shape, dtype=w.dtype, requires_grad=True)
    return torch.autograd.grad(conv2d(x, w, *window), x, dy, create_graph=True)[0]


def conv2d_dw(x, y, dy, shape, *window):
    w = torch.zeros(shape, dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(conv2d(x, w, *window), w, dy, create_graph=True)[0]


# x, w, stride, padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 3, 3), (1, 1, 2, 2), (1, 0, 1, 1), (1, 1, 2, 2)),
    ((2, 3, 5, 6), (4, 3, 3, 3), (1, 1, 1, 1), (2, 4, 5, 6)),
    ((2, 4, 7, 8), (6, 2, 3, 2), (2, (1, 0), 1, 2), (2, 6, 4, 4)),
    ((1, 4, 6, 6), (4, 1, 3, 3), ((1, 2), (0, 1, 2, 2), (2, 1), 4), (1, 4, 4, 4)),
    ((1, 2, 8, 8), (3, 2, 1, 1), (3, 0, 1, 1), (1, 3, 3, 3)),
    ((2, 2, 1, 9), (2, 2, 1, 3), ((1, 2), (0, 3), 3, 1), (2, 2, 1, 5)),
]

CASES = [
    OpCase(
        "conv2d",
        [sample(F(*x), F(*w), *window) for x, w, window, _ in WINDOWS]
        + [
            sample(F(2, 5, 6, 3), F(3, 3, 3, 4), 1, 1, 1, 1, "NHWC", "HWIO", "NHWC"),
            sample(F(2, 5, 6, 4), F(6, 3, 3, 2), groups=2, layout="NHWC", kernel_layout="OHWI"),
            sample(F(0, 3, 4, 4), F(2, 3, 3, 3)),
        ],
        conv2d,
        # Sums of up to 40 products of size 4, rounded to half precision at the end.
        atol={"float16": 2e-2, "bfloat16": 1e-1},
    ),
    OpCase(
        "conv2d_dx",
        [sample(F(*w), None, F(*y), x, *window) for x, w, window, y in WINDOWS]
        + [sample(F(1, 1, 2, 2), F(1, 1, 2, 2), F(1, 1, 2, 2), (1, 1, 3, 3), *WINDOWS[0][2])],
        conv2d_dx,
        atol={"float16": 2e-2, "bfloat16": 1e-1},
    ),
    OpCase(
        "conv2d_dw",
        [sample(F(*x), None, F(*y), w, *window) for x, w, window, y in WINDOWS],
        conv2d_dw,
        atol={"float16": 4e-2, "bfloat16": 2e-1},
    ),
]  # fmt: skip
