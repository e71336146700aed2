"""PyTorch modules become models, by `torch.export` and converters of ATen."""

from meta.frontend.torch import imported_rule  # noqa: F401  (registers a converter)
from meta.frontend.torch.model import TorchModel, from_torch

__all__ = ["TorchModel", "from_torch"]
