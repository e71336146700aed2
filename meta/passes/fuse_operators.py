"""Fusion: neighbouring calls of one dialect become one function, which it compiles to one kernel.

`FusionGroups` says which calls are one kernel; `fuse_operators` makes functions of these groups.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from meta import op
from meta.base.device import CPU, Device
from meta.dialect.core import FUSED, DialectOp
from meta.dialect.core.ir_calls import called_op, new_call, tensor_of
from meta.ir import Binding, Block, Call, Module, Var
from meta.op.core.indices import checks_indices
from meta.passes.alias_analysis import AliasSets, AliasSummaries
from meta.passes.fusion_groups import FusionGroup, FusionGroups
from meta.passes.index_ranges import IndexRanges
from meta.passes.outline import OutlinedFunctions
from meta.passes.rewrite import with_inner_blocks, with_value
from meta.passes.symbolic_extents import is_specialized

MAX_MEMBERS = 24
"""Calls in one kernel: beyond, compilers take long and registers run out."""


def fuse_operators(
    module: Module,
    *,
    max_members: int = MAX_MEMBERS,
    recompute: bool | None = None,
    device: Device = CPU,
) -> Module:
    """Join dispatched calls into functions that run as one kernel each.

    A call joins its users if they all are in one group, and the kinds allow it: a call that reads
    element by element joins anything but an opaque call or a convolution; a reduction or a
    convolution joins users that are elementwise. The result of a group is that of its last call,
    and with it those of elementwise calls of the same shape that others need later, as a backward
    pass does. So no value is kept in memory that was not before. Casts to a dtype of more bytes,
    and broadcasts, are computed by each kernel that reads them, from fewer bytes. With
    ``recompute`` (None: on CUDA) so are other such results of a group: the kernels that need them
    later compute them again, if what they are computed from is in memory then anyway and no more
    bytes are read and written than before. They are not kept, then. On the CPU the arithmetic would
    cost more than the memory.

    A call never moves behind another that writes what it reads. A group has at most ``max_members``
    calls, those that are computed again included.
    Where indices are looked at before a kernel reads them (`checks_indices`), none computes them,
    unless they are known to be in range.

    >>> from meta.base.device import CPU
    >>> from meta.dialect import only
    >>> from meta.ir import parse
    >>> from meta.passes import dispatch
    >>> with only("tvm"):
    ...     print(meta.passes.fuse_operators(dispatch(parse('''
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
    made = OutlinedFunctions(module)
    if recompute is None:
        recompute = device.kind == "cuda"
    symbolic = is_specialized(module, device)
    functions, summaries = {}, AliasSummaries(module)
    for name, function in module.functions.items():
        if FUSED in function.attrs:
            functions[name] = function
            continue
        buffers = AliasSets(function, summaries)
        ranges = None
        if checks_indices(device):
            ranges = IndexRanges(function, buffers, module.functions)
        grouped = partial(
            FusionGroups,
            buffers=buffers,
            ranges=ranges,
            max_members=max_members,
            recompute=recompute,
            symbolic=symbolic,
        )
        functions[name] = replace(function, body=_block(function.body, made, grouped))
    return module.with_functions({**functions, **made.functions})


def _block(
    block: Block, made: OutlinedFunctions, grouped: Callable[[Block], FusionGroups]
) -> Block:
    """Fuse the calls of a block, and those of each block in it by themselves."""
    groups, kept = grouped(block), list[Binding]()
    for i, binding in enumerate(block.bindings):
        group = groups.of.get(i)
        if group is not None and group.size > 1:
            kept += _fuse(group, groups, made) if i == group.last else []
        elif i not in groups.gone:
            kept.append(with_inner_blocks(binding, lambda inner: _block(inner, made, grouped)))
    return Block(tuple(kept), block.result)


def _fuse(group: FusionGroup, groups: FusionGroups, made: OutlinedFunctions) -> list[Binding]:
    """Return the call of a group's function, what it reads and what it makes."""
    views, copies = _copies(group, groups)
    members = {i: groups.items[i] for i in sorted(group.members)}
    placed = sorted([*copies, *members.items()], key=lambda pair: pair[0])
    calls = [_without_configuration(call) for _, call in placed]
    results = [m for i, m in members.items() if groups.leaves(i)]
    # Lines of calls that an error may name: functions that differ in them are not one.
    lines = tuple(members[i].span for i in members if i in groups.indices)
    attrs = {FUSED: group.dialect}
    return [*views, *made.call(calls, _stem(calls), attrs, results=results, key=lines)]


def _without_configuration(binding: Binding) -> Binding:
    """Return a call whose kernel's configuration is not stated: it has no kernel of its own."""
    call = binding.value
    assert isinstance(call, Call) and isinstance(call.callee, DialectOp)
    return (
        with_value(binding, Call(call.callee.plain, call.args)) if call.callee.config else binding
    )


def _stem(calls: list[Binding]) -> str:
    ops = [op.name for op in map(called_op, (c.value for c in calls)) if op is not None]
    return "_".join(["fused", *ops[:4], *(["etc"] if len(ops) > 4 else [])])


def _copies(
    group: FusionGroup, groups: FusionGroups
) -> tuple[list[Binding], list[tuple[int, Binding]]]:
    """Return the views that a kernel's copies of casts are made of, and all copies by position."""
    views, copies = list[Binding](), list[tuple[int, Binding]]()
    for position, read in sorted(group.copies):
        binding, wanted = groups.items[position], groups.items[read]
        if read == position:
            copies.append((position, binding))
            continue
        assert isinstance(binding.value, Call)
        source, *others = binding.value.args
        type_ = tensor_of(wanted.var).with_dtype(tensor_of(source).dtype)
        view = Var(wanted.var.name, type_)
        views.append(Binding(view, new_call(op.reshape, source, type_.static_shape), wanted.span))
        value = Call(binding.value.callee, (view, *others))
        copies.append((position, Binding(wanted.var, value, binding.span)))
    return views, copies
