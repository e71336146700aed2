"""Fusion: neighbouring calls of one dialect become one function, which it compiles to one kernel.

Which calls may be neighbours in a kernel follows from how each reads its arguments, its *kind*
(stated where its kernel is registered): ``elemwise`` and ``broadcast`` read the element they write,
``injective`` another one, ``comm_reduce`` many to make few, ``out_elemwise_fusable`` many to make
as many. An ``opaque`` call stays alone. These are the kinds of TVM's operator fusion (Chen et al.,
"TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3).
"""

from __future__ import annotations

from dataclasses import replace

from meta import op
from meta.base.device import CPU, Device
from meta.dialect.core import FUSED
from meta.ir import (
    Binding,
    Block,
    Call,
    Module,
    TensorType,
    Var,
)
from meta.op.core.indices import checks_indices
from meta.passes.buffers import Buffers, Summaries
from meta.passes.calls import called_op, new_call
from meta.passes.fusion_groups import Group, Groups
from meta.passes.index_ranges import IndexRanges
from meta.passes.outline import Outlined
from meta.passes.rewrite import with_inner_blocks

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
    made = Outlined.beside(module)
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


class _Fuser:
    """Fuses the blocks of one function, each by itself."""

    def __init__(
        self, buffers: Buffers, ranges: IndexRanges | None, made: Outlined, max_members: int
    ) -> None:
        self.buffers, self.ranges = buffers, ranges
        self.made, self.max_members = made, max_members

    def block(self, block: Block) -> Block:
        groups = Groups(block, self.buffers, self.ranges, self.max_members)
        kept = []
        for i, binding in enumerate(block.bindings):
            group = groups.of.get(i)
            if group is None or group.size == 1:
                kept += [] if i in groups.gone else [with_inner_blocks(binding, self.block)]
            elif i == group.last:
                kept += self._fused(group, groups)
        return Block(tuple(kept), block.result)

    def _fused(self, group: Group, groups: Groups) -> list[Binding]:
        """Return the call of a group's function, what it reads and what it makes."""
        views, copies = _copies(group, groups)
        members = {i: groups.items[i] for i in sorted(group.members)}
        placed = sorted([*copies, *members.items()], key=lambda pair: pair[0])
        calls = [call for _, call in placed]
        results = [m for i, m in members.items() if groups.leaves(i)]
        # Lines of calls that an error may name: functions that differ in them are not one.
        lines = tuple(members[i].span for i in members if i in groups.indices)
        attrs = {FUSED: group.dialect}
        return [*views, *self.made.call(calls, _stem(calls), attrs, results=results, key=lines)]


def _stem(calls: list[Binding]) -> str:
    ops = [op.name for op in map(called_op, (c.value for c in calls)) if op is not None]
    return "_".join(["fused", *ops[:4], *(["etc"] if len(ops) > 4 else [])])


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
