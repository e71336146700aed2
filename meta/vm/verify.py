"""Checks of code: every register has a value when it is read, whatever way was taken there.

The emitter's code passes; code that was read from a file might not. What a value *is*, a tensor, a
tuple or a function, shows only when the program runs. Which functions may be active more than once
at a time is found here too: memory that belongs to a function, rather than to one activation of it,
is for the others only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NoReturn

from meta.base.errors import IRError
from meta.passes.lifetimes import type_bytes
from meta.vm.bytecode import (
    AllocateStorage,
    AllocateTensor,
    Call,
    Instruction,
    Invoke,
    MakeClosure,
    Register,
    Release,
    TailCall,
    Terminator,
)
from meta.vm.code import Code, FunctionCode


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


def verify_code(code: Code) -> None:
    """Raise IRError, with the place and the instruction, for code that the machine cannot run.

    Checked: blocks end with a terminator and lead forward; registers are set before they are read
    and not after they were released; functions exist and get as many arguments as they take; a
    tensor lies inside of its storage, and a function with a storage is not recursive; what is
    allocated for a kernel is filled by it.
    """
    shared = recursive(code.functions)
    for name, function in code.functions.items():
        _Checker(code, name, function, name in shared).check()


class _Checker:
    def __init__(self, code: Code, name: str, function: FunctionCode, shared: bool) -> None:
        self.code, self.name, self.function, self.shared = code, name, function, shared
        self.place = ""
        # By block: the registers that are set on every way to it; None before a way is known.
        self.arriving: list[set[Register] | None] = [None] * len(function.blocks)
        self.storages: dict[Register, int] = {}

    def fail(self, what: str, instruction: Instruction) -> NoReturn:
        raise IRError(what, found=f"{instruction} ({self.place})")

    def check(self) -> None:
        self.arriving[0] = set(range(self.function.params))
        for number, block in enumerate(self.function.blocks):
            known = self.arriving[number]
            unfilled: set[Register] = set()
            for at, i in enumerate(block):
                self.place = f"@{self.name}, block {number}, instruction {at}"
                if isinstance(i, Terminator) != (at == len(block) - 1):
                    self.fail("a block does not end with its one terminator", i)
                if known is not None:  # else no way leads here
                    self.instruction(i, known, unfilled)
            end = block[-1]
            assert isinstance(end, Terminator)
            for target in end.targets:
                if not number < target < len(self.function.blocks):
                    self.fail("a block does not lead forward", end)
                before = self.arriving[target]
                if known is not None:
                    self.arriving[target] = set(known) if before is None else before & known

    def instruction(self, i: Instruction, known: set[Register], unfilled: set[Register]) -> None:
        """Check one instruction and note what it sets."""
        for register in i.reads:
            if register not in known:
                self.fail(f"r{register} is read and has no value", i)
        filled = set(i.outs) if isinstance(i, Invoke) and i.fills else set()
        if (unfilled - filled) and not isinstance(i, AllocateTensor):
            self.fail("a tensor is allocated and not filled at once", i)
        unfilled -= filled
        match i:
            case Release():
                known.difference_update(i.registers)
            case AllocateStorage():
                if self.shared:
                    self.fail("a recursive function has no memory of its own", i)
                self.storages[i.out] = i.size
            case AllocateTensor():
                self.allocation(i)
                if i.storage is None:
                    unfilled.add(i.out)
            case MakeClosure():
                self.arity(i, i.function, len(i.captured), at_least=True)
            case Call() | TailCall() if isinstance(i.callee, str):
                self.arity(i, i.callee, len(i.args))
        known.update(i.results)

    def allocation(self, i: AllocateTensor) -> None:
        if not i.type.is_static:
            self.fail("a tensor is allocated whose extents are not known", i)
        if i.storage is None:
            return
        size = self.storages.get(i.storage, -1)
        if i.offset < 0 or i.offset + type_bytes(i.type) > size:
            self.fail("a tensor lies outside of its storage", i)

    def arity(self, i: Instruction, name: str, given: int, at_least: bool = False) -> None:
        function = self.code.functions.get(name)
        if function is None:
            self.fail("there is no such function", i)
        if given > function.params or (given < function.params and not at_least):
            self.fail(f"@{name} takes {function.params} arguments", i)
