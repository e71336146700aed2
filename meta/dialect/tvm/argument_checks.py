"""What a kernel on the CPU is called with, checked before it reads memory.

TVM makes an assertion of each fact: how many arguments there are and of which kinds, and of each
tensor its rank, dtype, device, every extent and every stride. LLVM takes longer for these, a dozen
for each tensor, than for the loops of most kernels: half of the time in which several are compiled
together. Here what TVM asserts of tensors is a table of numbers, of which LLVM makes no code, and a
function that is compiled once and linked to every library goes through it (`linker.MATCH`).
Assertions stay for the number and the kinds of the arguments, and for extents that have names, of
which all tensors must say the same. A module that is never linked has TVM's.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import reduce
from typing import Any

import tvm.ir
import tvm_ffi
from tvm import tirx
from tvm.tirx.buffer import is_buffer_var

TABLE, TENSORS = "meta.table", "meta.tensors"
"""The attributes of a function with its table, and with how many tensors are in it."""
_READ = "tirx.tvm_struct_get"
_SHAPE = 2
"""The field of a tensor's record where the array of extents is, in TVM's `TVMStructFieldKind`."""
_SCOPES = ("storage_alignment", "device_id", "device_type")
"""Statements around the rest of a function, which checks can stand before."""


def described(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function with the table of the tensors among its parameters: of each its position,
    its rank and dtype as DLPack has them in one number, and its extents, -1 for one with a name.
    """
    tensors = [(i, p.ty) for i, p in enumerate(function.params) if is_buffer_var(p)]
    numbers: list[int] = []
    for position, kind in tensors:
        dtype, shape = kind.dtype.dtype, kind.shape
        word = len(shape) | dtype.type_code << 32 | dtype.bits << 40 | dtype.lanes << 48
        numbers += [position, word]
        numbers += [e.value if isinstance(e, tirx.IntImm) else -1 for e in shape]
    table = "".join(map(_characters, numbers))
    return function.with_attr(TABLE, table).with_attr(TENSORS, len(tensors))


def _characters(number: int) -> str:
    """Return a number as 16 characters of ASCII, of which TVM makes as many bytes: the low 7 bits
    of each of its bytes, then the highest bit of each.
    """
    content = number.to_bytes(8, "little", signed=True)
    return bytes([*(b & 127 for b in content), *(b >> 7 for b in content)]).decode()


def tabled(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a function that was lowered to the packed calling convention with the table that it
    has, if it has one, in place of TVM's assertions.

    The level of a value is how many pointers are followed to it from the parameters. What is read
    on a level is safe when the checks of those below it have passed, and nothing writes, so all
    steps of a level come before all of the next.
    """
    if TABLE not in function.attrs:
        return function
    facts: list[tuple[int, Any]] = []
    bound: list[tuple[int, tirx.Bind]] = []
    levels: dict[Any, int] = {}
    shapes: set[Any] = set()
    first: tirx.AssertStmt | None = None
    scopes: list[tirx.AttrStmt] = []
    rest = [function.body]
    while rest:
        step, *later = rest
        if isinstance(step, tirx.SeqStmt):
            later = [*step, *later]
        elif isinstance(step, tirx.AttrStmt) and step.attr_key in _SCOPES and not later:
            scopes.append(step)
            later = [step.body]
        elif isinstance(step, tirx.Bind):
            levels[step.var] = _level(step.value, levels)
            bound.append((levels[step.var], step))
            if _is_read(step.value) and step.value.args[2].value == _SHAPE:
                shapes.add(step.var)
        elif isinstance(step, tirx.AssertStmt):
            first = first or step
            level = _level(step.condition, levels)
            if level < 2 or _compares_extents(step.condition, levels, shapes):
                facts.append((level, step.condition))
        elif not _asserts_strides(step):
            break
        rest = later
    if first is None:
        return function
    arguments, table, count = function.params[1], function.attrs[TABLE], function.attrs[TENSORS]
    match = tirx.call_extern("int32", "meta_match", arguments, tvm.ir.StringImm(table), count)
    facts.append((2, match != 0))
    steps: list[Any] = []
    for level in sorted({level for level, _ in (*facts, *bound)}):
        steps += [step for at, step in bound if at == level]
        checked = [fact for at, fact in facts if at == level]
        if checked:
            steps.append(_assertion(first, reduce(tirx.And, checked)))
    body = tirx.SeqStmt(rest)
    for scope in reversed(scopes):
        body = tirx.AttrStmt(scope.node, scope.attr_key, scope.value, body)
    return function.with_body(tirx.SeqStmt([*steps, body]))


def _asserts_strides(step: Any) -> bool:
    """Return whether a step asserts strides if there are any, which the table says."""
    return isinstance(step, tirx.IfThenElse) and isinstance(step.then_case, tirx.AssertStmt)


def _is_read(value: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and getattr(value.op, "name", "") == _READ


def _level(value: Any, levels: dict[Any, int]) -> int:
    """Return how many pointers are followed to read a value."""
    found = [0]

    def read(node: Any) -> None:
        if _is_read(node):
            found.append(1 + _level(node.args[0], levels))

    rules = [(tvm.ir.Var, lambda name: found.append(levels.get(name, 0))), (tvm.ir.Call, read)]
    tvm_ffi.structural_walk(value, rules)
    return max(found)


def _compares_extents(fact: Any, levels: dict[Any, int], shapes: Collection[Any]) -> bool:
    """Return whether a fact is of an extent and a name, of which an extent before was the value."""
    names: list[Any] = []
    tvm_ffi.structural_walk(fact, (tvm.ir.Var, names.append))
    return any(name in shapes for name in names) and any(levels.get(n, 0) > 2 for n in names)


def _assertion(first: tirx.AssertStmt, fact: Any) -> tirx.AssertStmt:
    """Return the assertion of a fact; its message names the signature, as TVM's first one does."""
    _, _, _, *signature = first.message_parts
    message = [tvm.ir.StringImm("Mismatched arguments"), *signature]
    # TVM 0.27 names the first two parameters of this constructor the wrong way round.
    return tirx.AssertStmt(fact, first.error_kind, message)
