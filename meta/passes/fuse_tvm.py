"""Fusion: neighbouring calls of one dialect become one function, which it compiles to one kernel.

Which calls may be neighbours in a kernel follows from how each reads its arguments, its *kind*
(stated where its kernel is registered): ``elemwise`` and ``broadcast`` read the element they write,
``injective`` another one, ``comm_reduce`` many to make few, ``out_elemwise_fusable`` many to make
as many. An ``opaque`` call stays alone. These are the kinds of TVM's operator fusion (Chen et al.,
"TVM: An Automated End-to-End Optimizing Compiler for Deep Learning", OSDI 2018, section 3).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from meta.dialect.core import FUSED, DialectOp
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
    bindings,
    map_atoms,
    operands,
    structural_hash,
)
from meta.ir.visit import inner_blocks
from meta.passes.buffers import Buffers, Summaries
from meta.passes.call_of import base_op, has_effect

MAX_MEMBERS = 24
"""Calls in one kernel: beyond, compilers take long and registers run out."""
_RANK = {"elemwise": 0, "broadcast": 1, "injective": 2, "comm_reduce": 3, "out_elemwise_fusable": 4}
_BROADCAST, _INJECTIVE, _REDUCE = _RANK["broadcast"], _RANK["injective"], _RANK["comm_reduce"]


def fuse_tvm(module: Module, *, max_members: int = MAX_MEMBERS) -> Module:
    """Join dispatched calls into functions that run as one kernel each.

    A call joins its users if they all are in one group, and the kinds allow it: a call that reads
    element by element joins anything but an opaque call or a convolution; a reduction or a
    convolution joins users that are elementwise. The result of a group is that of its last call,
    and with it those of elementwise calls of the same shape that others need later, as a backward
    pass does. So no value is computed twice or kept in memory that was not before. A call never
    moves behind another that writes what it reads. A group has at most ``max_members`` calls.

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
        fuser = _Fuser(Buffers(function, summaries), made, max_members)
        functions[name] = replace(function, body=fuser.block(function.body))
    return module.with_functions({**functions, **made.functions})


@dataclass
class _Made:
    """The functions made so far; equal ones are one."""

    taken: set[str]
    functions: dict[str, Function] = field(default_factory=dict)
    by_hash: dict[int, str] = field(default_factory=dict)

    def name(self, function: Function, members: list[Binding]) -> str:
        digest = structural_hash(function)
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


@dataclass(slots=True)
class _Group:
    """Calls that run as one kernel, at the place of the last: positions in their block."""

    dialect: str
    rank: int
    members: list[int]

    @property
    def last(self) -> int:
        return self.members[0]


class _Fuser:
    """Fuses the blocks of one function, each by itself."""

    def __init__(self, buffers: Buffers, made: _Made, max_members: int) -> None:
        self.buffers, self.made, self.max_members = buffers, made, max_members

    def block(self, block: Block) -> Block:
        items = list(block.bindings)
        users = _users(items, block)
        groups: dict[int, _Group] = {}
        for i in reversed(range(len(items))):
            own = _alone(items[i], i)
            if own is None:
                continue
            joined = self._joined(own, users.get(items[i].var, set()), groups, items)
            groups[i] = own if joined is None else joined
            if joined is not None:
                joined.members.append(i)
                joined.rank = max(joined.rank, own.rank)
        kept = []
        for i, binding in enumerate(items):
            group = groups.get(i)
            if group is None or len(group.members) == 1:
                kept.append(self._with_inner_blocks(binding))
            elif i == group.last:
                kept += self._fused(group, items, users)
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

    def _joined(
        self, own: _Group, users: set[int], groups: dict[int, _Group], items: list[Binding]
    ) -> _Group | None:
        """Return the group that a call may join, None if it stays apart."""
        fusable = [groups[u] for u in users if u in groups]
        if not fusable:
            return None
        group = min(fusable, key=lambda g: g.last)
        apart = (u for u in users if groups.get(u) is not group)
        outside = {groups[u].last if u in groups else u for u in apart}
        if group.dialect != own.dialect:
            return None
        if outside and not self._may_leave(own, group, min(outside), items):
            return None
        if len(group.members) >= self.max_members or not _may_feed(own.rank, group.rank):
            return None
        position = own.last
        read = {self.buffers.of(a) for a in operands(items[position].value) if isinstance(a, Var)}
        passed = items[position + 1 : group.last]
        return None if any(read & self.buffers.written_by(b) for b in passed) else group

    def _may_leave(self, own: _Group, group: _Group, needed: int, items: list[Binding]) -> bool:
        """Whether a call in a group may have a result that others read, the first at ``needed``.

        Nobody may write to it: what a view of it is, and what not, is decided by the program.
        """
        var, type_ = items[own.last].var, items[group.last].var.type
        assert isinstance(var.type, TensorType) and isinstance(type_, TensorType)
        return (
            needed > group.last
            and max(own.rank, group.rank) <= _BROADCAST
            and var.type.shape == type_.shape
            and self.buffers.of(var) not in self.buffers.written
        )

    def _fused(
        self, group: _Group, items: list[Binding], users: dict[Expr, set[int]]
    ) -> list[Binding]:
        members = [items[i] for i in sorted(group.members)]
        inside: dict[Expr, Expr] = {m.var: Var(m.var.name, m.var.type) for m in members}
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
        for member in members:
            var = inside[member.var]
            assert isinstance(var, Var)
            body.append(Binding(var, map_atoms(member.value, leaf), member.span))
        last = members[-1]
        inner = set(group.members)
        left = [m for m in members if m is last or not users.get(m.var, set()) <= inner]
        one = len(left) == 1
        function = Function(
            tuple(params.values()),
            Block(
                tuple(body), inside[last.var] if one else Tuple(tuple(inside[m.var] for m in left))
            ),
            last.var.type if one else TupleType(tuple(_tensor_type(m.var) for m in left)),
            {FUSED: group.dialect},
        )
        callee = GlobalVar(self.made.name(function, members), function.type)
        call = Call(callee, tuple(params))
        if one:
            return [Binding(last.var, call, last.span)]
        results = Var(last.var.name, function.result_type)
        fields = (Binding(m.var, TupleGetItem(results, i), m.span) for i, m in enumerate(left))
        return [Binding(results, call, last.span), *fields]


def _tensor_type(var: Var) -> TensorType:
    assert isinstance(var.type, TensorType)
    return var.type


def _users(items: list[Binding], block: Block) -> dict[Expr, set[int]]:
    """Return who uses each variable, by position; the block's result comes after all bindings."""
    users: dict[Expr, set[int]] = {}

    def add(atoms: Iterable[Expr], position: int) -> None:
        for atom in atoms:
            users.setdefault(atom, set()).add(position)

    for i, binding in enumerate(items):
        add(operands(binding.value), i)
        for inner in inner_blocks(binding.value):
            add(operands(inner.result), i)
            for nested in bindings(inner):
                add(operands(nested.value), i)
                for deeper in inner_blocks(nested.value):
                    add(operands(deeper.result), i)
    add(operands(block.result), len(items))
    return users


def _alone(binding: Binding, position: int) -> _Group | None:
    """Return the group of one call, None if it can be in no group."""
    call, type_ = binding.value, binding.var.type
    if not isinstance(call, Call) or not isinstance(call.callee, DialectOp):
        return None
    dialect, rank = call.callee.dialect, _RANK.get(call.callee.fusion or "opaque")
    if dialect.fuse is None or rank is None or has_effect(binding):
        return None
    if not isinstance(type_, TensorType) or not type_.is_static or type_.size == 0:
        return None
    return _Group(dialect.name, rank, [position])


def _may_feed(producer: int, group: int) -> bool:
    if producer <= _INJECTIVE:
        return group <= _REDUCE
    return group <= _BROADCAST
