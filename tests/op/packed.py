"""Test records of products and convolutions with packed weights."""

import torch
import torch.nn.functional as F_

from meta.testing import F, OpCase, error, sample


def product(x, weight):
    """Rows of the matrix one by one, as the docstring says where they lie."""
    blocks, _, lanes = weight.shape
    rows = [weight[i // lanes, :, i % lanes] for i in range(blocks * lanes)]
    return torch.stack([(x * row).sum(-1) for row in rows], -1)


def convolution(x, weight, stride=1, padding=0, dilation=1, groups=1, layout="NHWC"):
    blocks, *_, lanes = weight.shape
    kernels = [weight[i // lanes, ..., i % lanes].permute(2, 0, 1) for i in range(blocks * lanes)]
    image = x.permute(*(layout.index(letter) for letter in "NCHW"))
    if isinstance(padding, tuple) and len(padding) == 4:
        top, left, bottom, right = padding
        image, padding = F_.pad(image, (left, right, top, bottom)), 0
    y = F_.conv2d(image, torch.stack(kernels), None, stride, padding, dilation, groups)
    return y.permute(0, 2, 3, 1)


CASES = [
    OpCase(
        "packed_matmul",
        [
            sample(F(3, 7), F(2, 7, 8)),
            sample(F(5), F(1, 5, 16)),
            sample(F(3, 2), F(1, 2, 4)),
            sample(F(2, 13, 5), F(3, 5, 16)),
            sample(F(2, 3, 2, 4), F(4, 4, 8)),
            sample(F(37, 3), F(1, 3, 4)),
            sample(F(0, 3), F(2, 3, 8)),
            sample(F(2, 0), F(2, 0, 8)),
        ],
        product,
        errors=[
            error(F(3, 7), F(2, 6, 8), match="7 columns"),
            error(F(3, 7), F(14, 7), match="weight"),
            error(F(), F(2, 1, 8), match="no columns"),
        ],
    ),
    OpCase(
        "packed_conv2d",
        [
            sample(F(2, 6, 7, 3), F(2, 3, 3, 3, 8), 1, 1),
            sample(F(1, 5, 19, 4), F(1, 1, 1, 4, 16)),
            sample(F(1, 3, 3, 2), F(1, 2, 2, 2, 4)),
            sample(F(2, 9, 8, 5), F(1, 2, 3, 5, 16), 2, (1, 0, 0, 1), (2, 1)),
            sample(F(1, 3, 8, 11), F(2, 5, 3, 3, 8), (1, 2), (2, 1), layout="NCHW"),
            sample(F(1, 7, 7, 16), F(2, 3, 3, 1, 8), 2, 1, 1, 16),
            sample(F(1, 4, 4, 6), F(2, 3, 3, 3, 8), 1, 1, 1, 2),
            sample(F(1, 4, 4, 4), F(2, 1, 1, 1, 4), 1, 0, 1, 4),
            sample(F(0, 4, 4, 4), F(2, 1, 1, 4, 8)),
        ],
        convolution,
        errors=[
            error(F(1, 4, 4, 5), F(1, 3, 3, 4, 8), match="channels"),
            error(F(1, 2, 2, 4), F(1, 3, 3, 4, 8), match="window"),
            error(F(1, 4, 4, 4), F(8, 4, 3, 3), match="weight"),
        ],
    ),
]
