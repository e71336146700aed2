"""One record per layer and meaning of its arguments: the layer, torch's counterpart, an input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from meta import model as ours
from meta.model import Model


@dataclass(frozen=True)
class LayerCase:
    """``ours()`` and ``theirs()`` make the layer; ``shape`` is the input's, which is random, or
    ``indices`` below that number. ``more``: shapes of further inputs. ``tolerance``: of long sums
    in float32 more than of others.
    """

    ours: Callable[[], Model]
    theirs: Callable[[], nn.Module]
    shape: tuple[int, ...]
    indices: int = 0
    more: tuple[tuple[int, ...], ...] = ()
    tolerance: float = 2e-5

    def inputs(self) -> list[torch.Tensor]:
        if self.indices:
            return [torch.randint(self.indices, self.shape)]
        return [torch.randn(shape) * 3 for shape in (self.shape, *self.more)]


IMAGE = (2, 4, 9, 8)


def same(
    name: str,
    shape: tuple[int, ...],
    *args: object,
    more: tuple[tuple[int, ...], ...] = (),
    tolerance: float = 2e-5,
    **kwargs: object,
) -> LayerCase:
    """Return the case of a layer of torch's name and arguments."""
    return LayerCase(
        lambda: getattr(ours, name)(*args, **kwargs),
        lambda: getattr(nn, name)(*args, **kwargs),
        shape,
        more=more,
        tolerance=tolerance,
    )


def batch_norm(
    make: Callable[..., nn.Module], shape: tuple[int, ...], **kwargs: object
) -> LayerCase:
    return LayerCase(lambda: ours.BatchNorm(4, **kwargs), lambda: make(4, **kwargs), shape)


class OurList(Model):
    """A model that calls what is in a `ModuleList`."""

    def build(self) -> None:
        self.layers = ours.ModuleList([ours.Linear(8, 3), ours.Tanh()])
        self.layers.append(ours.Linear(3, 2))

    @ours.trace
    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class TheirList(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 3), nn.Tanh()])
        self.layers.append(nn.Linear(3, 2))

    def forward(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


class OurDict(Model):
    """A model that calls what is in a `ModuleDict`."""

    def build(self) -> None:
        self.heads = ours.ModuleDict({"a": ours.Linear(8, 3)})
        self.heads["b"] = ours.Linear(8, 2)

    @ours.trace
    def forward(self, x: Any) -> Any:
        return tuple(head(x) for head in self.heads.values())


class TheirDict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.ModuleDict({"a": nn.Linear(8, 3)})
        self.heads["b"] = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        return tuple(head(x) for head in self.heads.values())


class OurUnpool(Model):
    """A pooling and its reverse."""

    def build(self, axes: int, *window: Any) -> None:
        self.pool = getattr(ours, f"MaxPool{axes}d")(*window, return_indices=True)
        self.unpool = getattr(ours, f"MaxUnpool{axes}d")(*window)

    @ours.trace
    def forward(self, x: Any) -> Any:
        return self.unpool(*self.pool(x), x.shape)


class TheirUnpool(nn.Module):
    def __init__(self, axes: int, *window: Any) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{axes}d")(*window, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{axes}d")(*window)

    def forward(self, x: Any) -> Any:
        return self.unpool(*self.pool(x), x.shape)


def unpool(shape: tuple[int, ...], *window: Any) -> LayerCase:
    axes = len(shape) - 2
    return LayerCase(lambda: OurUnpool(axes, *window), lambda: TheirUnpool(axes, *window), shape)


class _QuantizedLinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight: torch.Tensor
        self.scales: torch.Tensor
        self.zeros: torch.Tensor
        self.register_buffer("weight", torch.randint(-128, 128, (4, 6), dtype=torch.int8))
        self.register_buffer("scales", torch.ones(4, 2))
        self.register_buffer("zeros", torch.ones(4, 2))
        self.bias = nn.Parameter(torch.zeros(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        scales, zeros = (t.repeat_interleave(3, 1) for t in (self.scales, self.zeros))
        return nn.functional.linear(x, (self.weight - zeros) * scales, self.bias)


SEQUENCE = (5, 3, 4)

CASES = {
    "ReLU": same("ReLU", IMAGE),
    "ReLU6": same("ReLU6", IMAGE),
    "LeakyReLU": same("LeakyReLU", IMAGE),
    "LeakyReLU slope": same("LeakyReLU", IMAGE, 0.2),
    "PReLU": same("PReLU", IMAGE),
    "PReLU of channels": same("PReLU", IMAGE, 4, 0.1),
    "ELU": same("ELU", IMAGE, 0.7),
    "GELU": same("GELU", IMAGE),
    "GELU tanh": same("GELU", IMAGE, approximate="tanh"),
    "SiLU": same("SiLU", IMAGE),
    "Mish": same("Mish", IMAGE),
    "Sigmoid": same("Sigmoid", IMAGE),
    "Tanh": same("Tanh", IMAGE),
    "Softplus": same("Softplus", IMAGE, 2.0, 3.0),
    "Hardswish": same("Hardswish", IMAGE),
    "Hardsigmoid": same("Hardsigmoid", IMAGE),
    "Softmax": same("Softmax", IMAGE, dim=1),
    "LogSoftmax": same("LogSoftmax", IMAGE, dim=-1),
    "Identity": same("Identity", (3, 2), 7, unused=True),
    "Flatten": same("Flatten", IMAGE),
    "Flatten some": same("Flatten", IMAGE, 0, 2),
    "Flatten the last": same("Flatten", IMAGE, start_dim=-2),
    "Linear": same("Linear", (3, 5), 5, 4),
    "QuantizedLinear": LayerCase(
        lambda: ours.QuantizedLinear(6, 4, group=3, symmetric=False),
        _QuantizedLinear,
        (2, 3, 6),
        tolerance=1e-3,  # of sums of a hundred
    ),
    "Linear of more axes": same("Linear", (2, 3, 5), 5, 4, bias=False),
    "Embedding": LayerCase(lambda: ours.Embedding(7, 3), lambda: nn.Embedding(7, 3), (4, 2), 7),
    "Embedding with padding": LayerCase(
        lambda: ours.Embedding(7, 3, -2), lambda: nn.Embedding(7, 3, -2), (4, 2), 7
    ),
    "Conv1d": same("Conv1d", (2, 4, 9), 4, 6, 3, stride=2, padding=1, groups=2),
    "Conv2d": same("Conv2d", IMAGE, 4, 6, 3),
    "Conv2d of all arguments": same(
        "Conv2d", IMAGE, 4, 6, (3, 2), (2, 1), (1, 2), (2, 1), 2, False
    ),
    "Conv2d same": same("Conv2d", IMAGE, 4, 6, (4, 3), padding="same", dilation=2),
    "Conv2d valid": same("Conv2d", IMAGE, 4, 6, 3, stride=2, padding="valid"),
    "Conv3d": same("Conv3d", (1, 2, 5, 4, 6), 2, 3, (2, 3, 1), padding=(1, 0, 2)),
    "ConvTranspose1d": same("ConvTranspose1d", (2, 4, 5), 4, 6, 3, 2, 1, 1, 2),
    "ConvTranspose2d": same("ConvTranspose2d", IMAGE, 4, 6, 3, 2, 1, 1, 2, True, 2),
    "ConvTranspose3d": same("ConvTranspose3d", (1, 2, 3, 4, 3), 2, 3, 2, 2, bias=False),
    "MaxPool1d": same("MaxPool1d", (2, 3, 9), 3, 2, 1),
    "MaxPool2d": same("MaxPool2d", IMAGE, 2),
    "MaxPool2d of all arguments": same(
        "MaxPool2d", IMAGE, (3, 2), (2, 1), (1, 0), (1, 2), ceil_mode=True
    ),
    "MaxPool3d": same("MaxPool3d", (1, 2, 4, 5, 6), 2),
    "MaxUnpool1d": unpool((2, 3, 9), 2),
    "MaxUnpool2d": unpool(IMAGE, (3, 2)),
    "MaxUnpool2d of all arguments": unpool((2, 4, 9, 9), (3, 2), (3, 2), (1, 0)),
    "MaxUnpool3d": unpool((1, 2, 4, 5, 6), 2),
    "AvgPool1d": same("AvgPool1d", (2, 3, 9), 3),
    "AvgPool2d": same("AvgPool2d", IMAGE, 3, 2, 1),
    "AvgPool2d of all arguments": same("AvgPool2d", IMAGE, (3, 2), (2, 1), (1, 0), True, False),
    "AvgPool3d": same("AvgPool3d", (1, 2, 4, 5, 6), (2, 1, 3)),
    "AdaptiveAvgPool1d": same("AdaptiveAvgPool1d", (2, 3, 9), 4),
    "AdaptiveAvgPool2d": same("AdaptiveAvgPool2d", IMAGE, (7, 1)),
    "AdaptiveAvgPool2d of one axis": same("AdaptiveAvgPool2d", IMAGE, (None, 3)),
    "AdaptiveAvgPool3d": same("AdaptiveAvgPool3d", (1, 2, 4, 5, 6), 2),
    "AdaptiveMaxPool1d": same("AdaptiveMaxPool1d", (2, 3, 9), 4),
    "AdaptiveMaxPool2d": same("AdaptiveMaxPool2d", IMAGE, (7, 1)),
    "AdaptiveMaxPool3d": same("AdaptiveMaxPool3d", (1, 2, 4, 5, 6), (2, None, 3)),
    "BatchNorm": batch_norm(nn.BatchNorm2d, IMAGE),
    "BatchNorm of rows": batch_norm(nn.BatchNorm1d, (5, 4), eps=1e-2, momentum=0.3),
    "BatchNorm of volumes": batch_norm(nn.BatchNorm3d, (2, 4, 3, 2, 2), affine=False),
    "LayerNorm": same("LayerNorm", IMAGE, 8),
    "LayerNorm over axes": same("LayerNorm", IMAGE, (4, 9, 8), 1e-3),
    "LayerNorm without bias": same("LayerNorm", IMAGE, (9, 8), bias=False),
    "LayerNorm alone": same("LayerNorm", IMAGE, [8], elementwise_affine=False),
    "RMSNorm": same("RMSNorm", IMAGE, 8),
    "RMSNorm over axes": same("RMSNorm", IMAGE, (9, 8), 1e-2),
    "RMSNorm alone": same("RMSNorm", IMAGE, 8, elementwise_affine=False),
    "GroupNorm": same("GroupNorm", IMAGE, 2, 4),
    "GroupNorm alone": same("GroupNorm", IMAGE, 4, 4, 1e-3, affine=False),
    "InstanceNorm1d": same("InstanceNorm1d", (2, 4, 9), 4),
    "InstanceNorm2d": same("InstanceNorm2d", IMAGE, 4, 1e-3, affine=True),
    "InstanceNorm3d": same("InstanceNorm3d", (2, 4, 3, 2, 2), 4, 1e-5, 0.1, True),
    "Upsample": same("Upsample", IMAGE, scale_factor=2),
    "Upsample to a size": same("Upsample", IMAGE, (5, 12), mode="bilinear", align_corners=True),
    "Upsample of one axis": same("Upsample", (2, 3, 5), None, 3.0, "linear"),
    "PixelShuffle": same("PixelShuffle", IMAGE, 2),
    "PixelShuffle of more axes": same("PixelShuffle", (2, 3, 18, 2, 5), 3),
    "PixelUnshuffle": same("PixelUnshuffle", (2, 3, 4, 8), 2),
    "PixelUnshuffle of one image": same("PixelUnshuffle", (2, 3, 6), 3),
    "ModuleList": LayerCase(OurList, TheirList, IMAGE),
    "ModuleDict": LayerCase(OurDict, TheirDict, IMAGE),
    "RNN": same("RNN", SEQUENCE, 4, 6),
    "RNN of all arguments": same("RNN", SEQUENCE, 4, 6, 2, "relu", False, True, 0.0, True),
    "RNN with a state": same("RNN", SEQUENCE, 4, 6, 2, more=((2, 3, 6),)),
    "LSTM": same("LSTM", SEQUENCE, 4, 6),
    "LSTM of all arguments": same("LSTM", SEQUENCE, 4, 6, 2, False, True, 0.0, True),
    "LSTM of one sequence": same("LSTM", (7, 4), 4, 6, bidirectional=True),
    "GRU": same("GRU", SEQUENCE, 4, 6),
    "GRU of all arguments": same("GRU", SEQUENCE, 4, 6, 2, False, True, 0.0, True),
    "GRU with a state": same("GRU", SEQUENCE, 4, 6, bidirectional=True, more=((2, 3, 6),)),
    "RNNCell": same("RNNCell", (3, 4), 4, 6, True, "relu"),
    "RNNCell with a state": same("RNNCell", (3, 4), 4, 6, False, more=((3, 6),)),
    "LSTMCell": same("LSTMCell", (3, 4), 4, 6),
    "LSTMCell of one example": same("LSTMCell", (4,), 4, 6),
    "GRUCell": same("GRUCell", (3, 4), 4, 6, more=((3, 6),)),
    "MultiheadAttention": same("MultiheadAttention", (5, 3, 8), 8, 2, more=((4, 3, 8), (4, 3, 8))),
    "MultiheadAttention of all arguments": same(
        "MultiheadAttention",
        (3, 5, 8),
        8,
        4,
        0.0,
        False,
        kdim=3,
        vdim=6,
        batch_first=True,
        more=((3, 4, 3), (3, 4, 6)),
    ),
    "TransformerEncoderLayer": same("TransformerEncoderLayer", (5, 3, 8), 8, 2, 6, 0.0),
    "TransformerDecoderLayer": same(
        "TransformerDecoderLayer",
        (3, 5, 8),
        8,
        2,
        6,
        0.0,
        "gelu",
        1e-3,
        True,
        True,
        False,
        more=((3, 4, 8),),
        tolerance=2e-4,
    ),
    "TransformerEncoder": LayerCase(
        lambda: ours.TransformerEncoder(ours.TransformerEncoderLayer(8, 2, 6, 0.0), 2),
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 6, 0.0), 2, enable_nested_tensor=False
        ),
        (5, 3, 8),
    ),
    "TransformerDecoder": LayerCase(
        lambda: ours.TransformerDecoder(
            ours.TransformerDecoderLayer(8, 2, 6, 0.0), 2, ours.LayerNorm(8)
        ),
        lambda: nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, 6, 0.0), 2, nn.LayerNorm(8)),
        (5, 3, 8),
        more=((4, 3, 8),),
    ),
    "Dropout": same("Dropout", IMAGE, 0.0),
    "Sequential": LayerCase(
        lambda: ours.Sequential(ours.Linear(8, 3), ours.Tanh(), ours.Linear(3, 2)),
        lambda: nn.Sequential(nn.Linear(8, 3), nn.Tanh(), nn.Linear(3, 2)),
        IMAGE,
    ),
}
"""By the layer's name, then what the case is about."""
