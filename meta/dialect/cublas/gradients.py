"""Gradients in one kernel: of a layer's weights together with its bias, of weights in float32, and
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
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported, decline_if
from meta.dialect.cublas import cublas as dialect
from meta.dialect.cublas.epilogues import rows
from meta.dialect.cublas.product import FusedProduct, Product, prepared, problem
from meta.ir.types import TensorType

LARGE = 2**18
"""From how many elements of ``dy`` on a product and a sum apart are faster."""


def _flat(dy: TensorType, rows: int) -> TensorType:
    """Return the type of dy with its leading axes joined."""
    if dy.ndim == 0 or dy.size == 0 or dy.size != rows * dy.static_shape[-1]:
        raise Unsupported("the reshape of dy changes its rows")
    return dy.with_shape((rows, dy.static_shape[-1]))


def _define(name: str, describes: Callable[..., Any], dy_first: bool) -> None:
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


_define("dense_dw_db", _of_dense, dy_first=True)
_define("matmul_dw_db", _of_matmul, dy_first=False)


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
