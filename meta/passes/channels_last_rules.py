"""How operators on images are written with the channels last: what `channels_last` goes by.

How an operator is written for channels last is a rule, a function of an `ImageCall`. To add one,
give it a row of `RULES`; operators without a row may be `elementwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from meta import op
from meta.amp.cast_rule import HALVES
from meta.base import config
from meta.base.device import Device
from meta.base.source import Span
from meta.dialect.core.ir_calls import tensor_of, tensor_type
from meta.ir import (
    Call,
    Expr,
    SymbolicDim,
    TensorType,
    Tuple,
    TupleType,
    Type,
    Var,
    type_bytes,
    type_of,
)
from meta.op import small_conv
from meta.op.core import Op
from meta.op.core.check import normalize_axes
from meta.op.core.window import pad_pairs

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""The axes of an array with its channels first, in the order with the channels last; and back."""
Ints = int | tuple[int, ...]
AXIS_END = 2**63 - 1
"""An end behind the end of every axis."""
LAYOUTS = {"layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def is_image(type_: Type | None) -> bool:
    """Whether a type is that of images; their number may be a symbolic dimension."""
    if not isinstance(type_, TensorType) or type_.ndim != 4:
        return False
    count, *extents = type_.shape
    return isinstance(count, int | SymbolicDim) and all(isinstance(d, int) for d in extents)


def channels_last_type(type_: Type) -> TensorType:
    """Return the type of an array with the channels last."""
    assert isinstance(type_, TensorType)
    return type_.with_shape(tuple(type_.shape[i] for i in LAST))


class Images(Protocol):
    """What knows which arrays there are with the channels last, on ``device``. ``tries``: whether
    convolutions are to have them whatever is gained.
    """

    @property
    def device(self) -> Device: ...

    @property
    def tries(self) -> bool: ...

    def has_last(self, atom: Expr) -> bool:
        """Whether an array is there with the channels last."""

    def last(self, atom: Expr, span: Span | None) -> Var:
        """Return an array with the channels last."""

    def convolves(self, kernel: Expr, *images: Expr) -> None:
        """Note a convolution, its kernel and images; these are none for a product of matrices."""

    def only_fields(self, var: Var) -> bool:
        """Whether a tuple is taken apart wherever it is used."""


@dataclass(frozen=True, slots=True)
class ImageCall:
    """A call where it stands.

    op: the operator. args: its arguments by name. function: which knows what has the channels last.
    result: what the call is bound to. span: the user's line.
    """

    op: Op
    args: dict[str, Any]
    function: Images
    result: Var
    span: Span | None

    def has(self, *names: str) -> bool:
        """Whether one of these arguments is there with the channels last."""
        return any(self.function.has_last(self.args[n]) for n in names)

    def last(self, *names: str) -> dict[str, Var]:
        """Return these arguments with the channels last."""
        return {n: self.function.last(self.args[n], self.span) for n in names}

    def call(self, **changed: Any) -> Call:
        """Return the call with some arguments changed."""
        args = {**self.args, **changed}
        return Call(self.op, tuple(args[n] for n in self.op.schema.names))


Rule = Callable[[ImageCall], Call | None]
"""Returns the call on arrays with the channels last, or None to leave it as it is."""


def conv2d(at: ImageCall) -> Call | None:
    """Both operands and the result; this is where it pays to begin."""
    if not _convolution(at, at.args["w"], at.args["x"], at.result):
        return None
    return at.call(**at.last("x", "w"), **LAYOUTS)


def conv2d_gradient(at: ImageCall) -> Call | None:
    """The shape of the result is given in its layout."""
    other, dy = at.args["x_or_w"], at.args["dy"]
    kernel, image = (other, at.result) if at.op is op.conv2d_dx else (at.result, other)
    if not _convolution(at, kernel, dy, image):
        return None
    shape = tuple(at.args["shape"][i] for i in LAST)
    return at.call(**at.last("x_or_w", "dy"), y=None, shape=shape, **LAYOUTS)


def _convolution(at: ImageCall, kernel: Expr, *images: Expr) -> bool:
    """Whether a convolution is to have the channels last; note it, if so."""
    types = [type_of(a) for a in (kernel, *images)]
    layouts = [at.args[n] for n in LAYOUTS]
    if layouts != ["NCHW", "OIHW", "NCHW"] or not all(map(is_image, types)):
        return False
    on, by_kernel = at.function.device.kind, at.op is op.conv2d_dw
    window = at.args["stride"], at.args["padding"], at.args["groups"]
    if at.function.tries:
        if tensor_of(kernel).dtype not in DTYPES[on]:
            return False
    elif not layout_pays(on, tensor_of(kernel), [tensor_of(a) for a in images], window, by_kernel):
        return False
    # With the channels first, ATen on the CPU transposes for a product, too. A gradient of a kernel
    # is a sum over images even of products.
    helps = on == "cpu" or by_kernel or not _is_product(tensor_of(kernel), window, on)
    at.function.convolves(kernel, *(images if helps else ()))
    return True


def layout_pays(
    on: str,
    kernel: TensorType,
    images: Sequence[TensorType],
    window: tuple[Ints, Ints, int],
    by_kernel: bool = False,
) -> bool:
    """Whether a convolution on a kind of device is to have its channels last, if nothing was
    measured.

    kernel: its type as [O, I, H, W]. images: those that it reads and writes. window: stride,
    padding and groups. by_kernel: whether it is the gradient of the kernel.
    """
    if kernel.dtype not in DTYPES.get(on, ()):
        return False
    if on == "cuda":
        if kernel.dtype != "float32" or config.get("META_TF32"):
            return True
        single = window[2] > 1 and kernel.shape[1] == 1
        return single and sum(map(type_bytes, images)) >= LARGE_IMAGE_BYTES
    if _is_product(kernel, window, on):
        return True
    static = bool(images) and all(i.is_static and i.size for i in images)
    # The result has the fewer pixels.
    few = min(i.size // i.static_shape[1] for i in images) if static else None
    direct = on == "cpu" and kernel.dtype in small_conv.DTYPES
    if direct and small_conv.is_direct(kernel.shape, window[2], few):
        return True
    # Another kernel is laid out anew in each call, which costs more than a few pixels gain; less so
    # one in groups, whose convolution is three to ten times as fast with the channels last.
    many = type_bytes(kernel) <= sum(map(type_bytes, images))
    return many or (window[2] > 1 and not by_kernel)


def _is_product(kernel: TensorType, window: tuple[Ints, Ints, int], on: str) -> bool:
    """Whether a convolution runs as a product of matrices; with strides, only on the CPU."""
    stride, padding, groups = window
    steps, around = (set(v if isinstance(v, tuple) else (v,)) for v in (stride, padding))
    plain = around == {0} and groups == 1 and (on == "cpu" or steps == {1})
    return kernel.shape[2:] == (1, 1) and plain


def layout_rule(*of: str, name: str, first: tuple[Any, ...], last: Any) -> Rule:
    """Return the rule of operators of which arguments have the channels last, and one attribute
    says so: the layout, or the axis of the channels. Of several results, only fields may be used.
    """

    def change(at: ImageCall) -> Call | None:
        fits = at.has(*of) and at.args[name] in first
        if not fits or (
            isinstance(at.result.type, TupleType) and not at.function.only_fields(at.result)
        ):
            return None
        return at.call(**at.last(*of), **{name: last})

    return change


def pad(at: ImageCall) -> Call | None:
    """The widths go with the axes."""
    if not at.has("x"):
        return None
    pairs = pad_pairs(at.args["pad_width"], 4)
    return at.call(**at.last("x"), pad_width=tuple(n for i in LAST for n in pairs[i]))


def strided_slice(at: ImageCall) -> Call | None:
    """A part of each axis."""
    if not at.has("x") or at.args["slice_mode"] != "end":
        return None
    begin, end, strides = (
        (v,) if isinstance(v, int) else v or (1,)
        for v in (at.args[n] for n in ("begin", "end", "strides"))
    )
    rest = 4 - len(begin)
    parts = {
        "begin": (*begin, *[0] * rest),
        "end": (*end, *[AXIS_END] * rest),
        "strides": (*(strides[i % len(strides)] for i in range(len(begin))), *[1] * rest),
    }
    return at.call(**at.last("x"), **{n: tuple(v[i] for i in LAST) for n, v in parts.items()})


def reduction(at: ImageCall) -> Call | None:
    """Axes that are left in the same order: the channels alone, or images and channels."""
    axes = at.args["axis"]
    if not at.has("x") or at.args["keepdims"]:
        return None
    gone = normalize_axes(axes, 4)
    if [i for i in LAST if i not in gone] != [i for i in range(4) if i not in gone]:
        return None
    return at.call(**at.last("x"), axis=tuple(i for i, axis in enumerate(LAST) if axis in gone))


def concat(at: ImageCall) -> Call | None:
    """Along the channels, if most parts have them last."""
    parts = at.args["arrays"].fields if isinstance(at.args["arrays"], Tuple) else ()
    having = sum(at.function.has_last(p) for p in parts)
    if at.args["axis"] not in (1, -3) or 2 * having <= len(parts):
        return None
    last = tuple(at.function.last(p, at.span) for p in parts)
    return at.call(arrays=Tuple(last), axis=3)


def elementwise(at: ImageCall) -> Call | None:
    """Operators that know no axes, of arrays that are mostly there with the channels last."""
    tensors = {n: a for n, a in at.args.items() if isinstance(a, Expr) and not _is_scalar(a)}
    if at.op.random or at.op.schema.written or not _is_axis_free(at) or not tensors:
        return None
    if not all(is_image(t) for t in (at.result.type, *map(type_of, tensors.values()))):
        return None
    having = sum(type_bytes(type_of(a)) for a in tensors.values() if at.function.has_last(a))
    if 2 * having < sum(type_bytes(type_of(a)) for a in tensors.values()) or not having:
        return None
    return at.call(**at.last(*tensors))


def _is_scalar(atom: Expr) -> bool:
    type_ = tensor_type(atom)
    return type_ is not None and type_.ndim == 0


def _is_axis_free(at: ImageCall) -> bool:
    """Whether an operator is elementwise, and no attribute of the call is a number of an axis."""
    kinds = {d.fusion for d in at.op.aspects.dialect_ops if d.fusion is not None}
    attributes = (at.args[s.name] for s in at.op.schema.slots if s.kind == "attribute")
    plain = all(isinstance(v, bool | float | str | None) for v in attributes)
    return plain and bool(kinds) and kinds <= {"elemwise", "broadcast"}


RULES: dict[Op, Rule] = {
    op.conv2d: conv2d,
    **dict.fromkeys((op.conv2d_dx, op.conv2d_dw), conv2d_gradient),
    **dict.fromkeys(
        (op.batch_norm_train, op.batch_norm_infer, op.bias_add),
        layout_rule("x", name="axis", first=(1,), last=3),
    ),
    op.batch_norm_train_dxwb: layout_rule("x", "dy", name="axis", first=(1,), last=3),
    op.split: layout_rule("x", name="axis", first=(1, -3), last=3),
    **dict.fromkeys(
        (op.max_pool2d, op.avg_pool2d, op.adaptive_max_pool2d, op.adaptive_avg_pool2d),
        layout_rule("x", name="layout", first=("NCHW",), last="NHWC"),
    ),
    **dict.fromkeys(
        (op.max_pool2d_dx, op.avg_pool2d_dx, op.adaptive_max_pool2d_dx, op.adaptive_avg_pool2d_dx),
        layout_rule("x", "y", "dy", name="layout", first=("NCHW",), last="NHWC"),
    ),
    **dict.fromkeys((op.sum, op.mean, op.var), reduction),
    op.concat: concat,
    op.pad: pad,
    op.strided_slice: strided_slice,
}


def rewritten_call(at: ImageCall) -> Call | None:
    """Return a call on arrays with the channels last, None to leave it as it is."""
    return RULES.get(at.op, elementwise)(at)


CONVOLUTIONS = op.conv2d, op.conv2d_dx, op.conv2d_dw
DTYPES = dict.fromkeys(("cuda", "cpu"), (*HALVES, "float32"))
"""By kind of device: the dtypes of convolutions that may have the channels last. float32 on the CPU
(AMD EPYC, 2 threads, 2026-11-26): of [4, 96, 16, 16] with a 3x3 kernel for each channel in 88 us of
CPU time and with the channels first in 221, its gradients in 231 and 456; in groups of 16 channels
of [4, 64, 16, 16] 187 and 253; with 64 channels 484 and 569; from 64 to 256 channels by 1x1 326 and
534. ATen's convolutions of float64 there are slower with the channels last.
float32 on CUDA (an H200, 2026-11-27), with the channels last and first: with META_TF32 ResNet-50
infers 64 images in 3.3 and 8.7 ms, MobileNetV2 in 2.4 and 6.8, a step of VGG-16 with 32 takes 15.3
and 20.8; without, ResNet-50 takes 20.9 and 16.4, and MobileNetV2 3.7 and 6.2 if that is so for the
convolutions of single channels alone, ResNeXt-50 27.2 and 22.4 if it is so for groups of four.
"""
LARGE_IMAGE_BYTES = 4 * 2**20
"""Bytes of images from which convolutions of single channels of float32 gain on CUDA. Of one image
on the same H200 MobileNetV2 infers in 0.498 ms and 0.505, EfficientNet-B0 in 0.997 and 0.958; of 64
it infers in 5.2 and 8.0.
"""
