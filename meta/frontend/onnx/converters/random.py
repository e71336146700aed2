"""Converters of operators that draw numbers, from the stream of `meta.random`.

ONNX says of none of them which numbers they are. ``seed`` is not taken: `meta.random.seed` makes
runs repeatable.
"""

from __future__ import annotations

from meta import op, random
from meta.frontend.core.arguments import static_extent
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.converters.movement import required_number
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import dtype_of


def _normal(shape, mean, scale, dtype, call):
    return random.normal(shape, mean=mean, std=scale, dtype=dtype, device=str(call.device))


def _uniform(shape, low, high, dtype, call):
    return random.uniform(shape, low=low, high=high, dtype=dtype, device=str(call.device))


@onnx("RandomNormal", op.random_normal, ignore=("seed",))
def random_normal(*, dtype, mean, scale, shape, call):
    return _normal(shape, mean, scale, dtype_of(dtype), call)


@onnx("RandomUniform", op.random_uniform, ignore=("seed",))
def random_uniform(*, dtype, low, high, shape, call):
    return _uniform(shape, low, high, dtype_of(dtype), call)


def _dtype(x, dtype):
    return x.dtype if dtype is None else dtype_of(dtype)


@onnx("RandomNormalLike", op.random_normal, ignore=("seed",))
def random_normal_like(x, *, dtype, mean, scale, call):
    return _normal(_extents(x), mean, scale, _dtype(x, dtype), call)


@onnx("RandomUniformLike", op.random_uniform, ignore=("seed",))
def random_uniform_like(x, *, dtype, low, high, call):
    return _uniform(_extents(x), low, high, _dtype(x, dtype), call)


def _extents(x):
    return tuple(static_extent(d, "the input") for d in x.shape)


@onnx("Bernoulli", op.random_uniform, op.less, ignore=("seed",))
def bernoulli(p, *, dtype, call):
    """1 with the probability p, else 0."""
    drawn = _uniform(_extents(p), 0.0, 1.0, "float64" if p.dtype == "float64" else "float32", call)
    return cast_to(op.less(drawn, cast_to(p, drawn.dtype)), _dtype(p, dtype))


@onnx("Multinomial", op.random_uniform, op.argmax, ignore=("seed",))
def multinomial(logits, *, dtype, sample_size, call):
    """Classes drawn by unnormalised log probabilities, as the greatest after Gumbel noise."""
    rows, classes = _extents(logits)
    wide = cast_to(logits, "float64" if logits.dtype == "float64" else "float32")
    noise = random.gumbel((rows, sample_size, classes), dtype=wide.dtype, device=str(call.device))
    drawn = op.argmax(op.add(op.expand_dims(wide, 1), noise), 2)
    return cast_to(drawn, dtype_of(dtype))


@onnx("Dropout", op.dropout_train, ignore=("seed", "consumed_inputs"))
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
