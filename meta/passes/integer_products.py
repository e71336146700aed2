"""Products and convolutions of quantised tensors, computed of their integers.

A quantised tensor q stands for ``scale * (q - zero)``. Importers write that down, and the way back,
in floating point; here both are recognised, in main's outermost block.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from meta import op
from meta.base.call_context import Default, use
from meta.base.device import Device
from meta.base.dtype import limits
from meta.base.source import Span
from meta.dialect.core import only
from meta.dialect.core.ir_calls import OpCall, new_call, op_call, tensor_of, tensor_type
from meta.ir import Binding, Constant, Expr, Module, Var
from meta.op.core import Op
from meta.op.core.window import KERNEL, pads
from meta.op.packed import FOUR, LANES, lanes_of, pack_weight
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple
from meta.passes.channels_last_rules import FIRST, LAST
from meta.passes.fold_constant import compute
from meta.passes.index_ranges import MOVES, ZEROS
from meta.passes.packed_calls import PRODUCTS, Step, bindings, cut_off, pays, typed
from meta.passes.rewrite import with_main
from meta.passes.simplify.shapes import VIEWS
from meta.runtime.ndarray import ndarray

_MOVES = MOVES - ZEROS
_LARGEST = 1e37
"""Of a scale and its reciprocal."""
HALF = 128
"""What is added to an int8 to make a uint8 of it: x's numbers have no sign in a kernel."""


def integer_products(module: Module, *, device: Device, frozen: bool = False) -> Module:
    """Compute products and convolutions of quantised tensors by their integers, in int32.

    x is a tensor of uint8 or int8 with one scale and zero point, or the difference of both in
    int32; the weight is a constant of int8 with a scale for each output channel, or one, and the
    zero point 0. The sums are `packed_matmul`'s and `packed_conv2d`'s, which are exact; what a zero
    point of x adds to them is a constant of each channel, and x is padded with it. Scales are
    applied to the sums. A call stays as it is where no dialect has a kernel that is better than a
    library's, and so does everything unless the program is ``frozen``: results are rounded in
    another order, so that a result that is quantised again may be one step off.

    What is quantised by the scale and zero point that it already has is the integers that there
    were, also behind operators that only move elements.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> from meta.passes import dead_code
    >>> print(dead_code(meta.passes.integer_products(parse('''
    ... func @main(%q: uint8[2, 3]) -> uint8[3, 2] {
    ...   %0: float32[2, 3] = astype(%q, dtype="float32")
    ...   %1: float32[2, 3] = multiply(%0, x2=0.5)
    ...   %2: float32[3, 2] = permute_dims(%1, axes=(1, 0))
    ...   %3: float32[3, 2] = divide(%2, x2=0.5)
    ...   %4: float32[3, 2] = round(%3)
    ...   %5: bool[3, 2] = greater(%4, x2=0.0)
    ...   %6: float32[3, 2] = where(%5, %4, y=0.0)
    ...   %7: float32[3, 2] = minimum(%6, x2=255.0)
    ...   %8: uint8[3, 2] = astype(%7, dtype="uint8")
    ...   return %8
    ... }'''), device=CPU, frozen=True)))
    func @main(%q: uint8[2, 3]) -> uint8[3, 2] {
      %moved: uint8[3, 2] = permute_dims(%q, axes=(1, 0))
      return %moved
    }
    """
    if not frozen or "main" not in module.functions:
        return module
    walk = _Walk(module, device)
    return with_main(module, walk.bindings(), walk.same)


@dataclass(frozen=True)
class _Quantised:
    """``scale * (q - zero)``, q of uint8; a scale of None says that there is none, in int32."""

    q: Expr
    scale: float | None
    zero: int


@dataclass
class _Walk:
    """The outermost block of main, on its way."""

    module: Module
    device: Device
    made: list[Binding] = field(default_factory=list)
    known: dict[Expr, Expr] = field(default_factory=dict)
    found: dict[Expr, _Quantised] = field(default_factory=dict)
    # Of tensors of int8: those with HALF added, in uint8.
    unsigned: dict[Expr, Expr] = field(default_factory=dict)
    # Tensors that are others.
    same: dict[Expr, Expr] = field(default_factory=dict)
    # Those that are written at some time, and so are read where the program does.
    written: set[Var] = field(default_factory=set)
    span: Span | None = None

    def bindings(self) -> list[Binding]:
        """Return its bindings with integer products."""
        main = self.module.main
        buffers = AliasSets(main, AliasSummaries(self.module))
        written = {owning_tuple(buffer) for buffer in buffers.written}
        atoms = (*main.params, *(b.var for b in main.body.bindings))
        self.written = {a for a in atoms if owning_tuple(buffers.of(a)) in written}
        for binding in self.module.main.body.bindings:
            self.span = binding.span
            self.known[binding.var] = binding.value
            if not self._rewritten(binding.var, binding.value):
                self.made.append(binding)
        return self.made

    def _rewritten(self, var: Var, value: Expr) -> bool:
        """Whether bindings of a variable were added that take the place of its own."""
        call, type_ = op_call(value), tensor_type(var)
        if call is None or type_ is None:
            return False
        if type_.dtype in ("float32", "int32"):
            number = self._dequantised(call, type_.dtype) or self._moved(call)
            if number is not None:
                self.found[var] = number
                self._write(var, number)
                return True
            return self._product(var, call)
        return type_.dtype in ("uint8", "int8") and self._quantised(var, call, type_.dtype)

    # Reading ------------------------------------------------------------------------------------

    def _call(self, atom: Any, *operators: Op) -> OpCall | None:
        call = op_call(self.known.get(atom)) if isinstance(atom, Expr) else None
        return call if call is not None and call.op in operators else None

    def _constant(self, atom: Any) -> Any:
        """Return the value of a number, a constant, or a cast or moved one; None of others."""
        if isinstance(atom, int | float):
            return np.asarray(atom)
        if isinstance(atom, Constant):
            return ndarray(atom.data).numpy()
        call = self._call(atom, *_MOVES, op.astype)
        if call is None or any(isinstance(a, Expr) for a in call.args[1:]):
            return None
        given = self._constant(call.args[0])
        if given is None:
            return None
        return compute(call, [ndarray(torch.as_tensor(given)), *call.args[1:]]).numpy()

    def _number(self, atom: Any) -> float | None:
        """Return a constant that is one number."""
        value = self._constant(atom)
        return float(value.item()) if value is not None and value.size == 1 else None

    def _dequantised(self, call: OpCall, dtype: str) -> _Quantised | None:
        """Read ``multiply(astype(subtract(astype(q), zero)), scale)``, or what that is made of."""
        if dtype == "int32":
            return self._shifted(call)
        if call.op is not op.multiply:
            return None
        cast, scale = self._call(call.args[0], op.astype), self._number(call.args[1])
        if cast is None or scale is None or not 1 / _LARGEST < scale < _LARGEST:
            return None
        atom = cast.args[0]
        number = self.found.get(atom)
        if number is not None:
            return replace(number, scale=scale) if number.scale is None else None
        return self._bytes(atom, scale)

    def _shifted(self, call: OpCall) -> _Quantised | None:
        if call.op is op.astype:
            return self._bytes(call.args[0], None)
        if call.op is not op.subtract:
            return None
        number, zero = self.found.get(call.args[0]), self._number(call.args[1])
        if number is None or number.scale is not None or zero is None:
            return None
        return replace(number, zero=number.zero + int(zero))

    def _bytes(self, atom: Expr, scale: float | None) -> _Quantised | None:
        """Return the numbers of a tensor of 8 bits."""
        type_ = tensor_type(atom)
        if type_ is None or isinstance(atom, Constant) or atom in self.written:
            return None
        if type_.dtype not in ("int8", "uint8"):
            return None
        if type_.dtype == "uint8":
            return _Quantised(atom, scale, 0)
        if atom not in self.unsigned:
            wrapped = self._add("wrapped", op.astype, atom, "uint8")
            self.unsigned[atom] = self._add("unsigned", op.bitwise_xor, wrapped, HALF)
        return _Quantised(self.unsigned[atom], scale, HALF)

    def _moved(self, call: OpCall) -> _Quantised | None:
        number = self.found.get(call.args[0]) if call.args and call.op in _MOVES else None
        if number is None:
            return None
        return replace(number, q=self._add("moved", call.op, number.q, *call.args[1:]))

    # Writing ------------------------------------------------------------------------------------

    def _bind(self, var: Var, operator: Op, *args: Any) -> Var:
        value = new_call(operator, *args)
        self.known[var] = value
        self.made.append(Binding(var, value, self.span))
        return var

    def _add(self, name: str, operator: Op, *args: Any) -> Var:
        call = new_call(operator, *args)
        given = (tensor_of(a) if isinstance(a, Expr) else a for a in call.args)
        return self._bind(Var(name, operator.infer(tuple(given))), operator, *call.args)

    def _write(self, var: Var, number: _Quantised) -> None:
        """Bind a variable to what a quantised tensor stands for."""
        if number.scale is None:
            if not number.zero:
                self._bind(var, op.astype, number.q, "int32")
                return
            wide = self._add("wide", op.astype, number.q, "int32")
            self._bind(var, op.subtract, wide, _constant(np.int32(number.zero)))
            return
        real = self._add("wide", op.astype, number.q, "float32")
        if number.zero:
            real = self._add("shifted", op.subtract, real, float(number.zero))
        self._bind(var, op.multiply, real, number.scale)

    def _quantised(self, var: Var, call: OpCall, dtype: str) -> bool:
        """Rewrite what quantises by constants, and what moves elements of int8."""
        made: Expr
        if call.op in _MOVES and call.args[0] in self.unsigned:
            made = self._add("moved", call.op, self.unsigned[call.args[0]], *call.args[1:])
        elif (rounded := self._rounded(call, dtype)) is not None:
            x, scale, zero = rounded
            made = self._integers(x, scale, zero + (HALF if dtype == "int8" else 0))
        else:
            return False
        if dtype == "uint8":
            self.same[var] = self.same.get(made, made)
            return True
        self.unsigned[var] = made
        wrapped = self._add("wrapped", op.bitwise_xor, made, HALF)
        self._bind(var, op.astype, wrapped, "int8")
        return True

    def _rounded(self, cast: OpCall, dtype: str) -> tuple[Expr, float, int] | None:
        """Read ``astype(minimum(where(greater(y, low), y, low), high))`` of ``y = round(x / scale)
        + zero``: x, the scale and the zero point.
        """
        below = self._call(cast.args[0], op.minimum) if cast.op is op.astype else None
        chosen = self._call(below.args[0], op.where) if below is not None else None
        test = self._call(chosen.args[0], op.greater) if chosen is not None else None
        if below is None or chosen is None or test is None or test.args[0] is not chosen.args[1]:
            return None
        range_ = limits(dtype)
        bounds = [self._number(a) for a in (test.args[1], chosen.args[2], below.args[1])]
        if bounds != [range_.min, range_.min, range_.max]:
            return None
        y: Expr = test.args[0]
        zero: float | None = 0.0
        added = self._call(y, op.add)
        if added is not None:
            y, zero = added.args[0], self._number(added.args[1])
        rounded = self._call(y, op.round)
        divided = self._call(rounded.args[0], op.divide) if rounded is not None else None
        scale = self._number(divided.args[1]) if divided is not None else None
        if divided is None or zero is None or scale is None or zero != int(zero):
            return None
        x = divided.args[0]
        if x in self.written or tensor_of(x).dtype != "float32":
            return None
        if not 1 / _LARGEST < scale < _LARGEST:
            return None
        return x, scale, int(zero)

    def _integers(self, x: Expr, scale: float, zero: int) -> Expr:
        """Return x quantised to uint8: in front of views, where a kernel may have it at hand."""
        number = self.found.get(x)
        if number is not None and (number.scale, number.zero) == (scale, zero):
            return number.q
        viewed = self._call(x, *VIEWS)
        if viewed is not None and viewed.args[0] not in self.written:
            return self._add(
                "moved", viewed.op, self._integers(viewed.args[0], scale, zero), *viewed.args[1:]
            )
        y = self._add("scaled", op.multiply, x, float(np.float32(1) / np.float32(scale)))
        y = self._add("whole", op.round, y)
        if zero:
            y = self._add("shifted", op.add, y, float(zero))
        positive = self._add("positive", op.greater, y, 0.0)
        y = self._add("least", op.where, positive, y, 0.0)
        y = self._add("most", op.minimum, y, 255.0)
        return self._add("q", op.astype, y, "uint8")

    # Products -----------------------------------------------------------------------------------

    def _product(self, var: Var, call: OpCall) -> bool:
        """Rewrite a product or convolution of a quantised tensor and a constant weight."""
        if call.op not in PRODUCTS and call.op is not op.conv2d:
            return False
        number, weight = self.found.get(call.args[0]), self._weight(call.args[1])
        if number is None or weight is None or (number.scale is None) != (weight.scales is None):
            return False
        if call.op in PRODUCTS:
            plan = _product(number, weight, PRODUCTS[call.op])
        else:
            args = dict(zip(call.op.schema.names, call.args, strict=True))
            plan = _convolution(number, weight, args)
        if plan is None:
            return False
        packed = plan.op, (plan.weight, *plan.options)
        if not pays(typed(tensor_of(number.q), plan.before), packed, self.device):
            return False
        made = bindings(number.q, [*plan.before, packed, *plan.behind], var, self.span)
        self.known.update((b.var, b.value) for b in made)
        self.made.extend(made)
        return True

    def _weight(self, atom: Any) -> _Weight | None:
        """Read a constant of int8, times scales if it is cast to float32."""
        turned = self._call(atom, op.permute_dims)
        if turned is not None:
            inner = self._weight(turned.args[0])
            return inner and inner.in_order(turned.args[1])
        scales = None
        scaled = self._call(atom, op.multiply)
        if scaled is not None:
            atom, scales = scaled.args[0], self._constant(scaled.args[1])
        cast = self._call(atom, op.astype)
        known = cast.args[0] if cast is not None else None
        if not isinstance(known, Constant) or tensor_of(known).dtype != "int8":
            return None
        kernel = ndarray(known.data).numpy()
        if (scales is None) != (tensor_of(atom).dtype == "int32") or 0 in kernel.shape:
            return None
        if scales is None:
            return _Weight(kernel, None)
        return _Weight(kernel, scales.reshape((1,) * (kernel.ndim - scales.ndim) + scales.shape))


@dataclass(frozen=True)
class _Weight:
    """A weight of int8, (outputs, inputs, ...) once it is in order, and its scales, which broadcast
    against it; None of integers.
    """

    kernel: Any
    scales: Any

    def in_order(self, axes: tuple[int, ...]) -> _Weight:
        scales = None if self.scales is None else self.scales.transpose(axes)
        return _Weight(self.kernel.transpose(axes), scales)

    def packed(self, groups: int) -> tuple[Constant, int] | None:
        """Return it as kernels read it, and how many outputs of zeros fill the last block."""
        outputs, inputs, *_ = self.kernel.shape
        alone = groups == 1 or inputs == 1
        lanes = lanes_of(outputs if alone else outputs // groups)
        if lanes is None and (groups > 1 or outputs < LANES[-1]):
            return None
        lanes = lanes or LANES[-1]
        more = -outputs % lanes
        kernel = np.pad(self.kernel, ((0, more), *[(0, 0)] * (self.kernel.ndim - 1)))
        with use(Default.handler), only("torch"):
            return Constant(pack_weight(ndarray(torch.as_tensor(kernel)), lanes).tensor), more

    def behind(self, number: _Quantised, more: int) -> tuple[Step, ...] | None:
        """Return what is done with the sums: corrections by zero points, scales, outputs cut off;
        None if scales are not those of outputs, or sums may leave int32.
        """
        if (
            255 * np.abs(self.kernel.astype(np.int64)).sum(tuple(range(1, self.kernel.ndim))).max()
            >> 31
        ):
            return None
        outputs, steps = len(self.kernel), list[Step]()
        if number.zero:
            sums = -number.zero * self.kernel.reshape(outputs, -1).sum(1, dtype=np.int64)
            steps.append((op.add, (_constant(np.pad(sums, (0, more)).astype(np.int32)),)))
        if self.scales is not None and number.scale is not None:
            if any(extent != 1 for extent in self.scales.shape[1:]):
                return None
            scales = (self.scales.reshape(-1).astype(np.float64) * number.scale).astype(np.float32)
            scales = np.broadcast_to(scales, (outputs,))
            steps.append((op.astype, ("float32",)))
            steps.append((op.multiply, (_constant(np.pad(scales, (0, more))),)))
        return tuple(steps)


@dataclass(frozen=True)
class _Plan:
    """A packed call, and what is done with x before it and with the sums behind it: operators, and
    what comes behind their first argument.
    """

    op: Op
    weight: Constant
    options: tuple[Any, ...]
    before: tuple[Step, ...]
    behind: tuple[Step, ...]


def _constant(values: Any) -> Constant:
    return Constant(torch.as_tensor(values))


def _product(number: _Quantised, weight: _Weight, axes: tuple[int, int]) -> _Plan | None:
    if weight.kernel.ndim != 2:
        return None
    weight = weight.in_order(axes)
    packed = weight.packed(1)
    behind = None if packed is None else weight.behind(number, packed[1])
    if packed is None or behind is None:
        return None
    columns = weight.kernel.shape[1]
    ndim = tensor_of(number.q).ndim
    widths = (*[0] * (2 * ndim - 1), -columns % FOUR)
    before = ((op.pad, (widths, 0.0, "constant")),) if columns % FOUR else ()
    return _Plan(
        op.packed_matmul,
        packed[0],
        (),
        before,
        (*behind, *cut_off(packed[1], len(weight.kernel), ndim)),
    )


def _convolution(number: _Quantised, weight: _Weight, args: dict[str, Any]) -> _Plan | None:
    layouts = [args[n] for n in ("layout", "kernel_layout", "out_layout")]
    if layouts != ["NCHW", KERNEL[2], "NCHW"]:
        return None
    groups, inputs = args["groups"], weight.kernel.shape[1]
    packed = weight.packed(groups)
    behind = None if packed is None else weight.behind(number, packed[1])
    if packed is None or behind is None:
        return None
    top, left, bottom, right = pads(args["padding"], 2)
    more = -inputs % FOUR if groups == 1 and inputs > 1 else 0
    before: tuple[Step, ...] = ((op.permute_dims, (LAST,)),)
    around = (top, left, bottom, right)
    if more or (number.zero and any(around)):
        widths = (0, 0, 0, more, top, bottom, left, right)
        before, around = ((op.pad, (widths, float(number.zero), "constant")), *before), (0, 0, 0, 0)
    options = args["stride"], around, args["dilation"], groups, "NHWC"
    end = (*cut_off(packed[1], len(weight.kernel), 4), (op.permute_dims, (FIRST,)))
    return _Plan(op.packed_conv2d, packed[0], options, before, (*behind, *end))
