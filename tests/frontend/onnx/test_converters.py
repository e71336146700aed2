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


IMAGE = "(float[n, 2, 4, 4] x, float[2, 4] r, int64[2] i) => (float y)"
POSITIONS = [
    *(
        (f"{IMAGE} {{ {nodes} }}", (data(3, 2, 4, 4), np.float32([[0, 0, 2, 2], [1, 1, 3, 3]])),
         (2, -1, -7, 3, 2**40), np.int64)
        for nodes in (
            'y = RoiAlign<sampling_ratio = 1, mode = "avg">(x, r, i)',
            'y = RoiAlign<sampling_ratio = 1, mode = "max">(x, r, i)',
            "f = Cast<to = 1>(i) a = Constant<value_ints = [1]>() n = Unsqueeze(f, a) "
            "s = Concat<axis = 1>(n, r) y = MaxRoiPool<pooled_shape = [1, 1]>(x, s)",
        )
    ),
    ("(float[3, 2] x, int64[2] i) => (float y) { y = ReverseSequence(x, i) }",
     (data(3, 2),), (3, -1, 4, -(2**40)), np.int64),
    *(
        (f"(float[3, 2, 4] x, float[1, {2 * gates}, 4] w, float[1, {2 * gates}, 2] r, int32[2] i) "
         f"=> (float y) {{ y = {name}<hidden_size = 2>(x, w, r, , i) }}",
         (data(3, 2, 4), data(1, 2 * gates, 4), data(1, 2 * gates, 2)), (3, -1, 4), np.int32)
        for name, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4))
    ),
]  # fmt: skip
"""A graph, its inputs but for two positions, of which the last may be the first of these numbers
and no other, and their dtype.
"""


@pytest.mark.parametrize(("graph", "inputs", "numbers", "dtype"), POSITIONS)
def test_a_position_that_is_not_there(graph: str, inputs: Any, numbers: Any, dtype: Any) -> None:
    """Images, and lengths of sequences; as in onnxruntime, but not in the operators of ours."""
    model, known = from_onnx(OnnxCase("", graph, opset=22).model()), [given(v) for v in inputs]
    legal, *others = (meta.array(np.array([0, n]), dtype.__name__) for n in numbers)
    compiled = meta.vm.compile(model, *known, legal)
    for run in (model, compiled):
        run(*known, legal)
        for positions in others:
            index = positions.numpy()[1]
            with pytest.raises(IndexOutOfRange, match=rf"index {index} at \[1(, 0)?\] of indices"):
                run(*known, positions)


@pytest.mark.parametrize("number", [-1, 0, 4])
def test_a_number_of_greatest_elements_that_there_are_not(number: int) -> None:
    graph = "(float[2, 3] x, int64[1] k) => (float y, int64 i) { y, i = TopK(x, k) }"
    model, x = from_onnx(OnnxCase("", graph, opset=22).model()), given(data(2, 3))
    compiled = meta.vm.compile(model, x, meta.array([2]))
    for run in (model, compiled):
        assert run(x, meta.array([3]))[0].shape == (2, 3)
        with pytest.raises(IndexOutOfRange, match=f"index {number - 1} at"):
            run(x, meta.array([number]))


def test_cases_are_of_operators_that_there_are() -> None:
    assert all(c.name in onnx or attributes_of(c.name) is not None for c in CASES)


@pytest.mark.heavy
def test_every_converter_has_a_case() -> None:
    """Here, in onnx's own tests, or, of those that draw numbers, in `test_random.py`."""
    called = {c.name for c in CASES}
    for proto in (*(case.model() for case in CASES), *(case.model for case in node_tests())):
        called |= {full_name(n.domain, n.op_type) for n in all_nodes(proto.graph.node)}
    assert {n for n in onnx if onnx[n].function is not None} - called == ELSEWHERE
