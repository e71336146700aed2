"""Code with symbolic dimensions, written anew for the extents of a call.

Such code allocates arrays whose extents it does not know, for kernels that serve all of them
(`KernelRef.fills`). With numbers in their place, its memory is planned as that of a static program:
what a call costs is what a call of one compiled for these extents costs. Kernels stay the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from meta.ir import SymbolicDim, TensorType, TupleType, type_bytes
from meta.runtime.arena import Lifetime, plan
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block, Code, FunctionCode
from meta.vm.compiler.kernels import evaluated
from meta.vm.compiler.releases import with_releases


def is_symbolic(code: Code) -> bool:
    """Whether a program is to be specialised: it allocates arrays, or makes views, of extents that
    are not known.
    """
    instructions = code.functions[code.entry].instructions()
    kinds = bc.AllocateTensor | bc.ViewTensor
    return any(isinstance(i, kinds) and not i.type.is_static for i in instructions)


def extents_of(code: Code) -> dict[str, tuple[int, int]]:
    """Return, by the name of an extent, a parameter that tells it, and along which axis."""
    found: dict[str, tuple[int, int]] = {}
    for number, (_, type_) in enumerate(code.params):
        for axis, dim in enumerate(type_.shape):
            if isinstance(dim, SymbolicDim) and dim.name is not None:
                found.setdefault(dim.name, (number, axis))
    return found


def specialized(code: Code, extents: Mapping[str, int]) -> Code:
    """Return the code for these extents, its memory planned.

    Raises KeyError for code with an extent that is not among them.
    """
    (block,) = code.functions[code.entry].blocks
    function = code.functions[code.entry]
    written = (_known(i, extents) for i in block if not isinstance(i, bc.Release))
    known = tuple(_without_empty(written))
    planned = with_releases(_planned(replace(function, blocks=(known,))), range(function.params))
    return replace(
        code,
        functions={**code.functions, code.entry: planned},
        params=tuple((name, with_numbers(type_, extents)) for name, type_ in code.params),
        result=with_numbers(code.result, extents),
        dims=(),
    )


def with_numbers(type_: Any, extents: Mapping[str, int]) -> Any:
    """Return a type with numbers for symbolic extents; KeyError for one that is not among them."""
    if isinstance(type_, TupleType):
        return TupleType(tuple(with_numbers(field, extents) for field in type_.fields))
    if isinstance(type_, TensorType):
        return type_.with_shape(evaluated(type_.shape, extents))
    return type_


def _known(instruction: bc.Instruction, extents: Mapping[str, int]) -> bc.Instruction:
    if isinstance(instruction, bc.AllocateTensor | bc.ViewTensor):
        return replace(instruction, type=with_numbers(instruction.type, extents))
    return instruction


def _without_empty(block: Iterable[bc.Instruction]) -> Iterator[bc.Instruction]:
    """Leave kernels out whose results have no element: they do not take empty arrays."""
    empty: set[bc.Register] = set()
    for i in block:
        if isinstance(i, bc.AllocateTensor) and 0 in i.type.shape:
            empty.add(i.out)
        if not (isinstance(i, bc.Invoke) and i.fills and i.outs and empty.issuperset(i.outs)):
            yield i


def _planned(function: FunctionCode) -> FunctionCode:
    """Return a straight-line function whose arrays lie in one storage, but for what it returns."""
    (block,) = function.blocks
    roots = _roots(block)
    last: dict[bc.Register, int] = {}
    for at, instruction in enumerate(block):
        for register in instruction.reads:
            for root in roots.get(register, {register}):
                last[root] = at
    returned = {root for r in block[-1].reads for root in roots.get(r, {r})}
    places = {
        i.out: (at, i)
        for at, i in enumerate(block)
        if isinstance(i, bc.AllocateTensor) and i.storage is None and i.out not in returned
        if 0 not in i.type.shape
    }
    if not places:
        return function
    lifetimes = [Lifetime(type_bytes(i.type), at, last.get(r, at)) for r, (at, i) in places.items()]
    offsets, size = plan(lifetimes)
    old = [i for i in block if isinstance(i, bc.AllocateStorage)]
    # What was planned already, of extents that are numbers, lies before it.
    begin = max((i.size for i in old), default=0)
    storage = old[0].out if old else function.registers
    where = {r: begin + at for r, at in zip(places, offsets, strict=True)}

    def placed() -> Iterator[bc.Instruction]:
        if not old:
            yield bc.AllocateStorage(storage, size)
        for i in block:
            if isinstance(i, bc.AllocateStorage):
                yield replace(i, size=begin + size)
            elif isinstance(i, bc.AllocateTensor) and i.out in where:
                yield replace(i, storage=storage, offset=where[i.out])
            else:
                yield i

    registers = function.registers + (not old)
    return replace(function, registers=registers, blocks=(tuple(placed()),))


def _roots(block: Block) -> dict[bc.Register, set[bc.Register]]:
    """Return, by register, those in whose memory its value may lie, by way of views."""
    roots: dict[bc.Register, set[bc.Register]] = {}
    for i in block:
        sources: tuple[bc.Register, ...] = ()
        if isinstance(i, bc.ViewTensor | bc.OwnShard | bc.Move | bc.GetItem):
            sources = i.reads
        elif isinstance(i, bc.Invoke) and not i.fills:
            sources = i.args  # an eager call may return a view
        for out in i.results if sources else ():
            roots[out] = set().union(*(roots.get(r, {r}) for r in sources))
    return roots
