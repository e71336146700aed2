"""Cases of transposed convolutions. Gradients come from torch's autograd of the forward."""

import torch
import torch.nn.functional as F_

from meta.testing import F, OpCase, sample


def conv2d_transpose(
    x, w, stride=1, padding=0, output_padding=0, dilation=1, groups=1,
    layout="NCHW", kernel_layout="IOHW", out_layout="NCHW",
):  # fmt: skip
    """Torch's function without padding, from which the padding is cut."""
    x = x.permute([layout.index(c) for c in "NCHW"])
    w = w.permute([kernel_layout.index(c) for c in "IOHW"])
    top, left, bottom, right = ((padding,) * 4 if isinstance(padding, int) else padding * 2)[:4]
    extra = (output_padding,) * 2 if isinstance(output_padding, int) else output_padding
    y = F_.conv_transpose2d(x, w, None, stride, 0, 0, groups, dilation)
    y = F_.pad(y, (-left, extra[1] - right, -top, extra[0] - bottom))
    return y.permute(["NCHW".index(c) for c in out_layout])


def gradient(argument):
    """Return the oracle of the gradient by x (0) or by w (1); the operator is given the other."""

    def oracle(other, y, dy, shape, *window):
        wanted = torch.zeros(shape, dtype=other.dtype, requires_grad=True)
        forward = (wanted, other) if argument == 0 else (other, wanted)
        return torch.autograd.grad(
            conv2d_transpose(*forward, *window), wanted, dy, create_graph=True
        )[0]

    return oracle


# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 2, 2), (1, 1, 2, 2), (1, 0, 0, 1, 1), (1, 1, 3, 3)),
    ((2, 3, 4, 3), (3, 4, 3, 3), (2, 1, 1, 1, 1), (2, 4, 8, 6)),
    ((1, 4, 3, 4), (4, 2, 2, 3), ((2, 3), (1, 0), (0, 2), 1, 2), (1, 4, 4, 14)),
    ((1, 2, 3, 3), (2, 3, 3, 2), (1, (0, 1, 2, 0), 0, (2, 1), 1), (1, 3, 5, 3)),
]
HALF = {"float16": 4e-2, "bfloat16": 2e-1}  # sums of up to 48 products of size 4

CASES = [
    OpCase(
        "conv2d_transpose",
        [sample(F(*x), F(*w), *window) for x, w, window, _ in WINDOWS]
        + [sample(F(1, 3, 4, 2), F(3, 3, 2, 5), 2, 1, 1, 1, 1, "NHWC", "HWIO", "NHWC")],
        conv2d_transpose,
        atol=HALF,
    ),
    OpCase(
        "conv2d_transpose_dx",
        [sample(F(*w), None, F(*y), x, *window) for x, w, window, y in WINDOWS],
        gradient(0),
        atol=HALF,
    ),
    OpCase(
        "conv2d_transpose_dw",
        [sample(F(*x), None, F(*y), w, *window) for x, w, window, y in WINDOWS],
        gradient(1),
        atol=HALF,
    ),
]
