"""A network of torch: how it is made small, with weights of a seed, and its inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from tools.client_models.measure import Outcome, Row
from tools.client_models.torch_stages import TorchSubject

Inputs = Callable[[torch.Generator], dict[str, torch.Tensor]]


_BATCH_NORM = torch.nn.modules.batchnorm._BatchNorm


@dataclass(frozen=True)
class TorchRow(Row):
    """A network.

    Attributes
    ----------
    make: returns the module. inputs: returns its inputs by name, from a generator.
    part: the module in it that is imported; the whole by default.
    quick: whether an ordinary run of the tests takes it. noise: how far weights are moved.
    """

    make: Callable[[], torch.nn.Module]
    inputs: Inputs
    part: str | None = None
    quick: bool = False
    noise: float = 0.4

    def module(self) -> torch.nn.Module:
        """Return the network in eval mode. Nothing in it is 0 or 1, and right by accident."""
        torch.manual_seed(0)
        module = self.make().eval()
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_((torch.rand_like(parameter) - 0.5) * self.noise)
            self._see_a_batch(module)
        return module if self.part is None else module.get_submodule(self.part)

    def _see_a_batch(self, module: torch.nn.Module) -> None:
        """Give batch normalisation the statistics of a batch, as after training."""
        layers = [m for m in module.modules() if isinstance(m, _BATCH_NORM)]
        if layers:
            momenta = [layer.momentum for layer in layers]
            for layer in layers:
                layer.momentum = None  # the mean of all batches
            module.train()(**self.inputs(torch.Generator().manual_seed(2)))
            module.eval()
            for layer, momentum in zip(layers, momenta, strict=True):
                layer.momentum = momentum

    def batch(self) -> dict[str, torch.Tensor]:
        """Return the inputs by name."""
        return self.inputs(torch.Generator().manual_seed(1))

    def subject(self, outcome: Outcome, dialect: str | None) -> TorchSubject:
        """Return the network; torch refuses it for causes in torch, or in the library."""
        return TorchSubject(self.module(), self.batch(), dialect)
