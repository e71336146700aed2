"""Converters of other domains than ONNX's own: ai.onnx.ml, ai.onnx.preview.training and
com.microsoft.

Optimizers take the rate, the number of the step, then all parameters, all gradients and all states;
results are the new parameters and states in the same order.
"""

from __future__ import annotations

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, static_extent
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import array_of
from meta.runtime.ndarray import ndarray

ML = "ai.onnx.ml"


@onnx(f"{ML}.ArrayFeatureExtractor", op.take)
def array_feature_extractor(x, places):
    return op.take(op.reshape(x, (1, -1)) if x.ndim == 1 else x, op.reshape(places, (-1,)), -1)


@onnx(f"{ML}.Binarizer", op.greater)
def binarizer(x, *, threshold):
    return cast_to(op.greater(x, threshold), x.dtype)


@onnx(f"{ML}.Scaler", op.subtract, op.multiply)
def scaler(x, *, offset, scale, call):
    """(x - offset) * scale, by one number or one for each of the last axis."""
    wide = cast_to(x, "float32")
    offset, scale = (constant(v, "float32", call) for v in (offset or (0.0,), scale or (1.0,)))
    return op.multiply(op.subtract(wide, offset), scale)


@onnx(f"{ML}.LinearRegressor", op.matmul, op.add)
def linear_regressor(x, *, coefficients, intercepts, post_transform, targets, call):
    if post_transform not in (None, "NONE"):
        raise Unconvertible(f"post_transform={post_transform!r} is not supported")
    weights = constant(np.reshape(coefficients, (targets, -1)).T, "float32", call)
    y = op.matmul(cast_to(x, "float32"), weights)
    return y if intercepts is None else op.add(y, constant(intercepts, "float32", call))


@onnx(f"{ML}.LabelEncoder", op.equal, op.where, ignore=("default_string",))
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


@onnx(f"{ML}.Imputer", op.where)
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


@onnx(f"{ML}.Normalizer", op.abs, op.sum, op.divide, op.where)
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


@onnx(f"{ML}.FeatureVectorizer", op.concat, op.pad, op.strided_slice)
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


@onnx(f"{ML}.OneHotEncoder", op.equal)
def one_hot_encoder(x, *, cats_int64s, cats_strings, zeros, call):
    if cats_strings or not cats_int64s:
        raise Unconvertible("text is no array")
    if not zeros:
        raise Unconvertible("an error for a category that there is not, which depends on values")
    whole = op.expand_dims(op.astype(x, "int64"), x.ndim)
    return op.astype(op.equal(whole, constant(cats_int64s, "int64", call)), "float32")


@onnx(f"{ML}.LinearClassifier", op.matmul, op.add, op.argmax, ignore=("multi_class",))
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
onnx.refuse(*(f"{ML}.{n}" for n in _MAPS), why="maps and text are no arrays")
_VECTORS = ("SVMClassifier", "SVMRegressor")
onnx.refuse(*(f"{ML}.{n}" for n in _VECTORS), why="support vectors are not converted")
onnx.refuse("ImageDecoder", why="compressed images are decoded before the model")


TRAINING = "ai.onnx.preview.training"


def _grouped(tensors, kinds):
    """Rows (parameter, gradient, states ...) of the inputs, which are grouped by kind."""
    count, rest = divmod(len(tensors), kinds)
    if rest:
        raise Unconvertible(f"{len(tensors)} tensors are no {kinds} of each parameter")
    return [tensors[i::count] for i in range(count)]


def _by_kind(rows):
    return tuple(value for kind in zip(*rows, strict=True) for value in kind)


def _regularized(x, gradient, coefficient):
    return op.add(op.multiply(x, coefficient), gradient)


@onnx(f"{TRAINING}.Adagrad", op.sqrt, op.divide)
def adagrad(rate, step, *tensors, decay_factor, epsilon, norm_coefficient):
    rows = []
    for x, gradient, state in _grouped(tensors, 3):
        count = cast_to(step, x.dtype)
        now = op.divide(rate, op.add(op.multiply(count, decay_factor), 1.0))
        change = _regularized(x, gradient, norm_coefficient)
        state = op.add(state, op.square(change))
        scaled = op.divide(op.multiply(now, change), op.add(op.sqrt(state), epsilon))
        rows.append((op.subtract(x, scaled), state))
    return _by_kind(rows)


@onnx(f"{TRAINING}.Adam", op.sqrt, op.divide, op.pow, op.where)
def adam(rate, step, *tensors, alpha, beta, epsilon, norm_coefficient, norm_coefficient_post):
    rows = []
    for x, gradient, first, second in _grouped(tensors, 4):
        change = _regularized(x, gradient, norm_coefficient)
        first = _mixed(first, change, alpha)
        second = _mixed(second, op.square(change), beta)
        count = cast_to(step, x.dtype)
        # The bias of the averages is corrected in all steps but the one of number 0.
        spread = op.sqrt(op.subtract(1.0, op.pow(beta, count)))
        bias = op.subtract(1.0, op.pow(alpha, count))
        started = op.greater(step, 0)
        bias = op.where(started, bias, op.ones_like(bias))
        now = op.where(started, op.multiply(rate, op.divide(spread, bias)), rate)
        scaled = op.divide(first, op.add(op.sqrt(second), epsilon))
        x = op.subtract(x, op.multiply(now, scaled))
        rows.append((op.multiply(x, 1.0 - norm_coefficient_post), first, second))
    return _by_kind(rows)


def _mixed(old, new, share):
    return op.add(op.multiply(old, share), op.multiply(new, 1.0 - share))


@onnx(f"{TRAINING}.Momentum", op.multiply, op.add, op.where)
def momentum(rate, step, *tensors, alpha, beta, mode, norm_coefficient):
    if mode not in ("standard", "nesterov"):
        raise Unconvertible(f"mode={mode!r} is unknown", hint="standard or nesterov")
    rows = []
    for x, gradient, state in _grouped(tensors, 3):
        change = _regularized(x, gradient, norm_coefficient)
        started = op.greater(step, 0)
        first = op.where(started, op.multiply(change, beta), change)
        state = op.add(op.multiply(state, alpha), first)
        ahead = state if mode == "standard" else op.add(change, op.multiply(state, alpha))
        rows.append((op.subtract(x, op.multiply(rate, ahead)), state))
    return _by_kind(rows)


onnx.refuse(
    f"{TRAINING}.Gradient",
    why="gradients are taken of the imported model itself",
)


MICROSOFT = "com.microsoft"


@onnx(f"{MICROSOFT}.BiasGelu", op.gelu, op.add)
def bias_gelu(x, bias):
    return op.gelu(op.add(x, bias))


@onnx(f"{MICROSOFT}.FastGelu", op.gelu, op.add)
def fast_gelu(x, bias=None):
    return op.gelu(x if bias is None else op.add(x, bias), "tanh")


@onnx(f"{MICROSOFT}.QuickGelu", op.sigmoid, op.multiply)
def quick_gelu(x, *, alpha):
    return op.multiply(x, op.sigmoid(op.multiply(x, 1.702 if alpha is None else alpha)))


@onnx(f"{MICROSOFT}.FusedMatMul", op.matmul, op.multiply)
def fused_matmul(a, b, *, alpha, transA, transB, transBatchA, transBatchB):
    """alpha * a @ b, of matrices that are transposed first."""
    if transBatchA or transBatchB:
        raise Unconvertible("the batch axis as an axis of the matrices is not supported")
    a = op.swapaxes(a, -1, -2) if transA else a
    b = op.swapaxes(b, -1, -2) if transB else b
    y = op.matmul(a, b)
    return y if alpha in (None, 1.0) else op.multiply(y, alpha)


@onnx(f"{MICROSOFT}.SkipLayerNormalization", op.layer_norm, op.add)
def skip_layer_normalization(x, skip, scale, shift=None, bias=None, *, epsilon, call):
    """(the normalised sum, -, -, the sum)."""
    total = _skip_sum(x, skip, bias)
    y = op.layer_norm.plain(total, scale, shift, -1, 1e-12 if epsilon is None else epsilon)
    return _with_sum(y, total, call)


@onnx(f"{MICROSOFT}.SkipSimplifiedLayerNormalization", op.rms_norm, op.add)
def skip_simplified_layer_normalization(x, skip, scale, bias=None, *, epsilon, call):
    """As SkipLayerNormalization, by the root of the mean square."""
    total = _skip_sum(x, skip, bias)
    y = op.rms_norm.plain(total, scale, None, -1, 1e-12 if epsilon is None else epsilon)
    return _with_sum(y, total, call)


def _skip_sum(x, skip, bias):
    total = op.add(x, skip)
    return total if bias is None else op.add(total, bias)


def _with_sum(y, total, call):
    """The statistics are for training and have no converter; exporters leave them out."""
    if call.results in (2, 3):
        raise Unconvertible("the mean and the standard deviation are not supported as results")
    return (y, None, None, total) if call.results == 4 else y
