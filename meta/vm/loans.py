"""Results of CUDA graphs that are handed out where they lie, and not copied: loans.

A graph writes to the same memory at each replay. It is not replayed while one of its loans is out,
that is, while a tensor somewhere still has the memory; so nobody sees a loan change.

A program that is given the loans of another one has them at addresses that it knows: its own graphs
may read them there. So what a forward pass keeps for its gradient is not copied at all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch

LENDERS = 2
"""How many recordings of a region lend; a further one, of which results are copied, is for calls
while the loans of all are out.
"""


class Loan:
    """A tensor in a graph's memory, which is lent at each replay.

    Attributes
    ----------
    tensor: the graph's own. held: how many uses of its memory are the program's own.
    """

    __slots__ = ("_memory", "held", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self._memory = tensor.untyped_storage()._cdata
        self.held = 0

    def uses(self) -> int:
        """Return how many tensors have the memory."""
        count: int = torch._C._storage_Use_Count(self._memory)
        return count

    def settle(self) -> None:
        """Count the uses that there are now as the program's own: when it is recorded, and what
        was only needed for that is gone.
        """
        self.held = self.uses()

    def give(self) -> torch.Tensor:
        """Return a tensor of the same memory, that is no view for autograd."""
        return self.tensor.data

    def is_out(self) -> bool:
        """Whether somebody has the memory."""
        return self.uses() > self.held

    def own(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor of the program's for what was given, in its shape."""
        if tensor.shape == self.tensor.shape:
            return self.tensor
        view = self.tensor.view(tensor.shape)
        self.held += 1
        return view


class Loans:
    """What one program has lent, where another one finds it.

    Attributes
    ----------
    ids: of the tensors that `own` returns: each is the same object in each call.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._loans: dict[int, Loan] = {}
        # By argument and address: found once, as an argument has one type.
        self._known: dict[tuple[int, int], torch.Tensor] = {}

    def add(self, loans: Iterable[Loan]) -> None:
        """Note what a graph that was recorded will lend."""
        self._loans.update((loan.tensor.data_ptr(), loan) for loan in loans)

    def forget(self, loans: Iterable[Loan]) -> None:
        """Forget what a graph lent that is gone."""
        for loan in loans:
            self._loans.pop(loan.tensor.data_ptr(), None)
        self._known.clear()
        self.ids.clear()

    @contextmanager
    def held_after(self) -> Iterator[None]:
        """Count what a recording in the block keeps of the loans as the programs' own."""
        before = [(loan, loan.uses()) for loan in self._loans.values()]
        yield
        for loan, uses in before:
            loan.held += loan.uses() - uses

    def own(self, argument: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return for a tensor that is lent the one that always stands for it; another as it is."""
        key = argument, tensor.data_ptr()
        found = self._known.get(key)
        if found is not None:
            return found
        loan = self._loans.get(key[1])
        if loan is None or loan.tensor.dtype != tensor.dtype or not tensor.is_contiguous():
            return tensor
        if loan.tensor.numel() != tensor.numel() or not loan.tensor.is_contiguous():
            return tensor
        found = self._known[key] = loan.own(tensor)
        self.ids.add(id(found))
        return found
