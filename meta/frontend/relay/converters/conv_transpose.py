"""Converters of transposed convolutions.

The kernel is (in, out/groups, ...). What that order is called changed: TVM up to 0.7 says OIHW and
means it, 0.8 to 0.11 say IOHW where they mean it and have another order as default, later versions
have IOHW as default. The text of a program does not say its version.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.core.products import product
from meta.frontend.relay.converters.conv import require_kernel
from meta.frontend.relay.layout import change_layout, to_plain
from meta.frontend.relay.registry import relay
from meta.frontend.relay.windows import extents, per_axis, plain
from meta.op.core.window import exchanged

BASES = {1: op.conv1d_transpose, 2: op.conv2d_transpose, 3: op.conv3d_transpose}


def _kernel_layout(stated: str, call: CallSite) -> str:
    """Return what a call's layout is called since 0.12: I is the input's channels."""
    if call.version is None:
        return stated
    absent = "kernel_layout" not in call.given
    if call.version <= (0, 7):
        return exchanged(stated) if stated.index("O") < stated.index("I") else stated
    return exchanged(stated) if absent and call.version <= (0, 11) else stated


def transpose(
    data: Any,
    weight: Any,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    output_padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    kernel_size: tuple[int, ...] | None,
    data_layout: str,
    kernel_layout: str,
    out_layout: str,
    out_dtype: str,
    call: CallSite,
) -> Any:
    """Return a transposed convolution as the operators of this family describe it."""
    stored = _kernel_layout(kernel_layout, call)
    x, w = to_plain(data, data_layout), to_plain(weight, stored)
    letters, kernel, result = plain(data_layout), plain(stored), out_layout or data_layout
    require_kernel(w, kernel, kernel_size)
    channels, inputs = extents(x, letters, "C"), extents(w, kernel, "I")
    if channels != inputs:
        raise Unconvertible(
            f"the weight has {inputs[0]} input channels (layout {stored}), the data {channels[0]}",
            hint="the kernel's layout, of which old files say another than they have",
        )
    window = (*map(per_axis, (strides, padding, output_padding, dilation)), groups)
    layouts = (letters, kernel, plain(result))
    y = product(lambda a, b: BASES[x.ndim - 2](a, b, *window, *layouts), x, w, out_dtype)
    return change_layout(y, plain(result), result)


for _count in BASES:
    # The number of channels is that of the weight.
    relay(f"nn.conv{_count}d_transpose", BASES[_count], ignore=("channels",))(transpose)
