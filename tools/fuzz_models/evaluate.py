"""The meaning of a program: its steps on torch tensors in float64 and int64.

An evaluation may disturb what it computes: every operand and result of a step that rounds is moved
by some units in the last place of its dtype. How far a few disturbed evaluations lie from the quiet
one is how far a sound implementation may be from it. Where that is no bound, beside a jump of a
function say, they lie far apart. What has to be exact is not disturbed: `Row.rounding`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from tools.fuzz_models.precision import (
    epsilon,
    grain,
    holds_sums,
    is_float,
    representable,
    rounded,
    wrapped,
)
from tools.fuzz_models.program import (
    Block,
    Input,
    Program,
    Ref,
    Step,
    references,
    substitute,
    tensor_of,
)
from tools.fuzz_models.program import operands as operands_of
from tools.fuzz_models.rows import ROWS, Row
from tools.fuzz_models.rows.row import Call


@dataclass
class Cell:
    """Memory that values share: its elements, and whether these must be exact.

    fixed: whether it must not be written: it was given to control flow, whose results may share it.
    """

    data: torch.Tensor
    exact: bool
    fixed: bool = False


@dataclass(frozen=True)
class Value:
    """A value of a program. ``own``: whether its memory is the program's, or not compact."""

    cell: Cell
    shape: tuple[int, ...]
    dtype: str
    own: bool = False

    @property
    def fixed(self) -> bool:
        """Whether it must not be written."""
        return self.own or self.cell.fixed

    @property
    def tensor(self) -> torch.Tensor:
        """The elements, in float64, int64 or bool."""
        return self.cell.data.reshape(self.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.cell.data.numel()

    @property
    def exact(self) -> bool:
        """Whether a run must give these very elements."""
        return self.cell.exact


class Noise:
    """Moves floats by up to ``amplitude`` units in the last place of their dtype.

    floor: a dtype whose unit counts at least, as of the arithmetic under autocast.
    backwards: whether gradients are moved, too, at each step that they pass, exact or not.
    """

    def __init__(
        self, seed: int, amplitude: float, floor: str | None = None, backwards: bool = False
    ) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.amplitude = amplitude
        self.least = 0.0 if floor is None else epsilon(floor)
        self.backwards = backwards

    def __call__(self, x: torch.Tensor, dtype: str, inner: Any = None) -> torch.Tensor:
        """Return x moved by units of its own size, and of ``inner``: see `Row`."""
        unit = max(epsilon(dtype), self.least) * self.amplitude
        shake = 2 * torch.rand(x.shape, dtype=torch.float64, generator=self.generator) - 1
        moved = x * (1 + unit * shake)
        if inner is None:
            return moved
        if isinstance(inner, tuple):
            of, inner = inner
            unit = unit**2 if of == "squared" else epsilon(of) * self.amplitude
        other = 2 * torch.rand(x.shape, dtype=torch.float64, generator=self.generator) - 1
        error = unit * torch.as_tensor(inner).detach().expand(x.shape)
        # What may be of either sign may be 0.
        none = (other > 0.5) & (moved.abs() <= error)
        return torch.where(none, 0.0, moved + error * other)

    def of_gradient(self, x: torch.Tensor, dtype: str, slope: torch.Tensor | None) -> torch.Tensor:
        """Return x with a gradient that is moved by units of its own size, and of ``slope``'s."""
        error = self.shake(x) if slope is None else self.shake(x) + slope
        return x + epsilon(dtype) * self.amplitude * error

    def shake(self, x: Any) -> Any:
        """Return 0, whose derivative by each element of x is a random number from -1 to 1."""
        if not isinstance(x, torch.Tensor):
            return 0.0
        random = torch.rand(x.shape, dtype=torch.float64, generator=self.generator)
        return (x - x.detach()) * (2 * random - 1)


@dataclass
class Evaluation:
    """The values of a program, after as many steps as were run.

    exact: for each rounding so far, whether it is exact: the quiet evaluation decides, and the
    others, which are given its list, follow.
    """

    noise: Noise | None = None
    exact: list[bool] = field(default_factory=list)
    values: dict[int, Value] = field(default_factory=dict)
    done: int = 0

    def add_input(self, number: int, given: Input) -> None:
        """Take in an argument."""
        tensor = tensor_of(given)
        data = tensor.double() if is_float(given.dtype) else tensor
        data = data if data.dtype == torch.bool or data.is_floating_point() else data.long()
        cell = Cell(data.reshape(-1).clone(), True)
        own = not tensor.is_contiguous()
        self.values[number] = Value(cell, given.shape, given.dtype, own)

    def run(self, step: Step) -> None:
        """Do one step."""
        if step.op in _CONTROL:
            _CONTROL[step.op](self, step)
            for number in references(step):
                self.values[number].cell.fixed = True
        else:
            self._call(step, ROWS[step.op])

    def _call(self, step: Step, row: Row) -> None:
        operands = [self.values[r.index] for r in operands_of(step)]
        if not self.may_write(step, row):
            raise AssertionError("an argument is written that must not be")
        dtypes = row.dtypes([v.dtype for v in operands], step.args, step.kwargs)
        if self.noise is None:
            found, exact = self._quietly(row, step, operands, dtypes)
            self.exact.append(exact)
        else:
            exact = self.exact[self.done]
            found = self._noisily(row, step, dtypes, exact)
        self.done += 1
        written = row.written(step)
        results, contents = found[: len(step.results)], found[len(step.results) :]
        for number, tensor, dtype in zip(step.results, results, dtypes, strict=False):
            self._bind(number, tensor, dtype, exact, row, operands)
        for ref, tensor in zip(written, contents, strict=True):
            value = self.values[ref.index]
            value.cell.data, value.cell.exact = tensor.reshape(-1), exact

    def may_write(self, step: Step, row: Row) -> bool:
        """Whether a step may write what it writes: no memory that it is given twice, since what it
        means then is not said, and nothing that is fixed.
        """
        written = [self.values[r.index] for r in row.written(step)]
        cells = [self.values[r.index].cell for r in operands_of(step)] if written else []
        return not any(v.fixed or sum(c is v.cell for c in cells) > 1 for v in written)

    def _bind(
        self,
        number: int,
        tensor: torch.Tensor,
        dtype: str,
        exact: bool,
        row: Row,
        operands: list[Value],
    ) -> None:
        shape = tuple(tensor.shape)
        if row.view:
            first = operands[0]
            self.values[number] = Value(first.cell, shape, dtype, first.own)
            return
        self.values[number] = Value(Cell(tensor.reshape(-1), exact), shape, dtype, row.constant)

    def _quietly(
        self, row: Row, step: Step, operands: list[Value], dtypes: Sequence[str]
    ) -> tuple[list[torch.Tensor], bool]:
        found = _finished(row.compute(*self._arguments(step, lambda v: v.tensor)), dtypes)
        if not all(v.exact for v in operands):
            return found, False
        if row.rounding == "none":
            return found, True
        if row.rounding == "round":
            fits = (representable(t, d) for t, d in zip(found, dtypes, strict=True) if is_float(d))
            return found, all(fits)
        if row.rounding == "always" or not any(map(is_float, dtypes)):
            return found, not any(map(is_float, dtypes))
        unit = 1.0
        for g in (grain(v.tensor) for v in operands if is_float(v.dtype)):
            unit = min(unit, g) if row.rounding == "add" else unit * g
        unit = min([unit, *(grain(t) for t in found)])  # numbers among the operands, too
        largest = row.magnitude or row.compute
        absolute = self._arguments(
            step, lambda v: v.tensor.abs() if is_float(v.dtype) else v.tensor
        )
        sizes = _finished(largest(*absolute), dtypes)
        return found, all(
            holds_sums(t, unit, d) for t, d in zip(sizes, dtypes, strict=True) if is_float(d)
        )

    def _noisily(
        self, row: Row, step: Step, dtypes: Sequence[str], exact: bool
    ) -> list[torch.Tensor]:
        noise = self.noise
        assert noise is not None
        if exact or row.rounding == "none":
            plain = self._arguments(step, lambda v: v.tensor)
            return self._backwards(row, plain, _finished(row.compute(*plain), dtypes), dtypes)

        def shaken(v: Value) -> torch.Tensor:
            return noise(v.tensor, v.dtype) if is_float(v.dtype) else v.tensor

        given = (lambda v: v.tensor) if row.rounding == "round" else shaken
        args, kwargs = self._arguments(step, given)
        found = _finished(row.compute(args, kwargs), dtypes)
        inner = None if row.inner is None else row.inner(*args, **kwargs)
        inners = inner if isinstance(inner, list) else [inner] * len(found)
        for i, one in enumerate(inners):
            if isinstance(one, tuple) and one[0] == "operand":
                inners[i] = self.values[operands_of(step)[0].index].dtype, one[1]
        moved = [
            noise(t, d, i) if is_float(d) else t
            for t, d, i in zip(found, dtypes, inners, strict=True)
        ]
        return self._backwards(row, (args, kwargs), moved, dtypes)

    def _backwards(
        self, row: Row, call: Call, found: list[torch.Tensor], dtypes: Sequence[str]
    ) -> list[torch.Tensor]:
        """Move the gradients that pass a step."""
        noise = self.noise
        if noise is None or not noise.backwards:
            return found
        slope = None if row.slope is None else row.slope(noise.shake, *call[0], **call[1])
        return [
            noise.of_gradient(t, d, slope) if t.requires_grad else t
            for t, d in zip(found, dtypes, strict=True)
        ]

    def _arguments(self, step: Step, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        def change(ref: Ref) -> Any:
            return given(self.values[ref.index])

        args = tuple(substitute(a, change) for a in step.args)
        return args, {k: substitute(v, change) for k, v in step.kwargs.items()}

    # Control flow.

    def block(self, block: Block, operands: Sequence[Value]) -> list[Value]:
        """Run a block; return its results."""
        for number, value in zip(block.params, operands, strict=True):
            self.values[number] = value
        for step in block.steps:
            self.run(step)
        return [self.values[i] for i in block.results]

    def _cond(self, step: Step) -> None:
        pred, *operands = (self.values[a.index] for a in step.args)
        then, other = step.blocks
        chosen = then if bool(pred.tensor) else other
        self._name(step, self.block(chosen, operands))

    def _while(self, step: Step) -> None:
        (body,), (turns, *start) = step.blocks, step.args
        state = [self.values[a.index] for a in start]
        for _ in range(turns):
            state = self.block(body, state)
        self._name(step, state)

    def _scan(self, step: Step) -> None:
        (body,), (init, rows) = step.blocks, step.args
        state, xs = self.values[init.index], self.values[rows.index]
        order = range(xs.shape[0])
        if step.kwargs.get("reverse"):
            order = order[::-1]
        stacked: dict[int, Value] = {}
        for i in order:
            row = Value(Cell(xs.tensor[i].reshape(-1), xs.exact), xs.shape[1:], xs.dtype)
            state, stacked[i] = self.block(body, [state, row])
        ys = [stacked[i] for i in range(xs.shape[0])]
        data = torch.stack([y.tensor for y in ys])
        joined = Cell(data.reshape(-1), all(y.exact for y in ys))
        self._name(step, [state, Value(joined, tuple(data.shape), ys[0].dtype)])

    def _name(self, step: Step, values: Sequence[Value]) -> None:
        """What control flow gives may share memory or not: nobody may write to it."""
        for number, value in zip(step.results, values, strict=True):
            own = Cell(value.cell.data, value.exact)
            self.values[number] = Value(own, value.shape, value.dtype, True)


_CONTROL = {
    "cond": Evaluation._cond,
    "while_loop": Evaluation._while,
    "scan": Evaluation._scan,
}


def _finished(found: Any, dtypes: Sequence[str]) -> list[torch.Tensor]:
    """Return results as the dtypes hold them: integers wrap, floats stay in float64."""
    tensors = list(found) if isinstance(found, tuple | list) else [found]
    if len(tensors) != len(dtypes):
        raise AssertionError(f"a reference gives {len(tensors)} results, not {len(dtypes)}")
    return [_held(t, d) for t, d in zip(tensors, dtypes, strict=True)]


def _held(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    if is_float(dtype):
        return tensor.double()
    return tensor.bool() if dtype == "bool" else wrapped(tensor.long(), dtype)


def evaluate(
    program: Program, noise: Noise | None = None, exact: list[bool] | None = None
) -> Evaluation:
    """Evaluate a whole program."""
    found = Evaluation(noise, [] if exact is None else exact)
    for number, given in program.inputs.items():
        found.add_input(number, given)
    for step in program.steps:
        found.run(step)
    return found


@dataclass(frozen=True)
class Expected:
    """What an array must be: its type, its elements, and how far each may be off."""

    dtype: str
    value: torch.Tensor
    bound: torch.Tensor


SLACK = 2.0
ULPS = 4.0
TINY = {"float64": 1e-307, "float32": 1.2e-38, "float16": 2.5e-7, "bfloat16": 1.2e-38}


def expected(
    values: Sequence[Value], noisy: Sequence[Sequence[Value]], ulps: float = ULPS
) -> list[Expected]:
    """Return what values must be, given those of disturbed evaluations."""
    return [_expected(v, [other[i] for other in noisy], ulps) for i, v in enumerate(values)]


def _expected(value: Value, noisy: Sequence[Value], ulps: float) -> Expected:
    quiet = value.tensor.detach()
    others = [v.tensor.detach() for v in noisy]
    return bounded(quiet, others, value.dtype, value.exact, ulps)


def bounded(
    quiet: torch.Tensor, others: Sequence[torch.Tensor], dtype: str, exact: bool, ulps: float = ULPS
) -> Expected:
    """Return a value and its bound."""
    free = torch.zeros(quiet.shape, dtype=torch.bool)
    if not is_float(dtype):
        for other in others:
            free |= other != quiet
        bound = torch.zeros(quiet.shape, dtype=torch.float64)
        return Expected(dtype, quiet, bound.masked_fill(free, torch.inf))
    spread = torch.zeros(quiet.shape, dtype=torch.float64)
    finite = quiet.isfinite()
    for other in others:
        same = torch.where(
            finite, other.isfinite(), (other == quiet) | (other.isnan() & quiet.isnan())
        )
        free |= ~same
        spread = torch.maximum(spread, torch.where(finite & same, (other - quiet).abs(), 0.0))
    if exact:
        bound = spread * 0
    else:
        unit = ulps * epsilon(dtype)
        bound = SLACK * spread + unit * quiet.abs().nan_to_num(0, 0, 0) + 4 * TINY[dtype]
        largest = torch.finfo(getattr(torch, dtype)).max
        free |= finite & (quiet.abs() + bound > largest)
    return Expected(
        dtype, quiet if exact else rounded(quiet, dtype), bound.masked_fill(free, torch.inf)
    )


def arguments_of(inputs: Mapping[int, Input], evaluation: Evaluation) -> list[Value]:
    """Return what the arguments hold after a run."""
    return [evaluation.values[i] for i in inputs]
