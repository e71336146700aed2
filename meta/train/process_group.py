"""`ProcessGroup`: the ranks that train one model together, and what they tell one another.

Every rank runs the same loop. What could differ from rank to rank (the clock, Ctrl-C, what a
callback decides, where a disk is full) is exchanged at points that all of them reach.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

from meta.base.errors import ArgumentError, DistributedError
from meta.distributed import Mesh
from meta.model.model import Model
from meta.op import broadcast_from
from meta.runtime.mesh import axis_group, axis_sizes, current_mesh, first_difference, ranks_text
from meta.train.json_state import from_json, to_json

SYNC_SECONDS = 0.5
"""The ranks exchange what each of them knows about this often."""
MAX_SYNC_STEPS = 1000
"""And after so many steps at most."""

MeshLike = Mesh | Mapping[str, int] | int
"""A mesh, or its sizes."""


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The ranks of a run; all methods are called by all of them.

    Attributes
    ----------
    over: the axis of the mesh along which ranks have different data, "" where there is no mesh.
    rank, size: this rank's number along it, and the number of ranks. is_rank_zero: whether this is
    the first rank of all, which writes files. alone: whether there is no other rank.
    """

    over: str = ""
    rank: int = 0
    size: int = 1
    is_rank_zero: bool = True
    alone: bool = True

    def gather(self, value: Any, what: str, along: bool = False) -> list[Any]:
        """Return the values of all ranks, in their order; ``along``: of those along the axis only.

        value: plain data and arrays, as `to_json` takes them. what: for messages.
        """
        if self.alone:
            return [value]
        text = json.dumps(to_json(value, what)).encode()
        given = current_mesh().gather(text, what, (self.over,) if along else None)
        return [from_json(json.loads(one)) for one in given.values()]

    def any(self, flag: bool, what: str) -> bool:
        """Return whether a flag is set on some rank."""
        return any(self.gather(flag, what))

    def broadcast(self, value: Any, what: str) -> Any:
        """Return the value that the first rank has."""
        return self.gather(value if self.is_rank_zero else None, what)[0]

    def require_same(self, value: Any, what: str, hint: str) -> None:
        """Raise DistributedError, on all ranks, unless all have the same value."""
        given = self.gather(value, what)
        if any(one != given[0] for one in given):
            found = first_difference({i: str(one) for i, one in enumerate(given)})
            raise DistributedError(
                f"the ranks do not agree on {what}",
                expected="the same on all of them",
                found=found,
                hint=hint,
            )

    def on_rank_zero(self, what: str, function: Callable[[], Any]) -> Any:
        """Let the first rank call a function; return its result there, and None elsewhere.

        Its error is raised there, and is a DistributedError elsewhere.
        """
        result, error = None, None
        if self.is_rank_zero:
            try:
                result = function()
            except Exception as raised:
                error = raised
        told = self.broadcast(None if error is None else f"{type(error).__name__}: {error}", what)
        if error is not None:
            raise error
        if told is not None:
            raise DistributedError(f"the first rank failed in {what}", found=told)
        return result

    def on_each_rank(self, what: str, function: Callable[[], Any]) -> list[Any]:
        """Let every rank call a function; return the results of all, plain data.

        The error of a rank is raised there, and is a DistributedError elsewhere.
        """
        result, error = None, None
        try:
            result = function()
        except Exception as raised:
            error = raised
        told = None if error is None else f"{type(error).__name__}: {error}"
        given = self.gather((result, told), what)
        if error is not None:
            raise error
        failed = {rank: text for rank, (_, text) in enumerate(given) if text is not None}
        if failed:
            raise DistributedError(
                f"{ranks_text(failed)} failed in {what}", found=next(iter(failed.values()))
            )
        return [its for its, _ in given]

    @contextmanager
    def within_rank_zero(self, what: str, block: Any) -> Iterator[None]:
        """Let the first rank be within a block, a context manager."""
        self.on_rank_zero(what, block.__enter__)
        try:
            yield
        finally:
            if self.is_rank_zero:
                block.__exit__(None, None, None)

    def broadcast_arrays(self, model: Model, trained: bool = True) -> None:
        """Give all ranks the arrays of the first one along the axis; without ``trained`` those that
        are not trained, as running statistics. So what is evaluated and kept is one model.
        """
        if self.size == 1:
            return
        left = set() if trained else {id(a) for a in model.parameters() if a.requires_grad}
        for array in model.state().values():
            part = any(split.over == self.over for split in array.placement.splits)
            if id(array) not in left and not part:
                array.update(broadcast_from(array, self.over, self.size))


SINGLE_PROCESS = ProcessGroup()


@contextmanager
def group_on_mesh(mesh: MeshLike | None, over: str) -> Iterator[ProcessGroup]:
    """Yield the group of a mesh, which is made for the block if only its sizes are given, and no
    mesh is at hand.

    Raises DistributedError for other sizes than those of the mesh at hand, for no axis ``over``,
    and without processes.
    """
    if mesh is None:
        yield SINGLE_PROCESS
        return
    sizes = mesh.sizes if isinstance(mesh, Mesh) else axis_sizes(mesh)
    with nullcontext() if current_mesh().groups or isinstance(mesh, Mesh) else Mesh(sizes):
        groups = current_mesh().groups
        found = {name: group.size for name, group in groups.items()}
        if found != sizes:
            raise DistributedError(
                "this is not the mesh at hand",
                expected=", ".join(f"{n}={s}" for n, s in found.items()) or "a mesh",
                found=", ".join(f"{n}={s}" for n, s in sizes.items()),
                hint="pass mesh= what meta.distributed.Mesh or simulate was given",
            )
        along = axis_group(over)
        first = all(group.rank == 0 for group in groups.values())
        alone = all(group.size == 1 for group in groups.values())
        yield ProcessGroup(over, along.rank, along.size, first, alone)


class SyncInterval:
    """When the ranks exchange what each knows: after so many steps that about half a second passes.
    The number is the same on all ranks.
    """

    def __init__(self, group: ProcessGroup) -> None:
        self.group = group
        self._every, self._steps, self._since = 1, 0, time.perf_counter()

    def due(self) -> bool:
        """Count a step; return whether it is time to exchange."""
        self._steps += 1
        return self._steps >= self._every

    def synchronize(self, interrupted: bool, rate: float) -> bool:
        """Return whether Ctrl-C was pressed on some rank.

        rate: the learning rate, of which DistributedError is raised if ranks have another one.
        """
        seconds = time.perf_counter() - self._since
        given = self.group.gather((seconds, interrupted, rate), "the state of the run")
        if len({its for _, _, its in given}) > 1:
            raise DistributedError(
                "the ranks do not agree on the learning rate",
                found=", ".join(f"rank {i}: {its:g}" for i, (_, _, its) in enumerate(given)),
                hint="a schedule or callback decides by what is the same on all ranks: the number "
                "of the step, the loss, the metrics",
            )
        slowest = max(its for its, _, _ in given) / max(1, self._steps)
        self._every = max(1, min(MAX_SYNC_STEPS, int(SYNC_SECONDS / max(slowest, 1e-9))))
        self._steps, self._since = 0, time.perf_counter()
        return any(its for _, its, _ in given)


def require_data_parallel(group: ProcessGroup, over: str | None) -> None:
    """Check the axis along which a training step averages its gradients against the run's."""
    wanted = group.over or None
    if over == wanted:
        return
    if wanted is None:
        raise ArgumentError(
            f"the optimizer averages over the ranks along {over!r}, and the run has no mesh",
            hint="pass mesh=, too: data are then shared out, and one rank writes files",
        )
    raise ArgumentError(
        "the optimizer averages over other ranks than those of the run",
        expected=f"over={wanted!r}",
        found=f"over={over!r}",
        hint="what a with_<name> of meta.optim returns takes the axis from fit",
    )
