"""The meaning of a program: its steps on torch tensors in float64 and int64.

An evaluation may disturb what it computes: every operand and result of a step that rounds is moved
by some units in the last place of its dtype. How far a few disturbed evaluations lie from the quiet
one is how far a sound implementation may be from it. Where that is no bound, beside a jump of a
function say, they lie far apart. What has to be exact is not disturbed: `is_exact`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from meta.base.errors import MetaError
from meta.ir.types import TensorType
from meta.op.core.call import CallValues, View
from tools.fuzz_models.precision import BITS, epsilon, grain, is_float, representable, rounded
from tools.fuzz_models.program import (
    Block,
    Input,
    Program,
    Ref,
    Step,
    references,
    tensor_of,
)
from tools.fuzz_models.program import operands as operands_of
from tools.fuzz_models.records import Record, native, outputs, record_of


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
    def type(self) -> TensorType:
        """Its type."""
        return TensorType(self.shape, self.dtype)

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

    def shake(self, x: torch.Tensor) -> torch.Tensor:
        """Return random numbers from -1 to 1."""
        return 2 * torch.rand(x.shape, dtype=torch.float64, generator=self.generator) - 1

    def unit(self, dtype: str, inner: bool = False) -> float:
        """Return by how much a 1 is moved; ``inner``: of what is computed inside of an operator,
        in float32 at least, of which ATen's exponentials of half precision are good to 5e-5.
        """
        own = HALF_INSIDE if inner and "16" in dtype else epsilon(dtype)
        return max(own, self.least) * self.amplitude

    def __call__(self, x: torch.Tensor, dtype: str, inner: Any = 0.0) -> torch.Tensor:
        """Return x moved by units of its own size, and of ``inner``: of the size of numbers that
        cancel inside of an operator, as 1 + erf(x) has them.
        """
        moved = x * (1 + self.unit(dtype) * self.shake(x))
        error = self.unit(dtype, True) * torch.as_tensor(inner).detach().expand(x.shape)
        shake = self.shake(x)
        # What may be of either sign may be 0.
        none = (shake > 0.5) & (moved.abs() <= error)
        return torch.where(none, 0.0, moved + error * shake)


HALF_INSIDE = 6e-5


class _Shaken(torch.autograd.Function):
    """The identity, whose gradient g is moved by units of its own size and of what ``sizes`` has:
    the largest elements of the gradients that a step was given and gives.
    """

    @staticmethod
    def forward(
        ctx: Any, x: torch.Tensor, noise: Noise, unit: float, sizes: list[float], cancels: bool
    ) -> torch.Tensor:
        ctx.noise, ctx.unit, ctx.sizes, ctx.cancels = noise, unit, sizes, cancels
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> Any:
        ctx.sizes.append(float(g.abs().nan_to_num(0, 0, 0).max()) if g.numel() else 0.0)
        size = g.abs() + (max(ctx.sizes) if ctx.cancels else 0.0)
        return g + ctx.unit * size * ctx.noise.shake(g), None, None, None, None


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
        cell = Cell(native(tensor, given.dtype).reshape(-1).clone(), True)
        own = not tensor.is_contiguous()
        self.values[number] = Value(cell, given.shape, given.dtype, own)

    def run(self, step: Step) -> None:
        """Do one step."""
        if step.op in _CONTROL:
            _CONTROL[step.op](self, step)
            for number in references(step):
                self.values[number].cell.fixed = True
        else:
            self._call(step, record_of(step.op))

    def infer(self, step: Step) -> CallValues:
        """Return what is known of a step from the types of its operands."""
        return record_of(step.op).infer(step, lambda r: self.values[r.index].type)

    def _call(self, step: Step, record: Record) -> None:
        operands = [self.values[r.index] for r in operands_of(step)]
        if not self.may_write(step, record):
            raise AssertionError("an argument is written that must not be")
        call = self.infer(step)
        types = outputs(call)
        if types is None or len(types) != len(step.results):
            raise AssertionError("a step has results of other types")
        written = record.written(step)
        dtypes = [t.dtype for t in types] + [self.values[r.index].dtype for r in written]
        shapes = [t.static_shape for t in types] + [self.values[r.index].shape for r in written]
        if self.noise is None:
            found = _finished(record.compute(step, self._quiet), dtypes, shapes)
            exact = is_exact(record, step, operands, found, dtypes)
            self.exact.append(exact)
        else:
            exact = self.exact[self.done]
            found = self._noisily(record, step, dtypes, shapes, exact)
        self.done += 1
        view = call.out.slot if isinstance(call.out, View) else None
        constant = not operands or record.op.view_elsewhere
        for number, tensor, dtype in zip(step.results, found, dtypes, strict=False):
            if view is not None:
                of = operands[0]
                self.values[number] = Value(of.cell, tuple(tensor.shape), dtype, of.own)
            else:
                cell = Cell(tensor.reshape(-1), exact)
                self.values[number] = Value(cell, tuple(tensor.shape), dtype, constant)
        for ref, tensor in zip(written, found[len(types) :], strict=True):
            value = self.values[ref.index]
            value.cell.data, value.cell.exact = tensor.reshape(-1), exact

    def may_write(self, step: Step, record: Record) -> bool:
        """Whether a step may write what it writes: no memory that it is given twice, since what it
        means then is not said, and nothing that is fixed.
        """
        written = [self.values[r.index] for r in record.written(step)]
        cells = [self.values[r.index].cell for r in operands_of(step)] if written else []
        return not any(v.fixed or sum(c is v.cell for c in cells) > 1 for v in written)

    def _quiet(self, ref: Ref) -> torch.Tensor:
        return self.values[ref.index].tensor

    def _size(self, ref: Ref) -> torch.Tensor:
        x = self._quiet(ref)
        return x.abs() if x.is_floating_point() else x

    def _noisily(
        self,
        record: Record,
        step: Step,
        dtypes: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        exact: bool,
    ) -> list[torch.Tensor]:
        noise = self.noise
        assert noise is not None
        exact = exact or record.moves
        sizes: list[float] = []
        plain = record.degree and record.op.elementwise

        def backwards(x: torch.Tensor, dtype: str, cancels: bool) -> torch.Tensor:
            if not (noise.backwards and x.requires_grad):
                return x
            return _Shaken.apply(x, noise, noise.unit(dtype), sizes, cancels)  # type: ignore

        def given(ref: Ref) -> torch.Tensor:
            value = self.values[ref.index]
            if not is_float(value.dtype):
                return value.tensor
            x = value.tensor if exact else noise(value.tensor, value.dtype)
            return backwards(x, value.dtype, not (record.moves or plain))

        found = _finished(record.compute(step, given), dtypes, shapes)
        if not exact:
            inner = self._inner(record, step, found)
            found = [
                noise(t, d, i) if is_float(d) else t
                for t, d, i in zip(found, dtypes, inner, strict=True)
            ]
        return [backwards(t, d, False) for t, d in zip(found, dtypes, strict=True)]

    def _inner(self, record: Record, step: Step, found: list[torch.Tensor]) -> list[Any]:
        """Return how large the numbers are that cancel inside of a step, for each result.

        Of products that are added, these; else the operands and 1, of one element if the operator
        is elementwise, and if not the results: an element of a determinant's gradient is small
        where it is the difference of numbers as large as the others.
        """
        count = len(found)
        floats = [
            v.tensor.detach().abs().nan_to_num(0, 0, 0)
            for v in (self.values[r.index] for r in operands_of(step))
            if is_float(v.dtype)
        ]
        if record.degree and record.op.elementwise:
            return [0.0] * count
        if record.degree:
            with torch.no_grad():
                sizes = record.compute(step, self._size)
            return [t.abs().double().nan_to_num(0, 0, 0) for t in sizes]
        if record.op.elementwise:
            return [1.0 + sum(floats, torch.zeros(()))] * count
        floats += [t.detach().abs().nan_to_num(0, 0, 0) for t in found if t.is_floating_point()]
        return [1.0 + max((float(x.max()) for x in floats if x.numel()), default=0.0)] * count

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


def _finished(
    found: list[torch.Tensor], dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> list[torch.Tensor]:
    """Return results as the dtypes hold them: integers wrap, floats stay in float64."""
    if [tuple(t.shape) for t in found] != list(shapes):
        raise AssertionError("an oracle gives other shapes than the type function")
    return [native(t, d) for t, d in zip(found, dtypes, strict=True)]


def is_exact(
    record: Record,
    step: Step,
    operands: Sequence[Value],
    found: Sequence[torch.Tensor],
    dtypes: Sequence[str],
) -> bool:
    """Whether a kernel has to give these very elements."""
    floats = [(t.detach(), d) for t, d in zip(found, dtypes, strict=True) if is_float(d)]
    if not all(v.exact for v in operands) or not all(representable(t, d) for t, d in floats):
        return False
    if not floats or record.moves:
        return True
    if not record.degree:
        return False
    values = [v.tensor.detach() for v in operands if v.tensor.is_floating_point()]
    numbers = [a for a in (*step.args, *step.kwargs.values()) if isinstance(a, float)]
    values += [torch.tensor([n], dtype=torch.float64) for n in numbers]
    unit = min((grain(x) for x in values), default=0.0) ** record.degree
    largest = max((float(x.abs().max()) for x in values if x.numel()), default=0.0)
    terms = 1 if record.op.elementwise else max((x.numel() for x in values), default=1)
    most = (largest * max(len(values), 1)) ** record.degree * terms
    return unit > 0 and all(most <= unit * 2.0 ** BITS[d] for _, d in floats)


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


REFUSED = (ArithmeticError, AssertionError, LookupError, MetaError, RuntimeError, ValueError)
"""What type functions and oracles raise for arguments that do not fit."""
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
