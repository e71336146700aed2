"""Residual networks in mixed precision: no further from float32 than torch.autocast is, with the
same weights.

In train mode they are far from float32 in bfloat16, whoever computes them: statistics of few values
magnify what rounding the weights alone does. Gradients of small networks without normalisation are
no measure: one unit that another rounding switches off changes them by a tenth.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import meta
from meta.base.dtype import TO_TORCH
from meta.model import value_and_grad
from tests.model.zoo.test_vision import WithLoss, gradients, pair
from tests.model.zoo.vision import SMALL

FACTOR = 1.5


def distance(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> float:
    """Return the norm of the difference of all tensors, relative to that of what is wanted."""
    a, b = (torch.cat([t[n].detach().double().flatten() for n in wanted]) for t in (found, wanted))
    return float((a - b).norm() / b.norm())


@pytest.mark.product
@pytest.mark.parametrize("half", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["resnet", "resnet with bottlenecks"])
def test_no_worse_than_torch(name: str, half: str, tmp_path: Path) -> None:
    ours, theirs, names = pair(SMALL[name], tmp_path / "weights.safetensors")
    start = {n: t.clone() for n, t in theirs.state_dict().items()}
    images, labels = SMALL[name].batch()

    def torchs(enabled: bool) -> list[dict[str, torch.Tensor]]:
        theirs.load_state_dict(start)
        theirs.zero_grad()
        with torch.autocast("cpu", TO_TORCH[half], enabled=enabled):
            logits, loss, found = gradients(theirs, images, labels)
        return [{"": logits}, {"": loss}, found]

    def metas(model: Any) -> list[dict[str, torch.Tensor]]:
        x, y = meta.array(images), meta.array(labels)
        logits = meta.amp.autocast(model.network, half)(x)
        step = value_and_grad(meta.amp.autocast(model, half))
        loss, found = step(meta.array(1.0), x, y)
        by_name = {n: found[f"network.{names[n]}"].torch() for n, _ in theirs.named_parameters()}
        return [{"": logits.torch()}, {"": loss.torch()}, by_name]

    exact, reference = torchs(False), torchs(True)
    with meta.dialect.only("torch"):
        mine = metas(WithLoss(ours))
    for found, theirs_found, wanted in zip(mine, reference, exact, strict=True):
        least = torch.finfo(TO_TORCH[half]).eps / 4
        assert distance(found, wanted) < FACTOR * distance(theirs_found, wanted) + least
