"""Converters of reductions, searches for extrema and running sums."""

from __future__ import annotations

from math import prod

from meta import op
from meta.base.dtype import is_float, limits
from meta.frontend.core.arguments import is_static, static_extent
from meta.frontend.core.arithmetic import cast_to, truncated_quotient
from meta.frontend.onnx.converters.movement import required
from meta.frontend.onnx.registry import onnx
from meta.op.core.check import normalize_axis


def _integer_mean(x, axes, keepdims):
    """The sum over the count, without its fraction."""
    total = op.sum(x, axes, keepdims=keepdims)
    count = prod(static_extent(x.shape[a], "what is averaged") for a in axes)
    return truncated_quotient(total, op.full_like(total, count))


def _mean(x, axes, keepdims):
    return (op.mean if is_float(x.dtype) else _integer_mean)(x, axes, keepdims)


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
    "ReduceMean": (op.mean, _mean),
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
        axes = required(at, "axes") if at is not None else axes
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
        (axis,) = required(axis, "the axis")
        y = op.flip(x, axis) if reverse else x
        y = base.plain(y, axis, x.dtype, bool(exclusive))
        return op.flip(y, axis) if reverse else y


_scan("CumProd", op.cumprod)
_scan("CumSum", op.cumsum)
