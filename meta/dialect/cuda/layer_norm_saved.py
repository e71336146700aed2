"""Layer normalisation that saves its statistics, in float32 between layers in half precision; and
normalisation by the root mean square, which saves nothing.

That is how PyTorch's autocast has it: what a layer gives is cast and added to the stream, the sum
is normalised as it is, and the result cast for the next layer; backward the same in reverse. Each
cast and each sum is a pass over arrays of float32 if it is a kernel of its own. Here one launch
does all, forward and backward. In bytes of an element, read and written, of a network that
normalises before each layer:

========================================  =====  =====
normalisation and                         fused  apart
========================================  =====  =====
sum before, cast behind                      12     24
cast before its gradient, sum, cast behind   16     32
========================================  =====  =====
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, Unsupported, decline_if
from meta.dialect.core.knobs import tunable
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.layer_norm import SIZES, Kernels, backward, forward, given
from meta.dialect.cuda.layer_norm_fused import LEVEL
from meta.ir.types import TensorType


def _require(x: TensorType, **others: TensorType | None) -> None:
    """Decline others of another shape, or of dtypes that kernels do not have."""
    for name, other in others.items():
        if other is not None and (other.shape != x.shape or other.dtype not in SIZES):
            raise Unsupported(f"{name} is of {other}, which does not fit {x}")


# Forward. `wide` and `narrow` are dtypes; None where there is no such cast.


def _sum(x, addend, wide):
    return op.add(op.astype(x, wide) | x, addend)


def _casts(x, scale, bias, axis, eps, narrow):
    y = op.layer_norm_train(x, scale, bias, axis, eps)
    return op.astype(y[0], narrow), y[1], y[2]


def _cast_too(x, scale, bias, axis, eps, narrow):
    y = op.layer_norm_train(x, scale, bias, axis, eps)
    return y[0], op.astype(y[0], narrow), y[1], y[2]


def _sum_casts(x, addend, scale, bias, axis, eps, wide, narrow):
    total = _sum(x, addend, wide)
    y = op.layer_norm_train(total, scale, bias, axis, eps)
    return total, op.astype(y[0], narrow), y[1], y[2]


def _sum_cast_too(x, addend, scale, bias, axis, eps, wide, narrow):
    total = _sum(x, addend, wide)
    y = op.layer_norm_train(total, scale, bias, axis, eps)
    return total, y[0], op.astype(y[0], narrow), y[1], y[2]


def _sum_before(x, addend, scale, bias, axis, eps, wide):
    total = _sum(x, addend, wide)
    y = op.layer_norm_train(total, scale, bias, axis, eps)
    return total, y[0], y[1], y[2]


def _define_forward(name: str, describes: Callable[..., Any], *results: str) -> None:
    """Register a launch of "wide", the sum, "out", "again", its copy, and the statistics."""

    @tunable
    def make(
        x: TensorType, scale: Any, bias: Any, axis: int, eps: float, device: Device,
        addend: TensorType | None = None, wide: str | None = None, narrow: str | None = None,
    ) -> OpEnv:  # fmt: skip
        _require(x, addend=addend)
        summed = x.dtype if addend is None else addend.dtype
        decline_if((wide or x.dtype) != summed, f"{x} and {addend} are added in {wide}")
        decline_if(narrow not in (None, *SIZES), f"there is no kernel for a cast to {narrow}")
        types = {} if addend is None else {"addend": summed}
        types["out"] = summed if "again" in results or narrow is None else narrow
        types["again"] = narrow or summed
        norm = op.layer_norm_train if "new_mean" in results else op.rms_norm
        call = norm.call_values((x, scale, bias, axis, eps), device)
        added = () if addend is None else ("addend",)
        names = (*given(call, "x"), *added, *given(call, "scale", "bias"), *results)
        return forward(Kernels(call, types, rounds=False), names)

    dialect.pattern_op(describes, plevel=LEVEL, name=name)(make)


STATISTICS = "new_mean", "new_inv"
_define_forward("layer_norm_cast", _casts, "out", *STATISTICS)
_define_forward("layer_norm_cast_too", _cast_too, "out", "again", *STATISTICS)
_define_forward("add_layer_norm_cast", _sum_casts, "wide", "out", *STATISTICS)
_define_forward("add_layer_norm_cast_too", _sum_cast_too, "wide", "out", "again", *STATISTICS)
_define_forward("add_layer_norm_saved", _sum_before, "wide", "out", *STATISTICS)


def _root_casts(x, scale, bias, axis, eps, narrow):
    return op.astype(op.rms_norm.plain(x, scale, bias, axis, eps), narrow)


def _root_cast_too(x, scale, bias, axis, eps, narrow):
    y = op.rms_norm.plain(x, scale, bias, axis, eps)
    return y, op.astype(y, narrow)


def _sum_root(x, addend, scale, bias, axis, eps, wide):
    total = _sum(x, addend, wide)
    return total, op.rms_norm.plain(total, scale, bias, axis, eps)


def _sum_root_casts(x, addend, scale, bias, axis, eps, wide, narrow):
    total, y = _sum_root(x, addend, scale, bias, axis, eps, wide)
    return total, op.astype(y, narrow)


def _sum_root_cast_too(x, addend, scale, bias, axis, eps, wide, narrow):
    total, y = _sum_root(x, addend, scale, bias, axis, eps, wide)
    return total, y, op.astype(y, narrow)


_define_forward("rms_norm_cast", _root_casts, "out")
_define_forward("rms_norm_cast_too", _root_cast_too, "out", "again")
_define_forward("add_rms_norm", _sum_root, "wide", "out")
_define_forward("add_rms_norm_cast", _sum_root_casts, "wide", "out")
_define_forward("add_rms_norm_cast_too", _sum_root_cast_too, "wide", "out", "again")


# Backward.


def _slope(dy, wide, more):
    return op.add(op.astype(dy, wide) | dy, more) | op.astype(dy, wide) | dy


def _gradients(x, scale, dy, mean, inv, axis, eps, wide, more, addend):
    """The gradients; that by x with what is added to it."""
    slope = _slope(dy, wide, more)
    found = op.layer_norm_train_dx(x, scale, slope, mean, inv, axis, eps)
    return op.add(found[0], addend) | found[0], found[1], found[2]


def _narrowed(x, scale, dy, mean, inv, axis, eps, wide, more, addend, narrow):
    dx, dw, db = _gradients(x, scale, dy, mean, inv, axis, eps, wide, more, addend)
    return op.astype(dx, narrow), dw, db


def _narrowed_too(x, scale, dy, mean, inv, axis, eps, wide, more, addend, narrow):
    dx, dw, db = _gradients(x, scale, dy, mean, inv, axis, eps, wide, more, addend)
    return dx, op.astype(dx, narrow), dw, db


def _of_root(x, scale, dy, axis, eps, wide, more, addend):
    found = op.rms_norm_dx(x, scale, _slope(dy, wide, more), axis, eps)
    return op.add(found[0], addend) | found[0], found[1]


def _of_root_narrowed(x, scale, dy, axis, eps, wide, more, addend, narrow):
    dx, dw = _of_root(x, scale, dy, axis, eps, wide, more, addend)
    return op.astype(dx, narrow), dw


def _of_root_narrowed_too(x, scale, dy, axis, eps, wide, more, addend, narrow):
    dx, dw = _of_root(x, scale, dy, axis, eps, wide, more, addend)
    return dx, op.astype(dx, narrow), dw


def _define_backward(name: str, describes: Callable[..., Any], *results: str) -> None:
    """Register the launches of a gradient that is "out", with a copy, "again"."""

    @tunable
    def make(
        x: TensorType, scale: TensorType, dy: TensorType, axis: int, eps: float, device: Device,
        mean: TensorType | None = None, inv: TensorType | None = None, wide: str | None = None,
        more: TensorType | None = None, addend: TensorType | None = None,
        narrow: str | None = None,
    ) -> OpEnv:  # fmt: skip
        _require(x, dy=dy, more=more, addend=addend)
        decline_if((wide or dy.dtype) != x.dtype, f"{dy} does not become of x's dtype")
        decline_if(all(v is None for v in (wide, more, addend, narrow)), "nothing is beside it")
        decline_if(narrow not in (None, *SIZES), f"there is no kernel for a cast to {narrow}")
        for other in (more, addend):
            if other is not None and other.dtype != x.dtype:
                raise Unsupported(f"what is added, {other}, is not of x's dtype")
        types = {"dy": dy.dtype}
        types |= {} if more is None else {"more": more.dtype}
        types |= {} if addend is None else {"addend": addend.dtype}
        types["out"] = x.dtype if "again" in results or narrow is None else narrow
        types["again"] = narrow or x.dtype
        if mean is None:
            call = op.rms_norm_dx.call_values((x, scale, x, axis, eps), device)
        else:
            args = (x, scale, x, mean, inv, axis, eps)
            call = op.layer_norm_train_dx.call_values(args, device)
        return backward(call, types, results)

    dialect.pattern_op(describes, plevel=LEVEL, name=name)(make)


_define_backward("layer_norm_saved_dx", _gradients, "out")
_define_backward("layer_norm_saved_dx_cast", _narrowed, "out")
_define_backward("layer_norm_saved_dx_cast_too", _narrowed_too, "out", "again")
_define_backward("rms_norm_saved_dx", _of_root, "out")
_define_backward("rms_norm_saved_dx_cast", _of_root_narrowed, "out")
_define_backward("rms_norm_saved_dx_cast_too", _of_root_narrowed_too, "out", "again")
