"""Optimizer steps on ATen, in place."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect


@dialect.kernel(op.sgd)
def sgd(x, dx, v, learning_rate, mu):
    wide = torch.promote_types(x.dtype, torch.float32)
    if wide != x.dtype or isinstance(learning_rate, torch.Tensor) or isinstance(mu, torch.Tensor):
        v.copy_(v.to(wide) * number(mu) + dx)
        x.sub_(v.to(wide) * number(learning_rate))
    else:
        torch.add(dx, v, alpha=float(mu), out=v)
        x.sub_(v, alpha=float(learning_rate))


def number(value):
    """Return a number, or the only element of a tensor, as what does not change a dtype."""
    return value.reshape(()) if isinstance(value, torch.Tensor) else value
