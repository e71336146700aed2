"""Optimizer steps of several parameters at once on ATen, in place. Half precision is computed in
float32.
"""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.adaptive import correction, wide
from meta.dialect.torch.optimizer import number


@dialect.kernel(op.lans)
def lans(
    tensor_list,
    step,
    learning_rate,
    beta1,
    beta2,
    eps,
    bias_correction,
    weight_decay,
    grad_averaging,
    mode,
    normalize_grad,
):
    step, rate = number(step), number(learning_rate)
    corrections = [correction(beta, step) if bias_correction else 1.0 for beta in (beta1, beta2)]
    comes = 1 - beta1 if grad_averaging else 1.0
    count = len(tensor_list) // 4
    for i in range(count):
        dx, x, m, v = tensor_list[i::count]
        old, g = wide(x), wide(dx)
        if normalize_grad:
            g = g / _or_one(torch.linalg.vector_norm(g))
        decay = weight_decay * old
        if not mode:
            g, decay = g + decay, 0.0
        m.copy_(beta1 * wide(m) + comes * g)
        v.copy_(beta2 * wide(v) + (1 - beta2) * g * g)
        divisor = (wide(v) / corrections[1]).sqrt() + eps
        r = wide(m) / corrections[0] / divisor + decay
        c = g / divisor + decay
        length = torch.linalg.vector_norm(old)
        x.copy_(old - rate * (beta1 * _as_long(r, length) + (1 - beta1) * _as_long(c, length)))


def _or_one(length):
    """Return a norm, or 1 where it is 0."""
    return torch.where(length > 0, length, 1.0)


def _as_long(u, length):
    """Return ``u`` with another norm; ``u`` itself where either norm is 0."""
    own = torch.linalg.vector_norm(u)
    return u * torch.where((own > 0) & (length > 0), length / own, 1.0)
