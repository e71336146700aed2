"""What is known of code: what a program may write and return, where its results lie, which
functions recurse, and whether the machine can run it.

**Aliasing** (`summaries`). For every register: the *roots* whose memory its value may share,
parameters by number, constants, and memory that is made while the function runs. A function's
`CodeSummary` says which of its parameters it may write, return and put into references; summaries
grow until nothing changes, which takes recursion in. All references of a program count as one,
`CELL`: what one holds may be whatever was put into any.

**Checks** (`verify_code`). Every register has a value when it is read, whatever way was taken
there. The emitter's code passes; code that was read from a file might not. What a value *is*, a
tensor, a tuple or a function, shows only when the program runs. Which functions may be active more
than once at a time is found here too (`recursive`): memory that belongs to a function, rather than
to one activation of it, is for the others only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NoReturn

from meta.base.errors import IRError
from meta.base.registry import OPERATORS
from meta.dialect.core.ir_calls import viewed_slot
from meta.ir import PRIMITIVES, Effect, SymbolicDim, TensorType, type_bytes
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Code, FunctionCode, FusedRef, KernelRef

CONSTANT, FRESH, CELL = -1, -2, -3
Roots = frozenset[int]
"""Parameters by number, `CONSTANT`, `FRESH`, `CELL`."""
_NONE: Roots = frozenset()


@dataclass(frozen=True, slots=True)
class CodeSummary:
    """What a function may do to memory that it did not make: the roots of what it returns, of what
    it writes, and of what it puts into references.
    """

    returned: Roots = _NONE
    written: Roots = _NONE
    stored: Roots = _NONE


def summaries(code: Code) -> dict[str, CodeSummary]:
    """Return what each function may do."""
    found = {name: CodeSummary() for name in code.functions}
    closures = _closures(code)
    while True:
        new = {name: _Walk(code, name, found, closures).summary() for name in code.functions}
        if new == found:
            return {
                name: _resolved(s, found[code.entry], name == code.entry) for name, s in new.items()
            }
        found = new


def _resolved(summary: CodeSummary, entry: CodeSummary, is_entry: bool) -> CodeSummary:
    """Return a summary with what the entry puts into references in the place of `CELL`."""
    held = frozenset(r for r in entry.stored if r != CELL and (r < 0 or is_entry))

    def known(roots: Roots) -> Roots:
        return (roots - {CELL}) | held if CELL in roots else roots

    return CodeSummary(known(summary.returned), known(summary.written), known(summary.stored))


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


def _viewed(kernel: KernelRef | FusedRef) -> int | None:
    """Return which argument the result of a kernel that is looked up at run time is a view of.
    Where all extents are known, that is an instruction of its own, and no kernel.
    """
    if isinstance(kernel, FusedRef) or kernel.is_static:
        return None
    slot = viewed_slot(OPERATORS[kernel.base], kernel.args)
    if slot is None:
        return None
    before = (p if isinstance(p, tuple) else (p,) for p in kernel.args[:slot])
    return sum(isinstance(t, TensorType) for part in before for t in part)


def _closures(code: Code) -> list[tuple[str, int]]:
    """Return the functions of which closures are made, with their numbers of captured values."""
    made = (i for f in code.functions.values() for i in f.instructions())
    return list(
        {(i.function, len(i.captured)): None for i in made if isinstance(i, bc.MakeClosure)}
    )


class _Walk:
    """One walk over the instructions of a function; control runs forward only."""

    def __init__(
        self, code: Code, name: str, found: dict[str, CodeSummary], closures: list[tuple[str, int]]
    ) -> None:
        self.code, self.found, self.closures = code, found, closures
        self.function: FunctionCode = code.functions[name]
        self.roots: dict[bc.Register, Roots] = {
            i: frozenset({i}) for i in range(self.function.params)
        }
        self.returned, self.written, self.stored = _NONE, _NONE, _NONE
        self.writes: list[tuple[bc.Invoke, Roots]] = []

    def summary(self) -> CodeSummary:
        for instruction in self.function.instructions():
            self.step(instruction)
        return CodeSummary(self.returned, self.written, self.stored)

    def of(self, operand: bc.Operand) -> Roots:
        fresh = frozenset({FRESH})
        return _NONE.union(*(self.roots.get(r, fresh) for r in bc.registers_of(operand)))

    def step(self, i: bc.Instruction) -> None:
        match i:
            case bc.LoadConstant():
                self.roots[i.out] = frozenset({CONSTANT})
            case bc.Move():  # of two branches, perhaps
                self.roots[i.out] = self.roots.get(i.out, _NONE) | self.of(i.source)
            case bc.ViewTensor() | bc.OwnShard() | bc.GetItem():
                self.roots[i.out] = self.of(i.source)
            case bc.RunPrimitive():
                self.primitive(i)
            case bc.MakeClosure():
                self.roots[i.out] = self.of(i.captured)
            case bc.Invoke():
                for register in i.written:
                    roots = self.of(register)
                    self.writes.append((i, roots))
                    self.written |= roots
                viewed = _viewed(self.code.kernels[i.kernel])
                if viewed is not None:
                    self.roots[i.outs[0]] = self.of(i.args[viewed])
            case bc.CallFunction():
                self.roots[i.out] = self.call(i)
            case bc.TailCall():
                self.returned |= self.call(i)
            case bc.Return():
                self.returned |= self.of(i.value)

    def primitive(self, i: bc.RunPrimitive) -> None:
        """Note what a primitive puts into references, and what its value shares."""
        rule = PRIMITIVES[i.name]
        if rule.effect in (Effect.NEW, Effect.WRITE):
            self.roots[i.out] = _NONE
            self.stored |= self.of(i.operands[rule.stores :])
        elif rule.effect is Effect.READ:
            self.roots[i.out] = frozenset({CELL})
        elif rule.opaque:
            self.roots[i.out] = self.of(i.operands)

    def call(self, i: bc.CallFunction | bc.TailCall) -> Roots:
        """Note what a call may write, and return the roots of its result."""
        returned = _NONE
        for name, captured in self.callees(i):
            found = self.found[name]
            self.written |= self.outside(i, captured, found.written)
            self.stored |= self.outside(i, captured, found.stored)
            returned |= self.outside(i, captured, found.returned)
        return returned

    def outside(self, i: bc.CallFunction | bc.TailCall, captured: int, roots: Roots) -> Roots:
        """Return what roots inside of the function that is called are out here."""
        found = {r for r in roots if r < 0}
        for root in roots - found:
            if root >= captured:
                found |= self.of(i.args[root - captured])
            elif isinstance(i.callee, int):
                found |= self.of(i.callee)
        return frozenset(found)

    def callees(self, i: bc.CallFunction | bc.TailCall) -> list[tuple[str, int]]:
        """Return the functions that a call may run, with their numbers of captured values."""
        if isinstance(i.callee, str):
            return [(i.callee, 0)]
        return [
            (name, captured)
            for name, captured in self.closures
            if self.code.functions[name].params == captured + len(i.args)
        ]


def recursive(functions: Mapping[str, FunctionCode]) -> frozenset[str]:
    """Return the functions that a call they wait for may come back to; a loop is none."""
    closures = frozenset(
        i.function
        for f in functions.values()
        for i in f.instructions()
        if isinstance(i, bc.MakeClosure)
    )

    def callees(name: str, kinds: type[bc.CallFunction] | type[bc.TailCall]) -> set[str]:
        found: set[str] = set()
        for i in functions[name].instructions():
            if isinstance(i, kinds):
                found |= {i.callee} if isinstance(i.callee, str) else closures
        return found

    waited = {name: callees(name, bc.CallFunction) for name in functions}
    called = {name: waited[name] | callees(name, bc.TailCall) for name in functions}
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

    def own(instruction: bc.Instruction) -> bc.Instruction:
        if isinstance(instruction, bc.AllocateTensor):
            return replace(instruction, storage=None, offset=0)
        return instruction

    blocks = (
        tuple(own(i) for i in block if not isinstance(i, bc.AllocateStorage))
        for block in function.blocks
    )
    return replace(function, blocks=tuple(blocks))


def result_offsets(code: Code) -> list[int | None]:
    """Return where in its workspace each result of a program lies; None of one that does not."""
    *_, block = code.functions[code.entry].blocks
    found: dict[bc.Register, int] = {}
    for i in block:
        if isinstance(i, bc.AllocateTensor) and i.storage is not None:
            found[i.out] = i.offset
        elif isinstance(i, bc.ViewTensor) and i.source in found:
            found[i.out] = found[i.source]
    last = block[-1]
    assert isinstance(last, bc.Return)
    assert isinstance(last.value, tuple)
    return [found.get(r) if isinstance(r, int) else None for r in last.value]


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
        self.arriving: list[set[bc.Register] | None] = [None] * len(function.blocks)
        self.storages: dict[bc.Register, int] = {}

    def fail(self, what: str, instruction: bc.Instruction) -> NoReturn:
        raise IRError(what, found=f"{instruction} ({self.place})")

    def check(self) -> None:
        if not all(self.function.blocks) or not self.function.blocks:
            raise IRError("a block without instructions", found=f"in @{self.name}")
        self.arriving[0] = set(range(self.function.params))
        for number, block in enumerate(self.function.blocks):
            known = self.arriving[number]
            unfilled: set[bc.Register] = set()
            for at, i in enumerate(block):
                self.place = f"@{self.name}, block {number}, instruction {at}"
                if isinstance(i, bc.Terminator) != (at == len(block) - 1):
                    self.fail("a block does not end with its one terminator", i)
                if known is not None:  # else no way leads here
                    self.instruction(i, known, unfilled)
            end = block[-1]
            assert isinstance(end, bc.Terminator)
            for target in end.targets:
                if not number < target < len(self.function.blocks):
                    self.fail("a block does not lead forward", end)
                before = self.arriving[target]
                if known is not None:
                    self.arriving[target] = set(known) if before is None else before & known

    def instruction(
        self, i: bc.Instruction, known: set[bc.Register], unfilled: set[bc.Register]
    ) -> None:
        """Check one instruction and note what it sets."""
        for register in i.reads:
            if register not in known:
                self.fail(f"r{register} is read and has no value", i)
        filled = set(i.outs) if isinstance(i, bc.Invoke) and i.fills else set()
        if (unfilled - filled) and not isinstance(i, bc.AllocateTensor):
            self.fail("a tensor is allocated and not filled at once", i)
        unfilled -= filled
        match i:
            case bc.Release():
                known.difference_update(i.registers)
            case bc.AllocateStorage():
                if self.shared:
                    self.fail("a recursive function has no memory of its own", i)
                self.storages[i.out] = i.size
            case bc.AllocateTensor():
                self.allocation(i)
                if i.storage is None:
                    unfilled.add(i.out)
            case bc.MakeClosure():
                self.arity(i, i.function, len(i.captured), at_least=True)
            case bc.CallFunction() | bc.TailCall() if isinstance(i.callee, str):
                self.arity(i, i.callee, len(i.args))
        known.update(i.results)

    def allocation(self, i: bc.AllocateTensor) -> None:
        if not all(isinstance(d, int | SymbolicDim) for d in i.type.shape):
            self.fail("a tensor is allocated whose extents are not known", i)
        if i.storage is None:
            return
        size = self.storages.get(i.storage, -1)
        if i.offset < 0 or i.offset + type_bytes(i.type) > size:
            self.fail("a tensor lies outside of its storage", i)

    def arity(self, i: bc.Instruction, name: str, given: int, at_least: bool = False) -> None:
        function = self.code.functions.get(name)
        if function is None:
            self.fail("there is no such function", i)
        if given > function.params or (given < function.params and not at_least):
            self.fail(f"@{name} takes {function.params} arguments", i)
