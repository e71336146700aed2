"""Adam and its relatives on ATen, in place. Half precision is computed in float32."""

import torch

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.optimizer import number
from meta.op.core.numbers import power


def wide(x):
    """Return ``x`` in the dtype to compute in: at least float32."""
    return x if x.dtype == torch.float64 else x.float()


def correction(beta, step):
    """Return 1 - beta**step in float64."""
    if isinstance(step, torch.Tensor):
        return 1 - beta ** step.double()
    return 1 - power(float(beta), float(step))


def direction(g, m, v, step, beta1, beta2, eps):
    """Update the moments by a gradient; return mhat / (sqrt(vhat) + eps)."""
    step = number(step)
    m.copy_(beta1 * wide(m) + (1 - beta1) * g)
    v.copy_(beta2 * wide(v) + (1 - beta2) * g * g)
    mhat = wide(m) / correction(beta1, step)
    return mhat / ((wide(v) / correction(beta2, step)).sqrt() + eps)


@dialect.kernel(op.adam)
def adam(x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay):
    g = wide(dx) + weight_decay * wide(x)
    u = direction(g, m, v, step, beta1, beta2, eps)
    x.copy_(wide(x) - number(learning_rate) * u)


# By measurement: docs/performance.md. ATen's fused step reads and writes everything once, and takes
# the elements in the order of memory, whatever the strides. On CUDA its 1 - beta2 is of a float32,
# wrong in the fifth digit.
@dialect.kernel(op.adamw, plevel={"cpu": LIBRARY}, strided=False)
def adamw(x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay):
    if x.device.type == "cpu" and x.dtype in (torch.float32, torch.float64):
        count = torch.as_tensor(step, dtype=torch.float32, device=x.device).reshape(())
        rate = number(learning_rate)
        numbers = {"beta1": beta1, "beta2": beta2, "weight_decay": weight_decay, "eps": eps}
        torch._fused_adamw_(
            [x], [dx], [m], [v], [], [count], lr=rate, amsgrad=False, maximize=False, **numbers
        )
        return
    u = direction(wide(dx), m, v, step, beta1, beta2, eps)
    x.copy_(wide(x) - number(learning_rate) * (u + weight_decay * wide(x)))


@dialect.kernel(op.lamb)
def lamb(x, dx, m, v, step, learning_rate, beta1, beta2, eps, weight_decay):
    u = direction(wide(dx), m, v, step, beta1, beta2, eps) + weight_decay * wide(x)
    lengths = torch.linalg.vector_norm(wide(x)), torch.linalg.vector_norm(u)
    defined = (lengths[0] > 0) & (lengths[1] > 0)
    ratio = torch.where(defined, lengths[0] / lengths[1], 1.0)
    x.copy_(wide(x) - number(learning_rate) * ratio * u)
