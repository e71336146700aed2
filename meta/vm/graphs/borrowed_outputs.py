"""Results of CUDA graphs that are handed out where they lie, and not copied: loans.

A graph writes to the same memory at each replay. It is not replayed while one of its loans is out,
that is, while a tensor somewhere still has the memory; so nobody sees a loan change.

A program that is given the loans of another one knows these tensors: its own graphs may read them
where they are. So what a forward pass keeps for its gradient is not copied at all.

There are hundreds of loans in a call: what is done for each is a loop of C's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

LENDERS = 2
"""How many recordings of a region lend; a further one, of which results are copied, is for calls
while the loans of all are out.
"""

storage_uses = torch._C._storage_Use_Count
"""How many tensors have a storage, which is told by its address."""


class Loan:
    """A tensor in a graph's memory, which is lent at each replay.

    Attributes
    ----------
    tensor: the graph's own. lot: what it is lent with. memory: its storage. held: how many tensors
    with that are the program's.
    """

    __slots__ = ("_number", "_views", "lot", "memory", "tensor")

    def __init__(self, tensor: torch.Tensor, lot: Lot, number: int) -> None:
        self.tensor, self.lot, self._number = tensor, lot, number
        self.memory = tensor.untyped_storage()._cdata
        self._views: dict[Hashable, torch.Tensor] = {}

    @property
    def held(self) -> int:
        return self.lot.held[self._number]

    def hold(self, more: int) -> None:
        """Count more tensors as the program's, or fewer, if ``more`` is negative."""
        with _COUNTS:
            self.lot.held[self._number] += more

    def uses(self) -> int:
        """Return how many tensors have the memory."""
        count: int = storage_uses(self.memory)
        return count

    def is_out(self) -> bool:
        """Whether somebody has the memory."""
        return self.lot.is_kept() or self.uses() != self.held

    def own(self) -> list[torch.Tensor]:
        """Return the tensors with the memory that are the program's from the first."""
        with _COUNTS:
            return [self.tensor, *self._views.values()]

    def permuted(self, axes: tuple[int, ...]) -> torch.Tensor:
        """Return the tensor with its axes in another order: the same object for each."""
        return self.view(self.tensor.permute(axes))

    def view(self, view: torch.Tensor) -> torch.Tensor:
        """Return a view of the tensor as a tensor of the program's: the same for all like it."""
        key = view.shape, view.stride(), view.storage_offset()
        with _COUNTS:  # kept as long as the loan is: it counts as a use that is the program's
            found = self._views.get(key)
            if found is None:
                found = self._views[key] = self.tensor.as_strided(*key)
                self.lot.held[self._number] += 1
        return found


_COUNTS = threading.Lock()
"""A thread may run a forward graph while another one records a gradient that reads its loans."""


class Lot:
    """The loans of one recording, which are lent together.

    Attributes
    ----------
    is_kept: whether somebody has the graph's own tensors. Who lends them says so.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.loans = tuple([Loan(t, self, i) for i, t in enumerate(tensors)])
        self.held = [0] * len(self.loans)  # of each
        self._memory = [loan.memory for loan in self.loans]
        self.is_kept: Callable[[], bool] = _nobody

    def settle(self) -> None:
        """Count the uses that there are now as the program's own: when it is recorded, and what
        was only needed for that is gone.
        """
        self.held[:] = map(storage_uses, self._memory)

    def is_out(self) -> bool:
        """Whether somebody has a loan."""
        return self.is_kept() or list(map(storage_uses, self._memory)) != self.held


def _nobody() -> bool:
    return False


class Loans:
    """What one program has lent, where another one finds it.

    Attributes
    ----------
    ids: of the tensors of loans that are the same objects in each call.
    """

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self._by_id: dict[int, Loan] = {}
        self._memos: list[dict[Any, Any]] = []

    def add(self, loans: Iterable[Loan]) -> None:
        """Note what a graph that was recorded will lend."""
        self._by_id.update((id(loan.tensor), loan) for loan in loans)
        self.ids.update(self._by_id)

    def forget(self, loans: Sequence[Loan]) -> None:
        """Forget what a graph lent that is gone."""
        if not loans:
            return
        for loan in loans:
            self._by_id.pop(id(loan.tensor), None)
        for memo in self._memos:
            memo.clear()
        self.ids = set(self._by_id)

    def memo(self) -> dict[Any, Any]:
        """Return a dictionary that is emptied whenever loans are forgotten."""
        self._memos.append({})
        return self._memos[-1]

    def of(self, tensor: torch.Tensor) -> Loan | None:
        """Return the loan of a graph's own tensor; None for another tensor."""
        return self._by_id.get(id(tensor))

    def view(self, loan: Loan, view: torch.Tensor) -> torch.Tensor:
        """Return a view of a loan as a tensor of the program's, until loans are forgotten."""
        found = loan.view(view)
        self.ids.add(id(found))
        return found

    def hold(self, tensors: Iterable[Any]) -> list[tuple[Loan, int]]:
        """Count tensors that a recording keeps as the programs' own; return how many there are of
        which loans.

        Other threads may take and leave loans meanwhile, so nobody looks how the uses change.
        """
        loans = list(self._by_id.values())
        known = {id(own) for loan in loans for own in loan.own()}
        kept: dict[int, set[int]] = {}
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and id(tensor) not in known:
                kept.setdefault(tensor.untyped_storage()._cdata, set()).add(id(tensor))
        held = [(loan, len(kept[loan.memory])) for loan in loans if loan.memory in kept]
        for loan, uses in held:
            loan.hold(uses)
        return held


@dataclass(frozen=True)
class Borrowing:
    """What a program lends, and what it is lent.

    A graph is not replayed while a tensor has the memory of a result that it lends: another one is
    recorded. So before the next call, the caller of `CompiledProgram.on_tensors` makes tensors of
    such memory, which it gives out.

    Attributes
    ----------
    results: the numbers of the results that are returned where graphs have them. loans: where these
    are noted. taken: the loans of another program that arguments may be, whose graphs read them
    where they lie: the tensors that its `on_tensors` returned, and those that `Loans.view` did.
    """

    results: Collection[int]
    loans: Loans
    taken: Loans | None = None
