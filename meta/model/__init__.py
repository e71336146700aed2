"""Floor 6: models: tracing, parameters, layers. A layer is a `Model`; add one in `layers/`."""

from meta.model.control_flow import cond, scan, while_loop
from meta.model.gradient import value_and_grad
from meta.model.layers import (
    GELU,
    BatchNorm,
    Conv2d,
    Dropout,
    Embedding,
    LayerNorm,
    Linear,
    ReLU,
    Sequential,
)
from meta.model.layers.parameter import parameter
from meta.model.model import Model
from meta.model.trace import Traced, trace
from meta.model.weights import load_weights, save_weights

__all__ = [
    "GELU",
    "BatchNorm",
    "Conv2d",
    "Dropout",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Model",
    "ReLU",
    "Sequential",
    "Traced",
    "cond",
    "load_weights",
    "parameter",
    "save_weights",
    "scan",
    "trace",
    "value_and_grad",
    "while_loop",
]
