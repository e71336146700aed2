"""``torch.compile(model, backend="meta")``: PyTorch's models compiled here, for inference and for
training, without being converted first.

TorchDynamo records what a model calls, AOTAutograd differentiates it and gives graphs of ATen, and
these become programs by the converters of `meta.frontend.aten`. An installed package is found by
torch; in a source tree, importing this package registers the backend.
"""

from torch._dynamo import register_backend
from torch._dynamo.backends.registry import list_backends

from meta.frontend.dynamo.compiler import backend

if "meta" not in list_backends(exclude_tags=()):
    register_backend(backend, "meta")

__all__ = ["backend"]
