"""Layer normalisation with what stands beside it in a network.

Forward, a sum, that of a residual network's stream, is made on the way. In mixed precision the
stream is float32: what a layer gives is cast, added, and the sum is cast for the normalisation. The
sum, and what it was cast to, are further results where others use them. These patterns stand behind
those of libraries, whose products may take the sum in.

Backward, where a block normalises first, what went around it is added to the gradient; and a layer
with a bias before it wants the sum of the rows. Both are at hand while a row is in registers: a
pass over three arrays, and one over one array, less.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import LIBRARY, OpEnv, Unsupported, decline_if
from meta.dialect.core.knobs import tunable
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.layer_norm import SIZES, Kernels, backward, forward, given
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axes


@tunable
def _made(
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


dialect.pattern_op(_added, name="layer_norm_dx_add")(_made)
dialect.pattern_op(_summed, name="layer_norm_dx_sum")(_made)
dialect.pattern_op(_added_and_summed, name="layer_norm_dx_add_sum")(_made)


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
        names = (*given(call, "x"), "addend", *given(call, "scale", "bias"), *results)
        return forward(Kernels(call, {"addend": addend.dtype}), names)

    dialect.pattern_op(describes, plevel=LEVEL, name=name)(make)


_define("add_layer_norm", _normal, "out")
_define("add_layer_norm_sum", _with_sum, "added", "out")
_define("mixed_add_layer_norm", _mixed_normal, "out")
_define("mixed_add_layer_norm_rounded", _mixed_with_rounded, "added", "out")
_define("mixed_add_layer_norm_sum", _mixed_with_sum, "wide", "out")
_define("mixed_add_layer_norm_all", _mixed, "wide", "added", "out")
