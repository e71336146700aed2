"""Pooling on ATen.

ATen pads both sides alike and by half a window at most, and averages without dilation. What is
beyond that is padded beforehand; means then come from a convolution with ones. It has no gradients
over one axis: there, an axis of extent 1 is put before it, which is what ATen does itself."""

import functools

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.op.core.check import pair
from meta.op.core.window import DATA, Taps, layout_permutation, window

aten = torch.ops.aten


def _by_axes(module, name):
    """Return ATen's functions by the number of spatial axes."""
    return {count: getattr(module, name.format(count)) for count in (2, 3)}


MAX = _by_axes(F, "max_pool{}d")
MAX_DX = _by_axes(aten, "max_pool{}d_with_indices_backward")
AVG = _by_axes(F, "avg_pool{}d")
AVG_DX = _by_axes(aten, "avg_pool{}d_backward")
ADAPTIVE_MAX = _by_axes(F, "adaptive_max_pool{}d")
ADAPTIVE_MAX_DX = _by_axes(aten, "adaptive_max_pool{}d_backward")
ADAPTIVE_AVG = _by_axes(F, "adaptive_avg_pool{}d")
ADAPTIVE_AVG_DX = _by_axes(aten, "_adaptive_avg_pool{}d_backward")


def _two_axes_at_least(function):
    """Let a function of NCHW tensors and of their axes (or regions) pool NCW tensors too."""

    @functools.wraps(function)
    def run(tensors, axes, a):
        if len(axes) > 1:
            return function(tensors, axes, a)
        one = 1 if isinstance(axes[0], int) else Taps(1, 1, 1, 1, 0, 0, axes[0].ceil)
        return function([t.unsqueeze(2) for t in tensors], (one, *axes), a).squeeze(2)

    return run


def _plain(axes):
    """Whether ATen's own padding does."""
    return all(a.before == a.after and 2 * a.before <= a.kernel for a in axes)


def _of_axes(axes, name):
    return tuple(getattr(axis, name) for axis in axes)


def _padded(x, axes, value):
    """Return x padded, or cut, to what the windows read: nothing is left over."""
    sides = []
    for axis in reversed(axes):
        needed = (axis.out - 1) * axis.stride + axis.extent
        sides += [axis.before, needed - axis.size - axis.before]
    return F.pad(x, sides, value=value)


def _cut(padded, axes):
    """Undo `_padded`: a part of x that no window reads gets zeros."""
    sides = []
    for axis, extent in zip(reversed(axes), reversed(padded.shape), strict=False):
        sides += [-axis.before, axis.size + axis.before - extent]
    return F.pad(padded, sides).contiguous()


def _arguments(axes):
    return _of_axes(axes, "kernel"), _of_axes(axes, "stride")


def _max_case(x, axes):
    """Return the tensor to pool, padded if need be, and ATen's arguments."""
    plain = _plain(axes)
    padding, ceil = (_of_axes(axes, "before"), axes[0].ceil) if plain else ((0,) * len(axes), False)
    x = x if plain else _padded(x, axes, float("-inf"))
    return x, (*_arguments(axes), padding, _of_axes(axes, "dilation"), ceil)


def _counts(x, axes, include_pad):
    """Return how many elements each window averages, as [1, 1, OH, OW] or [1, 1, OD, OH, OW]."""
    counts = []
    for axis in axes:
        low, high = (-axis.before, axis.size + axis.after) if include_pad else (0, axis.size)
        first = torch.arange(axis.out, device=x.device).unsqueeze(1) * axis.stride - axis.before
        at = first + torch.arange(axis.kernel, device=x.device) * axis.dilation
        counts.append(((at >= low) & (at < high)).sum(1))
    product = functools.reduce(torch.mul, torch.meshgrid(*counts, indexing="ij"))
    return product[None, None].to(x.dtype)


def _window_sums(x, axes, spread=False):
    """Return the sums of the windows of padded x, or the gradient of this: x spread over them."""
    zeros = (0,) * len(axes)
    stride, dilation = _of_axes(axes, "stride"), _of_axes(axes, "dilation")
    ones = x.new_ones((1, 1, *_of_axes(axes, "kernel")))
    planes = x.reshape(-1, 1, *x.shape[2:])  # one channel per image: one kernel serves all
    y = torch.convolution(planes, ones, None, stride, zeros, dilation, spread, zeros, 1)
    return y.reshape(*x.shape[:2], *y.shape[2:])


def _aten_average(axes, include_pad):
    """Return an average's arguments if ATen has the case, else None."""
    # Over three axes it refuses an input that is smaller than a window, whatever the padding.
    covers = len(axes) < 3 or all(axis.size >= axis.kernel for axis in axes)
    if covers and _plain(axes) and set(_of_axes(axes, "dilation")) == {1}:
        return *_arguments(axes), _of_axes(axes, "before"), axes[0].ceil, include_pad
    return None


@_two_axes_at_least
def _maximum(tensors, axes, a):
    x, arguments = _max_case(tensors[0], axes)
    return MAX[len(axes)](x, *arguments)


@_two_axes_at_least
def _maximum_dx(tensors, axes, a):
    (x, dy), count = tensors, len(axes)
    pooled, arguments = _max_case(x, axes)
    _, indices = MAX[count](pooled, *arguments, return_indices=True)
    dx = MAX_DX[count](dy, pooled, *arguments, indices)
    return dx if pooled is x else _cut(dx, axes)


def _computable(x, axes):
    """Return x in a dtype that ATen averages: on the CPU over three axes, no half precision."""
    wide = len(axes) < 3 or x.device.type != "cpu" or x.dtype in (torch.float32, torch.float64)
    return x if wide else x.float()


@_two_axes_at_least
def _average(tensors, axes, a):
    (x,), count = tensors, len(axes)
    arguments = _aten_average(axes, a.include_pad)
    if arguments is not None:
        return AVG[count](_computable(x, axes), *arguments).to(x.dtype)
    return _window_sums(_padded(x, axes, 0.0), axes) / _counts(x, axes, a.include_pad)


@_two_axes_at_least
def _average_dx(tensors, axes, a):
    # Of channels that come last ATen's gradient on CUDA is wrong beside padding.
    x, dy, count = tensors[0].new_empty(tensors[0].shape), tensors[1].contiguous(), len(axes)
    arguments = _aten_average(axes, a.include_pad)
    if arguments is not None:
        wide = (_computable(t, axes) for t in (dy, x))
        return AVG_DX[count](*wide, *arguments, None).to(x.dtype)
    return _cut(_window_sums(dy / _counts(dy, axes, a.include_pad), axes, spread=True), axes)


@_two_axes_at_least
def _adaptive_maximum(tensors, shape, a):
    return ADAPTIVE_MAX[len(shape)](*tensors, shape)


@_two_axes_at_least
def _adaptive_maximum_dx(tensors, shape, a):
    x, dy = tensors
    _, indices = ADAPTIVE_MAX[len(shape)](x, shape, return_indices=True)
    return ADAPTIVE_MAX_DX[len(shape)](dy, x, indices)


@_two_axes_at_least
def _adaptive_average(tensors, shape, a):
    return ADAPTIVE_AVG[len(shape)](*tensors, shape)


@_two_axes_at_least
def _adaptive_average_dx(tensors, shape, a):
    x, dy = tensors
    return ADAPTIVE_AVG_DX[len(shape)](dy, x)


def _windows(sizes, a):
    return window(sizes, a.kernel, a.stride, a.padding, a.dilation, a.ceil_mode)


def _regions(sizes, a):
    return pair(a.shape, "shape", len(sizes))


def _define(base, function, axes_of, plevel=None):
    """Define a kernel by ``function(tensors, axes, a)``: tensors in the order of `DATA`, what
    ``axes_of`` says of their spatial axes, and the attributes.
    """

    def pooled(call, *tensors):
        a, order = call.args, DATA[tensors[0].ndim - 2]
        if any(t.numel() == 0 for t in tensors) or 0 in call.out.static_shape:
            return tensors[0].new_zeros(call.out.static_shape)  # which ATen refuses in part
        if a.layout in (None, order):
            return function(tensors, axes_of(tensors[0].shape[2:], a), a).contiguous()
        to, back = (
            layout_permutation(a.layout, order, "layout"),
            layout_permutation(order, a.layout, "layout"),
        )
        moved = [t.permute(to) for t in tensors]
        return function(moved, axes_of(moved[0].shape[2:], a), a).permute(back).contiguous()

    def forward(x, call):
        return pooled(call, x)

    def backward(x, dy, call):
        return pooled(call, x, dy)

    dialect.kernel(base, plevel=plevel)(backward if "dy" in base.schema.names else forward)


for _n in (1, 2, 3):
    _define(getattr(op, f"max_pool{_n}d"), _maximum, _windows)
    _define(getattr(op, f"max_pool{_n}d_dx"), _maximum_dx, _windows)
    _define(getattr(op, f"avg_pool{_n}d"), _average, _windows)
    _define(getattr(op, f"avg_pool{_n}d_dx"), _average_dx, _windows)
    _define(getattr(op, f"adaptive_max_pool{_n}d"), _adaptive_maximum, _regions)
    _define(getattr(op, f"adaptive_max_pool{_n}d_dx"), _adaptive_maximum_dx, _regions, LIBRARY)
    _define(getattr(op, f"adaptive_avg_pool{_n}d"), _adaptive_average, _regions)
    # On CUDA ATen adds up with atomics: 750 us for [64, 2048, 7, 7] to 1 in half precision on an
    # H200, where generated code writes 13 MB.
    _define(getattr(op, f"adaptive_avg_pool{_n}d_dx"), _adaptive_average_dx, _regions)
