"""Branches and loops of torch: `torch.cond`, `while_loop`, `scan`, `map`; wrappers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch._higher_order_ops.map import map as torch_map
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.utils.checkpoint import checkpoint

import meta
from meta.frontend import from_torch
from meta.frontend.aten import AtenError


class Branching(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cond(x.sum() > 0, lambda x: self.linear(x).sin(), lambda x: x.cos(), (x,))


class Doubling(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        count = torch.zeros((), dtype=torch.int64)
        return while_loop(lambda i, y: y.sum() < 100, lambda i, y: (i + 1, y * 2), (count, x.abs()))


class Scanning(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: torch.Tensor) -> Any:
        last, sums = scan(self.step, x.sum(0), x, dim=0)
        return last, sums

    def step(self, c: torch.Tensor, row: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return c * self.w + row, (c * row).sin()

    def in_python(self, x: torch.Tensor) -> Any:
        """The same as a plain loop, whose gradients are right in every torch: before 2.13, those
        of torch's scan leave out what comes through the carry.
        """
        c, sums = x.sum(0), []
        for row in x:
            c, y = self.step(c, row)
            sums.append(y)
        return c, torch.stack(sums)


class Mapping(nn.Module):
    def forward(self, x: torch.Tensor) -> Any:
        return torch_map(lambda row, w: (row * w).cumsum(0), x, x.sum(0))


class Checkpointing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> Any:
        return checkpoint(lambda x: self.linear(x).relu(), x, use_reentrant=False)


def close(found: Any, wanted: Any) -> None:
    found = found if isinstance(found, tuple) else (found,)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.torch(), w.detach(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", [Branching, Doubling, Scanning, Mapping, Checkpointing])
def test_results(kind: Any) -> None:
    torch.manual_seed(0)
    module, example = kind(), torch.randn(5, 4)
    model = from_torch(module, (example,))
    compiled = meta.vm.compile(model, meta.array(example))
    for x in (example, example - example.mean() + 1, example - example.mean() - 1):
        close(model(meta.array(x)), module(x))
        close(compiled(meta.array(x)), module(x))


@pytest.mark.parametrize("kind", [Branching, Scanning, Checkpointing])
def test_gradients(kind: Any) -> None:
    torch.manual_seed(0)
    module, x = kind(), torch.rand(5, 4)
    results = getattr(module, "in_python", module)(x)
    results = results if isinstance(results, tuple) else (results,)
    sum(r.square().sum() for r in results).backward()
    found = from_torch(module, (x,))
    y = found(meta.array(x))
    total = sum((r * r).sum() for r in (y if isinstance(y, tuple) else (y,)))
    total.backward()
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(
            dict(found.named_parameters())[name].grad.torch(), parameter.grad, rtol=1e-4, atol=1e-4
        )


def test_what_branches_do_not_support_is_listed_too() -> None:
    class Module(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return torch.cond(
                x.sum() > 0,
                lambda x: torch.special.airy_ai(x),
                lambda x: x.sin(),
                (x,),
            )

    with pytest.raises(AtenError, match="special_airy_ai"):
        from_torch(Module(), (torch.randn(2),))
