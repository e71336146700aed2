"""The gradient of a layer's weights together with that of its bias: a kernel of two results.

The bias gradient, a sum of the rows of ``dy``, is the epilogue of the product that reads them.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported
from meta.dialect.cublas import cublas as dialect
from meta.dialect.cublas.product import FusedProduct, problem
from meta.ir.types import TensorType

LARGE = 2**20
"""From how many elements of ``dy`` on a product and a sum apart are faster in half precision."""


def _make(
    x1: TensorType, x2: TensorType, dy: TensorType, axis: Any, result: Any, epilogue: str,
    device: Device,
) -> OpEnv:  # fmt: skip
    of = problem(x1, x2, True, False, epilogue=epilogue)
    columns = of.m if epilogue == "bgrad_x1" else of.n
    axes = {a % dy.ndim for a in ((axis,) if isinstance(axis, int) else axis)}
    if axes != set(range(dy.ndim - 1)) or dy.static_shape[-1] != columns:
        raise Unsupported("the sum is not that of the rows")
    if result[1].dtype != dy.dtype:
        raise Unsupported(f"a sum in {result[1].dtype} of {dy.dtype}")
    if dy.size >= LARGE and dy.dtype in ("float16", "bfloat16"):
        raise Unsupported(f"a product and a sum are faster where dy has {LARGE} elements or more")
    shared = "x1" if epilogue == "bgrad_x1" else "x2"
    other = "x2" if epilogue == "bgrad_x1" else "x1"
    return OpEnv(
        FusedProduct(of, (shared, other, "out", "vector"), device.ordinal), allocates=False
    )


def _flat(dy: TensorType, rows: int) -> TensorType:
    """Return the type of dy with its leading axes joined."""
    if dy.ndim == 0 or dy.size == 0 or dy.size != rows * dy.static_shape[-1]:
        raise Unsupported("the reshape of dy changes its rows")
    return dy.with_shape((rows, dy.static_shape[-1]))


@dialect.pattern_op(
    lambda dy, x, axis, keepdims: (
        op.matmul_tn(dy | op.reshape(dy, ...), x),
        op.sum(dy, axis, keepdims),
    )
)
def dense_dw_db(
    dy: TensorType, x: TensorType, axis: Any, result: Any, device: Device
) -> OpEnv:  # fmt: skip
    """dw = dy.T @ x and db = sum of dy's rows, for weights (out, in)."""
    flat = _flat(dy, x.static_shape[0])
    return _make(flat, x, dy, axis, result, "bgrad_x1", device)


@dialect.pattern_op(
    lambda dy, x, axis, keepdims: (
        op.matmul_tn(x, dy | op.reshape(dy, ...)),
        op.sum(dy, axis, keepdims),
    )
)
def matmul_dw_db(
    dy: TensorType, x: TensorType, axis: Any, result: Any, device: Device
) -> OpEnv:  # fmt: skip
    """dw = x.T @ dy and db = sum of dy's rows, for weights (in, out)."""
    flat = _flat(dy, x.static_shape[0])
    return _make(x, flat, dy, axis, result, "bgrad_x2", device)
