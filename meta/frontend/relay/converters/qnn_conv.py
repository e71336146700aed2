"""Converters of quantized convolutions: integers less their zero points, convolved exactly.

What is outside of the image is 0 after that, which is the zero point before.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.relay.layout import read_layout
from meta.frontend.relay.quantization import minus, zero_of
from meta.frontend.relay.registry import relay


def _convolution(
    name: str,
    data: Any,
    weight: Any,
    zero: Any,
    weight_zero: Any,
    attributes: dict[str, Any],
    call: CallSite,
) -> Any:
    """Return what the operator ``name`` makes of the operands less their zero points."""
    dtype = attributes["out_dtype"] or "int32"
    computed = "int64" if dtype == "int64" else "int32"
    x = _less(op.cast(data, computed), zero, attributes["data_layout"], "C")
    w = _less(op.cast(weight, computed), weight_zero, attributes["kernel_layout"], "O")
    site = replace(call, name=name)
    y = relay.apply(site, (x, w), {**attributes, "out_dtype": computed})
    return cast_to(y, dtype)


def _less(x: Any, zero: Any, layout: str, letter: str) -> Any:
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
    data: Any,
    weight: Any,
    zero: Any = None,
    weight_zero: Any = None,
    scale: Any = None,
    weight_scale: Any = None,
    *,
    input_zero_point: int | None,
    kernel_zero_point: int | None,
    call: CallSite,
    **attributes: Any,
) -> Any:
    """The scales of the operands say how the result is to be read; it does not depend on them."""
    zeros = zero_of(zero, input_zero_point), zero_of(weight_zero, kernel_zero_point)
    return _convolution("nn.conv2d", data, weight, *zeros, attributes, call)


@relay("qnn.conv2d_transpose", op.conv2d_transpose, op.subtract)
def conv2d_transpose(
    data: Any,
    weight: Any,
    zero: Any,
    weight_zero: Any,
    scale: Any,
    weight_scale: Any,
    *,
    call: CallSite,
    **attributes: Any,
) -> Any:
    zeros = zero_of(zero), zero_of(weight_zero)
    return _convolution("nn.conv2d_transpose", data, weight, *zeros, attributes, call)
