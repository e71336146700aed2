"""Products and convolutions with packed weights in tensor expressions.

On the CPU `register_tiles` makes loops of a stage with the annotation `WINDOW`.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from meta import op
from meta.base.device import CPU
from meta.dialect.core import LIBRARY
from meta.dialect.tvm.broadcast import cast, computing, converted
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.register_tiles import LAYOUT, WINDOW, multiplies
from meta.dialect.tvm.target import for_device
from meta.dialect.tvm.tile_choice import tiles_of
from meta.op.core.check import pair
from meta.op.core.window import pads
from meta.op.packed import FOUR


def _level(call: Any) -> int | None:
    """Raise the level where there are tiles: ATen unpacks the weight first."""
    a, target = call.args, for_device(CPU)
    if call.device.kind == "cuda" or not multiplies(a.x.dtype, target):
        return None
    shapes, window, layout = (list(a.x.shape), list(a.weight.shape), list(call.out.shape)), [], ""
    if call.op is op.packed_conv2d:
        window, layout = window_of(a.stride, a.padding, a.dilation, a.groups), a.layout
    elif call.out.dtype == "float32":
        return LIBRARY + 1
    return LIBRARY + 1 if tiles_of(*shapes, window, layout, target) else None


def _unfit(call: Any) -> str | None:
    if call.op is op.packed_matmul:
        return None
    a = call.args
    sizes = (a.x.shape[a.layout.index(letter)] for letter in "HW")
    return None if all(isinstance(s, int) for s in sizes) else "the size of images is not known"


def window_of(stride, padding, dilation, groups):
    """Return what `WINDOW` says of a convolution."""
    around = pads(padding, 2)[:2]
    return [*pair(stride, "stride", 2), *around, *pair(dilation, "dilation", 2), groups]


def _inputs(weight, axes, c, lane):
    """Return the last of the index of a weight: of an input and an output of a block."""
    return (c, lane) if len(weight.shape) == axes else (c // FOUR, lane, c % FOUR)


@compute(op.packed_matmul, OUT_ELEMWISE_FUSABLE, level_of=_level, static=False)
def packed_matmul(x, weight, out):
    *front, k = x.shape
    blocks, _, lanes = (int(e) for e in weight.shape[:3])
    wide = computing(out.dtype)
    c = te.reduce_axis((0, k), name="c")

    def element(*at):
        *row, q = at
        factor = weight(q // lanes, *_inputs(weight, 3, c, q % lanes))
        return te.sum(cast(x(*row, c), wide) * cast(factor, wide), axis=c)

    # An annotation without a window: rows of a product.
    found = te.compute((*front, blocks * lanes), element, name="product", attrs={WINDOW: []})
    return converted(found, out.dtype, "rounded")


@compute(op.packed_conv2d, OUT_ELEMWISE_FUSABLE, when=_unfit, level_of=_level, static=False)
def packed_conv2d(x, weight, stride, padding, dilation, groups, layout, out):
    blocks, height, width, _, lanes = (int(e) for e in weight.shape[:5])
    images, channels = x.shape[layout.index("N")], int(x.shape[layout.index("C")]) // groups
    size = [int(x.shape[layout.index(letter)]) for letter in "HW"]
    window = window_of(stride, padding, dilation, groups)
    steps, before, apart = window[:2], window[2:4], window[4:6]
    wide = computing(out.dtype)
    taps = te.reduce_axis((0, height), name="p"), te.reduce_axis((0, width), name="q")
    c = te.reduce_axis((0, channels), name="c")
    per_group = blocks * lanes // groups

    def element(n, i, j, o):
        at = [p * steps[a] - before[a] + taps[a] * apart[a] for a, p in enumerate((i, j))]
        inside = te.all(at[0] >= 0, at[0] < size[0], at[1] >= 0, at[1] < size[1])
        first = o // per_group * channels if groups > 1 else 0
        places = {"N": n, "H": at[0], "W": at[1], "C": first + c}
        number = x(*(places[letter] for letter in layout))
        given = te.if_then_else(inside, number, tirx.const(0, x.dtype))
        factor = weight(o // lanes, *taps, *_inputs(weight, 5, c, o % lanes))
        return te.sum(cast(given, wide) * cast(factor, wide), axis=[*taps, c])

    shape = (images, *(int(e) for e in out.shape[1:3]), blocks * lanes)
    attrs = {WINDOW: window, LAYOUT: layout}
    found = te.compute(shape, element, name="convolution", attrs=attrs)
    return converted(found, out.dtype, "rounded")
