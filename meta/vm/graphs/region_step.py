"""A region of a block as one step: run kernel by kernel, recorded as a CUDA graph, replayed.

A `GraphStep` runs kernel by kernel at first, then is recorded, then replayed. The first run
compiles, loads and plans what kernels need. The second is recorded. What a recorded kernel reads
and writes has fixed addresses: constants, the arena, and the model's arrays have them anyway (they
are *static*); what else comes from outside is copied before each replay, to memory of the program's
that is free then (`input_memory.py`) or of the region's own, and what is handed on is copied out of
the graph's memory after it.

`capture.py` says what regions of one program share, and records graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import prod
from operator import itemgetter
from types import FunctionType
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.graph import increment_version

from meta.base.call_context import override_context
from meta.base.errors import DistributedError
from meta.runtime.allocate import storage_address
from meta.runtime.mesh import current_mesh, use_mesh
from meta.runtime.out_of_memory import is_out_of_memory
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.launch_sites import SITES, LaunchSite, site_of
from meta.vm.graphs.rank_agreement import Ranks
from meta.vm.graphs.regions import GraphRegion, RegionStatus

if TYPE_CHECKING:
    from meta.vm.graphs.capture import Binding, Graphs

Registers = list[Any]
Step = Callable[[Registers], None]
MAX_VARIANTS = 16
"""Of one region, for different static arguments: a function that is called once per layer."""


@dataclass(eq=False)
class GraphStep:
    """One region of a function.

    Parameters
    ----------
    region: its registers. run: its instructions, as a generated function. split: returns what runs
    them without a kernel that could not be recorded in a graph, by where it is launched and why.
    written: registers that its kernels write in place. keys: the places of its random keys.
    arguments: how many registers, the first ones, are arguments of the program. bound: those that
    hold the same static tensor at every run. escapes: registers whose values live longer than the
    run of the program. ranks: those of its collectives, which do alike with it. copies: see
    `Graphs`.
    """

    graphs: Graphs
    region: GraphRegion
    run: FunctionType
    split: Callable[[LaunchSite, str], FunctionType]
    status: RegionStatus
    written: frozenset[bc.Register]
    keys: slice
    arguments: int
    bound: frozenset[bc.Register]
    escapes: Callable[[bc.Register], bool]
    ranks: Ranks | None = None
    copies: Callable[..., dict[bc.Register, torch.Tensor]] = lambda _: {}

    def __post_init__(self) -> None:
        self.draw = self.graphs.keys.drawer(self.keys)
        self.inner = tuple(r for r in self.region.ins if r not in self.bound)
        # By where the model's arrays were.
        self.recordings: dict[Binding, Recordings] = {}

    def forget(self, binding: Binding) -> None:
        """Forget what was recorded with arrays that are at other addresses now."""
        found = self.recordings.pop(binding, None)
        self.status.graphs -= 0 if found is None else len(found.replays)

    def all_replays(self) -> list[Replay]:
        """Return all that was recorded."""
        return [r for found in self.recordings.values() for r in found.replays.values()]

    def __call__(self, regs: Registers) -> None:
        if self.draw is not None:
            self.draw()
        if self.ranks is not None:  # in a graph nobody waits for what began before it
            current_mesh().finish_all()
        if self.status.reason:
            self.plain(regs)
            return
        found = self.recordings.get(self.graphs.binding)
        if found is None:
            found = self.recordings[self.graphs.binding] = Recordings()
        key = tuple([id(regs[r]) for r in found.watched]) if found.watched else ()
        replay = found.replays.get(key)
        if replay is None:
            self.first(regs, key, found)
        elif replay.back and share_memory(regs, [r for r, _ in replay.copied]):
            self.plain_on_all(regs)
        else:
            replay(regs, self.graphs.buffers.tensors)

    def plain(self, regs: Registers) -> None:
        """Run kernel by kernel."""
        self.run(regs)
        for r in self.region.released:
            regs[r] = None

    def plain_on_all(self, regs: Registers) -> None:
        """Run kernel by kernel, what is replayed or recorded otherwise."""
        self.do_alike("runs kernel by kernel")
        self.plain(regs)

    def do_alike(self, what: str) -> bool:
        """Whether all ranks do the same with the region; else it is never recorded."""
        difference = "" if self.ranks is None else self.ranks.difference(what)
        if difference:
            self.status.reason = difference
            self.graphs.refused(difference)
        return not difference

    def first(self, regs: Registers, key: tuple[int, ...], recorded: Recordings) -> None:
        """Run what is not recorded yet: to warm it up, or to record it."""
        statics = self.graphs.statics
        if not recorded.warm:
            recorded.warm = True
            self.plain_on_all(regs)
            return
        if not recorded.replays:
            recorded.watched = tuple(r for r in self.inner if id(regs[r]) in statics)
            key = tuple([id(regs[r]) for r in recorded.watched])
        known = all(id(regs[r]) in statics for r in recorded.watched)
        if known and len(recorded.replays) < MAX_VARIANTS:
            self.record(regs, key, recorded)
        else:
            self.plain_on_all(regs)

    def record(self, regs: Registers, key: tuple[int, ...], recorded: Recordings) -> None:
        """Record the region and run it so; kernel by kernel, and say why, if that cannot be."""
        given = [r for r in self.inner if r not in recorded.watched]
        copied = [r for r in self.region.outs if self.escapes(r) and r not in self.region.views]
        if any(not isinstance(regs[r], torch.Tensor) for r in given):
            self.status.reason = "it is given a value that is no tensor"
            self.graphs.refused(self.status.reason)
        pays = self.region.kernels >= 2 + len(given) + len(copied)
        if not pays and not recorded.replays:
            self.status.reason = "copying what it takes and hands on costs as much as it saves"
        shared = self.written.intersection(given) and share_memory(regs, given)
        shared = shared or self.is_shared(regs, given)
        records = bool(pays and not self.status.reason and not shared)
        what = "is recorded" if records else f"is not recorded {self.status.reason}".strip()
        if not self.do_alike(what) or not records:
            self.plain(regs)
            return
        try:
            replay = self.recorded(regs, given)
        except DistributedError:
            raise
        except FailedOnRank as failed:
            self.refuse(failed.site, failed.reason)
        except Exception as error:
            self.refuse(self.site(error), error)
        else:
            replay.kept = tuple([regs[r] for r in self.inner if r not in given])
            replay.finish(regs, self.graphs.buffers.tensors)
            recorded.replays[key] = replay
            self.status.graphs += 1
            return
        self.plain(regs)  # behind the block: what was made for the graph is free by then

    def is_shared(self, regs: Registers, given: Sequence[bc.Register]) -> bool:
        """Whether what would be copied is memory of something that would not, and is written: such
        as a view of an array of the model that was made before the region.
        """

        def memory(registers: Iterable[bc.Register]) -> set[int]:
            tensors = [regs[r] for r in registers if isinstance(regs[r], torch.Tensor)]
            return {storage_address(t) for t in tensors if t.numel()}

        kept = memory({*self.region.ins, *self.written}.difference(given))
        return bool(memory(given) & kept & memory(self.written))

    def recorded(self, regs: Registers, given: Sequence[bc.Register]) -> Replay:
        """Record the region for copies of its inputs, run it once, return what runs it again."""
        own = regs.copy()
        inside = self.copies({r: regs[r] for r in given if r not in self.written})
        copied = {r: inside[r] if r in inside else regs[r].clone() for r in given}
        for r, tensor in copied.items():
            own[r] = tensor
        written = {r: own[r] for r in self.written}
        changed = {storage_address(t) for t in written.values() if isinstance(t, torch.Tensor)}
        results = self.graphs.buffers.tensors
        self.graphs.buffers.clear()
        try:
            with override_context(only_read=self.graphs.binding.memory - changed):
                if self.ranks is None:
                    launch = self.graphs.recorder.record(partial(self.body, own))
                else:
                    launch = self.recorded_on_all(own, self.ranks)
        finally:
            self.graphs.buffers.tensors = results
        # What was made in the region, and is forgotten in it, is None now.
        written = {r: own[r] if t is None else t for r, t in written.items()}
        return self.replay(own, copied, written, launch, inside)

    def body(self, own: Registers) -> None:
        """Launch the kernels, to be recorded."""
        self.run(own)
        if self.ranks is not None:  # nor behind it for what it began
            current_mesh().finish_all()

    def sites(self) -> list[LaunchSite]:
        """Return where its kernels are launched, in order."""
        found: dict[int, LaunchSite] = self.run.__globals__[SITES]
        return [found[line] for line in sorted(found)]

    def site(self, error: Exception) -> LaunchSite:
        """Return what an error stopped, or would have; the last kernel, if that is not known."""
        return site_of(error, nearest=True) or self.sites()[-1]

    def recorded_on_all(self, own: Registers, ranks: Ranks) -> Callable[[], None]:
        """Record the region on all ranks, or raise the same error on all of them: once on trial,
        without collectives, and then with them.
        """
        failed = tried = None
        try:
            with use_mesh(ranks.silent()):
                tried = self.graphs.recorder.try_out(partial(self.body, own.copy()))
        except Exception as error:
            failed = error
        failure = ranks.failure(0 if failed is None else self.site(failed).number, failed)
        if failure is not None:
            number, reason = failure
            reason.__cause__ = failed
            raise FailedOnRank(next(s for s in self.sites() if s.number == number), reason)

        def agree(error: Exception | None) -> None:
            failure = ranks.failure(0 if error is None else self.site(error).number, error)
            if failure is not None:
                raise DistributedError(
                    "recording collectives failed, behind which they cannot be called any more",
                    found=str(failure[1]),
                    hint="start again with compile(..., cuda_graph=False) or META_CUDA_GRAPH=0",
                ) from error

        launch = self.graphs.recorder.record(partial(self.body, own), agree)
        del tried  # it kept the memory that both take
        return launch

    def refuse(self, site: LaunchSite, error: Exception) -> None:
        """Give up: for lack of memory altogether, which is an error where graphs are required, else
        the kernel that could not be recorded.
        """
        short_of_memory = is_out_of_memory(error)
        if short_of_memory and self.graphs.required:
            raise error
        reason = f"recording it failed: {first_line(error)}"
        self.status.reason = reason
        self.graphs.refused(f"{site.kernel.name}: {reason}", error, site.span)
        if not short_of_memory:
            self.status.split = True
            self.run = self.split(site, reason)

    def replay(
        self,
        own: Registers,
        copied: dict[bc.Register, torch.Tensor],
        written: dict[bc.Register, torch.Tensor | None],
        launch: Callable[[], None],
        inside: Mapping[bc.Register, torch.Tensor],
    ) -> Replay:
        """Return what runs the recorded region. inside: copies that it hands on nothing of."""
        outside = [(r, t) for r, t in copied.items() if t.numel() and r not in inside]
        memory = {storage_address(t): r for r, t in outside}
        views: list[tuple[bc.Register, bc.Register, tuple[int, ...], int]] = []
        fresh: list[tuple[bc.Register, torch.Tensor]] = []
        same: dict[bc.Register, torch.Tensor] = {}
        for r in self.region.outs:
            tensor = own[r]
            source = memory.get(storage_address(tensor))
            if source is not None:
                views.append((r, source, tuple(tensor.shape), tensor.storage_offset()))
            elif self.escapes(r) and not self.graphs.is_static(tensor):
                fresh.append((r, tensor))
            else:
                same[r] = tensor
                self.graphs.statics.add(id(tensor))  # the same tensor at every run
        back = [(r, t) for r, t in copied.items() if r in written]
        counted = [
            t
            for r, t in written.items()
            if t is not None and r not in copied and not self.graphs.is_fixed(t)
        ]
        given = list(copied.items())
        # The caller has the arguments, whether they are released or not.
        released = tuple(r for r in self.region.released if r >= self.arguments)
        return Replay(launch, given, back, counted, views, fresh, same, released)


class FailedOnRank(Exception):
    """Ends a recording that some rank cannot make: which kernel stops it, and why."""

    def __init__(self, site: LaunchSite, reason: Exception) -> None:
        super().__init__(str(reason))
        self.site, self.reason = site, reason


class Recordings:
    """What a region was recorded as, with the model's arrays where they are.

    Attributes
    ----------
    warm: whether it ran before. watched: registers whose tensors are static in some runs. replays:
    by the ids of these.
    """

    def __init__(self) -> None:
        self.warm = False
        self.watched: tuple[bc.Register, ...] = ()
        self.replays: dict[tuple[int, ...], Replay] = {}


@dataclass(slots=True)
class Replay:
    """A recorded region as a step.

    copied: registers to copy from, and where to, before; back: the other way, after. counted: what
    is written in place besides. views: registers that are another one, or a part of it, with
    another shape: which one, the shape, and where the part begins.
    fresh: what is copied out. ready: what is handed on as it is. released: what is forgotten. kept:
    the static arguments, whose ids no others may get. take: copies from registers.
    """

    launch: Callable[[], None]
    copied: list[tuple[bc.Register, torch.Tensor]]
    back: list[tuple[bc.Register, torch.Tensor]]
    counted: list[torch.Tensor]
    views: list[tuple[bc.Register, bc.Register, tuple[int, ...], int]]
    fresh: list[tuple[bc.Register, torch.Tensor]]
    ready: dict[bc.Register, torch.Tensor]
    released: tuple[bc.Register, ...]
    kept: tuple[Any, ...] = ()
    take: Callable[[Registers], object] = field(init=False)

    def __post_init__(self) -> None:
        self.take = taking(self.copied)

    def __call__(self, regs: Registers, given: Mapping[bc.Register, torch.Tensor]) -> None:
        self.take(regs)
        self.launch()
        self.finish(regs, given)

    def finish(self, regs: Registers, given: Mapping[bc.Register, torch.Tensor]) -> None:
        """Set registers after a run of the graph; ``given``: tensors that results are put in."""
        for r, tensor in self.back:
            regs[r].copy_(tensor)
        if self.counted:  # a replay is not seen by the counters that the tape looks at
            increment_version(self.counted)
        for r, source, shape, begin in self.views:
            regs[r] = regs[source].view(-1)[begin : begin + prod(shape)].view(shape)
        for r, tensor in self.fresh:
            place = given.get(r)
            if place is None:
                regs[r] = tensor.clone()
            else:
                regs[r] = place.view(tensor.shape).copy_(tensor)
        for r, tensor in self.ready.items():
            regs[r] = tensor
        for r in self.released:
            regs[r] = None


def taking(
    copied: Sequence[tuple[bc.Register, torch.Tensor]],
) -> Callable[[Registers], object]:
    """Return what copies registers to tensors, by one call of torch's."""
    if not copied:
        return lambda _: None
    if len(copied) == 1:
        ((only, target),) = copied
        return lambda regs: target.copy_(regs[only])
    values, targets = itemgetter(*(r for r, _ in copied)), [t for _, t in copied]
    return lambda regs: torch._foreach_copy_(targets, values(regs))


def share_memory(regs: Registers, inputs: Sequence[bc.Register]) -> bool:
    """Whether two inputs are one memory: a write to one would not be seen in the copies."""
    memory = [storage_address(regs[r]) for r in inputs if regs[r].numel()]
    return len(set(memory)) < len(memory)


def first_line(error: Exception) -> str:
    """Return the first line of an error's message with the name of its class."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
