"""Products and convolutions with packed weights on ATen, which are unpacked in each call."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect.torch import conv
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import in_float32

_linear = in_float32(F.linear, torch.backends.cuda.matmul)


@dialect.kernel(op.packed_matmul)
def packed_matmul(x, weight):
    if weight.ndim == 4:
        w = weight.transpose(1, 2).flatten(2).flatten(0, 1)[:, : x.shape[-1]]
        return _in_integers(F.linear(x.double(), w.double()))
    return _linear(x, weight.transpose(1, 2).flatten(0, 1))


@dialect.kernel(op.packed_conv2d)
def packed_conv2d(x, weight, stride, padding, dilation, groups, layout):
    integers = not x.is_floating_point()
    if integers:
        channels = x.shape[layout.index("C")] // groups
        if weight.ndim == 6:
            weight = weight.transpose(3, 4).flatten(4)[..., :channels].transpose(3, 4)
        x, weight = x.double(), weight.double()
    w = weight.movedim(4, 1).flatten(0, 1)
    y = conv.forward(x, w, stride, padding, dilation, groups, layout, "OHWI", "NHWC")
    return _in_integers(y) if integers else y


def _in_integers(sums):
    """Return sums of products of 8 bits, which are exact: of as many as fit into memory they are
    below 2**53.
    """
    return sums.to(torch.int64).to(torch.int32)
