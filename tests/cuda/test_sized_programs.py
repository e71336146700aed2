"""Programs with symbolic dimensions on a GPU: one of its own for each size, with its graphs."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import meta
from tests.sized_programs import check

pytestmark = pytest.mark.cuda


def test_each_size_has_its_own() -> None:
    found: list[Any] = []

    def compiled(*args: Any, **kwargs: Any) -> Any:
        found.append(meta.vm.compile(*args, **kwargs))
        return found[-1]

    check("cuda", compiled)
    own = found[0]._sized.found.values()
    assert all(program.cuda_graph for program in own if program)


def test_sizes_of_torch_compile() -> None:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(64, 4, 128, batch_first=True).cuda().eval()
    run = torch.compile(layer, backend="meta", dynamic=True)
    with torch.no_grad():
        for length in (5, 9, 16, 9, 5):
            for _ in range(3):
                x = torch.randn(2, length, 64, device="cuda")
                torch.testing.assert_close(run(x), layer(x), rtol=1e-4, atol=1e-4)


def test_training_of_sizes() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 4))
    model.cuda()
    run = torch.compile(model, backend="meta", dynamic=True)
    for rows in (3, 8, 5, 3, 8):
        x = torch.randn(rows, 16, device="cuda", requires_grad=True)
        results = []
        for called in (run, model):
            model.zero_grad()
            x.grad = None
            called(x).square().sum().backward()
            results.append([x.grad.clone(), *(p.grad.clone() for p in model.parameters())])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
