"""Pooling on ATen.

ATen pads both sides alike and by half a window at most, and averages without dilation. What is
beyond that is padded beforehand; means then come from a convolution with ones.
"""

import torch
import torch.nn.functional as F

from meta import op
from meta.dialect import LIBRARY
from meta.dialect.torch import torch as dialect
from meta.op.core.check import pair
from meta.op.core.window import permutation, window


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


def _pool(function):
    """Bring a pooling function of an NCHW tensor to every layout."""

    def run(x, layout, *arguments):
        y = function(x.permute(permutation(layout, "NCHW", "layout")), *arguments)
        return y.permute(permutation("NCHW", layout, "layout")).contiguous()

    return run


def _max_case(x, axes):
    """Return the tensor to pool, padded if need be, and ATen's arguments."""
    plain = _plain(axes)
    padding, ceil = (_each(axes, "before"), axes[0].ceil) if plain else ((0, 0), False)
    x = x if plain else _padded(x, axes, float("-inf"))
    return x, (*_arguments(axes), padding, _each(axes, "dilation"), ceil)


def _counts(x, axes, include_pad):
    """Return how many elements each window averages, as [1, 1, OH, OW]."""
    counts = []
    for axis in axes:
        low, high = (-axis.before, axis.size + axis.after) if include_pad else (0, axis.size)
        first = torch.arange(axis.out, device=x.device).unsqueeze(1) * axis.stride - axis.before
        at = first + torch.arange(axis.kernel, device=x.device) * axis.dilation
        counts.append(((at >= low) & (at < high)).sum(1))
    return (counts[0].unsqueeze(1) * counts[1])[None, None].to(x.dtype)


def _ones(x, axes):
    return x.new_ones((1, 1, *_each(axes, "kernel")))


def _planes(x):
    """One channel per image, so that a convolution with one kernel serves all."""
    return x.reshape(-1, 1, *x.shape[2:])


def _aten_average(axes, include_pad):
    """Return avg_pool2d's arguments if ATen has the case, else None."""
    if _plain(axes) and _each(axes, "dilation") == (1, 1):
        return *_arguments(axes), _each(axes, "before"), axes[0].ceil, include_pad
    return None


def _average(x, axes, include_pad):
    arguments = _aten_average(axes, include_pad)
    if arguments is not None:
        return F.avg_pool2d(x, *arguments)
    planes = _planes(_padded(x, axes, 0.0))
    stride, dilation = _each(axes, "stride"), _each(axes, "dilation")
    sums = F.conv2d(planes, _ones(x, axes), None, stride, 0, dilation)
    return sums.reshape(*x.shape[:2], *sums.shape[2:]) / _counts(x, axes, include_pad)


@dialect.kernel(op.max_pool2d, plevel=LIBRARY)
def max_pool2d(x, kernel, stride, padding, dilation, ceil_mode, layout):
    def run(x):
        axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
        x, arguments = _max_case(x, axes)
        return F.max_pool2d(x, *arguments)

    return _pool(run)(x, layout)


@dialect.kernel(op.avg_pool2d, plevel=LIBRARY)
def avg_pool2d(x, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
    def run(x):
        axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
        return _average(x, axes, include_pad)

    return _pool(run)(x, layout)


@dialect.kernel(op.adaptive_max_pool2d, plevel=LIBRARY)
def adaptive_max_pool2d(x, shape, layout):
    return _pool(F.adaptive_max_pool2d)(x, layout, pair(shape, "shape"))


@dialect.kernel(op.adaptive_avg_pool2d, plevel=LIBRARY)
def adaptive_avg_pool2d(x, shape, layout):
    return _pool(F.adaptive_avg_pool2d)(x, layout, pair(shape, "shape"))


@dialect.kernel(op.max_pool2d_dx, plevel=LIBRARY)
def max_pool2d_dx(x, dy, kernel, stride, padding, dilation, ceil_mode):
    axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
    pooled, arguments = _max_case(x, axes)
    _, indices = F.max_pool2d(pooled, *arguments, return_indices=True)
    dx = torch.ops.aten.max_pool2d_with_indices_backward(dy, pooled, *arguments, indices)
    return dx.contiguous() if pooled is x else _cut(dx, axes)


@dialect.kernel(op.avg_pool2d_dx, plevel=LIBRARY)
def avg_pool2d_dx(x, dy, kernel, stride, padding, dilation, ceil_mode, include_pad):
    axes = window(x.shape[2:], kernel, stride, padding, dilation, ceil_mode)
    arguments = _aten_average(axes, include_pad)
    if arguments is not None:
        return torch.ops.aten.avg_pool2d_backward(dy, x, *arguments, None).contiguous()
    planes = _planes(dy / _counts(dy, axes, include_pad))
    stride, dilation = _each(axes, "stride"), _each(axes, "dilation")
    spread = F.conv_transpose2d(planes, _ones(x, axes), None, stride, dilation=dilation)
    return _cut(spread.reshape(*x.shape[:2], *spread.shape[2:]), axes)


@dialect.kernel(op.adaptive_max_pool2d_dx, plevel=LIBRARY)
def adaptive_max_pool2d_dx(x, dy, shape):
    _, indices = F.adaptive_max_pool2d(x, pair(shape, "shape"), return_indices=True)
    return torch.ops.aten.adaptive_max_pool2d_backward(dy, x, indices).contiguous()


@dialect.kernel(op.adaptive_avg_pool2d_dx, plevel=LIBRARY)
def adaptive_avg_pool2d_dx(x, dy):
    return torch.ops.aten._adaptive_avg_pool2d_backward(dy, x).contiguous()
