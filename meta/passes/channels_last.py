"""Convolution networks with the channels last, from the first convolution to the last.

How an operator is written for channels last is a rule, a function of an `ImageCall`. To add one,
give it a row of `_RULES`; operators without a row may be `elementwise`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from meta import op
from meta.amp.core.resolve import HALVES
from meta.base.device import Device
from meta.base.source import Span
from meta.dialect.core import dialects
from meta.dialect.core.preference import current
from meta.ir import (
    Binding,
    Block,
    Call,
    DefUse,
    Expr,
    Function,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    operands,
    type_of,
)
from meta.ir.visit import uses
from meta.op.core import Op
from meta.op.core.check import normalize_axes, permutation
from meta.op.core.padding import pad_pairs
from meta.passes.buffers import Buffers, Summaries, owner
from meta.passes.calls import called_op, named_args, new_call, tensor_of, tensor_type
from meta.passes.lifetimes import type_bytes

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)
"""The axes of an array with its channels first, in the order with the channels last; and back."""
Ints = int | tuple[int, ...]
WHOLE = 2**63 - 1
"""An end behind the end of every axis."""
LAYOUTS = {"layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def is_image(type_: Type | None) -> bool:
    return isinstance(type_, TensorType) and type_.ndim == 4 and type_.is_static


@dataclass(frozen=True, slots=True)
class ImageCall:
    """A call where it stands.

    op: the operator. args: its arguments by name. function: which knows what has the channels last.
    result: what the call is bound to. span: the user's line.
    """

    op: Op
    args: dict[str, Any]
    function: _Function
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
    if not gains(on, tensor_of(kernel), [tensor_of(a) for a in images], window, by_kernel):
        return False
    # With the channels first, ATen on the CPU transposes for a product, too. A gradient of a kernel
    # is a sum over images even of products.
    helps = on == "cpu" or by_kernel or not _is_product(tensor_of(kernel), window, on)
    at.function.convolves(kernel, *(images if helps else ()))
    return True


def gains(
    on: str,
    kernel: TensorType,
    images: Sequence[TensorType],
    window: tuple[Ints, Ints, int],
    by_kernel: bool = False,
) -> bool:
    """Whether a convolution on a kind of device may have its channels last.

    kernel: its type as [O, I, H, W]. images: those that it reads and writes. window: stride,
    padding and groups. by_kernel: whether it is the gradient of the kernel.
    """
    if kernel.dtype not in DTYPES[on]:
        return False
    if on != "cpu" or _is_product(kernel, window, on):
        return True
    # A kernel is laid out anew in each call, which costs more than a few pixels gain; less so one
    # in groups, whose convolution is three to ten times as fast with the channels last.
    many = type_bytes(kernel) <= sum(map(type_bytes, images))
    return many or (window[2] > 1 and not by_kernel)


def _is_product(kernel: TensorType, window: tuple[Ints, Ints, int], on: str) -> bool:
    """Whether a convolution runs as a product of matrices; with strides, only on the CPU."""
    stride, padding, groups = window
    steps, around = (set(v if isinstance(v, tuple) else (v,)) for v in (stride, padding))
    plain = around == {0} and groups == 1 and (on == "cpu" or steps == {1})
    return kernel.shape[2:] == (1, 1) and plain


def moved(*of: str, name: str, first: tuple[Any, ...], last: Any) -> Rule:
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
        "end": (*end, *[WHOLE] * rest),
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
    if at.op.random or at.op.schema.written or not _knows_no_axes(at) or not tensors:
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


def _knows_no_axes(at: ImageCall) -> bool:
    """Whether an operator is elementwise, and no attribute of the call is a number of an axis."""
    kinds = {d.fusion for d in at.op.aspects.dialect_ops if d.fusion is not None}
    attributes = (at.args[s.name] for s in at.op.schema.slots if s.kind == "attribute")
    plain = all(isinstance(v, bool | float | str | None) for v in attributes)
    return plain and bool(kinds) and kinds <= {"elemwise", "broadcast"}


_RULES: dict[Op, Rule] = {
    op.conv2d: conv2d,
    **dict.fromkeys((op.conv2d_dx, op.conv2d_dw), conv2d_gradient),
    **dict.fromkeys(
        (op.batch_norm_train, op.batch_norm_infer, op.bias_add),
        moved("x", name="axis", first=(1,), last=3),
    ),
    op.batch_norm_train_dxwb: moved("x", "dy", name="axis", first=(1,), last=3),
    op.split: moved("x", name="axis", first=(1, -3), last=3),
    **dict.fromkeys(
        (op.max_pool2d, op.avg_pool2d, op.adaptive_max_pool2d, op.adaptive_avg_pool2d),
        moved("x", name="layout", first=("NCHW",), last="NHWC"),
    ),
    **dict.fromkeys(
        (op.max_pool2d_dx, op.avg_pool2d_dx, op.adaptive_max_pool2d_dx, op.adaptive_avg_pool2d_dx),
        moved("x", "y", "dy", name="layout", first=("NCHW",), last="NHWC"),
    ),
    **dict.fromkeys((op.sum, op.mean), reduction),
    op.concat: concat,
    op.pad: pad,
    op.strided_slice: strided_slice,
}
CONVOLUTIONS = op.conv2d, op.conv2d_dx, op.conv2d_dw
DTYPES = {"cuda": HALVES, "cpu": (*HALVES, "float32")}
"""By kind of device: the dtypes of convolutions that run with the channels last. float32 on the CPU
(AMD EPYC, 2 threads, 2026-11-26): of [4, 96, 16, 16] with a 3x3 kernel for each channel in 88 us of
CPU time and with the channels first in 221, its gradients in 231 and 456; in groups of 16 channels
of [4, 64, 16, 16] 187 and 253; with 64 channels 484 and 569; from 64 to 256 channels by 1x1 326 and
534. ATen's convolutions of float64 there are slower with the channels last.
"""
GAIN = {"cuda": 2, "cpu": 0.9}
"""What a convolution with the channels first costs more, as a multiple of transposing the images
that it reads and writes; on the CPU one alone stays as it is. float16 on an H200, 2026-11-22: 64
kernels of 3x3 over [64, 64, 56, 56] take 39 us with the channels last and 89 with the channels
first, and the two transposes 26; of 1x1 over [64, 256, 56, 56] 35 and 38.
"""


def channels_last(
    module: Module, *, device: Device, devices: tuple[str, ...] = ("cuda", "cpu")
) -> Module:
    """Run convolution networks with the channels last, on ``devices`` and in the `DTYPES` there.

    Tensor cores, and the vectors of a CPU, read the channels of a pixel in a row; with the channels
    first, a library transposes what it is given and what it returns, in every call. Arrays of four
    axes are kept with the channels last from operator to operator where there is a rule for it:
    convolutions and their gradients, pooling, batch normalisation, elementwise operators, sums over
    the pixels. They are transposed where another operator, or the caller, takes them. Kernels of
    convolutions, which a program gets as [O, I, H, W], are transposed once in a run, after their
    cast to half precision; on the CPU a convolution stays that reads and writes fewer bytes of
    images than it has in its kernel.
    A function without convolutions stays as it is, and so do blocks in blocks; and so does one in
    which more would be transposed than convolutions gain: on CUDA a kernel of 1x1 is a product of
    matrices with the channels first, too, and gains nothing (see `GAIN`).

    >>> from meta.base.device import Device
    >>> from meta.ir import parse
    >>> print(channels_last(parse('''
    ... func @main(%x: float16[2, 8, 6, 6], %w: float16[8, 8, 3, 3]) -> float16[2, 8, 2, 2] {
    ...   %0: float16[2, 8, 4, 4] = conv2d(%x, %w)
    ...   %1: float16[2, 8, 4, 4] = relu(%0)
    ...   %2: float16[2, 8, 2, 2] = conv2d(%1, %w)
    ...   return %2
    ... }'''), device=Device("cuda")))
    func @main(%x: float16[2, 8, 6, 6], %w: float16[8, 8, 3, 3]) -> float16[2, 8, 2, 2] {
      %last: float16[2, 6, 6, 8] = permute_dims(%x, axes=(0, 2, 3, 1))
      %last_1: float16[8, 3, 3, 8] = permute_dims(%w, axes=(0, 2, 3, 1))
      %0: float16[2, 4, 4, 8] = conv2d(%last, %last_1, layout="NHWC", kernel_layout="OHWI", \
out_layout="NHWC")
      %1: float16[2, 4, 4, 8] = relu(%0)
      %2: float16[2, 2, 2, 8] = conv2d(%1, %last_1, layout="NHWC", kernel_layout="OHWI", \
out_layout="NHWC")
      %3: float16[2, 8, 2, 2] = permute_dims(%2, axes=(0, 3, 1, 2))
      return %3
    }
    """
    if device.kind not in devices or not any(
        _convolves(f, device) for f in module.functions.values()
    ):
        return module
    _load_kinds()
    summaries = Summaries(module)
    functions = {
        name: _Function(f, Buffers(f, summaries), device).rewritten()
        if _convolves(f, device)
        else f
        for name, f in module.functions.items()
    }
    return module.with_functions(functions)


def _load_kinds() -> None:
    """Import a dialect that says which operators are elementwise, an excluded one if need be."""
    refusal = current().refusal
    for dialect in sorted(dialects(), key=lambda one: refusal(one.name) is not None):
        dialect.load()
        if any(kernel.fusion is not None for kernel in dialect.ops.values()):
            return


def _convolves(function: Function, device: Device) -> bool:
    """Whether there is a convolution of one of the dtypes outside of inner blocks."""
    found = (b.var for b in function.body.bindings if called_op(b.value) in CONVOLUTIONS)
    return any(tensor_of(var).dtype in DTYPES[device.kind] for var in found)


class _Function:
    """A function on its way to run on ``device``: which arrays there are with the channels last."""

    def __init__(self, function: Function, buffers: Buffers, device: Device) -> None:
        self._function, self._buffers, self.device = function, buffers, device
        self._uses = DefUse(function)
        self._written = {
            owner(b) for bound in function.body.bindings for b in buffers.written_by(bound)
        }
        self._made: list[Binding] = []
        self._last: dict[Expr, Var] = {}
        # Arrays that there are with the channels last only.
        self._only: set[Expr] = set()
        # Tuples with such fields: what they became, and the numbers of these fields.
        self._tuples: dict[Expr, tuple[Var, frozenset[int]]] = {}
        # Kernels of convolutions, which are small beside images, and often transposed beforehand.
        self._kernels: set[Expr] = set()
        # Bytes of images: what is transposed, and what convolutions read and write.
        self._transposed_bytes = self._gained_bytes = 0

    def rewritten(self) -> Function:
        """Return the function with rules applied to its outermost block, if that pays."""
        for binding in self._function.body.bindings:
            self._binding(binding)
            written = {owner(b) for b in self._buffers.written_by(binding)}
            stale = [a for a in self._last if owner(self._buffers.of(a)) in written]
            for atom in stale:
                del self._last[atom]
        result = self._function.body.result
        self._restore(operands(result))
        if self._transposed_bytes > GAIN[self.device.kind] * self._gained_bytes:
            return self._function
        return replace(self._function, body=Block(tuple(self._made), result))

    def last(self, atom: Expr, span: Span | None) -> Var:
        """Return an array with the channels last, transposed now if there is none."""
        if atom not in self._last:
            type_ = tensor_of(atom)
            self._last[atom] = self._transposed(atom, LAST, Var("last", _ordered(type_)), span)
        return self._last[atom]

    def has_last(self, atom: Expr) -> bool:
        """Whether an array is there with the channels last."""
        return atom in self._last

    def convolves(self, kernel: Expr, *images: Expr) -> None:
        """Note a convolution, its kernel and images; these are none for a product of matrices."""
        self._kernels.add(kernel)
        self._gained_bytes += sum(type_bytes(type_of(image)) for image in images)

    def _binding(self, binding: Binding) -> None:
        value = binding.value
        if isinstance(value, TupleGetItem) and value.value in self._tuples:
            whole, fields = self._tuples[value.value]
            var = self._renamed(binding.var) if value.index in fields else binding.var
            self._made.append(Binding(var, TupleGetItem(whole, value.index), binding.span))
            return
        site, called = None, called_op(value)
        if called is not None and isinstance(value, Call):
            args = named_args(called, value)
            if called is op.permute_dims and self._permuted(binding, args["x"], args["axes"]):
                return
            site = ImageCall(called, args, self, binding.var, binding.span)
        written = None if site is None else _RULES.get(site.op, elementwise)(site)
        if written is None:
            self._restore(uses(value))
            self._made.append(binding)
            return
        self._made.append(Binding(self._result(binding.var), written, binding.span))

    def _permuted(self, binding: Binding, source: Expr, axes: Any) -> bool:
        """Take a permutation that is written in the program, from or to the channels last, for what
        it is: of a program that gets and returns arrays in this order, nothing is transposed.
        """
        if not is_image(type_of(source)) or owner(self._buffers.of(source)) in self._written:
            return False
        order = permutation(axes, 4)
        if order == FIRST and isinstance(source, Var) and source not in self._only:
            self._last[binding.var] = source
            self._made.append(binding)
            return True
        if order == LAST and source in self._last:
            last = self._last[source]
            view = new_call(op.reshape, last, tensor_of(last).static_shape)
            self._made.append(Binding(binding.var, view, binding.span))
            return True
        return False

    def _result(self, var: Var) -> Var:
        """Return what the result of an operator with the channels last is bound to."""
        if isinstance(var.type, TupleType):
            fields = frozenset(i for i, t in enumerate(var.type.fields) if is_image(t))
            types = (_ordered(t) if i in fields else t for i, t in enumerate(var.type.fields))
            whole = Var(var.name, TupleType(tuple(types)))
            self._tuples[var] = whole, fields
            return whole
        return self._renamed(var) if is_image(var.type) else var

    def _renamed(self, var: Var) -> Var:
        """Return the variable for an array that there is with the channels last only."""
        made = self._last[var] = Var(var.name, _ordered(tensor_of(var)))
        self._only.add(var)
        return made

    def only_fields(self, var: Var) -> bool:
        """Whether a tuple is taken apart wherever it is used, in the outermost block."""
        own = set(self._function.body.bindings)
        users = self._uses.users(var)
        return all(
            isinstance(u, Binding) and u in own and isinstance(u.value, TupleGetItem) for u in users
        )

    def _restore(self, atoms: Iterable[Expr]) -> None:
        """Transpose back what is there with the channels last only."""
        for atom in atoms:
            if atom in self._only:
                self._only.discard(atom)
                assert isinstance(atom, Var)
                self._transposed(self._last[atom], FIRST, atom, None)

    def _transposed(self, atom: Expr, axes: tuple[int, ...], var: Var, span: Span | None) -> Var:
        type_ = tensor_of(atom)
        moved = [i for i in axes if type_.shape[i] != 1]
        if moved == sorted(moved):  # extents of 1 may be anywhere
            value = new_call(op.reshape, atom, tensor_of(var).static_shape)
        else:
            value = new_call(op.permute_dims, atom, axes)
            if self._kernels.isdisjoint((atom, var)):
                self._transposed_bytes += type_bytes(type_)
        self._made.append(Binding(var, value, span))
        return var


def _ordered(type_: Type) -> TensorType:
    """Return the type of an array with the channels last."""
    assert isinstance(type_, TensorType)
    return type_.with_shape(tuple(type_.shape[i] for i in LAST))
