"""Random programs: a seed in, a program out.

A step is drawn, evaluated quietly and disturbed, and kept if its values are of moderate size and
well determined: so references of the rest mean something.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

import numpy as np
import torch

from tools.fuzz_models.evaluate import Cell, Evaluation, Noise, Value
from tools.fuzz_models.precision import LARGEST, epsilon, is_float, rounded, wrapped
from tools.fuzz_models.program import (
    Block,
    Input,
    Program,
    Ref,
    Step,
    operands,
    references,
    without_unused,
)
from tools.fuzz_models.rows import ROWS
from tools.fuzz_models.rows.row import Call, Row

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


class Missing(Exception):
    """There is no operand of the kind that a call needs: another one is drawn."""


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


class Draw:
    """A program that grows, and what its values are."""

    def __init__(self, seed: int, style: Style) -> None:
        self.random = Random(seed)
        self.numpy = np.random.RandomState(seed % 2**32)
        self.style = style
        self.dtype = self.random.choice(style.floats)
        self.int_dtype = self.random.choice(INTS)
        self.quiet = Evaluation()
        self.noisy = [Evaluation(Noise(seed + k, 2.0), self.quiet.exact) for k in (1, 2)]
        self.inputs: dict[int, Input] = {}
        self.scope: list[int] = []
        self.number = 0
        self.depth = 0
        extents = self.random.sample(EXTENTS, 3)
        if self.random.random() < 0.3:
            extents.append(1)
        if self.random.random() < 0.04:
            extents.append(0)
        self.extents = extents

    missing = Missing

    @staticmethod
    def fit(small: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether a shape broadcasts to another."""
        try:
            return tuple(torch.broadcast_shapes(small, shape)) == shape
        except RuntimeError:
            return False

    # Numbers.

    def chance(self, probability: float) -> bool:
        """Return True with a probability."""
        return self.random.random() < probability

    def choice(self, values: Any) -> Any:
        """Return one of some values."""
        return self.random.choice(values)

    def int(self, low: int, high: int) -> int:
        """Return a number from ``low`` to ``high``, both included."""
        return self.random.randint(low, high)

    def number_like(self, dtype: str) -> Any:
        """Return a Python number that a dtype holds exactly."""
        if is_float(dtype):
            return self.choice((0.5, -0.5, 1.0, 0.25, 2.0, -1.5, 3, -2, 0.75))
        return self.choice((1, 2, 3)) if dtype == "uint8" else self.choice((1, 2, 3, -1, -2))

    # Values.

    def value(self, ref: Ref | int) -> Value:
        """Return what a value is."""
        return self.quiet.values[ref if isinstance(ref, int) else ref.index]

    def pick(
        self, *fits: Callable[[Value], Any], dtype: str | None = None, ndim: int | None = None
    ) -> Ref:
        """Return one of the values that fit, newer ones more often; Missing if none does."""
        found = [
            i
            for i in self.scope
            if (dtype is None or self.is_of(self.value(i), dtype))
            and (ndim is None or self.value(i).ndim == ndim)
            and all(f(self.value(i)) for f in fits)
        ]
        if not found:
            raise Missing
        back = min(int(self.random.expovariate(0.35)), len(found) - 1)
        return Ref(found[-1 - back] if self.chance(0.7) else self.choice(found))

    def is_of(self, value: Value, kind: str) -> bool:
        """Whether a value's dtype is of a kind: float, int, number, any, or a dtype."""
        if kind == "any":
            return True
        if kind == "float":
            return is_float(value.dtype)
        if kind == "int":
            return not is_float(value.dtype) and value.dtype != "bool"
        return value.dtype != "bool" if kind == "number" else value.dtype == kind

    def like(self, shape: tuple[int, ...], dtype: str, **kind: Any) -> Ref:
        """Return a value of a type: one that is there, or a new input."""
        if not kind and self.chance(0.7):
            try:
                return self.pick(lambda v: v.shape == shape, dtype=dtype)
            except Missing:
                pass
        return self.input(dtype, shape, **kind)

    def partner(self, value: Value) -> Any:
        """Return something to combine with a value, element by element: of its shape, one that
        broadcasts, or a number.
        """
        how = self.random.random()
        if how < 0.2 and value.dtype != "bool":
            return self.number_like(value.dtype)
        if how < 0.75:
            fits = (lambda v: broadcasts(v.shape, value.shape, self.style.size),)
            try:
                return self.pick(*fits, dtype=value.dtype)
            except Missing:
                pass
        shape = tuple(1 if self.chance(0.3) else d for d in value.shape)
        return self.input(value.dtype, shape[self.int(0, len(shape)) if self.chance(0.4) else 0 :])

    def shape(self, ndim: int | None = None) -> tuple[int, ...]:
        """Return a shape of the program's extents."""
        if self.style.large and self.chance(0.5) and ndim is None:
            return self.choice(LARGE)
        for _ in range(20):
            rank = self.choice((0, 1, 1, 2, 2, 2, 3, 3, 4)) if ndim is None else ndim
            found = tuple(self.choice(self.extents) for _ in range(rank))
            if math.prod(found) <= self.style.size:
                return found
        return (1,) * (ndim or 0)

    def image(self) -> tuple[int, ...]:
        """Return a shape of a batch, channels and up to three spatial axes."""
        spatial = self.choice(((7,), (16,), (33,), (5, 5), (4, 6), (8, 8), (9, 1), (3, 4, 5)))
        return (self.choice((1, 2)), self.choice((1, 2, 3, 4, 8)), *spatial)

    def input(
        self,
        dtype: str,
        shape: tuple[int, ...],
        low: float | None = None,
        high: float | None = None,
        values: Any = None,
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
        layout = self.choice(LAYOUTS) if values is None else "compact"
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
        return wrapped(torch.from_numpy(chosen + self.numpy.randint(-3, 4, count)), dtype).numpy()

    def fresh(self) -> int:
        """Return the number of a new value."""
        self.number += 1
        return self.number - 1

    # Steps.

    def step(self, row: Row) -> Step | None:
        """Draw a call and do it; None if its values are none that we want."""
        before = set(self.inputs)
        try:
            args, kwargs = row.draw(self)
        except Missing:
            return None
        step = self.tried(row, args, kwargs)
        if step is None:
            for number in set(self.inputs) - before:
                del self.inputs[number]
                if number in self.scope:
                    self.scope.remove(number)
        return step

    def tried(self, row: Row, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Step | None:
        """Do a call; None if its values are none that we want."""
        call = Step(row.op, args, kwargs)
        written = [self.value(r).cell for r in row.written(call)]
        if written and (self.depth or not self.quiet.may_write(call, row)):
            return None
        given = [self.value(r) for r in operands(call)]
        count = len(row.dtypes([v.dtype for v in given], args, kwargs)) - len(written)
        results = tuple(self.fresh() for _ in range(count))
        step = replace(call, results=results, first=bool(written) or row.op == "split")
        return step if self.kept(step) else None

    def kept(self, step: Step) -> bool:
        """Do a step; undo it, and return False, if its values are none that we want."""
        evaluations = (self.quiet, *self.noisy)
        row = ROWS.get(step.op)
        touched = [] if row is None else row.written(step)
        cells = [e.values[r.index].cell for e in evaluations for r in touched]
        kept = [(c, c.data, c.exact) for c in cells]
        mark = self.quiet.done, len(self.quiet.exact)
        for evaluation in evaluations:
            evaluation.run(step)
        if all(self.wanted(i) for i in (*step.results, *(r.index for r in touched))):
            self.scope += step.results
            return True
        for cell, data, exact in kept:
            cell.data, cell.exact = data, exact
        for evaluation in evaluations:
            evaluation.done = mark[0]
        del self.quiet.exact[mark[1] :]
        return False

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
        x = value.tensor
        finite = x.isfinite()
        if not self.style.special and not bool(finite.all()):
            return False
        if not x.numel():
            return True
        x = torch.where(finite, x, 0.0)
        largest = float(x.abs().max())
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

    def block(self, params: list[Value], results: list[Value], most: int) -> Block:
        """Draw a block: ``params`` in, values of the types of ``results`` out.

        What is computed in it is forgotten: the step that it belongs to computes it again.
        """
        numbers = tuple(self.fresh() for _ in params)
        outside = list(self.scope)
        evaluations = (self.quiet, *self.noisy)
        mark = self.quiet.done, len(self.quiet.exact)
        for evaluation in evaluations:
            for number, value in zip(numbers, params, strict=True):
                cell = Cell(value.cell.data, value.exact)
                evaluation.values[number] = Value(cell, value.shape, value.dtype, True)
        self.scope += numbers
        self.depth += 1
        steps = []
        for _ in range(20 * most):
            if len(steps) >= most:
                break
            row = self.row()
            step = None if row.writes or row.constant else self.step(row)
            if step is not None:
                steps.append(step)
        inner = [i for i in self.scope if i not in outside]
        self.depth -= 1
        found = []
        for number, wanted in zip(numbers, results, strict=False):
            alike = [
                i
                for i in inner
                if self.value(i).shape == wanted.shape and self.value(i).dtype == wanted.dtype
            ]
            found.append(self.choice(alike[-3:]) if alike else number)
        self.scope = outside
        for evaluation in evaluations:
            evaluation.done = mark[0]
        del self.quiet.exact[mark[1] :]
        return Block(numbers, tuple(steps), tuple(found))

    def control(self) -> Step | None:
        """Draw a step of control flow; None if there is nothing for it."""
        before = set(self.inputs)
        kind = self.choice(("cond", "cond", "while_loop", "scan"))
        try:
            step = getattr(self, f"_{kind}")()
        except Missing:
            return None
        if self.kept(step):
            return step
        for number in set(self.inputs) - before:
            del self.inputs[number]
            self.scope = [i for i in self.scope if i != number]
        return None

    def _operands(self, count: int) -> list[Ref]:
        return [self.pick(lambda v: v.size <= 512) for _ in range(count)]

    def _cond(self) -> Step:
        try:
            pred = self.pick(lambda v: v.shape == () and v.exact, dtype="bool")
        except Missing:
            pred = self.input("bool", ())
        carried = self._operands(self.int(1, 2))
        types = [self.value(o) for o in carried]
        blocks = tuple(self.block(types, types, self.int(0, 3)) for _ in range(2))
        return Step("cond", (pred, *carried), {}, tuple(self.fresh() for _ in carried), blocks)

    def _while_loop(self) -> Step:
        carried = self._operands(self.int(1, 2))
        types = [self.value(o) for o in carried]
        body = self.block(types, types, self.int(1, 3))
        results = tuple(self.fresh() for _ in carried)
        return Step("while_loop", (self.int(0, 3), *carried), {}, results, (body,))

    def _scan(self) -> Step:
        xs = self.pick(lambda v: v.ndim >= 1 and 1 <= v.shape[0] <= 6 and 0 < v.size <= 512)
        (init,) = self._operands(1)
        state, rows = self.value(init), self.value(xs)
        row = Value(Cell(rows.tensor[0].reshape(-1), rows.exact), rows.shape[1:], rows.dtype)
        body = self.block([state, row], [state, row], self.int(1, 3))
        kwargs = {"reverse": True} if self.chance(0.3) else {}
        return Step("scan", (init, xs), kwargs, (self.fresh(), self.fresh()), (body,))

    def row(self) -> Row:
        """Return a random operator."""
        rows, weights = _table(self.style)
        return self.random.choices(rows, cum_weights=weights)[0]


_TABLES: dict[Style, tuple[list[Row], list[float]]] = {}


def _table(style: Style) -> tuple[list[Row], list[float]]:
    found = _TABLES.get(style)
    if found is None:
        rows = [
            r
            for _, r in sorted(ROWS.items())
            if (r.smooth or not style.smooth)
            and (style.writes or not r.writes)
            and (not style.only or r.op in style.only)
        ]
        total, weights = 0.0, []
        for row in rows:
            total += row.weight
            weights.append(total)
        found = _TABLES.setdefault(style, (rows, weights))
    return found


def broadcasts(a: tuple[int, ...], b: tuple[int, ...], limit: int) -> bool:
    """Whether shapes broadcast to one of at most ``limit`` elements."""
    try:
        return math.prod(torch.broadcast_shapes(a, b)) <= limit
    except RuntimeError:
        return False


def is_writer(step: Step) -> bool:
    """Whether a step writes one of its arguments."""
    row = ROWS.get(step.op)
    return row is not None and bool(row.writes)


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
        draw.input(dtype, draw.image() if draw.chance(0.12) else draw.shape())
    steps: list[Step] = []
    wanted = draw.int(style.least, style.most)
    for _ in range(20 * wanted):
        if len(steps) >= wanted:
            break
        control = style.control and draw.chance(0.04)
        step = draw.control() if control else draw.step(draw.row())
        if step is not None:
            steps.append(step)
    return without_unused(Program(draw.inputs, tuple(steps), _results(draw, steps)), is_writer)


def _depths(steps: list[Step]) -> dict[int, int]:
    """Return how many steps each value depends on."""
    behind: dict[int, set[int]] = {}
    for k, step in enumerate(steps):
        found = {k}.union(*(behind.get(i, set()) for i in references(step)))
        behind.update(dict.fromkeys(step.results, found))
    return {i: len(s) for i, s in behind.items()}


def _results(draw: Draw, steps: list[Step]) -> tuple[int, ...]:
    """Return what a program returns: what nothing reads, and some values of the middle."""
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


__all__ = ["Call", "Draw", "Missing", "Style", "broadcasts", "generate"]
