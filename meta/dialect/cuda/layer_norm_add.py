"""Layer normalisation of a sum, which is made on the way: a residual network's stream.

In mixed precision the stream is float32: what a layer gives is cast, added, and the sum is cast
for the normalisation. The sum, and what it was cast to, are further results where others use them.
These patterns stand behind those of libraries, whose products may take the sum in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import LIBRARY, OpEnv, Unsupported
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.layer_norm import SIZES, Kernels, forward, given
from meta.ir.types import TensorType

LEVEL = LIBRARY - 1


def _normal(x, addend, scale, bias, axis, eps):
    return op.layer_norm(op.add(x, addend), scale, bias, axis, eps)


def _with_sum(x, addend, scale, bias, axis, eps):
    total = op.add(x, addend)
    return total, op.layer_norm(total, scale, bias, axis, eps)


def _mixed(x, addend, scale, bias, axis, eps, wide, narrow):
    total = op.add(op.cast(x, wide), addend)
    rounded = op.cast(total, narrow)
    return total, rounded, op.layer_norm(rounded, scale, bias, axis, eps)


def _mixed_normal(x, addend, scale, bias, axis, eps, wide, narrow):
    return _mixed(x, addend, scale, bias, axis, eps, wide, narrow)[2]


def _mixed_with_rounded(x, addend, scale, bias, axis, eps, wide, narrow):
    return _mixed(x, addend, scale, bias, axis, eps, wide, narrow)[1:]


def _mixed_with_sum(x, addend, scale, bias, axis, eps, wide, narrow):
    return _mixed(x, addend, scale, bias, axis, eps, wide, narrow)[::2]


def _define(name: str, describes: Callable[..., Any], *results: str) -> None:
    """Register a launch that fills these results: "out" is normalised, "added" the sum in x's
    dtype, "wide" the sum as it is.
    """

    def make(
        x: TensorType, addend: TensorType, scale: Any, bias: Any, axis: int, eps: float,
        device: Device, narrow: str | None = None,
    ) -> OpEnv:  # fmt: skip
        if x.shape != addend.shape:
            raise Unsupported(f"what is added, {addend}, has not the shape of {x}")
        if addend.dtype not in SIZES:
            raise Unsupported(f"made for sums of {', '.join(SIZES)}, not {addend.dtype}")
        if narrow not in (None, x.dtype) or (narrow is None and addend.dtype != x.dtype):
            raise Unsupported(f"{x} and {addend} do not become {narrow or x.dtype}")
        call = op.layer_norm.call_values((x, scale, bias, axis, eps), device)
        names = (*given(call, "x"), "addend", *given(call, "scale", "bias"), *results)
        return forward(Kernels(call, addend.dtype), names)

    dialect.pattern_op(describes, plevel=LEVEL, name=name)(make)


_define("add_layer_norm", _normal, "out")
_define("add_layer_norm_sum", _with_sum, "added", "out")
_define("mixed_add_layer_norm", _mixed_normal, "out")
_define("mixed_add_layer_norm_rounded", _mixed_with_rounded, "added", "out")
_define("mixed_add_layer_norm_sum", _mixed_with_sum, "wide", "out")
_define("mixed_add_layer_norm_all", _mixed, "wide", "added", "out")
