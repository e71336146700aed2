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
from meta.op.core.axes import Product
from meta.op.core.check import (
    broadcast_shapes,
    require,
    require_float,
    require_ndim,
    require_same_dtype,
    shapes_compatible,
)
from meta.op.core.elementwise import with_docstring
from meta.op.core.function import as_operand
from meta.op.core.indices import IndexRange, IndexRule
from meta.op.core.names import Names
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


@op(
    axes=Product("ab,bc->ac"),
    composed=True,
    complex=True,
    promotes=("x1", "x2"),
    names=Names("array_api"),
)
def matmul(x1: Tensor, x2: Tensor) -> Tensor:
    """Matrix product ``x1 @ x2``.

    x1: (m, k). x2: (k, n), same dtype: any but bool. Result: (m, n), zeros if k is 0. A call takes
    vectors, and stacks of matrices that broadcast, too, as numpy's: it is composed of products of
    matrices, or of `batch_matmul`. A vector on the left is a row, on the right a column; that axis
    is not in the result.
    Raises TypeInferError for numbers, different dtypes or different inner extents.
    """
    return _product(x1, x2, 2, False, False)


@op(axes=Product("ab,cb->ac"), complex=True)
def dense(x1: Tensor, x2: Weight) -> Tensor:
    """A fully connected layer without bias, ``x1 @ x2.T``.

    x1: rows (m, k). x2: weights (n, k), one row per unit. Result (m, n). The same product as
    `matmul_nt`, with the name by which layers and importers know it. See `matmul`.
    """
    return _product(x1, x2, 2, False, True)


@op(axes=Product("nab,nbc->nac"), schema=matmul, complex=True, promotes=("x1", "x2"))
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
    n = "n" * (ndim - 2)
    formula = f"x1{'.T' * t1} @ x2{'.T' * t2}"
    shapes = f"x1 {'(k, m)' if t1 else '(m, k)'}, x2 {'(n, k)' if t2 else '(k, n)'}"

    @op(
        name=f"{product.name}_{'nt'[t1]}{'nt'[t2]}",
        schema=product,
        axes=Product(f"{n}{'ba' if t1 else 'ab'},{n}{'cb' if t2 else 'bc'}->{n}ac"),
        complex=True,
    )
    @with_docstring(f"``{formula}``: `{product.name}` of matrices {shapes}, result (m, n).")
    def transposed(x1: Tensor, x2: Tensor) -> Tensor:
        return _product(x1, x2, ndim, t1, t2)

    STORED_TRANSPOSED[transposed] = t1, t2


for _t1, _t2 in ((False, True), (True, False), (True, True)):
    _define(matmul, 2, _t1, _t2)
    _define(batch_matmul, 3, _t1, _t2)


def grouped_extent(x1: TensorType, x2: TensorType, t1: bool, t2: bool) -> tuple[Dim, str]:
    """Return the extent that the groups of a `grouped_matmul` divide, and its name."""
    if x2.ndim == 3:
        return x1.shape[-1 if t1 else -2], "the rows of x1"
    if x1.ndim == 3:
        return x2.shape[-2 if t2 else -1], "the columns of x2"
    return x1.shape[-2 if t1 else -1], "the inner axis"


GROUPED: dict[Op, tuple[bool, bool]] = {}
"""Whether x1 and x2 are stored transposed, by operator: the forms of `grouped_matmul`."""


def _grouped(x1: TensorType, x2: TensorType, offs: TensorType, t1: bool, t2: bool) -> TensorType:
    found = f"x1={x1}, x2={x2}, offs={offs}"
    ndims = "2 and 3, 3 and 2, or 2 and 2 axes"
    fits = (x1.ndim, x2.ndim) in ((2, 3), (3, 2), (2, 2))
    require(fits, "x1 and x2 are no matrices in groups", expected=ndims, found=found)
    require_float(x1, "x1")
    require_same_dtype(x1, x2)
    integers = offs.dtype in ("int32", "int64")
    require(integers, "offs must be integers", expected="int32 or int64", found=found)
    require_ndim(offs, 1, "offs")
    m, k1 = x1.shape[-2:][::-1] if t1 else x1.shape[-2:]
    k2, n = x2.shape[-2:][::-1] if t2 else x2.shape[-2:]
    require(shapes_compatible((k1,), (k2,)), f"the inner extents {k1} and {k2} differ", found=found)
    groups = offs.shape[0]
    for x in (x1, x2):
        what = f"there are {groups} ends of groups and {x.shape[0]} matrices"
        require(x.ndim == 2 or shapes_compatible(x.shape[:1], (groups,)), what, found=found)
    return x1.with_shape((groups, m, n) if x1.ndim == x2.ndim else (m, n))


def _ends(t1: bool, t2: bool) -> IndexRule:
    """Return what the ends of groups may be."""

    def rule(x1: Tensor, x2: Tensor) -> tuple[IndexRange, ...]:
        extent, name = grouped_extent(x1, x2, t1, t2)
        after = extent + 1 if isinstance(extent, int) else extent
        into = f"the places along {name} where a group may end"
        return (IndexRange("offs", after, into, ordered=True),)

    return rule


@op(composed=True, indices=_ends(False, False), promotes=("x1", "x2"))
def grouped_matmul(x1: Tensor, x2: Weight, offs: Tensor) -> Tensor:
    """Products of groups of rows with a matrix each, as a mixture of experts has them.

    x1: (m, k). x2: (g, k, n), same floating point dtype. offs: (g,), int32 or int64, where each
    group ends: rows offs[i - 1] to offs[i] of x1, of the first group from 0, are multiplied by
    x2[i]. Ends do not decrease; a group may be empty, and rows after the last one give zeros.
    Result: (m, n).

    With other axes other extents are divided into groups: of x1 (g, m, k) and x2 (k, n) the columns
    of x2 and of the result, (m, n); of x1 (m, k) and x2 (k, n) the inner extent, and there is a
    product for each group, (g, m, n), zeros if it is empty. In a call x1 (g, m, k) and x2 (g, k, n)
    go without offs: `batch_matmul`. Semantics of torch's grouped_mm, which leaves open what is
    after the last group.

    Raises TypeInferError for other ndims or dtypes and different inner extents or numbers of
    groups. Raises IndexOutOfRange for ends outside of x1, or that decrease: on CUDA with
    META_CHECK_INDICES only, without it results are unspecified.
    """
    return _grouped(x1, x2, offs, False, False)


GROUPED[grouped_matmul] = False, False


@grouped_matmul.calls
def _grouped_matmul(x1: Any, x2: Any, offs: Any = None) -> Any:
    if offs is not None:
        return grouped_matmul.plain(x1, x2, offs)
    x1, x2 = as_operand(x1), as_operand(x2)
    found = f"x1{list(x1.shape)}, x2{list(x2.shape)}"
    several = x1.ndim == x2.ndim == 3
    what = "without offs there is a matrix of each operand for each group"
    require(several, what, expected="x1[g, m, k], x2[g, k, n], or offs", found=found)
    what = "there are other matrices of x1 than of x2"
    require(
        shapes_compatible(x1.shape[:1], x2.shape[:1]),
        what,
        expected="equal first extents",
        found=found,
    )
    return batch_matmul(x1, x2)


def _define_grouped(t1: bool, t2: bool) -> None:
    @op(
        name=f"grouped_matmul_{'nt'[t1]}{'nt'[t2]}",
        indices=_ends(t1, t2),
        promotes=("x1", "x2"),
    )
    @with_docstring(
        f"``x1{'.mT' * t1} @ x2{'.mT' * t2}`` in groups: `grouped_matmul` of matrices x1 "
        f"{'(k, m)' if t1 else '(m, k)'} and x2 {'(n, k)' if t2 else '(k, n)'}, one of them or "
        "none with an axis of groups before."
    )
    def transposed(x1: Tensor, x2: Weight, offs: Tensor) -> Tensor:
        return _grouped(x1, x2, offs, t1, t2)

    GROUPED[transposed] = t1, t2


for _t1, _t2 in ((False, True), (True, False), (True, True)):
    _define_grouped(_t1, _t2)


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
