"""The cost model of a plan, and how the best plan is looked for: without programs, only numbers.

A *step* is a kernel to be run, and its *options* are the kernels that could do it. The first option
is what is taken without a plan. Steps of one *layer* take the same option: equal layers of a
network then have equal kernels, each compiled once.

What a plan costs is the sum of the times of its kernels, minus what fusion saves, plus what breaks
of CUDA graphs and changes of layouts take (`total`). A link from a step to a reader of its result
saves something if one kernel can do both (see `fuses`), and costs something if they have not the
same layout.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH = 128
"""Unfinished plans that are kept after each step."""


@dataclass(frozen=True, slots=True)
class Option:
    """A kernel for a step.

    Attributes
    ----------
    name: whose it is, with its configuration. time: its microseconds. family: the dialect that can
    compile it together with its neighbours, "" if none can. own, read: how it may be fused, as
    ranks of `fuse_operators`: with a reader whose ``read`` is at most ``own``. breaks: whether a
    CUDA graph cannot hold it. layout: in which its arrays are.
    """

    name: str
    time: float
    family: str = ""
    own: int = 0
    read: int = 0
    breaks: bool = False
    layout: str = ""


@dataclass(frozen=True, slots=True)
class Link:
    """Of a step: it reads the result of the step ``source``.

    Attributes
    ----------
    saved: the microseconds that it takes to write and read that, which one kernel for both does
    not do. turned: those that it takes to lay it out anew.
    """

    source: int
    saved: float = 0.0
    turned: float = 0.0


@dataclass(frozen=True, slots=True)
class Step:
    """A kernel to be run: its options, whom it reads, and its layer (None: a layer of its own)."""

    options: tuple[Option, ...]
    links: tuple[Link, ...] = ()
    layer: Hashable = None


def passing(link: Link, first: Option, then: Option) -> float:
    """Return what it takes, besides both kernels, that a step reads the result of another."""
    if first.layout != then.layout:
        return link.turned
    return -link.saved if fuses(first, then) else 0.0


def fuses(first: Option, then: Option) -> bool:
    """Whether one kernel can do a step and a reader of its result."""
    return bool(first.family) and first.family == then.family and then.read <= first.own


@dataclass(frozen=True)
class Steps:
    """The steps of a block, in order, and the microseconds of a break of a CUDA graph."""

    steps: tuple[Step, ...]
    gap: float = 0.0

    def total(self, picks: Sequence[int]) -> float:
        """Return the microseconds of a plan: for each step, the number of its option."""
        return sum(self._part(number, picks) for number in range(len(self.steps)))

    def first(self) -> tuple[int, ...]:
        """Return the plan of first options."""
        return (0,) * len(self.steps)

    def fastest(self) -> tuple[int, ...]:
        """Return the plan of what is fastest by itself, of equal options the first."""
        times = ([option.time for option in step.options] for step in self.steps)
        return tuple(found.index(min(found)) for found in times)

    def plan(self, width: int = WIDTH) -> tuple[int, ...]:
        """Return the cheapest plan that is found; the one of first options if none is cheaper.

        Steps are gone through in order, with the plans for those so far. Of plans that agree in all
        that later steps depend on (options of steps that are still read, of layers that come
        again, and whether a graph was broken) the cheapest is kept, and at most ``width`` in all.
        So the result is the best one as long as few results are in use at a time and few layers
        with a choice come again, as in a chain; it is the same every time.
        """
        nothing = self.first()
        choices = _Choices(self.steps)
        if not choices.members:
            return nothing
        picks = choices.picks(_Search(self, choices, width).cheapest())
        return self._settled(picks, choices) if self.total(picks) < self.total(nothing) else nothing

    def after(self, broken: bool, number: int, pick: int, sources: Sequence[Option]) -> float:
        """Return what a step adds to a plan with an option, behind these sources of its links.

        It is outside of CUDA graphs at the cost of a launch by the host, and, behind a kernel that
        is in a graph, of another graph that begins.
        """
        step = self.steps[number]
        option = step.options[pick]
        time = option.time
        if option.breaks:
            time += self.gap if broken else 2 * self.gap
        links = zip(step.links, sources, strict=True)
        return time + sum(passing(link, source, option) for link, source in links)

    def _part(self, number: int, picks: Sequence[int]) -> float:
        """Return what a step adds to a plan."""
        before = self.steps[number - 1].options[picks[number - 1]].breaks if number else False
        links = self.steps[number].links
        sources = [self.steps[link.source].options[picks[link.source]] for link in links]
        return self.after(before, number, picks[number], sources)

    def _settled(self, picks: tuple[int, ...], choices: _Choices) -> tuple[int, ...]:
        """Return a plan without the changes that gain nothing, layer by layer."""
        touched = choices.touched(self.steps)
        left = -1
        changed = [members for members in choices.members if picks[members[0]]]
        while left != len(changed):  # what gains nothing may do so because of others like it
            left = len(changed)
            for members in changed:
                own = set(members)
                without = tuple(0 if n in own else pick for n, pick in enumerate(picks))
                places = touched[members[0]]
                if sum(self._part(n, without) - self._part(n, picks) for n in places) <= 0:
                    picks = without
            changed = [members for members in changed if picks[members[0]]]
        return picks


class _Choices:
    """What is to be chosen: an option for each layer whose steps have several.

    members: the steps of each choice. of: by step, the number of its choice. until: of each choice
    the last step that depends on it.
    """

    def __init__(self, steps: Sequence[Step]) -> None:
        self.members: list[list[int]] = []
        self.of: dict[int, int] = {}
        self._count = len(steps)
        layers: dict[Hashable, int] = {}
        for number, step in enumerate(steps):
            if len(step.options) < 2:
                continue
            choice = len(self.members)
            if step.layer is not None:
                choice = layers.setdefault(step.layer, choice)
            if choice == len(self.members):
                self.members.append([])
            self.members[choice].append(number)
            self.of[number] = choice
        self.until = [members[-1] for members in self.members]
        for number, step in enumerate(steps):
            for link in step.links:
                if link.source in self.of:
                    choice = self.of[link.source]
                    self.until[choice] = max(self.until[choice], number)

    def picks(self, chosen: Sequence[int]) -> tuple[int, ...]:
        """Return the options of all steps, for one of each choice."""
        choices = (self.of.get(number) for number in range(self._count))
        return tuple(0 if choice is None else chosen[choice] for choice in choices)

    def touched(self, steps: Sequence[Step]) -> dict[int, set[int]]:
        """Return which steps take another time if a choice changes, by its first step."""
        found = {
            members[0]: {n for m in members for n in (m, m + 1) if n < self._count}
            for members in self.members
        }
        for number, step in enumerate(steps):
            for link in step.links:
                if link.source in self.of:
                    found[self.members[self.of[link.source]][0]].add(number)
        return found


Chosen = tuple[()] | tuple[Any, int]
"""The options that a plan has chosen, the last one last: those before, and that one."""


class _Search:
    """Plans for the steps so far, by what later steps depend on.

    A plan's key has a byte for whether the last kernel was outside of a CUDA graph, and one for
    each choice that is open: made, and needed later. ``_open`` says which they are, in order.
    """

    def __init__(self, steps: Steps, choices: _Choices, width: int) -> None:
        self._steps, self._choices, self._width = steps, choices, width
        self._open: list[int] = []
        self._plans: dict[bytes, tuple[float, Chosen]] = {b"\0": (0.0, ())}

    def cheapest(self) -> list[int]:
        """Return the option of each choice in the cheapest plan that is found."""
        for number in range(len(self._steps.steps)):
            self._advance(number)
            closed = [c for c in self._open if self._choices.until[c] <= number]
            for choice in closed:
                self._close(choice)
            # Only then: plans that agree in all that comes later are one.
            if len(self._plans) > self._width:
                best = sorted(self._plans.items(), key=lambda item: item[1][0])
                self._plans = dict(best[: self._width])
        _, chosen = min(self._plans.values(), key=lambda plan: plan[0])
        found: list[int] = []
        while chosen:
            chosen, pick = chosen
            found.append(pick)
        return found[::-1]

    def _advance(self, number: int) -> None:
        """Add a step to all plans, with each of its options where that is open."""
        steps, own = self._steps.steps, self._choices.of.get(number)
        step = steps[number]
        sources = [self._place(link.source) for link in step.links]
        given = None if own is None or own not in self._open else self._place(number)
        opens = own is not None and given is None
        known: dict[tuple[int, int, bytes], float] = {}
        found: dict[bytes, tuple[float, Chosen]] = {}
        for key, (time, chosen) in self._plans.items():
            read = bytes([key[place] if place else 0 for place in sources])
            for pick in range(len(step.options)) if opens else (key[given] if given else 0,):
                case = key[0], pick, read
                if case not in known:
                    options = (
                        steps[k.source].options[p] for k, p in zip(step.links, read, strict=True)
                    )
                    known[case] = self._steps.after(bool(key[0]), number, pick, list(options))
                after = time + known[case]
                made = (b"\1" if step.options[pick].breaks else b"\0") + key[1:]
                made += bytes([pick]) if opens else b""
                # The one that is there is of an earlier option: of equal ones it stays.
                if made not in found or after < found[made][0]:
                    found[made] = after, (chosen, pick) if opens else chosen
        if opens:
            assert own is not None
            self._open.append(own)
        self._plans = found

    def _place(self, number: int) -> int:
        """Return where a key has the option of a step; 0 if there is one only."""
        choice = self._choices.of.get(number)
        return 0 if choice is None else self._open.index(choice) + 1

    def _close(self, choice: int) -> None:
        """Forget a choice: of plans that differ in nothing else, the cheapest stays."""
        place = self._open.index(choice) + 1
        del self._open[place - 1]
        found: dict[bytes, tuple[float, Chosen]] = {}
        for key, plan in self._plans.items():
            rest = key[:place] + key[place + 1 :]
            if rest not in found or plan[0] < found[rest][0]:
                found[rest] = plan
        self._plans = found
