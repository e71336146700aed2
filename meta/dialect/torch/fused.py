"""Fused patterns on ATen. Add one here, with what was measured.

Times are of one call, the least of 60, in float32 on 2 threads of an AMD EPYC.
"""

import torch

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect

ON_CPU = {"cpu": LIBRARY}


def single_precision(x):
    """Decline other dtypes than float32 and float64, for which libraries have no fused kernels."""
    return None if x.dtype in ("float32", "float64") else f"{x.dtype} has no fused product"


@dialect.pattern(
    lambda x, w, b: op.bias_add(op.dense(x, w), b), plevel=ON_CPU, when=single_precision
)
def linear(x, w, b, out):
    torch.addmm(b, x, w.t(), out=out)


@dialect.pattern(
    lambda x, w, b: op.relu(op.bias_add(op.dense(x, w), b)), plevel=ON_CPU, when=single_precision
)
def linear_relu(x, w, b, out):
    torch.addmm(b, x, w.t(), out=out)
    torch.relu_(out)
