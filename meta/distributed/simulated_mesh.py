"""Meshes without processes: all ranks in one process on the CPU, and ranks that are not there.

In a simulated mesh each rank is a thread, and they meet to exchange. What a rank gives is copied,
results are computed in the order of ranks, and a rank that fails, ends early or calls something
else than the others is an error on all of them at once: nothing waits for a limit of time.

For a fake mesh (`planned`) programs are traced and compiled, and never run here.
`meta.analysis.scaling` predicts what such a program takes, `memory()` says what it needs.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import reduce
from itertools import product
from typing import Any, NoReturn

import torch

from meta.base.errors import ArgumentError, DistributedError
from meta.base.signature_check import check_signature
from meta.runtime.mesh import (
    TENSOR_PARALLEL_AXIS,
    RankMesh,
    axes_alike,
    axis_sizes,
    use_mesh,
)
from meta.runtime.random import as_rank, default

_POISON_BYTE = 255
"""Each byte of what is communicated: of a floating point number, NaN."""
_SUMS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add,
    "product": torch.mul,
    "max": torch.maximum,
    "min": torch.minimum,
}


"""The axis of tensor parallel groups: their ranks compute parts of one network."""


class simulate:
    """The ranks of a mesh that is not there.

    sizes: the axes, as {"dp": 4, "tp": 2}; a number is the size of one axis "dp". Ranks are counted
    with the last axis as the fastest. alike: an axis, or several, along which ranks draw the same
    random numbers (dropout masks, weights); along the others each rank draws its own.

    Raises ArgumentError for sizes that are none, and for names that are no axes.

    >>> import meta
    >>> ranks = meta.distributed.simulate({"dp": 3})
    >>> def mean():
    ...     x = meta.array([1.0, 2.0]) * meta.distributed.rank("dp")
    ...     return meta.distributed.all_reduce(x, "dp", "mean")
    >>> [y.numpy().tolist() for y in ranks.run(mean)]
    [[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    """

    @check_signature
    def __init__(
        self, sizes: int | Mapping[str, int], alike: str | Sequence[str] = TENSOR_PARALLEL_AXIS
    ) -> None:
        self.sizes = axis_sizes(sizes)
        self.alike = axes_alike(alike, self.sizes)

    def __repr__(self) -> str:
        return f"simulate({self.sizes})"

    @check_signature
    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """Call a function on every rank, at the same time; return the results by rank.

        All ranks begin with the seed and counter of `meta.random`, which is left as by rank 0.

        Each rank makes and compiles what it runs: arrays, models and programs that several ranks
        write to or run are not for several threads. Raises the error of the first rank that failed
        by itself; DistributedError, on all ranks, if they do not call the same collectives;
        ArgumentError for what is no function.
        """
        if not callable(function):
            raise ArgumentError(
                "ranks run a function, which each of them calls",
                expected="run(function, *args)",
                found=f"{function!r:.200}",
            )
        axes = list(self.sizes)
        places = list(product(*(range(self.sizes[axis]) for axis in axes)))
        meeting = _Rendezvous(len(places))
        points: dict[Any, _ExchangePoint] = {}
        worlds = []
        for number, place in enumerate(places):
            groups = {}
            for i, axis in enumerate(axes):
                key = axis, place[:i] + place[i + 1 :]
                size = self.sizes[axis]
                point = points.setdefault(key, _ExchangePoint(axis, size))
                groups[axis] = _SimulatedGroup(meeting, point, number, place[i], size)
            worlds.append(RankMesh.of(groups, self.alike))
        begin = default.state()
        states = [begin for _ in places]
        results: list[Any] = [None] * len(places)
        errors: dict[int, BaseException] = {}

        def rank(number: int) -> None:
            try:
                here = worlds[number]
                with use_mesh(here), as_rank(here.stream, begin) as generator:
                    results[number] = function(*args)
                    states[number] = generator.state()
            except BaseException as error:
                errors[number] = error
                meeting.left(number, f"rank {number} failed: {type(error).__name__}: {error}")
            else:
                meeting.left(number, "")

        contexts = [contextvars.copy_context() for _ in places]
        threads = [
            threading.Thread(target=contexts[n].run, args=(rank, n), name=f"rank {n}")
            for n in range(len(places))
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if errors:
            first = meeting.first if meeting.first in errors else min(errors)
            raise errors[first]
        default.load_state(states[0])
        return results


@dataclass
class _ExchangePoint:
    """Where the ranks of one group meet: what each brought, and what all took the last time."""

    axis: str
    size: int
    brought: dict[int, tuple[str, torch.Tensor]] = field(default_factory=dict)
    taken: list[torch.Tensor] = field(default_factory=list)
    meetings: int = 0


class _Rendezvous:
    """Who of all ranks is there, who waits, and why nobody will come any more.

    first: the rank that failed by itself, before others did because of it.
    """

    def __init__(self, ranks: int) -> None:
        self._change = threading.Condition()
        self._there = set(range(ranks))
        self._waiting: dict[int, tuple[_ExchangePoint, str]] = {}
        self._ended: set[int] = set()
        self._failure = ""
        self.first: int | None = None

    def exchange(
        self, point: _ExchangePoint, number: int, place: int, what: str, given: torch.Tensor
    ) -> list[torch.Tensor]:
        """Bring a tensor, wait for the others of the group, and return what each brought."""
        with self._change:
            self._raise()
            point.brought[place] = what, given.clone()
            if len(point.brought) == point.size:
                self._check(point)
                point.taken = [point.brought[i][1] for i in range(point.size)]
                point.brought = {}
                point.meetings += 1
                for waiting in [n for n, (at, _) in self._waiting.items() if at is point]:
                    del self._waiting[waiting]
                self._change.notify_all()
                return point.taken
            meeting = point.meetings
            self._waiting[number] = point, what
            self._look()
            while point.meetings == meeting and not self._failure:
                self._change.wait()
            if point.meetings == meeting:
                self._raise()
            return point.taken

    def left(self, number: int, failure: str) -> None:
        """Say that a rank has ended."""
        with self._change:
            self._there.discard(number)
            self._ended.add(number)
            if failure and not self._failure:
                self._failure, self.first = failure, number
                self._change.notify_all()
            self._look()

    def _look(self) -> None:
        """Find out whether all that are there wait, so that nobody will come."""
        if self._failure or not self._there or len(self._waiting) < len(self._there):
            return
        waits = (f"rank {n} waits in {what}" for n, (_, what) in sorted(self._waiting.items()))
        ended = "".join(f", rank {n} has ended" for n in sorted(self._ended))
        self._failure = f"the ranks wait for ever: {', '.join(waits)}{ended}"
        self._change.notify_all()

    def _check(self, point: _ExchangePoint) -> None:
        """Fail unless all bring the same."""
        if len({what for what, _ in point.brought.values()}) == 1:
            return
        calls = ", ".join(f"place {i}: {what}" for i, (what, _) in sorted(point.brought.items()))
        self._failure = f"along {point.axis!r} the ranks call different collectives: {calls}"
        self._change.notify_all()
        self._raise()

    def _raise(self) -> None:
        if self._failure:
            raise DistributedError("the ranks do not go on together", found=self._failure)


@dataclass
class _SimulatedGroup:
    """A group whose ranks are threads; see `meta.runtime.mesh.Group`. number: of all ranks."""

    meeting: _Rendezvous
    point: _ExchangePoint
    number: int
    rank: int
    size: int

    def _exchange(self, name: str, x: torch.Tensor, *options: Any) -> list[torch.Tensor]:
        dtype = str(x.dtype).removeprefix("torch.")
        call = ", ".join([f"{dtype}{list(x.shape)}", *map(str, options)])
        return self.meeting.exchange(self.point, self.number, self.rank, f"{name}({call})", x)

    def all_reduce(self, out: torch.Tensor, reduction: str) -> None:
        out.copy_(self._reduced(self._exchange("all_reduce", out, reduction), reduction))

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        torch.stack(self._exchange("all_gather", x), out=out)

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
        given = self._exchange("reduce_scatter", x, reduction)
        out.copy_(self._reduced([one[self.rank] for one in given], reduction))

    def _reduced(self, given: list[torch.Tensor], reduction: str) -> torch.Tensor:
        if reduction == "mean":
            return reduce(torch.add, given).div_(self.size)
        return reduce(_SUMS[reduction], given)

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor) -> None:
        torch.stack([one[self.rank] for one in self._exchange("all_to_all", x)], out=out)

    def broadcast(self, out: torch.Tensor, root: int) -> None:
        out.copy_(self._exchange("broadcast", out, root)[root])

    def send(self, out: torch.Tensor, x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        given = self._exchange("send", x, *pairs)
        for source, target in pairs:
            if target == self.rank:
                out.copy_(given[source])

    def together(self) -> AbstractContextManager[None]:
        return nullcontext()

    def start(self, run: Callable[[], None], written: list[torch.Tensor]) -> Callable[[], None]:
        """Exchange at once, and hide the results until somebody waits: what reads them before gets
        NaN, and what writes there is an error.
        """
        run()
        results = [one.clone() for one in written]
        memory = [one.view(-1).view(torch.uint8) for one in written]
        for one in memory:
            one.fill_(_POISON_BYTE)

        def wait() -> None:
            if any(bool((one != _POISON_BYTE).any()) for one in memory):
                raise DistributedError("a tensor was written while it was communicated")
            for one, result in zip(written, results, strict=True):
                one.copy_(result)

        return wait

    def gather(self, data: bytes, what: str) -> list[bytes]:
        given = torch.frombuffer(bytearray(b"_" + data), dtype=torch.uint8)  # never of no bytes
        all_of_it = self.meeting.exchange(self.point, self.number, self.rank, what, given)
        return [one.numpy().tobytes()[1:] for one in all_of_it]

    def running(self, what: str, digest: bytes) -> AbstractContextManager[None]:
        return nullcontext()  # its collectives are compared one by one


@check_signature
@contextmanager
def planned(sizes: int | Mapping[str, int]) -> Iterator[None]:
    """Be the first rank of a mesh that is not there, in a ``with`` block.

    sizes: the axes, as {"dp": 512, "tp": 8}; a number is the size of one axis "dp". Models,
    training steps and programs are made for the mesh and compiled; what the first rank gives to
    others, it has. Any other exchange, such as a run of a program with collectives, is a
    DistributedError.

    >>> import meta
    >>> with meta.distributed.planned({"dp": 64}):
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
