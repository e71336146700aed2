"""`meta.frontend.check` and ``python -m meta import``: what is supported, and what comes of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper
from torch import nn

import meta
from meta.cli.main import main
from meta.frontend import check

RELAY = Path(__file__).parents[1] / "data" / "relay" / "models" / "dotted_names"


class Odd(nn.Module):
    """Two operators that are supported, and two calls of one that is not."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.special.airy_ai(torch.special.airy_ai(x.sin() + 1))


def onnx_file(path: Path, operator: str) -> str:
    value = helper.make_tensor_value_info
    node = helper.make_node(operator, ["x"], ["y"])
    graph = helper.make_graph(
        [node], "g", [value("x", TensorProto.FLOAT, [2])], [value("y", TensorProto.FLOAT, [2])]
    )
    opsets = [helper.make_opsetid("", 20)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
    return str(path)


def exported(path: Path, module: Any, *inputs: torch.Tensor, **keywords: torch.Tensor) -> str:
    torch.export.save(torch.export.export(module.eval(), inputs, keywords), path)
    return str(path)


def test_modules() -> None:
    x = (torch.ones(2),)
    report = check(Odd(), x)
    assert not report.supported and report.source == "torch"
    assert report.operators == {"special_airy_ai": 2, "sin": 1, "add.Tensor": 1}
    ((name, count, place, why, _),) = report.unsupported()
    assert (name, count) == ("special_airy_ai", 2) and place and "Bessel" in why
    assert "special_airy_ai, 2 times, first at " in str(report)
    assert check(nn.Dropout(), x).operators != check(nn.Dropout(), x, training=True).operators
    program = torch.export.export(nn.Linear(2, 3), x)
    assert check(program).supported and "linear" in check(program).operators


def test_a_module_that_is_not_exported() -> None:
    class Deciding(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    (failure,) = check(Deciding(), (torch.ones(2),)).failures
    assert failure.operator == "torch.export" and "data-dependent" in failure.why


def test_files(tmp_path: Path) -> None:
    assert check(exported(tmp_path / "a.pt2", nn.ReLU(), torch.ones(2))).operators == {"relu": 1}
    assert check(onnx_file(tmp_path / "a.onnx", "Relu")).operators == {"Relu": 1}
    report = check(onnx_file(tmp_path / "b.onnx", "ImageDecoder"))
    assert [f.operator for f in report.failures] == ["ImageDecoder"]
    assert check(RELAY / "model.relay").source == "relay"
    (tmp_path / "odd.relay").write_text("fn (%x: Tensor[(2), float32]) { nn.reluu(%x) }\n")
    assert [f.operator for f in check(tmp_path / "odd.relay").failures] == ["nn.reluu"]


def test_what_is_no_model() -> None:
    with pytest.raises(meta.errors.ArgumentError, match="check takes a model"):
        check(3)
    with pytest.raises(meta.errors.ArgumentError, match="examples are for modules of torch"):
        check(RELAY / "model.relay", (torch.ones(2),))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"y": self.linear(x) * scale}


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, nn.Module]:
    module = Scaled()
    path = tmp_path_factory.mktemp("import") / "scaled.pt2"
    return exported(path, module, torch.randn(4, 3), scale=torch.tensor(2.0)), module


def record(capsys: pytest.CaptureFixture[str], *arguments: str, status: int = 0) -> dict[str, Any]:
    assert main(["import", *arguments, "--json"]) == status
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_a_program_of_torch(
    scaled: tuple[str, nn.Module], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, module = scaled
    found = record(capsys, file, "--time", "--dialect", "torch")
    assert found["inputs"] == ["x", "scale"] and found["unsupported"] == []
    assert found["parameters"]["linear.weight"] == "float32[2, 3]"
    assert found["results"] == {"out0": "float32[4, 2]"}
    assert found["difference"] < 1e-5 and not found["differs"]
    assert set(found["seconds"]) == {"meta", f"torch {torch.__version__}"}
    x, scale = torch.randn(4, 3), torch.tensor(3.0)
    np.savez(tmp_path / "in.npz", x=x.numpy(), scale=scale.numpy())
    torch.save({"x": x, "scale": scale}, tmp_path / "in.pt")
    for inputs in ("in.npz", "in.pt"):
        out = tmp_path / f"{inputs}.out.npz"
        words = [file, "--inputs", str(tmp_path / inputs), "--out", str(out), "--dialect", "torch"]
        assert main(["import", *words]) == 0
        wanted = module(x, scale=scale)["y"].detach().numpy()
        np.testing.assert_allclose(np.load(out)["out0"], wanted, 1e-5, 1e-6)
    assert "largest difference" in capsys.readouterr().out


def test_a_model_of_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "in.npy", np.array([-1.0, 2.0], "float32"))
    file, inputs = onnx_file(tmp_path / "a.onnx", "Relu"), str(tmp_path / "in.npy")
    found = record(capsys, file, "--inputs", inputs, "--dialect", "torch")
    assert found["results"] == {"out0": "float32[2]"}


def test_a_program_of_relay(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--params", str(RELAY / "params.bin"), "--inputs", str(RELAY / "inputs.npz")]
    found = record(capsys, str(RELAY / "model.relay"), *words, "--dialect", "torch")
    assert found["results"] == {"out0": "float32[2, 3]"}


def test_only_what_is_supported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = exported(tmp_path / "odd.pt2", Odd(), torch.ones(2))
    found = record(capsys, file, status=1)
    assert found["unsupported"][0]["count"] == 2 and "inputs" not in found
    assert main(["import", file, "--check"]) == 1
    assert "Bessel" in capsys.readouterr().out


def test_bad_input(
    scaled: tuple[str, nn.Module], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in.npz").write_text("nothing")
    np.save(tmp_path / "one.npy", np.zeros((4, 3), "float32"))
    (tmp_path / "broken.pt2").write_bytes(b"PK\x03\x04nothing")
    for words, why in (
        ([scaled[0], "--inputs", str(tmp_path / "in.npz")], "the inputs cannot be read"),
        ([scaled[0], "--inputs", str(tmp_path / "one.npy")], "the model takes 2 inputs"),
        ([scaled[0], "--params", "p.bin"], "--params is of Relay"),
        ([str(tmp_path / "broken.pt2")], "torch.export.load refuses"),
        ([str(tmp_path / "none.onnx")], "No such file"),
        ([str(RELAY / "model.relay"), "--params", str(RELAY / "params.bin"), "--time"], "--inputs"),
    ):
        assert main(["import", *words]) == 2
        assert why in capsys.readouterr().err
