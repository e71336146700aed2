"""Products of vectors and matrices, and what is added to them."""

from functools import reduce
from math import prod

from meta import op
from meta.base.dtype import COMPLEX, FLOAT8, is_float
from meta.frontend.aten.arguments import cast, promote
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.grad.core import pullback


def _times(x, factor):
    """Return x times a number, which torch converts to the dtype first."""
    if x.dtype == "bool":
        factor = bool(factor)
    elif not is_float(x.dtype) and x.dtype not in COMPLEX:
        factor = int(factor)
    return x if factor == 1 else op.multiply(x, factor)


def _sum(x, product, beta, alpha):
    """Return ``beta * x + alpha * product``; what is multiplied by 0 does not count."""
    product = _times(product, alpha)
    return product if beta == 0 else op.add(product, _times(x, beta))


@aten("mm", "bmm", "matmul", "mv", "dot", "linalg_matmul", op.matmul)
def matmul(x, y):
    return op.matmul(x, y)


@aten("mm.dtype", "bmm.dtype", op.matmul)
def matmul_in(x, y, *, out_dtype):
    return op.matmul(cast(x, out_dtype), cast(y, out_dtype))


@aten("_int_mm", op.matmul)
def int_mm(x, y):
    return op.matmul(cast(x, "int32"), cast(y, "int32"))


@aten("addmm", "baddbmm", "addmv", op.matmul, op.add)
def addmm(x, a, b, *, beta, alpha):
    return _sum(x, op.matmul(a, b), beta, alpha)


@aten("addmm.dtype", "baddbmm.dtype", op.matmul, op.add)
def addmm_in(x, a, b, *, out_dtype, beta, alpha):
    product = op.matmul(cast(a, out_dtype), cast(b, out_dtype))
    return _sum(cast(x, out_dtype), product, beta, alpha)


@aten("_addmm_activation", op.matmul, op.add, op.relu, op.gelu)
def addmm_activation(x, a, b, *, beta, alpha, use_gelu, call):
    y = _sum(x, op.matmul(a, b), beta, alpha)
    if not use_gelu:
        return op.relu(y)
    # On CUDA torch calls a kernel that has the approximation.
    return op.gelu(y, "none" if call.device.kind == "cpu" else "tanh")


@aten("addbmm", op.matmul, op.add)
def addbmm(x, a, b, *, beta, alpha):
    """The sum over the batch is one over the inner axis of one product."""
    batch, rows, inner = a.shape
    left = op.reshape(op.permute_dims(a, (1, 0, 2)), (rows, batch * inner))
    right = op.reshape(b, (batch * inner, b.shape[2]))
    return _sum(x, op.matmul(left, right), beta, alpha)


@aten("outer", "ger", op.multiply)
def outer(x, y):
    x, y = promote(x, y)
    return op.multiply(op.expand_dims(x, 1), op.expand_dims(y, 0))


@aten("addr", op.multiply, op.add)
def addr(x, a, b, *, beta, alpha):
    x, a, b = promote(x, a, b)
    return _sum(x, op.multiply(op.expand_dims(a, 1), op.expand_dims(b, 0)), beta, alpha)


@aten("vdot", op.conj, op.matmul)
def vdot(x, y):
    return op.matmul(op.conj(x) if x.dtype in COMPLEX else x, y)


@aten("inner", op.tensordot)
def inner(x, y):
    if not x.shape or not y.shape:
        return op.multiply(x, y)
    return op.tensordot(x, y, ((-1,), (-1,)))


@aten("tensordot", op.tensordot)
def tensordot(x, y, *, dims_self, dims_other):
    return op.tensordot(x, y, (dims_self, dims_other))


@aten("chain_matmul", op.matmul)
def chain_matmul(matrices):
    return reduce(op.matmul, matrices)


@aten("einsum", op.einsum, ignore=("path",))
def einsum(tensors, *, equation):
    return op.einsum(equation, tuple(tensors))


@aten("_trilinear", op.einsum, ignore=("unroll_dim",))
def trilinear(a, b, c, *, expand1, expand2, expand3, sumdim):
    """The sum of a product of three tensors, each of which lacks some axes of it."""
    ndim = len(a.shape) + len(expand1)
    letters = "abcdefghijklmnopqrstuvwxyz"[:ndim]

    def without(dims):
        gone = {d % ndim for d in dims}
        return "".join(letter for i, letter in enumerate(letters) if i not in gone)

    operands = ",".join(map(without, (expand1, expand2, expand3)))
    return op.einsum(f"{operands}->{without(sumdim)}", (a, b, c))


@aten("kron", op.multiply)
def kron(x, y):
    x, y = promote(x, y)
    ndim = max(len(x.shape), len(y.shape))
    first, second = ((1,) * (ndim - len(t.shape)) + tuple(t.shape) for t in (x, y))
    apart = op.reshape(x, tuple(n for extent in first for n in (extent, 1)))
    beside = op.reshape(y, tuple(n for extent in second for n in (1, extent)))
    shape = tuple(a * b for a, b in zip(first, second, strict=True))
    return op.reshape(op.multiply(apart, beside), shape)


@aten("linear", op.linear)
def linear(x, weight, bias):
    return op.linear(x, weight, bias)


@aten("linear_backward", op.matmul, op.sum)
def linear_backward(x, dy, weight, *, output_mask):
    rows, slope = op.reshape(x, (-1, x.shape[-1])), op.reshape(dy, (-1, dy.shape[-1]))
    return (
        op.matmul(dy, weight) if output_mask[0] else None,
        op.matmul_tn(slope, rows) if output_mask[1] else None,
        cast(op.sum(slope, 0), dy.dtype) if output_mask[2] else None,
    )


@aten("matmul_backward", op.matmul)
def matmul_backward(dy, x, y, *, mask):
    found = pullback(op.matmul, (x, y), dy)
    return tuple(g if wanted else None for g, wanted in zip(found, mask, strict=True))


@aten("bilinear", op.linear, op.multiply, op.sum)
def bilinear(x1, x2, weight, bias):
    outputs, left, right = weight.shape
    by_right = op.linear(x2, op.reshape(weight, (outputs * left, right)))
    by_right = op.reshape(by_right, (*x2.shape[:-1], outputs, left))
    y = op.sum(op.multiply(by_right, op.expand_dims(x1, -2)), -1)
    y = cast(y, x1.dtype)
    return y if bias is None else op.add(y, bias)


@aten("_scaled_mm", op.scaled_matmul, ignore=("use_fast_accum",))
def scaled_mm(x, y, scale_x, scale_y, bias, scale_result, *, out_dtype):
    """Of float8: a scale for each factor, or one for each row and each column."""
    dtype = out_dtype or x.dtype
    if dtype in FLOAT8 or scale_result is not None:
        raise Unconvertible("its result is float8, which is not computed here")
    if {x.dtype, y.dtype} - FLOAT8:
        raise Unconvertible(f"its factors are {x.dtype} and {y.dtype}, not float8")
    rows = [_scale(scale_x, x.shape[0]), _scale(scale_y, y.shape[1])]
    product = op.scaled_matmul(x, op.permute_dims(y, (1, 0)), *rows, dtype)
    return product if bias is None else op.add(product, cast(bias, dtype))


def _scale(scale, extent):
    """Return one scale, or one for each row; blocks of a row have none here."""
    count = prod(scale.shape)
    if count == 1:
        return op.reshape(scale, ())
    if count == extent and scale.dtype == "float32":
        return op.reshape(scale, (extent,))
    raise Unconvertible(f"a scale of shape {list(scale.shape)} is for blocks of its factor")


@aten("_grouped_mm", op.grouped_matmul)
def grouped_mm(x, y, ends, bias, *, out_dtype):
    """Products of groups of rows, columns or inner extents, which end at ``ends``."""
    if bias is not None:
        raise Unconvertible("it adds a bias")
    return cast(op.grouped_matmul(x, y, ends), out_dtype or x.dtype)


@aten("transformers.grouped_mm_fallback", op.grouped_matmul)
def rows_of_experts(x, y, ends):
    """What transformers has for `_grouped_mm` of two and three axes."""
    return op.grouped_matmul(x, y, ends)


@aten("transformers.grouped_mm_fallback_backward", op.grouped_matmul_nt, op.grouped_matmul_tn)
def rows_of_experts_backward(x, y, ends, dy):
    return op.grouped_matmul_nt(dy, y, ends), op.grouped_matmul_tn(x, dy, ends)
