"""The `cuda` dialect: kernels written by hand in CUDA, for what compilers do not join.

Optimizer steps of all parameters of a model are one launch each. Source is compiled by NVRTC when
it is first needed, and kept on disk. To add a kernel of lists of tensors, add its passes to
`multi_tensor.py`.
"""

import torch

from meta.dialect.core import HANDWRITTEN, Dialect
from meta.runtime import nvrtc


def probe() -> str | None:
    """Return why the kernels cannot be used, or None."""
    if not torch.cuda.is_available():
        return "there is no NVIDIA GPU"
    return nvrtc.refusal()


cuda = Dialect("cuda", devices=("cuda",), plevel=HANDWRITTEN, probe=probe, package=__name__)
