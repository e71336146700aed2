"""Converters of reductions, searches for extrema, running sums, and Fourier transforms."""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.base.dtype import is_float, limits
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, is_static, required_ints, static_extent
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.core.operators import mean
from meta.frontend.onnx.registry import onnx
from meta.op.core.check import normalize_axis


def _sum(x, axes, keepdims):
    return op.sum(x, axes, keepdims=keepdims)


def _l2(x, axes, keepdims):
    return op.sqrt(op.sum(op.square(_floating(x)), axes, keepdims=keepdims))


def _floating(x):
    return x if is_float(x.dtype) else cast_to(x, "float64")


def _extremum(base, of_bool, of_nothing):
    def reduction(x, axes, keepdims):
        if x.dtype == "bool":
            return of_bool(x, axes, keepdims)
        extents = tuple(x.shape[a] for a in axes)
        if is_static(extents) and not prod(extents):
            extents = enumerate(x.shape)
            shape = tuple(1 if i in axes else e for i, e in extents if keepdims or i not in axes)
            return op.broadcast_to(op.full_like(_scalar(x), of_nothing(x.dtype)), shape)
        return base(x, axes, keepdims)

    return reduction


def _scalar(x):
    """A scalar of the dtype of x, where x is."""
    return op.reshape(op.sum(op.zeros_like(op.strided_slice(x, (0,), (0,))), None), ())


def least(dtype):
    """The smallest number of a dtype."""
    return float("-inf") if is_float(dtype) else limits(dtype).min


def most(dtype):
    """The greatest number of a dtype."""
    return float("inf") if is_float(dtype) else limits(dtype).max


_REDUCTIONS = {
    "ReduceL1": (op.sum, lambda x, a, k: op.sum(op.abs(x), a, keepdims=k)),
    "ReduceL2": (op.sqrt, _l2),
    "ReduceLogSum": (op.log, lambda x, a, k: op.log(_floating(op.sum(x, a, keepdims=k)))),
    "ReduceLogSumExp": (op.logsumexp, lambda x, a, k: op.logsumexp(_floating(x), a, k)),
    "ReduceMax": (op.max, _extremum(op.max, op.any, least)),
    "ReduceMean": (op.mean, mean),
    "ReduceMin": (op.min, _extremum(op.min, op.all, most)),
    "ReduceProd": (op.prod, op.prod),
    "ReduceSum": (op.sum, _sum),
    "ReduceSumSquare": (op.sum, lambda x, a, k: op.sum(op.square(x), a, keepdims=k)),
}
"""The base operator, and the function of x, axes and keepdims."""


def _reduction(name, base, function):
    @onnx(name, base)
    def converter(x, at=None, *, axes, keepdims, noop_with_empty_axes):
        """No axes are all of them, or with ``noop_with_empty_axes`` none."""
        axes = required_ints(at, "axes") if at is not None else axes
        if not axes and noop_with_empty_axes:
            axes = ()
        elif not axes:
            axes = range(x.ndim)
        axes = tuple(normalize_axis(a, x.ndim) for a in axes)
        if not axes and name in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"):
            return x
        if not axes:
            # Each element by itself.
            y = function(op.expand_dims(x, x.ndim), (x.ndim,), False)
        else:
            y = function(x, axes, bool(keepdims))
        return cast_to(y, x.dtype)


for _name, (_base, _function) in _REDUCTIONS.items():
    _reduction(_name, _base, _function)


def _search(name, base):
    @onnx(name, base, op.flip, op.subtract)
    def converter(x, *, axis, keepdims, select_last_index):
        if not select_last_index:
            return base(x, axis, bool(keepdims))
        place = base(op.flip(x, axis), axis, bool(keepdims))
        last = static_extent(x.shape[axis], "the axis that is searched") - 1
        return op.subtract(op.full_like(place, last), place)


_search("ArgMax", op.argmax)
_search("ArgMin", op.argmin)


def _scan(name, base):
    @onnx(name, base, op.flip)
    def converter(x, axis, *, exclusive, reverse):
        (axis,) = required_ints(axis, "the axis")
        y = op.flip(x, axis) if reverse else x
        y = base.plain(y, axis, x.dtype, bool(exclusive))
        return op.flip(y, axis) if reverse else y


_scan("CumProd", op.cumprod)
_scan("CumSum", op.cumsum)


@onnx("DFT", op.dft)
def dft(x, length=None, at=None, *, axis, inverse, onesided, call):
    """The last axis of x is the real part, or the real and the imaginary part; so is that of y.

    The axis is an attribute before opset 20, then an input. One-sided and inverse, x is half of a
    spectrum and y is real.
    """
    if call.opset < 20:
        axis = 1 if axis is None else axis
    else:
        axis = -2 if at is None else required_ints(at, "the axis")[0]
    axis = normalize_axis(axis, x.ndim)
    count = None if length is None else required_ints(length, "the length")[0]
    extent = static_extent(x.shape[axis], "the axis that is transformed")
    re, im = _real_and_imaginary(x)
    re, im = (_moved(v, axis, re.ndim - 1) for v in (re, im))
    if inverse and onesided:
        count = 2 * (extent - 1) if count is None else count
        y = op.expand_dims(_moved(_real_signal(re, im, count, call), re.ndim - 1, axis), re.ndim)
        return cast_to(y, x.dtype)
    count = extent if count is None else count
    re, im = _transformed(_fitted(re, count), _fitted(im, count), bool(inverse))
    if onesided:
        re, im = _fitted(re, count // 2 + 1), _fitted(im, count // 2 + 1)
    return op.stack(tuple(cast_to(_moved(v, v.ndim - 1, axis), x.dtype) for v in (re, im)), -1)


def _transformed(re, im, inverse=False):
    """`dft` is in float32 and float64."""
    wide = re.dtype if re.dtype == "float64" else "float32"
    return op.dft(cast_to(re, wide), cast_to(im, wide), inverse)


def _real_and_imaginary(x):
    count = static_extent(x.shape[-1], "the axis of the parts")
    if count not in (1, 2):
        raise Unconvertible(f"the last axis has the extent {count}, which is 1 or 2")
    re = op.squeeze(op.split(x, count, -1)[0], (-1,)) if count == 2 else op.squeeze(x, (-1,))
    return re, op.squeeze(op.split(x, 2, -1)[1], (-1,)) if count == 2 else op.zeros_like(re)


def _moved(x, source, target):
    order = [i for i in range(x.ndim) if i != source]
    order.insert(target, source)
    return op.permute_dims(x, tuple(order))


def _fitted(x, count):
    """Cut the last axis to an extent, or fill it up with zeros."""
    extent = x.shape[-1]
    if extent > count:
        return op.strided_slice(x, (0,) * x.ndim, (*x.shape[:-1], count))
    if extent == count:
        return x
    return op.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, count - extent)])


def _real_signal(re, im, count, call):
    """The real signal of ``count`` elements with half of a spectrum: the other half mirrors it."""
    half = count // 2 + 1
    re, im = _fitted(re, half), _fitted(im, half)
    place = np.arange(count)
    mirrored = place >= half
    index = constant(np.where(mirrored, count - place, place), "int64", call)
    # The first element, and of an even count the middle one, stand for real numbers.
    signs = np.where(mirrored, -1.0, 1.0) * (place % count != 0) * (2 * place != count)
    re, im = op.take(re, index, re.ndim - 1), op.take(im, index, im.ndim - 1)
    return _transformed(re, op.multiply(im, constant(signs, im.dtype, call)), True)[0]


@onnx("STFT", op.dft, op.take)
def stft(signal, step, window=None, length=None, *, onesided, call):
    """[B, frames, frequencies, 2]: the transform of every frame, which the window weights."""
    (hop,) = required_ints(step, "the step")
    extent = static_extent(signal.shape[1], "the signal")
    if length is not None:
        (size,) = required_ints(length, "the length of a frame")
    else:
        size = extent if window is None else static_extent(window.shape[0], "the window")
    frames = (extent - size) // hop + 1
    if frames < 1:
        raise Unconvertible(f"a frame of {size} is longer than the signal of {extent}")
    places = np.add.outer(np.arange(frames) * hop, np.arange(size))
    index = constant(places, "int64", call)
    re, im = (op.take(part, index, 1) for part in _real_and_imaginary(signal))
    if window is not None:
        re, im = op.multiply(re, window), op.multiply(im, window)
    parts = _transformed(re, im)
    if onesided:
        parts = tuple(_fitted(v, size // 2 + 1) for v in parts)
    return op.stack(tuple(cast_to(v, signal.dtype) for v in parts), -1)
