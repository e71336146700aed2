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
from dataclasses import dataclass, field

WIDTH = 256
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
        taken = [step.options[pick] for step, pick in zip(self.steps, picks, strict=True)]
        time, broken = 0.0, False
        for step, option in zip(self.steps, taken, strict=True):
            time += option.time + self._break(broken, option)
            broken = option.breaks
            time += sum(passing(link, taken[link.source], option) for link in step.links)
        return time

    def plan(self, width: int = WIDTH) -> tuple[int, ...]:
        """Return the cheapest plan that is found; the one of first options if none is cheaper.

        Steps are gone through in order, with the plans for those so far. Of plans that agree in all
        that later steps depend on (options of steps that are still read, of layers that come
        again, and whether a graph was broken) the cheapest is kept, and at most ``width`` in all.
        So the result is the best one as long as few results are in use at a time and few layers
        with a choice come again, as in a chain; it is the same every time.
        """
        nothing = (0,) * len(self.steps)
        if all(len(step.options) < 2 for step in self.steps):
            return nothing
        ends = self._ends()
        states = [_State(0.0, (), False, (), ())]
        for number, step in enumerate(self.steps):
            best: dict[Hashable, _State] = {}
            for state in states:
                for pick in state.choices(step):
                    after = self._after(state, number, step, pick, ends)
                    known = best.get(after.key)
                    if known is None or after.time < known.time:
                        best[after.key] = after
            # Of equal ones those of earlier options stay in front: sorting is stable.
            states = sorted(best.values(), key=lambda state: state.time)[:width]
        picks = states[0].all_picks()
        return self._settled(picks) if self.total(picks) < self.total(nothing) else nothing

    def _break(self, broken: bool, option: Option) -> float:
        """Return what it takes that an option is outside of CUDA graphs: that the host launches it,
        and, behind one that is in a graph, that another graph begins.
        """
        if not option.breaks:
            return 0.0
        return self.gap if broken else 2 * self.gap

    def _after(self, state: _State, number: int, step: Step, pick: int, ends: _Ends) -> _State:
        option = step.options[pick]
        time = state.time + option.time + self._break(state.broken, option)
        open_picks = dict(state.open)
        for link in step.links:
            source = self.steps[link.source].options[open_picks.get(link.source, 0)]
            time += passing(link, source, option)
        layers = dict(state.layers)
        if len(step.options) > 1:
            open_picks[number] = pick
            if step.layer is not None:
                layers[step.layer] = pick
        kept = tuple((n, p) for n, p in open_picks.items() if ends.read.get(n, -1) > number)
        again = tuple((layer, p) for layer, p in layers.items() if ends.layers[layer] > number)
        return _State(time, kept, option.breaks, again, (state, pick))

    def _ends(self) -> _Ends:
        """Return by step who reads it last, and by layer its last step."""
        read = {link.source: n for n, step in enumerate(self.steps) for link in step.links}
        layers = {s.layer: n for n, s in enumerate(self.steps) if s.layer is not None}
        return _Ends(read, layers)

    def _settled(self, picks: tuple[int, ...]) -> tuple[int, ...]:
        """Return a plan without the changes that gain nothing, layer by layer."""
        layers: dict[Hashable, list[int]] = {}
        for number, step in enumerate(self.steps):
            if picks[number]:
                layers.setdefault((step.layer, number if step.layer is None else 0), []).append(
                    number
                )
        left = -1
        while left != len(layers):  # what gains nothing may do so because of others like it
            left = len(layers)
            for layer, members in list(layers.items()):
                without = tuple(0 if n in members else pick for n, pick in enumerate(picks))
                if self.total(without) <= self.total(picks):
                    picks = without
                    del layers[layer]
        return picks


@dataclass(frozen=True, slots=True)
class _Ends:
    """When what later steps depend on is over: the last reader of a step, the last of a layer."""

    read: dict[int, int]
    layers: dict[Hashable, int]


@dataclass(frozen=True, slots=True)
class _State:
    """A plan for the steps so far.

    time: of these. open: the picks of steps with a choice that are still read. broken: whether the
    last kernel was outside of a graph. layers: the picks of layers that come again. last: the plan
    before, and the last pick.
    """

    time: float
    open: tuple[tuple[int, int], ...]
    broken: bool
    layers: tuple[tuple[Hashable, int], ...]
    last: tuple[()] | tuple[_State, int] = field(compare=False, repr=False)

    @property
    def key(self) -> Hashable:
        """What later steps depend on."""
        return self.open, self.broken, self.layers

    def choices(self, step: Step) -> Sequence[int]:
        """Return the options that a step may take: that of its layer, if it has been there."""
        for layer, pick in self.layers:
            if layer == step.layer:
                return (pick,)
        return range(len(step.options))

    def all_picks(self) -> tuple[int, ...]:
        """Return the picks of all steps."""
        found: list[int] = []
        state: _State = self
        while state.last:
            state, pick = state.last
            found.append(pick)
        return tuple(reversed(found))
