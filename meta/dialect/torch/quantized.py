"""Products with quantised weights on ATen: the weight is written down in the dtype
of x, on the CPU a part of it at a time."""

import torch

from meta import op
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import ON_CPU, in_float32
from meta.op.quantized import BLOCK, MIDDLE

_mm = in_float32(torch.mm, torch.backends.cuda.matmul)


def dequantized(weight, scales, zeros, dtype):
    """Return ``scales * (weight - zeros)`` in a dtype; computed in at least float32."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    (n, groups), k, packed = scales.shape, weight.shape[1], weight.dtype == torch.uint8
    if packed:
        k *= 2
        blocks = weight.view(n, k // BLOCK, 1, BLOCK // 2)
        stored = torch.cat((blocks & 15, blocks >> 4), 2).to(wide)
    else:
        stored = weight.to(wide)
    stored = stored.view(n, groups, k // max(groups, 1))
    if zeros is not None:
        stored -= zeros.to(wide)[:, :, None]
    elif packed:
        stored -= MIDDLE["uint8"]
    return stored.mul_(scales.to(wide)[:, :, None]).view(n, k).to(dtype)


AT_ONCE = 1 << 18
"""Numbers of the weight that are written down at a time on the CPU, which stay in its cache."""


@dialect.kernel(op.quantized_matmul, plevel=ON_CPU)
def quantized_matmul(x, weight, scales, zeros, out):
    count, n = x.shape[:-1].numel(), len(weight)
    rows, result = x.reshape(count, x.shape[-1]), out.view(count, n)
    step = n if x.is_cuda else max(AT_ONCE // max(x.shape[-1], 1), 1)
    for begin in range(0, n, max(step, 1)):
        part = slice(begin, begin + step)
        own = None if zeros is None else zeros[part]
        w = dequantized(weight[part], scales[part], own, x.dtype)
        _mm(rows, w.t(), out=result[:, part])
