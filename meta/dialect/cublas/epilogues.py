"""Products with what follows them: bias, activation, a sum with another tensor.

Each pattern is there for `dense` and for `matmul`, and with a reshape after the product, as layers
of arrays with several leading axes have it. Rounding is once, at the end. The tanh form of gelu is
cuBLASLt's; the exact one has no epilogue.

On an H200, float16, in us, beside a product with bias and a generated kernel:

=====================  ============  ==================
rows x in -> out       bias, gelu    bias, gelu, kept
=====================  ============  ==================
4096 x 768 -> 3072     36 (32 + 21)  42 (32 + 21)
1024 x 3072 -> 768     10 (9 + 3.5)  10 (9 + 3.5)
128 x 768 -> 768       3.8 (3.7 + 2) 4.2 (3.7 + 2)
=====================  ============  ==================

Gradients in one kernel: of a layer's weights together with its bias, of weights in float32, and
through a gelu.

The bias gradient, a sum of the rows of ``dy``, is the epilogue of the product that reads them. It
pays where launches count: on an H200 in float16, 4.4 us for 128 rows of 768, where a product takes
2.8 and a generated sum 2.0, but 16.5 for 1024 rows of 3072 (9.1 and 3.7): cuBLASLt has no kernel of
Hopper's for it.

The gradient of the tanh form of gelu is the epilogue of the product that makes the gradient of its
result: 45 us for 4096 x 768 -> 3072 (31 and 25), 16 for 1024 rows (9 and 7.5), 6.5 for 128 (4 and
2.5). That of ReLU would want a mask of bits, which is none of our values.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from math import prod
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported, decline_if
from meta.dialect.core.dialect import overwrites_capture
from meta.dialect.cublas import cublas as dialect
from meta.dialect.cublas.product import FusedProduct, Product, UnalignedRows, prepared, problem
from meta.ir.types import TensorType

PRODUCTS = {"dense": (op.dense, True), "matmul": (op.matmul, False)}
"""By the name that patterns begin with: the operator, and whether the second operand is stored
transposed."""


def rows(product: Any, x: Any, w: Any) -> Any:
    """Return a product, or what a reshape makes of it, as a part of a pattern."""
    y = product(x, w)
    return y | op.reshape(y, ...)


def require_last(axis: int, b: TensorType, y: TensorType) -> None:
    """Decline a bias along another axis than the columns of the product."""
    decline_if(axis % y.ndim != y.ndim - 1, "the bias is not along the last axis")
    decline_if(b.dtype != y.dtype, f"a bias of {b.dtype} beside a product of {y.dtype}")


def require_columns(columns: int, y: TensorType) -> None:
    """Decline a reshape that changes what a row is."""
    if y.ndim == 0 or y.static_shape[-1] != columns:
        raise Unsupported("the reshape between changes the rows of the product")


def _define(name: str, describes: Callable[..., Any], transposed: bool, epilogue: str) -> None:
    """Register a pattern of x and w, a bias b along an axis or none, and a tensor c that is added
    or none. With "aux" the result is one of two: the other is what the activation was of.
    """
    kept = epilogue.endswith("aux")

    def make(
        x: TensorType, w: TensorType, result: Any, device: Device, b: TensorType | None = None,
        axis: int = 0, c: TensorType | None = None,
    ) -> OpEnv:  # fmt: skip
        y = result[0] if kept else result
        if "gelu" in epilogue and x.dtype == "float64":
            raise Unsupported("cuBLASLt's gelu of float64 has 11 digits")
        if c is not None and c != y:
            raise Unsupported(f"what is added, {c}, is not of the product's type {y}")
        of = problem(x, w, False, transposed, epilogue=epilogue, addend=c is not None)
        roles = ["x1", "x2"]
        if b is not None:
            require_columns(of.n, y)
            require_last(axis, b, y)
            roles.append("vector")
        if kept and of.n % 8:
            raise Unsupported("cuBLASLt keeps what is before the activation in rows of 8 elements")
        roles += ["addend", "out"] if c is not None else ["out"]
        roles += ["matrix"] if kept else []
        return prepared(partial(FusedProduct, of, tuple(roles), device.ordinal))

    dialect.pattern_op(describes, name=name)(make)


def _define_all(name: str, product: Any, transposed: bool) -> None:
    """Register what follows a product."""

    def alone(x: Any, w: Any) -> Any:
        return rows(product, x, w)

    def biased(x: Any, w: Any, b: Any, axis: Any) -> Any:
        return op.bias_add(rows(product, x, w), b, axis)

    def gelu_kept(x: Any, w: Any, b: Any, axis: Any) -> Any:
        y = biased(x, w, b, axis)
        return op.gelu(y, "tanh"), y

    def added(x: Any, w: Any, c: Any) -> Any:
        return op.add(alone(x, w), c)

    def biased_added(x: Any, w: Any, b: Any, axis: Any, c: Any) -> Any:
        return op.add(biased(x, w, b, axis), c)

    for suffix, epilogue, describes in (
        ("bias", "bias", biased),
        ("bias_relu", "bias_relu", lambda x, w, b, axis: op.relu(biased(x, w, b, axis))),
        ("bias_gelu", "bias_gelu", lambda x, w, b, axis: op.gelu(biased(x, w, b, axis), "tanh")),
        ("bias_gelu_kept", "bias_gelu_aux", gelu_kept),
        ("relu", "relu", lambda x, w: op.relu(alone(x, w))),
        ("gelu", "gelu", lambda x, w: op.gelu(alone(x, w), "tanh")),
        ("add", "none", added),
        ("bias_add", "bias", biased_added),
    ):
        _define(f"{name}_{suffix}", describes, transposed, epilogue)


for _name, _of in PRODUCTS.items():
    _define_all(_name, *_of)
dialect.overwrites = partial(overwrites_capture, "c")  # C and D may be one for cuBLASLt


LEAST_COLUMNS = 4096
"""Of which a few are left out, as those of a vocabulary: some rows of fewer are too small a product
to be computed alone. A reshape in between cannot change what a row is there.
"""


def _cut_product(
    x: TensorType, w: TensorType, widths: Any, begin: Any, result: TensorType, device: Device,
    b: TensorType | None = None, more: Any = None,
) -> OpEnv:  # fmt: skip
    """The scores of a vocabulary that was padded (`align_products`), without what was added: the
    product is nowhere in memory as a whole. widths, more: how weights and bias were padded, if they
    were; they are read as they were before.
    """
    of = problem(x, w, False, True, epilogue="none" if b is None else "bias")
    shape, starts = result.static_shape, begin if isinstance(begin, tuple) else (begin,)
    decline_if(any(starts) or prod(shape[:-1]) != of.m, "rows are left out, too")
    decline_if(result.size < LEAST_COLUMNS * of.m, f"there are fewer than {LEAST_COLUMNS} columns")
    decline_if(of.n - shape[-1] not in range(8), "many columns are left out")
    before = [*(widths or ())[:1], *(widths or ())[2:], *(more or ())[:1]]
    decline_if(any(before), "more than columns at the end is padded")
    if b is not None:  # of as many elements as there are columns, and of nothing else
        other = b.size < shape[-1] or of.n in (of.m, *shape[:-1])
        decline_if(other, "the bias may be along another axis, or of other columns")
        decline_if(b.dtype != x.dtype, f"a bias of {b.dtype} beside a product of {x.dtype}")
    return prepared(partial(UnalignedRows, replace(of, n=shape[-1]), device.ordinal))


def _cut(x: Any, w: Any, widths: Any, begin: Any, end: Any) -> Any:
    return op.strided_slice(rows(op.dense, x, op.pad.plain(w, widths, ...) | w), begin, end)


def _cut_biased(
    x: Any, w: Any, widths: Any, b: Any, more: Any, axis: Any, begin: Any, end: Any
) -> Any:
    y = rows(op.dense, x, op.pad.plain(w, widths, ...) | w)
    y = op.bias_add(y, op.pad.plain(b, more, ...) | b, axis)
    return op.strided_slice(y | op.reshape(y, ...), begin, end)


dialect.pattern_op(_cut, name="dense_cut")(_cut_product)
dialect.pattern_op(_cut_biased, name="dense_bias_cut")(_cut_product)


def _padded_product(
    x: TensorType, w: TensorType, widths: Any, result: TensorType, device: Device,
    b: TensorType | None = None, more: Any = None, axis: Any = -1,
) -> OpEnv:  # fmt: skip
    """The scores of a vocabulary with the columns that pad them, as `carry_padding` leaves them:
    weights and bias are read as they were before they were padded.
    """
    of = problem(x, w, False, True, epilogue="none" if b is None else "bias")
    wide = of.n + widths[1]
    decline_if(any((*widths[:1], *widths[2:])), "more than columns at the end is padded")
    few = wide % 8 == 0 and widths[1] in range(8)
    decline_if(not few, "the result is not padded to rows of 8 elements")
    decline_if(of.n < LEAST_COLUMNS, f"there are fewer than {LEAST_COLUMNS} columns")
    require_columns(wide, result)
    if b is not None:
        require_last(axis, b, result)
        decline_if(more != widths[:2], "the bias is of other columns")
    return prepared(partial(UnalignedRows, replace(of, out_lead=wide), device.ordinal))


def _padded(x: Any, w: Any, widths: Any) -> Any:
    return rows(op.dense, x, op.pad.plain(w, widths))


def _padded_biased(x: Any, w: Any, widths: Any, b: Any, more: Any, axis: Any) -> Any:
    return op.bias_add(_padded(x, w, widths), op.pad.plain(b, more), axis)


dialect.pattern_op(_padded, name="dense_padded")(_padded_product)
dialect.pattern_op(_padded_biased, name="dense_bias_padded")(_padded_product)


LARGE = 2**18
"""From how many elements of ``dy`` on a product and a sum apart are faster."""


def _flat(dy: TensorType, rows: int) -> TensorType:
    """Return the type of dy with its leading axes joined."""
    if dy.ndim == 0 or dy.size == 0 or dy.size != rows * dy.static_shape[-1]:
        raise Unsupported("the reshape of dy changes its rows")
    return dy.with_shape((rows, dy.static_shape[-1]))


def _define_gradient(name: str, describes: Callable[..., Any], dy_first: bool) -> None:
    """Register dw, the product of dy, transposed, and x or the other way round, with db."""

    def make(dy: TensorType, x: TensorType, axis: Any, result: Any, device: Device) -> OpEnv:
        flat = _flat(dy, x.static_shape[0])
        epilogue = "bgrad_x1" if dy_first else "bgrad_x2"
        of = problem(*((flat, x) if dy_first else (x, flat)), True, False, epilogue=epilogue)
        axes = {a % dy.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
        columns = of.m if dy_first else of.n
        if axes != set(range(dy.ndim - 1)) or dy.static_shape[-1] != columns:
            raise Unsupported("the sum is not that of the rows")
        decline_if(result[1].dtype != dy.dtype, f"a sum in {result[1].dtype} of {dy.dtype}")
        if dy.size >= LARGE:
            raise Unsupported(
                f"a product and a sum are faster where dy has {LARGE} elements or more"
            )
        factors = ("x1", "x2") if dy_first else ("x2", "x1")
        return prepared(partial(FusedProduct, of, (*factors, "out", "vector"), device.ordinal))

    dialect.pattern_op(describes, name=name)(make)


def _of_dense(dy: Any, x: Any, axis: Any, keepdims: Any) -> Any:
    """The gradients of weights (out, in)."""
    return op.matmul_tn(dy | op.reshape(dy, ...), x), op.sum(dy, axis, keepdims)


def _of_matmul(dy: Any, x: Any, axis: Any, keepdims: Any) -> Any:
    """The gradients of weights (in, out)."""
    return op.matmul_tn(x, dy | op.reshape(dy, ...)), op.sum(dy, axis, keepdims)


_define_gradient("dense_dw_db", _of_dense, dy_first=True)
_define_gradient("matmul_dw_db", _of_matmul, dy_first=False)


@dialect.pattern_op(lambda x, dy, dtype: op.astype(op.matmul_tn(x, dy), dtype))
def matmul_tn_wide(
    x: TensorType, dy: TensorType, dtype: str, result: TensorType, device: Device
) -> OpEnv:
    """A gradient of half precision for weights in float32, which is not rounded in between."""
    decline_if(dtype != "float32", f"made for casts to float32, not to {dtype}")
    of = problem(x, dy, True, False)
    decline_if(of.dtype not in ("float16", "bfloat16"), f"made for half precision, not {of.dtype}")
    of = replace(of, dtypes=(of.dtype, of.dtype, "float32"))
    return prepared(partial(Product, of, True, False, device.ordinal))


SMALL = 2**21
"""To how many elements a product and a generated gradient of gelu are as fast."""


@dialect.pattern_op(lambda h, dy, w: op.gelu_dx(h, None, rows(op.matmul, dy, w), "tanh"))
def matmul_gelu_dx(
    h: TensorType, dy: TensorType, w: TensorType, result: TensorType, device: Device
) -> OpEnv:
    """The gradient of h, of which a layer with weights (out, in) reads the gelu."""
    of = problem(dy, w, False, False, epilogue="dgelu")
    if of.dtype not in ("float16", "bfloat16"):
        raise Unsupported(f"a product and a gradient apart are faster in {of.dtype}")
    decline_if(h.size < SMALL, f"a product and a gradient apart are as fast below {SMALL} elements")
    if h != result or h.static_shape[-1] != of.n or of.n % 8:
        raise Unsupported("cuBLASLt reads what the gelu was of in rows of 8 elements")
    roles = "matrix", "x1", "x2", "out"
    return prepared(partial(FusedProduct, of, roles, device.ordinal))
