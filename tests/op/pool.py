"""Cases of pooling. Gradients come from torch's autograd of the forward function."""

import math

import torch
import torch.nn.functional as F_

from meta.testing import C, F, OpCase, sample
from meta.testing.case import Spec


def two(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def windows(x, kernel, stride, padding, dilation, ceil_mode, fill):
    """Return all windows [N, C, OH, OW, KH*KW], ``fill`` outside x, and where x or padding is."""
    given = (padding,) if isinstance(padding, int) else tuple(padding)
    top, left, bottom, right = (given * 4)[:4]
    kernel, stride, dilation = two(kernel), two(stride), two(dilation)
    out = []
    for size, k, s, d, before, after in zip(
        x.shape[2:], kernel, stride, dilation, (top, left), (bottom, right), strict=True
    ):
        room = (size + before + after - d * (k - 1) - 1) / s
        count = (math.ceil(room) if ceil_mode else math.floor(room)) + 1
        if ceil_mode and (count - 1) * s >= size + before:
            count -= 1
        out.append(count)
    # Far more room below and to the right than any window needs.
    far = 2 * sum(kernel) * max(dilation) + sum(stride)
    x = F_.pad(x, (left, right, top, bottom), value=fill)
    real = F_.pad(torch.ones_like(x), (0, far, 0, far))
    x = F_.pad(x, (0, far, 0, far), value=fill)

    def gather(t):
        rows = [
            t[:, :, p * dilation[0] :: stride[0]][:, :, : out[0]][
                :, :, :, q * dilation[1] :: stride[1]
            ][:, :, :, : out[1]]
            for p in range(kernel[0])
            for q in range(kernel[1])
        ]
        return torch.stack(rows, -1)

    return gather(x), gather(real)


def in_layout(function):
    """Apply a function of an NCHW tensor in any layout."""

    def oracle(x, *args, layout="NCHW", **kwargs):
        y = function(x.permute([layout.index(c) for c in "NCHW"]), *args, **kwargs)
        return y.permute(["NCHW".index(c) for c in layout])

    return oracle


@in_layout
def max_pool2d(x, kernel, stride, padding=0, dilation=1, ceil_mode=False, include_pad=True):
    values, _ = windows(x, kernel, stride, padding, dilation, ceil_mode, -math.inf)
    # max over one axis sends the gradient to the first maximum
    return values.max(-1).values


@in_layout
def avg_pool2d(x, kernel, stride, padding=0, dilation=1, ceil_mode=False, include_pad=True):
    values, real = windows(x, kernel, stride, padding, dilation, ceil_mode, 0.0)
    if not include_pad:
        _, outer = windows(x, kernel, stride, padding, dilation, ceil_mode, 0.0)
        inside, _ = windows(torch.ones_like(x), kernel, stride, padding, dilation, ceil_mode, 0.0)
        real = outer * inside
    return values.sum(-1) / real.sum(-1)


def gradient(forward):
    """Return the oracle of the gradient operator of ``forward``."""

    def oracle(x, y, dy, *args):
        x = x if x.requires_grad else x.clone().requires_grad_()
        return torch.autograd.grad(forward(x, *args), x, dy, create_graph=True)[0]

    return oracle


def gradient_samples(forward, shapes, windows_):
    """Return samples whose y is the forward result of x: only then is the gradient meant."""
    result = []
    for shape, window in zip(shapes, windows_, strict=True):
        generator = torch.Generator().manual_seed(len(result))
        # Distinct multiples of 1/8, exact in every dtype.
        x = (torch.randperm(math.prod(shape), generator=generator).double() / 8 - 8).reshape(shape)
        result.append(gradient_sample(forward, x, *window))
    return result


def gradient_sample(forward, x, *window):
    y = forward(x, *window)
    return sample(given(x, "x"), given(y, "y"), F(*y.shape), *window)


def given(values, name):
    """Return the spec of these values, without their text."""
    return Spec(C(values.tolist()).make, f"{name}{list(values.shape)}")


TIES = torch.tensor([[[[1.0, 1.0, 0.0], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]]])


SHAPES = [(2, 2, 6, 6), (1, 3, 7, 5), (1, 2, 5, 6), (1, 1, 7, 8), (2, 1, 5, 5), (1, 2, 6, 6)]
WINDOWS = [
    (2, 2, 0, 1, False, True),
    (3, 2, 1, 1, False, True),
    ((2, 3), (1, 2), (1, 0, 0, 2), 1, False, False),
    (3, 2, 1, 1, True, False),
    (2, 3, (0, 1, 1, 0), 1, True, True),
    ((2, 3), 1, (1, 2), (2, 1), False, True),
]
LAST = sample(F(2, 6, 5, 3), 2, 2, layout="NHWC")
ADAPTIVE = [((2, 3, 6, 8), (3, 4)), ((1, 2, 7, 5), 3), ((1, 2, 3, 2), (5, 4)), ((2, 1, 4, 4), 1)]
TIED = (2, 1, 0, 1, False, True)
adaptive_max = in_layout(lambda x, shape: F_.adaptive_max_pool2d(x, shape))
adaptive_avg = in_layout(lambda x, shape: F_.adaptive_avg_pool2d(x, shape))

CASES = [
    OpCase(
        "max_pool2d",
        [sample(F(*s), *w) for s, w in zip(SHAPES, WINDOWS, strict=True)]
        + [LAST, sample(F(0, 2, 4, 4), 2, 2)],
        max_pool2d,
    ),
    OpCase(
        "avg_pool2d",
        [sample(F(*s), *w) for s, w in zip(SHAPES, WINDOWS, strict=True)]
        + [LAST, sample(F(0, 2, 4, 4), 2, 2)],
        avg_pool2d,
    ),
    OpCase(
        "adaptive_max_pool2d",
        [sample(F(*s), o) for s, o in ADAPTIVE] + [sample(F(2, 6, 5, 3), 2, layout="NHWC")],
        adaptive_max,
    ),
    OpCase(
        "adaptive_avg_pool2d",
        [sample(F(*s), o) for s, o in ADAPTIVE] + [sample(F(2, 6, 5, 3), 2, layout="NHWC")],
        adaptive_avg,
    ),
    OpCase(
        "max_pool2d_dx",
        # The first of equal maxima takes the gradient.
        [*gradient_samples(max_pool2d, SHAPES, WINDOWS), gradient_sample(max_pool2d, TIES, *TIED)],
        gradient(max_pool2d),
        grad=False,
        # Up to nine gradients meet in one element.
        atol={"bfloat16": 5e-2},
    ),
    OpCase(
        "avg_pool2d_dx",
        gradient_samples(avg_pool2d, SHAPES, WINDOWS),
        gradient(avg_pool2d),
    ),
    OpCase(
        "adaptive_max_pool2d_dx",
        gradient_samples(adaptive_max, [s for s, _ in ADAPTIVE], [(o,) for _, o in ADAPTIVE]),
        gradient(adaptive_max),
        grad=False,
        atol={"bfloat16": 5e-2},
    ),
    OpCase(
        "adaptive_avg_pool2d_dx",
        gradient_samples(adaptive_avg, [s for s, _ in ADAPTIVE], [(o,) for _, o in ADAPTIVE]),
        gradient(adaptive_avg),
    ),
]
