"""What operators say of their axes (`meta.op.core.axes`) is true: cut along an axis that is free,
and joined again, results are those of the whole. Nothing is listed by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import RegistrationError
from meta.base.registry import OPERATORS
from meta.ir.types import TensorType
from meta.op.core import Tensor, op, tree
from meta.op.core.axes import Axes, Labels
from meta.op.core.op import by_schema
from meta.testing.case import Sample
from tests.op.records import CASES


def samples(name: str) -> Iterator[tuple[Sample, dict[str, Any], tuple[Axes, ...]]]:
    """Yield the samples of an operator that says something: arguments by name, and their axes."""
    operator = OPERATORS[name]
    for case in (c for c in CASES if c.op == name):
        dtype = "float64" if "float64" in case.dtypes else next(iter(case.dtypes), "float64")
        for sample in case.samples[:4]:
            given, kwargs = sample.make(dtype)
            defaults = {s.name: s.default for s in operator.slots}
            args = defaults | dict(zip(operator.schema.names, given, strict=False)) | kwargs
            args = {n: mapped(meta.array, a) for n, a in args.items()}
            yield sample, args, operator.axes_of({n: mapped(type_of, a) for n, a in args.items()})


def mapped(change: Any, value: Any) -> Any:
    if isinstance(value, tuple | list) and value and not isinstance(value[0], int):
        return tuple(mapped(change, v) for v in value)
    return change(value) if isinstance(value, torch.Tensor | meta.ndarray) else value


def type_of(x: meta.ndarray) -> TensorType:
    return TensorType(x.shape, str(x.dtype))


def results(name: str, args: dict[str, Any]) -> list[torch.Tensor]:
    """Return the results of a call, or what it wrote."""
    operator = OPERATORS[name]
    written = [operator.schema.names[i] for i in operator.schema.written]
    args = args | {n: mapped(meta.ndarray.copy, args[n]) for n in written}
    values = by_schema(operator)(*args.values())
    return [y.torch() for y in tree.flatten([args[n] for n in written] or values)[0]]


def part(x: meta.ndarray, labels: Labels, label: str, half: int, broadcasts: bool) -> meta.ndarray:
    """Return one of two parts of an array along the axis that has a label."""
    if label not in labels:
        return x
    axis = labels.index(label)
    extent = x.shape[axis]
    if extent == 1 and broadcasts:
        return x
    at = slice(0, extent // 2) if half == 0 else slice(extent // 2, extent)
    return meta.array(x.torch()[(slice(None),) * axis + (at,)].contiguous())


def cut(args: dict[str, Any], axes: Axes, label: str, half: int) -> dict[str, Any]:
    """Return the arguments of a call of one of two parts."""
    found = {}
    for name, value in args.items():
        labels, repeated = axes.tensors.get(name, ()), name in axes.broadcasts
        found[name] = mapped(lambda x, s=labels, r=repeated: part(x, s, label, half, r), value)
    for name, labels in axes.shapes.items():
        extents = [args[name]] if isinstance(args[name], int) else list(args[name])
        if label in labels:
            at = labels.index(label)
            extents[at] = extents[at] // 2 if half == 0 else extents[at] - extents[at] // 2
        found[name] = tuple(extents)
    return found | {n: args[n] // 2 for n, counted in axes.counts.items() if counted == label}


def extents(args: dict[str, Any], axes: Axes, label: str) -> set[int]:
    """Return how long axes of a label are, but for those that are repeated."""
    found = set[int]()
    for name, labels in axes.tensors.items():
        for x in tree.flatten(args[name])[0] if label in labels else ():
            extent = x.shape[labels.index(label)]
            found |= {extent} - ({1} if name in axes.broadcasts else set())
    return found


SAYING = [n for n in OPERATORS if OPERATORS[n].axes or OPERATORS[n].elementwise]
SAYING = [n for n in SAYING if not OPERATORS[n].collective and any(c.op == n for c in CASES)]


@pytest.mark.parametrize("name", SAYING)
def test_free_axes_are_cut(name: str) -> None:
    with meta.dialect.prefer("torch"):
        for sample, args, found in samples(name):
            if name == "get_valid_counts" and not isinstance(args["score_threshold"], float):
                continue
            whole = results(name, args)
            for axes in found:
                for label in axes.free():
                    counts = [args[n] for n, counted in axes.counts.items() if counted == label]
                    long = extents(args, axes, label)
                    if any(c % 2 for c in counts) or min(long, default=0) < 2:
                        continue
                    if len(long) > 1 and not counts:
                        if label not in axes.grouped:
                            continue  # such as fewer indices than there are rows
                        if any(n % 2 for n in long):
                            continue
                    parts = [results(name, cut(args, axes, label, half)) for half in (0, 1)]
                    ends = axes.of_results(len(whole))
                    for y, labels, *halves in zip(whole, ends, *parts, strict=True):
                        joined = torch.cat(halves, labels.index(label))
                        close = {"rtol": 1e-9, "atol": 1e-11, "equal_nan": True}
                        message = f"{sample} along {label!r} of {axes}"
                        wide = torch.complex128 if y.is_complex() else torch.float64
                        torch.testing.assert_close(
                            joined.to(wide), y.to(wide), **close, msg=lambda m, s=message: s + m
                        )


@pytest.mark.parametrize("rule", ["last", 3])
def test_a_rule_is_a_function(rule: Any) -> None:
    with pytest.raises(RegistrationError, match="axes of operator 'unheard_of'"):

        @op(axes=rule)
        def unheard_of(x: Tensor) -> Tensor:
            """It is not."""
            return x
