"""Models as other programs write them, which onnx's checker refuses, and sizes without sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import meta
from meta.frontend import from_onnx
from meta.frontend.onnx import OnnxError
from tests.frontend.onnx.records import OnnxCase, data

X = data(2, 3, 4)


def declared(name: str, shape: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def doubled(version: int, *outputs: Any, inputs: Any = (2, 3, 4), opset: int = 7) -> Any:
    """Return a model y = x * 2, whose 2 is an initializer and no input."""
    # The first Mul broadcasts where it is told to only.
    told = {} if opset else {"broadcast": 1}
    graph = helper.make_graph(
        [helper.make_node("Mul", ["x", "w"], ["y"], **told)],
        "g",
        [declared("x", inputs)],
        list(outputs) or [declared("y", [2, 3, 4])],
        [numpy_helper.from_array(np.full(4, 2, np.float32), "w")],
    )
    opsets = [helper.make_opsetid("", opset)] if opset else []
    model = helper.make_model(graph, opset_imports=opsets, ir_version=version)
    if not opset:
        del model.opset_import[:]
    return model


MODELS = {
    "the format's version 3": doubled(3),
    "the format's version 2": doubled(2, opset=0),
    "no shape of the output": doubled(8, declared("y", None)),
    "no type of the output": doubled(8, onnx.ValueInfoProto(name="y")),
    "no shape of the input": doubled(8, inputs=None),
    "extents of -1": doubled(8, declared("y", [-1, 3, -1]), inputs=(-1, 3, -1)),
}


@pytest.mark.parametrize("name", MODELS)
def test_what_the_checker_refuses(name: str) -> None:
    before = MODELS[name].SerializeToString()
    found = from_onnx(MODELS[name])(meta.array(X))
    np.testing.assert_array_equal(found.numpy(), X * 2)
    assert MODELS[name].SerializeToString() == before


def test_another_extent_than_the_one_that_is_stated() -> None:
    with pytest.raises(OnnxError, match=r"float32\[\?, 3, \?\]"):
        from_onnx(MODELS["extents of -1"])(meta.array(data(2, 4, 4)))


def test_the_branch_that_does_not_fit_fails_where_it_is_taken() -> None:
    graph = (
        "(bool c, float[n, m] x, float[4, 2] p) => (float y) { y = If<then_branch = t () => "
        "(float a) { a = MatMul(x, p) }, else_branch = e () => (float b) { b = Neg(x) }>(c) }"
    )
    model = from_onnx(OnnxCase("", graph, opset=16).model())
    given = meta.array(np.array(True)), meta.array(data(3, 2)), meta.array(data(4, 2))
    why = "the then_branch of an If is taken, and does not fit its inputs: .* 2 and 4 differ"
    with meta.dialect.prefer("torch"):
        for called in (model, meta.vm.compile(model, *given)):
            with pytest.raises(meta.errors.ExecutionError, match=why):
                called(*given)
            found = called(meta.array(np.array(False)), *given[1:])
            np.testing.assert_array_equal(found.numpy(), -data(3, 2))


def test_no_branch_fits() -> None:
    graph = (
        "(bool c, float[n, m] x, float[4, 2] p) => (float y) { y = If<then_branch = t () => "
        "(float a) { a = MatMul(x, p) }, else_branch = e () => (float b) { b = Gemm(x, p) }>(c) }"
    )
    model = from_onnx(OnnxCase("", graph, opset=16).model())
    with pytest.raises(meta.errors.TypeInferError, match="2 and 4 differ"):
        model(meta.array(np.array(True)), meta.array(data(3, 2)), meta.array(data(4, 2)))


HUGE = "1125899906842624"
ARRAYS = {
    "ConstantOfShape": f"d = Constant<value = int64[1] {{{HUGE}}}>() y = ConstantOfShape(d)",
    "OneHot": f"d = Constant<value = int64 {{{HUGE}}}>() i = Cast<to = 7>(x) "
    "v = Constant<value_floats = [0.0, 1.0]>() y = OneHot(i, d, v)",
    "Range": f"a = Constant<value = int64 {{0}}>() b = Constant<value = int64 {{{HUGE}}}>() "
    "s = Constant<value = int64 {1}>() y = Range(a, b, s)",
    "Expand": f"d = Constant<value = int64[2] {{{HUGE}, 1}}>() y = Expand(x, d)",
    "Tile": f"d = Constant<value = int64[1] {{{HUGE}}}>() y = Tile(x, d)",
    "HannWindow": f"d = Constant<value = int64 {{{HUGE}}}>() y = HannWindow(d)",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_that_no_memory_holds(name: str) -> None:
    model = from_onnx(OnnxCase("", f"(float[2] x) => (float y) {{ {ARRAYS[name]} }}").model())
    with meta.dialect.prefer("torch"), pytest.raises(meta.errors.OutOfMemory):
        model(meta.array(data(2)))


def test_attributes_that_make_no_sense_name_the_node() -> None:
    graph = "(float[2, 3] x) => (float y) { y = Transpose<perm = [0, 7]>(x) }"
    with pytest.raises(meta.MetaError, match="y"):
        from_onnx(OnnxCase("", graph).model())(meta.array(data(2, 3)))
