"""Image classifiers of the zoo beside torch modules of the same architecture: one record each."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import nn

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported

import transformers

from meta.model import Model, zoo
from tests.model.networks import TorchLeNet


@dataclass(frozen=True)
class Vision:
    """``ours()`` and ``theirs()`` make a network; images are (n, channels, side, side)."""

    ours: Callable[[], Model]
    theirs: Callable[[], nn.Module]
    channels: int
    side: int
    classes: int
    n: int = 3

    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels."""
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(self.n, self.channels, self.side, self.side, generator=generator)
        return images, torch.randint(self.classes, (self.n,), generator=generator)


class VGG(nn.Module):
    """VGG under torchvision's names; ``layout`` has channels, and "M" for pooling."""

    def __init__(self, layout: list[Any], norm: bool, hidden: int, classes: int, p: float) -> None:
        super().__init__()
        features: list[nn.Module] = []
        inside = 3
        for width in layout:
            if width == "M":
                features.append(nn.MaxPool2d(kernel_size=2, stride=2))
                continue
            features.append(nn.Conv2d(inside, width, kernel_size=3, padding=1))
            if norm:
                features.append(nn.BatchNorm2d(width))
            features.append(nn.ReLU(inplace=True))
            inside = width
        self.features = nn.Sequential(*features)
        self.avgpool = nn.AdaptiveAvgPool2d((7, 7))
        self.classifier = nn.Sequential(
            nn.Linear(inside * 49, hidden),
            nn.ReLU(True),
            nn.Dropout(p),
            nn.Linear(hidden, hidden),
            nn.ReLU(True),
            nn.Dropout(p),
            nn.Linear(hidden, classes),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.classifier(torch.flatten(self.avgpool(self.features(x)), 1))


class Logits(nn.Module):
    """A network of transformers that returns its scores alone, under its own names."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.__dict__["network"] = network
        for name, child in network.named_children():
            self.add_module(name, child)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.network(x).logits


def resnet(**values: Any) -> Vision:
    """Return a residual network of these fields of `ResNetConfig`, beside that of transformers."""
    config = zoo.ResNetConfig(**values)
    expansion = 4 if config.bottleneck else 1

    def theirs() -> nn.Module:
        return Logits(
            transformers.ResNetForImageClassification(
                transformers.ResNetConfig(
                    num_channels=config.num_channels,
                    embedding_size=config.width,
                    hidden_sizes=[config.width * 2**i * expansion for i in range(4)],
                    depths=list(config.layers),
                    layer_type="bottleneck" if config.bottleneck else "basic",
                    num_labels=config.num_classes,
                )
            )
        )

    return Vision(lambda: zoo.ResNet(config), theirs, config.num_channels, 64, config.num_classes)


def vgg(**values: Any) -> Vision:
    """Return a VGG of these fields of `VGGConfig`, beside one written with torch."""
    config = zoo.VGGConfig(**values)
    layout = [part for stage in config.layers for part in (*stage, "M")]

    def theirs() -> nn.Module:
        norm, classes = config.batch_norm, config.num_classes
        return VGG(layout, norm, config.hidden, classes, config.dropout)

    return Vision(lambda: zoo.VGG(config), theirs, 3, 64, config.num_classes)


def lenet(**values: Any) -> Vision:
    """Return a LeNet of these fields of `LeNetConfig`, beside one written with torch."""
    config = zoo.LeNetConfig(**values)
    sizes = (config.num_channels, config.image_size, config.num_classes)
    return Vision(lambda: zoo.LeNet(config), lambda: TorchLeNet(*sizes), *sizes)


def vit(**values: Any) -> Vision:
    """Return a vision transformer of these fields of `ViTConfig`, beside that of transformers."""
    config = zoo.ViTConfig(**values)
    known = {f.name: getattr(config, f.name) for f in fields(config)}
    sizes = (config.num_channels, config.image_size, config.num_labels)

    def theirs() -> nn.Module:
        found = transformers.ViTConfig(**known)
        found._attn_implementation = "eager"
        return Logits(transformers.ViTForImageClassification(found))

    return Vision(lambda: zoo.ViTForImageClassification(config), theirs, *sizes)


SMALL = {
    "lenet": lenet(),
    "lenet of colours": lenet(num_channels=3, image_size=20, num_classes=7),
    "resnet": resnet(width=4, num_classes=10),
    "resnet with bottlenecks": resnet(width=4, layers=(1, 2, 1, 1), bottleneck=True, num_classes=7),
    "vgg": vgg(layers=((8,), (12, 8)), hidden=24, num_classes=10, dropout=0.0),
    "vgg with normalisation": vgg(
        layers=((8,), (12, 8)), batch_norm=True, hidden=24, num_classes=10, dropout=0.0
    ),
    "vit": vit(
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        image_size=12,
        patch_size=4,
        num_labels=10,
    ),
    "vit with other parts": vit(
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        hidden_act="gelu_new",
        image_size=6,
        patch_size=3,
        num_channels=1,
        qkv_bias=False,
        layer_norm_eps=1e-3,
        num_labels=3,
    ),
}
"""Networks small enough for every run, which have all that the large ones have."""

FULL = {
    "resnet18": resnet(),
    "resnet50": resnet(layers=(3, 4, 6, 3), bottleneck=True),
    "vgg11": vgg(dropout=0.0),
    "vgg11_bn": vgg(batch_norm=True, dropout=0.0),
    "vit_b_16": replace(vit(), n=1),
}
"""The networks as they are used."""

PARAMETERS = {
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "vgg11": 132_863_336,
    "vgg11_bn": 132_868_840,
    "vit_b_16": 86_567_656,
}
"""How many numbers torchvision's documentation says that a network has."""
