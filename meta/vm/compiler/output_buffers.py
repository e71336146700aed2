"""Results that a program can put where its caller wants them.

A result is an *output* if it is the value of one register, or a view of one, and of no other
result, argument or constant. A straight-line program that is given a tensor for it allocates none
where a kernel fills what is allocated for it, and copies to the tensor what is in the memory of a
CUDA graph. Other results are where they are, and whoever wants them elsewhere copies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Block


@dataclass(frozen=True, slots=True)
class Output:
    """Of the results, flat, which one a register holds. shape: of what is allocated for a kernel to
    fill; None where a kernel returns the result, or extents are not known.
    """

    result: int
    shape: tuple[int, ...] | None


def own_outputs(block: Block, params: int) -> dict[bc.Register, Output]:
    """Return the outputs of a straight-line program with so many parameters, by the register that
    is allocated or that a kernel sets, and by those that are views of it on the way.
    """
    last = block[-1]
    assert isinstance(last, bc.Return)
    sources: dict[bc.Register, bc.Register] = {}
    allocated: dict[bc.Register, tuple[int, ...] | None] = {}
    made: set[bc.Register] = set()
    for i in block:
        match i:
            case bc.ViewTensor():
                sources[i.out] = i.source
            case bc.Move() if isinstance(i.source, int):
                sources[i.out] = i.source
            case bc.AllocateTensor(storage=None):
                allocated[i.out] = i.type.static_shape if i.type.is_static else None
            case bc.Invoke():
                made.update(i.outs)
    chains = [_chain(r, sources) for r in bc.registers_of(last.value)]
    count = Counter(chain[-1] for chain in chains)
    return {
        r: Output(number, allocated.get(r))
        for number, chain in enumerate(chains)
        if count[chain[-1]] == 1 and chain[-1] in made and chain[-1] >= params
        for r in chain
    }


def _chain(
    register: bc.Register, sources: dict[bc.Register, bc.Register]
) -> tuple[bc.Register, ...]:
    """Return a register, what it is a view of, and so on."""
    found = [register]
    while found[-1] in sources:
        found.append(sources[found[-1]])
    return tuple(found)


class OutputBuffers:
    """The tensors that a caller gives for results, while a program runs.

    Attributes
    ----------
    filled: the registers that are allocated for a kernel to fill. tensors: by register; empty
    between runs, and while a graph is recorded, which would write to them whenever it is replayed.
    """

    def __init__(self, outputs: Mapping[bc.Register, Output]) -> None:
        self.outputs = outputs
        self.filled = frozenset(r for r, output in outputs.items() if output.shape is not None)
        self.tensors: dict[bc.Register, torch.Tensor] = {}

    def use(self, into: Sequence[torch.Tensor | None]) -> None:
        """Note the tensors for all results, None for one that may be anywhere."""
        buffers = ((r, into[output.result]) for r, output in self.outputs.items())
        self.tensors = {r: t for r, t in buffers if t is not None}

    def clear(self) -> None:
        """Forget them."""
        self.tensors = {}

    def allocator(
        self, register: bc.Register, make: Callable[[], torch.Tensor]
    ) -> Callable[[], torch.Tensor]:
        """Return a function that gives the tensor for a register, or makes one."""
        output = self.outputs.get(register)
        if output is None or output.shape is None:
            return make
        shape = output.shape

        def allocate() -> torch.Tensor:
            found = self.tensors.get(register)
            return make() if found is None else found.view(shape)

        return allocate
