"""Rounding as quantisation does it, in floating point; what needs tensors of integers with scales
is refused.
"""

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible


def _rounded(x, scale, zero_point, quant_min, quant_max):
    """Return x rounded to multiples of a scale within bounds, and which elements are within.

    As torch: products with 1 / scale, in float32, halves to even. A zero point of integers is added
    to what is rounded, one of floating point before.
    """
    if x.dtype == "float64":
        raise Unconvertible("torch computes it of float64 in parts in float32")
    if isinstance(scale, float):
        scale = np.float32(scale)
        scale, inverse = float(scale), float(np.float32(1.0) / scale)
    else:
        inverse = op.reciprocal(scale)
    places = op.multiply(cast(x, "float32"), inverse)
    if isinstance(zero_point, float) or not is_float(zero_point.dtype):
        zero_point = zero_point if isinstance(zero_point, float) else cast(zero_point, "float32")
        places = op.add(op.round(places), zero_point)
    else:
        zero_point = cast(zero_point, "float32")
        places = op.round(op.add(places, zero_point))
    mask = op.logical_and(
        op.greater_equal(places, float(quant_min)), op.less_equal(places, float(quant_max))
    )
    kept = op.clip(places, float(quant_min), float(quant_max))
    return cast(op.multiply(op.subtract(kept, zero_point), scale), x.dtype), mask


def _per_channel_view(t, x, axis):
    shape = tuple(-1 if i == axis % len(x.shape) else 1 for i in range(len(x.shape)))
    return op.reshape(t, shape)


@aten("fake_quantize_per_tensor_affine", op.round, op.clip)
def fake_quantize(x, *, scale, zero_point, quant_min, quant_max):
    return _rounded(x, scale, float(zero_point), quant_min, quant_max)[0]


@aten("fake_quantize_per_tensor_affine_cachemask", op.round, op.clip)
def fake_quantize_with_mask(x, *, scale, zero_point, quant_min, quant_max):
    return _rounded(x, scale, float(zero_point), quant_min, quant_max)


def _of_tensors(x, scale, zero_point, quant_min, quant_max):
    scale, zero_point = (op.reshape(t, ()) for t in (scale, zero_point))
    return _rounded(x, cast(scale, "float32"), cast(zero_point, "int32"), quant_min, quant_max)


@aten("fake_quantize_per_tensor_affine.tensor_qparams", op.round, op.clip)
def fake_quantize_of_tensors(x, scale, zero_point, *, quant_min, quant_max):
    return _of_tensors(x, scale, zero_point, quant_min, quant_max)[0]


@aten("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams", op.round, op.clip, op.where)
def fake_quantize_if_enabled(x, scale, zero_point, enabled, *, quant_min, quant_max):
    y, mask = _of_tensors(x, scale, zero_point, quant_min, quant_max)
    enabled = op.not_equal(op.reshape(enabled, ()), 0)
    return op.where(enabled, y, x), op.where(enabled, mask, True)


def _per_channel(x, scale, zero_point, axis, quant_min, quant_max):
    scale, zero_point = (_per_channel_view(t, x, axis) for t in (scale, zero_point))
    return _rounded(x, cast(scale, "float32"), zero_point, quant_min, quant_max)


@aten("fake_quantize_per_channel_affine", op.round, op.clip)
def fake_quantize_channels(x, scale, zero_point, *, axis, quant_min, quant_max):
    return _per_channel(x, scale, zero_point, axis, quant_min, quant_max)[0]


@aten("fake_quantize_per_channel_affine_cachemask", op.round, op.clip)
def fake_quantize_channels_with_mask(x, scale, zero_point, *, axis, quant_min, quant_max):
    return _per_channel(x, scale, zero_point, axis, quant_min, quant_max)


@aten(
    "fake_quantize_per_tensor_affine_cachemask_backward",
    "fake_quantize_per_channel_affine_cachemask_backward",
    op.where,
)
def fake_quantize_backward(dy, mask):
    return op.where(mask, dy, 0.0)


@aten("_weight_int8pack_mm", op.dense, op.multiply)
def weight_int8pack_mm(x, weight, scales):
    """The product with rows of int8 that have a scale each."""
    return op.multiply(op.dense(x, cast(weight, x.dtype)), cast(scales, x.dtype))


aten.refuse(
    "quantize_per_tensor",
    "quantize_per_tensor.tensor_qparams",
    "quantize_per_tensor.tensors",
    "quantize_per_tensor_dynamic",
    "quantize_per_channel",
    "dequantize.self",
    "dequantize.tensors",
    "_make_per_tensor_quantized_tensor",
    "_make_per_channel_quantized_tensor",
    "_empty_affine_quantized",
    "_empty_per_channel_affine_quantized",
    "quantized_lstm.input_legacy",
    "quantized_lstm.data_legacy",
    "quantized_gru.input_legacy",
    "quantized_gru.data_legacy",
    why="it is of quantised tensors, which have no arrays here",
)
aten.refuse(
    "_fake_quantize_learnable_per_tensor_affine",
    "_fake_quantize_learnable_per_tensor_affine_backward",
    "_fake_quantize_learnable_per_channel_affine",
    "_fake_quantize_learnable_per_channel_affine_backward",
    "_fused_moving_avg_obs_fq_helper_functional",
    why="it learns or observes the scales of quantisation",
)
aten.refuse(
    "_weight_int4pack_mm",
    "_weight_int4pack_mm_for_cpu",
    "_weight_int4pack_mm_with_scales_and_zeros",
    "_convert_weight_to_int4pack",
    "_convert_weight_to_int4pack_for_cpu",
    "_dyn_quant_matmul_4bit",
    "_dyn_quant_pack_4bit_weight",
    "_mixed_dtypes_linear",
    "_scaled_mm_v2",
    "_scaled_grouped_mm",
    "_scaled_grouped_mm_v2",
    why="its weights are packed or scaled in blocks",
)
