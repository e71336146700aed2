"""Results of CUDA graphs that are handed out where they lie, and not copied: loans.

A graph writes to the same memory at each replay. It is not replayed while one of its loans is out,
that is, while a tensor somewhere still has the memory; so nobody sees a loan change.

A program that is given the loans of another one has them at addresses that it knows: its own graphs
may read them there. So what a forward pass keeps for its gradient is not copied at all.

There are hundreds of loans in a call: what is done for each is a loop of C's.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

LENDERS = 2
"""How many recordings of a region lend; a further one, of which results are copied, is for calls
while the loans of all are out.
"""

_uses = torch._C._storage_Use_Count


class Loan:
    """A tensor in a graph's memory, which is lent at each replay.

    Attributes
    ----------
    tensor: the graph's own. memory: its storage. held: how many tensors with it are the program's.
    """

    __slots__ = ("_views", "held", "memory", "tensor")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor = tensor
        self.memory = tensor.untyped_storage()._cdata
        self.held = 0
        self._views: dict[Hashable, torch.Tensor] = {}

    def uses(self) -> int:
        """Return how many tensors have the memory."""
        count: int = _uses(self.memory)
        return count

    def is_out(self) -> bool:
        """Whether somebody has the memory."""
        return self.uses() != self.held

    def shaped(self, shape: torch.Size) -> torch.Tensor:
        """Return the tensor in a shape of as many elements: the same object for each."""
        return self.tensor if shape == self.tensor.shape else self._view(shape)

    def permuted(self, axes: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor with its axes in another order: the same object for each."""
        return self._view(axes, permute=True)

    def _view(self, by: tuple[int, ...], permute: bool = False) -> torch.Tensor:
        # Kept as long as the loan is: it counts as a use that is the program's.
        key = permute, tuple(by)
        found = self._views.get(key)
        if found is None:
            found = self.tensor.permute(by) if permute else self.tensor.view(by)
            self._views[key] = found
            self.held += 1
        return found


class Lot:
    """The loans of one recording, which are lent together."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.loans = tuple(map(Loan, tensors))
        self._memory = [loan.memory for loan in self.loans]

    def settle(self) -> None:
        """Count the uses that there are now as the program's own: when it is recorded, and what
        was only needed for that is gone.
        """
        for loan in self.loans:
            loan.held = loan.uses()

    def is_out(self) -> bool:
        """Whether somebody has a loan."""
        return list(map(_uses, self._memory)) != [loan.held for loan in self.loans]


class Loans:
    """What one program has lent, where another one finds it.

    Attributes
    ----------
    ids: of the tensors that `own` returns: each is the same object in each call.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._by_address: dict[int, Loan] = {}
        self._by_id: dict[int, Loan] = {}
        # By argument and address: found once, as an argument has one type.
        self._known: dict[tuple[int, int], torch.Tensor] = {}
        self._memos: list[dict[Any, Any]] = []

    def add(self, loans: Iterable[Loan]) -> None:
        """Note what a graph that was recorded will lend."""
        for loan in loans:
            self._by_address[loan.tensor.data_ptr()] = self._by_id[id(loan.tensor)] = loan

    def forget(self, loans: Sequence[Loan]) -> None:
        """Forget what a graph lent that is gone."""
        if not loans:
            return
        for loan in loans:
            self._by_address.pop(loan.tensor.data_ptr(), None)
            self._by_id.pop(id(loan.tensor), None)
        for memo in (self._known, *self._memos):
            memo.clear()
        self.ids.clear()

    def memo(self) -> dict[Any, Any]:
        """Return a dictionary that is emptied whenever loans are forgotten."""
        self._memos.append({})
        return self._memos[-1]

    def of(self, tensor: torch.Tensor) -> Loan | None:
        """Return the loan of a graph's own tensor; None for another tensor."""
        return self._by_id.get(id(tensor))

    @contextmanager
    def held_after(self, kept: list[tuple[Loan, int]]) -> Iterator[None]:
        """Count what a recording in the block keeps of the loans as the programs' own, and add to
        ``kept`` how many uses that are of which.
        """
        before = [(loan, loan.uses() - loan.held) for loan in self._by_address.values()]
        yield
        for loan, out in before:
            more = loan.uses() - loan.held - out
            if more:
                loan.held += more
                kept.append((loan, more))

    def own(self, argument: int, tensor: torch.Tensor) -> torch.Tensor:
        """Return for a tensor that is lent the one that always stands for it; another as it is."""
        key = argument, tensor.data_ptr()
        found = self._known.get(key)
        if found is not None:
            return found
        loan = self._by_address.get(key[1])
        if loan is None or loan.tensor.dtype != tensor.dtype or not tensor.is_contiguous():
            return tensor
        if loan.tensor.numel() != tensor.numel() or not loan.tensor.is_contiguous():
            return tensor
        found = self._known[key] = loan.shaped(tensor.shape)
        self.ids.add(id(found))
        return found
