"""PyTorch modules become models, by `torch.export` and converters of ATen."""

from meta.frontend.torch.model import TorchModel, from_torch

__all__ = ["TorchModel", "from_torch"]
