"""Converters of the domain ai.onnx.ml, and what of it is refused."""

from __future__ import annotations

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import array_of

DOMAIN = "ai.onnx.ml"


@onnx(f"{DOMAIN}.ArrayFeatureExtractor", op.take)
def array_feature_extractor(x, places):
    return op.take(op.reshape(x, (1, -1)) if x.ndim == 1 else x, op.reshape(places, (-1,)), -1)


@onnx(f"{DOMAIN}.Binarizer", op.greater)
def binarizer(x, *, threshold):
    return cast_to(op.greater(x, threshold), x.dtype)


@onnx(f"{DOMAIN}.Scaler", op.subtract, op.multiply)
def scaler(x, *, offset, scale, call):
    """(x - offset) * scale, by one number or one for each of the last axis."""
    wide = cast_to(x, "float32")
    offset, scale = (constant(v, "float32", call) for v in (offset or (0.0,), scale or (1.0,)))
    return op.multiply(op.subtract(wide, offset), scale)


@onnx(f"{DOMAIN}.LinearRegressor", op.matmul, op.add)
def linear_regressor(x, *, coefficients, intercepts, post_transform, targets, call):
    if post_transform not in (None, "NONE"):
        raise Unconvertible(f"post_transform={post_transform!r} is not supported")
    weights = constant(np.reshape(coefficients, (targets, -1)).T, "float32", call)
    y = op.matmul(cast_to(x, "float32"), weights)
    return y if intercepts is None else op.add(y, constant(intercepts, "float32", call))


@onnx(f"{DOMAIN}.LabelEncoder", op.equal, op.where, ignore=("default_string",))
def label_encoder(
    x,
    *,
    classes_strings,
    default_float,
    default_int64,
    default_tensor,
    keys_floats,
    keys_int64s,
    keys_strings,
    keys_tensor,
    values_floats,
    values_int64s,
    values_strings,
    values_tensor,
    call,
):
    """The value that stands beside the key that an element equals; NaN equals itself."""
    if classes_strings or keys_strings or values_strings:
        raise Unconvertible("text is no array")
    keys = _column(keys_floats, keys_int64s, keys_tensor, call)
    values = _column(values_floats, values_int64s, values_tensor, call)
    if keys is None or values is None:
        raise Unconvertible("it has no keys or no values")
    if default_tensor is not None:
        otherwise = op.reshape(array_of(default_tensor, call.device), ())
    else:
        number = default_float if "float" in values.dtype else default_int64
        otherwise = constant(number, values.dtype, call)
    wide = op.expand_dims(x, x.ndim)
    hits = op.equal(wide, keys)
    if "float" in x.dtype:
        hits = op.logical_or(hits, op.logical_and(op.isnan(wide), op.isnan(keys)))
    place = op.argmax(cast_to(hits, "int32"), x.ndim)
    return op.where(op.any(hits, x.ndim), op.take(values, place), otherwise)


def _column(floats, integers, tensor, call):
    if tensor is not None:
        return op.reshape(array_of(tensor, call.device), (-1,))
    if floats:
        return constant(floats, "float32", call)
    return constant(integers, "int64", call) if integers else None


_MAPS = ("CastMap", "CategoryMapper", "DictVectorizer", "ZipMap")
onnx.refuse(*(f"{DOMAIN}.{n}" for n in _MAPS), why="maps and text are no arrays")
_OTHERS = (
    "FeatureVectorizer",
    "Imputer",
    "LinearClassifier",
    "Normalizer",
    "OneHotEncoder",
    "SVMClassifier",
    "SVMRegressor",
)
onnx.refuse(
    *(f"{DOMAIN}.{n}" for n in _OTHERS), why="models of scikit-learn are read by no converter"
)
onnx.refuse("ImageDecoder", why="compressed images are decoded before the model")
