"""A model whose gradients are its inputs, exactly, in every dtype: what an optimizer makes of given
gradients can be compared step by step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

import meta
from meta import op

SHAPES = {"weight": (3, 4), "bias": (5,), "scale": ()}
MODES = ("interpreter", "vm")
ONE = meta.array(1.0)


class Given(meta.Model):
    """loss = the sum of every parameter times its input, in float32."""

    def build(self, dtype: str = "float32") -> None:
        generator = torch.Generator().manual_seed(0)
        for name, shape in SHAPES.items():
            array = meta.array(torch.randn(shape, generator=generator), dtype, name=name)
            array.requires_grad = True
            setattr(self, name, array)

    @meta.model.trace
    def forward(self, weight: Any, bias: Any, scale: Any) -> Any:
        """Return the loss."""
        inputs = {"weight": weight, "bias": bias, "scale": scale}
        products = [op.sum(getattr(self, n) * x) for n, x in inputs.items()]
        return op.astype(products[0] + products[1] + products[2], "float32")


def gradients(count: int, dtype: str = "float32", seed: int = 1) -> Iterator[list[meta.ndarray]]:
    """Yield gradients for a number of steps, in the order of SHAPES."""
    generator = torch.Generator().manual_seed(seed)
    for _ in range(count):
        yield [meta.array(torch.randn(s, generator=generator), dtype) for s in SHAPES.values()]


def runner(step: Any, mode: str, dtype: str = "float32") -> Callable[..., Any]:
    """Return what runs a training step of `Given`: ``run(*gradients)``."""
    if mode == "interpreter":
        return lambda *given: step(ONE, *given)
    executable = meta.vm.compile(step, ONE, *next(gradients(1, dtype)))
    return lambda *given: executable(ONE, *given)


def values(model: Any) -> dict[str, torch.Tensor]:
    """Return copies of the parameters."""
    return {n: getattr(model, n).torch().detach().clone() for n in SHAPES}


def double(model: Any) -> dict[str, torch.nn.Parameter]:
    """Return the parameters for torch, in float64."""
    return {n: torch.nn.Parameter(v.double()) for n, v in values(model).items()}
