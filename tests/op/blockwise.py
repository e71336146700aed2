"""Test records of optimizer steps of several parameters at once: the paper's formulas."""

import torch

from meta.testing import C, F, OpCase, sample


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
    """Zheng et al., algorithm 2, line by line, with the switches of the public implementation."""
    step, learning_rate = (
        v.item() if isinstance(v, torch.Tensor) else v for v in (step, learning_rate)
    )
    count = len(tensor_list) // 4
    new = []
    for dx, x, m, v in zip(
        *(tensor_list[k * count : (k + 1) * count] for k in range(4)), strict=True
    ):
        g = dx / dx.norm() if normalize_grad and dx.norm() > 0 else dx
        if mode == 0:
            g = g + weight_decay * x
        m = beta1 * m + ((1 - beta1) if grad_averaging else 1) * g
        v = beta2 * v + (1 - beta2) * g**2
        mhat = m / (1 - beta1**step) if bias_correction else m
        vhat = v / (1 - beta2**step) if bias_correction else v
        d = torch.zeros_like(x)
        for weight, part in ((beta1, mhat), (1 - beta1, g)):
            u = part / (vhat.sqrt() + eps) + (weight_decay * x if mode else 0)
            longer = x.norm() / u.norm() if x.norm() > 0 and u.norm() > 0 else 1.0
            d = d + weight * longer * u
        new.append((dx, x - learning_rate * d, m, v))
    return tuple(tensor for kind in zip(*new, strict=True) for tensor in kind)


def state(*shapes):
    """Return gradients, parameters and moments, of which the second are positive."""
    return (
        *(F(*s) for s in shapes * 3),
        *(F(*s, low=0.5, high=2.0) for s in shapes),
    )


def arguments(
    step=3,
    learning_rate=0.1,
    beta1=0.9,
    beta2=0.999,
    eps=1e-6,
    bias_correction=1,
    weight_decay=0.01,
    grad_averaging=1,
    mode=1,
    normalize_grad=True,
):
    return (
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
    )


ZEROS = C([0.0, 0.0])
CASES = [
    OpCase(
        "lans",
        samples=[
            sample(state((3, 4)), *arguments()),
            sample(state((3, 4), (5,), ()), *arguments(7, 0.5, 0.8, 0.99, 1e-3)),
            sample(state((2, 3), (0, 2)), *arguments(bias_correction=0)),
            sample(state((6,), (1, 5)), *arguments(grad_averaging=0)),
            sample(state((6,), (2, 2)), *arguments(mode=0, weight_decay=0.3)),
            sample(state((6,), (2, 2)), *arguments(normalize_grad=False)),
            sample(state((6,)), *arguments(C(12, "int64"), C(0.05))),
            sample(state((6,)), *arguments(C([2.0], "float32"), C([[0.1]]), weight_decay=0)),
            sample(state((40, 33), (70,)), *arguments(1000, 0.001, 0.5, mode=True)),
            # The first step; no gradient; nothing to compare the length of a step with.
            sample((C([1.0, -2.0]), C([0.5, 3.0]), ZEROS, ZEROS), *arguments(1)),
            sample((ZEROS, C([1.0, 2.0]), ZEROS, ZEROS), *arguments(1, weight_decay=0.0)),
            sample((C([1.0, -1.0]), ZEROS, ZEROS, ZEROS), *arguments(1)),
        ],
        oracle=lans,
        grad=False,
        # Rounded moments are read again to update the parameter.
        atol={"float16": 5e-3, "bfloat16": 4e-2},
    )
]
