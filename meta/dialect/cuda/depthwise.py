"""Depthwise convolutions over images whose channels come last, and their gradients.

They multiply no matrices: each channel has a window of its own, and memory is what they wait for.
cuDNN's kernels for this layout take 10 to 40 times as long as reading and writing the images.

A thread has a few channels of a strip of pixels. What a row of the window reads of x is read once
for all pixels of the strip. Sums are in float32 and in one order.

What follows a convolution is done where it writes: a bias, a normalisation by given statistics, an
activation. As a kernel of its own it would read and write an image once more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch

from meta.dialect.core import Launch, OpEnv, decline_if, require_static
from meta.dialect.core.knobs import ask
from meta.dialect.cuda import cubin
from meta.dialect.cuda.batch_norm import common_dtype, shares
from meta.dialect.cuda.source import Parameters, source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import pair
from meta.op.core.window import pads
from meta.runtime import gpu_properties

BYTES = {"float16": 2, "bfloat16": 2, "float32": 4}
ACCESS = 8
"""Bytes of an access: of more, a thread has too few pixels."""
THREADS, OTHER_THREADS, WARP = 256, (128, 512), 32
"""Of a thread block; at most a warp of them beside one another along the channels."""
STRIP, OTHER_STRIPS = 4, (2, 8)
"""Pixels of a strip: neighbours share most of what they read."""
MOST_WINDOW = 81
"""Elements of a window whose weights fit in shared memory, and whose sums in registers."""
FEW_SUMS = 100
"""Sums of a thread of the gradient by the kernel that fit in registers."""
PER_PROCESSOR, OTHER_BLOCKS = 8, (4, 16)
"""Thread blocks that fill a processor."""
SPLITS, OTHER_SPLITS = 4, (2, 8)
"""Sums of a window's elements that are left to add up, for each processor."""
FOLLOWS = "bias", "mean", "var", "scale", "shift"
"""Tensors of what follows a convolution."""
PARAMETERS = Parameters(("x", "w", "out", "partial", *FOLLOWS), "q8if4x")


TYPES = "BIAS", "STATISTIC", "PARAMETER"
"""The types of these in the source."""
NONE: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class Window:
    """A depthwise convolution of x to y, both [N, H, W, C]: its window, height before width."""

    dtype: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    kernel: tuple[int, int]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    before: tuple[int, ...]

    @property
    def channels(self) -> int:
        """How many there are."""
        return self.x[3]

    @property
    def elements(self) -> int:
        """Of the window."""
        return self.kernel[0] * self.kernel[1]

    def turned(self) -> Window:
        """Return the convolution, of stride 1, that gives x's gradient of y's."""
        spans = zip(self.dilation, self.kernel, self.before, strict=True)
        before = tuple(d * (k - 1) - b for d, k, b in spans)
        return Window(self.dtype, self.y, self.x, self.kernel, (1, 1), self.dilation, before)


def window(call: CallValues, x: TensorType, w: TensorType, y: TensorType) -> Window:
    """Return the window of a call that has x, w and y of these types; raises Unsupported."""
    a = call.args
    require_static(x, w, y)
    decline_if(x.dtype not in BYTES, f"made for {', '.join(BYTES)}")
    layouts = a.layout, a.out_layout
    decline_if(layouts != ("NHWC", "NHWC"), "made for images whose channels come last")
    letters, extents = a.kernel_layout, w.static_shape
    channels = x.static_shape[3]
    decline_if(letters not in ("OHWI", "OIHW"), f"not made for kernels of layout {letters}")
    alone = a.groups == channels and extents[0] == channels and channels > 1
    decline_if(not alone, "made for convolutions of each channel by itself")
    decline_if(not all(t.size for t in (x, w, y)), "there is an empty tensor")
    kernel = extents[letters.index("H")], extents[letters.index("W")]
    steps, apart = pair(a.stride, "stride", 2), pair(a.dilation, "dilation", 2)
    around = pads(a.padding, 2)
    found = Window(x.dtype, x.static_shape, y.static_shape, kernel, steps, apart, around[:2])
    decline_if(found.elements > MOST_WINDOW, f"made for windows of up to {MOST_WINDOW} elements")
    return found


class Launches:
    """The launches of one convolution or gradient.

    Parameters
    ----------
    name: of the source. kernels: names in it, in order. window: of the convolution. lines: the rows
    of all images that it goes through, of this width. most: elements of an access at most. macros:
    of what else is done.
    """

    def __init__(
        self,
        name: str,
        kernels: tuple[str, ...],
        window: Window,
        lines: int,
        width: int,
        device: int,
        most: int,
        macros: Mapping[str, object] = NONE,
        types: Mapping[str, str] = NONE,
    ) -> None:
        self.name, self.kernels, self.window = name, kernels, window
        self.lines, self.device, self.macros = lines, device, macros
        self.types = {"DATA": window.dtype, **dict.fromkeys(TYPES, "float32"), **types}
        self.strip = ask("strip", STRIP, OTHER_STRIPS)
        self.threads = ask("threads", THREADS, OTHER_THREADS)
        sums = len(kernels) > 1
        default, others = (SPLITS, OTHER_SPLITS) if sums else (PER_PROCESSOR, OTHER_BLOCKS)
        self.each = ask("blocks", default, others)
        self.items = lines * -(-width // self.strip)
        self.vector = next(v for v in (4, 2, 1) if v <= most and window.channels % v == 0)
        self.processors = gpu_properties.query(device).processors
        self.kernel = cache(self._kernel)

    def _kernel(self, name: str, vector: int) -> Launch:
        grid, w = self.grid(vector), self.window
        if name != self.kernels[0]:  # it adds up what the first one wrote
            grid = -(-w.elements * w.channels // self.threads), 1
        text = self.source(vector)
        return cubin.launch(text, name, self.device, grid, self.threads, PARAMETERS.size)

    def lanes(self, vector: int) -> tuple[int, int]:
        """Return the threads of a row of channels, and how many such tiles there are."""
        return shares(self.window.channels // vector, WARP)

    def source(self, vector: int) -> str:
        """Return the source for accesses of so many elements."""
        w, (lanes, _) = self.window, self.lanes(vector)
        sizes: dict[str, object] = {"VECTOR": vector, "LANES": lanes}
        sizes |= {"ROWS": self.threads // lanes, "STRIP": self.strip}
        sizes |= self.macros
        for name in ("kernel", "stride", "dilation"):
            high, wide = getattr(w, name)
            sizes |= {f"{name.upper()}_H": high, f"{name.upper()}_W": wide}
        return source(f"depthwise_{self.name}", self.types, sizes)

    def grid(self, vector: int) -> tuple[int, int]:
        """Return the thread blocks along the strips, and tiles."""
        lanes, tiles = self.lanes(vector)
        blocks = -(-self.items // (self.threads // lanes))
        return max(1, min(blocks, self.processors * self.each // tiles)), tiles

    def env(self, *names: str, sums: bool = False, eps: float = 0.0) -> OpEnv:
        """Return what launches them with tensors of these parameters; ``sums``: the gradient by the
        kernel, in two launches; eps: of a normalisation.
        """
        w = self.window
        extents = *w.x[1:3], *w.y[1:3], w.channels, *w.before

        def run(*values: torch.Tensor) -> None:
            tensors = dict(zip(names, values, strict=True))
            moved = 0
            for name in ("x", "w", "out"):
                moved |= tensors[name].data_ptr()
            vector = self.vector
            while moved % (vector * BYTES[w.dtype]):
                vector //= 2
            blocks, _ = self.grid(vector)
            if sums:
                size = blocks * w.elements * w.channels
                device = values[0].device
                tensors["partial"] = torch.empty(size, dtype=torch.float32, device=device)
            given = PARAMETERS.packed(tensors, self.lines, *extents, blocks, eps)
            for name in self.kernels:
                self.kernel(name, vector)(given)

        blocks, _ = self.grid(self.vector)
        workspace = 4 * blocks * w.elements * w.channels if sums else 0
        return cubin.env(run, lambda: [self.source(self.vector)], self.device, workspace)


def _access(dtype: str) -> int:
    return ACCESS // BYTES[dtype]


def _summed(
    found: Window,
    device: int,
    macros: Mapping[str, object] = NONE,
    types: Mapping[str, str] = NONE,
) -> Launches:
    lines, most = found.y[0] * found.y[1], _access(found.dtype)
    kernels = ("depthwise",)
    return Launches("forward", kernels, found, lines, found.y[2], device, most, macros, types)


def forward(call: CallValues) -> OpEnv:
    """Return the launch of a convolution."""
    found = window(call, call.args.x, call.args.w, call.outputs[0])
    return _summed(found, call.device.ordinal).env("x", "w", "out")


def followed(
    call: CallValues,
    given: Mapping[str, TensorType | None],
    macros: Mapping[str, object] = NONE,
    eps: float = 0.0,
) -> OpEnv:
    """Return the launch of a convolution with what follows it: tensors of `FOLLOWS`, in the order
    in which they come behind x and w, and the macros of an activation.
    """
    found = window(call, call.args.x, call.args.w, call.outputs[0])
    types = {
        "BIAS": common_dtype(bias=given.get("bias")),
        "STATISTIC": common_dtype(mean=given.get("mean"), var=given.get("var")),
        "PARAMETER": common_dtype(scale=given.get("scale"), shift=given.get("shift")),
    }
    decline_if(not {*types.values()} <= {*BYTES}, f"made for {', '.join(BYTES)}")
    does = {"BIASED": "bias", "NORMALISED": "mean"}
    flags = {flag: 1 for flag, name in does.items() if given.get(name) is not None}
    names = [name for name, type_ in given.items() if type_ is not None]
    launches = _summed(found, call.device.ordinal, {**flags, **macros}, types)
    return launches.env("x", "w", *names, "out", eps=eps)


def by_input(call: CallValues) -> OpEnv:
    """Return the launch of the gradient by x: of stride 1, that of another convolution."""
    found = window(call, call.outputs[0], call.args.x_or_w, call.args.dy)
    device = call.device.ordinal
    if set(found.stride) == {1}:
        env = _summed(found.turned(), device, {"FLIPPED": 1}).env("w", "x", "out")
    else:
        lines, most = found.x[0] * found.x[1], _access(found.dtype)
        made = Launches("dx", ("depthwise_dx",), found, lines, found.x[2], device, most)
        env = made.env("w", "x", "out")
    return with_y(env, call)


def by_kernel(call: CallValues) -> OpEnv:
    """Return the two launches of the gradient by w."""
    found = window(call, call.args.x_or_w, call.outputs[0], call.args.dy)
    lines, most = found.y[0] * found.y[1], 2 if 2 * found.elements <= FEW_SUMS else 1
    kernels = "sums", "finish"
    made = Launches("dw", kernels, found, lines, found.y[2], call.device.ordinal, most)
    return with_y(made.env("x", "w", "out", sums=True), call)


def with_y(env: OpEnv, call: CallValues) -> OpEnv:
    """A gradient may be given y, but has no use for it."""
    return env if call.args.y is None else env.wrap(_without_y)


def _without_y(run: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x_or_w, y, dy, out: run(x_or_w, dy, out)
