"""Weights of frozen programs in the layout in which kernels read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from meta import op
from meta.base.device import Device
from meta.base.source import Span
from meta.dialect.core.ir_calls import (
    OpCall,
    named_args,
    new_call,
    op_call,
    tensor_of,
    tensor_type,
)
from meta.ir import Binding, Call, Constant, Expr, Module, TensorType, Var
from meta.op.core import Op
from meta.op.core.check import pair
from meta.op.core.window import DATA, KERNEL, layout_permutation, pads, window
from meta.op.packed import LANES, lanes_of
from meta.passes.channels_last_rules import FIRST, LAST
from meta.passes.fold_constant import MAX_GROWTH_BYTES, compute
from meta.passes.packed_calls import PRODUCTS, Step, bindings, cut_off, pays, typed
from meta.passes.prepare import run_invariant
from meta.passes.rewrite import with_main
from meta.runtime.ndarray import ndarray

FLATTENS = op.reshape, op.batch_flatten
FEW_CHANNELS = 4
"""Channels of images that are read with the channels first as fast."""


def pack_weights(module: Module, *, device: Device, frozen: bool = False) -> Module:
    """Compute products and convolutions by weights that are packed in blocks of output channels.

    Such weights are constants and arrays that the program does not write (`run_invariant`), of
    products of any number of rows, and of convolutions that have the channels last. They are packed
    before the first call (`prepare`); the memory of the packed ones is the price, so that this is
    done only if the program is ``frozen``. Output channels that fill no block are zeros, which are
    cut off. A call stays as it is where no dialect has a kernel for packed weights that is better
    than a library's.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.pack_weights(parse('''
    ... func @main(%x: float32[4, 8], %w: float32[16, 8]) -> float32[4, 16] attrs(arrays=1) {
    ...   %y: float32[4, 16] = dense(%x, %w)
    ...   return %y
    ... }'''), device=CPU, frozen=True))
    func @main(%x: float32[4, 8], %w: float32[16, 8]) -> float32[4, 16] attrs(arrays=1) {
      %blocks: float32[1, 16, 8] = reshape(%w, shape=(1, 16, 8))
      %packed: float32[1, 8, 16] = permute_dims(%blocks, axes=(0, 2, 1))
      %y: float32[4, 16] = packed_matmul(%x, %packed)
      return %y
    }
    """
    if not frozen or "main" not in module.functions:
        return module
    packing = _Packing(module, device)
    return with_main(module, packing.bindings(), packing.same)


@dataclass
class _Packing:
    """The outermost block of main, on its way."""

    module: Module
    device: Device
    made: list[Binding] = field(default_factory=list)
    # Results whose rows were joined, as they were before.
    whole: dict[Expr, Expr] = field(default_factory=dict)
    # What is such a result again, by the variables that it had.
    same: dict[Expr, Expr] = field(default_factory=dict)

    def bindings(self) -> list[Binding]:
        """Return main's bindings with packed weights."""
        self.fixed = run_invariant(self.module)
        self.known: dict[Expr, Expr] = {b.var: b.value for b in self.module.main.body.bindings}
        for binding in self.module.main.body.bindings:
            call = op_call(binding.value)
            if call is not None and call.op is op.reshape and call.args[0] in self.whole:
                whole = self.whole[call.args[0]]
                if tensor_type(whole) == binding.var.type:
                    self.same[binding.var] = whole
                    continue
            rule = None if call is None else _RULES.get(call.op)
            if rule is None or not self._packed(binding, rule):
                self.made.append(binding)
        return self.made

    def _packed(self, binding: Binding, rule: _Rule) -> bool:
        """Add the bindings of a packed call in the place of one; whether there are any."""
        call, type_ = op_call(binding.value), tensor_type(binding.var)
        assert call is not None and isinstance(binding.value, Call)
        plan = rule(self, named_args(call.op, binding.value))
        if plan is None or type_ is None or plan.type.dtype != type_.dtype:
            return False
        outputs = plan.type.static_shape[plan.axes[0]]
        lanes = lanes_of(plan.together or outputs) or LANES[-1]
        more = -outputs % lanes
        row = plan.type.size // max(outputs, 1)
        # What grows by more would be packed in each call.
        if outputs < lanes or 4 * more * row > MAX_GROWTH_BYTES:
            return False
        packed_shape = _packed_shape([plan.type.static_shape[a] for a in plan.axes], more, lanes)
        weight = Var("packed", TensorType(packed_shape, type_.dtype))
        given, packed = typed(tensor_of(plan.x), plan.before), (plan.op, (weight, *plan.options))
        if not pays(given, packed, self.device):
            return False
        atom = self._weight(plan, more, lanes, weight, binding.span)
        cut = cut_off(more, outputs, typed(given, [packed]).ndim)
        steps = [*plan.before, (plan.op, (atom, *plan.options)), *cut, *plan.behind]
        made = bindings(plan.x, steps, binding.var, binding.span)
        if plan.joins:
            self.whole[binding.var] = made[-2].var
        self.made.extend(made)
        return True

    def is_fixed(self, atom: Any) -> bool:
        """Whether an atom is a weight that can be packed beforehand."""
        type_ = tensor_type(atom)
        fixed = isinstance(atom, Constant) or atom in self.fixed
        return fixed and type_ is not None and type_.is_static and type_.size > 0

    def of_images(self, plan: _Plan) -> _Plan:
        """Return the plan of a product of images that are flattened: of those with the channels
        last, where a permutation comes before that, whose weight takes their order.
        """
        flat = op_call(self.known.get(plan.x))
        if flat is None or flat.op not in FLATTENS or tensor_of(plan.x).ndim != 2:
            return plan
        images = flat.args[0]
        before = op_call(self.known.get(images))
        if before is None or before.op is not op.permute_dims:
            return plan
        source, order = before.args
        count, *image = tensor_of(images).shape
        flattened = (count, plan.type.static_shape[plan.axes[1]])
        if tuple(order) != FIRST or tensor_of(plan.x).shape != flattened:
            return plan
        last = Var("last", tensor_of(plan.x))
        self.made.append(Binding(last, Call(flat.op, (source, *flat.args[1:]))))
        return replace(plan, x=last, image=tuple(d for d in image if isinstance(d, int)))

    def of_whole(self, plan: _Plan) -> _Plan:
        """Return the plan of a product whose rows a reshape before it joined: of what they were,
        for what is behind it is often computed of that, too, and fuses with it.
        """
        flat = op_call(self.known.get(plan.x))
        rows = tensor_of(plan.x).shape
        if flat is None or flat.op is not op.reshape or plan.image:
            return plan
        source = tensor_of(flat.args[0])
        if source.ndim <= len(rows) or source.shape[-1] != rows[-1]:
            return plan
        outputs = plan.type.static_shape[plan.axes[0]]
        front = rows[:-1] if all(isinstance(d, int) for d in rows) else (-1,)
        if len(front) < len(rows) - 1:
            return plan
        behind = ((op.reshape, ((*front, outputs),)),)
        return replace(plan, x=flat.args[0], behind=behind, joins=True)

    def _weight(self, plan: _Plan, more: int, lanes: int, var: Var, span: Span | None) -> Expr:
        """Return the packed weight, made of the plan's."""
        atom, type_ = plan.weight, tensor_of(plan.weight)

        def add(name: str, operator: Op, *args: Any) -> None:
            nonlocal atom, type_
            call = new_call(operator, atom, *args)
            if isinstance(atom, Constant):
                found = compute(OpCall(operator, call.args), [ndarray(atom.data), *call.args[1:]])
                atom = Constant(found.tensor)
                return
            inferred = operator.infer((type_, *call.args[1:]))
            made = var if name == "packed" else Var(name, inferred)
            self.made.append(Binding(made, call, span))
            atom, type_ = made, inferred

        if type_ != plan.type:
            add("kernel", op.reshape, plan.type.static_shape)
        if plan.axes != tuple(range(len(plan.axes))):
            add("rows", op.permute_dims, plan.axes)
        shape = [plan.type.static_shape[a] for a in plan.axes]
        if plan.image:
            add("images", op.reshape, (shape[0], *plan.image))
            add("last", op.permute_dims, LAST)
            add("columns", op.reshape, tuple(shape))
        if more:
            add("padded", op.pad, (0, more, *(0 for _ in shape[1:] for _ in range(2))))
        add("blocks", op.reshape, ((shape[0] + more) // lanes, lanes, *shape[1:]))
        add("packed", op.permute_dims, (0, 2, 1) if len(shape) == 2 else (0, 3, 4, 2, 1))
        return atom


def _packed_shape(shape: list[int], more: int, lanes: int) -> tuple[int, ...]:
    n, inputs, *taps = shape
    return ((n + more) // lanes, *taps, inputs, lanes)


@dataclass(frozen=True)
class _Plan:
    """A packed call: the operator, x and what comes behind the weight. type: as which the weight is
    read. axes: those of it, in the order (outputs, inputs, taps). image: channels, height and width
    that inputs are, if they are flattened with the channels last. together: output channels that
    read the same inputs, which blocks are part of; all of them if it is 0. before, behind: what is
    done with x, and with the result: operators, and what comes behind their first argument. joins:
    whether the last of these joins the rows of a product.
    """

    op: Op
    x: Expr
    weight: Expr
    type: TensorType
    axes: tuple[int, ...]
    options: tuple[Any, ...] = ()
    image: tuple[int, ...] = ()
    together: int = 0
    before: tuple[Step, ...] = ()
    behind: tuple[Step, ...] = ()
    joins: bool = False


_Rule = Callable[[_Packing, dict[str, Any]], _Plan | None]


def _product(axes: tuple[int, int]) -> _Rule:
    def rule(packing: _Packing, args: dict[str, Any]) -> _Plan | None:
        x, weight, *_ = args.values()
        if not packing.is_fixed(weight) or tensor_of(weight).ndim != 2 or tensor_of(x).ndim < 1:
            return None
        plan = _Plan(op.packed_matmul, x, weight, tensor_of(weight), axes)
        return packing.of_whole(packing.of_images(plan))

    return rule


def _convolution(packing: _Packing, args: dict[str, Any]) -> _Plan | None:
    if not packing.is_fixed(args["w"]) or args["out_layout"] != "NHWC":
        return None
    type_ = tensor_of(args["w"])
    axes = layout_permutation(args["kernel_layout"], KERNEL[2], "kernel_layout")
    x, layout = args["x"], args["layout"]
    before = op_call(packing.known.get(x))
    if before is not None and before.op is op.permute_dims and layout == "NHWC":
        source, order = before.args
        few = type_.static_shape[axes[1]] <= FEW_CHANNELS
        if few and tuple(order) == LAST:
            x, layout = source, "NCHW"
    names = "stride", "padding", "dilation", "groups"
    options, groups = (*(args[name] for name in names), layout), args["groups"]
    outputs, inputs, *_ = (type_.static_shape[a] for a in axes)
    if groups > 1 and outputs % LANES[-1]:
        return None  # what fills a block would be in a group
    alone = groups == 1 or inputs == 1 == outputs // groups
    together = 0 if alone else outputs // groups
    return _Plan(op.packed_conv2d, x, args["w"], type_, axes, options, together=together)


def _line(packing: _Packing, args: dict[str, Any]) -> _Plan | None:
    """Return the plan of a convolution along one axis: that of images of one row."""
    layouts, x = (args["layout"], args["kernel_layout"], args["out_layout"]), tensor_of(args["x"])
    length, images = x.shape[2], x.shape[0] if isinstance(x.shape[0], int) else -1
    fixed = packing.is_fixed(args["w"]) and isinstance(length, int) and args["groups"] == 1
    if not fixed or layouts != (DATA[1], KERNEL[1], DATA[1]):
        return None
    outputs, inputs, taps = tensor_of(args["w"]).static_shape
    stride, dilation = ((1, *pair(args[name], name, 1)) for name in ("stride", "dilation"))
    before, after = pads(args["padding"], 1)
    out = window((length,), (taps,), stride[1:], (before, after), dilation[1:])[0].out
    return _Plan(
        op.packed_conv2d,
        args["x"],
        args["w"],
        TensorType((outputs, inputs, 1, taps), x.dtype),
        (0, 1, 2, 3),
        (stride, (0, before, 0, after), dilation, 1, "NHWC"),
        before=((op.permute_dims, ((0, 2, 1),)), (op.reshape, ((images, 1, length, inputs),))),
        behind=((op.reshape, ((images, out, outputs),)), (op.permute_dims, ((0, 2, 1),))),
    )


_RULES: dict[Op, _Rule] = {o: _product(axes) for o, axes in PRODUCTS.items()}
_RULES[op.conv2d] = _convolution
_RULES[op.conv1d] = _line
