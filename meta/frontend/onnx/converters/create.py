"""Converters of operators that make tensors: constants, ranges, windows, and random numbers, from
the stream of `meta.random`.

ONNX says of no operator that draws which numbers they are. ``seed`` is not taken:
`meta.random.seed` makes runs repeatable.
"""

from __future__ import annotations

from math import ceil, isfinite

import numpy as np

from meta import op, random
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, constant_number, required_number, static_extent
from meta.frontend.core.arithmetic import cast_number, cast_to
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.shape_inference import shape_of
from meta.frontend.onnx.values import Text, array_of, as_narrow, carrier, dtype_of
from meta.op.core.tracing import Symbol
from meta.runtime.out_of_memory import require_room


@onnx("ConstantOfShape", op.full, op.dynamic_full)
def constant_of_shape(shape, *, value, call):
    found = array_of(value, call.device) if value is not None else constant(0.0, "float32", call)
    if isinstance(found, Text):
        raise Unconvertible("arrays have no texts")
    filling = carrier(found)
    extents = shape_of(shape)
    if extents is None:
        full = op.dynamic_full(op.reshape(filling, ()), shape, filling.dtype)
    else:
        full = filled(extents, filling, filling.dtype, call)
    return as_narrow(full, found.dtype)


def filled(extents, number, dtype, call):
    """A tensor of one number, which may be a known scalar."""
    number = number if isinstance(number, int | float) else constant_number(number)
    return op.full(tuple(extents), cast_number(number, dtype), dtype, str(call.device))


@onnx("EyeLike", op.where, op.equal)
def eye_like(x, *, dtype, k, call):
    rows, columns = (static_extent(d, "the input") for d in x.shape)
    values = np.eye(rows, columns, k=k)
    return constant(values, x.dtype if dtype is None else dtype_of(dtype), call)


@onnx("Range", op.arange, op.dynamic_arange)
def range_(start, limit, delta, *, stash_type):
    """start + i * delta for as many i as stay before the limit; half precision is computed in
    float32 with ``stash_type`` 1.
    """
    dtype = start.dtype
    numbers = [constant_number(n) for n in (start, limit, delta)]
    if any(n is None for n in numbers):
        vectors = (op.reshape(n, ()) for n in (start, limit, delta))
        return op.dynamic_arange(*vectors, dtype)
    first, last, step = numbers
    if not step:
        raise Unconvertible("a step of 0 has no end")
    if not all(map(isfinite, numbers)):
        raise Unconvertible(f"from {first} to {last} by {step} is no range")
    count = max(ceil((last - first) / step), 0)
    wide = "float32" if dtype in ("float16", "bfloat16") and stash_type else dtype
    steps = op.arange(0, count, 1, "int64", device_of(start))
    y = op.add(op.multiply(cast_to(steps, wide), step), cast_number(first, wide))
    return cast_to(y, dtype)


def device_of(x):
    """The name of the device where an array is."""
    return str(x.trace.device if isinstance(x, Symbol) else x.device)


def _window(name, *weights):
    """A sum of cosines: w[0] - w[1] * cos(2 * pi * i / n) + w[2] * cos(4 * pi * i / n)."""

    @onnx(name, op.arange, op.cos)
    def converter(size, *, output_datatype, periodic, call):
        count = required_number(size, "the size")
        require_room(8 * count, call.device, name)
        whole = count if periodic else count - 1
        angles = 2 * np.pi * np.arange(count) / whole
        signs = (1, -1, 1)
        values = sum(
            s * w * np.cos(i * angles) for i, (s, w) in enumerate(zip(signs, weights, strict=False))
        )
        return constant(values, dtype_of(output_datatype), call)


_window("HannWindow", 0.5, 0.5)
_window("HammingWindow", 25 / 46, 21 / 46)
_window("BlackmanWindow", 0.42, 0.5, 0.08)


@onnx("MelWeightMatrix")
def mel_weight_matrix(bins, length, rate, low, high, *, output_datatype, call):
    """Triangles over the frequencies of a transform, evenly spaced on the mel scale."""
    bins, length, rate, low, high = (
        required_number(n, "an argument") for n in (bins, length, rate, low, high)
    )
    spectrum = length // 2 + 1
    mels = np.array([2595 * np.log10(1 + f / 700) for f in (low, high)])
    places = mels[0] + np.arange(bins + 2) * ((mels[1] - mels[0]) / (bins + 2))
    hertz = 700 * (10 ** (places / 2595) - 1)
    edges = ((length + 1) * hertz // rate).astype(int)
    require_room(8 * spectrum * bins, call.device, "MelWeightMatrix")
    result = np.zeros((spectrum, bins))
    for i in range(bins):
        first, centre, last = edges[i : i + 3]
        rising = centre - first
        if rising == 0:
            result[centre, i] = 1
        else:
            for j in range(first, centre + 1):
                result[j, i] = (j - first) / rising
        falling = last - centre
        for j in range(centre, last):
            result[j, i] = (last - j) / falling
    return constant(result, dtype_of(output_datatype), call)


def _normal(shape, mean, scale, dtype, call):
    return random.normal(shape, mean=mean, std=scale, dtype=dtype, device=str(call.device))


def _uniform(shape, low, high, dtype, call):
    return random.uniform(shape, low=low, high=high, dtype=dtype, device=str(call.device))


@onnx("RandomNormal", op.random_key, op.random_normal)
def random_normal(*, dtype, mean, scale, shape, call):
    return _normal(shape, mean, scale, dtype_of(dtype), call)


@onnx("RandomUniform", op.random_key, op.random_uniform)
def random_uniform(*, dtype, low, high, shape, call):
    return _uniform(shape, low, high, dtype_of(dtype), call)


def _dtype(x, dtype):
    return x.dtype if dtype is None else dtype_of(dtype)


@onnx("RandomNormalLike", op.random_key, op.random_normal)
def random_normal_like(x, *, dtype, mean, scale, call):
    return _normal(_extents(x), mean, scale, _dtype(x, dtype), call)


@onnx("RandomUniformLike", op.random_key, op.random_uniform)
def random_uniform_like(x, *, dtype, low, high, call):
    return _uniform(_extents(x), low, high, _dtype(x, dtype), call)


def _extents(x):
    return tuple(static_extent(d, "the input") for d in x.shape)


@onnx("Bernoulli", op.random_key, op.random_uniform, op.less)
def bernoulli(p, *, dtype, call):
    """1 with the probability p, else 0."""
    drawn = _uniform(_extents(p), 0.0, 1.0, "float64" if p.dtype == "float64" else "float32", call)
    return cast_to(op.less(drawn, cast_to(p, drawn.dtype)), _dtype(p, dtype))


@onnx("Multinomial", op.random_key, op.random_uniform, op.argmax)
def multinomial(logits, *, dtype, sample_size, call):
    """Classes drawn by unnormalised log probabilities, as the greatest after Gumbel noise."""
    rows, classes = _extents(logits)
    wide = cast_to(logits, "float64" if logits.dtype == "float64" else "float32")
    noise = random.gumbel((rows, sample_size, classes), dtype=wide.dtype, device=str(call.device))
    drawn = op.argmax(op.add(op.expand_dims(wide, 1), noise), 2)
    return cast_to(drawn, dtype_of(dtype))


@onnx("Dropout", op.dropout_train)
def dropout(x, ratio_=None, training_mode=None, *, ratio, is_test, call):
    """(y, mask). Elements are dropped where the model is in train mode or the node says so.

    Until opset 6 ``is_test`` says that nothing is, and until opset 10 the mask has the dtype of x.
    """
    asked = training_mode is not None and required_number(training_mode, "the mode")
    drops = bool(asked) or (call.training and not is_test)
    mask_dtype = x.dtype if call.opset < 10 else "bool"
    share = ratio
    if drops and ratio_ is not None:
        share = required_number(ratio_, "the share that is dropped")
    share = 0.5 if share is None else float(share)
    if not drops or share == 0.0:
        return x, op.ones_like(x, mask_dtype)
    y, mask, _ = op.dropout_train(x, share)
    return y, cast_to(mask, mask_dtype)
