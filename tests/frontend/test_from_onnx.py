"""ONNX models come in with equal outputs and names."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import nn

import meta
from meta.frontend import from_onnx
from meta.frontend.onnx import OnnxError


class Small(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 6, 3, stride=2)
        self.fc = nn.Linear(54, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.max_pool2d(torch.relu(self.bn(self.conv1(x))), 2)
        return torch.softmax(self.fc(torch.flatten(torch.relu(self.conv2(y)), 1)), 1)


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> tuple[Small, str]:
    torch.manual_seed(0)
    module = Small().eval()
    path = str(tmp_path_factory.mktemp("onnx") / "small.onnx")
    with warnings.catch_warnings():
        # The exporter warns of its own deprecated code.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            (torch.randn(2, 1, 14, 14),),
            path,
            input_names=["image"],
            dynamo=True,
            external_data=False,
            verbose=False,
            optimize=False,
        )
    return module, path


def test_an_exported_network(exported: tuple[Small, str]) -> None:
    module, path = exported
    model = from_onnx(path)
    x = torch.randn(2, 1, 14, 14)
    wanted = module(x).detach()
    with meta.dialect.prefer("torch"):
        found = model(meta.array(x))
    torch.testing.assert_close(found.torch(), wanted, rtol=1e-4, atol=1e-5)
    found = meta.vm.compile(model, meta.array(x))(meta.array(x))
    torch.testing.assert_close(found.torch(), wanted, rtol=1e-4, atol=1e-5)
    assert model.input_names == ("image",)
    assert len(model.output_names) == 1
    names = {n for n, t in module.state_dict().items() if t.ndim}
    assert names <= set(model.state())
    assert set(dict(model.named_parameters())) == {n for n, _ in module.named_parameters()}


def graph(
    nodes: list[Any],
    inputs: dict[str, Any],
    outputs: dict[str, int],
    weights: dict[str, Any] | None = None,
    dtype: int = TensorProto.FLOAT,
) -> onnx.ModelProto:
    """Return a model; inputs are by arrays of their types, outputs by their numbers of axes."""
    made = helper.make_graph(
        nodes,
        "main",
        [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
            for n, v in inputs.items()
        ],
        [helper.make_tensor_value_info(n, dtype, list("abc"[:d])) for n, d in outputs.items()],
        [numpy_helper.from_array(v, n) for n, v in (weights or {}).items()],
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


X = np.random.default_rng(0).normal(size=(2, 3, 4)).astype(np.float32)


def run(model: Any, *inputs: Any) -> Any:
    with meta.dialect.prefer("torch"):
        return model(*(meta.array(x) for x in inputs))


def test_shapes_that_are_computed() -> None:
    nodes = [
        helper.make_node("Shape", ["x"], ["shape"]),
        helper.make_node("Gather", ["shape", "first"], ["n"], axis=0),
        helper.make_node("Concat", ["n", "rest"], ["new"], axis=0),
        helper.make_node("Reshape", ["x", "new"], ["y"]),
    ]
    weights = {"first": np.array([0]), "rest": np.array([-1])}
    found = run(from_onnx(graph(nodes, {"x": X}, {"y": 2}, weights)), X)
    np.testing.assert_array_equal(found.numpy(), X.reshape(2, -1))


def test_inputs_as_constants() -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"])]
    shape = np.array([4, 6])
    proto = graph(nodes, {"x": X, "shape": shape}, {"y": 2})
    model = from_onnx(proto, {"shape": shape})
    assert model.input_names == ("x",)
    np.testing.assert_array_equal(run(model, X).numpy(), X.reshape(4, 6))
    dynamic = from_onnx(proto)
    assert dynamic.input_names == ("x", "shape")
    np.testing.assert_array_equal(run(dynamic, X, shape).numpy(), X.reshape(4, 6))
    with pytest.raises(meta.errors.ArgumentError, match="no input 'shapes'"):
        from_onnx(proto, {"shapes": shape})
    with pytest.raises(meta.errors.ArgumentError, match="another dtype"):
        from_onnx(proto, {"shape": [4.0, 6.0]})


def test_a_shape_of_the_run_time() -> None:
    nodes = [helper.make_node("Expand", ["x", "shape"], ["y"])]
    shape = np.array([5, 2, 3, 4])
    model = from_onnx(graph(nodes, {"x": X, "shape": shape}, {"y": 4}))
    np.testing.assert_array_equal(run(model, X, shape).numpy(), np.broadcast_to(X, shape))


@pytest.mark.parametrize(
    "mode,numpy_mode", [("constant", "constant"), ("edge", "edge"), ("reflect", "reflect")]
)
def test_padding(mode: str, numpy_mode: str) -> None:
    pads = {"pads": np.array([0, 1, 2, 1, 0, 1])}
    nodes = [helper.make_node("Pad", ["x", "pads"], ["y"], mode=mode)]
    if mode == "reflect":
        pads = {"pads": np.array([0, 1, 2, 0, 0, 1])}
    found = run(from_onnx(graph(nodes, {"x": X}, {"y": 3}, pads)), X)
    width = pads["pads"].reshape(2, 3).T
    np.testing.assert_array_equal(found.numpy(), np.pad(X, width, mode=numpy_mode))


def test_functions_are_inlined_and_several_outputs_are_a_tuple() -> None:
    nodes = [
        helper.make_node("Celu", ["x"], ["y"]),
        helper.make_node("Split", ["y"], ["a", "b"], axis=2, num_outputs=2),
    ]
    model = from_onnx(graph(nodes, {"x": X}, {"a": 3, "b": 3}))
    wanted = torch.celu(torch.from_numpy(X)).split(2, 2)
    found = run(model, X)
    assert model.output_names == ("a", "b")
    for f, w in zip(found, wanted, strict=True):
        torch.testing.assert_close(f.torch(), w)


def test_batch_normalisation_in_training() -> None:
    weights = {n: np.full(3, v, np.float32) for n, v in zip("wbmv", (2, 1, 0, 1), strict=True)}
    nodes = [helper.make_node("BatchNormalization", ["x", *"wbmv"], ["y"], momentum=0.8)]
    model = from_onnx(graph(nodes, {"x": X}, {"y": 3}, weights)).train()
    module = nn.BatchNorm1d(3, momentum=0.2)
    with torch.no_grad():
        module.weight.fill_(2)
        module.bias.fill_(1)
    wanted = module(torch.from_numpy(X))
    torch.testing.assert_close(run(model, X).torch(), wanted.detach(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(model.state()["m"].torch(), module.running_mean)
    torch.testing.assert_close(model.state()["v"].torch(), module.running_var)
    assert list(dict(model.named_parameters())) == ["w", "b"]


def test_branches() -> None:
    def branch(operator: str, name: str) -> onnx.GraphProto:
        output = helper.make_tensor_value_info(name, TensorProto.FLOAT, X.shape)
        return helper.make_graph([helper.make_node(operator, ["x"], [name])], name, [], [output])

    condition = np.array(True)
    nodes = [
        helper.make_node(
            "If", ["c"], ["y"], then_branch=branch("Neg", "n"), else_branch=branch("Abs", "p")
        )
    ]
    model = from_onnx(graph(nodes, {"c": condition, "x": X}, {"y": 3}))
    np.testing.assert_array_equal(run(model, condition, X).numpy(), -X)
    np.testing.assert_array_equal(run(model, np.array(False), X).numpy(), np.abs(X))
    inner = nodes[0].attribute[0].g
    del inner.node[:]
    inner.node.extend(
        [
            helper.make_node("GridSample", ["x", "x"], ["u"], mode="quintic"),
            helper.make_node("Neg", ["u"], [inner.output[0].name]),
        ]
    )
    model = from_onnx(graph(nodes, {"c": condition, "x": X}, {"y": 3}))
    np.testing.assert_array_equal(run(model, condition, X).numpy(), -X)
    with pytest.raises(meta.errors.ExecutionError, match="GridSample, u: the mode 'quintic'"):
        run(model, np.array(False), X)
    # Where neither branch can be converted, the error is that of the conversion.
    other = nodes[0].attribute[1].g
    other.node[0].CopyFrom(
        helper.make_node("GridSample", ["x", "x"], [other.output[0].name], mode="quintic")
    )
    model = from_onnx(graph(nodes, {"c": condition, "x": X}, {"y": 3}))
    for taken in (True, False):
        with pytest.raises(OnnxError, match="not supported") as caught:
            run(model, np.array(taken), X)
        assert "the mode 'quintic' is unknown" in str(caught.value)


def test_an_output_that_is_named_twice() -> None:
    proto = graph([helper.make_node("Neg", ["x"], ["y"])], {"x": X}, {"y": 3})
    proto.graph.output.append(proto.graph.output[0])
    model = from_onnx(proto)
    assert model.output_names == ("y", "y")
    for found in run(model, X):
        np.testing.assert_array_equal(found.numpy(), -X)


def test_everything_unsupported_is_in_one_error() -> None:
    nodes = [
        helper.make_node("ImageDecoder", ["x"], ["i"]),
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("RegexFullMatch", ["r"], ["s"], pattern="a"),
        helper.make_node("Add", ["i", "s"], ["y"]),
    ]
    proto = graph(nodes, {"x": X}, {"y": 3})
    proto.opset_import[0].version = 20
    with pytest.raises(OnnxError, match="2 calls of this program are not supported") as caught:
        from_onnx(proto)
    assert "ImageDecoder, once, first at i: compressed images" in str(caught.value)
    assert "RegexFullMatch, once, first at s" in str(caught.value)


def test_a_dependent_of_what_is_not_converted_is_not_listed() -> None:
    nodes = [
        helper.make_node("GridSample", ["x", "x"], ["u"], mode="quintic"),
        helper.make_node("Neg", ["u"], ["n"]),
        helper.make_node("Det", ["n"], ["y"]),
        helper.make_node("TopK", ["x", "k"], ["v", "w"]),
        helper.make_node("OneHot", ["x", "k", "d"], ["o"]),
        helper.make_node("MaxPool", ["x"], ["z"], kernel_shape=[2], auto_pad="SAME"),
    ]
    given = {"x": X, "k": np.array([1]), "d": np.array([0, 1], np.float32)}
    model = from_onnx(graph(nodes, given, {"y": 3, "v": 3, "o": 4, "z": 3}))
    with pytest.raises(OnnxError, match="2 calls of this program are not supported") as caught:
        run(model, *given.values())
    assert "GridSample" in str(caught.value) and "MaxPool" in str(caught.value)
    assert "Det" not in str(caught.value)


@pytest.mark.parametrize(
    "to,saturate,beyond",
    [
        (TensorProto.FLOAT8E5M2, 1, 57344),
        (TensorProto.FLOAT8E4M3FN, 0, np.nan),
        (TensorProto.FLOAT8E5M2, 0, np.inf),
        (TensorProto.FLOAT8E4M3FN, 1, 448),
    ],
)
def test_casts_to_float8(to: int, saturate: int, beyond: float) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=to, saturate=saturate)
    proto = graph([node], {"x": X}, {"y": 3}, dtype=to)
    proto.opset_import[0].version = 19
    found = run(from_onnx(proto), np.sign(X) * np.float32(1e6))
    np.testing.assert_array_equal(found.numpy().astype(np.float32), np.sign(X) * beyond)


@pytest.mark.parametrize(
    "operator,other,why",
    [
        ("Gather", [7], "index 7"),
        ("Reshape", [7], "elements"),
        ("Range", [0], "a step of 0 has no end"),
    ],
)
def test_constants_that_do_not_fit_their_operator(operator: str, other: Any, why: str) -> None:
    weights = {"a": np.array([1, 2, 3]), "i": np.array(other)}
    inputs = ["a", "i"]
    if operator == "Range":
        weights, inputs = {"a": np.array(1), "i": np.array(0)}, ["a", "a", "i"]
    nodes = [
        helper.make_node(operator, inputs, ["r"], name="wrong"),
        helper.make_node("Cast", ["r"], ["c"], to=TensorProto.FLOAT),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    model = from_onnx(graph(nodes, {"x": X}, {"y": 2}, weights))
    with pytest.raises(meta.errors.MetaError, match=why) as caught:
        run(model, X)
    assert "wrong" in str(caught.value) and operator in str(caught.value)


def test_inputs_of_another_type() -> None:
    model = from_onnx(graph([helper.make_node("Neg", ["x"], ["y"])], {"x": X}, {"y": 3}))
    for other in (X.astype(np.float64), X[:1], X[0]):
        with pytest.raises(OnnxError, match="the input 'x' has another type"):
            run(model, other)


def test_a_function_of_the_model_takes_attributes_and_has_defaults() -> None:
    body = [helper.make_node("LeakyRelu", ["a"], ["b"], name="n")]
    body[0].attribute.add(name="alpha", type=onnx.AttributeProto.FLOAT, ref_attr_name="slope")
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("my", 1)]
    functions = [
        helper.make_function(
            "my",
            "f",
            ["a"],
            ["b"],
            body,
            opsets[:1],
            attributes=[],
            attribute_protos=[helper.make_attribute("slope", 0.5)],
        )
    ]
    nodes = [
        helper.make_node("f", ["x"], ["t"], domain="my", slope=0.25),
        helper.make_node("f", ["t"], ["y"], domain="my"),
    ]
    proto = graph(nodes, {"x": X}, {"y": 3})
    proto.opset_import.append(opsets[1])
    proto.functions.extend(functions)
    wanted = np.where(X < 0, X * 0.125, X)
    np.testing.assert_allclose(run(from_onnx(proto), X).numpy(), wanted, rtol=1e-6)


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("meta.frontend.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="pip install onnx"):
        _ = meta.frontend.from_onnx


def test_what_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(b"\x08\x96\x01garbage")
    with pytest.raises(OnnxError, match="is no"):
        from_onnx(path)
    with pytest.raises(meta.errors.ArgumentError, match=r"onnx\.ModelProto"):
        from_onnx(3)
    unknown = graph([helper.make_node("Relu", ["z"], ["y"])], {"x": X}, {"y": 3})
    with pytest.raises(OnnxError, match="is no valid ONNX model"):
        from_onnx(unknown)
