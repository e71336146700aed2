"""Test records of Adam and its relatives: one step of torch.optim, or the paper's formulas."""

import torch

from meta.testing import C, F, OpCase, error, refusals, sample


def _number(value):
    return value.item() if isinstance(value, torch.Tensor) else value


def _torch_step(optimizer, decay):
    """Return the oracle that lets an optimizer of torch take step number ``step``."""

    def oracle(
        x, dx, m, v, step, learning_rate, beta1=0.9, beta2=0.999, eps=1e-8, weight_decay=decay
    ):
        parameter = torch.nn.Parameter(x.clone())
        parameter.grad = dx
        own = optimizer(
            [parameter],
            lr=_number(learning_rate),
            betas=(float(beta1), float(beta2)),
            eps=eps,
            weight_decay=weight_decay,
        )
        steps_so_far = torch.tensor(float(_number(step) - 1))
        own.state[parameter] = {"step": steps_so_far, "exp_avg": m, "exp_avg_sq": v}
        own.step()
        return parameter.detach(), m, v

    return oracle


def _lamb(x, dx, m, v, step, learning_rate, beta1=0.9, beta2=0.999, eps=1e-6, weight_decay=0.01):
    """You et al., algorithm 2, line by line."""
    step, learning_rate = _number(step), _number(learning_rate)
    m = beta1 * m + (1 - beta1) * dx
    v = beta2 * v + (1 - beta2) * dx**2
    r = (m / (1 - beta1**step)) / ((v / (1 - beta2**step)).sqrt() + eps)
    u = r + weight_decay * x
    norms = x.norm().item(), u.norm().item()
    ratio = norms[0] / norms[1] if min(norms) > 0 else 1.0
    return x - learning_rate * ratio * u, m, v


def _state(*shape):
    """Return a parameter, its gradient and moments, of which the second is positive."""
    return F(*shape), F(*shape), F(*shape), F(*shape, low=0.5, high=2.0)


FIRST = (C([1.0, -2.0, 0.0]), C([0.5, 0.0, -3.0]), C([0.0] * 3), C([0.0] * 3))
SAMPLES = [
    sample(*_state(3, 4), 3, 0.1),
    sample(*FIRST, 1, 0.01),
    sample(*_state(), 7, 0.5, 0.8, 0.99, 1e-3, 0.1),
    sample(*_state(0, 2), 1, 0.1),
    sample(*_state(70), C(12, "int64"), C(0.05)),
    sample(*_state(1, 5), C([2.0], "float32"), C([[0.1]]), weight_decay=0.3),
    sample(*_state(40, 33), 1000, 0.001, 0.5),
    sample(*_state(5), 2, 0.1, 0, 0.5, weight_decay=0),
]
# Nothing to follow, or nothing to compare its length with: the ratio of the norms is 1.
NO_LENGTH = [
    sample(C([0.0, 0.0]), C([1.0, -1.0]), C([0.0, 0.0]), C([0.0, 0.0]), 1, 0.1),
    sample(C([1.0, 2.0]), C([0.0, 0.0]), C([0.0, 0.0]), C([0.0, 0.0]), 1, 0.1, weight_decay=0.0),
]
# Rounded moments are read again to update the parameter.
HALF = {"atol": {"float16": 5e-3, "bfloat16": 4e-2}}

CASES = [
    OpCase("adam", SAMPLES, _torch_step(torch.optim.Adam, 0.0), grad=False, **HALF),
    OpCase("adamw", SAMPLES, _torch_step(torch.optim.AdamW, 0.01), grad=False, **HALF),
    OpCase("lamb", [*SAMPLES, *NO_LENGTH], _lamb, grad=False, **HALF),
]

STEPS = [
    error(F(3), F(2), F(3), F(3), 1, 0.1, match="x, dx, m and v differ"),
    error(F(3), F(3), F(3), C([0.0] * 3, "float64"), 1, 0.1, match="differ in dtype"),
    error(F(3), F(3), F(3), F(3), F(2), 0.1, match="step must be one number"),
    error(F(3), F(3), F(3), F(3), 1, C(1, "int64"), match="learning_rate must be floating point"),
]

CASES += refusals({"adam adamw lamb": STEPS})
