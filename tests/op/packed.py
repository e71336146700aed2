"""Test records of products and convolutions with packed weights."""

import torch
import torch.nn.functional as F_

from meta.testing import F, I, OpCase, error, sample


def U(*shape):
    return I(*shape, low=0, high=256, dtype="uint8")


def S(*shape):
    return I(*shape, low=-128, high=128, dtype="int8")


def product(x, weight):
    """Rows of the matrix one by one, as the docstring says where they lie."""
    if weight.ndim == 4:
        weight = weight.transpose(1, 2).flatten(2).transpose(1, 2)[:, : x.shape[-1]]
        x, weight = x.int(), weight.int()
    blocks, _, lanes = weight.shape
    rows = [weight[i // lanes, :, i % lanes] for i in range(blocks * lanes)]
    return torch.stack([(x * row).sum(-1, dtype=x.dtype) for row in rows], -1)


def convolution(x, weight, stride=1, padding=0, dilation=1, groups=1, layout="NHWC"):
    if not x.is_floating_point():
        if weight.ndim == 6:
            channels = x.shape[layout.index("C")] // groups
            weight = weight.transpose(3, 4).flatten(4)[..., :channels].transpose(3, 4)
        options = stride, padding, dilation, groups, layout
        return convolution(x.double(), weight.double(), *options).int()
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
            sample(U(3, 8), S(2, 2, 8, 4)),
            sample(U(2, 3, 7), S(1, 2, 16, 4)),
            sample(S(5, 12), S(1, 3, 16, 4)),
            sample(U(0, 4), S(1, 1, 8, 4)),
        ],
        product,
        errors=[
            error(F(3, 7), F(2, 6, 8), match="7 columns"),
            error(F(3, 7), F(14, 7), match="weight"),
            error(F(), F(2, 1, 8), match="no columns"),
            error(U(3, 8), S(2, 3, 8, 4), match="8 columns"),
            error(U(3, 8), S(2, 8, 8), match="weight"),
            error(U(3, 8), S(2, 2, 8, 3), match="fours"),
            error(U(3, 8), F(2, 2, 8, 4), match="weight"),
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
            sample(U(2, 6, 7, 8), S(2, 3, 3, 2, 8, 4), 1, 1),
            sample(U(1, 5, 5, 3), S(1, 3, 3, 1, 16, 4), 2, 1),
            sample(S(1, 3, 8, 11), S(2, 5, 3, 1, 8, 4), (1, 2), (2, 1), layout="NCHW"),
            sample(U(1, 7, 7, 16), S(2, 3, 3, 1, 8), 2, 1, 1, 16),
            sample(S(1, 4, 4, 8), S(2, 3, 3, 1, 8, 4), 1, 1, 1, 2),
        ],
        convolution,
        errors=[
            error(F(1, 4, 4, 5), F(1, 3, 3, 4, 8), match="channels"),
            error(F(1, 2, 2, 4), F(1, 3, 3, 4, 8), match="window"),
            error(F(1, 4, 4, 4), F(8, 4, 3, 3), match="weight"),
            error(U(1, 4, 4, 9), S(1, 3, 3, 2, 8, 4), match="channels"),
            error(U(1, 4, 4, 4), S(1, 3, 3, 4, 8), match="weight"),
        ],
    ),
]
