"""Which functions may be active more than once at a time.

Memory that belongs to a function, rather than to one activation of it, is for the others only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from meta.vm.bytecode import (
    AllocateStorage,
    AllocateTensor,
    Call,
    Instruction,
    MakeClosure,
    TailCall,
)
from meta.vm.code import FunctionCode


def recursive(functions: Mapping[str, FunctionCode]) -> frozenset[str]:
    """Return the functions to which a call that they wait for may come back.

    A closure that is called may be any. A tail call is not waited for: a loop is not recursive.
    """
    closures = frozenset(
        i.function
        for f in functions.values()
        for i in f.instructions()
        if isinstance(i, MakeClosure)
    )

    def callees(name: str, kinds: type[Call] | type[TailCall]) -> set[str]:
        found: set[str] = set()
        for i in functions[name].instructions():
            if isinstance(i, kinds):
                found |= {i.callee} if isinstance(i.callee, str) else closures
        return found

    waited = {name: callees(name, Call) for name in functions}
    called = {name: waited[name] | callees(name, TailCall) for name in functions}
    return frozenset(name for name in functions if name in _reached(waited[name], called))


def _reached(start: set[str], called: Mapping[str, set[str]]) -> set[str]:
    found, todo = set(start), list(start)
    while todo:
        new = called[todo.pop()] - found
        found |= new
        todo += new
    return found


def without_storage(function: FunctionCode) -> FunctionCode:
    """Return a function in which every tensor has memory of its own."""

    def own(instruction: Instruction) -> Instruction:
        if isinstance(instruction, AllocateTensor):
            return replace(instruction, storage=None, offset=0)
        return instruction

    blocks = (
        tuple(own(i) for i in block if not isinstance(i, AllocateStorage))
        for block in function.blocks
    )
    return replace(function, blocks=tuple(blocks))
