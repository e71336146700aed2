"""Every converter against the independent result of its cases: eagerly on each dialect, and
compiled.

An ordinary run has all cases eagerly on torch, and the first one of each operator compiled by TVM,
in one program; the rest, for which TVM compiles much, is for the wide sweeps.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
import meta.frontend.relay.converters
from meta.base.device import require
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay.registry import relay
from meta.op.core import tree
from tests.frontend.relay.records import ConverterCase

FAMILIES = sorted((Path(__file__).parent / "converters").glob("*.py"))
CASES: list[ConverterCase] = [
    case
    for path in FAMILIES
    for case in import_module(f"tests.frontend.relay.converters.{path.stem}").CASES
]
RESULTS = [c for c in CASES if c.refused is None]


def site_of(case: ConverterCase, device: str = "cpu") -> CallSite:
    return CallSite(
        case.name,
        case.version,
        frozenset(case.attrs),
        case.has_attributes,
        case.training,
        require(device),
    )


def tensor(value: Any) -> torch.Tensor:
    return value if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))


def arrays(value: Any, device: str = "cpu") -> Any:
    if isinstance(value, tuple | list):
        return tuple(arrays(v, device) for v in value)
    return meta.array(tensor(value), device=device)


def expected_of(case: ConverterCase) -> list[torch.Tensor]:
    value = case.expected(*case.args) if callable(case.expected) else case.expected
    return [tensor(v) for v in (value if isinstance(value, tuple | list) else (value,))]


def check(case: ConverterCase, result: Any) -> None:
    got, _ = tree.flatten(result)
    want = expected_of(case)
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        found = g.torch().cpu()
        assert (found.shape, found.dtype) == (w.shape, w.dtype)
        tolerance = case.tolerance if w.is_floating_point() else 0
        torch.testing.assert_close(found, w, rtol=tolerance, atol=tolerance, equal_nan=True)


FIRST = {case.name: case for case in reversed(RESULTS)}


def slow(wide: bool) -> Any:
    """Return the marks of a test that may be for the wide sweeps."""
    return pytest.mark.slow if wide else ()


@pytest.mark.parametrize(
    "case,dialect",
    [
        pytest.param(c, d, id=f"{c.id}-{d}", marks=slow(d == "tvm"))
        for c in RESULTS
        for d in c.dialects
    ],
)
def test_eager(case: ConverterCase, dialect: str) -> None:
    with meta.dialect.only(dialect):
        check(case, relay.apply(site_of(case), arrays(case.args), case.attrs))


@pytest.mark.cuda
@pytest.mark.parametrize(
    "case,dialect",
    [pytest.param(c, d, id=f"{c.id}-{d}") for c in RESULTS for d in c.dialects],
)
def test_on_cuda(case: ConverterCase, dialect: str) -> None:
    """On a GPU, where a dialect may leave an operator to the other one."""
    with meta.dialect.prefer(dialect):
        given = arrays(case.args, "cuda")
        check(case, relay.apply(site_of(case, "cuda"), given, case.attrs))


@pytest.mark.long
@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.id, marks=slow(FIRST[c.name] is not c)) for c in RESULTS]
)
def test_compiled(case: ConverterCase) -> None:
    """By TVM, but for what it declines."""
    given = arrays(case.args)
    inputs = [a for i, a in enumerate(given) if i not in case.constants]

    @meta.model.trace
    def call(*inputs: Any) -> Any:
        values = iter(inputs)
        args = [a if i in case.constants else next(values) for i, a in enumerate(given)]
        return relay.apply(site_of(case), args, case.attrs)

    with meta.dialect.prefer(case.dialects[0]):
        check(case, meta.vm.compile(call, *inputs)(*inputs))


@pytest.mark.parametrize("case", [pytest.param(c, id=c.id) for c in CASES if c.refused is not None])
def test_refused(case: ConverterCase) -> None:
    with meta.dialect.only("torch"), pytest.raises(Unconvertible, match=case.refused):
        relay.apply(site_of(case), arrays(case.args), case.attrs)
