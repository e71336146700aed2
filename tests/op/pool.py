"""Cases of pooling. Gradients come from torch's autograd of the forward function."""

import itertools
import math

import torch
import torch.nn.functional as F_

from meta.testing import C, F, I, OpCase, error, refusals, sample
from meta.testing.case import Spec

ORDERS = {1: "NCW", 2: "NCHW", 3: "NCDHW"}


def each(value, count):
    """Return one value per spatial axis."""
    given = (value,) if isinstance(value, int) else tuple(value)
    return given * count if len(given) == 1 else given


def windows(x, kernel, stride, padding, dilation, ceil_mode, fill):
    """Return all windows [N, C, *out, taps], ``fill`` outside x, and where x or padding is."""
    count = x.ndim - 2
    around = (each(padding, count) * 2)[: 2 * count]
    kernel, stride, dilation = (each(value, count) for value in (kernel, stride, dilation))
    out, sides, beyond = [], [], []
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        before, after = around[i], around[i + count]
        padded = x.shape[2 + i] + before + after
        room = (padded - d * (k - 1) - 1) / s
        n = (math.ceil(room) if ceil_mode else math.floor(room)) + 1
        if ceil_mode and (n - 1) * s >= x.shape[2 + i] + before:
            n -= 1
        out.append(n)
        # Far more room than any window needs.
        sides, beyond = [before, after, *sides], [0, 2 * k * d + s, *beyond]
    x = F_.pad(x, sides, value=fill)
    real = F_.pad(torch.ones_like(x), beyond)
    x = F_.pad(x, beyond, value=fill)

    def gather(t):
        taps = []
        for tap in itertools.product(*map(range, kernel)):
            at = [
                slice(k * d, k * d + (n - 1) * s + 1, s)
                for k, d, s, n in zip(tap, dilation, stride, out, strict=True)
            ]
            taps.append(t[(slice(None), slice(None), *at)])
        return torch.stack(taps, -1)

    return gather(x), gather(real)


def in_layout(function):
    """Apply a function of a tensor in the order of `ORDERS` in any layout."""

    def oracle(x, *args, layout=None, **kwargs):
        order = ORDERS[x.ndim - 2]
        if args and isinstance(args[-1], str):
            *args, layout = args
        layout = layout or order
        y = function(x.permute([layout.index(c) for c in order]), *args, **kwargs)
        return y.permute([order.index(c) for c in layout])

    return oracle


@in_layout
def max_pool(x, kernel, stride, padding=0, dilation=1, ceil_mode=False, include_pad=True):
    values, _ = windows(x, kernel, stride, padding, dilation, ceil_mode, -math.inf)
    # max over one axis sends the gradient to the first maximum
    return values.max(-1).values


@in_layout
def avg_pool(x, kernel, stride, padding=0, dilation=1, ceil_mode=False, include_pad=True):
    values, real = windows(x, kernel, stride, padding, dilation, ceil_mode, 0.0)
    if not include_pad:
        inside, _ = windows(torch.ones_like(x), kernel, stride, padding, dilation, ceil_mode, 0.0)
        real = real * inside
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
    """Return the spec of these values, without their text. In another shape, y would not be what
    becomes of x.
    """
    return Spec(C(values.tolist()).make, f"{name}{list(values.shape)}", numbers=True)


@in_layout
def adaptive_max(x, shape):
    run = (F_.adaptive_max_pool1d, F_.adaptive_max_pool2d, F_.adaptive_max_pool3d)[x.ndim - 3]
    return run(x, shape)


@in_layout
def adaptive_avg(x, shape):
    run = (F_.adaptive_avg_pool1d, F_.adaptive_avg_pool2d, F_.adaptive_avg_pool3d)[x.ndim - 3]
    return run(x, shape)


CONSISTENT = "x and y go together, so that no derivative by x alone exists; see max_pool's second"


def cases(count, sizes, windows_, adaptive, last, ties):
    """Return the cases of all pooling over ``count`` axes.

    sizes, windows_: shapes of x and the windows over them. adaptive: shapes of x and of the result.
    last: shape of a tensor whose channels come last. ties: a tensor and the window over it, for
    which the order of equal maxima matters.
    """
    layout = ORDERS[count][0] + ORDERS[count][2:] + "C"
    slid = [sample(F(*s), *w) for s, w in zip(sizes, windows_, strict=True)]
    slid += [sample(F(*last), 2, 2, layout=layout), sample(F(0, 2, *(4,) * count), 2, 2)]
    regions = [sample(F(*s), o) for s, o in adaptive] + [sample(F(*last), 2, layout=layout)]
    from_, to = [s for s, _ in adaptive], [(o,) for _, o in adaptive]
    # Up to nine gradients meet in one element.
    rough = {"bfloat16": 5e-2}
    small = (1, 1, *(3,) * count)
    last_window, last_shape = (3, 2, 1, 1, False, True, layout), (2, layout)
    return [
        OpCase(f"max_pool{count}d", slid, max_pool),
        OpCase(f"avg_pool{count}d", slid, avg_pool),
        OpCase(f"adaptive_max_pool{count}d", regions, adaptive_max),
        OpCase(f"adaptive_avg_pool{count}d", regions, adaptive_avg),
        OpCase(
            f"max_pool{count}d_dx",
            # The first of equal maxima takes the gradient.
            [
                *gradient_samples(max_pool, [*sizes, last], [*windows_, last_window]),
                gradient_sample(max_pool, *ties),
            ],
            gradient(max_pool),
            grad=False,
            why=CONSISTENT,
            atol=rough,
        ),
        OpCase(
            f"avg_pool{count}d_dx",
            [
                *gradient_samples(avg_pool, [*sizes, last], [*windows_, last_window]),
                *gradient_samples(avg_pool, [small], [(2, 1, 0, 1, False, True)]),
            ],
            gradient(avg_pool),
        ),
        OpCase(
            f"adaptive_max_pool{count}d_dx",
            gradient_samples(adaptive_max, [*from_, last], [*to, last_shape]),
            gradient(adaptive_max),
            grad=False,
            why=CONSISTENT,
            atol=rough,
        ),
        OpCase(
            f"adaptive_avg_pool{count}d_dx",
            gradient_samples(adaptive_avg, [*from_, small, last], [*to, (2,), last_shape]),
            gradient(adaptive_avg),
        ),
    ]


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

ADAPTIVE = [((2, 3, 6, 8), (3, 4)), ((1, 2, 7, 5), 3), ((1, 2, 3, 2), (5, 4)), ((2, 1, 4, 4), 1)]

CASES = cases(2, SHAPES, WINDOWS, ADAPTIVE, (2, 6, 5, 3), (TIES, 2, 1, 0, 1, False, True))


def refused(count):
    """What pooling over ``count`` spatial axes refuses."""
    x, y = F(1, 2, *[4] * count), F(1, 2, *[2] * count)
    window = (2, 2, 0, 1, False, True)
    no_window = [
        error(F(2, *[4] * count), 2, 2, match=f"x must have {count + 2} axes"),
        error(I(1, 2, *[4] * count, low=0, high=3), 2, 2, match="x must be floating point"),
        error(x, 2, -1, match="stride must be positive"),
        error(x, 0, 1, match="kernel must be positive"),
        error(x, 5, 1, match="window is larger than the padded input"),
        error(x, 2, 1, padding=2, match="a window could lie in the padding alone"),
        error(x, 2, 2, layout="NCHW8c", match="layout is not supported"),
    ]
    no_regions = [
        error(x, -1, match="shape is negative"),
        error(x, (2,) * (count + 1), match=f"shape must be an int or {count} ints"),
        error(F(1, 2, *[0] * count), 2, match="there is nothing to pool"),
    ]
    another, gradient = "y is not of the forward result's type", "dy is not of the forward"
    found = {
        "max_pool avg_pool": no_window,
        "adaptive_max_pool adaptive_avg_pool": no_regions,
        "max_pool_dx avg_pool_dx": [
            error(x, x, y, *window, match=another),
            error(x, y, x, *window, match=gradient),
        ],
        "adaptive_max_pool_dx adaptive_avg_pool_dx": [
            error(x, x, y, 2, match=another),
            error(x, y, x, 2, match=gradient),
        ],
    }
    return refusals({n.replace("pool", f"pool{count}d"): e for n, e in found.items()})


CASES += refused(2)

# kernel, stride, padding, dilation, ceil_mode, include_pad
WINDOWS_1D = [
    (2, 2, 0, 1, False, True),
    (3, 2, 1, 1, True, False),
    ((3,), (1,), (0, 2), 1, False, False),
    (2, 3, (1, 0), 1, True, True),
    (3, 1, 2, 2, False, True),
]

SHAPES_1D = [(2, 2, 6), (1, 3, 8), (1, 2, 5), (2, 1, 6), (1, 2, 7)]

ADAPTIVE_1D = [((2, 3, 8), (3,)), ((1, 2, 3), 5), ((2, 1, 4), 1)]

TIES_1D = torch.tensor([[[1.0, 1.0, 0.0, 1.0, 1.0]]])

CASES += cases(1, SHAPES_1D, WINDOWS_1D, ADAPTIVE_1D, (2, 5, 3), (TIES_1D, 2, 1, 0, 1, False, True))

CASES += refused(1)

# kernel, stride, padding, dilation, ceil_mode, include_pad
WINDOWS_3D = [
    (2, 2, 0, 1, False, True),
    ((1, 2, 3), (1, 2, 2), (0, 1, 1), 1, True, False),
    (2, (1, 2, 1), (1, 0, 0, 0, 1, 1), (1, 2, 1), False, False),
]

SHAPES_3D = [(2, 2, 4, 4, 4), (1, 2, 3, 4, 6), (1, 1, 3, 4, 3)]

ADAPTIVE_3D = [((1, 2, 3, 4, 5), (2, 4, 3)), ((2, 1, 2, 3, 1), 2)]

TIES_3D = torch.tensor([1.0, 1.0, 0.0, 1.0] * 4 + [1.0, 0.0]).reshape(1, 1, 2, 3, 3)

CASES += cases(
    3, SHAPES_3D, WINDOWS_3D, ADAPTIVE_3D, (1, 4, 5, 4, 3), (TIES_3D, 2, 1, 0, 1, False, True)
)

CASES += refused(3)
