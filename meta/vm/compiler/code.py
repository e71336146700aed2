"""`Code`: a program for the machine, as plain data.

Nothing here holds a kernel: one is named by a `KernelRef` or a `FusedRef`, and `kernels.py` finds
it. So code can be written to a file and read again. ``str(code)`` lists it::

    @main(r0: float32[2]) -> float32[2], 3 registers
      b0:
        r1 = constant c0
        r2 = new float32[2]
        k0(r0, r1; r2)
        return r2
    c0 = 2.0
    k0 = torch.multiply(float32[2], 2.0)

``k0(a; b)`` is a kernel that fills ``b``; ``b = k0(a)`` one that returns it; ``&a`` is written in
place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.ir import SymbolicDim, TensorType, Type
from meta.ir.literals import literal_text
from meta.vm.compiler import bytecode as bc


@dataclass(frozen=True, slots=True)
class KernelRef:
    """The kernel of an operator call.

    ``operator``: a dialect operator ("torch.exp"), or a base operator ("exp"), whose dialect is
    decided when it runs. ``args``: the call's arguments in schema order: a `TensorType` for a
    tensor, a tuple of them for several, and literals. If an extent among them is not known, the
    kernel is looked up by the extents met at run time; it is then given, behind its arguments, the
    extents named in ``unbound``, which its tensors' shapes do not tell. ``fills``: there is one
    kernel for all extents, which fills results that the program allocates.
    """

    operator: str
    args: tuple[Any, ...]
    fills: bool = False

    def parts(self) -> Iterator[Any]:
        """Iterate over the types and literals of the arguments, tuples taken apart."""
        for argument in self.args:
            yield from argument if isinstance(argument, tuple) else (argument,)

    @property
    def is_static(self) -> bool:
        """Whether the kernel can be bound before the program runs."""
        return all(
            part.is_static if isinstance(part, TensorType) else not isinstance(part, SymbolicDim)
            for part in self.parts()
        )

    @property
    def unbound(self) -> tuple[str, ...]:
        """The symbolic extents of its attributes that are no dimension of a tensor among them."""
        bound = {d for part in self.parts() if isinstance(part, TensorType) for d in part.shape}
        needed = {n for p in self.parts() if isinstance(p, SymbolicDim) for n in p.symbols()}
        return tuple(sorted(n for n in needed if SymbolicDim(n) not in bound))

    @property
    def name(self) -> str:
        """By whom and what is run."""
        return self.operator

    @property
    def dialect(self) -> str:
        """The name of the dialect that runs it, "" if that is decided at run time."""
        return self.operator.rpartition(".")[0]

    @property
    def base(self) -> str:
        """The name of the base operator."""
        return self.operator.partition("@")[0].rpartition(".")[2]

    def __str__(self) -> str:
        return f"{self.operator}({', '.join(map(_argument_text, self.args))})"


@dataclass(frozen=True, slots=True)
class FusedRef:
    """The kernel that a dialect makes of a fused function of the module, by its name."""

    dialect: str
    function: str

    @property
    def name(self) -> str:
        """By whom and what is run."""
        return f"{self.dialect}.{self.function}"

    @property
    def base(self) -> str:
        """The name of the function."""
        return self.function

    def __str__(self) -> str:
        return self.name


Kernel = KernelRef | FusedRef


Block = tuple[bc.Instruction, ...]


@dataclass(frozen=True, slots=True)
class FunctionCode:
    """A function: its arguments are in the registers 0 to ``params - 1``; it starts in block 0.

    A block ends with the instruction that says what comes next. A branch or jump leads forward:
    a loop is a tail call.
    """

    params: int
    registers: int
    blocks: tuple[Block, ...]

    def instructions(self) -> Iterator[bc.Instruction]:
        """Iterate over the instructions of all blocks."""
        for block in self.blocks:
            yield from block

    def fixed(self) -> frozenset[bc.Register]:
        """Return the registers of constants, of tensors in a storage, and of views of these."""
        found: set[bc.Register] = set()
        for i in self.instructions():
            match i:
                case bc.LoadConstant() | bc.AllocateStorage():
                    found.add(i.out)
                case bc.AllocateTensor(storage=int()):
                    found.add(i.out)
                case bc.ViewTensor() if i.source in found:
                    found.add(i.out)
        return frozenset(found)


@dataclass(frozen=True, slots=True)
class Code:
    """A program.

    Attributes
    ----------
    functions: by name. entry: the name of the one that a call of the program runs.
    params: names and types of the entry's parameters; equal symbolic extents are equal at run time.
    result: type of the entry's result.
    constants: tensors on the device, and numbers. kernels: what `Invoke` refers to by number.
    dims: name, least and largest extent (None: any) of each symbolic dimension of the parameters.
    prepared: how many of the last parameters are computed of the arrays before them (the pass
    `prepare`), and kept from call to call.
    """

    functions: dict[str, FunctionCode]
    entry: str
    params: tuple[tuple[str, TensorType], ...]
    result: Type
    constants: tuple[Any, ...]
    kernels: tuple[Kernel, ...]
    dims: tuple[tuple[str, int, int | None], ...] = ()
    prepared: int = 0

    def __str__(self) -> str:
        lines = []
        for name, function in self.functions.items():
            params, result = [f"r{i}" for i in range(function.params)], ""
            if name == self.entry:
                params = [f"{p}: {t}" for p, (_, t) in zip(params, self.params, strict=True)]
                result = f" -> {self.result}"
            lines.append(f"@{name}({', '.join(params)}){result}, {function.registers} registers")
            for number, block in enumerate(function.blocks):
                lines.append(f"  b{number}:")
                lines += [f"    {instruction}" for instruction in block]
        lines += [f"c{i} = {_constant_text(c)}" for i, c in enumerate(self.constants)]
        lines += [f"k{i} = {kernel}" for i, kernel in enumerate(self.kernels)]
        return "\n".join(lines)


def _constant_text(constant: Any) -> str:
    if not isinstance(constant, torch.Tensor):
        return literal_text(constant)
    return str(TensorType(tuple(constant.shape), FROM_TORCH[constant.dtype]))


def _argument_text(argument: Any) -> str:
    if isinstance(argument, tuple) and any(isinstance(a, TensorType) for a in argument):
        return f"({', '.join(map(str, argument))})"
    return str(argument) if isinstance(argument, TensorType) else literal_text(argument)
