"""Test records of the transforms of signals: the oracles are products with the whole matrix."""

import math

import torch

from meta.testing import F, I, OpCase, error, sample


def dft(re, im, inverse=False):
    n = re.shape[-1]
    steps = torch.arange(n, dtype=torch.float64, device=re.device)
    angle = 2 * math.pi * torch.remainder(torch.outer(steps, steps), n) / n
    c, s = torch.cos(angle), torch.sin(angle) * (-1 if inverse else 1)
    scale = n if inverse else 1
    return (re @ c + im @ s) / scale, (im @ c - re @ s) / scale


CASES = [
    OpCase(
        "dft",
        samples=[
            *(sample(F(2, 3, n), F(2, 3, n), i) for n in (1, 4, 7) for i in (False, True)),
            sample(F(30), F(30)),
            sample(F(0, 4), F(0, 4), True),
        ],
        oracle=dft,
        dtypes=("float32", "float64"),
        errors=[
            error(I(3, low=0, high=2), I(3, low=0, high=2), match="re must be float32"),
            error(F(3), F(4), match="differ in shape"),
            error(F(2, 0), F(2, 0), match="no last axis"),
            error(F(), F(), match="no last axis"),
        ],
    )
]
