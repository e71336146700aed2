"""Values of dtypes that arrays do not have: as initializers, constants, inputs, and in programs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import meta
from meta.base.errors import ArgumentError
from meta.frontend import from_onnx
from meta.frontend.onnx.registry import OnnxError
from meta.frontend.onnx.values import CARRIER_DTYPES, FORMATS, INTEGERS, bits_of
from tests.frontend.onnx.records import OnnxCase, data

WEIGHT = data(8, 6, low=-8, high=7).astype(int)


def quantized(dtype: Any) -> tuple[Any, Any]:
    """Return a model with a quantised weight, and the weight."""
    weight = WEIGHT.astype(dtype)
    proto = OnnxCase(
        "MatMul",
        "(float[3, 8] x, float[6] s) => (float[3, 6] y) "
        "{ r = DequantizeLinear(w, s) y = MatMul(x, r) }",
        opset=23,
    ).model()
    proto.graph.initializer.append(numpy_helper.from_array(weight, "w"))
    return proto, weight.astype(np.float32)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "float4_e2m1fn", "float8_e5m2fnuz"])
def test_a_quantised_weight_is_a_constant(dtype: str, tmp_path: Path) -> None:
    proto, weight = quantized(np.dtype(getattr(ml_dtypes, dtype)))
    x, scale = data(3, 8), data(6, low=0.1, high=0.5)
    model = from_onnx(proto)
    assert model.arrays == {}
    expected = x @ (weight * scale)
    arguments = (meta.array(x), meta.array(scale))
    exe = meta.vm.compile(model, *arguments)
    exe.save(tmp_path / "program")
    for run in (model, exe, meta.vm.load(tmp_path / "program")):
        np.testing.assert_allclose(run(*arguments).numpy(), expected, 1e-5, 1e-5)


def test_an_input_is_cast_to_its_dtype() -> None:
    graph = "(int4[4] x) => (int8[4] y) { y = Cast<to = 3>(x) }"
    model = from_onnx(OnnxCase("Cast", graph).model())
    given = meta.array(np.array([7, 8, -9, 100], np.int8))
    assert model(given).numpy().tolist() == [7, -8, 7, 4]
    with pytest.raises(OnnxError, match="another type"):
        model(meta.array([1, 2, 3, 4], "int32"))


def test_a_constant_of_a_shape() -> None:
    proto = OnnxCase(
        "ConstantOfShape", "(int64[1] s) => (int4 y) { y = ConstantOfShape(s) }"
    ).model()
    value = numpy_helper.from_array(np.array([-3]).astype(ml_dtypes.int4))
    proto.graph.node[0].attribute.append(helper.make_attribute("value", value))
    assert from_onnx(proto, {"s": [2]})().numpy().tolist() == [-3, -3]
    assert from_onnx(proto)(meta.array([2])).numpy().tolist() == [-3, -3]
    value = numpy_helper.from_array(np.array(["a"], object))
    proto.graph.node[0].attribute[0].CopyFrom(helper.make_attribute("value", value))
    with pytest.raises(OnnxError, match="arrays have no texts"):
        from_onnx(proto)(meta.array([2]))


@pytest.mark.parametrize("dtype", [ml_dtypes.int4, np.int8, np.int64])
def test_a_constant_of_a_few_bits(dtype: Any) -> None:
    graph = "(int4[3] x, float s) => (float[3] y) { y = DequantizeLinear(x, s) }"
    model = from_onnx(OnnxCase("Cast", graph).model(), {"x": np.array([1, -8, 7]).astype(dtype)})
    assert model(meta.array(0.5)).numpy().tolist() == [0.5, -4.0, 3.5]


def test_what_is_no_constant() -> None:
    case = OnnxCase("If", "(string[1] t, seq(float) s) => (seq(float) y) { y = Identity(s) }")
    with pytest.raises(OnnxError, match="'t' is text"):
        from_onnx(case.model())
    with pytest.raises(ArgumentError, match="'n' is beyond int32"):
        graph = "(int32 n) => (int32 y) { y = Neg(n) }"
        from_onnx(OnnxCase("Neg", graph).model(), {"n": 2**31})
    with pytest.raises(ArgumentError, match="is no array"):
        from_onnx(case.model(), {"s": [np.zeros(2)]})


@pytest.mark.parametrize("dtype", [n for n in CARRIER_DTYPES if n not in ("float8_e8m0fnu",)])
def test_what_holds_a_dtype_has_all_its_numbers(dtype: str) -> None:
    """Every bit pattern survives the way into the dtype that holds it and back."""
    own = np.dtype(getattr(ml_dtypes, dtype))
    bits = bits_of(dtype)
    assert (dtype in INTEGERS) or (dtype in FORMATS)
    patterns = np.arange(2**bits, dtype=np.uint8).view(own)
    kind = helper.np_dtype_to_tensor_dtype(own)
    held = meta.array(patterns.astype(meta.base.dtype.TO_NUMPY[CARRIER_DTYPES[dtype]]))
    name = TensorProto.DataType.Name(kind).lower()
    graph = f"({name}[N] x) => ({name}[N] y) {{ y = Cast<to = {kind}>(x) }}"
    found = from_onnx(OnnxCase("Cast", graph, opset=25).model())(held).numpy().astype(own)
    wide, expected = found.astype(np.float32), patterns.astype(np.float32)
    np.testing.assert_array_equal(wide, expected)
    np.testing.assert_array_equal(np.signbit(wide), np.signbit(expected))
