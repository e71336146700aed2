"""Convolutions as graphs of cuDNN, over one to three spatial axes and in any layout; over two axes
also with what follows them in one graph: bias, a tensor added, relu.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from meta import op
from meta.base.device import Device
from meta.base.dtype import is_float
from meta.dialect.core import OpEnv, Unsupported, decline_if, require_static, shared_patterns
from meta.dialect.core.dialect import overwrites_capture
from meta.dialect.core.ir_calls import called_op
from meta.dialect.cudnn import cudnn as dialect
from meta.dialect.cudnn.graph import Graph, Operand
from meta.dialect.cudnn.plans import planned
from meta.ir import Function, bindings
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.check import pair
from meta.op.core.slot import Ints
from meta.op.core.window import DATA, KERNEL, pads

DEPTHWISE = (
    "cuDNN's kernels for groups of one channel, the channels last, take 10 to 40 times as long as "
    "others"
)
"""[64, 56, 56, 96] of bfloat16 by windows of 7x7: 1.2 ms on an H200, 2026-11-26."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """A convolution of x with w to y, as cuDNN sees it: channels first, two axes at least."""

    x: Operand
    w: Operand
    y: Operand
    before: tuple[int, ...]
    after: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def window(self) -> dict[str, list[int]]:
        """The arguments of a node besides its tensors."""
        return {
            "pre_padding": list(self.before),
            "post_padding": list(self.after),
            "stride": list(self.stride),
            "dilation": list(self.dilation),
        }


def geometry(
    types: tuple[TensorType, TensorType, TensorType],
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    layouts: tuple[str, str, str],
) -> Geometry:
    """Return the geometry of a convolution by the types and layouts of x, w and y."""
    require_static(*types)
    dtype, count = types[0].dtype, types[0].ndim - 2
    decline_if(not is_float(dtype), f"cuDNN has no convolution of {dtype}")
    decline_if(not all(t.size for t in types), "there is an empty tensor")
    _require_layouts(*layouts)
    each, channels = (
        t.static_shape[layout.index(axis)]
        for t, layout, axis in ((types[1], layouts[1], "I"), (types[0], layouts[0], "C"))
    )
    alone = each == 1 and channels > 1
    decline_if(alone and layouts[0][-1] == "C", DEPTHWISE)
    orders = DATA[count], KERNEL[count], DATA[count]
    x, w, y = (
        Operand.compact(type_.static_shape, dtype, layout, order)
        for type_, layout, order in zip(types, layouts, orders, strict=True)
    )
    around = pads(padding, count)
    steps, apart = pair(stride, "stride", count), pair(dilation, "dilation", count)
    window = [around[:count], around[count:], steps, apart]
    if count == 1:
        x, w, y = (operand.with_axis(2) for operand in (x, w, y))
        window = [(one, *values) for one, values in zip((0, 0, 1, 1), window, strict=True)]
    return Geometry(x, w, y, *window)


def _fprop(graph: Graph, g: Geometry) -> None:
    y = graph.node.conv_fprop(graph.argument(g.x), graph.argument(g.w), **g.window)
    graph.result(y, g.y)


def _dgrad(graph: Graph, g: Geometry) -> None:
    w, dy = graph.argument(g.w), graph.argument(g.y)
    graph.result(graph.node.conv_dgrad(dy, w, **g.window), g.x)


def _wgrad(graph: Graph, g: Geometry) -> None:
    x, dy = graph.argument(g.x), graph.argument(g.y)
    graph.result(graph.node.conv_wgrad(x, dy, **g.window), g.w)


def _convolution(
    describe: Callable[..., None],
    call: CallValues,
    x: TensorType,
    w: TensorType,
    y: TensorType,
    *options: bool,
) -> OpEnv:
    """Return the plan of a call that has x, w and y of these types; options are `describe`'s."""
    a = call.args
    layouts = a.layout, a.kernel_layout, a.out_layout
    found = geometry((x, w, y), a.stride, a.padding, a.dilation, layouts)
    return planned(describe, found, *options, dtype=x.dtype, device=call.device.ordinal)


def _require_layouts(layout: str, kernel_layout: str, out_layout: str) -> None:
    """Decline channels that come neither first nor last: cuDNN is wrong, without an error."""
    spatial = DATA[len(layout) - 2][2:]
    fits = {layout, out_layout} <= {f"NC{spatial}", f"N{spatial}C"}
    fits = fits and kernel_layout in (f"OI{spatial}", f"O{spatial}I")
    layouts = f"{layout}, {kernel_layout} and {out_layout}"
    decline_if(not fits, f"no kernels of cuDNN are for the layouts {layouts}")


def forward(call: CallValues) -> OpEnv:
    return _convolution(_fprop, call, x=call.args.x, w=call.args.w, y=call.out)


def by_input(call: CallValues) -> OpEnv:
    return _with_y(_dgrad, call, x=call.out, w=call.args.x_or_w, y=call.args.dy)


def by_kernel(call: CallValues) -> OpEnv:
    a, count = call.args, call.args.dy.ndim - 2
    around = pads(a.padding, count)
    plain = around[:count] == around[count:] and set(pair(a.dilation, "dilation", count)) == {1}
    depthwise = call.out.is_static and call.out.shape[a.kernel_layout.index("I")] == 1
    if a.groups > 1 and (depthwise or not plain):
        raise Unsupported(
            "cuDNN was wrong for groups of one channel, and for groups with dilation or uneven "
            "padding"
        )
    return _with_y(_wgrad, call, x=a.x_or_w, w=call.out, y=a.dy)


def _with_y(describe: Callable[..., None], call: CallValues, **types: TensorType) -> OpEnv:
    """As `_convolution`, of a gradient, which may be given y, but has no use for it."""
    env = _convolution(describe, call, **types)
    return env if call.args.y is None else env.wrap(_without_y)


def _without_y(run: Callable[..., None]) -> Callable[..., None]:
    return lambda x_or_w, y, dy, out: run(x_or_w, dy, out)


for _count in (1, 2, 3):
    dialect.op(getattr(op, f"conv{_count}d"))(forward)
    dialect.op(getattr(op, f"conv{_count}d_dx"))(by_input)
    dialect.op(getattr(op, f"conv{_count}d_dw"))(by_kernel)


def _describe(graph: Graph, g: Geometry, adds: bool, relu: bool) -> None:
    """Describe y = relu(convolution + z + b), of the tensors x, w, b, z if ``adds``, and y.

    In this order of sums cuDNN has kernels that it need not compile.
    """
    x, w = graph.argument(g.x), graph.argument(g.w)
    b = graph.argument(Operand.compact((1, g.y.dims[1], 1, 1), g.y.dtype))
    y = graph.node.conv_fprop(x, w, **g.window)
    if adds:
        y = graph.node.add(y, graph.argument(g.y))
    y = graph.node.bias(y, b)
    graph.result(graph.node.relu(y) if relu else y, g.y)


def _followed(call: CallValues, adds: bool, relu: bool) -> OpEnv:
    """Return the plan of a convolution with what follows it."""
    return _convolution(_describe, call, call.args.x, call.args.w, call.out, adds, relu)


shared_patterns.register_conv_epilogues(dialect, _followed)


def _is_over_addend(function: Function, device: Device) -> bool:
    """Whether a convolution is to be written over what it adds: in half precision with relu, which
    is one kernel. Without relu cuDNN rounds the sum before it adds the bias there, and in float32
    some kernels add up several parts in the result.
    """
    result = function.result_type
    halves = isinstance(result, TensorType) and result.dtype in ("float16", "bfloat16")
    ends = any(called_op(binding.value) is op.relu for binding in bindings(function))
    return halves and ends and overwrites_capture("z", function, device)


dialect.overwrites = _is_over_addend
