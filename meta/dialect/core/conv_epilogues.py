"""Convolutions over two axes with what follows them, bias, a tensor added, relu: the patterns that
dialects share which have kernels for all of it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core.dialect import Dialect
from meta.dialect.core.openv import OpEnv, Unsupported
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.schema import Ints

Maker = Callable[[CallValues, bool, bool], OpEnv]
"""By a call of `conv2d`, whether a tensor is added, and whether relu follows. Returns what takes x,
w, b, z if one is added, and y, which it fills with relu(convolution + b + z).
"""


def _biased(
    x: Any, w: Any, b: Any, stride: Any, padding: Any, dilation: Any, groups: Any, layout: Any,
    kernel_layout: Any, out_layout: Any, axis: Any,
) -> Any:  # fmt: skip
    y = op.conv2d.plain(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout)
    return op.bias_add(y, b, axis)


def _added(
    x: Any, w: Any, b: Any, z: Any, stride: Any, padding: Any, dilation: Any, groups: Any,
    layout: Any, kernel_layout: Any, out_layout: Any, axis: Any,
) -> Any:  # fmt: skip
    options = stride, padding, dilation, groups, layout, kernel_layout, out_layout
    return op.add(_biased(x, w, b, *options, axis), z)


def _rectified(describes: Callable[..., Any]) -> Callable[..., Any]:
    """Return a pattern with relu behind it, which captures the same."""

    @wraps(describes)
    def described(**captured: Any) -> Any:
        return op.relu(describes(**captured))

    return described


def register(dialect: Dialect, make: Maker) -> None:
    """Register a dialect's kernels of four patterns: with a tensor added or not, relu or not."""
    for relu in (False, True):
        for adds, describes in ((False, _biased), (True, _added)):
            name = "conv2d_bias" + "_add" * adds + "_relu" * relu
            _define(dialect, name, _rectified(describes) if relu else describes, make, relu)


def _define(
    dialect: Dialect, name: str, describes: Callable[..., Any], make: Maker, relu: bool
) -> None:
    def made(
        x: TensorType, w: TensorType, stride: Ints, padding: Ints, dilation: Ints, groups: int,
        layout: str, kernel_layout: str, out_layout: str, axis: int, result: TensorType,
        device: Device, z: TensorType | None = None,
    ) -> OpEnv:  # fmt: skip
        if axis % result.ndim != out_layout.index("C"):
            raise Unsupported("the bias is not added to the channels")
        if z is not None and z != result:
            raise Unsupported(f"what is added is not of the convolution's type {result}")
        options = stride, padding, dilation, groups, layout, kernel_layout, out_layout
        call = op.conv2d.call_values((x, w, *options), device)
        return make(call, z is not None, relu)

    dialect.pattern_op(describes, name=name)(made)
