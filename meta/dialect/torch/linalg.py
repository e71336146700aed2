"""Products of matrices on ATen."""

import torch

from meta import op
from meta.base.dtype import is_float
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.fusion import ON_CPU, single_or_double
from meta.dialect.torch.precision import in_float32
from meta.dialect.torch.shapes import fresh
from meta.op.core.subscripts import subscripts

_mm = in_float32(torch.mm, torch.backends.cuda.matmul)


_bmm = in_float32(torch.bmm, torch.backends.cuda.matmul)


def no_integers_on_cuda(call):
    """Decline what ATen has no kernel for."""
    if call.device.kind == "cuda" and not is_float(call.args.x1.dtype):
        return f"ATen has no matrix product of {call.args.x1.dtype} on CUDA"
    return None


def kernel(base):
    """Register a kernel, at LIBRARY level on the CPU; a decorator."""
    return dialect.kernel(base, plevel=ON_CPU, when=no_integers_on_cuda)


@kernel(op.matmul)
def matmul(x1, x2, out):
    _mm(x1, x2, out=out)


@kernel(op.matmul_nt)
def matmul_nt(x1, x2, out):
    _mm(x1, x2.t(), out=out)


@kernel(op.matmul_tn)
def matmul_tn(x1, x2, out):
    _mm(x1.t(), x2, out=out)


@kernel(op.matmul_tt)
def matmul_tt(x1, x2, out):
    _mm(x1.t(), x2.t(), out=out)


@kernel(op.dense)
def dense(x1, x2, out):
    _mm(x1, x2.t(), out=out)


def products(x1, x2, out):
    """Fill ``out`` with the products; a batch of 1 is expanded, not copied."""
    batch = out.shape[0]
    _bmm(x1.expand(batch, -1, -1), x2.expand(batch, -1, -1), out=out)


@kernel(op.batch_matmul)
def batch_matmul(x1, x2, out):
    products(x1, x2, out)


@kernel(op.batch_matmul_nt)
def batch_matmul_nt(x1, x2, out):
    products(x1, x2.mT, out)


@kernel(op.batch_matmul_tn)
def batch_matmul_tn(x1, x2, out):
    products(x1.mT, x2, out)


@kernel(op.batch_matmul_tt)
def batch_matmul_tt(x1, x2, out):
    products(x1.mT, x2.mT, out)


# A linear layer in one call is 1.0 to 1.2 times as fast as a product beside generated code, most
# where the product is small.
@dialect.pattern(
    lambda x, w, b: op.bias_add(op.dense(x, w), b), plevel=ON_CPU, when=single_or_double
)
def linear(x, w, b, out):
    torch.addmm(b, x, w.t(), out=out)


@dialect.pattern(
    lambda x, w, b: op.relu(op.bias_add(op.dense(x, w), b)), plevel=ON_CPU, when=single_or_double
)
def linear_relu(x, w, b, out):
    torch.addmm(b, x, w.t(), out=out)
    torch.relu_(out)


# oneDNN's product, with what follows, is 1.1 to 1.2 times as fast as MKL's where it is large, and
# slower where it is small.
LARGE = 2**27
"""The number of multiplications from which on oneDNN is faster."""


FOR_LARGE = {"cpu": LIBRARY + 1}


def large(x, w):
    """Decline products that MKL is faster at."""
    if x.dtype != "float32":
        return f"not for {x.dtype}"
    if not torch.backends.mkldnn.is_available():
        return "torch was built without oneDNN"
    count = x.size * w.shape[0]
    return None if count >= LARGE else f"{count} multiplications are fewer than {LARGE}"


def _onednn(x, w, b, activation, algorithm):
    return torch.ops.mkldnn._linear_pointwise(x, w, b, activation, [], algorithm)


@dialect.pattern(lambda x, w, b: op.bias_add(op.dense(x, w), b), plevel=FOR_LARGE, when=large)
def large_linear(x, w, b):
    return _onednn(x, w, b, "none", "")


@dialect.pattern(
    lambda x, w, b: op.relu(op.bias_add(op.dense(x, w), b)), plevel=FOR_LARGE, when=large
)
def large_linear_relu(x, w, b):
    return _onednn(x, w, b, "relu", "")


@dialect.pattern(
    lambda x, w, b, approximate: op.gelu(op.bias_add(op.dense(x, w), b), approximate),
    plevel=FOR_LARGE,
    when=large,
)
def large_linear_gelu(x, w, b, approximate):
    return _onednn(x, w, b, "gelu", approximate)


@dialect.kernel(op.scaled_matmul)
def scaled_matmul(x1, x2, scale1, scale2, out):
    product = _mm(x1.float(), x2.float().t())
    out.copy_(product.mul_(scale1.reshape(-1, 1)).mul_(scale2.reshape(1, -1)))


_HALF = ("float16", "bfloat16")


_einsum = in_float32(
    lambda *tensors, equation: torch.einsum(equation, *tensors), torch.backends.cuda.matmul
)


def no_integer_einsum_on_cuda(call):
    """Decline what ATen has no kernel for."""
    dtype = call.out.dtype
    if call.device.kind == "cuda" and not is_float(dtype):
        return f"ATen has no matrix product of {dtype} on CUDA"
    return None


def is_one_product(call):
    """Whether it is one matrix product, so that nothing is rounded before the end."""
    read = subscripts(call.args.equation, [x.shape for x in call.args.inputs])
    factors = [
        dict(zip(labels, x.shape, strict=True))
        for labels, x in zip(read.operands, call.args.inputs, strict=True)
    ]
    shared = all(f.get(s) == read.extents[s] for s in read.summed for f in factors)
    return len(factors) == 2 and shared


@dialect.kernel(op.einsum, plevel=LIBRARY, when=no_integer_einsum_on_cuda)
def einsum(inputs, equation, call):
    if call.out.dtype in _HALF and not is_one_product(call):
        wide = _einsum(*(x.float() for x in inputs), equation=equation)
        return wide.to(inputs[0].dtype, copy=True, memory_format=torch.contiguous_format)
    result = _einsum(*inputs, equation=equation)
    places = {x.untyped_storage().data_ptr() for x in inputs}
    shares = result.untyped_storage().data_ptr() in places  # it is an operand, or a view of one
    return fresh(result) if shares else result.contiguous()
