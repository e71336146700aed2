"""Results whose extents depend on the data, on ATen. No other dialect computes them."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.argwhere)
def argwhere(condition):
    return torch.argwhere(condition).contiguous()


@dialect.kernel(op.nonzero)
def nonzero(x):
    return tuple(i.contiguous() for i in torch.nonzero(x, as_tuple=True))


@dialect.kernel(op.unique)
def unique(x, return_inverse, return_counts):
    return torch.unique(x, True, return_inverse, return_counts)
