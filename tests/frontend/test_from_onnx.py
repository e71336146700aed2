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
from onnx.reference.op_run import RuntimeImplementationError
from torch import nn

import meta
from meta.frontend import from_onnx
from meta.frontend.onnx import graph as preparation
from meta.frontend.relax import RelaxError


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
    with pytest.raises(RelaxError, match="refuses the model"):
        from_onnx(proto)
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
def test_operators_that_are_tensor_expressions(mode: str, numpy_mode: str) -> None:
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
            helper.make_node("IsInf", ["x"], ["is_inf"], detect_negative=0),
            helper.make_node("Cast", ["is_inf"], [inner.output[0].name], to=TensorProto.FLOAT),
        ]
    )
    with pytest.raises(RelaxError, match="infinity of one sign"):
        from_onnx(graph(nodes, {"c": condition, "x": X}, {"y": 3}))


def test_an_output_that_is_named_twice() -> None:
    proto = graph([helper.make_node("Neg", ["x"], ["y"])], {"x": X}, {"y": 3})
    proto.graph.output.append(proto.graph.output[0])
    model = from_onnx(proto)
    assert model.output_names == ("y", "y")
    for found in run(model, X):
        np.testing.assert_array_equal(found.numpy(), -X)


@pytest.mark.parametrize(
    "node,weights,why",
    [
        (helper.make_node("Det", ["x"], ["y"]), {}, r"refuses the model.*Det"),
        (helper.make_node("IsInf", ["x"], ["y"], detect_negative=0), {}, r"infinity of one sign"),
        (
            helper.make_node("Resize", ["x", "", "s"], ["y"], mode="linear"),
            {"s": np.array([1, 1, 0.7], np.float32)},
            r"no whole extents",
        ),
    ],
)
def test_what_is_not_supported(node: Any, weights: dict[str, Any], why: str) -> None:
    with pytest.raises(RelaxError, match=why):
        from_onnx(graph([node], {"x": X}, {"y": 3}, weights))


@pytest.mark.parametrize(
    "to,saturate,why",
    [
        (TensorProto.FLOAT8E5M2, 1, "float8_e5m2 without infinities"),
        (TensorProto.FLOAT8E4M3FN, 0, "float8_e4m3fn with NaN"),
        (TensorProto.FLOAT8E5M2, 0, None),
        (TensorProto.FLOAT8E4M3FN, 1, None),
    ],
)
def test_casts_to_float8(to: int, saturate: int, why: str | None) -> None:
    node = helper.make_node("Cast", ["x"], ["y"], to=to, saturate=saturate)
    proto = graph([node], {"x": X}, {"y": 3}, dtype=to)
    proto.opset_import[0].version = 19
    if why is not None:
        with pytest.raises(RelaxError, match=why):
            from_onnx(proto)
        return
    found = run(from_onnx(proto), np.sign(X) * np.float32(1e6))
    beyond = np.inf if to == TensorProto.FLOAT8E5M2 else 448
    np.testing.assert_array_equal(found.numpy().astype(np.float32), np.sign(X) * beyond)


@pytest.mark.parametrize(
    "operator,other,why",
    [
        ("Gather", [7], "index 7 is out of bounds"),
        ("Reshape", [7], "cannot reshape"),
        ("Range", [0], "division by zero"),
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
    with pytest.raises(RelaxError, match=rf"'wrong' cannot be computed: {operator}[^$]*{why}"):
        from_onnx(graph(nodes, {"x": X}, {"y": 2}, weights))


def test_a_fault_in_folding_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise AssertionError("ours")

    monkeypatch.setattr(preparation.helper, "np_dtype_to_tensor_dtype", broken)
    nodes = [
        helper.make_node("Neg", ["a"], ["r"]),
        helper.make_node("Reshape", ["x", "r"], ["y"]),
    ]
    with pytest.raises(AssertionError, match="ours"):
        from_onnx(graph(nodes, {"x": X}, {"y": 1}, {"a": np.array([1])}))


def test_what_the_reference_cannot_compute_is_the_importers_matter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(*_: Any) -> None:
        raise RuntimeImplementationError("no implementation")

    monkeypatch.setattr(preparation, "ReferenceEvaluator", absent)
    nodes = [helper.make_node("Neg", ["a"], ["r"]), helper.make_node("Reshape", ["x", "r"], ["y"])]
    model = from_onnx(graph(nodes, {"x": X}, {"y": 1}, {"a": np.array([1])}))
    np.testing.assert_array_equal(run(model, X).numpy(), X.ravel())


def test_without_onnx(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [n for n in sys.modules if n.startswith("meta.frontend.onnx")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(ImportError, match="pip install onnx"):
        _ = meta.frontend.from_onnx


def test_what_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "no.onnx"
    path.write_bytes(b"\x08\x96\x01garbage")
    with pytest.raises(RelaxError, match="is no"):
        from_onnx(path)
    with pytest.raises(meta.errors.ArgumentError, match=r"onnx\.ModelProto"):
        from_onnx(3)
    unknown = graph([helper.make_node("Relu", ["z"], ["y"])], {"x": X}, {"y": 3})
    with pytest.raises(RelaxError, match="is no valid ONNX model"):
        from_onnx(unknown)
