"""Matrix products on tensor cores whose rows do not begin at multiples of 16 bytes: they are padded
(`align_products`), and the padding is kept for as long as operators can carry it (`carry_padding`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from meta import op
from meta.amp.cast_rule import HALVES
from meta.base import config
from meta.base.device import Device
from meta.base.dtype import is_float
from meta.dialect.core.ir_calls import (
    PRODUCTS,
    OpCall,
    called_op,
    has_effect,
    new_call,
    op_call,
    tensor_of,
    tensor_type,
)
from meta.ir import (
    Binding,
    Block,
    Call,
    DefUse,
    Expr,
    Function,
    If,
    Module,
    TensorType,
    Tuple,
    Var,
    type_of,
)
from meta.ir.visit import uses
from meta.op.core.axes import product_terms
from meta.op.core.check import normalize_axes
from meta.passes.alias_analysis import AliasSets, AliasSummaries, owning_tuple
from meta.passes.manager import Pass
from meta.passes.profitability import cheaper
from meta.passes.rewrite import map_functions, rewrite_function, with_inner_blocks

LANES = 8
"""Elements of 16 bytes in half precision, which tensor cores are fed with; of 32 in float32."""
LEAST_WORK = 1 << 30
"""Multiplications of a product that is worth it: those of a few microseconds."""
LEAST_EXTENT = 64
"""Of an axis that grows by at most an eighth."""

_Padded = dict[tuple[Any, tuple[int, ...]], Var]
"""What was padded, by operand and widths."""


def align_products(
    module: Module,
    *,
    device: Device,
    devices: tuple[str, ...] = ("cuda",),
    least_work: int = LEAST_WORK,
    lower: Pass | None = None,
) -> Module:
    """Pad the operands of large products of tensor cores on ``devices`` to multiples of 16 bytes.

    Those are products in half precision and, with META_TF32, in float32. Where the rows of an
    operand or of the result do not begin at such multiples, libraries fall back to kernels of a
    third of the speed. That is a language model's last layer, whose vocabulary is 30,522 or 50,257
    words. Zeros are added, and cut off the result; both fuse with the casts and elementwise
    operators around, and what the forward and the backward pass read is padded once. The result is
    the same but for the order in which a library adds. Where all that changes was measured, that
    decides (`cheaper`); ``lower`` are the passes that follow.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.align_products(parse('''
    ... func @main(%x: float16[64, 768], %w: float16[30522, 768]) -> float16[64, 30522] {
    ...   %y: float16[64, 30522] = dense(%x, %w)
    ...   return %y
    ... }'''), device=CPU, devices=("cpu",)))
    func @main(%x: float16[64, 768], %w: float16[30522, 768]) -> float16[64, 30522] {
      %padded: float16[30528, 768] = pad(%w, pad_width=(0, 6, 0, 0))
      %y: float16[64, 30528] = dense(%x, %padded)
      %y_1: float16[64, 30522] = strided_slice(%y, begin=(0, 0), end=(64, 30522))
      return %y_1
    }
    """
    if device.kind not in devices:
        return module
    padded = map_functions(module, lambda f: replace(f, body=_block(f.body, least_work)))
    return cheaper(padded, [module], device=device, lower=lower)


def _block(block: Block, least_work: int) -> Block:
    made: list[Binding] = []
    padded: _Padded = {}
    for binding in block.bindings:
        if isinstance(binding.value, If) or has_effect(binding):
            padded.clear()  # what is written since is padded anew
        binding = with_inner_blocks(binding, lambda inner: _block(inner, least_work))
        made += _aligned(binding, least_work, padded)
    return Block(tuple(made), block.result)


def _aligned(binding: Binding, least_work: int, known: _Padded) -> Iterator[Binding]:
    """Yield operands that are padded and not ``known`` yet, the product, and its part."""
    call, result_type = binding.value, tensor_type(binding.var)
    called = called_op(call)
    if called not in PRODUCTS or not isinstance(call, Call) or result_type is None:
        yield binding
        return
    *axes, result = product_terms(PRODUCTS[called])
    types = [type_ for atom in call.args if (type_ := _on_tensor_cores(atom)) is not None]
    if len(types) < len(call.args):
        yield binding
        return
    operands: list[Expr] = []
    larger = _larger(axes, types, result, least_work)
    for atom, letters, type_ in zip(call.args, axes, types, strict=True):
        widths = tuple(w for a in letters for w in (0, larger.get(a, 0)))
        if any(widths) and (atom, widths) not in known:
            padded = known[atom, widths] = Var("padded", _grown(type_, letters, larger))
            yield Binding(padded, new_call(op.pad, atom, widths), binding.span)
        atom = known.get((atom, widths), atom)
        operands.append(atom)
    grown = _grown(result_type, result, larger)
    product = binding.var if grown == result_type else Var(binding.var.name, grown)
    yield Binding(product, Call(call.callee, tuple(operands)), binding.span)
    if product is not binding.var:
        yield Binding(binding.var, _cut_off(product, result_type), binding.span)


def _on_tensor_cores(atom: object) -> TensorType | None:
    """Return the type of a matrix that tensor cores multiply, None for others."""
    type_ = tensor_type(atom)
    known = type_ is not None and type_.is_static and is_on_tensor_cores(type_.dtype)
    return type_ if known else None


def is_on_tensor_cores(dtype: str) -> bool:
    """Whether tensor cores multiply matrices of a dtype."""
    return dtype in HALVES or (dtype == "float32" and bool(config.get("META_TF32")))


def missing(extent: int) -> int:
    """Return how many elements rows of a large product lack, of ``extent``."""
    return -extent % LANES if extent >= LEAST_EXTENT else 0


def _grown(type_: TensorType, letters: str, larger: dict[str, int]) -> TensorType:
    pairs = zip(letters, type_.static_shape, strict=True)
    return type_.with_shape(tuple(d + larger.get(a, 0) for a, d in pairs))


def _larger(
    axes: Sequence[str], types: Sequence[TensorType], result: str, least_work: int
) -> dict[str, int]:
    """Return by axis how many elements it lacks; nothing if the product stays as it is."""
    extents = {
        a: d
        for letters, t in zip(axes, types, strict=True)
        for a, d in zip(letters, t.static_shape, strict=True)
    }
    if prod(extents.values()) < least_work:
        return {}
    rows = {letters[-1] for letters in (*axes, result)}
    return {a: more for a, d in extents.items() if a in rows and (more := missing(d))}


COLUMNS = {op.dense: 0, op.matmul: 1}
"""By operator: the axis of its second operand along which the columns of the product are."""
GRADIENTS = op.cross_entropy_dpred, op.cross_entropy_train_dpred
"""Operators whose last argument is the number of classes, with which their result begins."""
SCORES = {
    op.cross_entropy: 0,
    op.cross_entropy_train: 0,
    **dict.fromkeys(GRADIENTS, 1),
}
"""By operator: which argument are the scores; the last one is the number of classes."""


def carry_padding(
    module: Module,
    *,
    device: Device,
    devices: tuple[str, ...] = ("cuda",),
    returned: Collection[int] = (),
) -> Module:
    """Cut padded columns off as late as can be, on ``devices``; of scores, never.

    What `align_products` pads is a language model's last layer, whose result is the largest array
    of a program: to cut its columns is a pass over it, and to pad its gradient another one. Here a
    bias is padded instead, reshapes and casts take what is there, and cross entropy is told how
    many of the columns are classes; the gradient of the others is 0. So scores are written once
    and read twice, and the gradient is written once, padded, and read as it is. A program that is
    given padded scores, or is to return them, is as good: what is padded like that, or cut off such
    a gradient, is there. Of main's results, those of these numbers are ``returned`` with all
    columns, where nothing else needs them cut off: who asks for that narrows them. To be run after
    `align_products`.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> print(meta.passes.carry_padding(parse('''
    ... func @main(%x: float16[4, 8], %w: float16[7, 8], %b: float16[7]) -> float16[2, 2, 7] {
    ...   %padded: float16[8, 8] = pad(%w, pad_width=(0, 1, 0, 0))
    ...   %0: float16[4, 8] = dense(%x, %padded)
    ...   %1: float16[4, 7] = strided_slice(%0, begin=(0, 0), end=(4, 7))
    ...   %2: float16[2, 2, 7] = reshape(%1, shape=(2, 2, 7))
    ...   %3: float16[2, 2, 7] = bias_add(%2, %b, axis=2)
    ...   return %3
    ... }'''), device=CPU, devices=("cpu",)))
    func @main(%x: float16[4, 8], %w: float16[7, 8], %b: float16[7]) -> float16[2, 2, 7] {
      %padded: float16[8, 8] = pad(%w, pad_width=(0, 1, 0, 0))
      %0: float16[4, 8] = dense(%x, %padded)
      %wide: float16[2, 2, 8] = reshape(%0, shape=(2, 2, 8))
      %bias: float16[8] = pad(%b, pad_width=(0, 1))
      %wide_1: float16[2, 2, 8] = bias_add(%wide, %bias, axis=2)
      %1: float16[2, 2, 7] = strided_slice(%wide_1, begin=(0, 0, 0), end=(2, 2, 7))
      return %1
    }
    """
    if device.kind not in devices or "main" not in module.functions:
        return module
    main = module.main
    buffers, users = AliasSets(main, AliasSummaries(module)), DefUse(main)
    written = {owning_tuple(buffer) for buffer in buffers.written}
    found: dict[Var, _Cut] = {}
    for cut in _cuts(main):
        reached = list(_reached(cut.var, cut, users))
        if written.isdisjoint({owning_tuple(buffers.of(v)) for v in (cut.source, *reached)}):
            found[cut.var] = cut
    if not found:
        return module
    stay = {b.var for b in main.body.bindings if owning_tuple(buffers.of(b.var)) in written}
    sweep = _Sweep(main, found, stay, returned)
    return module.with_functions({**module.functions, "main": sweep.function()})


@dataclass(frozen=True)
class _Cut:
    """Where columns are cut off: the variable, of which array, and how many there are and were."""

    var: Var
    source: Var
    columns: int
    wide: int


def _cuts(main: Function) -> Iterator[_Cut]:
    """Yield the cuts that take the last columns off, which are zeros, of a product or of the
    gradient of scores.
    """
    known: dict[object, Any] = {b.var: b.value for b in main.body.bindings}
    for binding in main.body.bindings:
        call, type_ = op_call(binding.value), tensor_type(binding.var)
        if call is None or call.op is not op.strided_slice or type_ is None or not type_.is_static:
            continue
        source, begin, end, *rest = call.args
        before = tensor_of(source)
        if rest != [None, "end"] or begin != (0, 0) or end != type_.shape:
            continue
        columns, wide = type_.static_shape[1], before.static_shape[1]
        zeros = _zero_columns(known, source)
        if type_.shape[0] == before.shape[0] and wide - columns == zeros:
            yield _Cut(binding.var, source, columns, wide)


def _zero_columns(known: dict[object, Any], source: object) -> int:
    """Return how many of the last columns of a value are zeros because of what it is."""
    call = op_call(known.get(source))
    if call is not None and call.op is op.astype:
        return _zero_columns(known, call.args[0])
    if call is not None and call.op in GRADIENTS and call.args[-1] is not None:
        return int(tensor_of(source).static_shape[1] - call.args[-1])
    if call is None or call.op not in COLUMNS:
        return 0
    weights, at = op_call(known.get(call.args[1])), 2 * COLUMNS[call.op] + 1
    if weights is None or weights.op is not op.pad or weights.args[2:] != (0.0, "constant"):
        return 0
    widths = weights.args[1]
    return int(widths[at]) if len(widths) == 4 and sum(widths) == widths[at] else 0


def _carries(user: object, var: Expr, cut: _Cut) -> OpCall | None:
    """Return a call that gives of all columns what it gives of these, and others behind them."""
    call = op_call(user.value) if isinstance(user, Binding) else None
    type_ = tensor_type(user.var) if isinstance(user, Binding) else None
    if call is None or type_ is None or not type_.is_static or type_.shape[-1:] != (cut.columns,):
        return None
    if call.args[0] is not var:
        return None
    last = call.op is op.bias_add and call.args[2] in (-1, type_.ndim - 1)
    half = call.op is op.astype and is_float(call.args[1])
    return call if last or half or call.op is op.reshape else None


def _loss(user: object, var: Expr) -> OpCall | None:
    """Return a loss of these scores, all of which are classes."""
    call = op_call(user.value) if isinstance(user, Binding) else None
    if call is None or call.op not in SCORES or call.args[SCORES[call.op]] is not var:
        return None
    return call if call.args[-1] is None else None


def _reached(var: Var, cut: _Cut, users: DefUse) -> Iterator[Var]:
    """Yield what can have all columns, from a variable on."""
    yield var
    for user in users.users(var):
        if _carries(user, var, cut) is not None:
            assert isinstance(user, Binding)
            yield from _reached(user.var, cut, users)


@dataclass(frozen=True)
class _Wide:
    """A value with all columns, of which those that were cut off are zeros."""

    var: Var
    cut: _Cut


class _Sweep:
    """Rewrites main: what is computed of a cut is computed of all columns, unless it is written."""

    def __init__(
        self, main: Function, cuts: dict[Var, _Cut], written: set[Var], returned: Collection[int]
    ) -> None:
        self.main, self.cuts, self.written, self.returned = main, cuts, written, returned
        self.wide: dict[Expr, _Wide] = {}
        self.whole: dict[Var, Expr] = {}  # what was padded to what there is anyway
        self.made: list[Binding] = []
        self.there: set[Expr] = set()

    def function(self) -> Function:
        for binding in self.main.body.bindings:
            self.binding(binding)
        result = self.result()
        self.narrow(Binding(Var(""), result))
        body = Block(tuple(self.made), result)
        main = replace(self.main, body=body, result_type=type_of(result))
        return rewrite_function(main, lambda b: b, self.whole) if self.whole else main

    def result(self) -> Expr:
        """Return main's result, with all columns of what may be returned so."""
        result = self.main.body.result
        if not self.returned or not isinstance(result, Tuple):
            return result
        others = {f for i, f in enumerate(result.fields) if i not in self.returned} | self.there
        loose = self.wide.keys() - others
        fields = [self.wide[f].var if f in loose else f for f in result.fields]
        return Tuple(tuple(fields))

    def binding(self, binding: Binding) -> None:
        """Add a binding, or what becomes of it."""
        call = op_call(binding.value)
        if binding.var in self.cuts:
            cut = self.cuts[binding.var]
            self.wide[cut.var] = _Wide(cut.source, cut)
            return
        for source in call.args if call is not None else ():
            seen = self.wide.get(source) if isinstance(source, Var) else None
            if seen is None or binding.var in self.written:
                continue
            if self.carried(binding, source, seen):
                return
        self.narrow(binding)
        self.made.append(binding)

    def carried(self, binding: Binding, source: Var, seen: _Wide) -> bool:
        """Compute a binding of all columns, and return whether that is possible."""
        call = op_call(binding.value)
        assert call is not None
        if _carries(binding, source, seen.cut) is not None:
            self.carry(binding, call, seen)
        elif _loss(binding, source) is not None:
            self.loss(binding, call, seen)
        elif call.op is op.pad and _pads_back(call, source, seen.cut):
            self.whole[binding.var] = seen.var
        elif call.op is op.sum and _keeps_columns(call):
            type_ = tensor_of(binding.var)
            value = new_call(op.sum, seen.var, *call.args[1:])
            total = self.add("total", _widened(type_, seen.cut), binding, value)
            self.made.append(Binding(binding.var, _cut_off(total, type_), binding.span))
        else:
            return False
        return True

    def carry(self, binding: Binding, call: OpCall, seen: _Wide) -> None:
        wide, args = _widened(tensor_of(binding.var), seen.cut), list(call.args)
        args[0] = seen.var
        if call.op is op.reshape:
            args[1] = wide.static_shape
        elif call.op is op.bias_add:
            value = new_call(op.pad, args[1], (0, seen.cut.wide - seen.cut.columns))
            args[1] = self.add("bias", _widened(tensor_of(args[1]), seen.cut), binding, value)
        var = self.add("wide", wide, binding, new_call(call.op, *args))
        self.wide[binding.var] = _Wide(var, seen.cut)

    def loss(self, binding: Binding, call: OpCall, seen: _Wide) -> None:
        """Let a loss read all columns."""
        args, type_ = list(call.args), tensor_type(binding.var)
        args[SCORES[call.op]], args[-1] = seen.var, seen.cut.columns
        value = new_call(call.op, *args)
        if call.op in GRADIENTS:
            assert type_ is not None
            var = self.add("wide", _widened(type_, seen.cut), binding, value)
            self.wide[binding.var] = _Wide(var, seen.cut)
        else:
            self.made.append(Binding(binding.var, value, binding.span))

    def narrow(self, reader: Binding) -> None:
        """Cut off what a reader reads, unless that was done before."""
        for atom in uses(reader.value):
            if atom in self.wide and atom not in self.there:
                assert isinstance(atom, Var)
                self.there.add(atom)
                value = _cut_off(self.wide[atom].var, tensor_of(atom))
                self.made.append(Binding(atom, value, reader.span))

    def add(self, name: str, type_: TensorType, like: Binding, value: Call) -> Var:
        var = Var(name, type_)
        self.made.append(Binding(var, value, like.span))
        return var


def _widened(type_: TensorType, cut: _Cut) -> TensorType:
    return type_.with_shape((*type_.shape[:-1], cut.wide))


def _cut_off(var: Var, type_: TensorType) -> Call:
    """Return the call that takes the first columns."""
    return new_call(op.strided_slice, var, (0,) * type_.ndim, type_.static_shape)


def _pads_back(call: OpCall, source: Var, cut: _Cut) -> bool:
    """Whether a call pads with zeros what was cut off."""
    widths = (*(0,) * (2 * tensor_of(source).ndim - 1), cut.wide - cut.columns)
    return call.args[1:] == (widths, 0.0, "constant")


def _keeps_columns(call: OpCall) -> bool:
    """Whether a sum is over other axes than the columns."""
    x = tensor_of(call.args[0])
    return x.ndim - 1 not in normalize_axes(call.args[1], x.ndim)
