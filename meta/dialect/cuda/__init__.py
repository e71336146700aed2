"""The `cuda` dialect: kernels written by hand in CUDA, for what compilers do not join.

Optimizer steps of all parameters of a model are one launch each; normalisations and the gradient of
an embedding read their arrays once or twice, and add up in one order; attention in float32 keeps
its scores in registers. Source is compiled by NVRTC
when it is first needed, and kept on disk. To add a kernel of lists of tensors, add its passes to
`multi_tensor.py`; another one is a file with its source and the launches of a call.
"""

import torch

from meta.dialect.core import HANDWRITTEN, Dialect
from meta.runtime import nvrtc


def probe() -> str | None:
    """Return why the kernels cannot be used, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    return nvrtc.refusal()


cuda = Dialect("cuda", devices=("cuda",), plevel=HANDWRITTEN, probe=probe, package=__name__)
