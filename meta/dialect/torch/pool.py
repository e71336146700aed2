"""Pooling on ATen.

ATen pads both sides alike and by half a window at most, and averages without dilation. What is
beyond that is padded beforehand; means then come from a convolution with ones. It has no gradients
over one axis: there, an axis of extent 1 is put before it, which is what ATen does itself."""

import functools
import math

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.op.core.check import pair
from meta.op.core.window import DATA, Taps, permutation, window

aten = torch.ops.aten


# ATen's functions by the number of spatial axes.
MAX = {2: F.max_pool2d, 3: F.max_pool3d}


MAX_DX = {2: aten.max_pool2d_with_indices_backward, 3: aten.max_pool3d_with_indices_backward}


AVG = {2: F.avg_pool2d, 3: F.avg_pool3d}


AVG_DX = {2: aten.avg_pool2d_backward, 3: aten.avg_pool3d_backward}


ADAPTIVE_MAX = {2: F.adaptive_max_pool2d, 3: F.adaptive_max_pool3d}


ADAPTIVE_MAX_DX = {2: aten.adaptive_max_pool2d_backward, 3: aten.adaptive_max_pool3d_backward}


ADAPTIVE_AVG = {2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


ADAPTIVE_AVG_DX = {2: aten._adaptive_avg_pool2d_backward, 3: aten._adaptive_avg_pool3d_backward}


def _two_axes_at_least(function):
    """Let a function of NCHW tensors and of their axes (or regions) pool NCW tensors too."""

    @functools.wraps(function)
    def run(tensors, axes, *options):
        if len(axes) > 1:
            return function(tensors, axes, *options)
        one = 1 if isinstance(axes[0], int) else Taps(1, 1, 1, 1, 0, 0, axes[0].ceil)
        return function([t.unsqueeze(2) for t in tensors], (one, *axes), *options).squeeze(2)

    return run


def _plain(axes):
    """Whether ATen's own padding does."""
    return all(a.before == a.after and 2 * a.before <= a.kernel for a in axes)


def _each(axes, name):
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
    return _each(axes, "kernel"), _each(axes, "stride")


def _in_order(function, layout, *tensors):
    """Apply a function of tensors in the order of `DATA` to tensors of any layout."""
    order = DATA[tensors[0].ndim - 2]
    if layout in (None, order):
        return function(*tensors).contiguous()
    to, back = permutation(layout, order, "layout"), permutation(order, layout, "layout")
    return function(*(t.permute(to) for t in tensors)).permute(back).contiguous()


def _max_case(x, axes):
    """Return the tensor to pool, padded if need be, and ATen's arguments."""
    plain = _plain(axes)
    padding, ceil = (_each(axes, "before"), axes[0].ceil) if plain else ((0,) * len(axes), False)
    x = x if plain else _padded(x, axes, float("-inf"))
    return x, (*_arguments(axes), padding, _each(axes, "dilation"), ceil)


def _counts(x, axes, include_pad):
    """Return how many elements each window averages, as [1, 1, OH, OW] or [1, 1, OD, OH, OW]."""
    counts = []
    for axis in axes:
        low, high = (-axis.before, axis.size + axis.after) if include_pad else (0, axis.size)
        first = torch.arange(axis.out, device=x.device).unsqueeze(1) * axis.stride - axis.before
        at = first + torch.arange(axis.kernel, device=x.device) * axis.dilation
        counts.append(((at >= low) & (at < high)).sum(1))
    return math.prod(torch.meshgrid(*counts, indexing="ij"))[None, None].to(x.dtype)


def _ones(x, axes):
    return x.new_ones((1, 1, *_each(axes, "kernel")))


def _planes(x):
    """One channel per image, so that a convolution with one kernel serves all."""
    return x.reshape(-1, 1, *x.shape[2:])


def _aten_average(axes, include_pad):
    """Return an average's arguments if ATen has the case, else None."""
    if _plain(axes) and set(_each(axes, "dilation")) == {1}:
        return *_arguments(axes), _each(axes, "before"), axes[0].ceil, include_pad
    return None


@_two_axes_at_least
def _maximum(tensors, axes):
    x, arguments = _max_case(*tensors, axes)
    return MAX[len(axes)](x, *arguments)


@_two_axes_at_least
def _maximum_dx(tensors, axes):
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
def _average(tensors, axes, include_pad):
    (x,), count = tensors, len(axes)
    arguments = _aten_average(axes, include_pad)
    if arguments is not None:
        return AVG[count](_computable(x, axes), *arguments).to(x.dtype)
    planes, zeros = _planes(_padded(x, axes, 0.0)), (0,) * count
    stride, dilation = _each(axes, "stride"), _each(axes, "dilation")
    sums = torch.convolution(planes, _ones(x, axes), None, stride, zeros, dilation, False, zeros, 1)
    return sums.reshape(*x.shape[:2], *sums.shape[2:]) / _counts(x, axes, include_pad)


@_two_axes_at_least
def _average_dx(tensors, axes, include_pad):
    (x, dy), count = tensors, len(axes)
    arguments = _aten_average(axes, include_pad)
    if arguments is not None:
        wide = (_computable(t, axes) for t in (dy, x))
        return AVG_DX[count](*wide, *arguments, None).to(x.dtype)
    planes, zeros = _planes(dy / _counts(dy, axes, include_pad)), (0,) * count
    stride, dilation = _each(axes, "stride"), _each(axes, "dilation")
    spread = torch.convolution(
        planes, _ones(x, axes), None, stride, zeros, dilation, True, zeros, 1
    )
    return _cut(spread.reshape(*x.shape[:2], *spread.shape[2:]), axes)


@_two_axes_at_least
def _adaptive_maximum(tensors, shape):
    return ADAPTIVE_MAX[len(shape)](*tensors, shape)


@_two_axes_at_least
def _adaptive_maximum_dx(tensors, shape):
    x, dy = tensors
    _, indices = ADAPTIVE_MAX[len(shape)](x, shape, return_indices=True)
    return ADAPTIVE_MAX_DX[len(shape)](dy, x, indices)


@_two_axes_at_least
def _adaptive_average(tensors, shape):
    return ADAPTIVE_AVG[len(shape)](*tensors, shape)


@_two_axes_at_least
def _adaptive_average_dx(tensors, shape):
    x, dy = tensors
    return ADAPTIVE_AVG_DX[len(shape)](dy, x)


def sliding(max_pool, max_dx, avg_pool, avg_dx):
    """Register the maximum and the mean over windows, and their gradients."""

    @dialect.kernel(max_pool)
    def maximum(x, kernel, stride, padding, dilation, ceil_mode, layout):
        def run(x):
            axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
            return _maximum([x], axes)

        return _in_order(run, layout, x)

    @dialect.kernel(avg_pool)
    def mean(x, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
        def run(x):
            axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
            return _average([x], axes, include_pad)

        return _in_order(run, layout, x)

    @dialect.kernel(max_dx)
    def maximum_dx(x, dy, kernel, stride, padding, dilation, ceil_mode, layout):
        def run(x, dy):
            axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
            return _maximum_dx([x, dy], axes)

        return _in_order(run, layout, x, dy)

    @dialect.kernel(avg_dx)
    def mean_dx(x, dy, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
        def run(x, dy):
            axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
            # Of channels that come last ATen's gradient on CUDA is wrong beside padding.
            return _average_dx([x.new_empty(x.shape), dy.contiguous()], axes, include_pad)

        return _in_order(run, layout, x, dy)


def adaptive(max_pool, max_dx, avg_pool, avg_dx):
    """As `sliding`, over regions that cover the input evenly."""

    @dialect.kernel(max_pool)
    def maximum(x, shape, layout):
        out = pair(shape, "shape", x.ndim - 2)
        return _in_order(lambda x: _adaptive_maximum([x], out), layout, x)

    @dialect.kernel(avg_pool)
    def mean(x, shape, layout):
        out = pair(shape, "shape", x.ndim - 2)
        return _in_order(lambda x: _adaptive_average([x], out), layout, x)

    @dialect.kernel(max_dx, plevel=LIBRARY)
    def maximum_dx(x, dy, shape, layout):
        out = pair(shape, "shape", x.ndim - 2)
        return _in_order(lambda x, dy: _adaptive_maximum_dx([x, dy], out), layout, x, dy)

    # On CUDA ATen adds up with atomics: 750 us for [64, 2048, 7, 7] to 1 in half precision on an
    # H200, where generated code writes 13 MB.
    @dialect.kernel(avg_dx)
    def mean_dx(x, dy, layout):
        run = _adaptive_average_dx
        return _in_order(lambda x, dy: run([x, dy], dy.shape[2:]), layout, x, dy)


for _n in (1, 2, 3):
    _names = f"max_pool{_n}d", f"max_pool{_n}d_dx", f"avg_pool{_n}d", f"avg_pool{_n}d_dx"
    sliding(*(getattr(op, name) for name in _names))
    adaptive(*(getattr(op, f"adaptive_{name}") for name in _names))
