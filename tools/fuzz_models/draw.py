"""Random programs: a seed in, a program out.

A step is a sample of an operator's record with values of the program in place of its tensors, and
their extents in place of the sample's. It is evaluated quietly and disturbed, and kept if its
values are of moderate size and well determined: so references of the rest mean something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import accumulate
from typing import Any

import numpy as np
import torch

from tools.fuzz_models.calls import drawn_call
from tools.fuzz_models.control import control_step
from tools.fuzz_models.evaluate import REFUSED, Evaluation, Noise, Value
from tools.fuzz_models.generator import Generator
from tools.fuzz_models.precision import LARGEST, epsilon, is_float, rounded
from tools.fuzz_models.program import (
    CONTROL,
    Input,
    Program,
    Ref,
    Step,
    references,
    without_unused,
)
from tools.fuzz_models.records import (
    Record,
    native,
    record_of,
    records,
    tensors_of,
)

FLOATS = ("float32", "float32", "float32", "float64", "float16", "bfloat16")
INTS = ("int64", "int32", "int8", "int16", "uint8")
# On both sides of vectors of 16 lanes, of 64 columns and chunks, and of tiles.
EXTENTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 15, 16, 17, 24, 31, 32, 33, 48, 63, 64, 65, 127, 128, 130)
# Around the work from which kernels are parallel.
LARGE = (
    (65535,),
    (65537,),
    (256, 256),
    (255, 257),
    (16, 4096),
    (4100, 16),
    (2, 3, 11000),
    (8, 64, 129),
)
LAYOUTS = ("compact",) * 6 + ("transposed", "sliced", "expanded")
SAMPLES = 4
"""How many samples are tried before a call is of new inputs only."""


@dataclass(frozen=True)
class Style:
    """What kind of programs to draw.

    least, most: how many steps. size: most elements of an array. smooth: only what is
    differentiable, of values without ties. special: inputs with infinities and NaN. large: arrays
    around the sizes at which kernels become parallel. control: whether there is control flow.
    writes: whether arguments are written. floats: dtypes to choose the main one from.
    """

    least: int = 5
    most: int = 14
    size: int = 3000
    smooth: bool = False
    special: bool = False
    large: bool = False
    control: bool = True
    writes: bool = True
    floats: tuple[str, ...] = FLOATS
    only: tuple[str, ...] = ()


class Draw(Generator[int]):
    """A program that grows, and what its values are."""

    def __init__(self, seed: int, style: Style) -> None:
        super().__init__(seed)
        self.numpy = np.random.RandomState(seed % 2**32)
        self.style = style
        self.dtype = self.random.choice(style.floats)
        self.int_dtype = self.random.choice(INTS)
        self.quiet = Evaluation()
        self.noisy = [Evaluation(Noise(seed + k, 2.0), self.quiet.exact) for k in (1, 2)]
        self.inputs: dict[int, Input] = {}
        self.steps: list[Step] = []
        self.depth = 0
        extents = self.random.sample(EXTENTS, 3)
        if self.random.random() < 0.3:
            extents.append(1)
        if self.random.random() < 0.04:
            extents.append(0)
        self.extents = extents

    # Values.

    def value(self, ref: Ref | int) -> Value:
        """Return what a value is."""
        return self.quiet.values[ref if isinstance(ref, int) else ref.index]

    def pick(self, *fits: Callable[[Value], Any], dtype: str | None = None) -> Ref:
        """Return one of the values that fit, newer ones more often; Missing if none does."""
        return Ref(self.choose(lambda v: dtype is None or v.dtype == dtype, *fits))

    def shape(self) -> tuple[int, ...]:
        """Return a shape of the program's extents, or that of a tensor of a record's sample, as of
        an image or a matrix.
        """
        if self.style.large and self.chance(0.5):
            return self.choice(LARGE)
        if self.chance(0.5):
            return self.sample_shape()
        for _ in range(20):
            rank = self.choice((0, 1, 1, 2, 2, 2, 3, 3, 4))
            found = tuple(self.choice(self.extents) for _ in range(rank))
            if math.prod(found) <= self.style.size:
                return found
        return ()

    def sample_shape(self) -> tuple[int, ...]:
        """Return the shape of a tensor of a record's sample."""
        case = self.choice(self.choice(list(records().values())).cases)
        shapes = [tuple(x.shape) for x in tensors_of(self.choice(case.samples), "float32", 0)[1]]
        return self.choice(shapes) if shapes else ()

    def input(
        self,
        dtype: str,
        shape: tuple[int, ...],
        low: float | None = None,
        high: float | None = None,
        values: Any = None,
        layout: str = "",
    ) -> Ref:
        """Return a new input of elements from ``low`` to ``high``, or of given ones.

        Floats are multiples of 1/8, exact in every dtype, or any numbers.
        """
        count = math.prod(shape)
        data = torch.as_tensor(self.elements(dtype, count, low, high) if values is None else values)
        data = data.reshape(-1)
        if is_float(dtype):
            data = rounded(data.double(), dtype)
            if self.style.special and values is None and low is None and count and self.chance(0.5):
                places = self.numpy.randint(0, count, 2)
                data[places[0]], data[places[1]] = (
                    self.choice((math.inf, -math.inf, math.nan)) for _ in range(2)
                )
        else:
            data = data.long() if dtype != "bool" else data.bool()
        layout = layout or (self.choice(LAYOUTS) if values is None else "compact")
        given = Input(dtype, shape, data, layout)
        number = self.fresh()
        self.inputs[number] = given
        for evaluation in (self.quiet, *self.noisy):
            evaluation.add_input(number, given)
        if not self.depth:
            self.scope.append(number)
        return Ref(number)

    def elements(
        self, dtype: str, count: int, low: float | None, high: float | None
    ) -> np.ndarray[Any, Any]:
        """Return random elements in float64, int64 or bool."""
        if dtype == "bool":
            return self.numpy.randint(0, 2, count).astype(bool)
        if not is_float(dtype):
            if low is None and high is None and self.chance(0.1):
                return self.extremes(dtype, count)
            wide = low is None and self.chance(0.1)
            least = 0 if dtype == "uint8" else (-100 if wide else -8)
            bounds = (
                least if low is None else int(low),
                (100 if wide else 8) if high is None else int(high),
            )
            return self.numpy.randint(bounds[0], bounds[1] + 1, count).astype(np.int64)
        a, b = (-4.0 if low is None else low), (4.0 if high is None else high)
        if self.style.smooth or self.chance(0.35):
            return self.numpy.uniform(a, b, count)
        return self.numpy.randint(math.ceil(a * 8), math.floor(b * 8) + 1, count) / 8.0

    def extremes(self, dtype: str, count: int) -> np.ndarray[Any, Any]:
        """Return integers beside the ends of what the dtype holds, and beside 0."""
        range_ = np.iinfo(dtype)
        ends = np.array([range_.min, range_.max // 2, range_.max, 0], np.int64)
        chosen = ends[self.numpy.randint(0, 4, count)]
        around = torch.from_numpy(chosen + self.numpy.randint(-3, 4, count))
        return native(around, dtype).long().numpy()

    # Steps.

    def mark(self) -> tuple[set[int], set[int]]:
        """Return the inputs and the values that there are."""
        return set(self.inputs), set(self.scope)

    def forget(self, mark: tuple[set[int], set[int]]) -> None:
        """Forget what is new."""
        self.inputs = {i: x for i, x in self.inputs.items() if i in mark[0]}
        self.scope = [i for i in self.scope if i in mark[1]]

    def draw(self) -> bool:
        """Draw a step of a program."""
        if self.style.control and self.chance(0.04):
            return self.takes(control_step(self), self.steps)
        return self.takes(drawn_call(self, self.record()), self.steps)

    def attempt(self, draw: Callable[[], bool]) -> bool:
        """Draw a step; return whether it is kept. What is refused is not."""
        mark = self.mark()
        try:
            return super().attempt(draw)
        except REFUSED:
            self.forget(mark)
            return False

    def takes(self, step: Step | None, steps: list[Step]) -> bool:
        """Do a step and append it to others; return whether it is kept."""
        if step is None or not self.kept(step):
            return False
        steps.append(step)
        return True

    def kept(self, step: Step) -> bool:
        """Do a step; undo it, and return False, if its values are none that we want."""
        evaluations = (self.quiet, *self.noisy)
        touched = [] if step.op in CONTROL else record_of(step.op).written(step)
        cells = [e.values[r.index].cell for e in evaluations for r in touched]
        kept = [(c, c.data, c.exact) for c in cells]
        mark = self.quiet.done, len(self.quiet.exact)
        try:
            for evaluation in evaluations:
                evaluation.run(step)
            fine = all(self.wanted(i) for i in (*step.results, *(r.index for r in touched)))
        except REFUSED:
            fine = False
        if fine:
            self.scope += self._usable(step)
            return True
        for cell, data, exact in kept:
            cell.data, cell.exact = data, exact
        for evaluation in evaluations:
            evaluation.done = mark[0]
        del self.quiet.exact[mark[1] :]
        return False

    def _usable(self, step: Step) -> tuple[int, ...]:
        """Return the results that other steps may use: of what is differentiated, only the first
        float, whose gradients records check.
        """
        if not self.style.smooth:
            return step.results
        return tuple(i for i in step.results if is_float(self.value(i).dtype))[:1]

    def wanted(self, number: int) -> bool:
        """Whether a value is of moderate size and determined by what it is computed from."""
        value = self.value(number)
        limit = 400_000 if self.style.large else 2 * self.style.size
        if value.size > limit or value.ndim > 6:
            return False
        if not is_float(value.dtype):
            others = [e.values[number].tensor for e in self.noisy]
            differ = sum(int((o != value.tensor).sum()) for o in others)
            return differ * 20 <= value.size
        x = value.tensor.detach()
        finite = x.isfinite()
        if not self.style.special and not bool(finite.all()):
            return False
        if not x.numel():
            return True
        x = torch.where(finite, x, 0.0)
        largest = float(x.detach().abs().max())
        if largest > LARGEST[value.dtype]:
            return False
        tolerated = max(0.02, 16 * epsilon(value.dtype)) * max(largest, 1e-3)
        for evaluation in self.noisy:
            other = evaluation.values[number].tensor
            if not bool((other.isfinite() == finite).all()):
                return False
            if float((torch.where(finite, other, 0.0) - x).abs().max()) > tolerated:
                return False
        return True

    def record(self, elementwise: bool = False) -> Record:
        """Return a random operator."""
        found, weights = _table(self.style, elementwise)
        return self.random.choices(found, cum_weights=weights)[0]


@cache
def _table(style: Style, elementwise: bool) -> tuple[list[Record], list[float]]:
    found = [
        r
        for r in records().values()
        if (r.smooth or not style.smooth)
        and (style.writes or not r.writes)
        and (not style.only or r.op.name in style.only)
    ]
    found = [r for r in found if r.op.elementwise or not elementwise] or found
    return found, list(accumulate(r.weight for r in found))


def is_writer(step: Step) -> bool:
    """Whether a step writes one of its arguments."""
    return step.op not in CONTROL and record_of(step.op).writes


def generate(seed: int, style: Style) -> Program:
    """Return the program of a seed."""
    draw = Draw(seed, style)
    for _ in range(draw.int(1, 4)):
        kind = draw.choice(("main",) * 6 + ("int", "bool", "other"))
        if style.smooth or kind == "main":
            dtype = draw.dtype
        elif kind == "int":
            dtype = draw.int_dtype
        else:
            dtype = "bool" if kind == "bool" else draw.choice(FLOATS)
        draw.input(dtype, draw.shape())
    wanted = draw.int(style.least, style.most)
    draw.grow(wanted, 20 * wanted)
    program = Program(draw.inputs, tuple(draw.steps), _results(draw))
    return without_unused(program, is_writer)


def _depths(steps: list[Step]) -> dict[int, int]:
    """Return how many steps each value depends on."""
    behind: dict[int, set[int]] = {}
    for k, step in enumerate(steps):
        found = {k}.union(*(behind.get(i, set()) for i in references(step)))
        behind.update(dict.fromkeys(step.results, found))
    return {i: len(s) for i, s in behind.items()}


def _results(draw: Draw) -> tuple[int, ...]:
    """Return what a program returns: what nothing reads, and some values of the middle."""
    steps = draw.steps
    made = [i for s in steps for i in s.results]
    read = set().union(*(references(s) for s in steps)) if steps else set()
    ends = [i for i in made if i not in read]
    floats = [i for i in ends if is_float(draw.value(i).dtype)]
    if draw.style.smooth:
        depths = _depths(steps)
        floats.sort(key=lambda i: depths[i])
        return tuple((floats or [i for i in draw.inputs if is_float(draw.value(i).dtype)])[-1:])
    others = [i for i in made if i in read and draw.chance(0.15)]
    return tuple(dict.fromkeys(ends[-6:] + others)) or tuple(draw.inputs)[:1]
