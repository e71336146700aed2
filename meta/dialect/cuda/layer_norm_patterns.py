"""Layer normalisation with what stands beside it in a network.

Forward, a sum, that of a residual network's stream, is made on the way. In mixed precision the
stream is float32: what a layer gives is cast, added, and the sum is cast for the normalisation. The
sum, and what it was cast to, are further results where others use them. These patterns stand behind
those of libraries, whose products may take the sum in.

Backward, where a block normalises first, what went around it is added to the gradient; and a layer
with a bias before it wants the sum of the rows. Both are at hand while a row is in registers: a
pass over three arrays, and one over one array, less.

Layer normalisation that saves its statistics, in float32 between layers in half precision; and
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
from meta.dialect.core import LIBRARY, OpEnv, Unsupported, decline_if
from meta.dialect.core.knobs import tunable
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.layer_norm import SIZES, Kernels, backward, forward, present_arguments
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axes


@tunable
def _normalised(
    x: TensorType, scale: Any, dy: TensorType, axis: int, eps: float, result: Any, device: Device,
    addend: TensorType | None = None, over: Any = None,
) -> OpEnv:  # fmt: skip
    """Return the kernels; ``over``: the axes of the sum, which is the last of the results."""
    decline_if(scale is None, "made for a normalisation with a scale")
    if addend is not None and addend != x:
        raise Unsupported(f"what is added, {addend}, is not of the type of x, {x}")
    if over is not None:
        if normalize_axes(over, x.ndim) != tuple(range(x.ndim - 1)) or x.ndim < 2:
            raise Unsupported("the sum is not that of the rows")
        decline_if(result[-1].dtype != "float32", "the sum of the rows is made in float32")
    call = op.layer_norm_dx.call_values((x, scale, dy, axis, eps), device)
    types = {} if addend is None else {"addend": addend.dtype}
    return backward(call, types, summed=over is not None)


def _added(x, scale, dy, axis, eps, addend):
    found = op.layer_norm_dx(x, scale, dy, axis, eps)
    return op.add(found[0], addend), found[1], found[2]


def _summed(x, scale, dy, axis, eps, over, keepdims):
    found = op.layer_norm_dx(x, scale, dy, axis, eps)
    return found[0], found[1], found[2], _rows(found[0], over, keepdims)


def _added_and_summed(x, scale, dy, axis, eps, addend, over, keepdims):
    dx, dscale, dbias = _added(x, scale, dy, axis, eps, addend)
    return dx, dscale, dbias, _rows(dx, over, keepdims)


def _rows(dx, over, keepdims):
    return op.sum(dx | op.astype(dx, "float32"), over, keepdims)


dialect.pattern_op(_added, name="layer_norm_dx_add")(_normalised)
dialect.pattern_op(_summed, name="layer_norm_dx_sum")(_normalised)
dialect.pattern_op(_added_and_summed, name="layer_norm_dx_add_sum")(_normalised)


LEVEL = LIBRARY - 1


def _normal(x, addend, scale, bias, axis, eps):
    return op.layer_norm.plain(op.add(x, addend), scale, bias, axis, eps)


def _with_sum(x, addend, scale, bias, axis, eps):
    total = op.add(x, addend)
    return total, op.layer_norm.plain(total, scale, bias, axis, eps)


def _mixed(x, addend, scale, bias, axis, eps, wide, narrow):
    total = op.add(op.astype(x, wide), addend)
    rounded = op.astype(total, narrow)
    return total, rounded, op.layer_norm.plain(rounded, scale, bias, axis, eps)


def _mixed_normal(x, addend, scale, bias, axis, eps, wide, narrow):
    return _mixed(x, addend, scale, bias, axis, eps, wide, narrow)[2]


def _mixed_with_rounded(x, addend, scale, bias, axis, eps, wide, narrow):
    return _mixed(x, addend, scale, bias, axis, eps, wide, narrow)[1:]


def _mixed_with_sum(x, addend, scale, bias, axis, eps, wide, narrow):
    return _mixed(x, addend, scale, bias, axis, eps, wide, narrow)[::2]


def _define(name: str, describes: Callable[..., Any], *results: str) -> None:
    """Register a launch of "out", "added", the sum in x's dtype, or "wide", the sum as it is."""

    @tunable
    def make(
        x: TensorType, addend: TensorType, scale: Any, bias: Any, axis: int, eps: float,
        device: Device, narrow: str | None = None,
    ) -> OpEnv:  # fmt: skip
        decline_if(x.shape != addend.shape, f"what is added, {addend}, has not the shape of {x}")
        if addend.dtype not in SIZES:
            raise Unsupported(f"made for sums of {', '.join(SIZES)}, not {addend.dtype}")
        if narrow not in (None, x.dtype) or (narrow is None and addend.dtype != x.dtype):
            raise Unsupported(f"{x} and {addend} do not become {narrow or x.dtype}")
        call = op.layer_norm.call_values((x, scale, bias, axis, eps), device)
        names = (
            *present_arguments(call, "x"),
            "addend",
            *present_arguments(call, "scale", "bias"),
            *results,
        )
        return forward(Kernels(call, {"addend": addend.dtype}), names)

    dialect.pattern_op(describes, plevel=LEVEL, name=name)(make)


_define("add_layer_norm", _normal, "out")
_define("add_layer_norm_sum", _with_sum, "added", "out")
_define("mixed_add_layer_norm", _mixed_normal, "out")
_define("mixed_add_layer_norm_rounded", _mixed_with_rounded, "added", "out")
_define("mixed_add_layer_norm_sum", _mixed_with_sum, "wide", "out")
_define("mixed_add_layer_norm_all", _mixed, "wide", "added", "out")


def _require(x: TensorType, **others: TensorType | None) -> None:
    """Decline others of another shape, or of dtypes that kernels do not have."""
    for name, other in others.items():
        if other is not None and (other.shape != x.shape or other.dtype not in SIZES):
            raise Unsupported(f"{name} is of {other}, which does not fit {x}")


# Forward. `of`, `wide` and `narrow` are dtypes; None where there is no such cast.


def _source(x, of):
    """What is normalised: x, or what is in float32 of it."""
    return op.astype(x, of) | x


def _sum(x, addend, wide):
    return op.add(op.astype(x, wide), addend) | op.add(x, addend)


def _of_cast(x, scale, bias, axis, eps, of):
    y = op.layer_norm_train(op.astype(x, of), scale, bias, axis, eps)
    return y[0], y[1], y[2]


def _casts(x, scale, bias, axis, eps, of, narrow):
    y = op.layer_norm_train(_source(x, of), scale, bias, axis, eps)
    return op.astype(y[0], narrow), y[1], y[2]


def _cast_too(x, scale, bias, axis, eps, of, narrow):
    y = op.layer_norm_train(_source(x, of), scale, bias, axis, eps)
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
        addend: TensorType | None = None, of: str | None = None, wide: str | None = None,
        narrow: str | None = None,
    ) -> OpEnv:  # fmt: skip
        _require(x, addend=addend)
        summed = (of or x.dtype) if addend is None else addend.dtype
        decline_if((of or wide or x.dtype) != summed, f"{x} and {addend} are added in {wide}")
        decline_if(summed not in SIZES, f"there is no kernel for a norm in {summed}")
        decline_if(narrow not in (None, *SIZES), f"there is no kernel for a cast to {narrow}")
        types = {} if addend is None else {"addend": summed}
        types["out"] = summed if "again" in results or narrow is None else narrow
        types["again"] = narrow or summed
        norm = op.layer_norm_train if "new_mean" in results else op.rms_norm
        call = norm.call_values((x, scale, bias, axis, eps), device)
        added = () if addend is None else ("addend",)
        names = (
            *present_arguments(call, "x"),
            *added,
            *present_arguments(call, "scale", "bias"),
            *results,
        )
        return forward(Kernels(call, types, rounds=False), names)

    dialect.pattern_op(describes, plevel=LEVEL, name=name)(make)


STATISTICS = "new_mean", "new_inv"
_define_forward("layer_norm_of_cast", _of_cast, "out", *STATISTICS)
_define_forward("layer_norm_cast", _casts, "out", *STATISTICS)
_define_forward("layer_norm_cast_too", _cast_too, "out", "again", *STATISTICS)
_define_forward("add_layer_norm_cast", _sum_casts, "wide", "out", *STATISTICS)
_define_forward("add_layer_norm_cast_too", _sum_cast_too, "wide", "out", "again", *STATISTICS)
_define_forward("add_layer_norm_saved", _sum_before, "wide", "out", *STATISTICS)


def _root_of_cast(x, scale, bias, axis, eps, of):
    return op.rms_norm.plain(op.astype(x, of), scale, bias, axis, eps)


def _root_casts(x, scale, bias, axis, eps, of, narrow):
    y = op.rms_norm.plain(_source(x, of), scale, bias, axis, eps)
    return op.astype(y, narrow)


def _root_cast_too(x, scale, bias, axis, eps, of, narrow):
    y = op.rms_norm.plain(_source(x, of), scale, bias, axis, eps)
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


_define_forward("rms_norm_of_cast", _root_of_cast, "out")
_define_forward("rms_norm_cast", _root_casts, "out")
_define_forward("rms_norm_cast_too", _root_cast_too, "out", "again")
_define_forward("add_rms_norm", _sum_root, "wide", "out")
_define_forward("add_rms_norm_cast", _sum_root_casts, "wide", "out")
_define_forward("add_rms_norm_cast_too", _sum_root_cast_too, "wide", "out", "again")


# Backward.


def _slope(dy, wide, more):
    either = op.astype(dy, wide) | dy
    return op.add(either, op.astype(more, wide) | more) | either


def _gradients(x, scale, dy, mean, inv, axis, eps, of, wide, more, addend):
    """The gradients; that by x with what is added to it."""
    slope = _slope(dy, wide, more)
    found = op.layer_norm_train_dx(_source(x, of), scale, slope, mean, inv, axis, eps)
    return op.add(found[0], addend) | found[0], found[1], found[2]


def _narrowed(x, scale, dy, mean, inv, axis, eps, of, wide, more, addend, narrow):
    dx, dw, db = _gradients(x, scale, dy, mean, inv, axis, eps, of, wide, more, addend)
    return op.astype(dx, narrow), dw, db


def _narrowed_too(x, scale, dy, mean, inv, axis, eps, of, wide, more, addend, narrow):
    dx, dw, db = _gradients(x, scale, dy, mean, inv, axis, eps, of, wide, more, addend)
    return dx, op.astype(dx, narrow), dw, db


def _of_root(x, scale, dy, axis, eps, of, wide, more, addend):
    found = op.rms_norm_dx(_source(x, of), scale, _slope(dy, wide, more), axis, eps)
    return op.add(found[0], addend) | found[0], found[1]


def _of_root_narrowed(x, scale, dy, axis, eps, of, wide, more, addend, narrow):
    dx, dw = _of_root(x, scale, dy, axis, eps, of, wide, more, addend)
    return op.astype(dx, narrow), dw


def _of_root_narrowed_too(x, scale, dy, axis, eps, of, wide, more, addend, narrow):
    dx, dw = _of_root(x, scale, dy, axis, eps, of, wide, more, addend)
    return dx, op.astype(dx, narrow), dw


def _define_backward(name: str, describes: Callable[..., Any], *results: str) -> None:
    """Register the launches of a gradient that is "out", with a copy, "again"."""

    @tunable
    def make(
        x: TensorType, scale: TensorType, dy: TensorType, axis: int, eps: float, device: Device,
        mean: TensorType | None = None, inv: TensorType | None = None, of: str | None = None,
        wide: str | None = None, more: TensorType | None = None,
        addend: TensorType | None = None, narrow: str | None = None,
    ) -> OpEnv:  # fmt: skip
        _require(x, dy=dy, more=more, addend=addend)
        own = of or x.dtype
        decline_if((wide or dy.dtype) != own, f"{dy} does not become of x's dtype")
        decline_if(all(v is None for v in (of, wide, more, addend, narrow)), "nothing is beside it")
        decline_if(not {narrow or own, own} <= {*SIZES}, f"there is no cast of {own} to {narrow}")
        if addend is not None and addend.dtype != own:
            raise Unsupported(f"what is added, {addend}, is not of x's dtype")
        if wide is None and more is not None and more.dtype != own:
            raise Unsupported(f"what is added to the slope, {more}, is not of x's dtype")
        types = {"dy": dy.dtype}
        types |= {} if more is None else {"more": more.dtype}
        types |= {} if addend is None else {"addend": addend.dtype}
        types["out"] = own if "again" in results or narrow is None else narrow
        types["again"] = narrow or own
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
