"""The dialects `nccl` (CUDA) and `gloo` (CPU): collectives on PyTorch's process groups.

Both have the same kernels (`kernels.py`), which ask the mesh at hand (`meta.runtime.mesh`) for the
ranks to exchange tensors with: processes, or the simulated ranks of `meta.distributed.simulate`.
"""

from meta.dialect.core import LIBRARY, Dialect

gloo = Dialect("gloo", devices=("cpu",), plevel=LIBRARY, package=__name__)
nccl = Dialect("nccl", devices=("cuda",), plevel=LIBRARY, package=__name__)
