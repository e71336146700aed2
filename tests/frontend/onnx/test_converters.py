"""Converters of ONNX operators against the independent result of their cases."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import meta
from meta.base.dtype import TO_NUMPY
from meta.frontend import from_onnx
from meta.frontend.onnx.program import all_nodes
from meta.frontend.onnx.registry import OnnxError, attributes_of, full_name, onnx
from meta.frontend.onnx.values import CARRIER_DTYPES
from tests.frontend.onnx.records import OnnxCase

FAMILIES = sorted((Path(__file__).parent / "converters").glob("*.py"))
CASES: list[OnnxCase] = [
    case
    for path in FAMILIES
    for case in import_module(f"tests.frontend.onnx.converters.{path.stem}").CASES
]
ELSEWHERE = {
    "ai.onnx.ml.TreeEnsemble",
    "Bernoulli",
    "Multinomial",
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
}
RESULTS = [pytest.param(c, id=c.id) for c in CASES if c.refused is None]
REFUSED = [pytest.param(c, id=c.id) for c in CASES if c.refused is not None]


def given(value: Any) -> Any:
    """Return an input for the model: a dtype that arrays do not have is held in another."""
    if isinstance(value, list):
        return [given(v) for v in value]
    if value is None:
        return None
    name = value.dtype.name
    return meta.array(
        value.astype(TO_NUMPY[CARRIER_DTYPES[name]]) if name in CARRIER_DTYPES else value
    )


def arguments(case: OnnxCase, proto: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the constants and the inputs of the model."""
    named = dict(zip([i.name for i in proto.graph.input], case.inputs, strict=True))
    constants = {n: named[n] for n in case.constants}
    return constants, [given(v) for n, v in named.items() if n not in constants]


def require_equal(found: Any, wanted: Any, tolerance: float) -> None:
    """Compare arrays, lists of them, and None."""
    if isinstance(wanted, list | tuple) or wanted is None:
        assert type(found) is type(wanted) or wanted is not None
        assert isinstance(found, list | tuple) == isinstance(wanted, list | tuple)
        for one, other in zip(found or (), wanted or (), strict=True):
            require_equal(one, other, tolerance)
        return
    wanted = np.asarray(wanted)
    if wanted.dtype.kind in "OU":
        assert found == wanted.tolist()
        return
    values, name = found.numpy(), wanted.dtype.name
    assert values.dtype == (
        TO_NUMPY[CARRIER_DTYPES[name]] if name in CARRIER_DTYPES else wanted.dtype
    )
    assert values.shape == wanted.shape
    if wanted.dtype.kind not in "biuf":
        values, wanted = values.astype(np.float32), wanted.astype(np.float32)
    bound = tolerance if wanted.dtype.kind == "f" else 0
    np.testing.assert_allclose(values, wanted, bound, bound)


def expected(case: OnnxCase, proto: Any) -> list[Any]:
    """Return the independent results."""
    if case.expected is not None:
        found = case.expected(*case.inputs)
        return list(found) if isinstance(found, tuple) else [found]
    names = [i.name for i in proto.graph.input]
    with np.errstate(all="ignore"):
        evaluator = ReferenceEvaluator(proto)
        return list(evaluator.run(None, dict(zip(names, case.inputs, strict=True))))


@pytest.mark.parametrize("case", RESULTS)
def test_results(case: OnnxCase) -> None:
    proto = case.model()
    constants, inputs = arguments(case, proto)
    with meta.dialect.prefer("torch"):
        found = from_onnx(proto, constants)(*inputs)
    results = list(found) if isinstance(found, tuple) else [found]
    for one, wanted in zip(results, expected(case, proto), strict=True):
        require_equal(one, wanted, case.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("case", RESULTS)
def test_results_compiled(case: OnnxCase) -> None:
    proto = case.model()
    constants, inputs = arguments(case, proto)
    model = from_onnx(proto, constants)
    found = meta.vm.compile(model, *inputs)(*inputs)
    results = list(found) if isinstance(found, tuple) else [found]
    for one, wanted in zip(results, expected(case, proto), strict=True):
        require_equal(one, wanted, max(case.tolerance, 1e-4))


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: OnnxCase) -> None:
    assert case.refused is not None
    proto = case.model()
    constants, inputs = arguments(case, proto)
    with pytest.raises(OnnxError, match=case.refused):
        from_onnx(proto, constants)(*inputs)


def test_cases_are_of_operators_that_there_are() -> None:
    assert all(c.name in onnx or attributes_of(c.name) is not None for c in CASES)


def test_every_converter_has_a_case() -> None:
    """Those that draw numbers are in `test_random.py`, one of trees in onnx's own tests only."""
    called = {c.name for c in CASES}
    for case in CASES:
        called |= {full_name(n.domain, n.op_type) for n in all_nodes(case.model().graph.node)}
    assert {n for n in onnx if onnx[n].function is not None} - called == ELSEWHERE
