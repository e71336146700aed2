"""Converters of the domain ai.onnx.ml, and what of it is refused."""

from __future__ import annotations

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, static_extent
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import array_of
from meta.runtime.ndarray import ndarray

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
        otherwise = op.reshape(_plain(default_tensor, call), ())
    else:
        number = default_float if "float" in values.dtype else default_int64
        otherwise = constant(number, values.dtype, call)
    wide = op.expand_dims(x, x.ndim)
    hits = op.equal(wide, keys)
    if "float" in x.dtype:
        hits = op.logical_or(hits, op.logical_and(op.isnan(wide), op.isnan(keys)))
    place = op.argmax(cast_to(hits, "int32"), x.ndim)
    return op.where(op.any(hits, x.ndim), op.take(values, place), otherwise)


def _plain(tensor, call):
    """Return a tensor of an attribute as an array."""
    found = array_of(tensor, call.device)
    if not isinstance(found, ndarray):
        raise Unconvertible("keys or values of a dtype that no array has")
    return found


def _column(floats, integers, tensor, call):
    if tensor is not None:
        return op.reshape(_plain(tensor, call), (-1,))
    if floats:
        return constant(floats, "float32", call)
    return constant(integers, "int64", call) if integers else None


@onnx(f"{DOMAIN}.Imputer", op.where)
def imputer(
    x,
    *,
    imputed_value_floats,
    imputed_value_int64s,
    replaced_value_float,
    replaced_value_int64,
    call,
):
    """Elements that equal one number become another, one for all or one for each of the last
    axis.
    """
    real = "float" in x.dtype
    values = imputed_value_floats if real else imputed_value_int64s
    number = replaced_value_float if real else replaced_value_int64
    if not values or len(values) not in (1, x.shape[-1]):
        raise Unconvertible(f"{len(values or ())} values for {list(x.shape)}")
    gone = op.isnan(x) if number != number else op.equal(x, number)
    return op.where(gone, constant(values, x.dtype, call), x)


@onnx(f"{DOMAIN}.Normalizer", op.abs, op.sum, op.divide, op.where)
def normalizer(x, *, norm):
    """Each row divided by its norm, where that is not 0."""
    wide = x if x.dtype in ("float32", "float64") else op.astype(x, "float32")
    if norm == "L1":
        size = op.sum(op.abs(wide), -1, True)
    elif norm == "L2":
        size = op.sqrt(op.sum(op.square(wide), -1, True))
    else:
        raise Unconvertible(f"the norm {norm!r}, which runtimes read in two ways", "L1 or L2")
    return cast_to(op.divide(wide, op.where(op.equal(size, 0.0), 1.0, size)), "float32")


@onnx(f"{DOMAIN}.FeatureVectorizer", op.concat, op.pad, op.strided_slice)
def feature_vectorizer(*tensors, inputdimensions):
    """The columns of all tensors, of each the first so many, or filled up with zeros."""
    if inputdimensions is None or len(inputdimensions) != len(tensors):
        raise Unconvertible("inputdimensions has not one number for each input")
    parts = []
    for x, count in zip(tensors, inputdimensions, strict=True):
        if x.ndim != 2:
            raise Unconvertible(f"an input of {x.ndim} axes, not 2")
        width = static_extent(x.shape[1], "the columns of an input")
        part = op.astype(x, "float32")
        if width > count:
            part = part[:, :count]
        elif width < count:
            part = op.pad(part, [(0, 0), (0, count - width)])
        parts.append(part)
    return op.concat(tuple(parts), 1)


@onnx(f"{DOMAIN}.OneHotEncoder", op.equal)
def one_hot_encoder(x, *, cats_int64s, cats_strings, zeros, call):
    if cats_strings or not cats_int64s:
        raise Unconvertible("text is no array")
    if not zeros:
        raise Unconvertible("an error for a category that there is not, which depends on values")
    whole = op.expand_dims(op.astype(x, "int64"), x.ndim)
    return op.astype(op.equal(whole, constant(cats_int64s, "int64", call)), "float32")


@onnx(f"{DOMAIN}.LinearClassifier", op.matmul, op.add, op.argmax, ignore=("multi_class",))
def linear_classifier(
    x, *, classlabels_ints, classlabels_strings, coefficients, intercepts, post_transform, call
):
    """(labels, scores). One row of coefficients for two classes is that of the second."""
    if classlabels_strings or not classlabels_ints:
        raise Unconvertible("labels that are text, which no array holds")
    count = len(classlabels_ints)
    features = static_extent(x.shape[-1], "the features")
    weights = np.reshape(coefficients, (-1, features)).T
    if weights.shape[1] not in (1, count) or count < 2:
        raise Unconvertible(f"{weights.shape[1]} rows of coefficients for {count} classes")
    scores = op.matmul(cast_to(x, "float32"), constant(weights, "float32", call))
    if intercepts:
        scores = op.add(scores, constant(intercepts, "float32", call))
    if weights.shape[1] == 1:
        if count != 2 or post_transform != "LOGISTIC":
            raise Unconvertible(f"one score of {count} classes, which runtimes read in two ways")
        scores = op.concat((op.negative(scores), scores), 1)
    if post_transform not in ("NONE", "LOGISTIC", "SOFTMAX"):
        raise Unconvertible(f"post_transform={post_transform!r} is not supported")
    if post_transform != "NONE":
        scores = op.sigmoid(scores) if post_transform == "LOGISTIC" else op.softmax(scores, -1)
    labels = constant(classlabels_ints, "int64", call)
    return op.take(labels, op.argmax(scores, 1)), scores


_MAPS = ("CastMap", "CategoryMapper", "DictVectorizer", "ZipMap")
onnx.refuse(*(f"{DOMAIN}.{n}" for n in _MAPS), why="maps and text are no arrays")
_VECTORS = ("SVMClassifier", "SVMRegressor")
onnx.refuse(*(f"{DOMAIN}.{n}" for n in _VECTORS), why="support vectors are not converted")
onnx.refuse("ImageDecoder", why="compressed images are decoded before the model")
