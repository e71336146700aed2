"""A loop of accelerate with the backend "meta".

    python examples/train_with_accelerate.py

A small network learns which of five numbers is the largest. The last batch of an epoch is smaller
than the others, gradients are accumulated and clipped, and each epoch ends with an evaluation and a
checkpoint, from the first of which a second run goes on.
"""

import tempfile
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin, set_seed
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from meta.interop.accelerate import register_backend


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(),
            nn.Linear(16, 5),
        )  # fmt: skip

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss: so it is compiled with the layers."""
        return nn.functional.cross_entropy(self.layers(x), labels)


def train(backend: str | None, folder: Path, resume: bool = False, **options: Any) -> list[float]:
    """Train two epochs, or go on with the second; return the losses of steps and evaluations."""
    set_seed(0)
    register_backend()
    plugin = TorchDynamoPlugin(backend=backend or "no")
    accelerator = Accelerator(gradient_accumulation_steps=2, dynamo_plugin=plugin, **options)
    x = torch.randn(22, 5, generator=torch.Generator().manual_seed(1))
    rows = TensorDataset(x, x.argmax(1))
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    network, optimizer, scheduler, batches, evaluation = accelerator.prepare(
        network, optimizer, scheduler, DataLoader(rows, 4), DataLoader(rows, 7)
    )
    losses = []
    if resume:
        accelerator.load_state(str(folder / "0"))
    for epoch in range(1 if resume else 0, 2):
        network.train()
        for batch in batches:
            with accelerator.accumulate(network):
                loss = network(*batch)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(network.parameters(), 0.5)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
        network.eval()
        with torch.no_grad():
            losses += [network(*batch).item() for batch in evaluation]
        accelerator.save_state(str(folder / f"{epoch}"))
    return losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(*(f"{loss:.4f}" for loss in train("meta", Path(folder))))
