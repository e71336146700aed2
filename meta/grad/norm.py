"""Gradients of normalisations.

Second derivatives: ``y = xhat * weight + bias`` with ``xhat = (x - mean) * inv``, ``inv =
(mean((x - mean)²) + eps)^(-1/2)``; a normalisation that is not centred has mean 0. With ``g = dy *
weight`` and the projection ``P(v) = v - mean(v) - xhat * mean(v * xhat)``, which is symmetric, the
gradients are ``dx = inv * P(g)``, ``dweight = sum(dy * xhat)``, ``dbias = sum(dy)``.
"""

from meta import op
from meta.grad.core import gradient, gradients, in_dtype, not_differentiable
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.norm import statistics_dtype


def _parameter_shape(x, axis):
    """Return the shape of a parameter that goes along ``axis`` of x."""
    axis = normalize_axis(axis, x.ndim)
    return tuple(-1 if i == axis else 1 for i in range(x.ndim))


@gradient(op.batch_norm_train)
def batch_norm_train(
    x, running_mean: TensorType, running_var: TensorType, w, b: TensorType, dy, eps, axis
):
    """y does not depend on the running statistics, which the call has overwritten."""
    dx, dw, db = op.batch_norm_train_dxwb(dy, x, w, None, eps, axis)
    dm, dv = (in_dtype(op.zeros_like(db), s.dtype) for s in (running_mean, running_var))
    dw = None if w is None else dw
    db = None if b is None else in_dtype(db, b.dtype)
    return dx, dm, dv, dw, db


not_differentiable(
    op.multi_tensor_fold_batch_norm,
    why="it prepares weights for inference; batch_norm_infer has a gradient",
    missing=True,
)


@gradient(op.batch_norm_infer)
def batch_norm_infer(x, running_mean, running_var, w, b: TensorType, dy, eps, axis):
    """For y = (x - m) inv w + b with inv = (v + eps)^(-1/2), per channel.

    dx = dy inv w; dm = -sum(dy) inv w; dv = -sum(dy (x - m)) inv³ w / 2; dw = sum(dy (x - m)) inv;
    db = sum(dy).
    """
    wide = statistics_dtype(x.dtype)
    dy, inv = in_dtype(dy, wide), op.rsqrt(in_dtype(running_var, wide) + eps)
    lifted = _parameter_shape(x, axis)
    factor = inv if w is None else inv * in_dtype(w, wide)
    centred = in_dtype(x, wide) - op.reshape(in_dtype(running_mean, wide), lifted)
    others = normalize_axes(axis, x.ndim, exclude=True)
    flat = op.sum(dy, others)
    slope = op.sum(dy * centred, others) * inv
    dvar = slope * inv * factor * -0.5
    return (
        in_dtype(dy * op.reshape(factor, lifted), x.dtype),
        in_dtype(-(flat * factor), running_mean.dtype),
        in_dtype(dvar, running_var.dtype),
        None if w is None else in_dtype(slope, w.dtype),
        None if b is None else in_dtype(flat, b.dtype),
    )


def _by_slot(found, scale, bias, dy, axis):
    """Arrange the results of a normalisation's gradient by slot: x, scale, bias.

    ``found``: dx alone without scale, else with dscale, and mostly dbias.
    """
    dx, dscale, dbias, *_ = (found, None, None) if scale is None else (*found, None)
    if bias is None:
        return dx, dscale, None
    if dbias is None:
        others = normalize_axes(axis, dy.ndim, exclude=True)
        dbias = op.sum(in_dtype(dy, statistics_dtype(dy.dtype)), others)
    return dx, dscale, in_dtype(dbias, bias.dtype)


@gradient(op.layer_norm_train)
def layer_norm_train(x, scale, bias: TensorType, y, dy, axis, eps):
    """Of the results only y is differentiated; mean and invvar serve this rule."""
    _, mean, invvar = y
    gradients = op.layer_norm_train_dx(x, scale, dy[0], mean, invvar, axis, eps)
    return _by_slot(gradients, scale, bias, dy[0], axis)


def _double_backward(x, weight, dy, u, u_weight, u_bias, axes, eps, centred=True):
    """Return the gradients of ``sum(u dx) + sum(u_weight dweight) + sum(u_bias dbias)``.

    x, dy, u: of one shape, wide enough to compute in. weight, u_weight, u_bias: None, or arrays
    that broadcast to it. axes: those that ``mean`` is taken over.

    Results: by x, by weight before it is summed over what weight is broadcast along, and by dy;
    all of x's shape. From ``d inv = -inv² mean(xhat dx)`` and ``d xhat = inv P(dx)``: by dy it is
    ``inv P(u) weight + u_weight xhat + u_bias``, by weight ``dy inv P(u)``, and by x
    ``inv P(h) - inv² xhat mean(g P(u))``, ``h = u_weight dy - inv (u mean(g xhat) + g
    mean(u xhat))``.
    """

    def mean(v):
        return op.mean(v, axes, True)

    def centre(v):
        return v - mean(v) if centred else v

    def project(v):
        return centre(v) - xhat * mean(v * xhat)

    offset = centre(x)
    inv = op.rsqrt(mean(offset * offset) + eps)
    xhat = offset * inv
    g = dy if weight is None else dy * weight
    projected = project(u)
    by_g = inv * projected
    by_dy = by_g if weight is None else by_g * weight
    bend = -(inv * (u * mean(g * xhat) + g * mean(u * xhat)))
    if u_weight is not None:
        bend = bend + u_weight * dy
        by_dy = by_dy + u_weight * xhat
    if u_bias is not None:
        by_dy = by_dy + u_bias
    by_x = inv * project(bend) - inv * inv * xhat * mean(g * projected)
    return by_x, dy * by_g, by_dy


def _double_backward_along_axis(x, weight, dy, cotangents, axes, lifted, eps, centred=True):
    """`_double_backward` of data [.., extent, ..]; ``lifted`` is a parameter's shape beside x."""
    wide = statistics_dtype(x.dtype)
    u, u_weight, u_bias = (None if t is None else in_dtype(t, wide) for t in cotangents)
    w, u_weight, u_bias = (
        None if t is None else op.reshape(in_dtype(t, wide), lifted)
        for t in (weight, u_weight, u_bias)
    )
    by_x, by_weight, by_dy = _double_backward(
        in_dtype(x, wide), w, in_dtype(dy, wide), u, u_weight, u_bias, axes, eps, centred
    )
    if weight is not None:
        by_weight = in_dtype(
            op.sum(by_weight, normalize_axes(lifted.index(-1), len(lifted), exclude=True)),
            weight.dtype,
        )
    return in_dtype(by_x, x.dtype), None if weight is None else by_weight, in_dtype(by_dy, dy.dtype)


@gradient(op.batch_norm_train_dxwb)
def batch_norm_train_dxwb(dy, x, w, b, dy_, eps, axis):
    lifted = _parameter_shape(x, axis)
    axes = tuple(i for i, extent in enumerate(lifted) if extent == 1)
    by_x, by_w, by_dy = _double_backward_along_axis(x, w, dy, dy_, axes, lifted, eps)
    return by_dy, by_x, by_w, None if b is None else op.zeros_like(b)


def _layer_norm_double_backward(x, scale, dy, cotangents, axis, eps, centred=True):
    axis, lifted = normalize_axis(axis, x.ndim), _parameter_shape(x, axis)
    u, u_scale, u_bias, *_ = (cotangents, None, None) if scale is None else (*cotangents, None)
    return _double_backward_along_axis(
        x, scale, dy, (u, u_scale, u_bias), (axis,), lifted, eps, centred
    )


def _along_axis(norm, norm_dx, centred):
    """Register the gradients of a normalisation along one axis, and of its gradient."""

    @gradient(norm)
    def of_norm(x, scale, bias: TensorType, dy, axis, eps):
        return _by_slot(norm_dx(x, scale, dy, axis, eps), scale, bias, dy, axis)

    @gradient(norm_dx)
    def of_dx(x, scale, dy, dy_, axis, eps):
        return _layer_norm_double_backward(x, scale, dy, dy_, axis, eps, centred)


_along_axis(op.layer_norm, op.layer_norm_dx, True)
_along_axis(op.rms_norm, op.rms_norm_dx, False)


@gradient(op.layer_norm_train_dx)
def layer_norm_train_dx(x, scale, dy, mean, invvar, dy_, axis, eps):
    """By x with all that passes through mean and invvar, which are functions of x."""
    gradients = _layer_norm_double_backward(x, scale, dy, dy_, axis, eps)
    return *gradients, op.zeros_like(mean), op.zeros_like(invvar)


@gradient(op.group_norm)
def group_norm(x, num_groups, scale, bias: TensorType, dy, eps):
    return _by_slot(op.group_norm_dx(x, num_groups, scale, dy, eps), scale, bias, dy, 1)


@gradient(op.instance_norm)
def instance_norm(x, scale, bias: TensorType, dy, eps):
    # Without channels there is nothing to divide into groups: one group of none.
    return group_norm(x, max(x.shape[1], 1), scale, bias, dy, eps)


@gradient(op.group_norm_dx)
def group_norm_dx(x, num_groups, scale, dy, dy_, eps):
    wide, shape, extents = statistics_dtype(x.dtype), tuple(x.shape), tuple(x.shape[2:])
    size = shape[1] // num_groups
    grouped = (shape[0], num_groups, size, *extents)
    lifted = (1, num_groups, size) + (1,) * len(extents)
    u, u_scale, u_bias = (dy_, None, None) if scale is None else dy_
    data, slope, u = (op.reshape(in_dtype(t, wide), grouped) for t in (x, dy, u))
    w, u_scale, u_bias = (
        None if t is None else op.reshape(in_dtype(t, wide), lifted)
        for t in (scale, u_scale, u_bias)
    )
    axes = tuple(range(2, len(grouped)))
    by_x, by_scale, by_dy = _double_backward(data, w, slope, u, u_scale, u_bias, axes, eps)
    if scale is not None:
        by_scale = op.reshape(
            op.sum(by_scale, normalize_axes((1, 2), by_scale.ndim, exclude=True)), scale.shape
        )
        by_scale = in_dtype(by_scale, scale.dtype)
    by_x, by_dy = (in_dtype(op.reshape(t, shape), x.dtype) for t in (by_x, by_dy))
    return by_x, None if scale is None else by_scale, by_dy


gradients({op.lrn: lambda x, dy, *options: op.lrn_dx(x, dy, *options)})


def _neighbours(x, before, after, axis):
    """Return the sum over ``before`` elements before each one, itself, and ``after`` behind it."""
    at, shape = normalize_axis(axis, x.ndim), tuple(x.shape)
    sides = [0] * (2 * x.ndim)
    sides[2 * at : 2 * at + 2] = before, after
    padded, total = op.pad.plain(x, tuple(sides)), x
    for shift in range(before + after + 1):
        if shift != before:
            begin = (0,) * at + (shift,)
            end = (*shape[:at], shift + shape[at])
            total = total + op.strided_slice(padded, begin, end)
    return total


@gradient(op.lrn_dx)
def lrn_dx(x, dy, dy_, size, axis, bias, alpha, beta):
    """For dx = dy D - 2 c beta x W'(dy x E), u = dy_: by x and by dy of sum(u dx).

    W sums over the neighbourhood, W' over the places whose neighbourhood it is; c = alpha / size,
    d = bias + c W(x²), D = d^-beta, E = D / d, F = E / d.
    """
    x_, dy, u = (in_dtype(t, statistics_dtype(x.dtype)) for t in (x, dy, dy_))
    before, after, c = size // 2, (size - 1) // 2, alpha / size
    base = _neighbours(x_ * x_, before, after, axis) * c + bias
    root = base ** (-beta)
    steep = root / base
    around = _neighbours(u * x_, before, after, axis)
    slope = steep * (2 * c * beta)
    by_dy = u * root - slope * around * x_
    # Through d, of which D and E are functions.
    by_base = around * dy * x_ * steep / base * (2 * c * beta * (beta + 1))
    by_base = by_base - (steep * u * dy * beta)
    by_x = x_ * _neighbours(by_base, after, before, axis) * (2 * c)
    spread = _neighbours(dy * x_ * slope, after, before, axis)
    by_x = by_x - slope * around * dy - u * spread
    return in_dtype(by_x, x.dtype), in_dtype(by_dy, x.dtype)


@gradient(op.l2_normalize)
def l2_normalize(x, dy, eps, axis):
    """For n = 1 / sqrt(max(s, eps)), s = sum(x²): dx = n dy - [s > eps] n³ x sum(x dy)."""
    dtype = x.dtype
    x, dy = (in_dtype(t, statistics_dtype(dtype)) for t in (x, dy))
    axes = normalize_axes(axis, x.ndim)
    square = op.sum(x * x, axes, 1)
    inverse = op.rsqrt(op.maximum(square, eps))
    free = in_dtype(square > eps, x.dtype)
    along = op.sum(x * dy, axes, 1) * (free * (inverse * inverse))
    return in_dtype(inverse * (dy - x * along), dtype)


@gradient(op.l2norm)
def l2norm(x, y, dy):
    """dx = dy x / y, 0 where y is 0."""
    wide = statistics_dtype(x.dtype)
    y, dy = in_dtype(y, wide), in_dtype(dy, wide)
    slope = op.where(op.equal(y, 0.0), op.zeros_like(dy), dy / y)
    return in_dtype(in_dtype(x, wide) * slope, x.dtype)
