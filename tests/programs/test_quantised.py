"""Quantised ONNX files, frozen: products of integers, within one step of exact arithmetic."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import onnx
import pytest
import torch
import torch.nn.functional as F
from onnx import TensorProto, helper, numpy_helper

import meta
from meta.base.device import CPU
from meta.dialect.tvm.register_tiles import multiplies
from meta.dialect.tvm.target import for_device

VNNI = multiplies("uint8", for_device(CPU))
SCALE = np.float32(0.031)
OUT_SCALE, OUT_ZERO = np.float32(0.27), 9


def _file(nodes: list[Any], inputs: dict[str, Any], outputs: dict[str, str], **values: Any) -> Any:
    """Return a model. inputs: shapes of floats, or arrays of which dtype and shape are taken."""
    types = {"float32": TensorProto.FLOAT, "uint8": TensorProto.UINT8, "int8": TensorProto.INT8}
    types["int32"] = TensorProto.INT32
    given = []
    for name, shape in inputs.items():
        dtype = str(shape.dtype) if isinstance(shape, np.ndarray) else "float32"
        extents = shape.shape if isinstance(shape, np.ndarray) else shape
        given.append(helper.make_tensor_value_info(name, types[dtype], extents))
    made = [helper.make_tensor_value_info(n, types[t], None) for n, t in outputs.items()]
    arrays = [numpy_helper.from_array(np.asarray(v), n) for n, v in values.items()]
    graph = helper.make_graph(nodes, "graph", given, made, arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)


def _node(kind: str, inputs: str, output: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), [output], **attributes)


def _qdq(kind: str, bias: bool, w_axis: int, **attributes: Any) -> list[Any]:
    """The nodes of a quantised operator, as onnxruntime writes them."""
    return [
        _node("QuantizeLinear", "x sx zx", "q"),
        _node("DequantizeLinear", "q sx zx", "dx"),
        _node("DequantizeLinear", "w sw zw", "dw", axis=w_axis),
        *([_node("DequantizeLinear", "b sb", "db", axis=0)] if bias else []),
        _node(kind, "dx dw db" if bias else "dx dw", "r", **attributes),
        _node("QuantizeLinear", "r sy zy", "y"),
    ]


def _values(dtype: str, zero: int, w: Any, scales: Any, bias: Any = None) -> dict[str, Any]:
    zeros = np.zeros(np.shape(scales), "int8")
    found = {"sx": SCALE, "zx": np.array(zero, dtype), "w": w, "sw": scales, "zw": zeros}
    found |= {"sy": OUT_SCALE, "zy": np.array(OUT_ZERO, dtype)}
    return found | ({} if bias is None else {"b": bias, "sb": SCALE * scales})


def _quantised(x: Any, scale: Any, zero: int, dtype: str) -> Any:
    info = np.iinfo(dtype)
    return np.clip(np.rint(x.astype("float32") / scale) + zero, info.min, info.max)


def _of_integers(run: Any) -> int:
    """Return how many products and convolutions are of integers."""
    return len(re.findall(r"int32\[[^]]*\] = tvm\.packed_", str(run.module)))


def _compile(model: Any, *arrays: Any, packed: int = 1) -> Any:
    """Compile a file frozen, see how many products are of integers, and return its result."""
    imported = meta.frontend.from_onnx(model)
    given = [meta.array(a) for a in arrays]
    run = meta.vm.compile(imported, *given, freeze=True)
    assert _of_integers(run) == packed or not VNNI, str(run.module)[:4000]
    frozen, plain = run(*given).numpy(), meta.vm.compile(imported, *given)(*given).numpy()
    assert np.abs(frozen.astype("float64") - plain.astype("float64")).max() <= 1
    return frozen


def _check(found: Any, exact: Any, dtype: str) -> None:
    """Within one step of the exact result, and mostly it."""
    expected = _quantised(exact, OUT_SCALE, OUT_ZERO, dtype)
    off = np.abs(found.astype("float64") - expected)
    assert found.dtype == dtype and off.max() <= 1 and (off > 0).mean() < 0.02


def _numbers(*shape: int) -> Any:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype("float32")


def _weight(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).integers(-127, 128, shape).astype("int8")


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 113), ("int8", -128)])
@pytest.mark.parametrize(
    ("channels", "outputs", "taps", "options"),
    [
        (3, 16, 3, ((2, 2), 1, 1)),
        (16, 24, 1, ((1, 1), 0, 1)),
        (8, 20, 3, ((1, 2), 2, 1)),
        (16, 16, 3, ((1, 1), 1, 16)),
        (16, 32, 3, ((1, 1), 1, 2)),
    ],
)
def test_convolutions(
    dtype: str, zero: int, channels: int, outputs: int, taps: int, options: Any
) -> None:
    """Of all zero points, with padding, groups, and channels that fill no block."""
    stride, padding, groups = options
    x, w = _numbers(2, channels, 9, 8), _weight(outputs, channels // groups, taps, taps)
    scales = (0.001 + 0.0001 * np.arange(outputs)).astype("float32")
    bias = (np.arange(outputs) * 50 - 300).astype("int32")
    attributes = {"strides": stride, "pads": [padding] * 4, "group": groups}
    nodes = _qdq("Conv", True, 0, **attributes)
    model = _file(nodes, {"x": x.shape}, {"y": dtype}, **_values(dtype, zero, w, scales, bias))
    q = torch.as_tensor(_quantised(x, SCALE, zero, dtype)) - zero
    sums = F.conv2d(q.double(), torch.as_tensor(w).double(), None, stride, padding, 1, groups)
    sums = sums + torch.as_tensor(bias)[:, None, None]
    exact = sums.numpy() * (np.float64(SCALE) * scales.astype("float64"))[:, None, None]
    _check(_compile(model, x), exact, dtype)


@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 7), ("int8", 0)])
@pytest.mark.parametrize(("rows", "k", "n"), [((3,), 16, 32), ((2, 5), 7, 24), ((1, 1, 3), 12, 9)])
@pytest.mark.parametrize("kind", ["MatMul", "Gemm"])
def test_products(dtype: str, zero: int, rows: Any, k: int, n: int, kind: str) -> None:
    """Gemm takes the weight's rows as outputs, and matrices only."""
    rows = rows if kind == "MatMul" else rows[-1:]
    x, w = _numbers(*rows, k), _weight(k, n)
    scales = (0.002 + 0.0001 * np.arange(n)).astype("float32")
    bias = (np.arange(n) * 10).astype("int32") if kind == "Gemm" else None
    nodes = _qdq(kind, kind == "Gemm", 0 if kind == "Gemm" else 1)
    if kind == "Gemm":
        nodes[4].attribute.append(helper.make_attribute("transB", 1))
    given = w.T.copy() if kind == "Gemm" else w
    values = _values(dtype, zero, given, scales, bias)
    model = _file(nodes, {"x": x.shape}, {"y": dtype}, **values)
    sums = (_quantised(x, SCALE, zero, dtype) - zero) @ w.astype("float64")
    sums = sums if bias is None else sums + bias
    _check(_compile(model, x), sums * (np.float64(SCALE) * scales.astype("float64")), dtype)


def test_products_of_any_number_of_rows() -> None:
    w, scales = _weight(8, 16), np.float32(0.01)
    model = _file(
        _qdq("MatMul", False, 1), {"x": ("n", 8)}, {"y": "uint8"}, **_values("uint8", 3, w, scales)
    )
    imported = meta.frontend.from_onnx(model)
    types = meta.ir.parse_type("float32[n, 8]")
    run = meta.vm.compile(imported, types, dims={"n": (1, 40)}, freeze=True)
    assert _of_integers(run) == 1 or not VNNI
    for count in (1, 3, 40):
        x = _numbers(count, 8)
        exact = (_quantised(x, SCALE, 3, "uint8") - 3) @ w.astype("float64")
        _check(run(meta.array(x)).numpy(), exact * np.float64(SCALE * scales), "uint8")


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_operators_of_integers_are_exact(dtype: str) -> None:
    """MatMulInteger and ConvInteger, with zero points of x."""
    info = np.iinfo(dtype)
    q = np.random.default_rng(0).integers(info.min, info.max + 1, (2, 8, 6, 6)).astype(dtype)
    zero, w = np.array(info.min + 5, dtype), _weight(16, 8, 3, 3)
    node = _node("ConvInteger", "q w z", "y", pads=[1, 1, 1, 1])
    found = _compile(_file([node], {"q": q}, {"y": "int32"}, w=w, z=zero), q)
    shifted = torch.as_tensor(q.astype("float64") - float(zero))
    expected = F.conv2d(shifted, torch.as_tensor(w).double(), padding=1)
    np.testing.assert_array_equal(found, expected.int().numpy())
    rows, matrix = q.reshape(-1, 8), _weight(8, 16)
    node = _node("MatMulInteger", "q w z", "y")
    found = _compile(_file([node], {"q": rows}, {"y": "int32"}, w=matrix, z=zero), rows)
    exact = (rows.astype("int64") - int(zero)) @ matrix.astype("int64")
    np.testing.assert_array_equal(found, exact)


@pytest.mark.parametrize("kind", ["QLinearMatMul", "QLinearConv"])
@pytest.mark.parametrize(("dtype", "zero"), [("uint8", 0), ("uint8", 131), ("int8", -7)])
def test_operators_that_quantise_again(kind: str, dtype: str, zero: int) -> None:
    """Integers in and out: rounded to the nearest, as their definition says in float64."""
    of_images = kind == "QLinearConv"
    shape, w = ((2, 8, 6, 5), _weight(16, 8, 3, 3)) if of_images else ((3, 24), _weight(24, 16))
    info = np.iinfo(dtype)
    q = np.random.default_rng(3).integers(info.min, info.max + 1, shape).astype(dtype)
    scales = (0.002 + 0.0001 * np.arange(16)).astype("float32")
    names = "q sx zx w sw zw sy zy"
    attributes = {"pads": [1] * 4} if of_images else {}
    values = _values(dtype, zero, w, scales)
    model = _file([_node(kind, names, "y", **attributes)], {"q": q}, {"y": dtype}, **values)
    found = _compile(model, q)
    x, kernel = (q.astype("float64") - zero) * SCALE, w.astype("float64")
    if of_images:
        given = torch.as_tensor(x), torch.as_tensor(kernel * scales[:, None, None, None])
        exact = F.conv2d(*given, padding=1).numpy()
    else:
        exact = x @ (kernel * scales)
    _check(found, exact, dtype)


def test_what_is_quantised_as_it_is_stays_so() -> None:
    """Also behind operators that move elements; by another scale it is quantised anew."""
    q = np.random.default_rng(0).integers(-128, 128, (4, 6)).astype("int8")
    nodes = [
        _node("DequantizeLinear", "q s z", "a"),
        _node("Transpose", "a", "b"),
        _node("QuantizeLinear", "b s z", "c"),
        _node("DequantizeLinear", "c s z", "d"),
        _node("QuantizeLinear", "d t z", "y"),
    ]
    values = {"s": SCALE, "t": OUT_SCALE, "z": np.array(4, "int8")}
    model = _file(nodes, {"q": q}, {"c": "int8", "y": "int8"}, **values)
    imported = meta.frontend.from_onnx(model)
    run = meta.vm.compile(imported, meta.array(q), freeze=True)
    c, y = (a.numpy() for a in run(meta.array(q)))
    np.testing.assert_array_equal(c, q.T)
    exact = _quantised((q.T.astype("float32") - 4) * SCALE, OUT_SCALE, 4, "int8")
    assert np.abs(y - exact).max() <= 1
    assert str(run.module).count("= tvm.round(") == 1


@pytest.mark.parametrize(
    "case", ["zero point of the weight", "plain x", "scale of inputs", "sums beyond int32"]
)
def test_what_is_no_product_of_integers_stays_as_it_is(case: str) -> None:
    x, w, n = _numbers(3, 8), _weight(8, 16), 16
    if case == "sums beyond int32":
        x, w = np.full((3, 70000), 9, "float32"), np.full((70000, 16), 127, "int8")
    values = _values("uint8", 3, w, np.full(n, 0.01, "float32"))
    nodes = _qdq("MatMul", False, 1)
    if case == "zero point of the weight":
        values["zw"] = np.full(n, 2, "int8")
    elif case == "plain x":
        nodes = [nodes[2], _node("MatMul", "x dw", "r"), nodes[-1]]
    elif case == "scale of inputs":
        values |= {"sw": np.full(8, 0.01, "float32"), "zw": np.zeros(8, "int8")}
        nodes[2].attribute[0].i = 0
    model = _file(nodes, {"x": x.shape}, {"y": "uint8"}, **values)
    imported = meta.frontend.from_onnx(model)
    run = meta.vm.compile(imported, meta.array(x), freeze=True)
    assert not _of_integers(run)
    plain = meta.vm.compile(imported, meta.array(x))(meta.array(x)).numpy()
    assert np.abs(run(meta.array(x)).numpy().astype(int) - plain.astype(int)).max() <= 1


@pytest.mark.parametrize("activations", ["QInt8", "QUInt8"])
def test_a_network_that_onnxruntime_quantised(activations: str, tmp_path: Any) -> None:
    """Convolutions, a shortcut, pooling, and a product at the end."""
    pytest.importorskip("onnxruntime")
    from onnxruntime import quantization

    nodes = [
        _node("Conv", "x w1 b1", "a", pads=[1, 1, 1, 1]),
        _node("Relu", "a", "b"),
        _node("MaxPool", "b", "c", kernel_shape=[2, 2], strides=[2, 2]),
        _node("Conv", "c w2 b2", "d", pads=[1, 1, 1, 1], group=16),
        _node("Relu", "d", "e"),
        _node("Conv", "e w3", "f"),
        _node("Add", "f c", "g"),
        _node("GlobalAveragePool", "g", "h"),
        _node("Flatten", "h", "i"),
        _node("Gemm", "i w4 b4", "y", transB=1),
    ]
    weights = {
        "w1": _numbers(16, 3, 3, 3) / 5, "b1": _numbers(16), "w2": _numbers(16, 1, 3, 3) / 3,
        "b2": _numbers(16), "w3": _numbers(16, 16, 1, 1) / 4, "w4": _numbers(10, 16),
        "b4": _numbers(10),
    }  # fmt: skip
    model = _file(nodes, {"x": (2, 3, 12, 12)}, {"y": "float32"}, **weights)
    onnx.save(model, str(tmp_path / "float.onnx"))

    class Reader(quantization.CalibrationDataReader):
        left = 4

        def get_next(self) -> Any:
            self.left -= 1
            return {"x": _numbers(2, 3, 12, 12) * (1 + self.left / 8)} if self.left >= 0 else None

    kind = getattr(quantization.QuantType, activations)
    files = str(tmp_path / "float.onnx"), str(tmp_path / "int8.onnx")
    quantization.quantize_static(*files, Reader(), per_channel=True, activation_type=kind)
    imported, x = meta.frontend.from_onnx(files[1]), meta.array(_numbers(2, 3, 12, 12))
    run = meta.vm.compile(imported, x, freeze=True)
    assert _of_integers(run) == 4 or not VNNI
    step = [v for v in onnx.load(files[1]).graph.initializer if v.name == "y_scale"]
    most = float(numpy_helper.to_array(step[0])) * 1.01
    difference = run(x).numpy() - meta.vm.compile(imported, x)(x).numpy()
    assert np.abs(difference).max() <= most


def test_integers_that_are_written_are_read_where_the_program_does() -> None:
    program = meta.ir.parse("""
    func @main(%q: uint8[4], %v: uint8[4]) -> (float32[2, 2], uint8[4]) {
      %0: float32[4] = astype(%q, dtype="float32")
      %1: float32[4] = multiply(%0, x2=0.5)
      %2: uint8[4] = assign(%q, %v)
      %3: float32[2, 2] = reshape(%1, shape=(2, 2))
      return (%3, %2)
    }""")
    found = meta.passes.integer_products(program, device=CPU, frozen=True)
    assert str(found) == str(program)
    kept = str(program).replace("assign(%q", "bitwise_and(%q")
    moved = meta.passes.integer_products(meta.ir.parse(kept), device=CPU, frozen=True)
    assert "uint8[2, 2] = reshape(%q" in str(moved)
