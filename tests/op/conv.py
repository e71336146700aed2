"""Cases of convolutions. Gradients come from torch's autograd of the forward function."""

import torch
import torch.nn.functional as F_

from meta.testing import F, OpCase, sample

ORDERS = {1: ("NCW", "OIW"), 2: ("NCHW", "OIHW"), 3: ("NCDHW", "OIDHW")}


def sides(padding, count):
    """Return torch's order (left, right, top, bottom) of a padding of 1, 2 or 4 ints."""
    given = (padding,) if isinstance(padding, int) else tuple(padding)
    around = (given * 2 * count)[: 2 * count]
    return [around[i] for axis in reversed(range(count)) for i in (axis, axis + count)]


def from_layout(x, layout, canonical):
    return x.permute([layout.index(letter) for letter in canonical])


def conv(
    x, w, stride=1, padding=0, dilation=1, groups=1,
    layout=None, kernel_layout=None, out_layout=None,
):  # fmt: skip
    """Convolution over one, two or three axes on torch; layouts default to `ORDERS`."""
    count = x.ndim - 2
    data, kernel = ORDERS[count]
    x, w = from_layout(x, layout or data, data), from_layout(w, kernel_layout or kernel, kernel)
    run = (F_.conv1d, F_.conv2d, F_.conv3d)[count - 1]
    y = run(F_.pad(x, sides(padding, count)), w, None, stride, 0, dilation, groups)
    return from_layout(y, data, out_layout or data)


def conv_dx(w, y, dy, shape, *window):
    """The gradient of <conv(x, w), dy>, which does not depend on where x is."""
    x = torch.zeros(shape, dtype=w.dtype, requires_grad=True)
    return torch.autograd.grad(conv(x, w, *window), x, dy, create_graph=True)[0]


def conv_dw(x, y, dy, shape, *window):
    w = torch.zeros(shape, dtype=x.dtype, requires_grad=True)
    return torch.autograd.grad(conv(x, w, *window), w, dy, create_graph=True)[0]


# x, w, stride, padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 3, 3), (1, 1, 2, 2), (1, 0, 1, 1), (1, 1, 2, 2)),
    ((2, 3, 5, 6), (4, 3, 3, 3), (1, 1, 1, 1), (2, 4, 5, 6)),
    ((2, 4, 7, 8), (6, 2, 3, 2), (2, (1, 0), 1, 2), (2, 6, 4, 4)),
    ((1, 4, 6, 6), (4, 1, 3, 3), ((1, 2), (0, 1, 2, 2), (2, 1), 4), (1, 4, 4, 4)),
    ((1, 2, 8, 8), (3, 2, 1, 1), (3, 0, 1, 1), (1, 3, 3, 3)),
    ((2, 2, 1, 9), (2, 2, 1, 3), ((1, 2), (0, 3), 3, 1), (2, 2, 1, 5)),
]


def cases(name, windows, more=(), more_dx=()):
    """Return the cases of a convolution and of its two gradients."""
    return [
        OpCase(
            name,
            [sample(F(*x), F(*w), *window) for x, w, window, _ in windows] + list(more),
            conv,
            # Sums of up to 40 products of size 4, rounded to half precision at the end.
            atol={"float16": 2e-2, "bfloat16": 1e-1},
        ),
        OpCase(
            f"{name}_dx",
            [sample(F(*w), None, F(*y), x, *window) for x, w, window, y in windows] + list(more_dx),
            conv_dx,
            atol={"float16": 2e-2, "bfloat16": 1e-1},
        ),
        OpCase(
            f"{name}_dw",
            [sample(F(*x), None, F(*y), w, *window) for x, w, window, y in windows],
            conv_dw,
            atol={"float16": 4e-2, "bfloat16": 2e-1},
        ),
    ]


CASES = cases(
    "conv2d",
    WINDOWS,
    [
        sample(F(2, 5, 6, 3), F(3, 3, 3, 4), 1, 1, 1, 1, "NHWC", "HWIO", "NHWC"),
        sample(F(2, 5, 6, 4), F(6, 3, 3, 2), groups=2, layout="NHWC", kernel_layout="OHWI"),
        sample(F(0, 3, 4, 4), F(2, 3, 3, 3)),
    ],
    [sample(F(1, 1, 2, 2), F(1, 1, 2, 2), F(1, 1, 2, 2), (1, 1, 3, 3), *WINDOWS[0][2])],
)
