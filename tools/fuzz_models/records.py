"""The operators that random models are made of, and what is known of each, from what it states.

The `OpCase` records of tests/op give calls and their meaning, the type function the types of the
results, the schema what is written, and the registered converters how common an operator is. How an
operator rounds is found by trying its oracle on the records' samples: `Record.moves` and
`Record.degree`. So an operator with a record is drawn, and nothing else names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

import meta.frontend.aten
import meta.frontend.onnx
import meta.frontend.relax
import meta.frontend.relay  # noqa: F401  (operators know their converters)
from meta.base.device import Device
from meta.base.dtype import FLOATS, FROM_TORCH, TO_TORCH
from meta.base.registry import OPERATORS
from meta.ir.types import TensorType, TupleType
from meta.op.core import Op, tree
from meta.op.core.call import CallValues, View
from meta.testing.case import OpCase, Sample, Spec
from meta.testing.records import announced_cases
from tests.op.records import CASES
from tools.fuzz_models.precision import INTS
from tools.fuzz_models.program import Step, refs_in, substitute

DTYPES = (*FLOATS, *INTS, "bool")
"""The dtypes of programs."""
CPU = Device("cpu")
TRIED = 8
"""Samples of a record that show how its operator rounds."""


@dataclass(frozen=True)
class Record:
    """One operator: its records that have samples."""

    op: Op
    cases: tuple[OpCase, ...]

    @property
    def weight(self) -> float:
        """How often it is drawn: what several systems have is common, and most steps of a
        program are elementwise.
        """
        systems = {name.split()[0] for name in self.op.aspects.converters}
        return (1 + len(systems & {"onnx", "relax", "relay"})) * (2 if self.op.elementwise else 1)

    @property
    def writes(self) -> bool:
        """Whether it writes an argument."""
        return bool(self.op.schema.written)

    @property
    def smooth(self) -> bool:
        """Whether it has a gradient, which a record checks."""
        rule = self.op.aspects.gradient
        return rule is not None and rule.function is not None and any(c.grad for c in self.cases)

    def written(self, step: Step) -> list[Any]:
        """Return the arguments that a step writes."""
        if not self.writes:
            return []
        bound = self.op.schema.bind(step.args, dict(step.kwargs), lambda r: r)
        return [r for i in self.op.schema.written for r in refs_in(bound[i])]

    def infer(self, step: Step, type_of: Callable[[Any], TensorType]) -> CallValues:
        """Return what is known of a step from the types of its operands; a MetaError if these are
        refused.
        """
        args = substitute(step.args, type_of)
        kwargs = {k: substitute(v, type_of) for k, v in step.kwargs.items()}
        return self.op.call_values(self.op.schema.bind(args, kwargs, lambda t: t), CPU)

    def compute(self, step: Step, given: Callable[[Any], Tensor]) -> list[Tensor]:
        """Return results, and what is written, by the oracle, of tensors in float64."""
        args = substitute(step.args, given)
        kwargs = {k: substitute(v, given) for k, v in step.kwargs.items()}
        with torch.enable_grad():  # some oracles differentiate others
            found = self.cases[step.case].oracle(*args, **kwargs)
        results = map(torch.as_tensor, found if isinstance(found, tuple | list) else (found,))
        differentiated = any(x.requires_grad for x in tree.flatten((args, kwargs))[0])
        return [t if differentiated else t.detach() for t in results]

    # How it rounds.

    @cached_property
    def moves(self) -> bool:
        """Whether each float of a result is one of the operands' elements, but for the sign, or a
        number of the call: then it is exact.
        """
        trials = list(self._trials(lambda spec, x: x))
        return any(random for random, *_ in trials) and all(
            bool(torch.isin(y.abs(), _magnitudes(operands).to(y.dtype)).logical_or(y.isnan()).all())
            for _, operands, results in trials
            for y in results
        )

    @cached_property
    def degree(self) -> int:
        """2 or 1 if results are sums of products of so many operands, or of the operands, so that
        they are exact where the dtype holds all sums; else 0.
        """
        once, twice = (list(self._trials(lambda spec, x, k=k: k * _whole(x))) for k in (1, 2))
        degrees = set()
        for (random, operands, a), (_, _, b) in zip(once, twice, strict=True):
            if not random or isinstance(operands[-1], float):
                continue  # a number of the call is not doubled
            for x, y in zip(a, b, strict=True):
                ratios = [k for k in (1, 2) if torch.equal(y, 2**k * x)]
                if not torch.equal(x, x.round()) or not ratios:
                    return 0
                degrees.add(ratios[0] if bool((x != 0).any()) else 1)
        return max(degrees, default=0)

    def _scalars(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[float]:
        """Return the numbers that stand where a tensor may stand."""
        bound = self.op.schema.bind(args, kwargs, lambda t: t)
        found = [bound[i] for i in self.op.schema.tensor_slots]
        return [float(v) for v in found if isinstance(v, int | float)]

    def _trials(self, change: Callable[[Spec, Tensor], Tensor]) -> Iterator[Any]:
        """Iterate over samples in float64, the oracle of which gives floats: whether their numbers
        are random, the operands with the numbers of the call, last those that are operands, as
        floats, and these results.
        """
        for case, one in ((c, one) for c in self.cases for one in _spread(c.samples)):
            if "float8" in str(one):
                continue
            specs, tensors, structure = tensors_of(one, "float64", 0)
            if not all(FROM_TORCH[x.dtype] in DTYPES for x in tensors):
                continue
            pairs = zip(specs, (native(x, FROM_TORCH[x.dtype]) for x in tensors), strict=True)
            leaves = [change(s, x) if x.is_floating_point() else x for s, x in pairs]
            args, kwargs = tree.unflatten(structure, leaves)
            try:
                found = case.oracle(*args, **kwargs)
            except (RuntimeError, ValueError):
                continue  # it does not take such numbers
            found = found if isinstance(found, tuple | list) else (found,)
            floats = [y for y in found if torch.is_tensor(y) and y.is_floating_point()]
            if any(y.numel() for y in floats):
                random = not any(s.numbers and s.given for s in specs)
                operands = [*leaves, *_numbers((args, kwargs)), *self._scalars(args, kwargs)]
                yield random, operands, [y.detach() for y in floats]


def _spread(samples: Sequence[Sample]) -> Sequence[Sample]:
    """Return about `TRIED` of the samples, from all over."""
    return samples[:: max(1, len(samples) // TRIED)]


def is_spec(value: object) -> bool:
    """Whether a leaf of a sample stands for a tensor."""
    return isinstance(value, Spec)


def _whole(x: Tensor) -> Tensor:
    """Return whole numbers that are random as x is, none of them 0."""
    return torch.where(x < 0, -1.0, 1.0) * ((x * 977).abs().floor() % 4 + 1)


def _numbers(value: Any) -> list[float]:
    """Return the numbers among arguments."""
    if isinstance(value, dict):
        return _numbers(tuple(value.values()))
    if isinstance(value, tuple | list):
        return [n for v in value for n in _numbers(v)]
    return [value] if isinstance(value, int | float) else []


def _magnitudes(operands: Sequence[Any]) -> Tensor:
    values = [torch.as_tensor(x).detach().double().abs().reshape(-1) for x in (*operands, 0.0, 1.0)]
    return torch.cat(values)


@cache
def records() -> Mapping[str, Record]:
    """Return what is known of each operator with a record, ours or of an installed package, whose
    results follow from its arguments: none of random numbers, none that other ranks take part in.
    """
    found: dict[str, list[OpCase]] = {}
    for case in (*CASES, *announced_cases()):
        op = OPERATORS[case.op]
        if case.samples and not (op.random or op.collective) and "cuda" in case.devices:
            found.setdefault(case.op, []).append(case)
    return {name: Record(OPERATORS[name], tuple(found[name])) for name in sorted(found)}


def record_of(name: str) -> Record:
    """Return what is known of an operator."""
    return records()[name]


def outputs(call: CallValues) -> tuple[TensorType, ...] | None:
    """Return the types of the results of a call; None if these are no tensors of known extents."""
    out = call.out
    if isinstance(out, View):
        out = out.type
    types = out.fields if isinstance(out, TupleType) else (out,)
    known = all(isinstance(t, TensorType) and t.is_static and t.dtype in DTYPES for t in types)
    return types if known else None


def tensors_of(one: Sample, dtype: str, seed: int) -> tuple[list[Spec], list[Tensor], Any]:
    """Return the specs of a sample, the tensors that they make, and the structure around them."""
    specs, structure = tree.flatten((one.args, one.kwargs), is_spec)
    generator = torch.Generator().manual_seed(seed)
    return specs, [s.make(dtype, generator) for s in specs], structure


def native(x: Tensor, dtype: str) -> Tensor:
    """Return values as oracles take them: floats in float64, others in their own dtype."""
    return x.double() if dtype in FLOATS else x.to(TO_TORCH[dtype])
