"""Converters of what takes tensors into a quantization, out of it, and into another one; and of
the operators that simulate it in floats.
"""

from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.arithmetic import rounded
from meta.frontend.relay import quantization
from meta.frontend.relay.arguments import known_number
from meta.frontend.relay.quantization import along, plus, requantize, scale_of, zero_of
from meta.frontend.relay.registry import relay


@relay("qnn.quantize", op.divide, op.trunc, op.where, op.cast)
def quantize(data, scale=None, zero=None, *, output_scale, output_zero_point, axis, out_dtype):
    """Round to the nearest, halves away from 0, and saturate."""
    scale, zero = scale_of(scale, output_scale), zero_of(zero, output_zero_point)
    return quantization.quantize(data, scale, zero, out_dtype or "int8", axis)


@relay("qnn.dequantize", op.subtract, op.multiply, op.cast)
def dequantize(data, scale=None, zero=None, *, input_scale, input_zero_point, axis, out_dtype):
    scale, zero = scale_of(scale, input_scale), zero_of(zero, input_zero_point)
    return quantization.dequantize(data, scale, zero, axis, out_dtype or "float32")


@relay("qnn.requantize", op.fixed_point_multiply, op.fixed_point_number, op.clip)
def requantized(
    data,
    scale=None,
    zero=None,
    to_scale=None,
    to_zero=None,
    *,
    input_scale,
    input_zero_point,
    output_scale,
    output_zero_point,
    axis,
    rounding,
    compute_dtype,
    out_dtype,
    call,
):
    """By integers alone, unless compute_dtype says otherwise; a file that does not say how to
    round means upward, in all versions.
    """
    return requantize(
        data,
        scale_of(scale, input_scale, "input scale"),
        zero_of(zero, input_zero_point, "input zero point"),
        scale_of(to_scale, output_scale, "output scale"),
        zero_of(to_zero, output_zero_point, "output zero point"),
        out_dtype or "int8",
        call.device,
        axis,
        rounding,
        compute_dtype,
    )


def _refuse_training(call: CallSite) -> None:
    """A silent gradient of zeros would train nothing that comes before."""
    if call.training:
        raise Unconvertible(
            "rounding has no gradient, so that what simulates quantization cannot be trained",
            hint="infer mode, or the model before it was quantized",
        )


SIMULATED = {1: "int8", 2: "uint8", 3: "int32"}
"""Codes of the dtypes that simulated operators are told at run time; 0 passes values through."""
_RANGE = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0), "int32": (-(2.0**31), 2.0**31 - 1)}


@relay("qnn.simulated_quantize", op.divide, op.where)
def simulated_quantize(data, out_dtype, scale, zero, *, axis, call):
    """qnn.quantize in the dtype of ``data``, into a dtype that a tensor names by its code."""
    _refuse_training(call)
    whole = rounded(op.divide(data, along(scale_of(scale), data.ndim, axis)))
    moved = plus(whole, zero_of(zero), axis)
    return _by_code(out_dtype, data, {c: op.clip(moved, *_RANGE[d]) for c, d in SIMULATED.items()})


@relay("qnn.simulated_dequantize", op.subtract, op.multiply, op.where)
def simulated_dequantize(data, in_dtype, scale, zero, *, axis, out_dtype):
    """scale * (data - zero) in the dtype of ``data``."""
    moved = quantization.minus(data, zero_of(zero), axis)
    real = op.multiply(moved, along(scale_of(scale), data.ndim, axis))
    return _by_code(in_dtype, data, dict.fromkeys(SIMULATED, real))


def _by_code(code, data, results: dict[int, Any]):
    stated = known_number(code)
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
