"""Converters of convolutions in one, two and three dimensions, those in blocked layouts included.

Transposed convolutions are in `conv_transpose.py`, kernels that were transformed before in
`conv_transformed.py`.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.products import product
from meta.frontend.relay.layout import change_layout, to_plain
from meta.frontend.relay.registry import relay
from meta.frontend.relay.windows import extents, per_axis, plain
from meta.op.core.window import DATA, KERNEL

BASES = {1: op.conv1d, 2: op.conv2d, 3: op.conv3d}
NAMES = {
    1: ("nn.conv1d",),
    # Those with NCHWc in their name state blocked layouts, and are the same otherwise.
    2: (
        "nn.conv2d",
        "nn.contrib_conv2d_NCHWc",
        "nn.contrib_conv2d_NCHWc_int8",
        "nn.contrib_depthwise_conv2d_NCHWc",
    ),
    3: ("nn.conv3d",),
}


def require_kernel(weight: Any, layout: str, kernel_size: tuple[int, ...] | None) -> None:
    """Raise Unconvertible if the spatial extents of a kernel are not those that a call states."""
    if kernel_size is None:
        return
    letters = "DHW"[3 - (len(layout) - 2) :]
    found = extents(weight, layout, letters)
    stated = kernel_size if len(kernel_size) == len(letters) else kernel_size * len(letters)
    if found != tuple(stated):
        raise Unconvertible(f"kernel_size={kernel_size} is not that of the weight, {found}")


def _one_kernel_per_output(
    weight: Any, layout: str, order: str, channels: Any, groups: int
) -> tuple[Any, str]:
    """Return a kernel in the order of `KERNEL`, one per output channel, where it is that of a
    depthwise convolution with several outputs per channel: [C, multiplier, ...], as layouts like
    HWOI have it. Any other is returned as it is.
    """
    outputs, inputs = extents(weight, layout, order[:2])
    if not (groups > 1 and groups == channels == outputs and inputs > 1):
        return weight, layout
    weight = change_layout(weight, layout, order)
    return op.reshape(weight, (outputs * inputs, 1, *weight.shape[2:])), order


def convolve(
    data: Any,
    weight: Any,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    kernel_size: tuple[int, ...] | None,
    data_layout: str,
    kernel_layout: str,
    out_layout: str,
    out_dtype: str,
) -> Any:
    """Return a convolution as the operators of this family describe it."""
    x, w = to_plain(data, data_layout), to_plain(weight, kernel_layout)
    count = x.ndim - 2
    letters, kernel, result = plain(data_layout), plain(kernel_layout), out_layout or data_layout
    require_kernel(w, kernel, kernel_size)
    (channels,) = extents(x, letters, "C")
    w, kernel = _one_kernel_per_output(w, kernel, KERNEL[count], channels, groups)
    window = (per_axis(strides), per_axis(padding), per_axis(dilation), groups)
    layouts = (letters, kernel, plain(result))
    y = product(lambda a, b: BASES[count](a, b, *window, *layouts), x, w, out_dtype)
    return change_layout(y, plain(result), result)


for _count, _names in NAMES.items():
    # The number of channels is that of the weight.
    relay(*_names, BASES[_count], ignore=("channels",))(convolve)


@relay("nn.conv2d_backward_weight", op.conv2d_dw, ignore=("channels",))
def conv2d_backward_weight(
    grad: Any,
    data: Any,
    *,
    strides: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    groups: int,
    kernel_size: tuple[int, ...] | None,
    data_layout: str,
    kernel_layout: str,
    out_layout: str,
    out_dtype: str,
) -> Any:
    """The attributes hold the layouts of (grad, data, result) as those of (data, kernel, out)."""
    if kernel_size is None:
        raise Unconvertible("kernel_size is needed: other kernels have the same result's extents")
    given = kernel_layout if "N" in kernel_layout else DATA[2]
    result = out_layout if "O" in out_layout else KERNEL[2]
    dy, x = to_plain(grad, data_layout), to_plain(data, given)
    (outputs,), (inputs,) = extents(dy, plain(data_layout), "C"), extents(x, plain(given), "C")
    height, width = kernel_size if len(kernel_size) == 2 else kernel_size * 2
    sizes = {"O": outputs, "I": inputs // groups, "H": height, "W": width}
    shape = tuple(sizes[letter] for letter in plain(result))
    window = (per_axis(strides), per_axis(padding), per_axis(dilation), groups)
    layouts = (plain(given), plain(result), plain(data_layout))

    def gradient(a: Any, b: Any) -> Any:
        return op.conv2d_dw(b, None, a, shape, *window, *layouts)

    return change_layout(product(gradient, dy, x, out_dtype), plain(result), result)
