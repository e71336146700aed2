"""Results that a program can put where its caller wants them: those whose memory it allocates.

A result has a *place* if a kernel fills a tensor that is allocated for it alone, or a view of one.
A straight-line program that is given a tensor for it then allocates none. Other results (of kernels
that allocate them, of programs with control flow, an argument that is returned) have no place, and
whoever wants them elsewhere copies them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from meta.vm import bytecode as bc
from meta.vm.code import Block


@dataclass(frozen=True, slots=True)
class Place:
    """The tensor that is allocated for a result: which of the results, flat, and its shape."""

    result: int
    shape: tuple[int, ...]


def result_places(block: Block) -> dict[bc.Register, Place]:
    """Return the places of a straight-line program's results, by the register that is allocated."""
    last = block[-1]
    assert isinstance(last, bc.Return)
    roots: dict[bc.Register, bc.Register] = {}
    allocated: dict[bc.Register, tuple[int, ...]] = {}
    for i in block:
        match i:
            case bc.ViewTensor():
                roots[i.out] = roots.get(i.source, i.source)
            case bc.Move() if isinstance(i.source, int):
                roots[i.out] = roots.get(i.source, i.source)
            case bc.AllocateTensor(storage=None):
                allocated[i.out] = i.type.static_shape
    found = [roots.get(r, r) for r in bc.registers_of(last.value)]
    count = Counter(found)
    return {
        r: Place(number, allocated[r])
        for number, r in enumerate(found)
        if r in allocated and count[r] == 1
    }


class Given:
    """The tensors that a caller gives for results, while a program runs.

    Attributes
    ----------
    tensors: by the register of their place; empty between runs, and while a graph is recorded,
    which would write to them whenever it is replayed.
    """

    def __init__(self, places: Mapping[bc.Register, Place]) -> None:
        self.places = places
        self.tensors: dict[bc.Register, torch.Tensor] = {}

    def take(self, into: Sequence[torch.Tensor | None]) -> None:
        """Note the tensors for all results, None for one that may be anywhere."""
        wanted = ((r, place, into[place.result]) for r, place in self.places.items())
        self.tensors = {r: t.view(place.shape) for r, place, t in wanted if t is not None}

    def clear(self) -> None:
        """Forget them."""
        self.tensors = {}

    def allocator(
        self, register: bc.Register, make: Callable[[], torch.Tensor]
    ) -> Callable[[], torch.Tensor]:
        """Return a function that gives the tensor for a register, or makes one."""

        def allocate() -> torch.Tensor:
            found = self.tensors.get(register)
            return make() if found is None else found

        return allocate
