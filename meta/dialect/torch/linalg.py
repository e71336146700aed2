"""Products of matrices on ATen."""

import torch

from meta import op
from meta.dialect.core import LIBRARY, Unsupported
from meta.dialect.core.kernel_signature import bind_kernel
from meta.dialect.core.openv import OpEnv
from meta.dialect.torch import onednn
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.operands import (
    HALF,
    ON_CPU,
    in_float32,
    no_integers_on_cuda,
    single_or_double,
)
from meta.dialect.torch.shapes import fresh
from meta.op.core.subscripts import subscripts
from meta.op.linalg import GROUPED, STORED_TRANSPOSED
from meta.runtime import gpu_properties

_mm = in_float32(torch.mm, torch.backends.cuda.matmul)
_bmm = in_float32(torch.bmm, torch.backends.cuda.matmul)
_no_integers = no_integers_on_cuda("matrix product")
_einsum = in_float32(
    lambda *tensors, equation: torch.einsum(equation, *tensors), torch.backends.cuda.matmul
)


def _define(base, t1, t2):
    def matrices(x1, x2, out):
        _mm(x1.mT if t1 else x1, x2.mT if t2 else x2, out=out)

    def on_cpu(x1, x2, out):  # a product of few rows takes little longer than what Python does
        torch.mm(x1.mT if t1 else x1, x2.mT if t2 else x2, out=out)

    def batches(x1, x2, out):
        x1, x2, batch = x1.mT if t1 else x1, x2.mT if t2 else x2, len(out)
        _bmm(x1.expand(batch, -1, -1), x2.expand(batch, -1, -1), out=out)  # 1: expanded, not copied

    def outer(x1, x2, out):
        # A sum of one term: 64 products of 32 by 10 take 11 us, and as products of matrices 64
        # (AMD EPYC, one thread, float32; of half precision they take longer).
        torch.mul(x1.mT if t1 else x1, x2.mT if t2 else x2, out=out)

    def large_on_cpu(x1, x2):
        return onednn.product(x1.mT if t1 else x1, x2 if t2 else x2.mT)

    def make(call):
        if reason := _no_integers(call):
            raise Unsupported(reason)
        (x1, x2), is_cpu = call.args, call.device.kind == "cpu"
        run = batches if call.out.ndim > 2 else matrices
        if is_cpu and x1.shape[-2 if t1 else -1] == 1 and single_or_double(x1) is None:
            return OpEnv(bind_kernel(outer, call), allocates=False, strided=True)
        if is_cpu and call.out.ndim == 2:
            single = x1.dtype == "float32" and x1.is_static and x2.is_static
            if single and onednn.is_large(call.out.size * x1.shape[0 if t1 else 1]):
                return OpEnv(bind_kernel(large_on_cpu, call), allocates=True, strided=True)
            run = on_cpu
        return OpEnv(bind_kernel(run, call), allocates=False, strided=True)

    dialect.op(base, plevel=ON_CPU)(make)


for _base, _stored in STORED_TRANSPOSED.items():
    _define(_base, *_stored)


def _grouped(base, t1, t2):
    def by_group(x1, x2, offs, out):
        """A product for each group. An end before the one before it is read as that one."""
        x1, x2, begin = x1.mT if t1 else x1, x2.mT if t2 else x2, 0
        rows, columns = x2.ndim == 3, x1.ndim == 3
        for group, end in enumerate(offs.tolist()):
            own = slice(begin, end := max(begin, end))
            if rows:
                _mm(x1[own], x2[group], out=out[own])
            elif columns:
                _mm(x1[group], x2[:, own], out=out[:, own])
            else:
                _mm(x1[:, own], x2[own], out=out[group])
            begin = end
        if rows or columns:
            (out[begin:] if rows else out[:, begin:]).zero_()

    def zeros(x1, x2, offs, out):
        out.zero_()

    def at_once(x1, x2, offs):
        # It reads whole pieces of 16 bytes, and new memory begins at one.
        x1, x2 = (x.clone() if x.data_ptr() % 16 else x for x in (x1, x2))
        x1, x2 = x1.mT if t1 else x1, x2.mT if t2 else x2
        extent = len(x1) if x2.ndim == 3 else x2.shape[1] if x1.ndim == 3 else len(x2)
        # Nobody may have looked at them.
        offs = offs.clamp(0, extent).cummax(0).values.int()
        out = torch._grouped_mm(x1, x2, offs=offs)
        if out.ndim == 2:  # what is after the last group was left as it is
            after = torch.arange(extent, device=out.device) >= offs[-1]
            out.masked_fill_(after[:, None] if x2.ndim == 3 else after, 0)
        return out

    def make(call):
        if call.device.kind == "cpu":
            return OpEnv(bind_kernel(by_group, call), allocates=False, strided=True)
        if any(0 in t.shape for t in call.args):  # sums of nothing, or rows of no group
            return OpEnv(bind_kernel(zeros, call), allocates=False, strided=True)
        if _is_at_once(call, t1, t2):
            return OpEnv(bind_kernel(at_once, call), allocates=True)
        why = "it reads on the host where groups end"
        if call.args.x1.dtype != "float64":  # which nobody else has
            raise Unsupported(f"{why}, but for groups of bfloat16 in whole pieces of 16 bytes")
        return OpEnv(bind_kernel(by_group, call), False, strided=True, not_capturable=why)

    dialect.op(base, plevel=ON_CPU)(make)


def _is_at_once(call, t1, t2):
    """Whether ATen has one kernel for all groups: of bfloat16 from compute capability 9.0 on, whose
    rows are whole pieces of 16 bytes, wherever groups end: ends that divide rows into such pieces
    are for the device to know, which asserts it.
    """
    x1, x2, offs = call.args
    if x1.ndim == 3 or t1 != (x2.ndim == 2) or (t2 and x2.ndim == 2):
        return False
    if x1.dtype != "bfloat16" or not 0 < offs.shape[0] < 1024:
        return False
    matrices = x1, x2, call.out
    if any(0 in t.shape or t.shape[-1] % 8 for t in matrices):
        return False
    return gpu_properties.target_of(call.device).capability >= (9, 0)


for _base, _stored in GROUPED.items():
    _grouped(_base, *_stored)


def _biased(x, w, b):
    return op.bias_add(op.dense(x, w), b)


def _rectified(x, w, b):
    return op.relu(_biased(x, w, b))


# A linear layer in one call is 1.0 to 1.2 times as fast as a product beside generated code, most
# where the product is small.
@dialect.pattern(_biased, plevel=ON_CPU, when=single_or_double)
def linear(x, w, b, out):
    torch.addmm(b, x, w.t(), out=out)


@dialect.pattern(_rectified, plevel=ON_CPU, when=single_or_double)
def linear_relu(x, w, b, out):
    torch.addmm(b, x, w.t(), out=out)
    torch.relu_(out)


FOR_LARGE = {"cpu": LIBRARY + 1}


def large(x, w):
    """Decline products that MKL is faster at, of rows of w."""
    if x.dtype != "float32":
        return f"not for {x.dtype}"
    count = x.size * w.shape[0] if x.is_static and w.is_static else 0
    return None if onednn.is_large(count) else f"MKL is faster at {count} multiplications"


@dialect.pattern(_biased, plevel=FOR_LARGE, when=large)
def large_linear(x, w, b):
    return onednn.product(x, w, b)


@dialect.pattern(_rectified, plevel=FOR_LARGE, when=large)
def large_linear_relu(x, w, b):
    return onednn.product(x, w, b, "relu")


@dialect.pattern(
    lambda x, w, b, approximate: op.gelu(_biased(x, w, b), approximate),
    plevel=FOR_LARGE,
    when=large,
)
def large_linear_gelu(x, w, b, approximate):
    return onednn.product(x, w, b, "gelu", approximate)


@dialect.kernel(op.scaled_matmul)
def scaled_matmul(x1, x2, scale1, scale2, out):
    product = _mm(x1.float(), x2.float().t())
    out.copy_(product.mul_(scale1.reshape(-1, 1)).mul_(scale2.reshape(1, -1)))


def is_single_product(call):
    """Whether it is one matrix product, so that nothing is rounded before the end."""
    read = subscripts(call.args.equation, [x.shape for x in call.args.operands])
    factors = [
        dict(zip(labels, x.shape, strict=True))
        for labels, x in zip(read.operands, call.args.operands, strict=True)
    ]
    shared = all(f.get(s) == read.extents[s] for s in read.summed for f in factors)
    return len(factors) == 2 and shared


@dialect.kernel(op.einsum, plevel=LIBRARY, when=no_integers_on_cuda("matrix product"))
def einsum(equation, operands, call):
    if operands[0].dtype in HALF and not is_single_product(call):
        wide = _einsum(*(x.float() for x in operands), equation=equation)
        return wide.to(operands[0].dtype, copy=True, memory_format=torch.contiguous_format)
    result = _einsum(*operands, equation=equation)
    places = {x.untyped_storage().data_ptr() for x in operands}
    shares = result.untyped_storage().data_ptr() in places  # it is an operand, or a view of one
    return fresh(result) if shares else result.contiguous()
