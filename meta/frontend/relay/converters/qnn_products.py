"""Converters of quantized convolutions and matrix products: integers less their zero points,
exactly.

What is outside of the image of a convolution is 0 after that, which is the zero point before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.converters.matrix import BATCHED
from meta.frontend.relay.layout import change_layout, read_layout
from meta.frontend.relay.quantization import minus, shifted, zero_of
from meta.frontend.relay.registry import relay


def _convolution(
    name: str, data, weight, zero, weight_zero, attributes: dict[str, Any], call: CallSite
):
    """Return what the operator ``name`` makes of the operands less their zero points."""
    dtype = attributes["out_dtype"] or "int32"
    computed = "int64" if dtype == "int64" else "int32"
    x = _less(op.cast(data, computed), zero, attributes["data_layout"], "C")
    w = _less(op.cast(weight, computed), weight_zero, attributes["kernel_layout"], "O")
    site = replace(call, name=name)
    y = relay.apply(site, (x, w), {**attributes, "out_dtype": computed})
    return cast_to(y, dtype)


def _less(x, zero, layout: str, letter: str):
    """Return x less a zero point, which is a number or a vector along an axis of the layout."""
    if isinstance(zero, int) or zero.ndim == 0:
        return minus(x, zero)
    read = read_layout(layout)
    if not read.is_plain:
        raise Unconvertible(f"zero points per channel in the layout {layout} are not supported")
    axis = read.places(letter)[0]
    if zero.shape[0] in (1, x.shape[axis]):
        return minus(x, zero, axis)
    # Of a depthwise kernel there is one for each input channel and multiplier.
    axes = sorted((axis, read.places("I")[0]))
    extents = [e if i in axes else 1 for i, e in enumerate(x.shape)]
    return op.subtract(x, op.cast(op.reshape(zero, tuple(extents)), x.dtype))


@relay("qnn.conv2d", op.conv2d, op.subtract, ignore=("input_scale", "kernel_scale"))
def conv2d(
    data,
    weight,
    zero=None,
    weight_zero=None,
    scale=None,
    weight_scale=None,
    *,
    input_zero_point,
    kernel_zero_point,
    call,
    **attributes,
):
    """The scales of the operands say how the result is to be read; it does not depend on them."""
    zeros = zero_of(zero, input_zero_point), zero_of(weight_zero, kernel_zero_point)
    return _convolution("nn.conv2d", data, weight, *zeros, attributes, call)


@relay("qnn.conv2d_transpose", op.conv2d_transpose, op.subtract)
def conv2d_transpose(data, weight, zero, weight_zero, scale, weight_scale, *, call, **attributes):
    zeros = zero_of(zero), zero_of(weight_zero)
    return _convolution("nn.conv2d_transpose", data, weight, *zeros, attributes, call)


def _product(data, weight, zero, weight_zero, out_dtype: str):
    """Return data [..., k] times weight [n, k] transposed, each less its zero point."""
    dtype = out_dtype or "int32"
    x, w = shifted(data, zero, -1, dtype), shifted(weight, weight_zero, 0, dtype)
    rows = x if x.ndim == 2 else op.reshape(x, (-1, x.shape[-1]))
    y = op.dense(rows, w)
    return y if x.ndim == 2 else op.reshape(y, (*x.shape[:-1], w.shape[0]))


@relay("qnn.dense", op.dense, op.subtract, ignore=("units", "input_scale", "kernel_scale"))
def dense(
    data,
    weight,
    zero=None,
    weight_zero=None,
    scale=None,
    weight_scale=None,
    *,
    input_zero_point,
    kernel_zero_point,
    out_dtype,
):
    """The scales of the operands say how the result is to be read; it does not depend on them."""
    zeros = zero_of(zero, input_zero_point), zero_of(weight_zero, kernel_zero_point)
    return _product(data, weight, *zeros, out_dtype)


@relay("qnn.contrib_dense_pack", op.dense, op.subtract)
def dense_pack(
    data, weight, zero, weight_zero, scale, weight_scale, *, units, weight_layout, out_dtype
):
    """qnn.dense with weights in blocks, which are filled up."""
    plain = change_layout(weight, weight_layout or "NC", "NC")
    rows, columns = units or plain.shape[0], data.shape[-1]
    if plain.shape != (rows, columns):
        plain = op.strided_slice(plain, (0, 0), (rows, columns))
    return _product(data, plain, zero_of(zero), zero_of(weight_zero), out_dtype)


@relay("qnn.batch_matmul", *BATCHED.values(), op.subtract)
def batch_matmul(
    x, y, x_zero, y_zero, x_scale, y_scale, *, transpose_a, transpose_b, out_dtype, call
):
    """Where the file does not say, the second operand is transposed: TVM knew no other kind."""
    dtype = out_dtype or "int32"
    second = transpose_b if "transpose_b" in call.given else True
    product = BATCHED[bool(transpose_a), bool(second)]
    left, right = shifted(x, zero_of(x_zero), -1, dtype), shifted(y, zero_of(y_zero), -1, dtype)
    return product(left, right)
