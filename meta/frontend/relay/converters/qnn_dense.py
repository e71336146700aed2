"""Converters of quantized products of matrices: integers less their zero points, exactly."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite
from meta.frontend.relay.converters.dense import BATCHED
from meta.frontend.relay.layout import change_layout
from meta.frontend.relay.quantization import shifted, zero_of
from meta.frontend.relay.registry import relay


def _product(data: Any, weight: Any, zero: Any, weight_zero: Any, out_dtype: str) -> Any:
    """Return data [..., k] times weight [n, k] transposed, each less its zero point."""
    dtype = out_dtype or "int32"
    x, w = shifted(data, zero, -1, dtype), shifted(weight, weight_zero, 0, dtype)
    rows = x if x.ndim == 2 else op.reshape(x, (-1, x.shape[-1]))
    y = op.dense(rows, w)
    return y if x.ndim == 2 else op.reshape(y, (*x.shape[:-1], w.shape[0]))


@relay("qnn.dense", op.dense, op.subtract, ignore=("units", "input_scale", "kernel_scale"))
def dense(
    data: Any,
    weight: Any,
    zero: Any = None,
    weight_zero: Any = None,
    scale: Any = None,
    weight_scale: Any = None,
    *,
    input_zero_point: int | None,
    kernel_zero_point: int | None,
    out_dtype: str,
) -> Any:
    """The scales of the operands say how the result is to be read; it does not depend on them."""
    zeros = zero_of(zero, input_zero_point), zero_of(weight_zero, kernel_zero_point)
    return _product(data, weight, *zeros, out_dtype)


@relay("qnn.contrib_dense_pack", op.dense, op.subtract)
def dense_pack(
    data: Any,
    weight: Any,
    zero: Any,
    weight_zero: Any,
    scale: Any,
    weight_scale: Any,
    *,
    units: int | None,
    weight_layout: str,
    out_dtype: str,
) -> Any:
    """qnn.dense with weights in blocks, which are filled up."""
    plain = change_layout(weight, weight_layout or "NC", "NC")
    rows, columns = units or plain.shape[0], data.shape[-1]
    if plain.shape != (rows, columns):
        plain = op.strided_slice(plain, (0, 0), (rows, columns))
    return _product(data, plain, zero_of(zero), zero_of(weight_zero), out_dtype)


@relay("qnn.batch_matmul", *BATCHED.values(), op.subtract)
def batch_matmul(
    x: Any,
    y: Any,
    x_zero: Any,
    y_zero: Any,
    x_scale: Any,
    y_scale: Any,
    *,
    transpose_a: bool,
    transpose_b: bool,
    out_dtype: str,
    call: CallSite,
) -> Any:
    """Where the file does not say, the second operand is transposed: TVM knew no other kind."""
    dtype = out_dtype or "int32"
    second = transpose_b if "transpose_b" in call.given else True
    product = BATCHED[bool(transpose_a), bool(second)]
    left, right = shifted(x, zero_of(x_zero), -1, dtype), shifted(y, zero_of(y_zero), -1, dtype)
    return product(left, right)
