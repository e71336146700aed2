"""Converters of activations and of the softmax family."""

from __future__ import annotations

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant_number, reshape_as
from meta.frontend.core.arithmetic import clip_to_bounds
from meta.frontend.onnx.converters.elementwise import aligned, stated
from meta.frontend.onnx.converters.movement import flattened
from meta.frontend.onnx.registry import onnx


def _with_alpha(name, base):
    @onnx(name, base, ignore=stated(name, "consumed_inputs"))
    def converter(x, *, alpha):
        return base(x, alpha)


for _name, _base in {"Celu": op.celu, "Elu": op.elu, "LeakyRelu": op.leaky_relu}.items():
    _with_alpha(_name, _base)

onnx.same("HardSwish", op.hardswish)
onnx.same("Mish", op.mish)
onnx.same("Softsign", op.softsign)
onnx("Relu", op.relu, ignore=("consumed_inputs",))(lambda x: op.relu(x))
onnx("Sigmoid", op.sigmoid, ignore=("consumed_inputs",))(lambda x: op.sigmoid(x))


@onnx("Selu", op.selu, op.elu, op.multiply, ignore=("consumed_inputs",))
def selu(x, *, alpha, gamma):
    """gamma * x where x > 0, else gamma * alpha * (exp(x) - 1)."""
    return op.multiply(op.elu(x, alpha), gamma)


@onnx("Softplus", op.softplus)
def softplus(x):
    return op.softplus(x)


@onnx("Gelu", op.gelu)
def gelu(x, *, approximate):
    return op.gelu(x, approximate)


@onnx("HardSigmoid", op.multiply, op.add, op.clip, ignore=("consumed_inputs",))
def hard_sigmoid(x, *, alpha, beta):
    return op.clip(op.add(op.multiply(x, alpha), beta), 0.0, 1.0)


@onnx("Swish", op.sigmoid, op.multiply)
def swish(x, *, alpha):
    return op.multiply(x, op.sigmoid(op.multiply(x, alpha)))


@onnx("ThresholdedRelu", op.threshold)
def thresholded_relu(x, *, alpha):
    return op.threshold(x, alpha, 0.0)


@onnx("Shrink", op.where, op.subtract, op.add)
def shrink(x, *, bias, lambd):
    """x - bias above lambd, x + bias below -lambd, else 0."""
    zero = op.zeros_like(x)
    low = op.where(op.less(x, -lambd), op.add(x, _in(bias, x)), zero)
    return op.where(op.greater(x, lambd), op.subtract(x, _in(bias, x)), low)


def _in(number, x):
    """A number as one of the dtype of x."""
    return number if is_float(x.dtype) else int(number)


@onnx("PRelu", op.where, op.multiply, ignore=("consumed_inputs",))
def prelu(x, slope, *, call):
    """Before opset 7 the slopes are one, or one for each channel, along axis 1."""
    if call.opset < 7 and slope.size == 1:
        slope = op.reshape(slope, ())
    elif call.opset < 7:
        if x.ndim < 2 or slope.shape != x.shape[1:2]:
            raise Unconvertible(
                f"before opset 7 there is one slope, or one for each channel; here {slope.shape} "
                f"for an input {x.shape}"
            )
        slope = aligned(x, slope, 1, True, call)
    zero = op.zeros_like(x)
    return op.where(op.less(x, zero), op.multiply(x, slope), x)


@onnx("Clip", op.clip, op.maximum, op.minimum, ignore=("consumed_inputs",))
def clip(x, low=None, high=None, *, min, max, call):
    """The bounds are attributes before opset 11. A lower bound above the upper one gives way."""
    if call.opset < 11:
        return clip_to_bounds(x, float("-inf") if min is None else min, _or_infinite(max))
    bounds = [(b, None if b is None else constant_number(b)) for b in (low, high)]
    if all(b is None or n is not None for b, n in bounds) and is_float(x.dtype):
        least, most = (n for _, n in bounds)
        most = _or_infinite(most)
        least = float("-inf") if least is None else least
        return op.clip(x, min_of(least, most), most)
    if low is not None:
        x = op.maximum(x, op.reshape(low, ()))
    return x if high is None else op.minimum(x, op.reshape(high, ()))


def min_of(a, b):
    return a if a < b else b


def _or_infinite(bound):
    return float("inf") if bound is None else bound


def _softmax(name, base):
    @onnx(name, base, op.reshape)
    def converter(x, *, axis, call):
        """Before opset 13 all axes from the given one are one."""
        if call.opset >= 13:
            return base(x, axis)
        return reshape_as(base(_rows(x, axis), 1), x)


def _rows(x, axis):
    axis = axis + x.ndim if axis < 0 else axis
    return flattened(x, axis)


_softmax("Softmax", op.softmax)
_softmax("LogSoftmax", op.log_softmax)


@onnx("Hardmax", op.argmax, op.equal, op.reshape)
def hardmax(x, *, axis, call):
    """1 at the first of the greatest elements, 0 elsewhere."""
    if call.opset < 13:
        return reshape_as(_first_greatest(_rows(x, axis), 1), x)
    return _first_greatest(x, axis)


def _first_greatest(x, axis):
    axis = axis + x.ndim if axis < 0 else axis
    if x.shape[axis] == 0:
        return x  # nothing is chosen
    chosen = op.expand_dims(op.argmax(x, axis), axis)
    # 0, 1, ... along the axis, whose extent may have no number.
    ones = op.astype(op.ones_like(x), chosen.dtype)
    places = op.cumsum.plain(ones, axis, chosen.dtype, True)
    return op.astype(op.equal(places, chosen), x.dtype)
