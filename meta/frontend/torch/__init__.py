"""PyTorch modules become models, by `torch.export` and TVM's importer. TVM is imported with this
package.
"""

from meta.frontend.torch.model import TorchModel, from_torch

__all__ = ["TorchModel", "from_torch"]
