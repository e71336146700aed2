"""Initial values of convolutional networks."""

from __future__ import annotations

import math

from meta.model.layers.conv import Conv2d
from meta.model.model import Model
from meta.runtime import random


def initialize_convolutions(model: Model) -> None:
    """Give every `Conv2d` normal weights of variance 2 / fan out, and a bias of zero.

    This keeps the variance of gradients through ReLU (He et al., arXiv:1502.01852, section 2.2;
    fan out = out_channels * kernel area); what torchvision does for the networks of this folder.
    """
    for layer in model.models():
        if isinstance(layer, Conv2d):
            channels, _, *kernel = layer.weight.shape
            std = math.sqrt(2 / (channels * math.prod(kernel)))
            layer.weight.update(random.normal(layer.weight.shape, 0.0, std))
            if layer.bias is not None:
                layer.bias.torch().zero_()
