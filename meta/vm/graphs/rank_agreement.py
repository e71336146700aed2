"""What the ranks of a mesh do alike with a region that holds collectives.

NCCL's ranks all record a collective or all launch it, or they wait for one another for ever, and a
recording that fails between two collectives leaves the communicator behind in a state that nobody
knows. So ranks tell one another what they are about to do with a region unless they replay it. What
could fail is recorded on trial first, by kernels that exchange nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

import torch

from meta.base.errors import CaptureError, OutOfMemory
from meta.base.registry import OPERATORS
from meta.runtime.mesh import RankMesh, current_mesh
from meta.runtime.out_of_memory import is_out_of_memory
from meta.vm.compiler.code import Kernel, KernelRef

if TYPE_CHECKING:
    from meta.vm.graphs.capture import Graphs

HOLDERS: WeakSet[Graphs] = WeakSet()
"""The graphs of programs that hold collectives."""


def release() -> None:
    """Forget all graphs that hold collectives: a group of processes ends after them."""
    for graphs in list(HOLDERS):
        graphs.release()


def ranks_of(kernels: Iterable[Kernel]) -> Ranks | None:
    """Return the ranks that take part in the collectives among some kernels; None if none do."""
    axes: dict[str, int] = {}
    for kernel in kernels:
        if isinstance(kernel, KernelRef) and OPERATORS[kernel.base].collective:
            slots = OPERATORS[kernel.base].schema.index
            over, size = (kernel.args[slots[name]] for name in ("over", "size"))
            if size > 1:
                axes[over] = size
    return Ranks(axes) if axes else None


@dataclass(frozen=True, slots=True)
class Ranks:
    """The ranks along some axes of the mesh, by the axes' sizes."""

    axes: Mapping[str, int]

    def __str__(self) -> str:
        places = (
            f"{over}={current_mesh().group(over, size).rank}" for over, size in self.axes.items()
        )
        return f"rank {', '.join(places)}"

    def say(self, mine: str) -> list[str]:
        """Tell the other ranks a text; return those of all ranks, each once, in the same order on
        all. Every rank calls it at the same time.
        """
        found = {mine}
        for over, size in self.axes.items():
            mine = _BETWEEN.join(sorted(found))
            said = current_mesh().group(over, size).gather(mine.encode(), "a CUDA graph")
            found = {one for texts in said for one in texts.decode().split(_BETWEEN)}
        return sorted(found)

    def difference(self, what: str) -> str:
        """Return how the ranks differ in what they do; empty if all do the same."""
        said = self.say(what)
        return f"the ranks differ: {'; '.join(said)}" if len(said) > 1 else ""

    def failure(self, at: int, error: Exception | None) -> tuple[int, Exception] | None:
        """Return what failed on a rank, the same on all ranks: where, and an OutOfMemory or a
        CaptureError that says on which rank and why; None if nothing failed on any.

        at, error: where this rank got to, and what stopped it, if anything did.
        """
        mine = ""
        if error is not None:
            lines = str(error).strip().splitlines() or [""]
            order = "0" if is_out_of_memory(error) else "1"
            mine = f"{order}{at:09}{self}: {type(error).__name__}: {lines[0]}"
        failures = [text for text in self.say(mine) if text]
        if not failures:
            return None
        first = failures[0]
        kind = OutOfMemory if first[0] == "0" else CaptureError
        return int(first[1:10]), kind(first[10:])

    def silent(self) -> RankMesh:
        """Return a world with the places of this one, in which nothing is exchanged."""
        groups = current_mesh().groups
        return RankMesh({over: Silent(g.rank, g.size) for over, g in groups.items()})


_BETWEEN = "\0"


@dataclass(slots=True)
class Silent:
    """A group that exchanges nothing; see `meta.runtime.mesh.Group`."""

    rank: int
    size: int

    def all_reduce(self, out: torch.Tensor, reduction: str) -> None:
        """Do nothing."""

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Do nothing."""

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
        """Do nothing."""

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Do nothing."""

    def broadcast(self, out: torch.Tensor, root: int) -> None:
        """Do nothing."""

    def send(self, out: torch.Tensor, x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Do nothing."""

    def together(self) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()

    def start(self, run: Callable[[], None], written: list[torch.Tensor]) -> Callable[[], None]:
        """Run at once what exchanges nothing."""
        run()
        return lambda: None

    def gather(self, data: bytes, what: str) -> list[bytes]:
        """Return the own bytes for each rank."""
        return [data] * self.size

    def running(self, what: str, digest: bytes) -> AbstractContextManager[None]:
        """Do nothing."""
        return nullcontext()
