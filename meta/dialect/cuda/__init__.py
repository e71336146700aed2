"""The `cuda` dialect: kernels written by hand in CUDA, for what compilers do not join.

- Updates of lists of tensors (`multi_tensor_adamw` and its relatives), `multi_tensor_norm`,
  `multi_tensor_cast` and `multi_tensor_axpby`: one launch for each pass over memory. The table of
  addresses is a parameter by value, 4 KB or, from CUDA 12.1 on, 32 KB, so a CUDA graph keeps it.
  Gradients may be of any floating point dtypes. A factor and a flag to skip the update are tensors,
  so that nothing is decided on the host.
- Layer normalisation over the last axis, also with the sum before it, that of a float32 stream too,
  and with the casts around it; its gradient, with the sum and the casts beside it; the gradient of
  `rms_norm`.
- Batch normalisation with the channels last, with the sum and relu that follow it in a residual
  network, and the gradients of all that.
- Depthwise convolutions with the channels last, and convolutions in groups of half precision on
  tensor cores, these also with bias, sum and relu; and the gradients.
- The gradient of an embedding, with the sum behind it; slices written at coordinates in place;
  elements added along rows where indices name them.
- Uniform, normal and integer random numbers, and dropout, in one pass.
- Steps of decoding: products of a few rows, by quantised matrices too, with what stands around
  them; rotation, the cache's update and attention in one launch; the most probable token. They
  begin while the launches before them still run (`early.cuh`).
- Batch normalisation folded into the weights of all layers of a network in one launch.
- `fuse_tensor`, and attention in float32 on tensor cores (its gradients with META_TF32).

All sums are added up in one order, so results are the same bits at every run. Source is compiled by
NVRTC when it is first needed, and kept on disk. A kernel of lists of tensors
is added as a formula in `meta/op/optimizer.py`; another one is a module with the launches of a call
and, beside it, its source in a ``.cu`` file (`source.py`).
"""

import torch

from meta.dialect.core import HANDWRITTEN, Dialect
from meta.runtime import nvrtc


def probe() -> str | None:
    """Return why the kernels cannot be used, or None."""
    if not torch.cuda.is_available():
        return "no CUDA device"
    return nvrtc.refusal()


cuda = Dialect(
    "cuda",
    devices=("cuda",),
    plevel=HANDWRITTEN,
    probe=probe,
    package=__name__,
    compiles=True,
    once=("optimizer", "random"),
)
