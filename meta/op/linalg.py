"""Products of matrices.

The suffix says which operands are stored transposed: ``n`` as it is, ``t`` transposed. All of
them sum products in at least float32: a half precision result is rounded once, at the end.
Nothing is promoted: both operands have one dtype, which is the result's. Products of float8 are
apart: `scaled_matmul`. `meta/op/core/subscripts.py` reads the notation of `einsum`.
"""

from typing import Any

from meta.base.dtype import FLOAT8, FLOATS
from meta.ir.types import Dim
from meta.op.core import DType, Op, Tensor, TensorType, Weight, op
from meta.op.core.check import broadcast_shapes, require, require_ndim, require_same_dtype
from meta.op.core.elementwise import described
from meta.op.core.subscripts import subscripts


def _product(x1: TensorType, x2: TensorType, ndim: int, t1: bool, t2: bool) -> TensorType:
    """Return the type of x1 @ x2, each transposed in its last two axes if the flag says so."""
    require_ndim(x1, ndim, "x1")
    require_ndim(x2, ndim, "x2")
    found = f"x1={x1}, x2={x2}"
    dtype = require_same_dtype(x1, x2)
    require(dtype != "bool", "bools have no product", expected="a dtype of numbers", found=found)
    m, k1 = x1.shape[-2:][::-1] if t1 else x1.shape[-2:]
    k2, n = x2.shape[-2:][::-1] if t2 else x2.shape[-2:]
    axes = f"axis {-2 if t1 else -1} of x1 as long as axis {-1 if t2 else -2} of x2"
    # An extent that is not a number yet is compared when it is one.
    differ = isinstance(k1, int) and isinstance(k2, int) and k1 != k2
    require(not differ, f"the inner extents {k1} and {k2} differ", expected=axes, found=found)
    return x1.with_shape((*broadcast_shapes(x1.shape[:-2], x2.shape[:-2]), m, n))


@op(composed=True, complex=True, promotes=("x1", "x2"))
def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Matrix product ``x1 @ x2``.

    x1: (m, k). x2: (k, n), same dtype: any but bool. Result: (m, n), zeros if k is 0. A call takes
    vectors, and stacks of matrices that broadcast, too, as numpy's: it is composed of products of
    matrices, or of `batch_matmul`. A vector on the left is a row, on the right a column; that axis
    is not in the result.
    Raises TypeInferError for numbers, different dtypes or different inner extents.
    """
    return _product(x1, x2, 2, False, False)


@op(complex=True)
def dense(x1: Tensor, x2: Weight) -> Tensor:
    """A fully connected layer without bias, ``x1 @ x2.T``.

    x1: rows (m, k). x2: weights (n, k), one row per unit. Result (m, n). The same product as
    `matmul_nt`, with the name by which layers and importers know it. See `matmul`.
    """
    return _product(x1, x2, 2, False, True)


@op(schema=matmul, complex=True, promotes=("x1", "x2"))
def batch_matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Matrix products ``x1[i] @ x2[i]`` for every i.

    x1: (b, m, k). x2: (b, k, n), same dtype: any but bool. A batch of 1 is used with every matrix
    of the other operand. Result: (b, m, n), zeros if k is 0.
    Raises TypeInferError for other ndims, different dtypes, different inner extents or batches.
    """
    return _product(x1, x2, 3, False, False)


STORED_TRANSPOSED = {matmul: (False, False), dense: (False, True), batch_matmul: (False, False)}
"""Whether x1 and x2 are stored transposed."""


def _define(product: Op, ndim: int, t1: bool, t2: bool) -> None:
    formula = f"x1{'.T' * t1} @ x2{'.T' * t2}"
    shapes = f"x1 {'(k, m)' if t1 else '(m, k)'}, x2 {'(n, k)' if t2 else '(k, n)'}"

    @op(name=f"{product.name}_{'nt'[t1]}{'nt'[t2]}", schema=product, complex=True)
    @described(f"``{formula}``: `{product.name}` of matrices {shapes}, result (m, n).")
    def transposed(x1: Tensor, x2: Tensor) -> Tensor:
        return _product(x1, x2, ndim, t1, t2)

    STORED_TRANSPOSED[transposed] = t1, t2


for _t1, _t2 in ((False, True), (True, False), (True, True)):
    _define(matmul, 2, _t1, _t2)
    _define(batch_matmul, 3, _t1, _t2)


def _require_scale(scale: TensorType, rows: Dim, name: str, factor: str) -> None:
    """Raise TypeInferError unless ``scale`` is one number, or one for each row of a factor."""
    require(scale.dtype == "float32", f"{name} must be float32", found=str(scale))
    fits = scale.ndim == 0 or (scale.ndim == 1 and scale.shape[0] == rows)
    expected = f"shape [] or [{rows}]: one number for {factor}, or one for each of its rows"
    require(fits, f"{name} does not fit {factor}", expected=expected, found=str(scale))


@op(float8=True)
def scaled_matmul(
    x1: Tensor, x2: Tensor, scale1: Tensor, scale2: Tensor, dtype: DType = "bfloat16"
) -> Tensor:
    """The product of float8 matrices with their scales, ``(scale1 * x1) @ (scale2 * x2).T``.

    x1: (m, k). x2: (n, k), a row for each column of the result, as `dense` has its weights. Each
    float8_e4m3fn or float8_e5m2. scale1: float32, () for one number or (m,) for one per row of x1.
    scale2: (), or (n,) of x2. dtype: float16, bfloat16 or float32, of the result, (m, n); zeros if
    k is 0. Sums are in float32 (matrix units of GPUs keep fewer bits of them), and rounded once.

    A matrix w becomes float8 by ``scale = abs(w).max() / 448`` and ``meta.astype(w / scale,
    "float8_e4m3fn")``, as in Micikevicius et al. 2022, FP8 Formats for Deep Learning. There is no
    gradient. Raises TypeInferError for other ndims or dtypes, different inner extents, and scales
    that do not fit.
    """
    for x, name in ((x1, "x1"), (x2, "x2")):
        require_ndim(x, 2, name)
        require(x.dtype in FLOAT8, f"{name} must be float8", expected="float8", found=str(x))
    wide = sorted(FLOATS - {"float64"})
    require(
        dtype in wide, "dtype is that of no such product", expected=", ".join(wide), found=dtype
    )
    (m, k1), (n, k2) = x1.shape, x2.shape
    differ = isinstance(k1, int) and isinstance(k2, int) and k1 != k2
    require(not differ, f"the inner extents {k1} and {k2} differ", found=f"x1={x1}, x2={x2}")
    _require_scale(scale1, m, "scale1", "x1")
    _require_scale(scale2, n, "scale2", "x2")
    return TensorType((m, n), dtype)


@op(composed=True, complex=True, promotes=("operands",))
def einsum(equation: str, operands: tuple[Tensor, ...]) -> Tensor:
    """The sum, over the labels that the result lacks, of products of elements of the operands.

    ``meta.einsum("bij,bjk->bik", a, b)`` is a batch of matrix products, ``"ii->"`` a trace,
    ``"i,j"`` an outer product. The notation is numpy's and torch's, see
    `meta.op.core.subscripts`: repeated labels (on one operand its diagonal), ellipsis, implicit
    results, axes of extent 1 that are broadcast.

    operands: at least one tensor; of one dtype, any but bool. Integers wrap. In a call they follow
    one by one, or as one tuple.
    Result: that dtype; products are summed in at least float32 and rounded once.
    Raises TypeInferError for a malformed equation or operands that do not fit it.
    """
    require(len(operands) > 0, "operands is empty", expected="at least one tensor")
    dtype = require_same_dtype(*operands)
    require(dtype != "bool", "bools have no product", expected="a dtype of numbers")
    return TensorType(subscripts(equation, [x.shape for x in operands]).shape, dtype)


@einsum.calls
def _einsum(equation: str, *operands: Any, **named: Any) -> Any:
    one = len(operands) == 1 and isinstance(operands[0], tuple)
    return einsum.plain(equation, *(operands if named or one else (operands,)), **named)
