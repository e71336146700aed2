"""Quantised operators: QuantizeLinear, DequantizeLinear, and products of quantised tensors.

A quantised tensor q stands for ``scale * (q - zero)``. Scales and zero points are scalars, vectors
along an axis, or, blocked, tensors with an entry for each block along it. Products are computed
exactly in int32. They are scaled in float64, in which the product with a scale is exact; halves go
to the even number.
"""

from __future__ import annotations

from meta import op
from meta.base.dtype import is_float, limits
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import broadcast_along
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.converters.conv import CONV, convolved, with_bias
from meta.frontend.onnx.converters.recurrent import lstm_of
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import (
    FORMATS,
    INTEGERS,
    SCALE,
    NarrowValue,
    carrier,
    cast_narrow,
    name_of,
)
from meta.op.core.check import normalize_axis

_PLAIN = ("uint8", "int8", "uint16", "int16")


def _range(dtype):
    """Return the smallest and the largest number of an integer dtype."""
    if dtype in INTEGERS:
        count, _ = INTEGERS[dtype]
        return (0, 2**count - 1) if dtype[0] == "u" else (-(2 ** (count - 1)), 2 ** (count - 1) - 1)
    if dtype not in _PLAIN:
        raise Unconvertible(f"{dtype} is no dtype of quantised values")
    found = limits(dtype)
    return int(found.min), int(found.max)


def _laid_out(parameter, x, axis, block_size):
    """Return a scale or zero point so that it broadcasts against x."""
    if parameter is None or parameter.ndim == 0:
        return parameter
    if all(e == 1 for e in parameter.shape):
        return op.reshape(parameter, ())
    at = normalize_axis(axis, x.ndim)
    if not block_size:
        if parameter.ndim != 1 or parameter.shape[0] != x.shape[at]:
            raise Unconvertible(
                f"a scale or zero point {list(parameter.shape)} along axis {at} of {list(x.shape)}"
            )
        return broadcast_along(parameter, x.ndim, at)
    repeated = op.repeat(parameter, block_size, at)
    extent = x.shape[at]
    if repeated.shape[at] != extent:
        repeated = repeated[(slice(None),) * at + (slice(0, extent),)]
    if tuple(repeated.shape) != tuple(x.shape):
        raise Unconvertible(
            f"a scale or zero point {list(parameter.shape)} in blocks of {block_size} along axis "
            f"{at} of {list(x.shape)}"
        )
    return repeated


def _is_zero(value):
    """Whether a zero point is left out or known to be 0."""
    found = constant_value(carrier(value))
    return value is None or (found is not None and not found.numpy().astype("float32").any())


def saturated(real, dtype):
    """Return whole floats as integers, beyond the dtype as its nearest; NaN as its smallest."""
    low, high = _range(dtype)
    # False for a NaN.
    real = op.where(op.greater(real, float(low)), real, float(low))
    real = op.minimum(real, float(high))
    if dtype in INTEGERS:
        return NarrowValue(op.astype(real, INTEGERS[dtype][1]), dtype)
    return op.astype(real, dtype)


def _wide(x):
    return x if x.dtype in ("float32", "float64") else op.astype(x, "float32")


@onnx("QuantizeLinear", op.divide, op.round, op.where, op.minimum, op.astype)
def quantize_linear(x, scale, zero=None, *, axis, saturate, block_size, output_dtype, precision):
    """The quotient has the dtype ``precision``, or that of the scale, or of x."""
    dtype = "uint8" if not output_dtype else name_of(output_dtype)
    if zero is not None:
        if output_dtype and dtype != zero.dtype:
            raise Unconvertible(f"output_dtype is {dtype}, and the zero point is {zero.dtype}")
        dtype = str(zero.dtype)
    computed = x.dtype if scale.dtype == SCALE else scale.dtype
    computed = name_of(precision) if precision else computed
    if not is_float(computed):
        raise Unconvertible(f"a quotient of the dtype {computed}")
    scale = cast_to(_laid_out(carrier(scale), x, axis, block_size), computed)
    quotient = op.divide(cast_to(x, computed), scale)
    if not _is_zero(zero):
        zero = cast_narrow(_laid_out(carrier(zero), x, axis, block_size), "float32")
    if dtype in FORMATS or dtype == "float8_e5m2":
        # ONNX wants these to be 0.
        shifted = quotient if _is_zero(zero) else op.add(_wide(quotient), zero)
        return cast_narrow(shifted, dtype, bool(saturate))
    whole = _wide(op.round(quotient))
    if not _is_zero(zero):
        whole = op.add(whole, cast_to(zero, whole.dtype))
    return saturated(whole, dtype)


@onnx("DequantizeLinear", op.subtract, op.multiply, op.astype)
def dequantize_linear(x, scale, zero=None, *, axis, block_size, output_dtype):
    """Computed in float32, in the end in ``output_dtype`` or the dtype of the scale."""
    dtype = "float32" if scale.dtype == SCALE else scale.dtype
    dtype = name_of(output_dtype) if output_dtype else dtype
    real, own = carrier(x), x.dtype
    if zero is not None and zero.dtype != own:
        raise Unconvertible(f"x is {own}, and its zero point is {zero.dtype}")
    if not _is_zero(zero):
        # int32 may leave its range, and is subtracted as ONNX's reference does it.
        whole = own in INTEGERS or own in _PLAIN
        difference = "int32" if whole else "float32"
        zero = op.astype(_laid_out(carrier(zero), real, axis, block_size), difference)
        real = op.subtract(op.astype(real, difference), zero)
    scale = _laid_out(carrier(scale), real, axis, block_size)
    return cast_to(op.multiply(cast_to(real, "float32"), cast_to(scale, "float32")), dtype)


@onnx("DynamicQuantizeLinear", op.max, op.min, op.divide, op.round, op.minimum, op.astype)
def dynamic_quantize_linear(x):
    """(y, scale, zero point): uint8 for the range of x and 0."""
    low, high = (op.min(op.minimum(x, 0.0)), op.max(op.maximum(x, 0.0)))
    extent = op.subtract(high, low)
    scale = op.divide(op.where(op.equal(extent, 0.0), 1.0, extent), 255.0)
    zero = op.round(op.clip(op.negative(op.divide(low, scale)), 0.0, 255.0))
    y = saturated(op.add(op.round(op.divide(x, scale)), zero), "uint8")
    return y, scale, op.astype(zero, "uint8")


def _rounded(x, axis=None):
    """Return the numbers that DynamicQuantizeLinear rounds x to, or each of its rows by itself."""
    kept = axis is not None
    low = op.minimum(op.min(x, axis, kept), 0.0)
    high = op.maximum(op.max(x, axis, kept), 0.0)
    extent = op.subtract(high, low)
    scale = op.divide(op.where(op.equal(extent, 0.0), 1.0, extent), 255.0)
    zero = op.round(op.negative(op.divide(low, scale)))
    q = op.clip(op.add(op.round(op.divide(x, scale)), zero), 0.0, 255.0)
    return op.multiply(op.subtract(q, zero), scale)


def _weights(w, scale, zero):
    """Return quantised weights of a recurrent operator as numbers, the axis of the inputs last."""
    shape = (w.shape[0], 1, -1)
    wide = op.astype(w, "float32")
    if not _is_zero(zero):
        wide = op.subtract(wide, op.reshape(op.astype(zero, "float32"), shape))
    return op.permute_dims(op.multiply(wide, op.reshape(scale, shape)), (0, 2, 1))


@onnx("com.microsoft.DynamicQuantizeLSTM", op.dense, op.round, op.where, op.stack)
def dynamic_quantize_lstm(
    x,
    w,
    r,
    b=None,
    sequence_lens=None,
    initial_h=None,
    initial_c=None,
    p=None,
    w_scale=None,
    w_zero=None,
    r_scale=None,
    r_zero=None,
    *,
    input_forget,
    call,
    direction,
    hidden_size,
    activations,
    activation_alpha,
    activation_beta,
    clip,
):
    """LSTM whose weights are quantised; so is the input, and at each step the state, row by row."""
    how = {
        "direction": direction or "forward",
        "hidden_size": hidden_size,
        "activations": activations,
        "activation_alpha": activation_alpha,
        "activation_beta": activation_beta,
        "clip": clip,
    }
    weights = _weights(w, w_scale, w_zero), _weights(r, r_scale, r_zero)
    tensors, states = (_rounded(x), *weights, b, sequence_lens), (initial_h, initial_c)
    return lstm_of(tensors, states, p, input_forget, call, how, lambda h: _rounded(h, 1))


def _shifted(x, zero, axis):
    """Return x - zero in int32; the zero points of several rows or columns lie along ``axis``."""
    if isinstance(x, NarrowValue) or x.dtype not in ("int8", "uint8"):
        raise Unconvertible(f"a product of {x.dtype}")
    wide = op.astype(x, "int32")
    if _is_zero(zero):
        return wide
    return op.subtract(wide, op.astype(_per(zero, x, axis), "int32"))


def _per(parameter, x, axis):
    """Return the scales or zero points of rows or columns as what broadcasts against x."""
    if parameter.ndim == 0 or all(e == 1 for e in parameter.shape):
        return op.reshape(parameter, ())
    if parameter.ndim == 1:
        return broadcast_along(parameter, x.ndim, axis)
    if parameter.ndim != x.ndim:
        raise Unconvertible(f"a scale or zero point {list(parameter.shape)} of {list(x.shape)}")
    return parameter


@onnx("MatMulInteger", op.matmul, op.subtract, op.astype)
def matmul_integer(a, b, a_zero=None, b_zero=None):
    """Zero points of a are those of its rows, of b of its columns."""
    return op.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))


def _requantized(product, scale, zero, dtype):
    """Return an int32 product as a quantised tensor; ``scale`` is that of the product divided by
    that of the result.
    """
    real = op.multiply(op.astype(product, "float64"), op.astype(scale, "float64"))
    if not _is_zero(zero):
        real = op.add(real, op.astype(op.reshape(zero, ()), "float64"))
    return saturated(op.round(real), dtype)


@onnx("QLinearMatMul", op.matmul, op.subtract, op.multiply, op.round, op.astype)
def qlinear_matmul(a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero):
    product = op.matmul(_shifted(a, a_zero, -2), _shifted(b, b_zero, -1))
    y_scale, y_zero = _scalar(y_scale), _scalar(y_zero)
    a_scale, b_scale = _per(a_scale, product, -2), _per(b_scale, product, -1)
    scale = op.divide(op.multiply(a_scale, b_scale), y_scale)
    return _requantized(product, scale, y_zero, y_zero.dtype)


def _scalar(parameter):
    if any(e != 1 for e in parameter.shape):
        raise Unconvertible(f"a scale or zero point {list(parameter.shape)} of the result")
    return op.reshape(parameter, ())


def _convolution(x, w, x_zero, w_zero, how):
    """The padding is the zero point of x."""
    return convolved(_shifted(x, x_zero, 1), _shifted(w, w_zero, 0), **how)


@onnx("ConvInteger", *CONV.values(), op.subtract, op.astype)
def conv_integer(x, w, x_zero=None, w_zero=None, **how):
    """Zero points of w are those of its output channels."""
    return _convolution(x, w, x_zero, w_zero, how)


@onnx("QLinearConv", *CONV.values(), op.subtract, op.multiply, op.round, op.astype)
def qlinear_conv(x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias=None, **how):
    """The scales of w are those of its output channels."""
    product = with_bias(_convolution(x, w, x_zero, w_zero, how), bias)
    y_scale, y_zero = _scalar(y_scale), _scalar(y_zero)
    scale = op.divide(op.multiply(_scalar(x_scale), _per(w_scale, product, 1)), y_scale)
    return _requantized(product, scale, y_zero, y_zero.dtype)
