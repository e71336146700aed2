"""Cases of convolutions. Gradients come from torch's autograd of the forward function."""

import torch
import torch.nn.functional as F_

from meta.testing import B, F, I, OpCase, error, refusals, sample

SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


def sides(padding, count):
    """Return torch's order (left, right, top, bottom) of a padding of 1, count or 2*count ints."""
    given = (padding,) if isinstance(padding, int) else tuple(padding)
    around = (given * 2 * count)[: 2 * count]
    return [around[i] for axis in reversed(range(count)) for i in (axis, axis + count)]


def from_layout(x, layout, canonical):
    """Return x, of ``layout``, in the order ``canonical``; no layout means that it is in it."""
    if layout is None:
        return x
    # Copied, since ATen's gradients refuse some kernels that are views with permuted axes.
    view = x.permute([layout.index(letter) for letter in canonical])
    return view.clone(memory_format=torch.contiguous_format)


def in_layout(forward, kernel):
    """Let a function of tensors in channels-first order take and return any layout.

    kernel: the first two letters of the kernel's order, before the spatial ones.
    """

    def oracle(x, w, *window, layout=None, kernel_layout=None, out_layout=None, **more):
        letters = SPATIAL[x.ndim - 2]
        data, order = "NC" + letters, kernel + letters
        if window and isinstance(window[-1], str):
            *window, layout, kernel_layout, out_layout = window
        x, w = from_layout(x, layout, data), from_layout(w, kernel_layout, order)
        return from_layout(forward(x, w, *window, **more), data, out_layout or data)

    return oracle


def convolved(x, w, stride=1, padding=0, dilation=1, groups=1):
    """Convolution over one, two or three axes on torch."""
    count = x.ndim - 2
    run = (F_.conv1d, F_.conv2d, F_.conv3d)[count - 1]
    if not w.numel():  # torch returns another shape
        one = x.new_zeros((len(x), groups, *x.shape[2:])), w.new_zeros((len(w), 1, *w.shape[2:]))
        return run(F_.pad(one[0], sides(padding, count)), one[1], None, stride, 0, dilation, groups)
    return run(F_.pad(x, sides(padding, count)), w, None, stride, 0, dilation, groups)


conv = in_layout(convolved, "OI")


def in_whole_numbers(forward):
    """Let an oracle of floats serve integers small enough to be exact in float64."""
    return lambda x, w, *options: forward(x.double(), w.double(), *options).to(x.dtype)


def gradient(forward, argument):
    """Return the oracle of the gradient by x (0) or by w (1), which is given the other one.

    The gradient of <forward(x, w), dy> does not depend on what it is the gradient by.
    """

    def oracle(other, y, dy, shape, *window):
        wanted = torch.zeros(shape, dtype=other.dtype, requires_grad=True)
        both = (wanted, other) if argument == 0 else (other, wanted)
        return torch.autograd.grad(forward(*both, *window), wanted, dy, create_graph=True)[0]

    return oracle


# Layouts of x, w and the result (* for the spatial letters), channels in and out, groups.
ARRANGED = [
    ("N*C", "*IO", "N*C", 3, 4, 1),
    ("N*C", "O*I", "NC*", 4, 6, 2),
    ("N*C", "*OI", "N*C", 3, 6, 3),
    ("NC*", "*IO", "N*C", 2, 2, 2),
    ("NC*", "O*I", "N*C", 4, 2, 2),
]


def arranged(count, forward, window, transposed=False):
    """Return arguments of a convolution and its result's shape in each of `ARRANGED`."""
    found = []
    sizes = dict(zip(SPATIAL[count], (5, 4, 3), strict=False))
    taps = dict(zip(SPATIAL[count], (3, 2, 2), strict=False))
    for *layouts, inputs, outputs, groups in ARRANGED:
        data, kernel, result = (s.replace("*", SPATIAL[count]) for s in layouts)
        channels = {"I": inputs // groups, "O": outputs}
        if transposed:
            channels = {"I": inputs, "O": outputs // groups}
        x = tuple(({"N": 2, "C": inputs} | sizes)[letter] for letter in data)
        w = tuple((channels | taps)[letter] for letter in kernel)
        options = (*window, groups, data, kernel, result)
        y = forward(torch.zeros(x), torch.zeros(w), *options).shape
        found.append((x, w, options, tuple(y)))
    return found


# x, w, stride, padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 3, 3), (1, 1, 2, 2), (1, 0, 1, 1), (1, 1, 2, 2)),
    ((2, 3, 5, 6), (4, 3, 3, 3), (1, 1, 1, 1), (2, 4, 5, 6)),
    ((2, 4, 7, 8), (6, 2, 3, 2), (2, (1, 0), 1, 2), (2, 6, 4, 4)),
    ((1, 4, 6, 6), (4, 1, 3, 3), ((1, 2), (0, 1, 2, 2), (2, 1), 4), (1, 4, 4, 4)),
    ((1, 2, 8, 8), (3, 2, 1, 1), (3, 0, 1, 1), (1, 3, 3, 3)),
    ((2, 2, 1, 9), (2, 2, 1, 3), ((1, 2), (0, 3), 3, 1), (2, 2, 1, 5)),
]

# By 1x1 with the channels last: a product of matrices, of each pixel or of some.
POINTWISE = [
    ((2, 7, 6, 3), (5, 3, 1, 1), (step, 0, 1, 1, "NHWC", "OIHW", "NHWC"), shape)
    for step, shape in ((1, (2, 7, 6, 5)), ((2, 4), (2, 4, 2, 5)), (9, (2, 1, 1, 5)))
]

# Sums of up to 96 products of size 4, rounded to half precision at the end.
HALF = {"float16": 4e-2, "bfloat16": 2e-1}


def cases(name, forward, windows, more=(), more_dx=()):
    """Return the cases of a convolution and of its two gradients."""
    return [
        OpCase(
            name,
            [
                sample(*(I(*s, low=-128, high=128, dtype="int32") for s in (x, w)), *options)
                for x, w, options, _ in windows[-6:-2]
            ],
            in_whole_numbers(forward),
            dtypes=(),
        ),
        OpCase(
            name,
            [sample(F(*x), F(*w), *options) for x, w, options, _ in windows] + list(more),
            forward,
            atol=HALF,
        ),
        OpCase(
            f"{name}_dx",
            [sample(F(*w), None, F(*y), x, *options) for x, w, options, y in windows]
            + list(more_dx),
            gradient(forward, 0),
            atol=HALF,
        ),
        OpCase(
            f"{name}_dw",
            [sample(F(*x), None, F(*y), w, *options) for x, w, options, y in windows],
            gradient(forward, 1),
            atol=HALF,
        ),
    ]


CASES = cases(
    "conv2d",
    conv,
    WINDOWS + POINTWISE + arranged(2, conv, (2, 1, 1)),
    [
        sample(F(0, 3, 4, 4), F(2, 3, 3, 3)),
        sample(F(1, 4, 4, 2), F(2, 3, 3, 2), layout="NHWC", kernel_layout="OHWI"),
    ],
    [sample(F(1, 1, 2, 2), F(1, 1, 2, 2), F(1, 1, 2, 2), (1, 1, 3, 3), *WINDOWS[0][2])],
)


def refused(count):
    """What convolution over ``count`` spatial axes refuses."""
    x, w = F(1, 4, *[5] * count), F(6, 2, *[3] * count)
    y, windows = F(1, 6, *[3] * count), (1, 0, 1, 2)
    axes, extents = f"must have {count + 2} axes", f"shape must have {count + 2} extents"
    fits = {"groups": 2}
    integers = I(6, 2, *[3] * count, low=0, high=2)
    return refusals(
        {
            f"conv{count}d": [
                error(F(4, *[5] * count), w, **fits, match=f"x {axes}"),
                error(x, F(6, 2), **fits, match=f"w {axes}"),
                error(x, integers, **fits, match="differ in dtype"),
                error(B(1, 4, *[5] * count), B(6, 4, *[3] * count), match="bools have no product"),
                error(x, w, groups=3, match="channels do not match"),
                error(x, w, groups=0, match="groups must be positive"),
                error(x, F(5, 2, *[3] * count), **fits, match="do not fill the groups"),
                error(x, w, stride=-1, **fits, match="stride must be positive"),
                error(x, w, dilation=0, **fits, match="dilation must be positive"),
                error(x, w, padding=-1, **fits, match="padding does not fit"),
                error(x, w, padding=(1,) * (2 * count + 1), **fits, match="padding does not fit"),
                error(x, w, dilation=3, **fits, match="window is larger than the padded input"),
                error(x, w, layout="NCHW8c", **fits, match="layout is not supported"),
            ],
            f"conv{count}d_dx": [
                error(w, None, y, (1, 4), *windows, match=extents),
                error(w, None, y, (1, 4, *[6] * count), *windows, match="dy has not the shape"),
                error(w, x, y, (1, 4, *[5] * count), *windows, match="y and dy differ in type"),
                error(
                    integers,
                    None,
                    integers,
                    (1, 4, *[5] * count),
                    *windows,
                    match="dy must be floating point",
                ),
            ],
            f"conv{count}d_dw": [
                error(x, None, y, (6, 2), *windows, match=extents),
                error(x, None, y, (6, 2, *[2] * count), *windows, match="dy has not the shape"),
                error(x, None, y, (6, 2, *[3] * count), 0, 0, 1, 2, match="stride must be"),
            ],
        }
    )


CASES += refused(2)

# x, w, stride, padding, dilation, groups, and the shape of the result
WINDOWS_1D = [
    ((1, 1, 3), (1, 1, 2), (1, 0, 1, 1), (1, 1, 2)),
    ((2, 3, 9), (4, 3, 3), (1, 1, 1, 1), (2, 4, 9)),
    ((2, 4, 8), (6, 2, 3), (2, (1,), 1, 2), (2, 6, 4)),
    ((1, 4, 9), (4, 1, 3), ((3,), (0, 2), 2, 4), (1, 4, 3)),
    ((2, 2, 7), (3, 2, 1), (4, 0, 1, 1), (2, 3, 2)),
]

CASES += cases(
    "conv1d",
    conv,
    WINDOWS_1D + arranged(1, conv, (2, 1, 1)),
    [sample(F(0, 3, 4), F(2, 3, 3))],
    [sample(F(1, 1, 2), F(1, 1, 2), F(1, 1, 2), (1, 1, 3), *WINDOWS_1D[0][2])],
)

CASES += refused(1)

# x, w, stride, padding, dilation, groups, and the shape of the result
WINDOWS_3D = [
    ((1, 1, 3, 3, 3), (1, 1, 2, 2, 2), (1, 0, 1, 1), (1, 1, 2, 2, 2)),
    ((2, 2, 3, 4, 3), (2, 1, 3, 3, 1), (1, (1, 1, 0), 1, 2), (2, 2, 3, 4, 3)),
    (
        (1, 2, 4, 5, 6),
        (3, 2, 1, 2, 2),
        ((1, 2, 3), (0, 1, 2, 1, 0, 1), (1, 2, 1), 1),
        (1, 3, 5, 2, 3),
    ),
]

CASES += cases(
    "conv3d",
    conv,
    WINDOWS_3D + arranged(3, conv, (2, 1, 1)),
    [sample(F(0, 2, 3, 3, 3), F(2, 2, 2, 2, 2))],
)

CASES += refused(3)


def transposed(x, w, stride=1, padding=0, output_padding=0, dilation=1, groups=1):
    """Torch's function without padding, from which the padding is cut."""
    count = x.ndim - 2
    run = (F_.conv_transpose1d, F_.conv_transpose2d, F_.conv_transpose3d)[count - 1]
    extra = (output_padding,) * count if isinstance(output_padding, int) else output_padding
    added = [e for more in reversed(extra) for e in (0, more)]
    if not w.numel() and len(x):  # torch refuses it
        x, w = x.new_zeros((len(x), groups, *x.shape[2:])), w.new_zeros((groups, *w.shape[1:]))
    y = run(x, w, None, stride, 0, 0, groups, dilation)
    return F_.pad(y, [a - s for a, s in zip(added, sides(padding, count), strict=True)])


conv_transpose = in_layout(transposed, "IO")

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
TRANSPOSED_WINDOWS = [
    ((1, 1, 2, 2), (1, 1, 2, 2), (1, 0, 0, 1, 1), (1, 1, 3, 3)),
    ((2, 3, 4, 3), (3, 4, 3, 3), (2, 1, 1, 1, 1), (2, 4, 8, 6)),
    ((1, 4, 3, 4), (4, 2, 2, 3), ((2, 3), (1, 0), (0, 2), 1, 2), (1, 4, 4, 14)),
    ((1, 2, 3, 3), (2, 3, 3, 2), (1, (0, 1, 2, 0), 0, (2, 1), 1), (1, 3, 5, 3)),
]

CASES += cases(
    "conv_transpose2d",
    conv_transpose,
    TRANSPOSED_WINDOWS + arranged(2, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 2, 3, 3), F(2, 1, 2, 2))],
    [sample(F(1, 1, 2, 2), F(1, 1, 3, 3), F(1, 1, 3, 3), (1, 1, 2, 2), *TRANSPOSED_WINDOWS[0][2])],
)

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
TRANSPOSED_WINDOWS_1D = [
    ((1, 1, 2), (1, 1, 2), (1, 0, 0, 1, 1), (1, 1, 3)),
    ((2, 3, 4), (3, 4, 3), (2, 1, 1, 1, 1), (2, 4, 8)),
    ((1, 4, 3), (4, 2, 2), ((3,), (1,), (2,), 1, 2), (1, 4, 8)),
    ((1, 2, 3), (2, 3, 3), (1, (0, 2), 0, 2, 1), (1, 3, 5)),
]

CASES += cases(
    "conv_transpose1d",
    conv_transpose,
    TRANSPOSED_WINDOWS_1D + arranged(1, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 2, 3), F(2, 1, 2))],
)

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
TRANSPOSED_WINDOWS_3D = [
    ((1, 1, 2, 2, 2), (1, 1, 2, 2, 2), (1, 0, 0, 1, 1), (1, 1, 3, 3, 3)),
    ((1, 2, 2, 3, 2), (2, 2, 3, 2, 1), (2, (1, 0, 0), (1, 0, 1), 1, 2), (1, 4, 4, 6, 4)),
    (
        (1, 2, 2, 2, 3),
        (2, 1, 2, 2, 2),
        ((1, 2, 3), (0, 1, 2, 1, 0, 1), (0, 1, 0), (2, 1, 1), 1),
        (1, 1, 3, 4, 5),
    ),
]

CASES += cases(
    "conv_transpose3d",
    conv_transpose,
    TRANSPOSED_WINDOWS_3D + arranged(3, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 1, 2, 2, 2), F(1, 1, 2, 2, 2))],
)


def _refused(count):
    x, w, y = F(1, 4, *[3] * count), F(4, 2, *[3] * count), F(1, 4, *[5] * count)
    windows = (1, 0, 0, 1, 2)
    fits = {"groups": 2}
    extents = f"shape must have {count + 2} extents"
    return refusals(
        {
            f"conv_transpose{count}d": [
                error(F(4, *[3] * count), w, **fits, match=f"x must have {count + 2} axes"),
                error(x, I(4, 2, *[3] * count, low=0, high=2), match="differ in dtype"),
                error(x, F(3, 2, *[3] * count), match="the channels of x and w differ"),
                error(x, w, groups=3, match="groups must divide the channels"),
                error(x, w, stride=2, output_padding=2, match="output_padding does not fit"),
                error(x, w, padding=-1, match="padding does not fit"),
                error(x, w, padding=5, match="nothing is left inside the padding"),
                error(x, w, layout="NCHW8c", match="layout is not supported"),
            ],
            f"conv_transpose{count}d_dx": [
                error(w, None, y, (1, 4), *windows, match=extents),
                error(w, None, x, (1, 4, *[3] * count), *windows, match="dy has not the shape"),
            ],
            f"conv_transpose{count}d_dw": [
                error(x, None, y, (4, 2), *windows, match=extents),
                error(x, None, x, (4, 2, *[3] * count), *windows, match="dy has not the shape"),
            ],
        }
    )


CASES += [case for count in (1, 2, 3) for case in _refused(count)]
