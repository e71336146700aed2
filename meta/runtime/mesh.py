"""The device mesh of a distributed program: its axes, this rank's place on each, and the group of
ranks along an axis, which exchanges tensors.

A kernel of a collective asks `current_mesh` when it is launched, so that no program holds a rank.
There are processes (`meta.distributed.init`), of which each has one mesh, and simulated ranks
(`meta.distributed.simulate`), threads of which each has its own.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Protocol

import torch

from meta.base.call_context import context, override_context
from meta.base.errors import ArgumentError, DistributedError
from meta.base.registry import nearest
from meta.base.source import Span

TENSOR_PARALLEL_AXIS = "tp"
RUN = "meta.distributed.simulate(sizes).run(function)"
REDUCTIONS = ("sum", "mean", "max", "min", "product")


def axis_sizes(sizes: int | Mapping[str, int]) -> dict[str, int]:
    """Return the axes of a mesh, checked; a number is that of the axis "dp"."""
    given = {"dp": sizes} if isinstance(sizes, int) else sizes
    found = dict(given) if isinstance(given, Mapping) else {}
    wrong = [n for n, s in found.items() if not isinstance(n, str) or type(s) is not int or s < 1]
    if wrong or not found:
        raise ArgumentError(
            "these are no axes of a mesh",
            expected='names with numbers of ranks, such as {"dp": 4, "tp": 2}',
            found=f"{sizes!r:.200}",
            hint=RUN if callable(sizes) else None,
        )
    return found


def axes_alike(alike: str | Sequence[str], sizes: Mapping[str, int]) -> tuple[str, ...]:
    """Return the names of axes along which ranks draw alike, checked; that of tensor parallel
    models need not be there.
    """
    found = (alike,) if isinstance(alike, str) else alike
    if not isinstance(found, Collection) or not all(isinstance(name, str) for name in found):
        raise ArgumentError(
            "alike names axes, along which ranks draw the same random numbers",
            expected="one of " + ", ".join(map(repr, sizes)) + ", or several",
            found=f"{alike!r:.200}",
            hint=RUN if callable(alike) else None,
        )
    for name in found:
        if name not in sizes and name != TENSOR_PARALLEL_AXIS:
            raise ArgumentError(
                f"alike names {name!r}, which is no axis of this mesh",
                expected=", ".join(map(repr, sizes)),
                hint=nearest(name, sizes),
            )
    return tuple(found)


class Group(Protocol):
    """The ranks along one axis, and what they exchange.

    All ranks of a group call the same methods in the same order. Tensors are compact, of the same
    shape and dtype on all ranks, and results are written to ``out``. ``rank`` is this one's place.
    """

    rank: int
    size: int

    def all_reduce(self, out: torch.Tensor, reduction: str) -> None:
        """Replace a tensor by its sum over the ranks, or another of `REDUCTIONS`."""

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Write the tensors of all ranks, in order: out has an axis of ranks before those of x."""

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
        """Reduce x, which has an axis of ranks before those of out, and write this rank's part."""

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor) -> None:
        """Give part i of x to rank i, and write what each rank gives: both have an axis of ranks
        first.
        """

    def broadcast(self, out: torch.Tensor, root: int) -> None:
        """Replace a tensor by that of one rank."""

    def send(self, out: torch.Tensor, x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        """Write, on the second rank of each pair, the first one's x; elsewhere nothing."""

    def together(self) -> AbstractContextManager[None]:
        """Let the exchanges of a block be one: all of them are calls of one method, with one
        reduction, and their results are there behind the block.
        """

    def start(self, run: Callable[[], None], written: list[torch.Tensor]) -> Callable[[], None]:
        """Let a function that calls other methods, and writes to these tensors, run beside what
        follows; return what waits for it. Nobody looks at the tensors before.
        """

    def gather(self, data: bytes, what: str) -> list[bytes]:
        """Return what each rank gives, on the host: bytes, of any lengths. what: for messages."""

    def running(self, what: str, digest: bytes) -> AbstractContextManager[None]:
        """Let a block run a program on which the ranks have agreed. A digest of 16 bytes tells
        which, so that ranks that run different ones are an error. what: for messages.
        """


@dataclass(frozen=True, slots=True)
class RankMesh:
    """The device mesh as one rank sees it: its group along each axis, and which stream of random
    numbers is its own.

    pending: what waits for the collectives that were started, by the address of what they write.
    """

    groups: Mapping[str, Group]
    stream: int = 0
    pending: dict[int, Callable[[], None]] = field(default_factory=dict, compare=False)

    @classmethod
    def of(cls, groups: Mapping[str, Group], alike: Container[str]) -> RankMesh:
        """Return the mesh of a rank. Ranks whose places differ only along the axes ``alike`` draw
        the same random numbers; those of the first rank are what a process alone draws.
        """
        stream = 0
        for name, group in groups.items():
            if name not in alike:
                stream = stream * group.size + group.rank
        return cls(groups, stream)

    @property
    def coordinates(self) -> dict[str, int]:
        """This rank's place along each axis."""
        return {name: group.rank for name, group in self.groups.items()}

    @property
    def sizes(self) -> dict[str, int]:
        """The number of ranks along each axis."""
        return {name: group.size for name, group in self.groups.items()}

    @property
    def size(self) -> int:
        """The number of all ranks."""
        return math.prod(group.size for group in self.groups.values())

    @property
    def rank(self) -> int:
        """This rank's number among all, which are counted with the last axis as the fastest."""
        number = 0
        for group in self.groups.values():
            number = number * group.size + group.rank
        return number

    def gather(
        self, data: bytes, what: str, over: Collection[str] | None = None
    ) -> dict[tuple[int, ...], bytes]:
        """Return what each rank along some axes gives, by its place along all axes, in the order of
        ranks. All ranks along these axes call it. over: None for all axes. what: for messages.
        """
        at = tuple(self.coordinates.values())
        found = {at: data}
        for number, (name, group) in enumerate(self.groups.items()):
            if group.size > 1 and (over is None or name in over):
                given = group.gather(b"".join(map(_pack, found.values())), what)
                found = {
                    (*place[:number], rank, *place[number + 1 :]): one
                    for rank, all_of_it in enumerate(given)
                    for place, one in zip(found, _unpack(all_of_it), strict=True)
                }
        return dict(sorted(found.items()))

    def finish(self, address: int) -> None:
        """Wait for the collective that writes there."""
        wait = self.pending.pop(address, None)
        # A CUDA graph that was cut behind the start has waited at its end.
        if wait is not None:
            wait()

    def finish_all(self) -> None:
        """Wait for all that was started."""
        for address in list(self.pending):
            self.finish(address)

    def group(self, over: str, size: int) -> Group:
        """Return the group along an axis; DistributedError if there is none of that size."""
        found = self.groups.get(over)
        axes = ", ".join(f"{n}={g.size}" for n, g in self.groups.items()) or "none"
        if found is None:
            raise DistributedError(
                f"the mesh has no axis {over!r}",
                expected=f"one of: {axes}",
                hint=nearest(over, self.groups),
            )
        if found.size != size:
            raise DistributedError(
                f"the program is for {size} ranks along {over!r}",
                found=f"a mesh with {axes}",
                hint="trace it for this mesh",
            )
        return found


def _pack(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little") + data


def _unpack(data: bytes) -> Iterator[bytes]:
    start = 0
    while start < len(data):
        end = start + 8 + int.from_bytes(data[start : start + 8], "little")
        yield data[start + 8 : end]
        start = end


NO_MESH = RankMesh({})
"""That of a process without others."""
_process_mesh = [NO_MESH]


def current_mesh() -> RankMesh:
    """Return the mesh of this simulated rank, or else of this process."""
    mesh: RankMesh | None = context.get().mesh
    return mesh or _process_mesh[0]


def axis_size(over: str) -> int:
    """Return the number of ranks along an axis of the mesh; DistributedError if there is none."""
    return axis_group(over).size


def axis_group(over: str) -> Group:
    """Return the group along an axis of the mesh at hand; DistributedError if there is none,
    ArgumentError for what is no name.
    """
    groups = current_mesh().groups
    if not isinstance(over, str):
        raise ArgumentError(
            "an axis of the mesh is given by its name",
            expected=" or ".join(map(repr, groups)) or "a str, such as 'dp'",
            found=f"{over!r:.100} ({type(over).__name__})",
        )
    if over not in groups:
        raise DistributedError(
            f"the mesh has no axis {over!r}",
            expected=", ".join(groups) or "a mesh: meta.distributed.init or simulate",
            hint=nearest(over, groups),
        )
    return groups[over]


def set_process_mesh(mesh: RankMesh) -> None:
    """Let this be the mesh of the process."""
    _process_mesh[0] = mesh


def use_mesh(mesh: RankMesh) -> AbstractContextManager[None]:
    """Let this be the mesh in a ``with`` block, in this thread."""
    return override_context(mesh=mesh)


# `require_consistent`: all ranks have the same text, or an error on all of them shows where it
# differs.
#
# What is exchanged is a hash; texts are exchanged only where hashes differ. It goes through the
# host (`Group.gather`), so that a broken collective of a device is not needed for it.


MAX_LINE = 200
"""Characters of a line that are shown."""
_NOTHING = "(nothing more)"


def digest(text: str) -> bytes:
    """Return the hash of a text that ranks compare: 16 bytes."""
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def require_consistent(
    mesh: RankMesh,
    what: str,
    own: bytes,
    text: Callable[[], str],
    over: Collection[str] | None = None,
    *,
    hint: str | None = None,
    span: Span | None = None,
) -> None:
    """Check that all ranks along some axes have the same; all of them call it.

    what: what they are to agree on, as "the program". own: its hash. text: the lines behind the
    hash, for the message. over: None for all axes. Raises DistributedError on all of these ranks.
    """
    if len(set(mesh.gather(own, what, over).values())) == 1:
        return
    # By the numbers of ranks in the order of the axes, as messages elsewhere.
    given = mesh.gather(f"{mesh.rank}\n{text()}".encode(), what, over)
    texts: dict[int, str] = {}
    for one in given.values():
        number, _, its = one.decode().partition("\n")
        texts[int(number)] = its
    raise DistributedError(
        f"the ranks do not agree on {what}",
        expected="the same on all of them",
        found=first_difference(texts),
        hint=hint,
        span=span,
    )


def first_difference(texts: dict[int, str]) -> str:
    """Return the first line in which texts differ, with the ranks that have which."""
    lines = {rank: its.splitlines() for rank, its in texts.items()}
    for number, row in enumerate(zip_longest(*lines.values(), fillvalue=_NOTHING), 1):
        kinds: dict[str, list[int]] = {}
        for rank, line in zip(lines, row, strict=True):
            kinds.setdefault(line, []).append(rank)
        if len(kinds) > 1:
            shown = (f"{ranks_text(r)}: {line.strip()[:MAX_LINE]}" for line, r in kinds.items())
            return f"line {number}" + "".join(f"\n    {one}" for one in shown)
    return "different hashes of equal lines"


def ranks_text(ranks: Collection[int]) -> str:
    """Return ranks for a message: "rank 3", "ranks 0, 2-5"."""
    numbers = sorted(ranks)
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1].append(number)
        else:
            runs.append([number])
    found = [f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs]
    return f"rank{'s' if len(numbers) > 1 else ''} {', '.join(found)}"
