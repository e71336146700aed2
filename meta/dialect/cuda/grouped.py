"""Convolutions in groups over images of half precision whose channels come last, and their
gradients, on tensor cores.

cuDNN transforms the layouts of all that such a convolution reads and writes, which takes ten times
as long as memory does. Here a thread block has the pixels of a tile for a few neighbouring groups:
it copies what their windows read to shared memory, the next tile while it sums up this one.
Products are of 16 x 16 by 16 x 8 numbers, sums in float32 and in one order.

The gradient by x is the same kernel, whose windows are turned round; for strides it has the pixels
in phases, each of which some elements of the window give. The gradient by the kernel sums up parts
of the pixels, then the parts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product

import torch

from meta.dialect.core import Launch, OpEnv, decline_if, require_static
from meta.dialect.core.knobs import ask
from meta.dialect.cuda import cubin
from meta.dialect.cuda import grouped_plan as planning
from meta.dialect.cuda.depthwise import with_y
from meta.dialect.cuda.grouped_plan import CHUNK, Plan, Warps, Windows
from meta.dialect.cuda.source import Parameters, source
from meta.dialect.cuda.tensor_core import HALF, require_tensor_cores
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import pair
from meta.op.core.window import pads
from meta.runtime import gpu_properties

MOST_CHANNELS = 24
"""Of a group. On an H100, cuDNN takes 2 to 9 times as long with 24 channels, 1.1 times with 16, but
half as long with 32, and a third with 64.
"""
PARAMETERS = Parameters(("x", "w", "bias", "z", "out", "partial"), "11i4x")
PAIR = 4
"""Bytes of a pair of elements."""
FINISH = 256
"""Threads of a thread block that adds up parts."""


@dataclass(frozen=True)
class Grouped:
    """A convolution in groups of x to y, both [N, H, W, C]; kernels are [O, H, W, I]."""

    dtype: str
    x: tuple[int, ...]
    y: tuple[int, ...]
    groups: int
    kernel: tuple[int, int]
    stride: tuple[int, int]
    dilation: tuple[int, int]
    before: tuple[int, int]

    @property
    def channels(self) -> tuple[int, int]:
        """Of a group, in x and in y."""
        return self.x[3] // self.groups, self.y[3] // self.groups

    @property
    def elements(self) -> int:
        """Of the window."""
        return self.kernel[0] * self.kernel[1]

    @cached_property
    def forward(self) -> Windows:
        """What the windows read of x."""
        read, given = self.channels
        spans = [d * (k - 1) + 1 for d, k in zip(self.dilation, self.kernel, strict=True)]
        return Windows(
            self.x[0], self.groups, read, given, (self.y[1], self.y[2]), self.stride,
            (-self.before[0], -self.before[1]), (spans[0], spans[1]),
            -(-self.elements * read // CHUNK // 4),
        )  # fmt: skip

    @cached_property
    def backward(self) -> Windows:
        """What the windows of x's gradient read of y's; a window is that of all phases."""
        given, read = self.channels
        axes = [self._phases(axis) for axis in range(2)]
        origin, last = ([pick(o for p in axis for o in p) for axis in axes] for pick in (min, max))
        counts = [len(a) * len(b) * read // CHUNK for a, b in product(*axes)]
        base = [-(-n // s) for n, s in zip(self.x[1:3], self.stride, strict=True)]
        return Windows(
            self.x[0], self.groups, read, given, (base[0], base[1]), (1, 1),
            (origin[0], origin[1]), (last[0] - origin[0] + 1, last[1] - origin[1] + 1),
            sum(-(-n // 4) for n in counts), over=self.stride[0] * self.stride[1],
        )  # fmt: skip

    def _phases(self, axis: int) -> list[list[int]]:
        """Return, by phase of x, where on an axis pixels of y lie that have it in a window."""
        stride = self.stride[axis]
        taps = [self.before[axis] - k * self.dilation[axis] for k in range(self.kernel[axis])]
        return [[(p + o) // stride for o in taps if (p + o) % stride == 0] for p in range(stride)]

    def macros(self, windows: Windows, plan: Plan, **others: object) -> dict[str, object]:
        """Return the numbers that both sources take."""
        pairs = {"TILE": plan.tile, "PATCH": plan.patch, "STEP": windows.step}
        pairs |= {"ORIGIN": windows.origin, "KERNEL": self.kernel, "DILATION": self.dilation}
        sizes: dict[str, object] = {"READ": windows.read, "GIVEN": windows.given}
        for name, (high, wide) in pairs.items():
            sizes |= {f"{name}_H": high, f"{name}_W": wide}
        sizes |= {"GROUPS": plan.groups, "PARTS": plan.parts, "STAGES": plan.stages}
        sizes |= {"THREADS": plan.threads, "BLOCKS": plan.blocks, "HALF": HALF[self.dtype]}
        return sizes | others


def grouped(call: CallValues, x: TensorType, w: TensorType, y: TensorType) -> Grouped:
    """Return the convolution of a call that has x, w and y of these types; raises Unsupported."""
    a = call.args
    require_static(x, w, y)
    decline_if(x.dtype not in HALF, f"made for {', '.join(HALF)}")
    layouts = a.layout, a.kernel_layout, a.out_layout
    decline_if(layouts != ("NHWC", "OHWI", "NHWC"), "made for channels that come last")
    decline_if(not all(t.size for t in (x, w, y)), "there is an empty tensor")
    decline_if(a.groups == 1, "made for convolutions in groups")
    high, wide = w.static_shape[1:3]
    top, left, *_ = pads(a.padding, 2)
    (down, right), apart = pair(a.stride, "stride", 2), pair(a.dilation, "dilation", 2)
    found = Grouped(
        x.dtype, x.static_shape, y.static_shape, a.groups, (high, wide), (down, right),
        (apart[0], apart[1]), (top, left),
    )  # fmt: skip
    fits = all(n % CHUNK == 0 and n <= MOST_CHANNELS for n in found.channels)
    reason = f"made for groups of multiples of {CHUNK} channels, up to {MOST_CHANNELS}"
    decline_if(not fits, f"{reason}, not {found.channels}")
    require_tensor_cores(call.device)
    return found


class Launches:
    """The launches of one convolution or gradient: of a source's kernels, as planned."""

    def __init__(self, name: str, windows: Windows, plan: Plan, device: int, text: str) -> None:
        self.name, self.windows, self.plan, self.device = name, windows, plan, device
        self.text = text
        self.kernel = cache(self._kernel)

    def _kernel(self, name: str, grid: tuple[int, int], threads: int) -> Launch:
        return cubin.launch(self.text, name, self.device, grid, threads, PARAMETERS.size)

    def parameters(
        self, tensors: dict[str, torch.Tensor], read: tuple[int, ...], given: tuple[int, ...]
    ) -> bytes:
        """Return those of a launch, by the extents of what is read and of the other side."""
        w = self.windows
        ends = zip(w.base, w.step, w.origin, w.span, read[1:3], strict=True)
        seen = [min(n, (b - 1) * step + at + span) for b, step, at, span, n in ends]
        extents = *read[:3], *seen, *given[1:3], w.groups, *self.plan.tiles, self.plan.grid[0]
        return PARAMETERS.packed(tensors, *extents)

    def launch(self, parameters: bytes) -> None:
        """Launch the kernel that goes through the tiles."""
        self.kernel(self.name, self.plan.grid, self.plan.threads)(parameters)

    def fill(
        self,
        out: torch.Tensor,
        tensors: dict[str, torch.Tensor],
        read: tuple[int, ...],
        given: tuple[int, ...],
    ) -> None:
        """Launch it for a result, which it writes in pairs of elements."""
        to = out.clone() if out.data_ptr() % PAIR else out
        self.launch(self.parameters(tensors | {"out": to}, read, given))
        if to is not out:
            out.copy_(to)

    def env(self, run: Callable[..., None], workspace: int = 0) -> OpEnv:
        """Return what launches them by ``run``."""
        return cubin.env(run, lambda: [self.text], self.device, workspace)


def _planned(windows: Windows, warps: Warps, device: int) -> Plan:
    found = planning.best(windows, warps, gpu_properties.query(device).processors)
    decline_if(not found, "a window's pixels do not fit in shared memory")
    return found[ask("plan", 0, range(1, len(found)))]


def _summed(found: Grouped, windows: Windows, device: int, *flags: str) -> Launches:
    """Return the launch of a convolution, or of the gradient by x."""
    matrices = windows.given // CHUNK
    decline_if(windows.steps > planning.MOST_WEIGHTS, "a window's weights do not fit in registers")
    parts = planning.equal_shares(matrices, planning.MOST_WEIGHTS // windows.steps)
    each = matrices // parts
    pitch = windows.read // CHUNK
    pitch += 4 * (pitch % 8 == 0)
    held, products = windows.steps * (4 * each + 1) + 4 * each, windows.steps * each * 2
    warps = Warps(parts, held, (pitch, 0), products, accesses=2 * windows.steps)
    plan = _planned(windows, warps, device)
    over = found.stride if "GRADIENT" in flags else (1, 1)
    sizes = found.macros(windows, plan, PITCH=pitch, SHARES=plan.shares, COLUMNS=each * CHUNK)
    for name, (high, wide) in {"OVER": over, "BEFORE": found.before}.items():
        sizes |= {f"{name}_H": high, f"{name}_W": wide}
    sizes |= dict.fromkeys(flags, 1)
    text = source("grouped_forward", {"DATA": found.dtype}, sizes)
    return Launches("grouped", windows, plan, device, text)


def _ready(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that can be read by chunks."""
    return tensor.clone() if tensor.data_ptr() % (2 * CHUNK) else tensor


def forward(call: CallValues) -> OpEnv:
    """Return the launch of a convolution."""
    return _convolution(call, ("x", "w"))


def followed(call: CallValues, adds: bool, relu: bool) -> OpEnv:
    """Return the launch of a convolution with a bias, perhaps a sum, and relu behind it or not."""
    flags = ["BIASED", *["ADDED"] * adds, *["RECTIFIED"] * relu]
    return _convolution(call, ("x", "w", "bias", *["z"] * adds), *flags)


def _convolution(call: CallValues, names: tuple[str, ...], *flags: str) -> OpEnv:
    found = grouped(call, call.args.x, call.args.w, call.outputs[0])
    made = _summed(found, found.forward, call.device.ordinal, *flags)

    def run(*values: torch.Tensor) -> None:
        *given, out = values
        tensors = {n: _ready(t) for n, t in zip(names, given, strict=True)}
        made.fill(out, tensors, found.x, found.y)

    return made.env(run)


def by_input(call: CallValues) -> OpEnv:
    """Return the launch of the gradient by x."""
    found = grouped(call, call.outputs[0], call.args.x_or_w, call.args.dy)
    made = _summed(found, found.backward, call.device.ordinal, "GRADIENT")

    def run(w: torch.Tensor, dy: torch.Tensor, out: torch.Tensor) -> None:
        made.fill(out, {"x": _ready(dy), "w": w}, found.y, found.x)

    return with_y(made.env(run), call)


def by_kernel(call: CallValues) -> OpEnv:
    """Return the two launches of the gradient by w."""
    found = grouped(call, call.args.x_or_w, call.outputs[0], call.args.dy)
    few = found.channels == (CHUNK, CHUNK)
    decline_if(few, f"groups have {CHUNK} channels: cuDNN takes 0.94 times as long")
    windows, device = found.forward, call.device.ordinal
    chunks, matrices = found.elements * windows.read // CHUNK, windows.given // CHUNK
    rows = -(-chunks // 2)
    parts = -(-rows // (planning.MOST_SUMS // matrices))
    decline_if(parts * planning.WARP > planning.MOST_THREADS, "made for fewer weights in a group")
    each = -(-rows // parts)
    pitches = windows.read // CHUNK | 1, matrices | 1
    held, products = 4 * each * matrices + each + 2 * matrices, each * matrices
    warps = Warps(parts, held, pitches, products, accesses=each + matrices)
    plan = _planned(windows, warps, device)
    splits = plan.grid[0]
    slices = 16 if splits >= 64 else 4 if splits >= 8 else 1
    sizes = found.macros(windows, plan, PITCH=pitches[0], PITCH_Y=pitches[1], PART=each)
    text = source("grouped_dw", {"DATA": found.dtype}, sizes | {"SLICES": slices})
    made = Launches("sums", windows, plan, device, text)
    size = found.y[3] * found.elements * windows.read

    def run(x: torch.Tensor, dy: torch.Tensor, out: torch.Tensor) -> None:
        partial = torch.empty(splits * size, dtype=torch.float32, device=x.device)
        tensors = {"x": _ready(x), "z": _ready(dy), "out": out, "partial": partial}
        given = made.parameters(tensors, found.x, found.y)
        made.launch(given)
        made.kernel("finish", (-(-size * slices // FINISH), 1), FINISH)(given)

    return with_y(made.env(run, workspace=4 * splits * size), call)
