"""`meta.vmap` of every operator beside a loop over the examples. Nothing is listed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import meta
from meta.base.errors import MetaError
from meta.base.registry import OPERATORS
from meta.op.core import tree
from meta.op.core.op import by_schema
from meta.testing.case import Sample
from tests.op.records import CASES

SIZE = 3


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


def examples(values: list[Any]) -> list[list[torch.Tensor]]:
    """Return, for each example, tensors like these: floats are scaled, integers stay."""

    def scaled(v: torch.Tensor, by: float) -> torch.Tensor:
        if v.dtype.is_complex:
            return v * by
        return (v.double() * by).to(v.dtype) if v.dtype.is_floating_point else v

    return [[scaled(v, by) for v in values] for by in (1.0, 0.75, 0.5)]


@pytest.mark.parametrize("which", ["all", "first"])
@pytest.mark.parametrize("name", SAMPLES)
def test_operators(name: str, which: str) -> None:
    dtype, samples = SAMPLES[name]
    operator = by_schema(OPERATORS[name])
    for sample in samples[:3]:
        args, kwargs = sample.make(dtype)
        flat, structure = tree.flatten((args, kwargs))
        tensors = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]
        moving = tensors if which == "all" else tensors[:1]
        rows = examples([flat[i] for i in moving])

        def call(*given: Any, flat: Any = flat, moving: Any = moving, s: Any = structure) -> Any:
            values = list(flat)
            for i, value in zip(moving, given, strict=True):
                values[i] = value
            args, kwargs = tree.unflatten(s, values)
            return operator(*args, **kwargs)

        try:
            expected = [call(*map(meta.array, row)) for row in rows]
        except MetaError:
            continue  # of the scaled values, such as lengths
        if not moving or not tree.flatten(expected[0])[0]:
            continue
        if len({str([a.shape for a in tree.flatten(e)[0]]) for e in expected}) > 1:
            continue  # results whose extents depend on the values
        stacked = [meta.array(torch.stack(column)) for column in zip(*rows, strict=True)]
        found = tree.flatten(meta.vmap(call)(*stacked))[0]
        for k, result in enumerate(found):
            rows_of = [tree.flatten(e)[0][k].torch() for e in expected]
            array, wanted = result.torch(), torch.stack(rows_of)
            assert array.dtype == wanted.dtype
            if array.dtype.itemsize == 1:  # of float8 nothing can be compared
                array, wanted = array.double(), wanted.double()
            torch.testing.assert_close(
                array, wanted, rtol=1e-7, atol=1e-9, equal_nan=True, msg=str(sample)
            )
