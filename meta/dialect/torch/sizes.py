"""Extents as tensors, on ATen."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.shape_as_tensor)
def shape_as_tensor(x, out):
    out.copy_(torch.tensor(x.shape, dtype=torch.int64))
