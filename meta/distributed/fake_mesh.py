"""A fake mesh, of ranks that are not there, to trace and compile programs for: `planned`.

Such a program is never run here. `meta.analysis.scaling` predicts what it takes, `memory()` says
what it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NoReturn

import torch

from meta.base.errors import DistributedError
from meta.runtime.mesh import RankMesh, axis_sizes, use_mesh


@contextmanager
def planned(sizes: int | Mapping[str, int]) -> Iterator[None]:
    """Be the first rank of a mesh that is not there, in a ``with`` block.

    sizes: the axes, as {"dp": 512, "tp": 8}; a number is the size of one axis "dp". Models,
    training steps and programs are made for the mesh and compiled; what the first rank gives to
    others, it has. Any other exchange, such as a run of a program with collectives, is a
    DistributedError.

    >>> import meta
    >>> with planned({"dp": 64}):
    ...     step = meta.optim.with_sgd(0.1, over="dp")(meta.model.Linear(4, 2))
    ...     run = meta.vm.compile(step, meta.ones((8, 2)), meta.ones((8, 4)))
    >>> meta.analysis.scaling(run.module, {"dp": 64}).ranks
    64
    """
    with use_mesh(
        RankMesh({axis: _FakeGroup(axis, size) for axis, size in axis_sizes(sizes).items()})
    ):
        yield


@dataclass
class _FakeGroup:
    """A group whose other ranks are not there; see `meta.runtime.mesh.Group`."""

    axis: str
    size: int
    rank: int = 0

    def _refuse(self, what: str) -> NoReturn:
        raise DistributedError(
            f"nothing is exchanged along {self.axis!r}: {what} of a mesh that is only planned",
            hint="compile the program here; run it with meta.distributed.simulate, or on processes",
        )

    def all_reduce(self, out: torch.Tensor, reduction: str) -> None:
        """Refuse."""
        self._refuse(f"a reduction by {reduction}")

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Refuse."""
        self._refuse("all_gather")

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
        """Refuse."""
        self._refuse("reduce_scatter")

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Refuse."""
        self._refuse("all_to_all")

    def broadcast(self, out: torch.Tensor, root: int) -> None:
        """Leave what this rank gives; refuse what others would."""
        if root != self.rank:
            self._refuse(f"a broadcast from rank {root}")

    def send(self, out: torch.Tensor, x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Refuse."""
        self._refuse("a message")

    def together(self) -> NoReturn:
        """Refuse."""
        self._refuse("what a program exchanges together")

    def start(self, run: Callable[[], None], written: list[torch.Tensor]) -> NoReturn:
        """Refuse."""
        self._refuse("what a program starts")

    def gather(self, data: bytes, what: str) -> list[bytes]:
        """Return what this rank says for each of them: all say the same."""
        return [data] * self.size

    def running(self, what: str, digest: bytes) -> NoReturn:
        """Refuse."""
        self._refuse(f"a run of {what}")
