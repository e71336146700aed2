"""Which convolutions have loops of their own on the CPU (`meta.dialect.tvm.direct_conv`): of few
products, whose kernels and images a library would lay out anew, which takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

LEAST = 8
"""Channels next to each other of which there have to be a multiple."""
MOST_WORK = 1 << 24
"""Products, at most, of a convolution that is not depthwise."""
LAYOUTS = "NHWC", "OHWI", "NHWC"
"""Of the image that is read, the kernel, and the result."""
DTYPES = "float32", "float64"


def is_depthwise(channels: int, outputs: int, groups: int) -> bool:
    """Whether each channel has a kernel of its own, and makes one channel."""
    return groups == channels == outputs


def is_direct(kernel: Sequence[Any], groups: int, pixels: Any, kept: Sequence[str] = "OI") -> bool:
    """Whether a convolution has these loops.

    kernel: its extents in the order [O, I, H, W]. pixels: of all results. kept: which channels are
    next to each other, of "O" and "I": those of the result, or of what is read.
    """
    if not all(isinstance(e, int) and e > 0 for e in (*kernel, pixels)):
        return False
    outputs, inputs, *taps = kernel
    if is_depthwise(inputs * groups, outputs, groups):
        return bool(outputs % LEAST == 0)
    if prod(taps) == 1 == groups or prod(kernel) * pixels > MOST_WORK:
        return False
    each = {"O": outputs // groups, "I": inputs}
    return all(each[letter] % LEAST == 0 for letter in kept)
