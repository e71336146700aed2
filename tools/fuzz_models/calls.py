"""How a call of an operator is drawn: a sample of its record, with values of the program in place
of its tensors, and their extents in place of the sample's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.ir.types import TupleType
from meta.op.core import tree
from meta.testing.case import LEAST, MOST, Spec
from meta.testing.shapes import with_shapes
from tools.fuzz_models.evaluate import Value
from tools.fuzz_models.generator import Missing, renamed_extents
from tools.fuzz_models.precision import is_float
from tools.fuzz_models.program import Ref, Step, operands
from tools.fuzz_models.records import DTYPES, Record, native, outputs, tensors_of

if TYPE_CHECKING:
    from tools.fuzz_models.draw import Draw

SAMPLES = 4
"""How many samples are tried before a call is of new inputs only."""


def drawn_call(draw: Draw, record: Record) -> Step | None:
    """Draw the arguments of a call, and its results; None if there may be no such call here.

    Raises Missing, and what type functions and oracles raise for arguments that do not fit.
    """
    smooth = draw.style.smooth
    cases = [(i, c) for i, c in enumerate(record.cases) if c.grad or not smooth]
    number, case = draw.choice(cases)
    fitting = [one for one in case.samples if not smooth or (one.has_floats and one.is_smooth)]
    if not fitting:
        return None
    dtypes = case.dtypes or ("float32",)
    dtype = draw.dtype if draw.dtype in dtypes and draw.chance(0.8) else draw.choice(dtypes)
    for _ in range(SAMPLES):
        one = draw.choice(fitting)
        specs, tensors, structure = tensors_of(one, dtype, draw.int(0, 1 << 30))
        if not all(FROM_TORCH[x.dtype] in DTYPES for x in tensors):
            return None
        around, extents = _around(draw, record, specs, tensors)
        if around:
            break
    if extents:
        one = with_shapes(one, lambda shape: tuple(extents.get(n, n) for n in shape))
        specs, tensors, structure = tensors_of(one, dtype, draw.int(0, 1 << 30))
    leaves = [
        around[i] if i in around else _operand(draw, record, spec, x, around)
        for i, (spec, x) in enumerate(zip(specs, tensors, strict=True))
    ]
    args, kwargs = tree.unflatten(structure, leaves)
    if extents and draw.chance(0.5):
        args = tuple(_with_extents(a, extents) for a in args)
        kwargs = {k: _with_extents(a, extents) for k, a in kwargs.items()}
    step = Step(record.op.name, args, kwargs, case=number)
    given = [draw.value(r) for r in operands(step)]
    found = draw.quiet.infer(step)
    types = outputs(found)
    written = bool(record.written(step))
    if types is None or (written and (draw.depth or not draw.quiet.may_write(step, record))):
        return None
    if any(math.prod(t.static_shape) > 2 * max(draw.style.size, 400_000 * draw.style.large)
           for t in types):  # fmt: skip
        return None
    if any(is_float(t.dtype) for t in types) and not _takes_special(record, given):
        return None  # an infinity may be multiplied by 0, or is not
    unpack = written or isinstance(found.out, TupleType)
    return replace(step, results=tuple(draw.fresh() for _ in types), unpack=unpack)


def _takes_special(record: Record, given: list[Value]) -> bool:
    """Whether operands are finite, or infinities and NaN mean the same to every kernel."""
    finite = all(bool(v.tensor.isfinite().all()) for v in given)
    return finite or record.moves or bool(record.degree and record.op.elementwise)


def _around(
    draw: Draw, record: Record, specs: list[Spec], tensors: list[torch.Tensor]
) -> tuple[dict[int, Ref], dict[int, int]]:
    """Return a value in place of one of a sample's tensors, and what becomes of the extents."""
    free = [i for i, s in enumerate(specs) if not s.numbers]
    if not free or (len(free) < len(specs) and not record.op.elementwise):
        return {}, {}
    at = draw.choice(free)
    spec, x = specs[at], tensors[at]
    for _ in range(3):
        fits = [lambda v: _within(v, spec) and not (record.writes and v.fixed)]
        if not record.op.elementwise:
            fits.append(lambda v: v.ndim == x.ndim and v.size <= draw.style.size)
        try:
            ref = draw.pick(*fits, dtype=FROM_TORCH[x.dtype])
        except Missing:
            return {}, {}
        shape = draw.value(ref).shape
        if record.op.elementwise:
            return {at: ref}, {}
        extents = renamed_extents(x.shape, shape)
        if extents is not None:
            return {at: ref}, {old: new for old, new in extents.items() if old != new}
    return {}, {}


def _operand(
    draw: Draw, record: Record, spec: Spec, x: torch.Tensor, around: dict[int, Ref]
) -> Ref:
    """Return a value in place of a sample's tensor: one that is there, or a new input."""
    dtype, shape = FROM_TORCH[x.dtype], tuple(x.shape)
    wide = record.op.elementwise and bool(around)
    if wide:
        shape = draw.value(next(iter(around.values()))).shape

    def fits(v: Value) -> bool:
        if record.writes and v.fixed:
            return False
        right = broadcasts(v.shape, shape, draw.style.size) if wide else v.shape == shape
        return right and _within(v, spec)

    if not spec.numbers and draw.chance(0.7):
        try:
            return draw.pick(fits, dtype=dtype)
        except Missing:
            pass
    layout = "compact" if record.writes else ""
    if wide:
        shape = tuple(1 if draw.chance(0.3) else d for d in shape)
        shape = shape[draw.int(0, len(shape)) if draw.chance(0.4) else 0 :]
    elif spec.numbers or not (is_float(dtype) or dtype == "bool"):
        values = native(x, dtype)
        return draw.input(dtype, shape, values=values, layout=layout)
    low, high = spec.bounds
    if (low is None) != (high is None):
        low, high = (LEAST if low is None else low), (MOST if high is None else high)
    return draw.input(dtype, shape, low, high, layout=layout)


def _within(value: Value, spec: Spec) -> bool:
    """Whether the elements of a value lie between the bounds that a record states."""
    x, (low, high) = value.tensor, spec.bounds
    above = low is None or bool((x >= low).all())
    return above and (high is None or bool((x <= high).all()))


def _with_extents(value: Any, extents: dict[int, int]) -> Any:
    """Return an argument with other extents in its tuples."""
    if isinstance(value, tuple):
        return tuple(extents.get(v, v) if type(v) is int else v for v in value)
    return value


def broadcasts(a: tuple[int, ...], b: tuple[int, ...], limit: int) -> bool:
    """Whether shapes broadcast to one of at most ``limit`` elements."""
    try:
        return math.prod(torch.broadcast_shapes(a, b)) <= limit
    except RuntimeError:
        return False
