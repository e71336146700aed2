"""Converters of ONNX operators against the independent result of their cases."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx.reference import ReferenceEvaluator

import meta
from meta.base.errors import IndexOutOfRange
from meta.frontend import from_onnx
from meta.frontend.onnx.model import all_nodes
from meta.frontend.onnx.registry import OnnxError, attributes_of, full_name, onnx
from tests.frontend.onnx.records import OnnxCase, data, given, require_equal
from tests.frontend.onnx.test_node_tests import cases as node_tests

FAMILIES = sorted((Path(__file__).parent / "converters").glob("*.py"))
CASES: list[OnnxCase] = [
    case
    for path in FAMILIES
    for case in import_module(f"tests.frontend.onnx.converters.{path.stem}").CASES
]
ELSEWHERE = {"Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform"}
RESULTS = [pytest.param(c, id=c.id) for c in CASES if c.refused is None]
REFUSED = [pytest.param(c, id=c.id) for c in CASES if c.refused is not None]


def arguments(case: OnnxCase, proto: Any) -> tuple[dict[str, Any], list[Any]]:
    """Return the constants and the inputs of the model."""
    named = dict(zip([i.name for i in proto.graph.input], case.inputs, strict=True))
    constants = {n: named[n] for n in case.constants}
    return constants, [given(v) for n, v in named.items() if n not in constants]


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
        require_equal(one, wanted, case.tolerance, case.tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("case", RESULTS)
def test_results_compiled(case: OnnxCase) -> None:
    proto = case.model()
    constants, inputs = arguments(case, proto)
    model = from_onnx(proto, constants)
    found = meta.vm.compile(model, *inputs)(*inputs)
    tolerance = max(case.tolerance, 1e-4)
    results = list(found) if isinstance(found, tuple) else [found]
    for one, wanted in zip(results, expected(case, proto), strict=True):
        require_equal(one, wanted, tolerance, tolerance)


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: OnnxCase) -> None:
    assert case.refused is not None
    proto = case.model()
    constants, inputs = arguments(case, proto)
    with pytest.raises(OnnxError, match=case.refused):
        from_onnx(proto, constants)(*inputs)


REGIONS = (
    'y = RoiAlign<sampling_ratio = 1, mode = "avg">(x, r, i)',
    'y = RoiAlign<sampling_ratio = 1, mode = "max">(x, r, i)',
    "f = Cast<to = 1>(i) a = Constant<value_ints = [1]>() n = Unsqueeze(f, a) "
    "s = Concat<axis = 1>(n, r) y = MaxRoiPool<pooled_shape = [1, 1]>(x, s)",
)


@pytest.mark.parametrize("index", [-1, -7, 3, 2**40])
@pytest.mark.parametrize("nodes", REGIONS)
def test_an_image_that_is_not_there(nodes: str, index: int) -> None:
    """The operators of regions take a negative number for a row that fills up; ONNX does not."""
    graph = f"(float[n, 2, 4, 4] x, float[2, 4] r, int64[2] i) => (float y) {{ {nodes} }}"
    x, rois = given(data(3, 2, 4, 4)), given(np.float32([[0, 0, 2, 2], [1, 1, 3, 3]]))
    model = from_onnx(OnnxCase("", graph, opset=22).model())
    compiled = meta.vm.compile(model, x, rois, meta.array([0, 2]))
    for run in (model, compiled):
        assert run(x, rois, meta.array([2, 0])).shape == (2, 2, 1, 1)
        with pytest.raises(IndexOutOfRange, match=rf"index {index} at \[1\] of indices"):
            run(x, rois, meta.array([0, index]))


def test_cases_are_of_operators_that_there_are() -> None:
    assert all(c.name in onnx or attributes_of(c.name) is not None for c in CASES)


@pytest.mark.heavy
def test_every_converter_has_a_case() -> None:
    """Here, in onnx's own tests, or, of those that draw numbers, in `test_random.py`."""
    called = {c.name for c in CASES}
    for proto in (*(case.model() for case in CASES), *(case.model for case in node_tests())):
        called |= {full_name(n.domain, n.op_type) for n in all_nodes(proto.graph.node)}
    assert {n for n in onnx if onnx[n].function is not None} - called == ELSEWHERE
