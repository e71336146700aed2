"""Converters of quantized operators: what takes tensors into a quantization, out of it and into
another one, operators that simulate it in floats, elementwise operators, concatenations, products;
and of products of operands whose bits are packed into words.

Elementwise functions of one tensor go by way of floats, as TVM computed their tables; the softmax
and leaky_relu by integers. Products are those of integers less their zero points, exactly: what is
outside of the image of a convolution is 0 after that, which is the zero point before.

Packing is a matter of speed on certain processors; the products are those of small integers, which
are computed here as such, and are the same.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant_number
from meta.frontend.core.arithmetic import cast_to, product_dtype, rounded
from meta.frontend.relay import quantization
from meta.frontend.relay.converters.conv import require_kernel
from meta.frontend.relay.converters.matrix import BATCHED, of_rows
from meta.frontend.relay.layout import change_layout, per_axis, read_layout
from meta.frontend.relay.quantization import (
    broadcast_along,
    fixed_point,
    minus,
    plus,
    requantize,
    saturate,
    scale_of,
    subtract_zero_point,
    times,
    zero_of,
)
from meta.frontend.relay.registry import relay
from meta.runtime.ndarray import array


@relay("qnn.quantize", op.divide, op.trunc, op.where, op.astype)
def quantize(data, scale=None, zero=None, *, output_scale, output_zero_point, axis, out_dtype):
    """Round to the nearest, halves away from 0, and saturate."""
    scale, zero = scale_of(scale, output_scale), zero_of(zero, output_zero_point)
    return quantization.quantize(data, scale, zero, out_dtype or "int8", axis)


@relay("qnn.dequantize", op.subtract, op.multiply, op.astype)
def dequantize(data, scale=None, zero=None, *, input_scale, input_zero_point, axis, out_dtype):
    scale, zero = scale_of(scale, input_scale), zero_of(zero, input_zero_point)
    return quantization.dequantize(data, scale, zero, axis, out_dtype or "float32")


@relay("qnn.requantize", op.fixed_point_multiply, op.fixed_point_number, op.clip)
def requantized(data, scale=None, zero=None, to_scale=None, to_zero=None, *, call, **stated):
    """By integers alone, unless compute_dtype says otherwise; not stated rounding is upward."""
    return requantize(
        data,
        scale_of(scale, stated["input_scale"], "input scale"),
        zero_of(zero, stated["input_zero_point"], "input zero point"),
        scale_of(to_scale, stated["output_scale"], "output scale"),
        zero_of(to_zero, stated["output_zero_point"], "output zero point"),
        stated["out_dtype"] or "int8",
        call.device,
        *(stated[name] for name in ("axis", "rounding", "compute_dtype")),
    )


def _refuse_training(call):
    """A silent gradient of zeros would train nothing that comes before."""
    if call.training:
        raise Unconvertible(
            "rounding has no gradient, so that what simulates quantization cannot be trained",
            hint="infer mode, or the model before it was quantized",
        )


SIMULATED = {1: (-128.0, 127.0), 2: (0.0, 255.0), 3: (-(2.0**31), 2.0**31 - 1)}
"""Ranges of int8, uint8 and int32 by their codes, which simulated operators are told at run time;
0 passes values through.
"""


@relay("qnn.simulated_quantize", op.divide, op.where)
def simulated_quantize(data, out_dtype, scale, zero, *, axis, call):
    """qnn.quantize in the dtype of ``data``, into a dtype that a tensor names by its code."""
    _refuse_training(call)
    whole = rounded(op.divide(data, broadcast_along(scale_of(scale), data.ndim, axis)))
    moved = plus(whole, zero_of(zero), axis)
    return _by_code(out_dtype, data, {c: op.clip(moved, *r) for c, r in SIMULATED.items()})


@relay("qnn.simulated_dequantize", op.subtract, op.multiply, op.where)
def simulated_dequantize(data, in_dtype, scale, zero, *, axis, out_dtype):
    """scale * (data - zero) in the dtype of ``data``."""
    moved = quantization.minus(data, zero_of(zero), axis)
    real = op.multiply(moved, broadcast_along(scale_of(scale), data.ndim, axis))
    return _by_code(in_dtype, data, dict.fromkeys(SIMULATED, real))


def _by_code(code, data, results):
    stated = constant_number(code)
    if stated is not None:
        return results.get(int(stated), data)
    result, code = data, op.reshape(code, ())
    for number, chosen in results.items():
        result = op.where(op.equal(code, number), chosen, result)
    return result


IDENTITY = 0
"""The kind of annotation.simulated_quantize that does nothing."""


@relay("relay.op.annotation.simulated_quantize", op.divide, op.multiply)
def annotated(data, scale, clip_min, clip_max, *, kind, sign, rounding, call):
    """Rounded to a multiple of ``scale`` between two of them."""
    if kind == IDENTITY:
        return data
    _refuse_training(call)
    if not sign or rounding != "round":
        raise Unconvertible(
            f"sign={sign}, rounding={rounding!r} is not supported",
            hint='TVM itself computed sign=True with rounding="round" alone',
        )
    inside = op.maximum(op.minimum(op.divide(data, scale), clip_max), clip_min)
    return op.multiply(rounded(inside), scale)


_BY_FLOATS = (op.abs, op.erf, op.exp, op.log, op.sigmoid, op.sqrt, op.tanh, op.hardswish)


@relay.each(*_BY_FLOATS, form="qnn.{}")
def by_floats(function, data, scale, zero, to_scale, to_zero):
    real = function(quantization.dequantize(data, scale_of(scale), zero_of(zero)))
    return quantization.quantize(real, scale_of(to_scale), zero_of(to_zero), data.dtype)


def _rsqrt(x):
    return op.divide(1.0, op.sqrt(x))


relay("qnn.rsqrt", op.divide, op.sqrt)(partial(by_floats, _rsqrt))


@relay("qnn.leaky_relu", op.fixed_point_multiply, op.where, op.clip)
def leaky_relu(data, scale, zero, to_scale, to_zero, *, alpha, call):
    """Requantize; below zero alpha of it and the rest of the result's zero point."""
    zero, to_zero = zero_of(zero), zero_of(to_zero)
    own, target = scale_of(scale), scale_of(to_scale)
    x = requantize(data, own, zero, target, to_zero, "int32", call.device)
    rest = fixed_point(1 - alpha)
    if isinstance(to_zero, int):
        factor, shift = rest
        offset: Any = _scaled(to_zero, factor, shift)
    else:
        offset = op.fixed_point_multiply(to_zero, *rest)
    below = op.add(op.fixed_point_multiply(x, *fixed_point(alpha)), offset)
    negative = op.less(op.astype(data, "int32"), zero)
    return saturate(op.where(negative, below, x), data.dtype)


def _scaled(value, factor, shift):
    """Return what `meta.op.fixed_point_multiply` makes of one number."""
    right = 31 - shift
    return (value * factor + (1 << (right - 1))) >> right


STEPS, FRACTION = 8, 30
"""Bits by which exponentials are shifted, and bits behind the point of their reciprocal sum."""


@relay(
    "qnn.softmax", op.max, op.bitwise_right_shift, op.bitwise_left_shift, op.floor_divide, op.sum
)
def softmax(data, scale, zero, to_scale, to_zero, *, axis, call):
    """By integers alone. Lin et al., "I-ViT: integer-only quantization for efficient vision
    transformer inference", ICCV 2023, algorithm 1.
    """
    x = subtract_zero_point(data, zero_of(zero))
    x = op.subtract(x, op.max(x, axis, True))
    unit = _reciprocal(scale_of(scale))
    # x / log(2) by shifts, as a multiple of the unit and a rest, both of them at most 0
    power = op.subtract(op.add(x, op.bitwise_right_shift(x, 1)), op.bitwise_right_shift(x, 4))
    whole = op.floor_divide(op.negative(power), unit)
    rest = op.add(power, op.multiply(whole, unit))
    exponential = op.bitwise_left_shift(
        op.add(op.bitwise_right_shift(rest, 1), unit), op.subtract(STEPS, whole)
    )
    total = op.astype(op.sum(exponential, axis, True), "int32")
    share = op.multiply(op.floor_divide(1 << FRACTION, total), exponential)
    bits = 7  # of a share that is int8
    y = op.bitwise_right_shift(share, FRACTION - bits)
    own, target = 2.0**-bits, scale_of(to_scale)
    return requantize(y, own, 0, target, zero_of(to_zero), "int8", call.device)


def _reciprocal(scale):
    """Return 1 / scale as a whole number."""
    if isinstance(scale, float):
        quotient = np.float32(1) / np.float32(scale)
        return int(np.floor(quotient + np.float64(0.5)))
    return saturate(rounded(op.divide(1.0, scale)), "int32")


@relay("qnn.avg_pool2d", op.avg_pool2d, op.fixed_point_multiply, op.clip)
def avg_pool2d(data, scale, zero, to_scale, to_zero, *, call, **attributes):
    """Requantize, then means of integers, truncated."""
    old, new = (scale_of(scale), zero_of(zero)), (scale_of(to_scale), zero_of(to_zero))
    x = requantize(data, *old, *new, "int32", call.device)
    site = replace(call, name="nn.avg_pool2d")
    return saturate(relay.apply(site, (x,), attributes), data.dtype)


_SIDES = ("lhs", "rhs", "output")
_OF_TWO = tuple(f"{side}_{what}" for side in _SIDES for what in ("scale", "zero_point"))


def _binary(name, function, *becomes):
    """Register an operator of two tensors.

    ``function`` takes for each of them (tensor, scale, zero point, axis of these), then the scale
    and the zero point of the result, and the device.
    """

    @relay(name, *becomes, op.fixed_point_multiply, op.fixed_point_number, op.clip)
    def converter(lhs, rhs, *parameters, lhs_axis, rhs_axis, call, **stated):
        """Scales and zero points are all tensors, or all attributes."""
        if len(parameters) not in (0, len(_OF_TWO)):
            raise Unconvertible(f"it takes {len(_OF_TWO)} scales and zero points or none")
        given = zip(parameters or (None,) * len(_OF_TWO), _OF_TWO, strict=True)
        readers = (scale_of, zero_of) * 3
        found = [read(t, stated[n]) for read, (t, n) in zip(readers, given, strict=True)]
        left, right = (lhs, *found[:2], lhs_axis), (rhs, *found[2:4], rhs_axis)
        return function(left, right, *found[4:], call.device)


def _summed(add, corrected):
    """Return a sum at the result's scale; ``corrected`` counts its zero point once."""

    def function(left, right, scale, zero, device):
        to = (scale, zero, "int32", device)
        parts = [requantize(x, s, z, *to, axis) for x, s, z, axis in (left, right)]
        return saturate(corrected(add(*parts), zero), left[0].dtype)

    return function


def _multiplied(left, right, scale, zero, device):
    """The product is quantized by the product of the scales; that is requantized."""
    (x, x_scale, x_zero, axis), (y, y_scale, y_zero, y_axis) = left, right
    if axis != y_axis and not (isinstance(x_scale, float) and isinstance(y_scale, float)):
        raise Unconvertible("scales along different axes are not supported")
    product = op.multiply(
        subtract_zero_point(x, x_zero, axis), subtract_zero_point(y, y_zero, y_axis)
    )
    return requantize(product, times(x_scale, y_scale), 0, scale, zero, x.dtype, device, axis)


_binary("qnn.add", _summed(op.add, minus), op.add)
_binary("qnn.subtract", _summed(op.subtract, plus), op.subtract)
_binary("qnn.mul", _multiplied, op.multiply)


@relay("qnn.concatenate", op.concat, op.fixed_point_multiply, op.fixed_point_number, op.clip)
def concatenate(
    data, scales=None, zeros=None, to_scale=None, to_zero=None, *, axis, call, **stated
):
    """Each part is brought to the scale and zero point of the result."""
    scale = scale_of(to_scale, stated["output_scale"])
    zero = zero_of(to_zero, stated["output_zero_point"])
    of_attributes = scales is None
    own = _numbers(stated["input_scales"]) if of_attributes else scales
    own_zeros = _numbers(stated["input_zero_points"]) if of_attributes else zeros
    if own is None or own_zeros is None or not len(own) == len(own_zeros) == len(data):
        raise Unconvertible("it has not as many scales and zero points as parts")
    parts = []
    for x, s, z in zip(data, own, own_zeros, strict=True):
        part, offset = (s, z) if of_attributes else (scale_of(s), zero_of(z))
        numbers = all(isinstance(v, int | float) for v in (part, offset, scale, zero))
        same = numbers and (part, offset) == (scale, zero)
        parts.append(x if same else requantize(x, part, offset, scale, zero, x.dtype, call.device))
    return op.concat(tuple(parts), axis)


def _numbers(values):
    """Return constants of the program that stand in an attribute as numbers."""
    if values is None:
        return None
    return [v.value.item() if hasattr(v, "value") else v for v in values]


_PARAMETERS = ("input_scale", "kernel_scale")


@relay("qnn.conv2d_transpose", op.conv_transpose2d, op.subtract)
@relay("qnn.conv2d", op.conv2d, op.subtract, ignore=_PARAMETERS)
def convolution(
    data, weight, zero=None, weight_zero=None, scale=None, weight_scale=None, *, call, **attributes
):
    """A convolution of the operands less their zero points. The scales of the operands say how the
    result is to be read; it does not depend on them.
    """
    zero = zero_of(zero, attributes.pop("input_zero_point", None))
    weight_zero = zero_of(weight_zero, attributes.pop("kernel_zero_point", None))
    dtype = attributes["out_dtype"] or "int32"
    computed = "int64" if dtype == "int64" else "int32"
    x = _less(op.astype(data, computed), zero, attributes["data_layout"], "C")
    w = _less(op.astype(weight, computed), weight_zero, attributes["kernel_layout"], "O")
    site = replace(call, name=call.name.removeprefix("q"))
    return cast_to(relay.apply(site, (x, w), {**attributes, "out_dtype": computed}), dtype)


def _less(x, zero, layout, letter):
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
    return op.subtract(x, op.astype(op.reshape(zero, tuple(extents)), x.dtype))


def _product(data, weight, zero, weight_zero, out_dtype):
    """Return data [..., k] times weight [n, k] transposed, each less its zero point."""
    dtype = out_dtype or "int32"
    x, w = (
        subtract_zero_point(data, zero, -1, dtype),
        subtract_zero_point(weight, weight_zero, 0, dtype),
    )
    return of_rows(op.dense, x, w, dtype)


@relay("qnn.dense", op.dense, op.subtract, ignore=("units", *_PARAMETERS))
def dense(
    data, weight, zero=None, weight_zero=None, scale=None, weight_scale=None, *, out_dtype, **zeros
):
    """The scales of the operands say how the result is to be read; it does not depend on them."""
    zero = zero_of(zero, zeros["input_zero_point"])
    weight_zero = zero_of(weight_zero, zeros["kernel_zero_point"])
    return _product(data, weight, zero, weight_zero, out_dtype)


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
    left, right = (
        subtract_zero_point(x, zero_of(x_zero), -1, dtype),
        subtract_zero_point(y, zero_of(y_zero), -1, dtype),
    )
    return product(left, right)


WORD = 8
"""Bits of the one unsigned dtype that has arithmetic here."""


def _require_words(dtype):
    if dtype != "uint8":
        raise Unconvertible(f"words of {dtype}, of which there is no arithmetic", "words of uint8")


def _require_bits(*counts):
    if not all(1 <= count <= WORD for count in counts):
        raise Unconvertible(f"{counts} bits of an operand: it has 1 to {WORD}")


def _weights_of_bits(device):
    """Return what the bits of a word stand for, the first one highest."""
    return array([1 << (WORD - 1 - k) for k in range(WORD)], "int32", device=device)


@relay("nn.bitpack", op.bitwise_and, op.bitwise_right_shift, op.stack, ignore=("name",))
def bitpack(data, *, bits, pack_axis, bit_axis, pack_type, call):
    """Bit b of as many elements along ``pack_axis`` as a word has bits, the first one highest, is
    a word; the words of bit 0, 1, ... lie along a new axis ``bit_axis``.
    """
    _require_words(pack_type)
    _require_bits(bits)
    if not (0 <= bit_axis <= data.ndim and 0 <= pack_axis < data.ndim):
        raise Unconvertible(f"bit_axis={bit_axis} and pack_axis={pack_axis} of {data.ndim} axes")
    before, rest = tuple(data.shape[:pack_axis]), tuple(data.shape[pack_axis + 1 :])
    words = data.shape[pack_axis] // WORD
    x = op.reshape(cast_to(data, "int32"), (*before, words, WORD, *rest))
    along = op.reshape(_weights_of_bits(call.device), (WORD, *[1] * len(rest)))
    planes = []
    for b in range(bits):
        plane = op.bitwise_and(op.bitwise_right_shift(x, b), 1) * along
        planes.append(op.astype(op.sum(plane, pack_axis + 1), pack_type))
    return op.stack(tuple(planes), bit_axis)


def _unpacked(words, pack_axis, bit_axis, device):
    """Return the numbers, int32, that `bitpack` packed: those of ``words`` without ``bit_axis``."""
    _require_words(words.dtype)
    x = op.expand_dims(cast_to(words, "int32"), words.ndim)
    x = op.bitwise_and(x, _weights_of_bits(device))
    x = op.astype(op.not_equal(x, 0), "int32")
    counts = [1 << b for b in range(words.shape[bit_axis])]
    shape = [len(counts) if i == bit_axis else 1 for i in range(x.ndim)]
    counted = x * op.reshape(array(counts, "int32", device=device), tuple(shape))
    x = op.astype(op.sum(counted, bit_axis), "int32")
    at = pack_axis - (bit_axis < pack_axis)
    order = [*range(at + 1), x.ndim - 1, *range(at + 1, x.ndim - 1)]
    x = op.permute_dims(x, tuple(order))
    return op.reshape(x, (*x.shape[:at], x.shape[at] * WORD, *x.shape[at + 2 :]))


def _lowest(x, bits):
    return op.bitwise_and(cast_to(x, "int32"), (1 << bits) - 1)


def _signed(weight, bits, unipolar):
    """Return the weights' numbers. With ``unipolar`` a bit that is not set counts as -1."""
    w = _lowest(weight, bits)
    return w * 2 - ((1 << bits) - 1) if unipolar else w


@relay("nn.bitserial_conv2d", op.conv2d, op.bitwise_and, ignore=("channels", "pack_dtype"))
def bitserial_conv2d(
    data, weight, *, kernel_layout, kernel_size, activation_bits, weight_bits, unipolar, call, **how
):
    """The weight may be packed: OIHW with I packed, HWIO alike, and the bits as a last axis."""
    _require_bits(activation_bits, weight_bits)
    kernel = kernel_layout[:4]
    if weight.ndim == 5:
        weight = _unpacked(weight, kernel.index("I"), 4, call.device)
    require_kernel(weight, kernel, kernel_size)
    w = _signed(weight, weight_bits, bool(unipolar))
    window, layout = (per_axis(how["strides"]), per_axis(how["padding"]), 1, 1), how["data_layout"]
    y = op.conv2d.plain(_lowest(data, activation_bits), w, *window, layout, kernel, layout)
    return cast_to(y, product_dtype(data, how["out_dtype"]))


@relay("nn.bitserial_dense", op.dense, op.bitwise_and, ignore=("units", "pack_dtype"))
def bitserial_dense(data, weight, *, data_bits, weight_bits, out_dtype, unipolar, call):
    """The weight may be packed: [units, bits, inputs in words]."""
    _require_bits(data_bits, weight_bits)
    if weight.ndim == 3:
        weight = _unpacked(weight, 2, 1, call.device)
    y = op.dense(_lowest(data, data_bits), _signed(weight, weight_bits, bool(unipolar)))
    return cast_to(y, product_dtype(data, out_dtype))
