"""Losses of many steps of a contender beside torch eager's, and what rounding makes of these."""

from __future__ import annotations

import gc
from dataclasses import dataclass

import torch

from models.contenders import STEP, training_of_torch
from models.cuda_strangers import EVERY_ROW

UNITS = {"float16": 2.0**-11, "bfloat16": 2.0**-8, "tf32": 2.0**-11, "float32": 2.0**-20}
"""Half of what a last place is, as a share; of float32 that of a sum."""
WINDOWS = 10
NOISES = 3.0
"""How many times as far as eager's own losses ours may be."""


@dataclass(frozen=True)
class Curves:
    """Losses of a row's steps: eager's, eager's from parameters that are off by a rounding, and
    ours.
    """

    row: str
    eager: torch.Tensor
    disturbed: torch.Tensor
    ours: torch.Tensor

    def ratio(self) -> float:
        """Return how far ours are from eager's, as a share of what they may be, in the worst of
        `WINDOWS` parts of the steps: `NOISES` times what the disturbed ones have been so far, and
        an eighth of a unit in the last place: a loss is a mean.
        """
        size = max(1, len(self.eager) // WINDOWS)
        noise = _means((self.disturbed - self.eager).abs(), size).cummax(0).values
        unit = UNITS[EVERY_ROW[self.row].precision] / 8 * self.eager.abs().max()
        return float((_means((self.ours - self.eager).abs(), size) / (NOISES * noise + unit)).max())

    def __str__(self) -> str:
        own, other, off = (float(x[-1]) for x in (self.ours, self.eager, self.disturbed))
        text = (
            f"{len(self.ours)} losses, the last {own:.5f}, eager {other:.5f}, disturbed {off:.5f}"
        )
        return f"{self.row}: {text}; {self.ratio():.2f} of what noise allows"


def _means(x: torch.Tensor, size: int) -> torch.Tensor:
    return torch.stack([part.mean() for part in x.split(size)])


def curves(row: str, steps: int, device: str, tiny: bool) -> Curves:
    """Train a row three times from the same parameters."""
    return Curves(
        row,
        losses(row, "eager", steps, device, tiny),
        losses(row, "eager", steps, device, tiny, disturbed=True),
        losses(row, STEP, steps, device, tiny),
    )


def losses(
    row: str, contender: str, steps: int, device: str, tiny: bool, disturbed: bool = False
) -> torch.Tensor:
    """Return the losses of a contender's first steps, float64[steps]."""
    task = EVERY_ROW[row].task(tiny)
    torch.manual_seed(0)
    with torch.device(device):
        model = task.theirs()
    if disturbed:
        unit = UNITS[EVERY_ROW[row].precision]
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(1 + unit * (2 * torch.rand_like(p) - 1))
    torch.manual_seed(1)
    call = training_of_torch(EVERY_ROW[row], task, model, device, contender)
    found = [call().detach().clone() for _ in range(steps)]
    del call, model
    gc.collect()
    return torch.stack(found).double().cpu()
