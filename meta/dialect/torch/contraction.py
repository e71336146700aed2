"""Sums of products over labelled axes on ATen, which makes matrix products of them."""

import torch

from meta import op
from meta.base.dtype import is_float
from meta.dialect.core import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.precision import in_float32
from meta.dialect.torch.transform import fresh
from meta.op.core.subscripts import subscripts

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
