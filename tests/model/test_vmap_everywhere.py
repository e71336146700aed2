"""`meta.vmap` of every operator, and of its gradient, beside a loop over the examples: any tensor
batched, along any axis, over one axis and over two. Nothing is listed by hand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import GradientError, MetaError, TraceError
from meta.base.registry import OPERATORS
from meta.op.core import tree
from meta.op.core.op import by_schema
from meta.testing.case import Sample
from tests.op.records import CASES

SCALES = 1.0, 0.75, 0.5


@pytest.fixture(autouse=True)
def torch_kernels() -> Iterator[None]:
    """Nothing is compiled: operators have tests of their own on each dialect."""
    with meta.dialect.prefer("torch"):
        yield


SAMPLES: dict[str, tuple[str, list[Sample]]] = {}
for _case in CASES:
    _op = OPERATORS[_case.op]
    if not _op.random and not _op.schema.written and not _op.collective:
        _dtype = "float64" if "float64" in _case.dtypes else next(iter(_case.dtypes), "float64")
        SAMPLES.setdefault(_case.op, (_dtype, []))[1].extend(_case.samples)

Function = Callable[..., Any]
Row = list[torch.Tensor]


def examples(values: Row, count: int = 3) -> list[Row]:
    """Return, for each example, tensors like these: floats are scaled, integers stay."""

    def scaled(v: torch.Tensor, by: float) -> torch.Tensor:
        if v.dtype.is_complex:
            return v * by
        return (v.double() * by).to(v.dtype) if v.dtype.is_floating_point else v

    return [[scaled(v, by) for v in values] for by in SCALES[:count]]


def calls(name: str, which: str, most: int = 3) -> Iterator[tuple[Sample, Function, Row]]:
    """Yield, of an operator's samples, a function of some of their tensors, and these."""
    dtype, samples = SAMPLES[name]
    operator = by_schema(OPERATORS[name])
    for sample in samples[:most]:
        args, kwargs = sample.make(dtype)
        flat, structure = tree.flatten((args, kwargs))
        tensors = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
        moving = {"all": tensors, "first": tensors[:1], "last": tensors[1:][-1:]}[which]

        def call(*given: Any, flat: Any = flat, moving: Any = moving, s: Any = structure) -> Any:
            values = list(flat)
            for i, value in zip(moving, given, strict=True):
                values[i] = value
            args, kwargs = tree.unflatten(s, values)
            return tree.flatten(operator(*args, **kwargs))[0]

        if moving:
            yield sample, call, [flat[i] for i in moving]


def each(call: Function, rows: list[Row]) -> list[list[torch.Tensor]] | None:
    """Return what a function gives for each row; None for values that it does not take, such as
    lengths that were scaled, and for results whose extents depend on values.
    """
    try:
        found = [[y.torch() for y in call(*map(meta.array, row))] for row in rows]
    except MetaError:
        return None
    alike = len({str([y.shape for y in ys]) for ys in found}) == 1
    return found if found[0] and alike else None


def require_equal(found: list[Any], expected: list[torch.Tensor], sample: Sample) -> None:
    """Compare results with what they have to be."""
    assert len(found) == len(expected)
    for result, wanted in zip(found, expected, strict=True):
        array = result.torch()
        assert (array.dtype, array.shape) == (wanted.dtype, wanted.shape), sample
        if array.dtype.itemsize == 1:  # of float8 nothing can be compared
            array, wanted = array.double(), wanted.double()
        close = {"rtol": 1e-7, "atol": 1e-9, "equal_nan": True}
        torch.testing.assert_close(array, wanted, **close, msg=lambda m: f"{sample}: {m}")


def stacked(rows: list[list[torch.Tensor]], axis: int = 0) -> list[torch.Tensor]:
    return [torch.stack(column, axis) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize("which", ["all", "first", pytest.param("last", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", SAMPLES)
def test_operators(name: str, which: str) -> None:
    for sample, call, values in calls(name, which):
        rows = examples(values)
        expected = each(call, rows)
        if expected is not None:
            found = meta.vmap(call)(*map(meta.array, stacked(rows)))
            require_equal(found, stacked(expected), sample)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_along_any_axis(name: str) -> None:
    for sample, call, values in calls(name, "all"):
        rows = examples(values, 2)
        expected = each(call, rows)
        if expected is None:
            continue
        axes = tuple((i % 3 - 1) % (v.ndim + 1) for i, v in enumerate(values))
        given = [
            meta.array(torch.stack(column, axis))
            for axis, column in zip(axes, zip(*rows, strict=True), strict=True)
        ]
        found = meta.vmap(call, axes, -1)(*given)
        require_equal(found, stacked(expected, -1), sample)


@pytest.mark.slow
@pytest.mark.parametrize("inner", ["all", "first"])
@pytest.mark.parametrize("name", SAMPLES)
def test_over_two_axes(name: str, inner: str) -> None:
    """The inner ``vmap`` is over all tensors, or over the first alone, the outer one over all."""
    for sample, call, values in calls(name, "all"):
        outer = examples(values, 2)
        rows = [examples(row[:1] if inner == "first" else row) for row in outer]
        grid = [
            [(*new, *row[len(new) :]) for new in some]
            for row, some in zip(outer, rows, strict=True)
        ]
        expected = [each(call, some) for some in grid]
        if any(e is None for e in expected):
            continue
        shapes = {str([y.shape for y in e[0]]) for e in expected if e}
        if len(shapes) > 1:
            continue
        count = len(values) if inner == "all" else 1
        given = [stacked(some)[:count] + [row[i] for i in range(count, len(row))]
                 for some, row in zip(grid, outer, strict=True)]  # fmt: skip
        axes = (0,) * count + (None,) * (len(values) - count)
        found = meta.vmap(meta.vmap(call, axes))(*map(meta.array, stacked(given)))
        require_equal(found, stacked([stacked(e) for e in expected if e]), sample)


@pytest.mark.slow
@pytest.mark.parametrize("name", SAMPLES)
def test_of_no_examples(name: str) -> None:
    for sample, call, values in calls(name, "all", 1):
        expected = each(call, [values])
        if expected is None:
            continue
        empty = [meta.array(torch.stack([v])[:0]) for v in values]
        try:
            found = meta.vmap(call)(*empty)
        except TraceError as error:
            assert OPERATORS[name].family == "dynamic" and "how large" in str(error)
        else:
            require_equal(found, [y[:0] for y in stacked(expected)], sample)


@pytest.mark.slow
@pytest.mark.parametrize("which", ["all", "first", "last"])
@pytest.mark.parametrize("name", SAMPLES)
def test_gradients(name: str, which: str) -> None:
    for sample, call, values in calls(name, which, 2):
        wrt = tuple(i for i, v in enumerate(values) if v.dtype.is_floating_point)

        def loss(*given: Any, call: Function = call) -> Any:
            found = [meta.sum(meta.sin(y)) for y in call(*given) if "float" in str(y.dtype)]
            return sum(found[1:], found[0])

        rows = examples(values)
        results = each(call, rows)
        if not wrt or results is None or not any(y.is_floating_point() for y in results[0]):
            continue
        gradient = meta.grad(loss, wrt)
        try:
            expected = [[g.torch() for g in gradient(*map(meta.array, row))] for row in rows]
        except GradientError:
            continue  # there is none
        try:
            found = meta.vmap(gradient)(*map(meta.array, stacked(rows)))
        except GradientError:  # a program says that nothing depends on it
            assert not any(g.any() for row in expected for g in row)
        else:
            require_equal(list(found), stacked(expected), sample)
