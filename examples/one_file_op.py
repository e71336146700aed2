"""A whole operator in one file: schema, gradient, cast rule, TVM, torch and CUDA kernels, and a
test case.

squareplus (Barron, 2021, arXiv:2112.11687) is a smooth relu: y = (x + sqrt(x^2 + b)) / 2. Run this
file to test it.
"""

import struct

import torch
from tvm import te, tirx

import meta
from meta.amp import never
from meta.dialect import HANDWRITTEN, Dialect
from meta.dialect.cuda import cubin, probe
from meta.dialect.torch import torch as on_torch
from meta.dialect.tvm.compute import ELEMWISE, compute
from meta.grad.core import gradient
from meta.op.core import Tensor, op
from meta.testing import F, OpCase, check_case, get_testable_devices, sample


@op
def squareplus(x: Tensor, b: float = 4.0) -> Tensor:
    """(x + sqrt(x^2 + b)) / 2, elementwise. ``x``: floating point; ``b`` > 0 sets the curvature at
    0.
    """
    return x


@gradient(squareplus)
def squareplus_gradient(x, dy, b):
    """dx = dy * (1 + x / sqrt(x^2 + b)) / 2"""
    return dy * (1 + x / meta.sqrt(x * x + b)) * 0.5


never(squareplus)  # its left tail, b / (4 |x|), is lost in 16 bits


@compute(squareplus, ELEMWISE)
def squareplus_tvm(x, b):
    wide = "float64" if x.dtype == "float64" else "float32"

    def value(*i):
        v = x(*i).astype(wide)
        return ((v + tirx.sqrt(v * v + tirx.const(b, wide))) * tirx.const(0.5, wide)).astype(
            x.dtype
        )

    return te.compute(x.shape, value, name="squareplus")


@on_torch.kernel(squareplus)
def squareplus_torch(x, b):
    wide = x.double() if x.dtype == torch.float64 else x.float()
    return ((wide + (wide * wide + b).sqrt()) / 2).to(x.dtype).contiguous()


# The probe says why CUDA kernels cannot be used here: no device, or no NVRTC.
handwritten = Dialect("example", devices=("cuda",), plevel=HANDWRITTEN, probe=probe)
THREADS, MOST_BLOCKS = 256, 4096
SOURCE = r"""
struct Parameters { const float* x; float* y; long long n; float b; };

extern "C" __global__ void squareplus(const __grid_constant__ Parameters p) {
  long long step = (long long)gridDim.x * blockDim.x;
  for (long long i = (long long)blockIdx.x * blockDim.x + threadIdx.x; i < p.n; i += step) {
    float v = p.x[i];
    p.y[i] = 0.5f * (v + sqrtf(v * v + p.b));
  }
}
"""


@handwritten.kernel(
    squareplus,
    when=lambda call: None if call.args.x.dtype == "float32" else "written for float32",
    strided=False,
)
def squareplus_cuda(x, b, out):
    n = x.numel()
    if n:
        # Compiled when it is first needed, and kept on disk; launched on torch's current stream.
        given = struct.pack("<QQqf", x.data_ptr(), out.data_ptr(), n, b)
        grid = min(-(-n // THREADS), MOST_BLOCKS), 1
        cubin.launch(SOURCE, "squareplus", x.device.index, grid, THREADS, len(given))(given)


CASE = OpCase(
    "squareplus",
    samples=[sample(F(3, 5)), sample(F(), b=1.0), sample(F(0, 2)), sample(F(2, 1, 70), b=0.5)],
    oracle=lambda x, b=4.0: (x + torch.sqrt(x * x + b)) / 2,
)

if __name__ == "__main__":
    for device in get_testable_devices():
        check_case(CASE, device)
        print(meta.explain(meta.squareplus, meta.array([1.0, 2.0], device=device)))
