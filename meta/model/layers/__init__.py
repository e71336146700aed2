"""Layers: models with one operator each, under torch's names and initial values."""

from meta.model.layers.activation import GELU, ReLU
from meta.model.layers.conv import Conv2d
from meta.model.layers.dropout import Dropout
from meta.model.layers.embedding import Embedding
from meta.model.layers.linear import Linear
from meta.model.layers.norm import BatchNorm, LayerNorm
from meta.model.layers.sequential import Sequential

__all__ = [
    "GELU",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "ReLU",
    "Sequential",
]
