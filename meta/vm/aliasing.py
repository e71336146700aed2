"""Which arguments and constants a program may write to, and whether a result may be a constant.

For every register: the *roots* whose memory its value may share, parameters by number, constants,
and memory that is made while the function runs. A function's `Summary` says which of its parameters
it may write, return and put into references; summaries grow until nothing changes, which takes
recursion in. All references of a program count as one, `CELL`: what one holds may be whatever was
put into any.
"""

from __future__ import annotations

from dataclasses import dataclass

from meta.base.errors import IRError
from meta.vm.bytecode import (
    Call,
    Field,
    Instruction,
    Invoke,
    LoadConstant,
    MakeClosure,
    Move,
    Operand,
    Register,
    Return,
    TailCall,
    View,
    registers_of,
)
from meta.vm.bytecode_data import Construct, GetField, MakeRef, ReadRef, WriteRef
from meta.vm.code import Code, FunctionCode, FusedRef

CONSTANT, FRESH, CELL = -1, -2, -3
Roots = frozenset[int]
"""Parameters by number, `CONSTANT`, `FRESH`, `CELL`."""
_NONE: Roots = frozenset()


@dataclass(frozen=True, slots=True)
class Summary:
    """What a function may do to memory that it did not make: the roots of what it returns, of what
    it writes, and of what it puts into references.
    """

    returned: Roots = _NONE
    written: Roots = _NONE
    stored: Roots = _NONE


def summaries(code: Code) -> dict[str, Summary]:
    """Return what each function may do."""
    found = {name: Summary() for name in code.functions}
    closures = _closures(code)
    while True:
        new = {name: _Walk(code, name, found, closures).summary() for name in code.functions}
        if new == found:
            return {
                name: _resolved(s, found[code.entry], name == code.entry) for name, s in new.items()
            }
        found = new


def _resolved(summary: Summary, entry: Summary, is_entry: bool) -> Summary:
    """Return a summary with what references hold in the place of `CELL`: all that the entry, by
    itself or by what it calls, puts into one. Its parameters are nobody else's.
    """
    held = frozenset(r for r in entry.stored if r != CELL and (r < 0 or is_entry))

    def known(roots: Roots) -> Roots:
        return (roots - {CELL}) | held if CELL in roots else roots

    return Summary(known(summary.returned), known(summary.written), known(summary.stored))


def require_writable_constants(code: Code) -> None:
    """Raise IRError, at the user's line, for a kernel that writes what is always a constant."""
    found, closures = summaries(code), _closures(code)
    for name in code.functions:
        walk = _Walk(code, name, found, closures)
        walk.summary()
        for instruction, roots in walk.writes:
            if roots == {CONSTANT}:
                kernel = code.kernels[instruction.kernel]
                assert not isinstance(kernel, FusedRef)
                raise IRError(
                    "this writes to a constant of the program",
                    op=kernel.operator,
                    span=instruction.span,
                )


def _closures(code: Code) -> list[tuple[str, int]]:
    """Return the functions of which closures are made, with their numbers of captured values."""
    made = (i for f in code.functions.values() for i in f.instructions())
    return list({(i.function, len(i.captured)): None for i in made if isinstance(i, MakeClosure)})


class _Walk:
    """One walk over the instructions of a function; control runs forward only."""

    def __init__(
        self, code: Code, name: str, found: dict[str, Summary], closures: list[tuple[str, int]]
    ) -> None:
        self.code, self.found, self.closures = code, found, closures
        self.function: FunctionCode = code.functions[name]
        self.roots: dict[Register, Roots] = {i: frozenset({i}) for i in range(self.function.params)}
        self.returned, self.written, self.stored = _NONE, _NONE, _NONE
        self.writes: list[tuple[Invoke, Roots]] = []

    def summary(self) -> Summary:
        for instruction in self.function.instructions():
            self.step(instruction)
        return Summary(self.returned, self.written, self.stored)

    def of(self, operand: Operand) -> Roots:
        fresh = frozenset({FRESH})
        return _NONE.union(*(self.roots.get(r, fresh) for r in registers_of(operand)))

    def step(self, i: Instruction) -> None:
        match i:
            case LoadConstant():
                self.roots[i.out] = frozenset({CONSTANT})
            case Move():  # of two branches, perhaps
                self.roots[i.out] = self.roots.get(i.out, _NONE) | self.of(i.source)
            case View() | Field() | GetField():
                self.roots[i.out] = self.of(i.source)
            case Construct():
                self.roots[i.out] = self.of(i.fields)
            case MakeRef():
                self.roots[i.out] = _NONE
                self.stored |= self.of(i.value)
            case ReadRef():
                self.roots[i.out] = frozenset({CELL})
            case WriteRef():
                self.stored |= self.of(i.value)
            case MakeClosure():
                self.roots[i.out] = self.of(i.captured)
            case Invoke():
                for register in i.written:
                    roots = self.of(register)
                    self.writes.append((i, roots))
                    self.written |= roots
            case Call():
                self.roots[i.out] = self.call(i)
            case TailCall():
                self.returned |= self.call(i)
            case Return():
                self.returned |= self.of(i.value)

    def call(self, i: Call | TailCall) -> Roots:
        """Note what a call may write, and return the roots of its result."""
        returned = _NONE
        for name, captured in self.callees(i):
            found = self.found[name]
            self.written |= self.outside(i, captured, found.written)
            self.stored |= self.outside(i, captured, found.stored)
            returned |= self.outside(i, captured, found.returned)
        return returned

    def outside(self, i: Call | TailCall, captured: int, roots: Roots) -> Roots:
        """Return what roots inside of the function that is called are out here."""
        found = {r for r in roots if r < 0}
        for root in roots - found:
            if root >= captured:
                found |= self.of(i.args[root - captured])
            elif isinstance(i.callee, int):
                found |= self.of(i.callee)
        return frozenset(found)

    def callees(self, i: Call | TailCall) -> list[tuple[str, int]]:
        """Return the functions that a call may run, with their numbers of captured values."""
        if isinstance(i.callee, str):
            return [(i.callee, 0)]
        return [
            (name, captured)
            for name, captured in self.closures
            if self.code.functions[name].params == captured + len(i.args)
        ]
