"""Convolutions over images whose channels come last: each channel by itself, or in groups, also
with what follows them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meta import op
from meta.base.device import Device
from meta.dialect.core import OpEnv, decline_if, shared_patterns
from meta.dialect.core.knobs import tunable
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda import depthwise, grouped
from meta.dialect.cuda.activations import ACTIVATIONS, Activation, macros, with_numbers
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.slot import Ints

Maker = Callable[[CallValues], OpEnv]


def _either(alone: Maker, in_groups: Maker, kernel: Callable[[CallValues], TensorType]) -> Maker:
    """Return a maker by how many channels of x a group has."""

    @tunable
    def make(call: CallValues) -> OpEnv:
        extents, letters = kernel(call).shape, call.args.kernel_layout
        return (alone if extents[letters.index("I")] == 1 else in_groups)(call)

    return make


dialect.op(op.conv2d)(_either(depthwise.forward, grouped.forward, lambda call: call.args.w))
dialect.op(op.conv2d_dx)(
    _either(depthwise.by_input, grouped.by_input, lambda call: call.args.x_or_w)
)
dialect.op(op.conv2d_dw)(
    _either(depthwise.by_kernel, grouped.by_kernel, lambda call: call.outputs[0])
)


def _is_depthwise(call: CallValues) -> bool:
    return bool(call.args.w.shape[call.args.kernel_layout.index("I")] == 1)


@tunable
def _followed(call: CallValues, adds: bool, relu: bool) -> OpEnv:
    if adds or not _is_depthwise(call):
        return grouped.followed(call, adds, relu)
    y = call.outputs[0]
    behind = macros("relu") if relu else {}
    return depthwise.followed(call, {"bias": y.with_shape(y.shape[-1:])}, behind)


shared_patterns.register_conv_epilogues(dialect, _followed)


def _describes(activation: Activation | None) -> Callable[..., Any]:
    """A convolution with a normalisation by given statistics, or an activation, or both; there may
    be a bias before these.
    """

    def described(
        numbers, x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, bias,
        at, mean, var, scale, shift, momentum, eps, axis,
    ):  # fmt: skip
        options = stride, padding, dilation, groups, layout, kernel_layout, out_layout
        y = op.conv2d.plain(x, w, *options)
        y = op.bias_add(y, bias, at) | y
        normal = op.batch_norm_infer(y, mean, var, scale, shift, momentum, eps, axis)
        return normal if activation is None else activation.value(normal | y, *numbers)

    return with_numbers(() if activation is None else activation.numbers, described)


def _define(name: str, activation: Activation | None) -> None:
    """Register depthwise convolutions with what follows them."""

    @tunable
    def make(
        x: TensorType, w: TensorType, stride: Ints, padding: Ints, dilation: Ints, groups: int,
        layout: str, kernel_layout: str, out_layout: str, bias: TensorType | None, at: int | None,
        mean: TensorType | None, var: TensorType | None, scale: TensorType | None,
        shift: TensorType | None, eps: float | None, axis: int | None, device: Device,
        first: float | None = None, second: float | None = None,
    ) -> OpEnv:  # fmt: skip
        options = stride, padding, dilation, groups, layout, kernel_layout, out_layout
        call = op.conv2d.call_values((x, w, *options), device)
        decline_if(not _is_depthwise(call), "made for convolutions of each channel by itself")
        y = call.outputs[0]
        others = [i for i in (at, axis) if i is not None and i % y.ndim != y.ndim - 1]
        decline_if(bool(others), "what follows is not along the channels")
        given = {"bias": bias, "mean": mean, "var": var, "scale": scale, "shift": shift}
        behind = {} if activation is None else macros(name, first=first, second=second)
        return depthwise.followed(call, given, behind, eps or 0.0)

    suffix = "norm" if activation is None else name
    dialect.pattern_op(_describes(activation), name=f"conv2d_{suffix}")(make)


_define("", None)
for _name, _activation in ACTIVATIONS.items():
    _define(_name, _activation)
