"""Activation functions, softmax, and the gradients of both, which torch has as overloads.

A gradient is written as torch's own is defined at a kink and of a NaN.
"""

from meta import op
from meta.base.dtype import COMPLEX, is_float
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.frontend.core.arithmetic import clip_to_bounds


@aten("relu6", op.relu6, op.clip)
def relu6(x):
    return op.relu6(x) if is_float(x.dtype) else op.clip(x, 0, 6)


@aten("hardtanh", op.clip)
def hardtanh(x, *, min_val, max_val):
    return clip_to_bounds(x, min_val, max_val)


@aten("elu", op.elu, op.multiply, op.where, op.expm1)
def elu(x, *, alpha, scale, input_scale):
    if input_scale == 1:
        y = op.elu(x, alpha)
        return y if scale == 1 else op.multiply(y, scale)
    below = op.multiply(op.expm1(op.multiply(x, input_scale)), alpha * scale)
    return op.where(op.greater(x, 0), op.multiply(x, scale), below)


@aten("log_sigmoid_forward", op.logsigmoid, op.exp, op.negative, op.abs)
def log_sigmoid_forward(x):
    """The result, and exp(-|x|), which torch keeps for the gradient on the CPU."""
    return op.logsigmoid(x), op.exp(op.negative(op.abs(x)))


@aten("_prelu_kernel", op.where, op.greater, op.multiply)
def prelu_kernel(x, weight):
    return op.where(op.greater(x, 0), x, op.multiply(x, weight))


@aten("_prelu_kernel_backward", op.where, op.greater, op.multiply)
def prelu_kernel_backward(dy, x, weight):
    """The gradients of both; that of the weight is not summed yet."""
    positive = op.greater(x, 0)
    dx = op.where(positive, dy, op.multiply(dy, weight))
    return dx, op.where(positive, 0.0, op.multiply(x, dy))


@aten("rrelu", op.leaky_relu, ignore=("generator",))
def rrelu(x, *, lower, upper, training):
    if training:
        raise Unconvertible("random slopes are not drawn in one call")
    return op.leaky_relu(x, (lower + upper) / 2)


@aten("rrelu_with_noise_functional", op.leaky_relu, ignore=("generator",))
def rrelu_with_noise(x, noise, *, lower, upper, training):
    if training:
        raise Unconvertible("random slopes are not drawn in one call")
    return op.leaky_relu(x, (lower + upper) / 2), noise


@aten("rrelu_with_noise_backward", op.leaky_relu_dx, op.multiply)
def rrelu_backward(dy, x, noise, lower, upper, *, training, self_is_result):
    if training and upper - lower > 1e-6:
        return op.multiply(dy, noise)
    return op.leaky_relu_dx(x, dy, (lower + upper) / 2)


# Softmax.


def _along(base, x, axis):
    """Apply softmax, or its logarithm; a 0-d tensor has one element, along no axis."""
    if x.ndim:
        return base(x, axis)
    return op.reshape(base(op.reshape(x, (1,)), 0), ())


@aten("softmax.int", "special_softmax", op.softmax)
def softmax(x, *, dim, dtype):
    return _along(op.softmax, x if dtype is None else cast(x, dtype), dim)


@aten("log_softmax.int", "special_log_softmax", op.log_softmax)
def log_softmax(x, *, dim, dtype):
    return _along(op.log_softmax, x if dtype is None else cast(x, dtype), dim)


@aten("_softmax", op.softmax)
def softmax_of_kernel(x, *, dim, half_to_float):
    return _along(op.softmax, cast(x, "float32") if half_to_float else x, dim)


@aten("_log_softmax", op.log_softmax)
def log_softmax_of_kernel(x, *, dim, half_to_float):
    return _along(op.log_softmax, cast(x, "float32") if half_to_float else x, dim)


@aten("_safe_softmax", op.softmax, op.where, op.all, op.equal)
def safe_softmax(x, *, dim, dtype):
    """Softmax, which is 0 along an axis that is -inf throughout."""
    x = x if dtype is None else cast(x, dtype)
    masked = op.all(op.equal(x, -float("inf")), dim if x.ndim else None, True)
    # Of -inf alone softmax is NaN, and so would its gradient be.
    return op.where(masked, 0.0, _along(op.softmax, op.where(masked, 0.0, x), dim))


def _gradient_along(base, y, dy, axis, dtype):
    if y.ndim:
        return cast(base(y, dy, axis), dtype)
    return cast(op.reshape(base(op.reshape(y, (1,)), op.reshape(dy, (1,)), 0), ()), dtype)


@aten("_softmax_backward_data", op.softmax_dx)
def softmax_backward(dy, y, *, dim, input_dtype):
    return _gradient_along(op.softmax_dx, y, dy, dim, input_dtype)


@aten("_log_softmax_backward_data", op.log_softmax_dx)
def log_softmax_backward(dy, y, *, dim, input_dtype):
    return _gradient_along(op.log_softmax_dx, y, dy, dim, input_dtype)


# Gradients.


@aten("threshold_backward", op.threshold_dx, op.relu_dx)
def threshold_backward(dy, x, threshold):
    if threshold == 0:  # the gradient of relu, by its result
        return op.relu_dx(None, x, dy)
    return op.threshold_dx(x, dy, threshold)


@aten("silu", op.silu, op.exp, op.divide)
def silu(x):
    if x.dtype not in COMPLEX:
        return op.silu(x)
    return op.divide(x, op.add(op.exp(op.negative(x)), 1))


@aten("silu_backward", op.silu_dx, op.exp, op.divide, op.conj)
def silu_backward(dy, x):
    if x.dtype not in COMPLEX:
        return op.silu_dx(x, dy)
    wave = op.add(op.exp(op.negative(x)), 1)
    sigmoid = op.divide(op.ones_like(x), wave)
    slope = op.multiply(sigmoid, op.add(op.multiply(x, op.subtract(1, sigmoid)), 1))
    return op.multiply(dy, op.conj(slope))


def _between(x, low, high):
    """Whether low < x < high; a NaN is."""
    return op.logical_not(op.logical_or(op.less_equal(x, low), op.greater_equal(x, high)))


@aten("hardsigmoid_backward", op.where, op.less, op.greater, op.logical_and, op.multiply)
def hardsigmoid_backward(dy, x):
    inside = op.logical_and(op.greater(x, -3.0), op.less(x, 3.0))
    return op.where(inside, op.multiply(dy, 1 / 6), 0.0)


@aten("hardtanh_backward", op.where, op.less_equal, op.greater_equal, op.logical_or)
def hardtanh_backward(dy, x, low, high):
    return op.where(_between(x, float(low), float(high)), dy, 0.0)


@aten("elu_backward", op.where, op.less_equal, op.multiply, op.add, op.exp)
def elu_backward(dy, alpha, scale, input_scale, x, *, is_result):
    if is_result:  # alpha * scale * exp(input_scale * x) of the result y is y + alpha * scale
        slope = op.multiply(op.add(x, alpha * scale), input_scale)
    else:
        slope = op.multiply(op.exp(op.multiply(x, input_scale)), input_scale * alpha * scale)
    return op.where(op.less_equal(x, 0), op.multiply(dy, slope), op.multiply(dy, scale))


@aten("leaky_relu_backward", op.leaky_relu_dx)
def leaky_relu_backward(dy, x, negative_slope, *, self_is_result):
    """The result has the sign of the argument, where torch allows it to be given: for a slope that
    is not negative.
    """
    return op.leaky_relu_dx(x, dy, negative_slope)


@aten("softshrink_backward", "hardshrink_backward", op.where, op.less_equal, op.abs)
def shrink_backward(dy, x, lambd):
    return op.where(op.less_equal(op.abs(x), lambd), 0.0, dy)


@aten("tanh_backward", op.tanh_dx, op.conj)
def tanh_backward(dy, y):
    return op.tanh_dx(None, op.conj(y) if y.dtype in COMPLEX else y, dy)


@aten("log_sigmoid_backward", op.multiply, op.sigmoid, op.negative)
def log_sigmoid_backward(dy, x, buffer):
    return op.multiply(dy, op.sigmoid(op.negative(x)))


@aten("glu_backward", op.split, op.sigmoid, op.sigmoid_dx, op.multiply, op.concat)
def glu_backward(dy, x, *, dim):
    a, b = op.split(x, 2, dim)
    return op.concat(
        (op.multiply(dy, op.sigmoid(b)), op.sigmoid_dx(b, None, op.multiply(dy, a))), dim
    )


@aten("logit_backward", op.where, op.divide, op.multiply, op.subtract, op.less, op.greater)
def logit_backward(dy, x, *, eps):
    """dy / (x * (1 - x)), outside of the clamped range 0, without one NaN outside of [0, 1]."""
    low, high = (0.0, 1.0) if eps is None else (eps, 1.0 - eps)
    inside = op.divide(dy, op.multiply(x, op.subtract(1.0, x)))
    outside = op.logical_or(op.less(x, low), op.greater(x, high))
    return op.where(outside, float("nan") if eps is None else 0.0, inside)
