"""Converters of layers: softmax, activations with parameters, biases, normalisations, dropout,
losses, and pooling by sliding windows, over whole axes and to adaptive regions, with two gradients.
"""

from __future__ import annotations

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import SLICE_END, broadcast_along
from meta.frontend.core.operators import dropout, nll_loss
from meta.frontend.relay.layout import change_layout, extents, per_axis, to_plain, unblocked
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis
from meta.op.core.op import by_schema
from meta.op.core.window import DATA

relay.same("nn.softmax", op.softmax)
relay.same("nn.log_softmax", op.log_softmax)
# The same function, of which TVM computes an approximation.
relay.same("nn.fast_softmax", op.softmax)
relay.same("nn.bias_add", op.bias_add)
relay.same("nn.batch_flatten", op.batch_flatten)
relay.same("nn.leaky_relu", op.leaky_relu, alpha="negative_slope")
relay.same("nn.l2_normalize", op.l2_normalize)
relay.same("nn.lrn", op.lrn)


@relay("nn.prelu", op.where)
def prelu(data, alpha, *, axis):
    return op.where(data > 0, data, data * broadcast_along(alpha, data.ndim, axis))


@relay("nn.fifo_buffer", op.concat, op.strided_slice)
def fifo_buffer(data, buffer, *, axis):
    """The buffer without its oldest elements along an axis, and the data behind."""
    at = normalize_axis(axis, buffer.ndim)
    extent, new = buffer.shape[at], data.shape[at]
    if new > extent:
        raise Unconvertible(f"{new} elements do not fit into a buffer of {extent}")
    begin, end = (0,) * at + (new,), (SLICE_END,) * (at + 1)
    return op.concat((op.strided_slice(buffer, begin, end), data), at)


def _exchanged(x, axis):
    """Return x with one axis as axis 1 and axis 1 in its place."""
    at = normalize_axis(axis, x.ndim)
    return x if at == 1 else op.swapaxes(x, 1, at)


@relay("nn.batch_norm", op.batch_norm_infer, op.batch_norm_train)
def batch_norm(data, gamma, beta, moving_mean, moving_var, *, axis, epsilon, scale, center, call):
    """In training the batch's own statistics are used, and the moving ones follow them by a tenth.

    Relay's operator only applies statistics and has no momentum; a tenth is what PyTorch, ONNX and
    `meta`'s own layer have as default.
    """
    w, b = (gamma if scale else None), (beta if center else None)
    arguments = (data, moving_mean, moving_var, w, b)
    if call.training:
        return op.batch_norm_train(*arguments, eps=epsilon, axis=axis)
    y = op.batch_norm_infer(*arguments, eps=epsilon, axis=axis)
    return y, moving_mean, moving_var


@relay("nn.layer_norm", op.layer_norm)
def layer_norm(data, gamma, beta, *, axis, epsilon, scale, center):
    w, b = (gamma if scale else None), (beta if center else None)
    return op.layer_norm.plain(data, w, b, axis, epsilon)


def _over_channels(base, data, gamma, beta, *groups, axis, epsilon, scale, center):
    """Normalise with the channels as axis 1."""
    w, b = (gamma if scale else None), (beta if center else None)
    return _exchanged(base(_exchanged(data, axis), *groups, w, b, epsilon), axis)


@relay("nn.instance_norm", op.instance_norm)
def instance_norm(data, gamma, beta, **options):
    return _over_channels(op.instance_norm.plain, data, gamma, beta, **options)


@relay("nn.group_norm", op.group_norm)
def group_norm(data, gamma, beta, *, num_groups, **options):
    return _over_channels(op.group_norm.plain, data, gamma, beta, num_groups, **options)


relay("nn.dropout", op.dropout_train)(dropout)


def _mean_over_rows(x):
    return -op.mean(op.sum(x, tuple(range(1, x.ndim))))


@relay("nn.cross_entropy", op.log, op.sum, op.mean)
def cross_entropy(x, y):
    """-sum(y * log(x)) per row, of probabilities x and y; the mean over the rows."""
    return _mean_over_rows(op.log(x) * y)


@relay("nn.cross_entropy_with_logits", op.sum, op.mean)
def cross_entropy_with_logits(x, y):
    """-sum(y * x) per row; the mean over the rows. TVM takes logarithms of probabilities as x, in
    spite of the name: it normalises nothing.
    """
    return _mean_over_rows(x * y)


relay("nn.nll_loss", op.take_along_axis, op.take)(nll_loss)


def _window(*, pool_size, strides, padding, dilation, ceil_mode, count_include_pad=True):
    """Return the attributes of a window as base operators take them, by position."""
    numbers = map(per_axis, (pool_size, strides, padding, dilation))
    return (*numbers, bool(ceil_mode), bool(count_include_pad))


def _sliding(x, order, **window):
    return (*_window(**window), order)


def _adaptive(x, order, *, output_size):
    """Without a size the extents of the input stay."""
    letters = "".join(a for a in DATA[3] if a in order and a not in "NC")
    return per_axis(output_size or extents(x, order, letters)), order


def _global(x, order):
    """Both spatial axes stay, with extent 1."""
    return (order.index("H"), order.index("W")), True


def _pooling(name, base, arguments, mean):
    """Register pooling by ``base(x, *arguments(x, layout, attributes))`` in a plain layout."""

    @relay(name, base)
    def pool(data, *, layout, out_layout, **attributes):
        """Integers are pooled as floats that hold them; their mean drops the fraction, as in C."""
        x, order = to_plain(data, layout), unblocked(layout)
        given = arguments(x, order, **attributes)
        if is_float(x.dtype):
            y = by_schema(base)(x, *given)
        else:
            y = by_schema(base)(op.astype(x, "float64"), *given)
            # A quotient that is a whole number must not fall below it by a rounding error.
            y = op.trunc(y + op.sign(y) * 1e-6) if mean else y
            y = op.astype(y, x.dtype)
        return change_layout(y, order, out_layout or layout)


for _kind in ("max", "avg"):
    for _rank in ("1d", "2d", "3d"):
        _base, _regions = f"{_kind}_pool{_rank}", f"adaptive_{_kind}_pool{_rank}"
        _pooling(f"nn.{_base}", getattr(op, _base), _sliding, _kind == "avg")
        _pooling(f"nn.{_regions}", getattr(op, _regions), _adaptive, _kind == "avg")
# TVM 0.6 had these two in another name space.
_pooling("contrib.adaptive_max_pool2d", op.adaptive_max_pool2d, _adaptive, mean=False)
_pooling("contrib.adaptive_avg_pool2d", op.adaptive_avg_pool2d, _adaptive, mean=True)
_pooling("nn.global_max_pool2d", op.max, _global, mean=False)
_pooling("nn.global_avg_pool2d", op.mean, _global, mean=True)


def _pooling_gradient(name, gradient, forward):
    @relay(name, gradient)
    def pool(out_grad, data, *, layout, out_layout, **window):
        """Of the result y only the type counts where there is no ``forward`` to compute it."""
        dy = change_layout(out_grad, out_layout or layout, DATA[2])
        x, numbers = change_layout(data, layout, DATA[2]), _window(**window)
        y = dy if forward is None else forward.plain(x, *numbers)
        return change_layout(gradient(x, y, dy, *numbers), DATA[2], layout)


_pooling_gradient("nn.max_pool2d_grad", op.max_pool2d_dx, op.max_pool2d)
_pooling_gradient("nn.avg_pool2d_grad", op.avg_pool2d_dx, None)
