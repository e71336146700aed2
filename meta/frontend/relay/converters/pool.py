"""Converters of pooling: sliding windows, whole axes and adaptive regions, and two gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.frontend.relay.layout import change_layout, extents, per_axis, plain, to_plain
from meta.frontend.relay.registry import relay
from meta.op.core import Op
from meta.op.core.window import DATA

MAX = {1: op.max_pool1d, 2: op.max_pool2d, 3: op.max_pool3d}
AVG = {1: op.avg_pool1d, 2: op.avg_pool2d, 3: op.avg_pool3d}
ADAPTIVE_MAX = {1: op.adaptive_max_pool1d, 2: op.adaptive_max_pool2d, 3: op.adaptive_max_pool3d}
ADAPTIVE_AVG = {1: op.adaptive_avg_pool1d, 2: op.adaptive_avg_pool2d, 3: op.adaptive_avg_pool3d}


def _in_layout(data, layout: str, out_layout: str, pool: Callable[[Any, str], Any], mean: bool):
    """Return ``pool(x, plain layout)`` in the result's layout.

    Integers are pooled as floats that hold them exactly; a mean of theirs drops the fraction, as
    a division in C does.
    """
    x = to_plain(data, layout)
    if is_float(x.dtype):
        y = pool(x, plain(layout))
    else:
        y = pool(op.cast(x, "float64"), plain(layout))
        # A quotient that is a whole number must not fall below it by a rounding error.
        y = op.trunc(y + op.sign(y) * 1e-6) if mean else y
        y = op.cast(y, x.dtype)
    return change_layout(y, plain(layout), out_layout or layout)


def _window(
    *,
    pool_size: tuple[int, ...],
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    ceil_mode: bool,
    count_include_pad: bool = True,
) -> tuple[Any, ...]:
    """Return the attributes of a window as base operators take them, by position."""
    numbers = map(per_axis, (pool_size, strides, padding, dilation))
    return (*numbers, bool(ceil_mode), bool(count_include_pad))


def _sliding(base: Op, mean: bool) -> Callable[..., Any]:
    """Return the converter of pooling by a window."""

    def pool(data, *, layout: str, out_layout: str, **window):
        def run(x, order: str):
            return base(x, *_window(**window), order)

        return _in_layout(data, layout, out_layout, run, mean)

    return pool


def _adaptive(base: Op, mean: bool) -> Callable[..., Any]:
    """Return the converter of pooling to given extents, those of the input if none are given."""

    def pool(data, *, output_size: tuple[int, ...], layout: str, out_layout: str):
        letters = "".join(a for a in DATA[3] if a in layout and a not in "NC")

        def run(x, order: str):
            return base(x, per_axis(output_size or extents(x, order, letters)), order)

        return _in_layout(data, layout, out_layout, run, mean)

    return pool


def _global(base: Op, mean: bool) -> Callable[..., Any]:
    """Return the converter of pooling over both spatial axes, which stay with extent 1."""

    def pool(data, *, layout: str, out_layout: str):
        def run(x, order: str):
            return base(x, (order.index("H"), order.index("W")), True)

        return _in_layout(data, layout, out_layout, run, mean)

    return pool


for _count in DATA:
    relay(f"nn.max_pool{_count}d", MAX[_count])(_sliding(MAX[_count], mean=False))
    relay(f"nn.avg_pool{_count}d", AVG[_count])(_sliding(AVG[_count], mean=True))
    _max, _avg = ADAPTIVE_MAX[_count], ADAPTIVE_AVG[_count]
    relay(f"nn.adaptive_max_pool{_count}d", _max)(_adaptive(_max, mean=False))
    relay(f"nn.adaptive_avg_pool{_count}d", _avg)(_adaptive(_avg, mean=True))
# TVM 0.6 had these two in another name space.
relay("contrib.adaptive_max_pool2d", op.adaptive_max_pool2d)(_adaptive(ADAPTIVE_MAX[2], mean=False))
relay("contrib.adaptive_avg_pool2d", op.adaptive_avg_pool2d)(_adaptive(ADAPTIVE_AVG[2], mean=True))
relay("nn.global_max_pool2d", op.max)(_global(op.max, mean=False))
relay("nn.global_avg_pool2d", op.mean)(_global(op.mean, mean=True))


@relay("nn.max_pool2d_grad", op.max_pool2d_dx)
def max_pool2d_grad(out_grad, data, *, layout, out_layout, **window):
    dy = change_layout(out_grad, out_layout or layout, DATA[2])
    x = change_layout(data, layout, DATA[2])
    numbers = _window(**window)
    dx = op.max_pool2d_dx(x, op.max_pool2d(x, *numbers), dy, *numbers)
    return change_layout(dx, DATA[2], layout)


@relay("nn.avg_pool2d_grad", op.avg_pool2d_dx)
def avg_pool2d_grad(out_grad, data, *, layout, out_layout, **window):
    dy = change_layout(out_grad, out_layout or layout, DATA[2])
    # Of x only the type matters, and of y, which is of dy's.
    dx = op.avg_pool2d_dx(change_layout(data, layout, DATA[2]), dy, dy, *_window(**window))
    return change_layout(dx, DATA[2], layout)
