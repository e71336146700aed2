"""A module is exported on one device, and its program runs on any."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import meta
from meta.base.device import Device
from meta.frontend import from_torch

IMAGES, ROWS = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)), torch.ones(3, 4)
MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[torch.Tensor, ...]]] = {
    "batch normalisation": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
        (IMAGES,),
    ),
    "of rows": (lambda: nn.BatchNorm1d(4), (ROWS,)),
    "without statistics": (lambda: nn.BatchNorm2d(3, track_running_stats=False), (IMAGES,)),
    "group normalisation": (lambda: nn.GroupNorm(3, 3), (IMAGES,)),
    "layer normalisation": (lambda: nn.LayerNorm(4), (ROWS,)),
    "attention": (
        lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True),
        (ROWS[None],),
    ),
    "recurrent": (lambda: nn.Sequential(nn.Linear(4, 4), nn.LSTM(4, 5, 2)), (ROWS[None],)),
    "pooling": (lambda: nn.MaxPool2d(2, return_indices=True), (IMAGES,)),
}


@pytest.mark.product
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODULES)
def test_what_was_exported_on_the_cpu_is_a_program_for_cuda(name: str, training: bool) -> None:
    """What kernels keep for gradients differs by device, and nothing reads it here."""
    make, inputs = MODULES[name]
    model = from_torch(make().train(training), inputs)
    model = model.train() if training else model.eval()
    program = model.traced_entry().program_on_types(Device("cuda"), *map(meta.array, inputs))
    assert program.module.main.body.bindings


@pytest.mark.cuda
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize(("here", "there"), [("cpu", "cuda"), ("cuda", "cpu"), ("cuda", "cuda")])
def test_a_model_runs_on_another_device(name: str, training: bool, here: str, there: str) -> None:
    make, inputs = MODULES[name]
    module = make().to(here).train(training)
    model = from_torch(module, tuple(x.to(here) for x in inputs)).to(device=there)
    model = model.train() if training else model.eval()
    found = model(*(meta.array(x, device=there) for x in inputs))
    wanted = module.cpu().double()(*(x.double() for x in inputs))
    leaves = [torch.utils._pytree.tree_leaves(one) for one in (found, wanted)]
    for ours, theirs in zip(*leaves, strict=True):
        assert ours.device.kind == there
        torch.testing.assert_close(
            ours.torch().cpu().double(), theirs.detach().double(), rtol=1e-4, atol=1e-4
        )
