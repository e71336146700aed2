"""Lightning with the backend "meta".

    python examples/train_with_lightning.py

A small convolutional network learns which quarter of an image is the brightest. The last batch of
an epoch is smaller than the others, gradients are accumulated and clipped, and each epoch ends with
a validation and a checkpoint, from the first of which a second run goes on.
"""

import tempfile
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import meta.frontend.dynamo  # noqa: F401  not needed where the package is installed


class Quarters(lightning.LightningModule):
    """A network whose losses, of training steps and validations, are collected in ``losses``."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1, bias=False),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(32, 4),
        )
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Return the loss: so it is compiled with the layers."""
        return nn.functional.cross_entropy(self.layers(x), labels)

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = self(*batch)
        self.log("loss", loss)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: list[torch.Tensor], index: int) -> None:
        loss = self(*batch)
        self.log("validation_loss", loss)
        self.losses.append(loss.item())

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-2)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
        return {"optimizer": optimizer, "lr_scheduler": scheduler}


def images() -> TensorDataset:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(22, 1, 8, 8, generator=generator)
    return TensorDataset(x, nn.functional.adaptive_avg_pool2d(x, 2).flatten(1).argmax(1))


def train(backend: str | None, folder: Path, resume: bool = False, **options: Any) -> list[float]:
    """Train two epochs, or go on with the second; return the losses of steps and validations."""
    lightning.seed_everything(0, verbose=False)
    network = Quarters()
    if backend is not None:
        network.compile(backend=backend)
    data = images()
    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        gradient_clip_val=0.5,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        callbacks=[ModelCheckpoint(folder, "{epoch}", save_top_k=-1)],
        default_root_dir=folder,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    checkpoint = folder / "epoch=0.ckpt" if resume else None
    trainer.fit(network, DataLoader(data, 4), DataLoader(data, 7), ckpt_path=checkpoint)
    return network.losses


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        print(*(f"{loss:.4f}" for loss in train("meta", Path(folder))))
