"""Fusion: neighbouring calls of one dialect become one function, which it compiles to one kernel.

Which calls may be neighbours in a kernel follows from how each reads its arguments, its *kind*
(stated where its kernel is registered): ``elemwise`` and ``broadcast`` read the element they write,
``injective`` another one, ``comm_reduce`` many to make few, ``out_elemwise_fusable`` many to make
as many. An ``opaque`` call stays alone. These are the kinds of TVM's operator fusion (Chen et al.,
"TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from meta import op
from meta.base.device import CPU, Device
from meta.base.source import Span
from meta.dialect.core import FUSED
from meta.ir import (
    Binding,
    Block,
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    If,
    Module,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Var,
    map_atoms,
    structural_hash,
)
from meta.op.core.indices import checks_indices
from meta.passes.buffers import Buffers, Summaries
from meta.passes.calls import base_op, new_call
from meta.passes.fusion_groups import Group, Groups
from meta.passes.index_ranges import IndexRanges

MAX_MEMBERS = 24
"""Calls in one kernel: beyond, compilers take long and registers run out."""


def fuse_tvm(module: Module, *, max_members: int = MAX_MEMBERS, device: Device = CPU) -> Module:
    """Join dispatched calls into functions that run as one kernel each.

    A call joins its users if they all are in one group, and the kinds allow it: a call that reads
    element by element joins anything but an opaque call or a convolution; a reduction or a
    convolution joins users that are elementwise. The result of a group is that of its last call,
    and with it those of elementwise calls of the same shape that others need later, as a backward
    pass does. So no value is kept in memory that was not before, nor computed twice, but for casts
    to a dtype of more bytes: each kernel computes those that it reads, from half the bytes. A call
    never moves behind another that writes what it reads. A group has at most ``max_members`` calls.
    Where indices are looked at before a kernel reads them (`checks_indices`), none computes them,
    unless they are known to be in range.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("tvm"):
    ...     print(fuse_tvm(dispatch(parse('''
    ... func @main(%x: float32[2, 3]) -> float32[2] {
    ...   %a: float32[2, 3] = exp(%x)
    ...   %b: float32[2, 3] = multiply(%a, %x)
    ...   %c: float32[2] = sum(%b, axis=1)
    ...   return %c
    ... }'''), device=CPU)))
    func @main(%x: float32[2, 3]) -> float32[2] {
      %c: float32[2] = @fused_exp_multiply_sum(%x)
      return %c
    }
    <BLANKLINE>
    func @fused_exp_multiply_sum(%x: float32[2, 3]) -> float32[2] attrs(fused="tvm") {
      %a: float32[2, 3] = tvm.exp(%x)
      %b: float32[2, 3] = tvm.multiply(%a, %x)
      %c: float32[2] = tvm.sum(%b, axis=1)
      return %c
    }
    """
    made = _Made(set(module.functions))
    functions, summaries = {}, Summaries(module)
    for name, function in module.functions.items():
        if FUSED in function.attrs:
            functions[name] = function
            continue
        buffers = Buffers(function, summaries)
        ranges = None
        if checks_indices(device):
            ranges = IndexRanges(function, buffers, module.functions)
        fuser = _Fuser(buffers, ranges, made, max_members)
        functions[name] = replace(function, body=fuser.block(function.body))
    return module.with_functions({**functions, **made.functions})


Lines = tuple[Span | None, ...]


@dataclass
class _Made:
    """The functions made so far; equal ones are one."""

    taken: set[str]
    functions: dict[str, Function] = field(default_factory=dict)
    by_hash: dict[tuple[int, Lines], str] = field(default_factory=dict)

    def name(self, function: Function, members: list[Binding], lines: Lines) -> str:
        """Return the name of a function; ``lines`` are those of calls that an error may name."""
        digest = structural_hash(function), lines
        if digest not in self.by_hash:
            ops = list(map(_op_name, members))
            stem = name = "_".join(["fused", *ops[:4], *(["etc"] if len(ops) > 4 else [])])
            number = 1
            while name in self.taken:
                number += 1
                name = f"{stem}_{number}"
            self.taken.add(name)
            self.functions[name] = function
            self.by_hash[digest] = name
        return self.by_hash[digest]


def _op_name(member: Binding) -> str:
    assert isinstance(member.value, Call)
    op = base_op(member.value.callee)
    assert op is not None
    return op.name


class _Fuser:
    """Fuses the blocks of one function, each by itself."""

    def __init__(
        self, buffers: Buffers, ranges: IndexRanges | None, made: _Made, max_members: int
    ) -> None:
        self.buffers, self.ranges = buffers, ranges
        self.made, self.max_members = made, max_members

    def block(self, block: Block) -> Block:
        groups = Groups(block, self.buffers, self.ranges, self.max_members)
        kept = []
        for i, binding in enumerate(block.bindings):
            group = groups.of.get(i)
            if group is None or group.size == 1:
                kept += [] if i in groups.gone else [self._with_inner_blocks(binding)]
            elif i == group.last:
                kept += self._fused(group, groups)
        return Block(tuple(kept), block.result)

    def _with_inner_blocks(self, binding: Binding) -> Binding:
        value = binding.value
        if isinstance(value, If):
            blocks = map(self.block, (value.then_block, value.else_block))
            return Binding(binding.var, If(value.condition, *blocks), binding.span)
        if isinstance(value, Function):
            inner = replace(value, body=self.block(value.body))
            return Binding(binding.var, inner, binding.span)
        return binding

    def _fused(self, group: Group, groups: Groups) -> list[Binding]:
        """Return the call of a group's function, what it reads and what it makes."""
        views, copies = _copies(group, groups)
        members = {i: groups.items[i] for i in sorted(group.members)}
        placed = [*copies, *members.items()]
        calls = [call for _, call in sorted(placed, key=lambda pair: pair[0])]
        inside: dict[Expr, Expr] = {c.var: Var(c.var.name, c.var.type) for c in calls}
        params: dict[Expr, Var] = {}

        def leaf(atom: Expr) -> Expr:
            if atom in inside:
                return inside[atom]
            if not isinstance(atom, Var | Constant):
                return atom  # an operator
            if atom not in params:
                name = atom.name if isinstance(atom, Var) else "constant"
                params[atom] = Var(name, atom.type)
            return params[atom]

        body = []
        for call in calls:
            var = inside[call.var]
            assert isinstance(var, Var)
            body.append(Binding(var, map_atoms(call.value, leaf), call.span))
        last = members[group.last]
        left = [m for i, m in members.items() if groups.leaves(i)]
        one = len(left) == 1
        function = Function(
            tuple(params.values()),
            Block(
                tuple(body), inside[last.var] if one else Tuple(tuple(inside[m.var] for m in left))
            ),
            last.var.type if one else TupleType(tuple(_tensor_type(m.var) for m in left)),
            {FUSED: group.dialect},
        )
        lines = tuple(groups.items[i].span for i in sorted(group.members) if i in groups.indices)
        callee = GlobalVar(self.made.name(function, calls, lines), function.type)
        value = Call(callee, tuple(params))
        if one:
            return [*views, Binding(last.var, value, last.span)]
        results = Var(last.var.name, function.result_type)
        fields = (Binding(m.var, TupleGetItem(results, i), m.span) for i, m in enumerate(left))
        return [*views, Binding(results, value, last.span), *fields]


def _copies(group: Group, groups: Groups) -> tuple[list[Binding], list[tuple[int, Binding]]]:
    """Return the views that a kernel's copies of casts are made of, and the copies, by position:
    each under the name of what is read of it.
    """
    views, casts = [], []
    for cast, read in sorted(group.copies):
        binding, wanted = groups.items[cast], groups.items[read]
        assert isinstance(binding.value, Call)
        source, *others = binding.value.args
        if read != cast:
            type_ = _tensor_type(wanted.var).with_dtype(_tensor_type(source).dtype)
            view = Var(wanted.var.name, type_)
            shape = new_call(op.reshape, source, type_.static_shape)
            views.append(Binding(view, shape, wanted.span))
            source = view
        value = Call(binding.value.callee, (source, *others))
        casts.append((cast, Binding(wanted.var, value, binding.span)))
    return views, casts


def _tensor_type(var: Var) -> TensorType:
    assert isinstance(var.type, TensorType)
    return var.type
